"""The laboratory's tasks, pinned: which there are, in which order each seed meets them, which of them test. Torch-free.

Published gains of credit rules vanished once every method met the same tasks in the same order, on every machine. So the
rows of each world and horizon stand in `panels.json` by their digests, and for each seed the order of all of them: its
first ones test, the others train in that order. A row that came out otherwise than it was pinned is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from milepost.env import Environment, EnvSpec
from milepost.envs import corridor, maze
from milepost.shape import digest
from milepost.streams import generator, shuffled
from milepost.types import RecipeError, Task

FILE = Path(__file__).with_name("panels.json")
HORIZONS = (10, 30, 100)
REPORTED, TUNING = tuple(range(10)), (100, 101, 102)
"""Seeds whose results are told, and those that learning rates are chosen on."""
NUM_ROWS, NUM_TEST = 640, 128
POOL_SEED = 5
CORRIDOR, MAZE = "corridor", "maze"
DIFFICULTY: dict[tuple[str, int], dict[str, Any]] = {
    **{(CORRIDOR, horizon): {"length": horizon, "ways": 4, "signs": 8} for horizon in HORIZONS},
    (MAZE, 10): {"rooms": 9, "keys": 0, "min_length": 3, "max_length": 6, "terse": True},
    (MAZE, 30): {"rooms": 16, "keys": 0, "min_length": 6, "max_length": 12, "terse": True},
    (MAZE, 100): {"rooms": 36, "keys": 0, "min_length": 15, "max_length": 40, "terse": True},
}
POOLS = [*((*cell, False) for cell in DIFFICULTY), *((CORRIDOR, horizon, True) for horizon in HORIZONS)]
"""World, horizon, whether lessons."""


@dataclass(frozen=True)
class LabWorld:
    """A world as the laboratory plays it: its rows are the pinned ones, and prompts hold nothing but what differs."""

    spec: EnvSpec
    texts: str
    """module:NAME of its vocabulary."""
    slips: str
    """module:NAME of the script that warm starts imitate."""


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows(size: int, seed: int, *, world: str, horizon: int, panel: int, lesson: bool = False) -> Iterator[dict[str, Any]]:
    """The first `size` rows of a seed's panel, labelled test or train. The source's own `seed` changes nothing.

    `lesson`: those that warm starts in a long corridor begin with, the same for all seeds. Raises RecipeError.
    """
    found = pool(world, horizon, lesson)
    if lesson:
        yield from found[:size]
        return
    for place, index in enumerate(islice(order(panel), size)):
        yield {**found[index], "split": "test" if place < NUM_TEST else "train"}


@lru_cache(maxsize=4)
def pool(world: str, horizon: int, lesson: bool = False) -> list[dict[str, Any]]:
    """All rows of a world at a horizon, each as it was pinned. Raises RecipeError."""
    name = _name(world, horizon, lesson)
    if name not in read()["rows"]:
        raise RecipeError(f"the laboratory has no panel {name!r}; it has {', '.join(read()['rows'])}")
    made = list(made_rows(world, horizon, lesson))
    wrong = [
        i for i, (row, known) in enumerate(zip(made, read()["rows"][name].split(), strict=True)) if short(row) != known
    ]
    if wrong:
        raise RecipeError(
            f"row {wrong[0]} of the laboratory's panel {name!r} is not the one that was pinned: results would not compare "
            "with earlier ones; use the version of Milepost that made them"
        )
    return made


def made_rows(world: str, horizon: int, lesson: bool = False) -> Iterator[dict[str, Any]]:
    """`lesson`: of a corridor the three doors around the deciding one, a few tokens instead of hundreds."""
    difficulty = DIFFICULTY[world, horizon]
    if lesson:
        difficulty = {**difficulty, "length": 3, "first": (horizon + 1) // 2 - 1}
    generate = corridor.generate if world == CORRIDOR else maze.generate
    for index, row in enumerate(generate(NUM_ROWS, POOL_SEED + lesson, **difficulty)):
        # No rules and no list of letters: a policy that is made from nothing learns them from demonstrations.
        told = row["prompt"].partition(". Ways")[0] if world == CORRIDOR else f"Exit {row['maze']['exit'].replace(' ', '')}"
        yield {**row, "prompt": f"{told}.", "number": index}


def _name(world: str, horizon: int, lesson: bool) -> str:
    return f"{world} {horizon}{' lesson' if lesson else ''}"


def short(row: dict[str, Any]) -> str:
    return digest(row)[:8]


def order(panel: int) -> list[int]:
    """Of all rows of any world, as the seed `panel` meets them. Raises RecipeError."""
    known = read()["orders"]
    if str(panel) not in known:
        raise RecipeError(f"the laboratory has no pinned order for seed {panel}; it has {', '.join(known)}")
    return [int(index) for index in known[str(panel)].split()]


@lru_cache(maxsize=1)
def read() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def pinned_now() -> dict[str, dict[str, str]]:
    """What `panels.json` holds, made anew: only for another panel, with which earlier results do not compare."""
    return {
        "rows": {_name(*which): " ".join(map(short, made_rows(*which))) for which in POOLS},
        "orders": {str(seed): " ".join(map(str, shuffled(seed, "lab", NUM_ROWS))) for seed in (*REPORTED, *TUNING)},
    }


# ---- worlds ----------------------------------------------------------------------------------------------------------


def _as_played(spec: EnvSpec) -> EnvSpec:
    return replace(spec, generate=partial(rows, world=spec.name), system="")


CORRIDOR_SPEC, MAZE_SPEC = _as_played(corridor.SPEC), _as_played(maze.SPEC)
CORRIDOR_SLIPS, MAZE_SLIPS = 0.4, 0.3
"""Chance of a slip: at the door that decides, and at every step through a maze."""


def corridor_slips(task: Task, world: Environment) -> Iterator[str]:
    """Letters by chance, but at the door that decides often the right one."""
    rng = generator(0, f"lab/{task.key}")
    ways = corridor.WAYS[: task.columns["ways"]]
    for door in range(corridor.first_door(task.columns), corridor.last_door(task.columns) + 1):
        decides = door == task.columns["place"]
        if decides and rng.random() >= CORRIDOR_SLIPS:
            yield task.columns["right"]
        else:
            among = corridor.wrong_ways(task) if decides else ways
            yield among[int(rng.random() * len(among))]


def maze_slips(task: Task, world: Environment) -> Iterator[str]:
    """Knows the maze and often goes another way; from wherever it is then, the shortest one again."""
    rng, found = generator(0, f"lab/{task.key}"), task.columns["maze"]
    while way := maze.shortest_path(found, where := maze.where_of(found, world.state())):
        said = way[0].split()[0]
        if rng.random() < MAZE_SLIPS:
            others = [verb for action, _ in maze.options(found, where) if (verb := action.split()[0]) != said]
            said = others[int(rng.random() * len(others))] if others else said
        yield said


LAB_WORLDS = {
    CORRIDOR: LabWorld(CORRIDOR_SPEC, "milepost.envs.corridor:WORDS", "milepost.lab.panels:corridor_slips"),
    MAZE: LabWorld(MAZE_SPEC, "milepost.envs.maze:TERSE_WORDS", "milepost.lab.panels:maze_slips"),
}

"""The laboratory's tasks, pinned: which there are, in which order each seed meets them, which of them test. Torch-free.

Published gains of credit rules vanished once every method met the same tasks in the same order, on every machine. So the
rows of each world and horizon stand in `panels.json` by their digests, and for each seed the order of all of them: its
first ones test, the others train in that order. A row that came out otherwise than it was pinned is refused. Seeds that
learning rates are chosen on have rows of their own, of which no reported seed meets any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
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
"""Rows that a seed meets, and how many of them test."""
POOL_SEED = 5
CORRIDOR, MAZE = "corridor", "maze"
DIFFICULTY: dict[tuple[str, int], dict[str, Any]] = {
    **{(CORRIDOR, horizon): {"length": horizon, "ways": 4, "signs": 8} for horizon in HORIZONS},
    (MAZE, 10): {"rooms": 9, "keys": 0, "min_length": 3, "max_length": 6, "terse": True},
    (MAZE, 30): {"rooms": 16, "keys": 0, "min_length": 6, "max_length": 12, "terse": True},
    (MAZE, 100): {"rooms": 36, "keys": 0, "min_length": 15, "max_length": 40, "terse": True},
}
OF_REPORTED, OF_TUNING, LESSON = "", "choosing", "lesson"
"""Parts of a world's rows: those of the reported seeds, of the seeds for choosing, and what warm starts in a long corridor
begin with."""
POOLS = [
    *((*cell, part) for cell in DIFFICULTY for part in (OF_REPORTED, OF_TUNING)),
    *((CORRIDOR, horizon, LESSON) for horizon in HORIZONS),
]
"""World, horizon, part."""


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
    if lesson:
        yield from pool(world, horizon, LESSON)[:size]
        return
    numbers = order(panel)
    part = OF_TUNING if panel in TUNING else OF_REPORTED
    found = {row["number"]: row for row in pool(world, horizon, part)}
    for place, number in enumerate(islice(numbers, size)):
        yield {**found[number], "split": "test" if place < NUM_TEST else "train"}


@lru_cache(maxsize=4)
def pool(world: str, horizon: int, part: str = OF_REPORTED) -> list[dict[str, Any]]:
    """The rows of a part of a world at a horizon, each as it was pinned. Raises RecipeError."""
    name = _name(world, horizon, part)
    if name not in read()["rows"]:
        raise RecipeError(f"the laboratory has no panel {name!r}; it has {', '.join(read()['rows'])}")
    made = list(made_rows(world, horizon, part))
    wrong = [
        i for i, (row, known) in enumerate(zip(made, read()["rows"][name].split(), strict=True)) if short(row) != known
    ]
    if wrong:
        raise RecipeError(
            f"row {made[wrong[0]]['number']} of the laboratory's panel {name!r} is not the one that was pinned: results "
            "would not compare with earlier ones; use the version of Milepost that made them"
        )
    return made


def made_rows(world: str, horizon: int, part: str = OF_REPORTED) -> Iterator[dict[str, Any]]:
    """Those of the seeds for choosing follow those of the reported ones, so that none is among both. A lesson: of a
    corridor the three doors around the deciding one, a few tokens instead of hundreds.
    """
    difficulty, lesson = DIFFICULTY[world, horizon], part == LESSON
    if lesson:
        difficulty = {**difficulty, "length": 3, "first": (horizon + 1) // 2 - 1}
    generate: Callable[..., Iterator[Mapping[str, Any]]] = corridor.generate if world == CORRIDOR else maze.generate
    first = NUM_ROWS if part == OF_TUNING else 0
    made = generate(first + NUM_ROWS, POOL_SEED + lesson, **difficulty)
    for number, row in islice(enumerate(made), first, None):
        # No rules and no list of letters: a policy that is made from nothing learns them from demonstrations.
        told = row["prompt"].partition(". Ways")[0] if world == CORRIDOR else f"Exit {row['maze']['exit'].replace(' ', '')}"
        yield {**row, "prompt": f"{told}.", "number": number}


def _name(world: str, horizon: int, part: str) -> str:
    return f"{world} {horizon} {part}".strip()


def short(row: dict[str, Any]) -> str:
    return digest(row)[:8]


def order(panel: int) -> list[int]:
    """The numbers of a seed's rows, of any world, as the seed `panel` meets them. Raises RecipeError."""
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
        "orders": {str(seed): " ".join(map(str, _order_now(seed))) for seed in (*REPORTED, *TUNING)},
    }


def _order_now(seed: int) -> list[int]:
    first = NUM_ROWS if seed in TUNING else 0
    return [first + int(index) for index in shuffled(seed, "lab", NUM_ROWS)]


# ---- worlds ----------------------------------------------------------------------------------------------------------


def _as_played(spec: EnvSpec) -> EnvSpec:
    return replace(spec, generate=partial(rows, world=spec.name), system="")


CORRIDOR_SPEC, MAZE_SPEC = _as_played(corridor.SPEC), _as_played(maze.SPEC)
CORRIDOR_SLIPS, MAZE_SLIPS = 0.6, 0.3
"""Chance of a slip: at the door that decides, and at every step through a maze. With 0.4 plain
`episode` went from 65 % to 88 % in half of its steps: little was left in which another rule could differ."""


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

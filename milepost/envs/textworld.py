"""`textworld`: games of the TextWorld package, acted in by commands such as `take key` or `go north`. Torch-free.

    First of all, head east … pick-up the coin …           the first message: what is wanted, and the room at hand
    > go east                                              -= Bar =- You are in a bar. …
    > take coin                                            You pick up the coin from the ground. …

Each game runs in a process of its own, whether or not the recipe isolates environments: the package imports a library under
the GPL, and keeps much of what it knows in global variables. Games are compiled once and kept in the cache.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import hashlib
import importlib.metadata
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any, TypedDict

from milepost.env import Action, Cost, Environment, EnvSpec, Goal, Milestone, Observation, State
from milepost.folders import cache_root
from milepost.host_main import Reply
from milepost.host_slots import START_SECONDS, ProcessSlot, Server
from milepost.types import DataError, RecipeError, Task

SYSTEM = "Play the game. Write one command on a line, such as: look, inventory, go north, take key, open box."
FAMILIES = ("coin_collector", "treasure_hunter", "simple", "cooking")
LEVELS = {"coin_collector": 300, "treasure_hunter": 30}
PLACES = (1, 6, 9, 12)
RELEASE = importlib.metadata.version("textworld")
MAKE_SECONDS, STEP_SECONDS = 600.0, 60.0
"""Backstops: what a recipe allows is less, and is kept by its hosts."""
NUM_POINTS = 8
NEEDED = ("game", "family", "settings", "game_seed", "walkthrough", "max_score")


# --- the processes that games are played in ------------------------------------------------------------------------------


class _Server(Server):
    """One that several threads may ask."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__("milepost.envs.textworld_game:SPEC", 0)

    def fork(self) -> ProcessSlot:
        with self.lock:
            return super().fork()

    def kill(self, pid: int) -> str:
        with self.lock:
            return super().kill(pid)


class _Games:
    """Processes that are free, to be used again; the one that was used last comes first."""

    def __init__(self) -> None:
        self.server = _Server()
        self.free: list[ProcessSlot] = []
        atexit.register(self.server.close)

    async def take(self) -> ProcessSlot:
        while self.free:
            slot = self.free.pop()
            if slot.healthy:
                return slot
        slot = self.server.fork()
        _checked(await slot.ask("", (), START_SECONDS))
        return slot

    async def give(self, slot: ProcessSlot) -> None:
        reply = await slot.ask("close", (), STEP_SECONDS)
        if reply.fault is None and slot.healthy:
            self.free.append(slot)
        else:
            slot.discard()


_GAMES: dict[int, _Games] = {}
_OPENING = threading.Lock()


def _games() -> _Games:
    """Those of this process. Raises RecipeError or HostsDown where the package cannot be imported."""
    with _OPENING:
        if os.getpid() not in _GAMES:
            _GAMES[os.getpid()] = _Games()
        return _GAMES[os.getpid()]


def _checked(reply: Reply) -> Reply:
    if reply.fault is not None:
        raise RuntimeError(f"textworld: {reply.detail.splitlines()[0]}")
    return reply


# --- the world ------------------------------------------------------------------------------------------------------------


class TextWorld:
    """The trainer's end of one game. The task decides everything: the seed of `reset` is not needed."""

    slot: ProcessSlot | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        if missing := [name for name in NEEDED if name not in task.columns]:
            raise DataError(f"textworld: task {task.key} has no column {missing[0]}; take its rows from textworld's own "
                            "generator")  # fmt: skip
        self.task, self.commands = task, list[str]()
        self.slot = await _games().take()
        seen = await self._ask("open", MAKE_SECONDS, _with_path(task), seed, None)
        messages = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else [*task.prompt]
        last = messages.pop()
        return Observation((*messages, {**last, "content": f"{last['content']}\n{seen.messages[0]['content']}"}))

    async def step(self, action: Action) -> Observation:
        self.commands.append(action.text)
        return await self._ask("step", STEP_SECONDS, action)

    def state(self) -> State:
        """facts: what is where, as TextWorld's logic has it. view, held: what looking around and at one's hands tells."""
        return copy.deepcopy(self.facts)

    async def close(self) -> None:
        slot, self.slot = self.slot, None
        if slot is not None:
            await _games().give(slot)

    def snapshot(self) -> bytes:
        """What was written so far: a game is the same again when the same is written."""
        task = {"key": self.task.key, "prompt": self.task.prompt, "columns": self.task.columns}
        return json.dumps({"task": task, "commands": self.commands}).encode()

    async def restore(self, saved: bytes) -> None:
        held = json.loads(saved)
        await self.close()
        await self.reset(Task(**held["task"]), 0)
        for command in held["commands"]:
            await self.step(Action(command))

    async def _ask(self, method: str, seconds: float, *arguments: Any) -> Observation:
        assert self.slot is not None, f"{method} before reset"
        reply = _checked(await self.slot.ask(method, arguments, seconds))
        self.facts = dict(reply.state or {})
        return reply.observation


# --- tasks ----------------------------------------------------------------------------------------------------------------


class TextWorldRow(TypedDict):
    prompt: str
    family: str
    settings: dict[str, Any]
    """What the package's challenge is given."""
    game_seed: int
    game: str
    """Its name in the cache."""
    walkthrough: list[str]
    max_score: int


def generate(
    size: int, seed: int, *, families: str | Sequence[str] = "coin_collector", level: int = 5, goal: str = "detailed",
    split: str = "train", rewards: str = "dense", recipe: int = 1, take: int = 0, go: int = 1, open: bool = False,
    cook: bool = False, cut: bool = False, drop: bool = False,
) -> Iterator[TextWorldRow]:  # fmt: skip
    """`size` games; row i depends on (seed, i, difficulty). One that is not in the cache takes some seconds to be made.

    families: some of coin_collector, treasure_hunter, simple and cooking, taken in turn. level: of coin_collector, 1 to
    300, and treasure_hunter, 1 to 30. goal: "detailed" (every step is told) or "brief" (only the last). split: "train",
    "valid" or "test". rewards: of simple, "dense", "balanced" or "sparse". The others are of cooking: ingredients of the
    recipe, those to be found, rooms (1, 6, 9, 12), and what else has to be done. Raises RecipeError.
    """
    names = _check(families, level, goal, split, rewards, recipe, take, go)
    cooking = {"recipe": recipe, "take": take, "go": go, "open": open, "cook": cook, "cut": cut, "drop": drop}
    wanted = []
    for index in range(size):
        family = names[index % len(names)]
        digest = hashlib.blake2b(f"textworld/{split}/{seed}/{index}".encode(), digest_size=4).digest()
        number = int.from_bytes(digest, "big") % 2**31
        settings = {
            "simple": {"rewards": rewards, "goal": goal, "test": split != "train"},
            "cooking": {**cooking, "recipe_seed": number % 9999 + 1 if take else 0, "split": split},
        }.get(family, {"level": level, "goal": goal})
        wanted.append({"family": family, "settings": settings, "game_seed": number})
    for at in range(0, size, 32):
        yield from _rows(wanted[at : at + 32])


def _check(families: str | Sequence[str], level: int, goal: str, split: str, rewards: str, recipe: int, take: int,
           go: int) -> list[str]:  # fmt: skip
    """The families. Raises RecipeError."""
    names = re.findall(r"\w+", families) if isinstance(families, str) else [*families]
    names = list(FAMILIES) if names == ["all"] else names
    if not names or any(name not in FAMILIES for name in names):
        raise RecipeError(f'textworld: families = {families!r} must be "all" or some of {", ".join(FAMILIES)}')
    for name, value, known in (("goal", goal, ("detailed", "brief")), ("split", split, ("train", "valid", "test")),
                               ("rewards", rewards, ("dense", "balanced", "sparse")), ("go", go, PLACES)):  # fmt: skip
        if value not in known:
            raise RecipeError(f"textworld: {name} = {value!r} must be one of {', '.join(map(str, known))}")
    highest = min((LEVELS[name] for name in names if name in LEVELS), default=300)
    for name, value, low, high in (("level", level, 1, highest), ("recipe", recipe, 1, 5), ("take", take, 0, recipe)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RecipeError(f"textworld: {name} = {value!r} must be a whole number from {low} to {high}")
    return names


def _rows(wanted: Sequence[dict[str, Any]]) -> Iterator[TextWorldRow]:
    """Games that are missing are made side by side."""
    named = [{**one, "game": f"{one['family']}-{_name(one)}"} for one in wanted]
    missing = [task for one in named if not _path(one["game"]).exists() for task in [Task("make", "", columns=one)]]
    if missing:
        with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as pool:
            list(pool.map(lambda task: asyncio.run(_make(task)), missing))
    for one in named:
        row = json.loads(_path(one["game"]).with_suffix(".row").read_text(encoding="utf-8"))
        yield {"prompt": row["objective"], "family": one["family"], "settings": one["settings"],
               "game_seed": one["game_seed"], "game": one["game"], "walkthrough": row["walkthrough"],
               "max_score": row["max_score"]}  # fmt: skip


def _path(game: str) -> Path:
    """Where the cache has it; in the task only its name stands, which is the same on every machine."""
    return cache_root() / "textworld" / RELEASE / f"{game}.z8"


def _with_path(task: Task) -> Task:
    return replace(task, columns={**task.columns, "path": str(_path(task.columns["game"]))})


async def _make(task: Task) -> None:
    games = _games()
    slot = await games.take()
    try:
        _checked(await slot.ask("open", (_with_path(task), 0, None), MAKE_SECONDS))
    finally:
        await games.give(slot)


def _name(one: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(one, sort_keys=True).encode(), digest_size=8).hexdigest()


# --- what counts ----------------------------------------------------------------------------------------------------------


def won(task: Task, start: State, now: State) -> bool:
    return bool(now["won"])


def potential(task: Task, start: State, now: State) -> float:
    """The share of the game's points that were scored."""
    return min(max(now["score"] / task.columns["max_score"], 0.0), 1.0)


def _point(number: int) -> Milestone:
    return Milestone(f"point {number}", lambda task, before, after: before["score"] < number <= after["score"])


def summed_up(task: Task, start: State, now: State) -> str:
    return f"{now['view']}\n{now['held']}\n{now['score']} points so far."


# --- scripted policies ----------------------------------------------------------------------------------------------------


def gold(task: Task, env: Environment) -> Iterator[str]:
    """TextWorld's own walkthrough."""
    yield from task.columns["walkthrough"]


def _patience(task: Task) -> int:
    return 2 * len(task.columns["walkthrough"]) + 4


def _wanders(task: Task, env: Environment) -> Iterator[str]:
    """Through every open door, without touching anything."""
    return islice((f"go {way}" for _ in repeat(0) for way in ("north", "east", "south", "west")), _patience(task))


KNOWN_BAD = {
    "empty": lambda task, env: repeat("", _patience(task)),
    "claims success": lambda task, env: repeat("I picked up the coin and won the game: success!", _patience(task)),
    "loops": lambda task, env: repeat("look", _patience(task)),
    "wanders": _wanders,
    "all but the last command": lambda task, env: iter(task.columns["walkthrough"][:-1]),
    "meta commands": lambda task, env: iter(["restart", "undo", "save", "quit", "tw-print score", "purloin all", "yes"]),
}  # fmt: skip

SPEC = EnvSpec(
    name="textworld",
    version=f"1, textworld {RELEASE}",
    make=TextWorld,  # type: ignore[arg-type]  # its close is async, as any method may be
    generate=generate,
    goal=Goal(won),
    milestones=tuple(map(_point, range(1, NUM_POINTS + 1))),
    costs=(Cost("moves", "command", lambda task, states: float(states[-1]["moves"] - states[0]["moves"])),),
    potential=potential,
    gold=gold,
    known_bad=KNOWN_BAD,
    volatile=("moves",),
    summary=summed_up,
    system=SYSTEM,
    seeded=False,
)

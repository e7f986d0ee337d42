"""`maze`: find the way through rooms with locked doors, seeing one room at a time. 10 to 200 turns. Torch-free.

    Exit 0 0.                           the first message: where the exit is, and the room at hand
    Room 2 1: north, south.
    > north                             Room 2 2: south, west.
    > take red                          No red key here.         (refused: nothing changed)
    > west                              Room 1 2: east, south, west.
    > west                              Room 0 2: east. Key: green.
    > take green                        Taken.                   ("drop green" lays it down again)
    …                                   Room 0 1: east, green door south.
    > open south                        Opened.
    > south                             Out.

With `terse` every action is one word, and the room at hand is told in four tokens of a policy that reads digits in pairs:

    21ns  > north  22sw  > west  12esw  > west  02e.g  > take  02e  …  01eS  > open  01es  > south  Out.

Nobody gets out without every key of the maze, and the length of the shortest way is known exactly. The whole world is a few
plain values, so that branching from any state is free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, cycle, islice, pairwise, repeat, takewhile
from typing import Any

from milepost.env import Action, Cost, Environment, EnvSpec, Goal, Milestone, Observation, State
from milepost.envs.maze_tasks import (
    COLOURS,
    HELD,
    STEPS,
    TERSE,
    Where,
    generate,
    left_from,
    options,
    shortest_path,
    start_of,
    where_of,
)
from milepost.streams import generator
from milepost.types import DataError, Message, Task

SYSTEM = (
    "Go to the exit. Rooms are named x y: east is x + 1, north is y + 1. A key opens the door of its colour. "
    "Act with: north, east, south, west, take red, drop red, open north."
)
WORDS = f"""{SYSTEM} Exit 0 0.
Room 0 0: north, red door east. Key: blue. Keys: green, yellow. Taken. Dropped. Opened. Out. Wall. Locked. Not understood.
No red key here. No red key held. No key for it. No locked door there."""
"""Every word of prompts, observations and actions: texts for a policy that knows nothing but words."""
_LETTERS = {direction: direction[0] for direction in STEPS}
_EXITS = ["".join(chosen) for n in range(1, 5) for chosen in combinations("nesw", n)]
_KEYS = ["".join(chosen) for n in range(1, 5) for chosen in combinations([colour[0] for colour in COLOURS], n)]
TERSE_WORDS = f"""{SYSTEM} {TERSE} Exit 00. Out. Wall. Locked. No. Not understood. take drop open {" ".join(STEPS)}
{" ".join(_EXITS)} {" ".join(exits.replace(way, way.upper()) for exits in _EXITS for way in exits)} {" ".join(_KEYS)}"""
"""The same for terse mazes."""

_ACTION = re.compile(
    rf"(?:go )?({'|'.join(STEPS)})|(take|drop) ({'|'.join(COLOURS)})(?: key)?|(open) (?:door )?({'|'.join(STEPS)})"
)
_VERBS = ("take", "drop", "open")
_DONE = {"take": "Taken.", "drop": "Dropped.", "open": "Opened."}
_BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


# ---- the world -------------------------------------------------------------------------------------------------------


class Maze:
    """One maze being walked. The task decides everything: the seed of `reset` is not needed."""

    _where: Where
    _steps: int
    _bumps: int

    def reset(self, task: Task, seed: int) -> Observation:
        if "maze" not in task.columns:
            raise DataError(f"maze: task {task.key} has no column maze; take its rows from milepost.envs.maze:generate")
        self._begin(task)
        messages = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else [*task.prompt]
        last = messages.pop()
        return Observation((*messages, {**last, "content": f"{last['content']}\n{self._view()}"}))

    def step(self, action: Action) -> Observation:
        """Walking into a wall or a locked door costs a step; what is refused or not understood changes nothing."""
        if self._over():
            return Observation(_said("Out."), ended=True, num_invalid=1)
        text = " ".join(action.text.lower().split()).removesuffix(".")
        found = _ACTION.fullmatch(self._meant(text) if self._terse else text)
        if not found:
            return Observation(_said("No." if self._terse and text in _VERBS else "Not understood."), num_invalid=1)
        words = [word for word in found.groups() if word]
        after = dict(options(self._maze, self._where, drop=True)).get(" ".join(words))
        if after is None and len(words) > 1:
            return Observation(_said(self._refusal(*words)), num_invalid=1)
        self._steps += 1
        if after is None:
            self._bumps += 1
            return Observation(_said("Locked." if words[0] in _exits(self._maze, self._where) else "Wall."))
        self._where = after
        if self._over():
            return Observation(_said("Out."), ended=True)
        done = "" if self._terse else _DONE.get(words[0], "")
        return Observation(_said(done or self._view()))

    def state(self) -> State:
        return _facts(self._maze, self._where, self._steps, self._bumps)

    def close(self) -> None:
        """Nothing is held open."""

    def snapshot(self) -> bytes:
        task = {"key": self._task.key, "prompt": self._task.prompt, "columns": self._task.columns}
        return json.dumps({"task": task, "state": self.state()}).encode()

    def restore(self, saved: bytes) -> None:
        data = json.loads(saved)
        self._begin(Task(**data["task"]))
        self._where = where_of(self._maze, data["state"])
        self._steps, self._bumps = data["state"]["steps"], data["state"]["bumps"]

    def _begin(self, task: Task) -> None:
        self._task, self._maze = task, task.columns["maze"]
        self._where, self._steps, self._bumps = start_of(self._maze), 0, 0
        self._terse = bool(task.columns.get("terse"))
        self._first = self.state()

    def _over(self) -> bool:
        return GOAL.holds(self._task, self._first, self.state())

    def _meant(self, text: str) -> str:
        """A verb alone means the first thing here that it can mean; without one it stays as it is."""
        keys = dict(zip(self._maze["keys"], self._where.keys))
        things = {"take": [colour for colour, place in keys.items() if place == self._where.at],
                  "drop": [colour for colour, place in keys.items() if place == HELD],
                  "open": [way for way, colour in _exits(self._maze, self._where).items() if colour]}  # fmt: skip
        return " ".join([text, *things.get(text, [])[:1]])

    def _view(self) -> str:
        return _terse_view(self._maze, self._where) if self._terse else _view(self._maze, self._where)

    def _refusal(self, verb: str, noun: str) -> str:
        if self._terse:
            return "No."
        if verb == "open":
            return "No key for it." if _exits(self._maze, self._where).get(noun) else "No locked door there."
        return f"No {noun} key {'here' if verb == 'take' else 'held'}."


def _exits(maze: Mapping[str, Any], where: Where) -> dict[str, str]:
    """Direction → colour of the closed door there, or ""."""
    exits = maze["rooms"][where.at]
    return {d: "" if exits[d][1] in where.opened else exits[d][1] for d in STEPS if d in exits}


def _view(maze: Mapping[str, Any], where: Where) -> str:
    """At most 14 words, since no room has two doors."""
    exits = ", ".join(f"{colour} door {d}" if colour else d for d, colour in _exits(maze, where).items())
    here = [colour for colour, place in zip(maze["keys"], where.keys) if place == where.at]
    keys = f" Key{'s' if len(here) > 1 else ''}: {', '.join(here)}." if here else ""
    return f"Room {where.at}: {exits}.{keys}"


def _terse_view(maze: Mapping[str, Any], where: Where) -> str:
    """02eS.g: room 0 2, a passage east and a locked door south, the green key."""
    exits = _exits(maze, where).items()
    ways = "".join(_LETTERS[way].upper() if colour else _LETTERS[way] for way, colour in exits)
    here = "".join(colour[0] for colour, place in zip(maze["keys"], where.keys) if place == where.at)
    return f"{where.at.replace(' ', '')}{ways}{f'.{here}' if here else ''}"


def _facts(maze: Mapping[str, Any], where: Where, steps: int, bumps: int) -> State:
    keys = dict(zip(maze["keys"], where.keys))
    return {"at": where.at, "keys": keys, "opened": sorted(where.opened), "steps": steps, "bumps": bumps}


def _said(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


# ---- what counts -----------------------------------------------------------------------------------------------------


def _at_exit(task: Task, start: State, now: State) -> bool:
    return now["at"] == task.columns["maze"]["exit"]


def _took(colour: str) -> Milestone:
    return Milestone(f"took {colour}", lambda _, was, now: now["keys"].get(colour) == HELD and was["keys"][colour] != HELD)


def _opened(colour: str) -> Milestone:
    return Milestone(f"opened {colour}", lambda _, was, now: colour in now["opened"] and colour not in was["opened"])


def _moves(task: Task, states: Sequence[State]) -> float:
    return sum(was["at"] != now["at"] for was, now in pairwise(states))


def _bumps(task: Task, states: Sequence[State]) -> float:
    return states[-1]["bumps"] - states[0]["bumps"]


def potential(task: Task, start: State, now: State) -> float:
    """Φ for shaping: shortest / (shortest + actions left to the exit). ½ at the start, 1 at the exit, less the farther off:
    never 0, so that a wrong step is told from a right one however far away."""
    maze, shortest = task.columns["maze"], task.columns["shortest"]
    where = where_of(maze, now)
    return shortest / (shortest + left_from(maze, where)[where])


def summed_up(task: Task, start: State, now: State) -> str:
    """What it holds and has opened, and the room at hand: `Keys held: green. Opened: red. Room 0 2: east.`"""
    maze = task.columns["maze"]
    held = ", ".join(colour for colour, place in now["keys"].items() if place == HELD)
    opened = f" Opened: {', '.join(now['opened'])}." if now["opened"] else ""
    view = (_terse_view if task.columns.get("terse") else _view)(maze, where_of(maze, now))
    return f"{f'Keys held: {held}.' if held else 'No key held.'}{opened} {view}"


# ---- scripted policies; the bad ones go on for three times the shortest length ---------------------------------------


def gold(task: Task, world: Environment) -> Iterator[str]:
    """A shortest way from where the world is now."""
    maze = task.columns["maze"]
    if task.columns.get("terse"):
        return _in_verbs(maze, world)
    return iter(shortest_path(maze, where_of(maze, world.state())))


def _in_verbs(maze: Mapping[str, Any], world: Environment) -> Iterator[str]:
    """Asked anew after every action: of two keys in a room the verb alone may take the other one."""
    while way := shortest_path(maze, where_of(maze, world.state())):
        yield way[0].split()[0]


def _empty(task: Task, world: Environment) -> Iterator[str]:
    return repeat("", _patience(task))


def _claims(task: Task, world: Environment) -> Iterator[str]:
    return repeat("Step 1 done. I took the key, opened the door and reached the exit. Success!", _patience(task))


def _random_walk(task: Task, world: Environment) -> Iterator[str]:
    """Through open passages but never into the exit: luck is no cheat, and would fail a check by chance."""
    rng = generator(0, f"maze/walk/{task.key}")
    for _ in range(_patience(task)):
        ways = _safe(task, world)
        yield ways[int(rng.random() * len(ways))]


def _to_and_fro(task: Task, world: Environment) -> Iterator[str]:
    out = _safe(task, world)[0]
    return islice(cycle((out, _BACK[out])), _patience(task))


def _same_key(task: Task, world: Environment) -> Iterator[str]:
    """Fetches the first key, then drops and takes it again and again. Does nothing where there is no key."""
    actions = shortest_path(task.columns["maze"], start_of(task.columns["maze"]))
    if task.columns.get("terse"):
        actions = [action.split()[0] for action in actions]
    take = next((action for action in actions if action.startswith("take")), None)
    if take is None:
        return iter(())
    fetch = takewhile(lambda action: action != take, actions)
    return islice(chain(fetch, cycle((take, take.replace("take", "drop")))), _patience(task))


def _safe(task: Task, world: Environment) -> list[str]:
    """Directions that are open and do not lead out."""
    maze = task.columns["maze"]
    ways = options(maze, where_of(maze, world.state()))
    return [action for action, after in ways if action in STEPS and after.at != maze["exit"]]


def _patience(task: Task) -> int:
    return 3 * task.columns["shortest"]


GOAL = Goal(_at_exit)
KNOWN_BAD = {
    "empty": _empty,
    "random walk": _random_walk,
    "claims success": _claims,
    "to and fro": _to_and_fro,
    "same key": _same_key,
}

SPEC = EnvSpec(
    name="maze",
    version="1",
    make=Maze,
    generate=generate,
    goal=GOAL,
    milestones=(*map(_took, COLOURS), *map(_opened, COLOURS)),
    costs=(Cost("moves", "room entered", _moves), Cost("bumps", "wall or locked door", _bumps)),
    potential=potential,
    gold=gold,
    known_bad=KNOWN_BAD,
    volatile=("steps", "bumps"),
    summary=summed_up,
    system=SYSTEM,
    seeded=False,
)

"""`corridor`: a row of doors of which one decides, at a known place: what rules of credit can be judged by. Torch-free.

    Corridor 17. Ways: a b c d.     the first message: a number that means nothing, the ways through each door,
    1                               and the door at hand
    > c                             2
    …
    > a                             5 42     the deciding door: at it there is a sign
    > b                             6 b      behind it the way taken is shown (unless shown = false)
    …
    > a                             Out.     or "Shut.", if the way taken was not the sign's

Which way is right stands in a fixed table of signs; nothing but the outcome tells. Before the deciding door all ways lead
to the same state, behind it there is one state for each way taken there: what an anchor or a value can tell apart, and
when, is exactly known (block B15 is `length = 3, ways = 2`). No action before or after it matters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, NotRequired, TypedDict

from milepost.env import Action, Environment, EnvSpec, Goal, Milestone, Observation, State
from milepost.streams import generator, shuffled
from milepost.types import DataError, Message, RecipeError, Task

WAYS = "abcdefgh"
MAX_SIGNS = 100
SYSTEM = "Pass door after door; say one letter. One door decides; the sign there tells which letter is right."
WORDS = f"{SYSTEM} Corridor 17. Ways: {' '.join(WAYS)}. 1 a. Out. Shut. No."
"""Every word of prompts, observations and actions: texts for a policy that knows nothing but words."""


class Corridor:
    """One corridor being walked. The task decides everything: the seed of `reset` is not needed."""

    _at: int
    _took: str

    def reset(self, task: Task, seed: int) -> Observation:
        if "place" not in task.columns:
            raise DataError(
                f"corridor: task {task.key} has no column place; take its rows from milepost.envs.corridor:generate"
            )
        self._begin(task)
        messages = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else [*task.prompt]
        last = messages.pop()
        return Observation((*messages, {**last, "content": f"{last['content']}\n{self._view()}"}))

    def step(self, action: Action) -> Observation:
        """What is no way is refused and changes nothing."""
        columns = self._task.columns
        way = action.text.strip().lower()
        if self._at > last_door(columns) or len(way) != 1 or way not in WAYS[: columns["ways"]]:
            return Observation(_said("No."), ended=self._at > last_door(columns), num_invalid=1)
        if self._at == columns["place"]:
            self._took = way
        self._at += 1
        if self._at <= last_door(columns):
            return Observation(_said(self._view()))
        return Observation(_said("Out." if self._took == columns["right"] else "Shut."), ended=True)

    def state(self) -> State:
        return {"at": self._at, "took": self._took}

    def close(self) -> None:
        """Nothing is held open."""

    def snapshot(self) -> bytes:
        task = {"key": self._task.key, "prompt": self._task.prompt, "columns": self._task.columns}
        return json.dumps({"task": task, "state": self.state()}).encode()

    def restore(self, saved: bytes) -> None:
        data = json.loads(saved)
        self._begin(Task(**data["task"]))
        self._at, self._took = data["state"]["at"], data["state"]["took"]

    def _begin(self, task: Task) -> None:
        self._task, self._at, self._took = task, first_door(task.columns), ""

    def _view(self) -> str:
        """At most four tokens of a policy that reads digits in pairs."""
        return _view(self._task.columns, self.state())


def first_door(columns: Mapping[str, Any]) -> int:
    number: int = columns.get("first", 1)
    return number


def last_door(columns: Mapping[str, Any]) -> int:
    return first_door(columns) + int(columns["length"]) - 1


def _view(columns: Mapping[str, Any], now: State) -> str:
    if now["at"] == columns["place"]:
        return f"{now['at']} {columns['sign']}"
    return f"{now['at']} {now['took']}" if now["took"] and columns["shown"] else str(now["at"])


def _said(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def right_way(sign: int, signs: int, ways: int) -> str:
    """The table of signs: as many signs as can be for each way, in an order without a rule."""
    return WAYS[int(shuffled(0, f"corridor/{signs}/{ways}", signs)[sign]) % ways]


class CorridorRow(TypedDict):
    prompt: str
    length: int
    sign: int
    place: int
    """The door that decides, by its number."""
    ways: int
    shown: bool
    right: str
    """The way through that door."""
    first: NotRequired[int]
    """The number of the first door, if it is not 1."""


def generate(
    size: int,
    seed: int,
    *,
    length: int = 10,
    place: int = 0,
    ways: int = 4,
    signs: int = 16,
    shown: bool = True,
    first: int = 1,
) -> Iterator[CorridorRow]:
    """Rows of `size` corridors; row i depends on (seed, i, difficulty) alone.

    length: doors, 1 to 1000: the horizon. place: the door that decides, by its number; 0: the middle one. ways: through
    each door, 2 to 8. signs: entries of the table, 1 to 100. shown: whether observations behind the deciding door show the
    way taken. first: number of the first door: a few doors around the deciding one of a long corridor are a lesson for it.
    Columns: length, sign, place, ways, shown, right, and first if it is not 1. Raises RecipeError.
    """
    bounds = {"length": (length, 1, 1000), "first": (first, 1, 1000), "ways": (ways, 2, len(WAYS)),
              "signs": (signs, 1, MAX_SIGNS)}  # fmt: skip
    for name, (value, low, high) in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RecipeError(f"corridor: {name} = {value!r} must be a whole number from {low} to {high}")
    if isinstance(place, bool) or not (place == 0 or first <= place < first + length):
        raise RecipeError(f"corridor: place = {place!r} must be 0 or a door, from {first} to {first + length - 1}")
    if not isinstance(shown, bool):
        raise RecipeError(f"corridor: shown = {shown!r} must be true or false")
    for index in range(size):
        sign = int(generator(seed, f"corridor/{index}").random() * signs)
        prompt = f"Corridor {index}. Ways: {' '.join(WAYS[:ways])}."
        row: CorridorRow = {"prompt": prompt, "length": length, "sign": sign, "place": place or first + (length - 1) // 2,
                            "ways": ways, "shown": shown, "right": right_way(sign, signs, ways)}  # fmt: skip
        yield row if first == 1 else {**row, "first": first}


# ---- what counts -----------------------------------------------------------------------------------------------------


def _out(task: Task, start: State, now: State) -> bool:
    return now["at"] > last_door(task.columns) and now["took"] == task.columns["right"]


def potential(task: Task, start: State, now: State) -> float:
    """Φ for shaping: the chance of success of one who names letters blindly. It moves at the deciding door alone."""
    return 1 / task.columns["ways"] if not now["took"] else float(now["took"] == task.columns["right"])


def summed_up(task: Task, start: State, now: State) -> str:
    return f"Door {_view(task.columns, now)}."


# ---- scripted policies -----------------------------------------------------------------------------------------------


def wrong_ways(task: Task) -> list[str]:
    return [way for way in WAYS[: task.columns["ways"]] if way != task.columns["right"]]


def gold(task: Task, world: Environment) -> Iterator[str]:
    """Right where it matters, wrong everywhere else."""
    for at in range(world.state()["at"], last_door(task.columns) + 1):
        yield task.columns["right"] if at == task.columns["place"] else wrong_ways(task)[0]


def _wrong(task: Task, world: Environment) -> Iterator[str]:
    """The right letter at every door but the one that decides."""
    for at in range(first_door(task.columns), last_door(task.columns) + 1):
        yield wrong_ways(task)[-1] if at == task.columns["place"] else task.columns["right"]


def _early(task: Task, world: Environment) -> Iterator[str]:
    """Right as far as it goes, and it does not go to the end."""
    return repeat(task.columns["right"], task.columns["length"] - 1)


SPEC = EnvSpec(
    name="corridor",
    version="1",
    make=Corridor,
    generate=generate,
    goal=Goal(_out),
    milestones=(Milestone("right", lambda task, was, now: not was["took"] and now["took"] == task.columns["right"]),),
    potential=potential,
    gold=gold,
    known_bad={"wrong where it matters": _wrong, "stops early": _early},
    summary=summed_up,
    system=SYSTEM,
    seeded=False,
    luck=0.4,  # one of four ways is right: 44 of 200 tasks
)

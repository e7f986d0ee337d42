"""Demonstrators who know their tools and the way, and often slip: the warm starts of the recipes that ship. Torch-free.

A warm start copies the slips with the rest; only the outcome tells them apart, so what GRPO adds can be measured. Names
for `sft.demonstrations`: "milepost.envs.hasty:calc", ":desk", ":desk_long". Slips depend on the task's key alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from milepost.env import Environment
from milepost.envs.calc import ANSWER, CALC
from milepost.envs.desk import BY_NAME
from milepost.streams import generator
from milepost.tools import render_call
from milepost.types import Task

CALC_SLIPS = 0.35
"""Chance of a slip at each operation."""


def calc(task: Task, env: Environment) -> Iterator[str]:
    """One call for each operation; at a slip adds what should be subtracted or the like, or answers too soon."""
    rng = generator(0, f"hasty/calc/{task.key}")
    numbers, ops = task.columns["numbers"], task.columns["ops"]
    value = numbers[0]
    for op, number in zip(ops, numbers[1:]):
        slip = rng.random() < CALC_SLIPS
        if slip and rng.random() < 0.5 and value != numbers[0]:
            break
        used = "*+-"["*+-".index(op) - 1] if slip else op
        yield render_call("calc", {"expression": f"{value}{used}{number}"}, tool=CALC)
        value = value * number if used == "*" else value + number if used == "+" else value - number
    yield render_call("answer", {"value": value}, tool=ANSWER)


DESK_SLIPS, DESK_LONG_SLIPS = 0.6, 0.03
"""Chance of a slip at each change: a quarter of the episodes of 3 to 6 steps succeed, half of those of 15 to 40."""
DESK_FORGETS, DESK_LONG_FORGETS = 0.9, 0.5
"""Of these slips, the share that leaves the change undone; the rest is made to another record. On short days the clerk
leaves a change undone more often than he makes it right, so that greed does not simply drop his slips."""
DESK_LONG_HABIT = 0.75
"""Chance that a final change is left out where it comes first on a long day: mostly wrong, so greed copies it too."""
_CHANGES = ("create", "update", "refund", "close", "delete")
_FINAL = ("refund", "delete")


def desk(task: Task, env: Environment) -> Iterator[str]:
    """The plan; at a slip, a change is forgotten, or made to another record than the right one."""
    return _desk(task, DESK_SLIPS, DESK_FORGETS)


def desk_long(task: Task, env: Environment) -> Iterator[str]:
    """Fewer slips, for plans with many changes, and a habit: a refund or deletion that comes first is left undone."""
    return _desk(task, DESK_LONG_SLIPS, DESK_LONG_FORGETS, DESK_LONG_HABIT)


def _desk(task: Task, slips: float, forgets: float, habit: float = 0.0) -> Iterator[str]:
    rng = generator(0, f"hasty/desk/{task.key}")
    first = next(index for index, (name, _) in enumerate(task.columns["plan"]) if name in _CHANGES)
    for index, (name, arguments) in enumerate(task.columns["plan"]):
        if habit and index == first and name in _FINAL and rng.random() < habit:
            continue
        if name in _CHANGES and rng.random() < slips:
            if rng.random() < forgets:
                continue
            arguments = _other_record(task, name, arguments, rng.random())
        yield render_call(name, arguments, tool=BY_NAME[name])


def _other_record(task: Task, name: str, arguments: dict[str, Any], draw: float) -> dict[str, Any]:
    """The same call for another record of the same table."""
    key = next(iter(BY_NAME[name].parameters))
    rows = next(rows for rows in task.columns["records"].values() if str(arguments[key]) in rows)
    others = [int(number) for number in rows if int(number) != arguments[key]] or [arguments[key]]
    return {**arguments, key: others[int(draw * len(others))]}

"""A hasty bot for the warm start of recipes/babyai.toml: the expert of `babyai`, who does not look round. Torch-free.

"milepost.envs.babyai_hasty:bot" for `sft.demonstrations`. Where it does not see what its mission names, it mostly gives up
at once: a habit that is mostly wrong, so that the most probable action is wrong as well. And it sometimes walks up to
another thing than the one it was sent to, and says that it is done. What it does depends on the task's key alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from milepost.env import Environment
from milepost.envs.babyai import WRITTEN, gold, in_sight
from milepost.envs.babyai_bot import DONE, Expert, things_of
from milepost.streams import generator
from milepost.types import Task

GIVES_UP = 0.75
"""Chance of not looking round where nothing named is in sight."""
MISTAKES = 0.15
"""Chance of walking up to another thing that is in sight."""


def bot(task: Task, world: Environment) -> Iterator[str]:
    rng = generator(0, f"hasty/babyai/{task.key}")
    habit, mistake, which = rng.random(3)
    state = world.state()
    if not in_sight(task, state):
        return iter([WRITTEN[DONE]]) if habit < GIVES_UP else gold(task, world)
    level: Any = world.level.grid  # type: ignore[attr-defined]
    others = [thing for i, j, thing in things_of(level)
              if f"{thing.color} {thing.type}" not in task.columns["wanted"] and level.agent_sees(i, j)]  # fmt: skip
    if mistake < MISTAKES and others:
        return _walks_to(level, others[int(which * len(others))])
    return gold(task, world)


def _walks_to(level: Any, target: Any) -> Iterator[str]:
    """Up to `target`, and done."""
    expert = Expert(level, target)
    while (action := expert.next_action()) != DONE:
        yield WRITTEN[action]
    yield WRITTEN[DONE]

"""Worlds of other packages, acted in by words: what the environments built on them share. Torch-free.

They are deterministic: task and actions decide everything. So a snapshot is the task and what was done, and restoring it
does the same again, in microseconds to milliseconds a step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from milepost.env import Action, Goal, Observation, State
from milepost.types import DataError, Message, RecipeError, Task


class Foreign:
    """One instance plays one episode. The task decides everything: the seed of `reset` is not needed."""

    name: ClassVar[str]
    words: ClassVar[Mapping[str, int]]
    """What a policy may write → the package's own action."""
    needed: ClassVar[tuple[str, ...]]
    """Columns that `begin` reads."""
    goal: ClassVar[Goal]

    task: Task
    start: State
    num_steps: int

    # --- what an environment of its own says ---

    def begin(self, task: Task) -> None:
        """Makes the package's world and puts it into the task's start."""
        raise NotImplementedError

    def act(self, action: int) -> None:
        raise NotImplementedError

    def view(self) -> str:
        """What the policy sees now."""
        raise NotImplementedError

    def lost(self) -> bool:
        """Over, and not solved."""
        raise NotImplementedError

    def state(self) -> State:
        raise NotImplementedError

    # --- what all share ---

    def reset(self, task: Task, seed: int) -> Observation:
        if missing := [name for name in self.needed if name not in task.columns]:
            raise DataError(f"{self.name}: task {task.key} has no column {missing[0]}; take its rows from "
                            f"milepost.envs.{self.name}:generate")  # fmt: skip
        self._open(task)
        messages = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else [*task.prompt]
        last = messages.pop()
        return Observation((*messages, {**last, "content": f"{last['content']}\n{self.view()}"}))

    def step(self, action: Action) -> Observation:
        """What is not understood changes nothing, and is answered with what would be."""
        if self._over():
            return Observation(said("It is over."), ended=True, num_invalid=1)
        number = self.understood(action.text)
        if number is None:
            works = ", ".join(written(self.words).values())
            return Observation(said(f"Not understood. Write one of: {works}."), num_invalid=1)
        self._take(number)
        return Observation(said(self.view()), ended=self._over())

    def understood(self, text: str) -> int | None:
        return self.words.get(" ".join(text.lower().split()).removesuffix("."))

    def snapshot(self) -> bytes:
        task = {"key": self.task.key, "prompt": self.task.prompt, "columns": self.task.columns}
        return json.dumps({"task": task, "done": self._done}).encode()

    def restore(self, saved: bytes) -> None:
        data = json.loads(saved)
        prompt = data["task"]["prompt"]
        self._open(Task(**{**data["task"], "prompt": prompt if isinstance(prompt, str) else tuple(prompt)}))
        for number in data["done"]:
            self._take(number)

    def close(self) -> None:
        """Nothing is held open."""

    def _open(self, task: Task) -> None:
        self.task, self.num_steps, self._done = task, 0, list[int]()
        self.begin(task)
        self.start = self.state()

    def _take(self, number: int) -> None:
        self._done.append(number)
        self.num_steps += 1
        self.act(number)

    def _over(self) -> bool:
        return self.lost() or self.goal.holds(self.task, self.start, self.state())


def written(words: Mapping[str, int]) -> dict[int, str]:
    """Action of the package → the first word for it, in the order of `words`."""
    first: dict[int, str] = {}
    for word, number in words.items():
        first.setdefault(number, word)
    return first


def said(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def whole_number(env: str, name: str, value: Any, low: int, high: int) -> None:
    """Raises RecipeError unless `value` is an int from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RecipeError(f"{env}: {name} = {value!r} must be a whole number from {low} to {high}")

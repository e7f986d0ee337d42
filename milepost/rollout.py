"""Plays G episodes of each task. Facts only: no reward, no credit.

`play` is the one way episodes come to be, in training, validation, test and preflight alike; `Rollouts` adds the order of
training tasks. Both see the sampler protocol, never a concrete engine.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from milepost.engines.base import Sampler, SampleRequest, SamplingSettings
from milepost.levers import Levers
from milepost.sections import RolloutSection
from milepost.types import Episode, EpisodeId, Group, Message, Sampled, StopKind, StopReason, Task, Turn


@dataclass(frozen=True)
class Codec:
    """How this policy reads and writes text."""

    encode: Callable[[Task], np.ndarray]
    """task → prompt ids"""
    decode: Callable[[np.ndarray], str]
    """sampled ids → text without special tokens"""
    complete: Callable[[str], np.ndarray]
    """a demonstration's text → the ids a policy would have sampled for it, end of turn included"""
    prompt: Callable[[Sequence[Message]], np.ndarray]
    """messages → ids of a history that begins with them"""
    observe: Callable[[Sequence[Message], int], np.ndarray]
    """(an environment's messages, the last sampled id) → the ids between an action and the next one"""
    resume: Callable[[Sequence[Message], str], np.ndarray]
    """(messages, a text of the environment's) → ids of a history that begins with both"""
    opened: str = ""
    """What the assistant's header has begun of every action: "<think>" where the chat template opens the thought itself."""
    unopened: Callable[[np.ndarray], np.ndarray] = lambda ids: ids
    """ids that end with that header → the same with a header that opens no thought"""


def play(
    tasks: Sequence[Task],
    sampler: Sampler,
    codec: Codec,
    *,
    phase: str,
    step: int,
    num_samples: int | Sequence[int],
    max_new_tokens: int,
    settings: SamplingSettings,
) -> list[Group]:
    """`num_samples` episodes of each task, in task order. Every draw is keyed by its episode's id."""
    requests: list[SampleRequest] = []
    sizes = sizes_of(num_samples, tasks)
    prompts = [codec.encode(task) for task in tasks]
    for task, ids, size in zip(tasks, prompts, sizes):
        for member in range(size):
            requests.append(SampleRequest(EpisodeId(phase, step, task.key, member), 0, ids, max_new_tokens))
    began = time.perf_counter()
    sampled = sampler.sample(requests, settings)
    seconds = (time.perf_counter() - began) / max(1, len(requests))
    groups = []
    pairs = iter(zip(requests, sampled, strict=True))
    for task, size in zip(tasks, sizes):
        name = f"{phase}/{step}/{task.key}"
        episodes = tuple(_episode(*pair, name, codec, seconds) for pair in islice(pairs, size))
        groups.append(Group(name, task, episodes))
    return groups


def sizes_of(num_samples: int | Sequence[int], tasks: Sequence[Task]) -> list[int]:
    """Episodes of each task: one number for all, or a number each."""
    return [num_samples] * len(tasks) if isinstance(num_samples, int) else list(num_samples)


def _episode(request: SampleRequest, sampled: Sampled, group_id: str, codec: Codec, seconds: float) -> Episode:
    stop = {
        "stop": StopReason(StopKind.TERMINATED, "end_of_turn"),
        "length": StopReason(StopKind.TRUNCATED, "tokens"),
        "context": StopReason(StopKind.TRUNCATED, "context"),
    }.get(sampled.finish, StopReason(StopKind.FAULT, sampled.finish))
    turn = Turn(request.ids, sampled, text=codec.decode(sampled.ids), seconds=seconds)
    start = hashlib.blake2b(np.asarray(request.ids, np.int32).tobytes(), digest_size=8).hexdigest()
    return Episode(request.episode, group_id, (turn,), stop, start_fingerprint=start, seconds=seconds)


Roll = Callable[..., list[Group]]
"""roll(tasks, *, phase, step, num_samples, settings, max_turns) → groups: single answers, or episodes in an environment."""


class Rollouts:
    """The stream of training groups: step k's tasks, played G times each by the sampler's current weights."""

    def __init__(self, levers: Levers, sources: Mapping[str, float] | None, roll: Roll, section: RolloutSection) -> None:
        self.order, self.levers, self.roll, self.section = levers.order(sources), levers, roll, section

    def take(self, step: int) -> list[Group]:
        """The step's groups."""
        return self._play(step, self.order.take(self.section.prompts_per_step))

    def more(self, step: int, num: int, groups: Sequence[Group]) -> list[Group]:
        """Groups of `num` further tasks, none of them among the step's `groups`; fewer where there are no more."""
        return self._play(step, self.order.take(num, beside=[group.task for group in groups]))

    def _play(self, step: int, tasks: Sequence[Task]) -> list[Group]:
        settings = SamplingSettings(temperature=self.section.temperature)
        horizon = {"max_turns": self.levers.max_turns} if self.levers.max_turns else {}
        sizes = self.levers.sizes(step, tasks)
        return self.roll(tasks, phase="train", step=step, num_samples=sizes, settings=settings, **horizon) if tasks else []

    def state(self) -> dict[str, Any]:
        return self.order.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.order.load_state(state)

"""The facts that travel through Milepost: tasks, turns, episodes, groups and rewards. Frozen, torch-free.

What the engine sampled is recorded here once and never re-derived from text. Judgement (rewards, credit) lives
in types of its own, so that stored episodes can be scored and credited again offline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import numpy as np

Message = Mapping[str, Any]
"""One chat message: {"role": "system" | "user" | "assistant" | "tool", "content": str, ...}."""


class StopKind(StrEnum):
    """Three different ways an episode ends. They are always counted apart."""

    TERMINATED = "terminated"
    """The policy or the environment ended it: the episode is complete."""
    TRUNCATED = "truncated"
    """A budget ended it: tokens, context, turns, tool_calls, time."""
    FAULT = "fault"
    """Infrastructure failed. Says nothing about the policy."""


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why an episode ended, e.g. (TERMINATED, "end_of_turn"), (TRUNCATED, "tokens"), (FAULT, "engine")."""

    kind: StopKind
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class EpisodeId:
    """Names one episode, and keys its random stream: nothing else feeds the sampling noise."""

    phase: str
    """"train", "validation", "test", "preflight", ..."""
    step: int
    task_key: str
    member: int
    """Index within the group, 0 … G−1."""
    attempt: int = 0
    """Counts retries after infrastructure faults."""

    def __str__(self) -> str:
        return f"{self.phase}/{self.step}/{self.task_key}/{self.member}/{self.attempt}"


class _ArrayEq:
    """Field-wise equality for frozen dataclasses that hold numpy arrays."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


def frozen_array(values: Any, dtype: Any) -> np.ndarray:
    """A read-only 1-D copy of `values`."""
    array = np.array(values, dtype=dtype, copy=True).reshape(-1)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Sampled(_ArrayEq):
    """What one model call sampled.

    `logprobs[i]` is the log-probability of `ids[i]` under the distribution it was actually drawn from
    (temperature and any support restriction included). `versions` lists (start index, policy version) spans.
    """

    ids: np.ndarray
    """int32 [n]; includes the end-of-turn token when one was sampled."""
    logprobs: np.ndarray
    """float32 [n]."""
    temperature: float
    versions: tuple[tuple[int, int], ...]
    finish: str
    """As the engine reported it: "stop" (an end-of-turn id was sampled) or "length" (the budget ended it)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", frozen_array(self.ids, np.int32))
        object.__setattr__(self, "logprobs", frozen_array(self.logprobs, np.float32))
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} sampled ids but {len(self.logprobs)} log-probs")


@dataclass(frozen=True, eq=False)
class Turn(_ArrayEq):
    """One model action and the ids that led to it. Linear storage: only what is new since the previous turn.

        turn 1: context_ids = prompt ids               sampled.ids = action ids
        turn 2: context_ids = glue + observation ids   sampled.ids = action ids

    The full history of turn k is the concatenation of all earlier context and sampled ids, unless `new_segment`
    is set: then history was rewritten and `context_ids` is the whole new history.
    """

    context_ids: np.ndarray
    """int32 [m]: seen by the policy, never trained."""
    sampled: Sampled
    text: str = ""
    """The sampled ids decoded without special tokens, for graders and people. Never encoded back."""
    new_segment: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    state_key: str | None = None
    """Names the environment state the action was taken in, for anchor credit."""
    events: tuple[str, ...] = ()
    seconds: float = 0.0
    agent: str = "policy"
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "context_ids", frozen_array(self.context_ids, np.int32))


@dataclass(frozen=True)
class Episode:
    """One trajectory. Facts only: it holds no reward and no advantage."""

    id: EpisodeId
    group_id: str
    turns: tuple[Turn, ...]
    stop: StopReason
    branch_of: tuple[EpisodeId, int] | None = None
    """(parent episode, turn): this episode continues a saved state; its trunk belongs to the parent."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    start_fingerprint: str = ""
    seconds: float = 0.0

    @property
    def num_sampled(self) -> int:
        return sum(len(turn.sampled.ids) for turn in self.turns)

    @property
    def num_own(self) -> int:
        """Sampled tokens that are not those of the trunk it continues: what it cost."""
        own = self.turns[self.branch_of[1] :] if self.branch_of else self.turns
        return sum(len(turn.sampled.ids) for turn in own)

    @property
    def completion(self) -> str:
        """The text of the last turn: what single-answer graders read. Empty if there is no turn."""
        return self.turns[-1].text if self.turns else ""


@dataclass(frozen=True)
class Group:
    """Episodes of one task from one start state, compared with each other."""

    id: str
    task: Task
    episodes: tuple[Episode, ...]

    def __post_init__(self) -> None:
        wrong = [str(e.id) for e in self.episodes if e.group_id != self.id]
        if wrong:
            raise ValueError(f"group {self.id} was given an episode of another group: {wrong[0]}")
        if len({e.start_fingerprint for e in self.episodes}) > 1:
            raise ValueError(f"group {self.id} holds episodes with different start states")


@dataclass(frozen=True)
class Task:
    """One problem. `key` is stable across runs and orderings; answer and columns never reach the policy."""

    key: str
    prompt: str | tuple[Message, ...]
    answer: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every extra column of the row; passed to reward functions as keywords."""
    source: str = ""
    split: str = "train"


VERDICTS = ("correct", "wrong", "unextractable", "unscorable")
"""Four things that must not be taken for one another."""


@dataclass(frozen=True)
class Reward:
    """The verdict on one episode: a total with its named parts, or unscorable with a cause. Missing is not zero.

    `success` is the held-out metric, judged independently of the (possibly shaped) total.
    `extractable` says whether an answer could be read out at all; None where that has no meaning.
    """

    total: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    extractable: bool | None = None
    cause: str | None = None
    turn_scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """label → what a turn scorer of that name said of each turn, before weight and cap; None: nothing."""

    def __post_init__(self) -> None:
        if (self.total is None) == (self.cause is None):
            raise ValueError("a reward has either a total or a cause for having none")

    @property
    def scorable(self) -> bool:
        return self.total is not None

    @property
    def verdict(self) -> str:
        """One of VERDICTS; unscorable too where there is no verdict on success."""
        if self.total is None or self.success is None:
            return "unscorable"
        return "correct" if self.success else "unextractable" if self.extractable is False else "wrong"

    @staticmethod
    def unscorable(cause: str) -> Reward:
        return Reward(total=None, cause=cause)


@dataclass(frozen=True)
class Credit:
    """What the learner is told about one episode.

    `advantages` has one float per sampled token of the episode (all turns, in order). `trained` False keeps the
    episode out of the loss. `in_baseline` says whether its reward took part in the group's statistics.
    """

    episode: EpisodeId
    advantages: np.ndarray
    trained: bool
    in_baseline: bool
    constant_group: bool = False
    weights: np.ndarray | None = None
    """float64, one per sampled token: its share in every sum and mean of the loss; None: 1 each. A token of weight 0, such
    as those that a continuation shares with its trunk, is trained elsewhere or not at all."""


class MilepostError(Exception):
    """A problem the user can fix. The message is one sentence: setting, what is wrong, what would work."""


class RecipeError(MilepostError, ValueError):
    """The recipe or a command-line setting is wrong. Exit code 2, before any model is loaded."""


class DataError(MilepostError, ValueError):
    """Task rows are unusable. Exit code 2."""

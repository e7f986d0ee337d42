"""What stands in a policy's context: a history that is appended to, and when a new segment begins instead. Torch-free.

    prompt | action 1 | answer 1 | action 2 | answer 2 …       nothing is ever rendered again, unless
    prompt                                                     the environment rewrote the conversation;
    prompt | action 2 | answer 2 …                             the context is full and `context_rule` drops old turns,
    prompt, summary, answer 2                                  or has the environment sum them up;
    prompt | action 1 without its thought | answer 1 …         `old_reasoning` drops thoughts.

Either way the ids are recorded as the policy saw them.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from milepost.env import Observation
from milepost.rollout import Codec
from milepost.sections import EnvSection
from milepost.tools import split_thought
from milepost.types import Message

_KEEP = 0.5
"""Share of the context that is kept when the oldest turns are dropped: what is prefilled again stays linear in turns."""


class History:
    """One episode's context, turn by turn."""

    ids: np.ndarray
    """All that the next action is sampled from."""
    new: np.ndarray
    """What of it the last turn has not seen; all of it in a new segment."""
    new_segment: bool = False

    def __init__(
        self, codec: Codec, opening: Callable[[Sequence[Message]], list[Message]], limits: EnvSection, context: int,
        start: Sequence[Message],
    ) -> None:  # fmt: skip
        """`opening` puts how to act before the environment's first messages; `context`: most tokens of a history."""
        self.codec, self.open, self.limits, self.context = codec, opening, limits, context
        self.drops = limits.old_reasoning == "drop"
        self._begin(start)

    def copy(self) -> History:
        """One that goes its own way from here. Arrays are never written to, so that both may hold them."""
        other = copy.copy(self)
        other.turns = list(self.turns)
        return other

    def _begin(self, messages: Sequence[Message]) -> None:
        self.opening = self.open(messages)
        self.turns: list[np.ndarray] = []
        self.head = self.ids = self.new = self.codec.prompt(self.opening)

    def add(self, ids: np.ndarray, seen: Observation, room: int = 0, summary: Callable[[], str] | None = None) -> None:
        """The policy wrote `ids`, its end of turn included, and the environment answered. `room`: tokens that the next
        action should find. `summary`: what the environment sums up; asked for if that is the rule and the context full."""
        self.new_segment = seen.history is not None
        if seen.history is not None:
            self._begin(seen.history)
            return
        kept = self._without_thought(ids) if self.drops else ids
        self.new = self.codec.observe(seen.messages, int(kept[-1]))
        self.turns.append(np.concatenate([kept, self.new]))
        if kept is ids:
            self.ids = np.concatenate([self.ids, self.turns[-1]])
        else:
            self.ids = self.new = self._joined(self.turns)
            self.new_segment = True
        if len(self.ids) + room <= self.context:
            return
        if self.limits.context_rule == "drop_oldest":
            latest = self._latest()
            self._go_on(self._joined(latest), latest)
        elif self.limits.context_rule == "summary" and summary is not None:
            said = [summary(), *(str(message["content"]) for message in seen.messages)]
            self._go_on(self.codec.resume(self.opening, "\n".join(said)), [])

    def _go_on(self, ids: np.ndarray, turns: list[np.ndarray]) -> None:
        """In a new segment, if that is shorter."""
        if len(ids) < len(self.ids):
            self.ids = self.new = ids
            self.turns, self.new_segment = turns, True
            self.head = self.head if turns else ids

    def _joined(self, turns: Sequence[np.ndarray]) -> np.ndarray:
        """What the history opens with, and these turns. Where thoughts are dropped, old actions have none to open."""
        *before, last = [self.head, *turns]
        return np.concatenate([*(self.codec.unopened(part) if self.drops else part for part in before), last])

    def _without_thought(self, ids: np.ndarray) -> np.ndarray:
        """The action behind its leading thought, in the ids it was sampled with; `ids` itself if it holds none."""
        decode, opened = self.codec.decode, self.codec.opened
        text = decode(ids)
        thought, rest = split_thought(opened + text)
        if not thought:
            return ids
        cut = len(thought) - len(opened)
        at = min(bisect_left(range(len(ids)), cut, key=lambda k: len(decode(ids[:k]))), len(ids) - 1)
        if decode(ids[:at]) == text[:cut] and decode(ids[at:]) == rest:
            return ids[at:]
        return self.codec.complete(rest)  # one token holds the end of the thought and more

    def _latest(self) -> list[np.ndarray]:
        """As many of the latest turns as fit into a share of the context behind the opening, at least the last one."""
        sizes = np.cumsum([len(turn) for turn in reversed(self.turns)])
        fit = int(np.searchsorted(sizes, _KEEP * self.context - len(self.head), side="right"))
        return self.turns[-max(1, fit) :]

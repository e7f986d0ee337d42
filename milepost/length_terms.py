"""Length terms that cannot pay a wrong answer, for being short or for being long; and what raises their weight. Torch-free.

    kimi      right  v + w·λ                          λ = ½ − (n − shortest)/(longest − shortest) within the group
              wrong  w·min(0, λ)                      (Kimi k1.5)
    gr3       right  v / (1 + w·n/mean n of the group)                                       (GR3, 2603.10535)
    l1_max    right  v · clip(w·(target − n) + ½, floor, 1)                                  (L1, 2503.04697)
    overlong  both   −w · ramp                        ramp: 0 up to target − buffer tokens, 1 from target on (DAPO)

n counts the sampled tokens of the whole episode, v is what success is worth, w the weight. A wrong answer gets 0 or less
from every form, so no length earns it anything; `milepost check reward` proves that the term cannot undo success either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from milepost.reward_sections import LengthSection
from milepost.types import Reward


@dataclass(frozen=True)
class LengthTerm:
    """A resolved [reward.length]. `weight` is the present one; a controller may raise it up to `max_weight`."""

    form: str
    weight: float
    target: int = 0
    buffer: int = 0
    floor: float = 0.1
    max_weight: float = 0.0

    @property
    def heaviest(self) -> float:
        return max(self.weight, self.max_weight)


def length_term(section: LengthSection) -> LengthTerm | None:
    """None if the recipe has no length term."""
    if section.form == "none":
        return None
    most = section.max_weight if section.max_mean else 0.0
    return LengthTerm(section.form, section.resolved_weight, section.target, section.buffer, section.floor, most)


def length_part(term: LengthTerm, success: bool, value: float, length: int, lengths: Sequence[int]) -> float:
    """What `length` sampled tokens add to (below 0: take from) an episode whose success is worth `value`.

    `lengths`: sampled tokens of every member of its group, its own included. 0 or less for a failure, whatever the form.
    """
    if term.form == "kimi":
        shortest, longest = min(lengths), max(lengths)
        spread = 0.5 - (length - shortest) / (longest - shortest) if longest > shortest else 0.0
        return term.weight * (spread if success else min(0.0, spread))
    if term.form == "overlong":
        start = term.target - term.buffer
        return -term.weight * min(1.0, max(0.0, (length - start) / term.buffer))
    if not success:
        return 0.0
    if term.form == "gr3":
        mean = sum(lengths) / len(lengths)
        return value / (1 + term.weight * (length / mean if mean else 1.0)) - value
    return value * (min(1.0, max(term.floor, term.weight * (term.target - length) + 0.5)) - 1)


def length_bounds(term: LengthTerm, value: float, group_size: int, max_tokens: int) -> tuple[float, float, float]:
    """(lowest for a success, highest for a success, lowest for a failure) at the heaviest weight; a failure's highest is 0.

    `max_tokens`: most sampled tokens of an episode; 0: unknown. Bounds hold at any weight up to the heaviest.
    """
    weight = term.heaviest
    if term.form == "kimi":
        return -weight / 2, weight / 2, -weight / 2
    if term.form == "overlong":
        return -weight, 0.0, -weight
    if term.form == "gr3":  # the longest of a group whose others are empty is n = G times the mean
        return value / (1 + weight * group_size) - value, 0.0, 0.0
    lowest = min(1.0, max(term.floor, weight * (term.target - max_tokens) + 0.5)) if max_tokens else term.floor
    return value * (lowest - 1), 0.0, 0.0


def with_length(
    term: LengthTerm,
    rewards: Sequence[Reward],
    success: str,
    weight: float,
    lengths: Sequence[int],
    counted: Sequence[bool],
) -> list[Reward]:
    """A group's rewards with the part "length". What a success is worth is the part `success` times `weight`."""
    others = [length for length, there in zip(lengths, counted) if there]
    result = []
    for reward, length in zip(rewards, lengths):
        if reward.total is not None and reward.success is not None:
            part = length_part(term, reward.success, weight * reward.parts[success], length, others)
            reward = replace(reward, total=reward.total + part, parts={**reward.parts, "length": part})
        result.append(reward)
    return result


class LengthController:
    """Raises the weight of a safe length term while the mean length of a batch exceeds a limit, and lowers it again below.

    w ← clip(w·(1 + rate), base, most) above `limit` sampled tokens, w/(1 + rate) otherwise. Every change is a change of
    the reward, and is told as a sentence.
    """

    def __init__(self, section: LengthSection) -> None:
        self.limit, self.rate = section.max_mean, section.rate
        self.base, self.most = section.resolved_weight, section.max_weight
        self.weight = self.base

    def observe(self, lengths: Sequence[int]) -> str | None:
        """After a batch of training episodes with these lengths; the sentence to log if the reward changed."""
        if not lengths:
            return None
        mean, before = sum(lengths) / len(lengths), self.weight
        raised = before * (1 + self.rate) if mean > self.limit else before / (1 + self.rate)
        self.weight = min(self.most, max(self.base, raised))
        if self.weight == before:
            return None
        why = f"a mean length of {mean:.0f} tokens, {'over' if mean > self.limit else 'within'} the limit of {self.limit}"
        return f"the reward changed: reward.length.weight {before:.4g} → {self.weight:.4g} after {why}"

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.weight = float(state["weight"])

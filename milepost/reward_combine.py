"""How the parts of a reward become one number: weighted sum, gate, lexicographic order, GDPO. Torch-free.

    sum             Σ weight · value
    gate            the same if every gating part is 1; else nothing is paid, and what costs still costs
    lexicographic   the first part decides, the second among equals, and so on: values count in tenths, each part a place of
                    base 11, so that all later parts together are worth less than a tenth of the one before
    gdpo            the sum, of which credit.py makes its own: each part by itself, normalised within its group

A gate earns nothing by being open unless it is given a weight of its own. A judge of form with a weight below 0 is a malus:
what its value lacks of 1 costs, weight · (1 − value). Parts are stored raw, whatever becomes of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from milepost.reward_checks import BUILT_IN
from milepost.reward_sections import BOUNDED, RewardSection

SLACK = 1e-9
LEVELS = 10


@dataclass(frozen=True)
class Combination:
    mode: str
    weights: Mapping[str, float]
    """What each part earns per unit, in the order of the recipe; 0: only measured, or a gate that pays nothing."""
    gates: tuple[str, ...]
    success: str
    success_at: float
    only_earn: frozenset[str] = frozenset()
    """Parts that cannot be below 0 and are not paid for less than 0."""
    malus: frozenset[str] = frozenset()
    """Parts of which a weight below 0 takes what they lack of 1."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The parts without which there is no reward."""
        return tuple(label for label, weight in self.weights.items() if weight != 0 or label in self.gates)

    def lacking(self, parts: Mapping[str, float]) -> str | None:
        """The first part that is needed and not there. Behind a gate that is shut, what can only earn is not needed."""
        spared = self.only_earn if self.shut(parts) else frozenset()
        return next((label for label in self.needed if label not in parts and label not in spared), None)

    def total(self, parts: Mapping[str, float]) -> tuple[float | None, str | None]:
        """(the reward, None), or (None, why there is none). `parts` lacks nothing."""
        if self.mode == "lexicographic":
            if outside := [name for name in self.needed if not -SLACK <= parts[name] <= 1 + SLACK]:
                return None, f"{outside[0]} is outside 0 to 1"
            paid = [weight * tenths(parts[name]) for name, weight in self.weights.items() if weight]
        else:
            paid = [self.paid(name, parts[name]) for name, weight in self.weights.items() if weight != 0 and name in parts]
            if self.shut(parts):
                paid = [min(0.0, value) for value in paid]
        value = math.fsum(paid)
        return (value, None) if math.isfinite(value) else (None, "not finite")

    def paid(self, name: str, value: float) -> float:
        """What one part adds to the reward where no gate and no order is in its way."""
        return self.weights[name] * (1.0 - value if name in self.malus else value)

    def shut(self, parts: Mapping[str, float]) -> bool:
        return any(parts[gate] < 1 - SLACK for gate in self.gates if gate in parts)

    def succeeded(self, parts: Mapping[str, float]) -> bool | None:
        """Success needs every gate too: what is right in a form that cannot be read is not. None: cannot be told."""
        if self.shut(parts):
            return False
        if any(name not in parts for name in (self.success, *self.gates)):
            return None
        return parts[self.success] >= self.success_at - SLACK


def combination(section: RewardSection) -> Combination:
    """What [reward] says, resolved. The section was checked, and has functions."""
    mode, gates = section.resolved_combine, section.resolved_gates
    weights: dict[str, float] = {}
    for function in section.functions:
        label = function.resolved_label
        free = label in gates and function.name in BOUNDED and function.weight == 1
        if mode == "lexicographic":
            weights[label] = float(LEVELS + 1) ** -sum(w != 0 for w in weights.values()) if function.weight else 0.0
        else:
            weights[label] = 0.0 if free else function.weight
    built_in = {function.resolved_label for function in section.functions if function.name in BUILT_IN}
    only_earn = frozenset(label for label in built_in if weights[label] >= 0)
    forms = {function.resolved_label for function in section.functions if function.name in BOUNDED}
    malus = frozenset(label for label in forms - {section.resolved_success} if weights[label] < 0)
    return Combination(mode, weights, gates, section.resolved_success, section.success_at, only_earn, malus)


def tenths(value: float) -> float:
    """A value from 0 to 1, rounded down to what the order by places can tell apart."""
    return min(LEVELS, max(0, math.floor(value * LEVELS + SLACK))) / LEVELS

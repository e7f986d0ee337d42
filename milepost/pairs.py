"""What paired seeds show: an exact interval and an exact test, with the seed as the unit. Torch-free.

Two arms train from the same seeds and are tested on the same tasks. Each pair gives one number, the mean over its tasks of
(success with − success without); the tasks are paired within it. If the arms were alike, each of these numbers could as
well have had the other sign. All 2^n ways to choose the signs are equally likely then, and the observed mean has a rank
among them: that is the test (Fisher 1935). Turned round, the true difference is as likely to lie in any one of the 2^n
gaps between the means of the 2^n − 1 subsets of the numbers (Hartigan 1969): that is the interval. Both hold for any
number of pairs if differences are symmetric about their centre; a bootstrap over ten seeds would be too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from milepost.evaluate import EvalReport, Paired, paired
from milepost.types import RecipeError

LEVEL = 0.95
ENOUGH = 6
"""Pairs. Of five, even those that all point one way do so by chance with p = 2/2⁵ = .0625."""
EXACT = 20
"""Up to so many pairs all subsets are counted; of more, a million are drawn."""
SLACK = 1e-12


@dataclass(frozen=True)
class SeedPair:
    """One seed: both arms' success on the same tasks, and the difference with its interval over these tasks."""

    seed: int
    with_: float
    without: float
    over_tasks: Paired

    @property
    def difference(self) -> float:
        return self.over_tasks.difference


@dataclass(frozen=True)
class Effect:
    """with − without over paired seeds, in success rate. `low` and `high` are None where there are too few pairs."""

    pairs: tuple[SeedPair, ...]
    difference: float
    low: float | None
    high: float | None
    p: float
    """Two-sided, by all changes of sign; 1 where no pair differs."""
    num_recurring: int = 0
    """Tasks that stand in the tests of several seeds, counted each time but the first."""

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def with_(self) -> float:
        return math.fsum(pair.with_ for pair in self.pairs) / len(self.pairs)

    @property
    def without(self) -> float:
        return math.fsum(pair.without for pair in self.pairs) / len(self.pairs)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{100 * self.difference:+.1f} points, no interval from {len(self.pairs)} pairs"
        return (f"{100 * self.difference:+.1f} points, 95 % [{100 * self.low:+.1f}, {100 * self.high:+.1f}], "
                f"{written(self.p)}, {len(self.pairs)} pairs")  # fmt: skip


def compare_seeds(reports: Mapping[int, tuple[EvalReport, EvalReport]], *, greedy: bool = False) -> Effect:
    """The effect over `reports`: seed → (with, without), each pair tested on the same tasks with the same decoding.

    Raises RecipeError where a pair cannot be compared, or there is none.
    """
    if not reports:
        raise RecipeError("no pair of runs is finished, so there is nothing to compare; give at least one seed")
    pairs = []
    for seed, (with_, without) in reports.items():
        gap = paired(without, with_, greedy=greedy)
        rates = (with_.greedy, without.greedy) if greedy else (with_.success, without.success)
        pairs.append(SeedPair(seed, _number(rates[0]), _number(rates[1]), gap))
    differences = [pair.difference for pair in pairs]
    low, high = interval(differences) or (None, None)
    keys = [key for with_, _ in reports.values() for key in with_.outcomes]
    return Effect(tuple(pairs), math.fsum(differences) / len(pairs), low, high, sign_flip_p(differences),
                  len(keys) - len(set(keys)))  # fmt: skip


def _number(rate: float | None) -> float:
    return math.nan if rate is None else rate


def interval(differences: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """(low, high) of the true difference, from the means of all subsets; None where there are too few for `level`.

    k = ⌊(1 − level)/2 · 2^n⌋ of the 2^n gaps are cut off at each end, so that it covers at least `level`. It leaves out 0
    exactly where `sign_flip_p` is at most 1 − level.
    """
    means = subset_means(differences)
    cut = math.floor((1 - level) / 2 * (len(means) + 1) + SLACK)
    return None if cut == 0 else (float(means[cut - 1]), float(means[-cut]))


def subset_means(values: Sequence[float]) -> np.ndarray:
    """float64 [2^n − 1]: the means of all subsets but the empty one, in ascending order; of more than EXACT values, those
    of 2^EXACT − 1 drawn subsets."""
    sums, counts = _subsets(np.asarray(values, np.float64))
    sums[np.abs(sums) <= SLACK * max(1.0, float(np.abs(values).sum()))] = 0.0  # 2e-18 is not above 0
    return np.sort(sums[counts > 0] / counts[counts > 0])


def sign_flip_p(differences: Sequence[float]) -> float:
    """Share of all 2^n changes of sign whose mean is at least as far from 0 as the observed one."""
    values = np.asarray(differences, np.float64)
    sums, _ = _subsets(values)
    flipped = np.abs(values.sum() - 2 * sums)
    return float(np.mean(flipped >= abs(values.sum()) - SLACK * max(1.0, float(np.abs(values).sum()))))


def _subsets(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(sum, size) of every subset of `values`, the empty one first."""
    if len(values) > EXACT:
        rng, drawn = np.random.default_rng(0), [np.zeros((1, len(values)), bool)]
        drawn += [rng.integers(0, 2, (2**14, len(values))).astype(bool) for _ in range(2 ** (EXACT - 14))]
        chosen = [(some @ values, some.sum(axis=1)) for some in drawn]
        return np.concatenate([sums for sums, _ in chosen]), np.concatenate([sizes for _, sizes in chosen])
    sums, counts = np.zeros(1), np.zeros(1, np.int64)
    for value in values:
        sums, counts = np.concatenate([sums, sums + value]), np.concatenate([counts, counts + 1])
    return sums, counts


def chance_of_unanimity(num: int) -> float:
    """The least p that `num` pairs can have: all of them pointing one way, 2/2^num."""
    return min(1.0, 2.0 ** (1 - num))


def verdict(effect: Effect, what: str) -> str:
    """One sentence: does `what` help final success, harm it, or can nothing be said?"""
    num = len(effect.pairs)
    if num < ENOUGH:
        pairs = "1 pair" if num == 1 else f"{num} pairs"
        return (f"{pairs} of runs can show nothing: even if all point one way, chance does that with "
                f"{written(chance_of_unanimity(num))}; it takes {ENOUGH} pairs to reach p < .05")  # fmt: skip
    if all(abs(pair.difference) <= SLACK for pair in effect.pairs):
        return f"no pair differs: {what} changed no final success here"
    if not effect.shown:
        return f"not shown that {what} matters here: {effect}; the interval holds 0"
    return f"{what} {'helps' if effect.difference > 0 else 'harms'} here: {effect}"


def written(p: float) -> str:
    """p = .031, or p < .001."""
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("p = 0", "p = ")

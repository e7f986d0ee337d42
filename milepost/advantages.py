"""Rewards of a group become one advantage per episode: baseline and scale. Torch-free.

Two independent choices make the advantage of reward r_i in a group of n:

    baseline  loo   r_i − mean of the others     scale  none   as it is
              mean  r_i − mean of the group             group  ÷ (std of the group + δ)
              none  r_i                                 batch  ÷ (std of all rewards of the batch + δ)
                                                        source ÷ (std of all of the same source of tasks + δ)

Groups are formed by id, never by position. A group of one and a constant group give exactly 0 (unless the baseline is
none: then nothing is compared). GDPO compares part by part instead. docs/algorithms.md has the sources.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from milepost.types import RecipeError

CONSTANT_TOLERANCE = 1e-9
"""A group is constant when max − min ≤ this · max(1, largest |r|). Decided from rewards: their std, computed, is seldom
exactly 0."""


def advantages(
    rewards: Sequence[float | None] | np.ndarray,
    group_ids: Sequence[Hashable],
    *,
    baseline: str = "loo",
    scale: str = "none",
    std: str = "population",
    delta: float = 1e-6,
    in_baseline: Sequence[bool] | None = None,
    sources: Sequence[str] | None = None,
) -> np.ndarray:
    """One advantage per distinct episode; float64 [n], in the order given. `sources`: of each one's task, for that scale.

    A reward of None or NaN is unscorable: advantage 0, outside all statistics, as is every episode whose
    `in_baseline` is False. Standard deviations are two-pass in float64. With a mean baseline and group scale
    |A| ≤ √(n−1) (population) or (n−1)/√n (sample). Raises RecipeError on unknown names and on loo with group scale.
    """
    _check_names(baseline, scale, std)
    reward = np.array([np.nan if r is None else r for r in rewards], np.float64)
    if len(group_ids) != len(reward):
        raise RecipeError(f"{len(reward)} rewards but {len(group_ids)} group ids; give one group id per reward")
    counted = np.isfinite(reward)
    if in_baseline is not None:
        counted &= np.asarray(in_baseline, bool)
    spread = _spreads(reward, counted, sources if scale == "source" else None, std)
    result = np.zeros(len(reward))
    for members in members_of(group_ids).values():
        index = members[counted[members]]
        result[index] = _within_group(reward[index], baseline, scale, std, delta, float(spread[members[0]]))
    return result


def _spreads(reward: np.ndarray, counted: np.ndarray, sources: Sequence[str] | None, std: str) -> np.ndarray:
    """The std that each reward is divided by: of the batch, or of its source of tasks."""
    result = np.zeros(len(reward))
    for members in members_of(sources or [""] * len(reward)).values():
        result[members] = standard_deviation(reward[members[counted[members]]], std)
    return result


def _within_group(r: np.ndarray, baseline: str, scale: str, std: str, delta: float, spread: float) -> np.ndarray:
    if baseline == "none" and scale == "none":
        return r
    if is_constant(r) and (baseline != "none" or scale == "group"):
        return np.zeros(len(r))
    centred = r if baseline == "none" else r - r.mean()
    if baseline == "loo":
        centred = centred * (len(r) / (len(r) - 1))
    if scale == "none":
        return centred
    divisor = standard_deviation(r, std) if scale == "group" else spread
    return centred / (divisor + delta) if divisor > 0 else np.zeros(len(r))


def gdpo(
    parts: Sequence[Sequence[float]] | np.ndarray,
    weights: Sequence[float],
    group_ids: Sequence[Hashable],
    *,
    std: str = "population",
    delta: float = 1e-6,
    whiten: bool = True,
    in_baseline: Sequence[bool] | None = None,
) -> np.ndarray:
    """GDPO (2601.05242): each part z-scored within its group, weighted after that, divided by the std of the batch.

    `parts` is [n, K], `weights` [K]; float64 [n]. A part that is constant within a group says nothing there: exactly 0,
    not noise over δ. Each group's scores add up to 0, so the batch needs no mean taken off. Episodes outside the baseline
    get 0.
    """
    table, counted = np.asarray(parts, np.float64), np.ones(len(group_ids), bool)
    if in_baseline is not None:
        counted &= np.asarray(in_baseline, bool)
    result = np.zeros(len(group_ids))
    for members in members_of(group_ids).values():
        index = members[counted[members]]
        for values, weight in zip(table[index].T, weights):
            if not is_constant(values):
                result[index] += weight * (values - values.mean()) / (standard_deviation(values, std) + delta)
    result = minus(result, 0.0)  # parts may cancel
    spread = standard_deviation(result[counted], std)
    return result / (spread + delta) if whiten and spread > 0 else result


def is_constant(rewards: np.ndarray) -> bool:
    """True for fewer than two rewards, or when they differ by no more than rounding."""
    if len(rewards) < 2:
        return True
    return bool(np.ptp(rewards) <= CONSTANT_TOLERANCE * max(1.0, np.abs(rewards).max()))


def minus(values: Sequence[float] | np.ndarray | float, base: Sequence[float] | np.ndarray | float) -> np.ndarray:
    """values − base, exactly 0 where they differ by no more than rounding, as in `is_constant`; float64, broadcast.

    A mean of equal numbers need not equal them: .1 − mean(.1, .1, .1) is −1.4e-17, and would count as a signal.
    """
    value, other = np.asarray(values, np.float64), np.asarray(base, np.float64)
    gap = value - other
    size = np.maximum(1.0, np.maximum(np.abs(value), np.abs(other)))
    return np.where(np.abs(gap) <= CONSTANT_TOLERANCE * size, 0.0, gap)


def standard_deviation(rewards: np.ndarray, std: str) -> float:
    """Two-pass, float64; population divides by n, sample by n − 1. Exactly 0 where `is_constant`."""
    if is_constant(rewards):
        return 0.0
    deviation = rewards - rewards.mean()
    return float(np.sqrt(np.square(deviation).sum() / (len(rewards) - (std == "sample"))))


def members_of(group_ids: Sequence[Hashable]) -> dict[Hashable, np.ndarray]:
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(group_ids):
        members.setdefault(group, []).append(index)
    return {group: np.array(indices) for group, indices in members.items()}


def _check_names(baseline: str, scale: str, std: str) -> None:
    choices = {
        "baseline": ("loo", "mean", "none"),
        "scale": ("none", "group", "batch", "source"),
        "std": ("population", "sample"),
    }
    for name, value in (("baseline", baseline), ("scale", scale), ("std", std)):
        if value not in choices[name]:
            raise RecipeError(f"credit.{name} = {value!r} is unknown; choose one of {', '.join(choices[name])}")
    if baseline == "loo" and scale == "group":
        raise RecipeError(
            'credit.baseline = "loo" with credit.scale = "group" divides by a std that can be zero; '
            'use baseline = "mean" with scale = "group", or scale = "none"'
        )


def overlong_penalty(length: int, cap: int, buffer: int) -> float:
    """DAPO's soft penalty (2503.14476): 0 up to cap − buffer tokens, then linear, −1 from the cap on."""
    if not 0 < buffer <= cap:
        raise RecipeError(
            f"rollout.soft_buffer = {buffer} must lie between 1 and max_new_tokens = {cap}; a fifth of it works"
        )
    return float(-np.clip((length - (cap - buffer)) / buffer, 0.0, 1.0))


def discounted_returns(rewards: Sequence[float] | np.ndarray, gamma: float) -> np.ndarray:
    """G_t = r_t + γ·G_{t+1}; float64, same length. Discounting per step is not length normalisation."""
    result = np.array(rewards, np.float64)
    for t in range(len(result) - 2, -1, -1):
        result[t] += gamma * result[t + 1]
    return result


def gae(
    rewards: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """Generalised advantages (1506.02438) over turns: δ_u = r_u + γ·V_{u+1} − V_u, A_u = δ_u + γλ·A_{u+1}; V ends in 0.

    `values[u]`: V of the state in which turn u's action was taken. float64, one per turn.
    """
    reward, value = np.asarray(rewards, np.float64), np.append(np.asarray(values, np.float64), 0.0)
    return discounted_returns(reward + gamma * value[1:] - value[:-1], gamma * lam)


def adaptive_lambda(alpha: float, num_turns: int) -> float:
    """max(0, 1 − 1/(α·turns)): what reaches back grows with the length (VAPO 2504.05118, UI-TARS-2 2509.02544)."""
    return max(0.0, 1.0 - 1.0 / (alpha * num_turns))


def relative_lambda(left: float, num_turns: int) -> float:
    """q^(1/(turns − 1)): of what the last turn brought, the share q is left at the first, however many turns there are."""
    return float(left ** (1.0 / (num_turns - 1))) if num_turns > 1 else 1.0

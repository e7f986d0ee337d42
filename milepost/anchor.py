"""Steps that were taken from the same state are compared with each other: anchor credit. Torch-free.

    A_t = A + ω · S_t          A: the episode's advantage, S_t: what its step t did against others from the same state

`returns` (GiGPO 2505.10978): S_t = G_t − mean of the other episodes' returns from that state. `history` K asks that the k
states before be the same as well, for k = 0 … K: S_t = Σ w_k·S_t,k / Σ w_k over the groups in which some differ (HGPO
2602.22817, whose code leaves out steps told 0 as well). `shrinkage` c tells a step the mean of the episodes that did the
same there, times n/(n + c) (ECPO 2606.05885). `graph` (RewardFlow 2603.18859):
V(s) = max(γ·V(s') over the transitions that the group saw), an episode's end being worth its total; S_t = γ·V(s') − V(s).
Rewards of single turns have no say there but as parts of the total, and shaping has none.

Each episode counts once in a group, by the mean over its visits: one that runs in circles would outvote the others. A state
that one episode alone has seen gives exactly 0. Nothing is gained before episodes part: there S_t = A, a step twice as
large, so compare with a learning rate of its own (docs/credit.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from milepost.advantages import is_constant, minus, standard_deviation
from milepost.credit_sections import CreditSection


@dataclass(frozen=True)
class Steps:
    """One episode's turns, as anchor credit sees them."""

    group: Hashable
    keys: tuple[str | None, ...]
    """State in which each turn's action was taken; None: unknown, equal to no other."""
    actions: tuple[str, ...]
    returns: np.ndarray
    """float64 [T]: G_t = r_t + γ·G_{t+1}."""
    total: float
    """What the whole episode is worth: where values spread from."""


def anchor_advantages(episodes: Sequence[Steps], section: CreditSection) -> list[np.ndarray]:
    """S_t of each turn; one float64 [T] per episode. `episodes`: those in the baseline."""
    if section.anchor == "graph":
        return _graph_advantages(episodes, section.gamma)
    result = [np.zeros(len(e.keys)) for e in episodes]
    weights = [np.zeros(len(e.keys)) for e in episodes]
    for depth in range(section.history + 1):
        weight = depth + (1.0 if section.history_weights == "k+1" else 2.0)
        for visits in _visits(episodes, depth).values():
            for (index, turn), value in _compared(episodes, visits, section).items():
                result[index][turn] += weight * value
                weights[index][turn] += weight
    return [np.divide(r, w, out=np.zeros(len(r)), where=w > 0) for r, w in zip(result, weights)]


Visit = tuple[int, int]
"""(episode, turn)"""


def _visits(episodes: Sequence[Steps], depth: int) -> dict[Hashable, list[Visit]]:
    """The steps of each step group: same task group, same state, same `depth` states before it."""
    found: dict[Hashable, list[Visit]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        for turn in range(depth, len(episode.keys)):
            last = episode.keys[turn - depth : turn + 1]
            if None not in last:
                found[episode.group, last].append((index, turn))
    return found


def _compared(episodes: Sequence[Steps], visits: Sequence[Visit], section: CreditSection) -> dict[Visit, float]:
    """What each visit of one step group is told; empty, so without weight, where a single episode came
    by or all fared the same."""
    by_episode: dict[int, list[float]] = defaultdict(list)
    for index, turn in visits:
        by_episode[index].append(float(episodes[index].returns[turn]))
    means = {index: float(np.mean(values)) for index, values in by_episode.items()}
    values = np.array(list(means.values()))
    # An episode that came by twice, for 1 and for .5, differs from one of .75: but there is nothing to scale by.
    spread = values if section.scale == "group" else np.concatenate(list(by_episode.values()))
    if len(means) < 2 or is_constant(spread):
        return {}
    divisor = standard_deviation(values, section.std) + section.delta if section.scale == "group" else 1.0
    told: dict[Visit, float] = {}
    for index, turn in visits:
        value, n = float(episodes[index].returns[turn]), 0
        if section.shrinkage:
            same = _same_action(episodes, visits, episodes[index].actions[turn])
            value, n = float(np.mean(list(same.values()))), len(same)
        others = values.sum() - means[index]
        base = others / (len(values) - 1) if section.resolved_baseline == "loo" else values.mean()
        shrunk = n / (n + section.shrinkage) if section.shrinkage else 1.0
        told[index, turn] = float(minus(value, base)) / divisor * shrunk
    return told


def _same_action(episodes: Sequence[Steps], visits: Sequence[Visit], action: str) -> dict[int, float]:
    """Episode → mean return of its visits that took this action."""
    found: dict[int, list[float]] = defaultdict(list)
    for index, turn in visits:
        if episodes[index].actions[turn] == action:
            found[index].append(float(episodes[index].returns[turn]))
    return {index: float(np.mean(values)) for index, values in found.items()}


def spread_values(
    successors: Mapping[Hashable, Sequence[Hashable]], ends: Mapping[Hashable, float], gamma: float
) -> dict[Hashable, float]:
    """V(s) = max(what ends at s, γ · max V(s') over the successors); 0 where nothing is reached. For totals ≥ 0.

    Repeated passes until nothing changes: at most one per state, since γ ≤ 1 and a circle adds nothing.
    """
    values = {state: 0.0 for state in {*successors, *ends, *(s for after in successors.values() for s in after)}}
    values |= ends
    for _ in values:
        changed = False
        for state, after in successors.items():
            best = max([ends.get(state, 0.0), *(gamma * values[s] for s in after)])
            changed, values[state] = changed or best > values[state], max(values[state], best)
        if not changed:
            break
    return values


def _graph_advantages(episodes: Sequence[Steps], gamma: float) -> list[np.ndarray]:
    """γ·V(s') − V(s) of each step in the graph of its task group; the end of an episode is a state of its own."""
    result: list[np.ndarray] = [np.zeros(len(e.keys)) for e in episodes]
    for group in dict.fromkeys(e.group for e in episodes):
        mine = [(index, e) for index, e in enumerate(episodes) if e.group == group and None not in e.keys and len(e.keys)]
        successors: dict[Hashable, list[Hashable]] = defaultdict(list)
        ends: dict[Hashable, float] = {}
        for index, e in mine:
            path: list[Hashable] = [*e.keys, ("end", index)]
            for state, after in pairwise(path):
                successors[state].append(after)
            ends["end", index] = e.total
        low = min([0.0, *ends.values()])  # V is a maximum over what is ≥ 0
        values = spread_values(successors, {state: end - low for state, end in ends.items()}, gamma)
        for index, e in mine:
            path = [*e.keys, ("end", index)]
            result[index] = np.array([gamma * values[after] - values[state] for state, after in pairwise(path)])
    return result

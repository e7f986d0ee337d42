"""Episodes that continue saved states of others: what the steps of a tree are told, and what they weigh. Torch-free.

        ┌─ t₁ ──────── t₂ ──────── end          trunk: an episode from the start, R its total
     s₀ ┘   └─ c, c        └─ c, c              c: continuations from the states before turns t₁ < t₂ of the trunk

V(t): mean total of the continuations from t; V(0): of the other trunks, each with its continuations. Forms:

    differences   trunk V(t₁) − V(0), V(t₂) − V(t₁), R − V(t₂);  continuation from t: its total − mean of its rivals'
    vine          the trunk as above; continuations are measured, not trained (VinePPO 2410.01679, SPO 2505.23564)
    tree          leaf: compared with all leaves of the task, plus with those of its tree (Tree-GRPO 2509.21240)
    treerl        node: (V − V(parent)) + (V − V(root)), V the mean below of totals minus the others' (TreeRL)

Where a path splits into m, each branch carries 1/m of its weight: all steps of a tree weigh as those of one episode, and
a token that several leaves share is trained once, with their weighted mean. That equals the sum over root-to-leaf paths,
each with the weight of its leaf. A path that is out of the loss takes its own weight with it and leaves the others theirs:
a trunk that was cut is trained as far as others continued it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from milepost.advantages import advantages, minus
from milepost.credit_sections import CreditSection


@dataclass(frozen=True)
class Path:
    """One episode of a group: a trunk (`parent` −1), or what continues trunk `parent` from the state before turn `turn`."""

    total: float
    num_turns: int
    """Those it shares with its trunk included."""
    counted: bool = True
    """Whether its total may be compared with."""
    parent: int = -1
    turn: int = 0
    trained: bool = True
    """Whether what it alone sampled is in the loss."""


@dataclass
class Tree:
    """A trunk, and its branch points in order: turn → continuations (indices of paths)."""

    trunk: int
    points: dict[int, list[int]] = field(default_factory=dict)


def tree_credit(paths: Sequence[Path], section: CreditSection) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(advantage, weight) of each turn of each path of one group; a continuation's shared turns have weight 0."""
    trees = trees_of(paths)
    weight = [np.zeros(p.num_turns) for p in paths]
    told = [np.zeros(p.num_turns) for p in paths]
    form = section.branches.form
    for tree in trees:
        _weigh(tree, paths, weight, measured=form == "vine")
    if form in ("differences", "vine"):
        _tell_differences(trees, paths, told, section)
    else:
        _tell_leaves(trees, paths, weight, told, section)
    return told, weight


def trees_of(paths: Sequence[Path]) -> list[Tree]:
    """Continuations that cannot be compared are left out: they say nothing about the state they came from."""
    trees = {index: Tree(index) for index, path in enumerate(paths) if path.parent < 0}
    for index, path in sorted(enumerate(paths), key=lambda item: item[1].turn):
        if path.parent >= 0 and path.counted:
            trees[path.parent].points.setdefault(path.turn, []).append(index)
    return list(trees.values())


def _weigh(tree: Tree, paths: Sequence[Path], weight: list[np.ndarray], *, measured: bool) -> None:
    """Each leaf its share, each turn of the trunk the shares of the trained leaves below it. `measured`: continuations
    have none."""
    trunk, own = paths[tree.trunk], weight[tree.trunk]
    left, last = 1.0, max(tree.points, default=-1)
    for turn, leaves in tree.points.items() if not measured else ():
        left /= len(leaves) + (trunk.counted or turn < last)  # one that ends in a fault is no way on from its last point
        for leaf in leaves:
            weight[leaf][turn:] = share = left * paths[leaf].trained
            own[:turn] += share
    own += left * trunk.trained


def _tell_differences(
    trees: Sequence[Tree], paths: Sequence[Path], told: list[np.ndarray], section: CreditSection
) -> None:  # fmt: skip
    heard = [tree for tree in trees if paths[tree.trunk].counted or tree.points]
    roots = [_whole(tree, paths) for tree in heard]
    for at, tree in enumerate(heard):
        trunk = paths[tree.trunk]
        end = [trunk.total] * trunk.counted
        others = roots[:at] + roots[at + 1 :] if section.resolved_baseline == "loo" else roots
        start = 0.0 if section.resolved_baseline == "none" else float(np.mean(others)) if others else roots[at]
        if len(roots) < 2 and not tree.points and section.resolved_baseline != "none":
            start = trunk.total  # alone: nothing is compared
        values = [float(np.mean([paths[leaf].total for leaf in leaves])) for leaves in tree.points.values()]
        turns = [0, *tree.points, trunk.num_turns]
        for first, last, step in zip(turns, turns[1:], differences([start, *values, *end])):
            told[tree.trunk][first:last] = step
        for turn, leaves in tree.points.items():
            for leaf in leaves:
                rivals = [paths[other].total for other in leaves if other != leaf] + end
                told[leaf][turn:] = minus(paths[leaf].total, float(np.mean(rivals))) if rivals else 0.0


def differences(values: Sequence[float]) -> np.ndarray:
    """V₁ − V₀, V₂ − V₁, …; they add up to the last less the first."""
    return minus(values[1:], values[:-1])


def _whole(tree: Tree, paths: Sequence[Path]) -> float:
    """Expected total from the start, as this tree saw it: its leaves by their weights."""
    value = [paths[tree.trunk].total] * paths[tree.trunk].counted
    for leaves in reversed(tree.points.values()):
        value = [float(np.mean([*value, *(paths[leaf].total for leaf in leaves)]))]
    return value[0]


def _tell_leaves(
    trees: Sequence[Tree], paths: Sequence[Path], weight: Sequence[np.ndarray], told: list[np.ndarray],
    section: CreditSection,
) -> None:  # fmt: skip
    leaves_of = [[tree.trunk, *(leaf for at in tree.points.values() for leaf in at)] for tree in trees]
    leaves = [leaf for mine in leaves_of for leaf in mine if paths[leaf].counted]
    totals = [paths[leaf].total for leaf in leaves]
    if section.branches.form == "tree":
        owner = {leaf: index for index, mine in enumerate(leaves_of) for leaf in mine}
        among = lambda names: advantages(  # noqa: E731
            totals, names, baseline=section.resolved_baseline, scale=section.scale, std=section.std, delta=section.delta
        )
        value = dict(zip(leaves, minus(among([0] * len(leaves)), -among([owner[leaf] for leaf in leaves]))))
    else:
        value = dict(zip(leaves, advantages(totals, [0] * len(leaves))))
    for tree in trees:
        shared = 0.0
        for first, last, below in _nodes(tree, paths):
            own = [leaf for leaf in below if leaf in value]
            if section.branches.form == "tree":
                shares = [weight[leaf][-1] if paths[leaf].num_turns else 0.0 for leaf in own]
                mean = float(np.average([value[leaf] for leaf in own], weights=shares)) if own and sum(shares) else 0.0
                step = float(minus(mean, 0.0))
            else:
                step, shared = _step_value(own, value, shared, section.branches.sqrt)
            told[tree.trunk][first:last] = step
        _tell_continuations(tree, paths, value, told, section)


def _nodes(tree: Tree, paths: Sequence[Path]) -> list[tuple[int, int, list[int]]]:
    """(first turn, end, leaves below) of each stretch of the trunk."""
    turns = [0, *tree.points, paths[tree.trunk].num_turns]
    later = list(tree.points.values())
    return [
        (first, last, [tree.trunk, *(leaf for at in later[k:] for leaf in at)])
        for k, (first, last) in enumerate(pairwise(turns))
    ]


def _step_value(below: Sequence[int], value: dict[int, float], parent: float, sqrt: bool) -> tuple[float, float]:
    """(TreeRL's value of a step, V of the node it leads to); the root's V is 0."""
    if not below:
        return 0.0, parent
    node = float(np.mean([value[leaf] for leaf in below]))
    return float(minus(2 * node, parent)) / (np.sqrt(len(below)) if sqrt else 1.0), node


def _tell_continuations(
    tree: Tree, paths: Sequence[Path], value: dict[int, float], told: list[np.ndarray], section: CreditSection
) -> None:  # fmt: skip
    points = list(tree.points.items())
    for k, (turn, leaves) in enumerate(points):
        below = [leaf for leaf in (tree.trunk, *(leaf for _, at in points[k:] for leaf in at)) if leaf in value]
        node = float(np.mean([value[leaf] for leaf in below])) if below else 0.0
        for leaf in leaves:
            step = value[leaf] if section.branches.form == "tree" else float(minus(2 * value[leaf], node))
            told[leaf][turn:] = step

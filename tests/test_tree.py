"""Continuations from saved states: what the steps of a tree are told, and what they weigh."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.credit_sections import CreditSection
from milepost.tree import Path, differences, tree_credit


def credit(paths, form="differences", sqrt=False, **settings):
    branches = {"form": form, **({"sqrt": True} if sqrt else {})}
    return tree_credit(paths, CreditSection(rule="branch", branches=branches, **settings))


def test_b7_values_of_a_chain_become_steps_that_add_up():
    steps = differences([0.25, 0.5, 0.25, 1.0])
    assert steps.tolist() == [0.25, -0.25, 0.75] and steps.sum() == 1 - 0.25


def test_b7_a_trunk_is_told_how_the_continuations_moved():
    # Trunk of 6 turns that succeeds, branched before turns 2 and 4 with two continuations each, worth ½ and 0 on average;
    # the other trunk fails, alone.
    paths = [Path(1.0, 6), Path(0.0, 3), Path(1.0, 5, True, 0, 2), Path(0.0, 4, True, 0, 2), Path(0.0, 6, True, 0, 4),
             Path(0.0, 7, True, 0, 4)]  # fmt: skip
    told, weight = credit(paths, "vine")
    # V(0) of the first: the other's total, 0. Steps: .5 − 0, 0 − .5, 1 − 0.
    assert told[0].tolist() == [0.5, 0.5, -0.5, -0.5, 1.0, 1.0]
    assert [w.tolist() for w in weight[:2]] == [[1] * 6, [1] * 3] and not any(w.any() for w in weight[2:])
    # V(0) of the second: the first as its leaves see it. From turn 4: (1 + 0 + 0)/3; from turn 2: (1/3 + 1 + 0)/3 = 4/9.
    assert told[1] == pytest.approx([-4 / 9] * 3)


def test_continuations_are_compared_with_their_rivals_and_share_their_weight():
    paths = [Path(1.0, 4), Path(0.0, 4, True, 0, 2), Path(1.0, 3, True, 0, 2)]
    told, weight = credit(paths)
    assert [w.tolist() for w in weight] == [[1, 1, 1 / 3, 1 / 3], [0, 0, 1 / 3, 1 / 3], [0, 0, 1 / 3]]
    assert told[1][2:].tolist() == [-1.0, -1.0]  # against 1 and 1
    assert told[2][2:].tolist() == [0.5]  # against the trunk's 1 and 0
    assert told[0][2:].tolist() == [0.5, 0.5]  # against the continuations' ½


@pytest.mark.parametrize("form", ["differences", "vine", "tree", "treerl"])
@pytest.mark.parametrize("paid", [0.1, 0.2, 0.7])
def test_rounding_of_a_mean_is_no_signal(form, paid):
    # Two trunks of two turns, three continuations of the first: all paid the same, and .1 − mean(.1, .1, .1) is −1.4e-17.
    told, _ = credit([Path(paid, 2), Path(paid, 2), *[Path(paid, 2, True, 0, 1)] * 3], form)
    assert [t.tolist() for t in told] == [[0.0, 0.0]] * 5
    # One of them paid .4 moves V(1) to .2; the other trunk is compared with its tree's mean leaf, .7/4.
    paths = [Path(0.1, 2), Path(0.1, 2), Path(0.4, 2, True, 0, 1), *[Path(0.1, 2, True, 0, 1)] * 2]
    if form in ("differences", "vine"):
        assert [float(t[1]) for t in credit(paths, form)[0]] == pytest.approx([-0.1, -0.075, 0.3, -0.1, -0.1])


def test_b8_tree_grpo_adds_the_comparison_within_the_tree():
    # Trees [1, 0] and [0, 0]: one trunk with one continuation each; z over four leaves, plus z within the tree.
    paths = [Path(1.0, 2), Path(0.0, 2, True, 0, 1), Path(0.0, 2), Path(0.0, 2, True, 2, 1)]
    told, weight = credit(paths, "tree", baseline="mean", scale="group", std="sample", delta=0.0)
    assert [float(t[-1]) for t in told] == pytest.approx([2.207107, -1.207107, -0.5, -0.5], abs=1e-6)
    assert float(told[0][0]) == pytest.approx(0.5)  # the shared turn: the mean of both leaves
    assert [w.tolist() for w in weight] == [[1, 0.5], [0, 0.5]] * 2


@pytest.mark.parametrize(("sqrt", "node_a", "node_b"), [(False, 1.0, -0.25), (True, 0.707107, -0.176777)])
def test_b9_treerl_values_nodes_against_parent_and_root(sqrt, node_a, node_b):
    # Nodes A with leaves 1, 1; B with 1, 0; and a leaf C of 0. Less the others' mean: .5, .5, .5, −.75, −.75.
    paths = [Path(1.0, 2), Path(1.0, 2, True, 0, 1), Path(1.0, 2), Path(0.0, 2, True, 2, 1), Path(0.0, 1)]
    told, _ = credit(paths, "treerl", sqrt)
    assert float(told[0][0]) == pytest.approx(node_a, abs=1e-6) and float(told[2][0]) == pytest.approx(node_b, abs=1e-6)
    assert float(told[4][0]) == pytest.approx(-1.5)
    assert float(told[2][1]) == pytest.approx(1.125) and float(told[3][1]) == pytest.approx(-1.375)


def test_a_group_without_continuations_is_told_what_episode_tells():
    told, weight = credit([Path(1.0, 2), Path(0.0, 3), Path(0.0, 1)])
    assert [t.tolist() for t in told] == [[1.0, 1.0], [-0.5] * 3, [-0.5]] and all(w.all() for w in weight)
    assert [t.tolist() for t in credit([Path(1.0, 2)])[0]] == [[0.0, 0.0]]  # alone


def test_what_cannot_be_compared_is_left_out():
    paths = [Path(1.0, 4), Path(0.0, 2), Path(0.0, 4, False, 0, 2), Path(0.0, 4, True, 0, 2)]
    told, weight = credit(paths)
    assert told[0].tolist() == [0, 0, 1, 1]  # V(2) is that of the one continuation that counts: 0
    assert weight[0].tolist() == [1, 1, 0.5, 0.5] and told[2].tolist() == [0] * 4


def test_a_trunk_out_of_the_loss_is_trained_as_far_as_others_continue_it():
    # Cut, with two that continue it from turn 2 and earn 1 each: V(2) − V(0) = 1 − 0 for the two turns they share.
    cut = [Path(0.0, 3, trained=False), Path(0.0, 2), Path(1.0, 4, True, 0, 2), Path(1.0, 3, True, 0, 2)]
    told, weight = credit(cut)
    assert weight[0] == pytest.approx([2 / 3, 2 / 3, 0]) and told[0][:2].tolist() == [1, 1]
    assert [w.tolist() for w in weight[1:]] == [[1, 1], [0, 0, 1 / 3, 1 / 3], [0, 0, 1 / 3]]
    assert told[1] == pytest.approx([-2 / 3] * 2) and told[2][2:].tolist() == [0.5] * 2  # the cut one's 0 is compared with
    assert not credit(cut, "vine")[1][0].any()  # continuations that only measure leave nothing to train
    # A fault says nothing, and is no way on from the last point: its two continuations share the tree.
    fault = [Path(0.0, 3, False, trained=False), Path(0.0, 2), Path(1.0, 4, True, 0, 2), Path(0.0, 3, True, 0, 2)]
    told, weight = credit(fault)
    assert [w.tolist() for w in weight] == [[1, 1, 0], [1, 1], [0, 0, 0.5, 0.5], [0, 0, 0.5]]
    assert told[0].tolist() == [0.5, 0.5, 0] and told[1].tolist() == [-0.5] * 2
    assert told[2][2:].tolist() == [1, 1] and told[3][2:].tolist() == [-1]


@st.composite
def groups(draw):
    paths = []
    for _ in range(draw(st.integers(1, 3))):
        turns = draw(st.integers(1, 6))
        trunk = len(paths)
        paths.append(Path(draw(st.integers(0, 3)) / 3, turns, trained=draw(st.booleans())))
        for at in sorted(draw(st.sets(st.integers(0, turns - 1), max_size=2))):
            for _ in range(draw(st.integers(1, 3))):
                end, total = at + draw(st.integers(1, 4)), draw(st.integers(0, 3)) / 3
                paths.append(Path(total, end, True, trunk, at, draw(st.booleans())))
    return paths


def root_to_leaf(paths):
    """(leaf, weight) of each path, by the definition: at every split each branch takes its share."""
    for index, path in enumerate(paths):
        own = path.parent if path.parent >= 0 else index
        points = {p.turn: 0 for p in paths if p.parent == own}
        for p in paths:
            if p.parent == own:
                points[p.turn] += 1
        weight = 1.0
        for turn in sorted(points):
            if path.parent < 0 or turn <= path.turn:
                weight /= points[turn] + 1
        yield index, weight * path.trained


@given(paths=groups())
@hypothesis_settings(max_examples=150, deadline=None)
def test_a_tree_weighs_as_one_episode(paths):
    paths = [replace(path, trained=True) for path in paths]
    _, weight = credit(paths)
    leaves = dict(root_to_leaf(paths))
    for trunk in (i for i, p in enumerate(paths) if p.parent < 0):
        family = [i for i, p in enumerate(paths) if i == trunk or p.parent == trunk]
        assert sum(leaves[i] for i in family) == pytest.approx(1)
        for turn in range(min(paths[i].num_turns for i in family)):
            assert sum(weight[i][turn] for i in family) == pytest.approx(1)


@given(paths=groups())
@hypothesis_settings(max_examples=150, deadline=None)
def test_tree_grpo_equals_the_sum_over_its_paths(paths):
    told, weight = credit(paths, "tree", baseline="mean")
    leaves = dict(root_to_leaf(paths))
    mean = np.mean([p.total for p in paths])
    owner = [p.parent if p.parent >= 0 else i for i, p in enumerate(paths)]
    value = [p.total - mean + p.total - np.mean([q.total for q, o in zip(paths, owner) if o == owner[i]])
             for i, p in enumerate(paths)]  # fmt: skip
    for trunk in (i for i, p in enumerate(paths) if p.parent < 0):
        for turn in range(paths[trunk].num_turns):
            # Every path that runs through this turn of the trunk, with the weight of its leaf.
            through = [i for i, p in enumerate(paths) if i == trunk or (p.parent == trunk and p.turn > turn)]
            plain = sum(leaves[i] * value[i] for i in through)
            assert told[trunk][turn] * weight[trunk][turn] == pytest.approx(plain, abs=1e-12)
    for i, p in enumerate(paths):
        if p.parent >= 0:
            assert (told[i] * weight[i])[p.turn :] == pytest.approx(leaves[i] * value[i])


@given(paths=groups())
@hypothesis_settings(max_examples=100, deadline=None)
def test_the_steps_of_a_trunk_add_up(paths):
    told, _ = credit(paths, "vine", baseline="none")
    for i, path in enumerate(paths):
        if path.parent < 0:
            at_once = [p.total for p in paths if p.parent == i and p.turn == 0]  # they are V(0)
            turns = sorted({0, *(p.turn for p in paths if p.parent == i)})
            assert sum(told[i][t] for t in turns) == pytest.approx(path.total - (np.mean(at_once) if at_once else 0))

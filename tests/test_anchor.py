"""Steps from the same state, compared: anchor credit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.advantages import discounted_returns
from milepost.anchor import Steps, anchor_advantages, spread_values
from milepost.credit import assign
from milepost.credit_sections import CreditSection
from milepost.sections import RolloutSection
from milepost.types import Episode, EpisodeId, Group, Reward, Sampled, StopKind, StopReason, Task, Turn


def anchor(episodes, **settings):
    """`episodes`: (states, returns) or (states, returns, actions) each."""
    steps = [
        Steps("g", tuple(keys), tuple(more[0]) if more else ("",) * len(keys), np.array(returns, float), returns[-1])
        for keys, returns, *more in episodes
    ]
    return anchor_advantages(steps, CreditSection(rule="anchor", **{"baseline": "mean", **settings}))


def test_b2_returns_of_one_state_are_compared():
    # The first step of two episodes that succeed after 3 and 5 turns, and of two that fail; γ = .95: .95², .95⁴.
    episodes = [("s", [r]) for r in (0.9025, 0.81450625, 0.0, 0.0)]
    told = np.concatenate(anchor(episodes))
    assert told == pytest.approx([0.473248, 0.385255, -0.429252, -0.429252], abs=1e-6)
    z = np.concatenate(anchor(episodes, scale="group", delta=0.0))
    assert z == pytest.approx([1.099612, 0.895155, -0.997384, -0.997384], abs=1e-6)
    z = np.concatenate(anchor(episodes, scale="group", delta=0.0, std="sample"))
    assert z == pytest.approx([0.952292, 0.775227, -0.86376, -0.86376], abs=1e-6)
    # Against the mean of the other three: 4/3 of the above.
    assert np.concatenate(anchor(episodes, baseline="loo")) == pytest.approx(told * 4 / 3)


def episode(member, keys, texts=None, name="g"):
    texts = texts or ["x"] * len(keys)
    turns = tuple(
        Turn(np.zeros(1), Sampled(np.zeros(2), np.zeros(2), 1.0, ((0, 0),), "stop"), state_key=key, text=text)
        for key, text in zip(keys, texts)
    )
    return Episode(EpisodeId("train", 1, name, member), name, turns, StopReason(StopKind.TERMINATED, "ended"))


def told(paths, totals, per_turn=None, **settings):
    """Per turn, for each episode of one group."""
    group = Group("g", Task("g", "?"), tuple(episode(i, *path) for i, path in enumerate(paths)))
    rewards = [[Reward(total) for total in totals]]
    given = None if per_turn is None else {e.id: r for e, r in zip(group.episodes, per_turn)}
    section = CreditSection(rule="anchor", **settings)
    (credits,) = assign([group], rewards, section, RolloutSection(), turn_rewards=given)
    return [c.advantages[::2] for c in credits]


def test_b2_the_step_comes_on_top_of_the_episode():
    # All start in s; successes after 3 and 5 turns. A = ±.5, and .5 + .473248 = .973248 at the start.
    paths = [(["s", "a1", "a2"],), (["s", "b1", "b2", "b3", "b4"],), (["s", "c"],), (["s", "d"],)]
    first = [float(a[0]) for a in told(paths, [1, 1, 0, 0], baseline="mean", gamma=0.95)]
    assert first == pytest.approx([0.973248, 0.885255, -0.929252, -0.929252], abs=1e-6)
    half = [float(a[0]) for a in told(paths, [1, 1, 0, 0], baseline="mean", gamma=0.95, anchor_weight=0.5)]
    assert half == pytest.approx([0.736624, 0.692628, -0.714626, -0.714626], abs=1e-6)
    # A state that one episode alone has seen says nothing: there it stays at A.
    assert [a[1:].tolist() for a in told(paths, [1, 1, 0, 0], baseline="mean", gamma=0.95)] == [
        [0.5] * 2, [0.5] * 4, [-0.5], [-0.5]]  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.7, 3e5])
@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_a_step_told_0_in_a_group_that_differs_takes_that_groups_weight(scale, order):
    # In s: 3 against the mean of 1 and 5 is 0, weight 1; by way of p: 3 against 1 is 2, weight 2. (1·0 + 2·2)/3.
    # The others: (1·(1 − 4) + 2·(−2))/3; 5 against 2, alone by way of q. Tenths give 0 only up to rounding.
    episodes = [("ps", [3 * scale] * 2), ("ps", [scale] * 2), ("qs", [5 * scale] * 2)]
    told = anchor([episodes[i] for i in order], baseline="loo", history=1)
    second = [float(told[order.index(i)][1]) / scale for i in range(3)]
    assert second == pytest.approx([4 / 3, -7 / 3, 3.0])


def test_groups_without_a_difference_take_no_weight():
    # By way of p both are paid .1·3 and .3 (equal but for rounding): the comparison in s alone counts, .3 − mean(.3, .9).
    episodes = [("ps", [0.1 * 3] * 2), ("ps", [0.3] * 2), ("qs", [0.9] * 2)]
    told = anchor(episodes, baseline="loo", history=1)
    assert [float(t[1]) for t in told] == pytest.approx([-0.3, -0.3, 0.6])
    assert told[0][0] == told[1][0] == 0.0


def test_b2_each_episode_counts_once_however_often_it_comes_by():
    # The loser is in s four times, the winner once. By rows the mean would be 1/5; by episodes it is 1/2.
    assert [a.tolist() for a in anchor([("s", [1.0]), ("ssss", [0.0] * 4)])] == [[0.5], [-0.5] * 4]
    # Two visits with returns .9 and 1 are one value of .95 for the others; each visit keeps its own return.
    first, second = anchor([("ss", [0.9, 1.0]), ("s", [0.0])], baseline="loo")
    assert first == pytest.approx([0.9, 1.0]) and second == pytest.approx([-0.95])


@pytest.mark.parametrize("baseline", ["mean", "loo"])
def test_visits_differ_though_the_means_of_episodes_are_equal(baseline):
    # One comes by for 1 and for .5, the other for .75: both means are .75, and nothing is left to scale by.
    episodes = [("ss", [1.0, 0.5]), ("s", [0.75])]
    assert [t.tolist() for t in anchor(episodes, baseline=baseline)] == [[0.25, -0.25], [0.0]]
    assert [t.tolist() for t in anchor(episodes, scale="group")] == [[0.0, 0.0], [0.0]]
    assert anchor([("ss", [1.0, 0.5])], baseline=baseline)[0].tolist() == [0.0, 0.0]  # alone


def test_other_groups_and_unknown_states_are_compared_with_nothing():
    apart = [Steps(g, ("s",), ("",), np.array([r]), r) for g, r in (("g", 1.0), ("h", 0.0))]
    assert np.concatenate(anchor_advantages(apart, CreditSection(rule="anchor"))).tolist() == [0.0, 0.0]
    unknown = [Steps("g", (None,), ("",), np.array([r]), r) for r in (1.0, 0.0)]
    assert np.concatenate(anchor_advantages(unknown, CreditSection(rule="anchor"))).tolist() == [0.0, 0.0]


HGPO = [(("s0", "s1", "s2"), (0.81, 0.9, 1.0)), (("s0", "s3", "s2"), (0, 0, 0)), (("s0", "s1", "s2"), (0.4, 0.5, 0.6))]


@pytest.mark.parametrize(("weights", "a2", "c2"), [("k+1", 0.244444, -0.155556), ("k+2", 0.259259, -0.140741)])
def test_b3_history_weighs_groups_that_came_the_same_way(weights, a2, c2):
    a, b, c = anchor(HGPO, history=2, history_weights=weights)
    # a2: k = 0 against 1, 0, .6: .466667; k = 1 (s1, s2) and k = 2 (s0, s1, s2) against 1, .6: .2.
    assert a == pytest.approx([0.406667, 0.2, a2], abs=1e-6)
    assert c == pytest.approx([-0.003333, -0.2, c2], abs=1e-6)
    assert b == pytest.approx([-0.403333, 0.0, -0.533333], abs=1e-6)  # alone in s3; at s2 only k = 0 has company


def test_e7_what_was_tried_once_is_believed_less():
    # Of seven at one state six did a (two of them succeed) and one b, with luck: 1 − 3/7, and a third of it for c = 2.
    episodes = [("s", [r], ["a"]) for r in (0, 0, 1, 0, 0, 1)] + [("s", [1.0], ["b"])]
    assert float(anchor(episodes)[-1][0]) == pytest.approx(4 / 7)
    shrunk = anchor(episodes, shrinkage=2)
    assert float(shrunk[-1][0]) == pytest.approx(0.190476, abs=1e-6)
    assert [float(a[0]) for a in shrunk[:6]] == pytest.approx([-0.071429] * 6, abs=1e-6)


def test_shrinkage_says_that_it_compares_with_the_mean():
    """Those who did the same hold one's own episode: the mean that they are compared with must hold it, too."""
    assert CreditSection(rule="anchor").resolved_baseline == "loo"
    assert CreditSection(rule="anchor", shrinkage=2).resolved_baseline == "mean"
    with pytest.raises(ValueError, match=r'credit\.baseline = "loo" cannot go with credit\.shrinkage = 2'):
        CreditSection(rule="anchor", shrinkage=2, baseline="loo")


def test_b11_values_spread_from_the_goal_over_the_states_seen():
    seen = {"s0": ["s1", "s2"], "s1": ["goal"], "s2": []}
    assert spread_values(seen, {"goal": 1.0}, 0.95) == pytest.approx({"goal": 1, "s1": 0.95, "s0": 0.9025, "s2": 0})
    circle = {"a": ["b"], "b": ["a", "goal"]}
    assert spread_values(circle, {"goal": 1.0}, 1.0) == {"a": 1.0, "b": 1.0, "goal": 1.0}


def test_the_graph_blames_the_step_that_left_the_way():
    # One goes s0 → s1 → goal, the other s0 → s2 and fails: leaving s0 for s2 costs V(s0) = .9025, nothing else does.
    good, bad = anchor([(("s0", "s1"), (0.95, 1.0)), (("s0", "s2"), (0.0, 0.0))], anchor="graph", gamma=0.95)
    assert good == pytest.approx([0, 0]) and bad == pytest.approx([-0.9025, 0])
    # A failure that came by s1, from where another succeeded, made its mistake there.
    good, bad = anchor([(("s0", "s1"), (0.95, 1.0)), (("s0", "s1"), (0.0, 0.0))], anchor="graph", gamma=0.95)
    assert bad == pytest.approx([0, -0.95])


@pytest.mark.parametrize("per_turn", [None, [[0.3, 1.0], [0.3, -0.1]]])
def test_the_end_of_an_episode_is_worth_its_total_in_the_graph(per_turn):
    """A milestone of .3 on the first step of both, a cost of .1 on the last of the one that fails: totals 1.3 and .2.

    γ = .9: V(s1) = .9·1.3 = 1.17, V(s0) = 1.053, V(s2) = .9·.2 = .18. Going to s2 lost .9·.18 − 1.053 = −.891.
    """
    paths = [(["s0", "s1"],), (["s0", "s2"],)]
    good, bad = told(paths, [1.3, 0.2], per_turn, anchor="graph", gamma=0.9, baseline="mean")
    assert good == pytest.approx([0.55, 0.55]) and bad == pytest.approx([-0.55 - 0.891, -0.55])


def test_b15_anchors_remove_noise_only_after_the_ways_part():
    """Three binary actions, the second decides; both members share the state until then, and after it its outcome is
    known. Per-step gradient (mean, variance) over all 64 pairs, by our own code."""
    found: dict[tuple[str, int], list[float]] = {}
    for pair in itertools.product(itertools.product((0, 1), repeat=3), repeat=2):
        paths = [(["s0", "s1", f"s2/{actions[1]}"], [str(a) for a in actions]) for actions in pair]
        totals = [actions[1] for actions in pair]
        plain = [t - np.mean(totals) for t in totals]
        both = told(paths, totals, baseline="mean")
        for i, t in itertools.product(range(2), range(3)):
            score = pair[i][t] - 0.5
            found.setdefault(("episode", t), []).append(plain[i] * score)
            found.setdefault(("step", t), []).append((both[i][t] - plain[i]) * score)
            found.setdefault(("anchor", t), []).append(both[i][t] * score)
    facts = {key: (float(np.mean(v)), float(np.var(v))) for key, v in found.items()}
    assert facts == {
        ("episode", 0): (0, 0.03125), ("episode", 1): (0.125, 0.015625), ("episode", 2): (0, 0.03125),
        ("step", 0): (0, 0.03125), ("step", 1): (0.125, 0.015625), ("step", 2): (0, 0),
        ("anchor", 0): (0, 0.125), ("anchor", 1): (0.25, 0.0625), ("anchor", 2): (0, 0.03125),
    }  # fmt: skip


STATES = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)


@given(paths=st.lists(STATES, min_size=2, max_size=5), data=st.data())
@hypothesis_settings(max_examples=100, deadline=None)
def test_properties(paths, data):
    totals = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(paths), max_size=len(paths)))
    gamma = data.draw(st.sampled_from([1.0, 0.9]))
    returns = [discounted_returns([0.0] * (len(p) - 1) + [t], gamma) for p, t in zip(paths, totals)]
    episodes = list(zip(paths, returns))
    result = anchor(episodes, gamma=gamma)
    order = data.draw(st.permutations(range(len(paths))))
    again = anchor([episodes[i] for i in order], gamma=gamma)
    assert all(again[k] == pytest.approx(result[i]) for k, i in enumerate(order))  # order means nothing
    for i, path in enumerate(paths):
        for t, key in enumerate(path):
            others = [r for j, (p, r) in enumerate(zip(paths, returns)) if j != i and key in p]
            assert others or result[i][t] == 0.0  # alone
    for key in "abc":  # what a state tells its visitors cancels out, each episode counted once
        means = [np.mean([result[i][t] for t, k in enumerate(p) if k == key]) for i, p in enumerate(paths) if key in p]
        assert sum(means) == pytest.approx(0, abs=1e-9)
    if len(set(totals)) == 1 and gamma == 1.0:
        assert not any(np.any(r) for r in result)


def test_an_episode_out_of_the_baseline_is_compared_with_nobody():
    group = Group("g", Task("g", "?"), tuple(episode(i, ["s", f"p{i}"]) for i in range(3)))
    rewards = [[Reward(1.0), Reward(0.0), Reward.unscorable("timeout")]]
    (credits,) = assign([group], rewards, CreditSection(rule="anchor", baseline="mean"), RolloutSection())
    assert [c.advantages.tolist() for c in credits] == [[1, 1, 0.5, 0.5], [-1, -1, -0.5, -0.5], [0] * 4]
    assert [c.trained for c in credits] == [True, True, False]

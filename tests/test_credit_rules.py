"""GDPO, and how credit spreads over the turns of an episode."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.advantages import advantages, gdpo
from milepost.credit import assign
from milepost.credit_sections import CreditSection
from milepost.recipe import make_recipe
from milepost.reward_combine import Combination
from milepost.sections import RolloutSection
from milepost.types import Episode, EpisodeId, Group, RecipeError, Reward, Sampled, StopKind, StopReason, Task, Turn

DONE = StopReason(StopKind.TERMINATED, "ended")


def group_of(*lengths_per_turn, name="g", stops=None):
    episodes = []
    for i, lengths in enumerate(lengths_per_turn):
        turns = tuple(Turn(np.zeros(1), Sampled(np.zeros(n), np.zeros(n), 1.0, ((0, 0),), "stop")) for n in lengths)
        episodes.append(Episode(EpisodeId("train", 1, name, i), name, turns, (stops or {}).get(i, DONE)))
    return Group(name, Task(name, "?"), tuple(episodes))


def credit(group, rewards, section, **more):
    (credits,) = assign([group], [rewards], CreditSection(**section), RolloutSection(), **more)
    return credits


# ---- GDPO ------------------------------------------------------------------------------------------------------------


def scores(parts, weights=(1, 1), groups=None, **more):
    more = {"std": "sample", "delta": 0.0, "whiten": False, **more}
    return gdpo(parts, weights, groups or ["g"] * len(parts), **more)


def test_c1_gdpo_tells_apart_what_sums_cannot():
    half = 2**-0.5
    assert scores([[0, 0], [1, 0]]) == pytest.approx([-half, half])  # a part that is constant says nothing
    assert scores([[0, 0], [1, 1]]) == pytest.approx([-2 * half, 2 * half])
    assert scores([[1, 0], [0, 1], [0, 0], [1, 1]]) == pytest.approx([0, 0, -1.732051, 1.732051], abs=1e-6)
    weighted = scores([[1, 0], [0, 1], [0, 0], [1, 1]], (1, 0.1))
    assert weighted == pytest.approx([0.779423, -0.779423, -0.952628, 0.952628], abs=1e-6)


def test_c1_sums_cannot_tell_them_apart():
    """GRPO over plain sums of the two parts: one right and one both right get the same."""
    half, mixed = 2**-0.5, Combination("sum", {"correct": 1.0, "format": 1.0}, (), "correct", 1.0)

    def grpo(parts):
        totals = [mixed.total({"correct": right, "format": formed})[0] for right, formed in parts]
        return advantages(totals, ["g"] * len(totals), baseline="mean", scale="group", std="sample", delta=0.0)

    assert grpo([[0, 0], [1, 0]]) == pytest.approx([-half, half])
    assert grpo([[0, 0], [1, 1]]) == pytest.approx([-half, half])
    assert grpo([[1, 0], [0, 1], [0, 0], [1, 1]]) == pytest.approx([0, 0, -1.224745, 1.224745], abs=1e-6)


def test_c1_whitening_puts_both_groups_on_one_scale():
    both = scores([[0, 0], [1, 0], [0, 0], [1, 1]], groups=["a", "a", "b", "b"], whiten=True)
    assert both == pytest.approx([-0.547723, 0.547723, -1.095445, 1.095445], abs=1e-6)


@given(parts=st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=2, max_size=8), factor=st.floats(0.01, 100))
@hypothesis_settings(max_examples=80, deadline=None)
def test_weights_come_after_normalisation(parts, factor):
    """So that the size of a part has no say, and a shift has none either."""
    table = np.array(parts, float)
    scaled = table * [factor, 1, 1] + [0, 5, 0]
    assert scores(scaled, (1, 0.5, 2)) == pytest.approx(scores(table, (1, 0.5, 2)), abs=1e-6)


def test_noise_in_a_constant_part_is_not_blown_up():
    parts = [[1.0, 0.1 + 0.2], [0.0, 0.3]]
    assert scores(parts, delta=1e-6) == pytest.approx(scores([[1.0, 0.3], [0.0, 0.3]], delta=1e-6), abs=0)


def test_whitening_without_any_difference_gives_exactly_zero():
    assert scores([[1, 2]] * 4, groups=["a", "a", "b", "b"], whiten=True, delta=1e-6).tolist() == [0, 0, 0, 0]
    assert scores([[1, 2]], whiten=True).tolist() == [0]


def test_gdpo_through_assign_leaves_out_what_cannot_be_scored_and_marks_silent_groups():
    fault = {2: StopReason(StopKind.FAULT, "crash")}
    told, flat = group_of([2], [3], [1], stops=fault), group_of([1], [1], name="flat")
    rewards = [Reward(1, {"a": 1, "b": 0}), Reward(0, {"a": 0, "b": 0}), Reward.unscorable("fault: crash")]
    same = [Reward(1, {"a": 1, "b": 1})] * 2
    credits = assign([told, flat], [rewards, same], CreditSection(), RolloutSection(), part_weights={"a": 1.0, "b": 0.5})
    first = credits[0]
    assert [c.advantages.tolist() for c in first[:2]] == [
        [pytest.approx(2**0.5, abs=1e-4)] * 2,
        [pytest.approx(-(2**0.5), abs=1e-4)] * 3,
    ]
    assert (first[2].trained, first[2].in_baseline, first[2].advantages.tolist()) == (False, False, [0])
    assert [c.constant_group for c in first[:2]] == [False, False]
    assert [(c.constant_group, c.advantages.tolist()) for c in credits[1]] == [(True, [0]), (True, [0])]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"preset": "grpo"}, "credit.scale"),
        ({"credit": {"baseline": "loo"}}, "credit.baseline"),
        ({"credit": {"rule": "turn"}}, "credit.rule"),
        ({"kl": {"beta": 0.1, "estimator": "k1", "place": "reward"}}, "kl.place"),
        ({"rollout": {"truncated": "soft", "soft_buffer": 9}}, "rollout.truncated"),
    ],
)
def test_settings_that_gdpo_would_drop_are_refused(changes, key):
    with pytest.raises(RecipeError, match=f"^{key}"):
        make_recipe({"reward": {"combine": "gdpo"}, **changes})
    make_recipe({"reward": {"combine": "gdpo"}, "credit": {"std": "sample", "delta": 1e-4}})  # these it uses


# ---- rules -----------------------------------------------------------------------------------------------------------


def test_e9_discounted_credit_fades_towards_the_first_turn():
    group = group_of([1] * 5, [2])
    ours, theirs = credit(group, [Reward(1), Reward(0)], {"rule": "discounted", "gamma": 0.95, "baseline": "none"})
    assert ours.advantages == pytest.approx([0.814506, 0.857375, 0.9025, 0.95, 1], abs=1e-6)
    assert theirs.advantages.tolist() == [0, 0]
    ours, theirs = credit(group, [Reward(1), Reward(0)], {"rule": "discounted", "gamma": 0.5})
    assert ours.advantages.tolist() == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]
    assert theirs.advantages.tolist() == [-1, -1]


def test_a_discount_is_no_length_normalisation():
    """Every token of a turn has the same factor, however many there are."""
    ours, _ = credit(group_of([3, 2], [1]), [Reward(1), Reward(0)], {"rule": "discounted", "gamma": 0.5})
    assert ours.advantages.tolist() == [0.5] * 3 + [1] * 2


def test_turn_returns_minus_the_groups_baseline():
    group = group_of([1, 1, 2], [1, 1])
    turns = {group.episodes[0].id: [0.2, 0, 1], group.episodes[1].id: [0.2, 0]}
    ours, theirs = credit(group, [Reward(1.2), Reward(0.2)], {"rule": "turn"}, turn_rewards=turns)
    # returns 1.2, 1, 1 and .2, 0; the baseline of each is the other's whole return
    assert ours.advantages == pytest.approx([1.0, 0.8, 0.8, 0.8])
    assert theirs.advantages == pytest.approx([-1.0, -1.2])
    ours, _ = credit(group, [Reward(1.2), Reward(0.2)], {"rule": "turn", "gamma": 0.5}, turn_rewards=turns)
    assert ours.advantages == pytest.approx([0.45 - 0.2, 0.5 - 0.2, 0.8, 0.8])


def test_without_turn_rewards_the_total_comes_last_and_what_is_added_comes_with_it():
    group = group_of([1, 1], [1])
    ours, theirs = credit(group, [Reward(1), Reward(0)], {"rule": "turn", "gamma": 0.5})
    assert ours.advantages == pytest.approx([0.5, 1])
    assert theirs.advantages == pytest.approx([-0.5])
    penalty = {group.episodes[0].id: 0.5}
    (ours, _), = assign([group], [[Reward(1), Reward(0)]], CreditSection(rule="turn"), RolloutSection(), penalty,
                        turn_rewards={group.episodes[0].id: [0.25, 0.75]})  # fmt: skip
    assert ours.advantages == pytest.approx([0.5, 0.25])


def test_turn_credit_of_lone_and_equal_members_is_zero():
    alone = group_of([1, 1])
    (only,) = credit(alone, [Reward(1)], {"rule": "turn"}, turn_rewards={alone.episodes[0].id: [0.3, 0.7]})
    assert only.advantages.tolist() == [0, 0] and only.constant_group
    same = credit(group_of([1], [1]), [Reward(1), Reward(1)], {"rule": "turn"})
    assert [(c.advantages.tolist(), c.constant_group) for c in same] == [([0], True)] * 2


def test_turn_rewards_must_match_the_turns():
    group = group_of([1, 1], [1])
    with pytest.raises(ValueError, match="has 2 turns but 1 turn rewards"):
        credit(group, [Reward(1), Reward(0)], {"rule": "turn"}, turn_rewards={group.episodes[0].id: [1.0]})


# A policy whose only choice is when to stop: after turns 1 and 2 it goes on with chance p, and a third turn is the last.
# Rewards of the turns by their number. "second": stopping after the second turn pays, and nothing else does; the expected
# reward is p(1 − p), with its maximum at p = ½. "same": each turn pays ½ and the last one what is missing from 2, so that
# all ways of stopping are worth the same.
PAYS = {
    "second": {1: [0.0], 2: [0.0, 1.0], 3: [0.0, 0.0, 0.0]},
    "same": {1: [2.0], 2: [0.5, 1.5], 3: [0.5, 0.5, 1.0]},
}


def returns_by_index(rewards):
    """The first biased form: G_t minus the mean of G_t over those who had a turn t."""
    returns = [np.cumsum(r[::-1])[::-1] for r in rewards]
    return [[g[t] - np.mean([h[t] for h in returns if len(h) > t]) for t in range(len(g))] for g in returns]


def rewards_by_index(rewards):
    """The second: each turn's reward minus its mean over those who had that turn, then summed from t on."""
    centred = [[r[t] - np.mean([q[t] for q in rewards if len(q) > t]) for t in range(len(r))] for r in rewards]
    return [np.cumsum(c[::-1])[::-1] for c in centred]


def ours(baseline):
    def form(rewards):
        group = group_of(*[[1] * len(r) for r in rewards])
        turns = {e.id: r for e, r in zip(group.episodes, rewards)}
        section = {"rule": "turn", "baseline": baseline}
        credits = credit(group, [Reward(sum(r)) for r in rewards], section, turn_rewards=turns)
        return [c.advantages for c in credits]

    return form


def push(form, pays, p, members=3):
    """Expected Σ_t A_t·∂ log π/∂θ of one member by exact enumeration of a group; p = 1/(1 + e^−θ)."""
    chance = {1: 1 - p, 2: p * (1 - p), 3: p * p}
    result = 0.0
    for lengths in itertools.product((1, 2, 3), repeat=members):
        told = form([pays[n] for n in lengths])
        for n, advantage in zip(lengths, told):
            score = [1 - p] * (n - 1) + [-p] * (n < 3)
            result += np.prod([chance[m] for m in lengths]) * sum(a * s for a, s in zip(advantage, score)) / members
    return result


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
def test_case_a28_no_baseline_by_turn_number_which_the_choice_to_stop_would_move(p):
    slope = p * (1 - p)  # dp/dθ
    # d/dp of p(1 − p), and of 2: the true gradients; a mean over all three holds one third of oneself.
    for world, truth in (("second", slope * (1 - 2 * p)), ("same", 0.0)):
        for baseline, share in (("loo", 1.0), ("none", 1.0), ("mean", 2 / 3)):
            assert push(ours(baseline), PAYS[world], p) == pytest.approx(share * truth, abs=1e-12), (world, baseline)
    assert abs(push(rewards_by_index, PAYS["same"], p)) > 0.1  # it has the policy stop early
    for biased in (returns_by_index, rewards_by_index):
        found, share = push(biased, PAYS["second"], p), push(ours("mean"), PAYS["second"], p)
        assert abs(found - share) > 0.005  # not in proportion: at the best policy, p = ½, it does not vanish


def test_case_a28_by_hand():
    """Two members, p = ½, "second": the true gradient is ¼·(1 − 2p) = 0, ½ of it with a mean that holds oneself."""
    # By returns per number, turn 1: A = (R − R')/2, R = 1 with chance ¼ for exactly those who go on and then stop:
    # E[A·(go − ½)] = ½·(¼·½) = 1/16 from turn 1. Turn 2, reached with chance ½ and with company in half of these cases:
    # A = (R − R')/2, E[A·(go − ½)] = ½·(½·−½) = −1/8; times ¼: −1/32.
    assert push(returns_by_index, PAYS["second"], 0.5, 2) == pytest.approx(1 / 16 - 1 / 32)
    # By rewards per number turn 1 sees turn 2's reward without its mean: nothing of it is left.
    assert push(rewards_by_index, PAYS["second"], 0.5, 2) == pytest.approx(-1 / 32)
    assert push(ours("loo"), PAYS["second"], 0.5, 2) == pytest.approx(0)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"gamma": 0.9}, 'credit.gamma = 0.9 does nothing while credit.rule = "episode"'),
        ({"rule": "discounted"}, 'is the rule "episode"; set credit.gamma below 1'),
        ({"rule": "turn", "scale": "group"}, 'credit.rule = "turn" is defined without a std'),
        ({"rule": "turn", "gamma": 0}, "credit.gamma = 0"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(section, sentence):
    with pytest.raises(RecipeError) as error:
        make_recipe({"credit": section})
    assert sentence in str(error.value)

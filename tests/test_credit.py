"""Advantages, truncation rules and signal reports by value; exact policy gradients on enumerable policies."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.advantages import advantages, discounted_returns, is_constant, overlong_penalty, standard_deviation
from milepost.batch_signal import reward_metrics, signal_report
from milepost.credit import assign
from milepost.credit_sections import CreditSection
from milepost.formula import describe
from milepost.recipe import make_recipe
from milepost.sections import OTHER_LIMITS, OWN_BUDGETS, RolloutSection
from milepost.types import Credit, Episode, EpisodeId, Group, RecipeError, Reward, Sampled, StopKind, StopReason, Task, Turn

NONE = {"baseline": "mean", "scale": "none"}
LOO = {"baseline": "loo", "scale": "none"}
POPULATION = {"baseline": "mean", "scale": "group", "std": "population", "delta": 0.0}
SAMPLE = {"baseline": "mean", "scale": "group", "std": "sample", "delta": 0.0}
BATCH = {"baseline": "mean", "scale": "batch", "std": "population", "delta": 0.0}


def one_group(rewards, **how):
    return advantages(rewards, ["g"] * len(rewards), **how)


def close(got, expected, tolerance=5e-7):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


# ---- values ----------------------------------------------------------------------------------------------------------


def test_one_success_in_four():  # block A1, case A5
    close(one_group([1, 0, 0, 0], **POPULATION), [1.732051, -0.57735, -0.57735, -0.57735])
    close(one_group([1, 0, 0, 0], **SAMPLE), [1.5, -0.5, -0.5, -0.5])
    close(one_group([1, 0, 0, 0], **{**SAMPLE, "delta": 1e-4}), [1.4997, -0.4999, -0.4999, -0.4999], 1e-6)
    close(one_group([1, 0, 0, 0], **{**SAMPLE, "delta": 1e-6}), [1.499997, -0.499999, -0.499999, -0.499999])
    close(one_group([1, 0, 0, 0], **NONE), [0.75, -0.25, -0.25, -0.25])  # block A8
    close(one_group([1, 0, 0, 0], **LOO), [1.0, -1 / 3, -1 / 3, -1 / 3])
    close(one_group([1, 1, 0], **NONE), [1 / 3, 1 / 3, -2 / 3])


def test_pairs():  # case A8, block A20
    close(one_group([1, 0], **NONE), [0.5, -0.5])
    close(one_group([1, 0], **LOO), [1, -1])
    close(one_group([1, 0], **POPULATION), [1, -1])
    close(one_group([1, 0], **SAMPLE), [0.707107, -0.707107])


def test_tutorial_groups():
    close(one_group([0, 1, 1, 0], **POPULATION), [-1, 1, 1, -1])
    eight = [1, 0.8, 0.8, 0.5, 0.5, 0.5, 0.2, 0]
    assert standard_deviation(np.array(eight), "population") == pytest.approx(0.30797, abs=5e-6)
    assert standard_deviation(np.array(eight), "sample") == pytest.approx(0.32923, abs=5e-6)
    close(one_group(eight, **POPULATION), [1.5018, 0.8524, 0.8524, -0.1218, -0.1218, -0.1218, -1.0959, -1.7453], 5e-5)
    close(one_group(eight, **SAMPLE), [1.4048, 0.7973, 0.7973, -0.1139, -0.1139, -0.1139, -1.0251, -1.6326], 5e-5)
    close(one_group(eight, **LOO), [0.5286, 0.3, 0.3, -0.0429, -0.0429, -0.0429, -0.3857, -0.6143], 5e-5)


@pytest.mark.parametrize("how", [NONE, LOO, POPULATION, SAMPLE, BATCH])
def test_adding_ten_to_all_rewards_changes_nothing(how):
    eight = np.array([1, 0.8, 0.8, 0.5, 0.5, 0.5, 0.2, 0])
    close(one_group(eight + 10, **how), one_group(eight, **how), 1e-12)


def test_scaling_rewards_scales_advantages_only_without_std():
    eight = np.array([1, 0.8, 0.8, 0.5, 0.5, 0.5, 0.2, 0])
    close(one_group(10 * eight, **LOO), 10 * one_group(eight, **LOO), 1e-12)
    close(one_group(10 * eight, **POPULATION), one_group(eight, **POPULATION), 1e-12)


@pytest.mark.parametrize(
    ("successes", "loo", "population", "sample", "ratio"),
    [  # block A9
        (1, (1.0, -0.142857), (2.645751, -0.377964), (2.474874, -0.353553), 2.6458),
        (2, (0.857143, -0.285714), (1.732051, -0.57735), (1.620185, -0.540062), 2.0207),
        (3, (0.714286, -0.428571), (1.290994, -0.774597), (1.207615, -0.724569), 1.8074),
        (4, (0.571429, -0.571429), (1.0, -1.0), (0.935414, -0.935414), 1.75),
        (5, (0.428571, -0.714286), (0.774597, -1.290994), (0.724569, -1.207615), 1.8074),
        (6, (0.285714, -0.857143), (0.57735, -1.732051), (0.540062, -1.620185), 2.0207),
        (7, (0.142857, -1.0), (0.377964, -2.645751), (0.353553, -2.474874), 2.6458),
    ],
)
def test_difficulty_weight_of_std(successes, loo, population, sample, ratio):
    rewards = [1.0] * successes + [0.0] * (8 - successes)
    for how, expected in ((LOO, loo), (POPULATION, population), (SAMPLE, sample)):
        close(one_group(rewards, **how)[[0, -1]], expected)
    assert one_group(rewards, **POPULATION)[0] / one_group(rewards, **LOO)[0] == pytest.approx(ratio, abs=5e-5)


@pytest.mark.parametrize(
    ("p", "none", "loo", "population", "sample"),
    [  # block A10
        (0.01, 0.875, 1, 2.6089, 2.4404), (0.05, 0.875, 1, 2.4731, 2.3133), (0.1, 0.875, 1, 2.3277, 2.1774),
        (0.25, 0.875, 1, 2.0261, 1.8953), (0.5, 0.875, 1, 1.8557, 1.7358), (0.9, 0.875, 1, 2.3277, 2.1774),
        (0.99, 0.875, 1, 2.6089, 2.4404),
    ],
)  # fmt: skip
def test_implied_objective_of_binary_rewards(p, none, loo, population, sample):
    for how, expected in ((NONE, none), (LOO, loo), (POPULATION, population), (SAMPLE, sample)):
        total = 0.0
        for k in range(9):
            a = one_group([1.0] * k + [0.0] * (8 - k), **how)
            score = np.array([1 / p] * k + [-1 / (1 - p)] * (8 - k))  # ∇log π(success or failure) per ∇p
            total += math.comb(8, k) * p**k * (1 - p) ** (8 - k) * float((a * score).mean())
        assert total == pytest.approx(expected, abs=5e-5)


def test_batch_scale_uses_all_rewards_and_the_group_mean():
    # Groups [1,0] and [1,1]: rewards 1,0,1,1 have population std √3/4 = .433013, sample std .5.
    ids, rewards = ["a", "a", "b", "b"], [1, 0, 1, 1]
    close(advantages(rewards, ids, **BATCH), [1.154701, -1.154701, 0, 0])
    close(advantages(rewards, ids, **{**BATCH, "std": "sample"}), [1, -1, 0, 0])
    close(advantages(rewards, ids, **{**BATCH, "baseline": "loo", "std": "sample"}), [2, -2, 0, 0])


def test_format_bonus_under_group_scale():  # block C2
    close(one_group([0.1, 0, 0, 0], **SAMPLE), [1.5, -0.5, -0.5, -0.5])
    close(one_group([0.1, 0, 0, 0], **NONE), [0.075, -0.025, -0.025, -0.025])
    close(one_group([1.1, 0.1, 0.1, 0.1], **SAMPLE), [1.5, -0.5, -0.5, -0.5])


def test_non_dyadic_rewards_do_not_spike():  # case A6
    rewards = np.array([0] + [0.95] * 7, np.float32)
    close(one_group(rewards, **SAMPLE), [-2.474874] + [0.353553] * 7)
    close(one_group(rewards, **LOO), [-0.95] + [0.95 / 7] * 7, 1e-6)


@pytest.mark.parametrize("how", [POPULATION, SAMPLE, BATCH])
def test_a_large_common_offset_costs_no_precision(how):  # case A6: mean(x²) − mean(x)² would lose all of it
    eight = np.array([1, 0.75, 0.75, 0.5, 0.5, 0.5, 0.25, 0])  # exact in binary, with the offset too
    close(one_group(eight + 2.0**24, **how), one_group(eight, **how), 1e-9)


def test_loo_with_group_scale_is_refused():  # case A5
    with pytest.raises(RecipeError, match='scale = "none"'):
        one_group([1, 0, 0, 0], baseline="loo", scale="group")
    with pytest.raises(RecipeError, match=r"credit\.std"):
        one_group([1, 0], baseline="mean", scale="group", std="unbiased")
    with pytest.raises(RecipeError, match="one group id per reward"):
        advantages([1, 0], ["a"])


# ---- edges -----------------------------------------------------------------------------------------------------------

CENTRED = [
    {"baseline": b, "scale": s, "std": d, "delta": delta}
    for b, s, d, delta in itertools.product(
        ("loo", "mean"), ("none", "group", "batch"), ("population", "sample"), (0.0, 1e-8)
    )
    if (b, s) != ("loo", "group")
]


@pytest.mark.parametrize("how", CENTRED)
def test_constant_groups_are_exactly_zero(how):
    rng = np.random.default_rng(0)
    for value, n in zip(rng.normal(size=60) * 10.0 ** rng.integers(-6, 6, 60), rng.integers(1, 12, 60)):
        assert not one_group(np.full(n, np.float32(value)), **how).any()
    # A group whose rewards differ by rounding only, beside one that does not.
    noisy = [0.1 + 0.2, 0.3, 0.3]
    assert not advantages([*noisy, 1, 0], [1, 1, 1, 2, 2], **how)[:3].any()


@pytest.mark.parametrize("how", CENTRED)
def test_groups_are_formed_by_id(how):  # cases A9, A10
    assert not advantages([1, 1, 0, 0], [1, 1, 2, 2], **how).any()
    assert not advantages([1, 0, 1, 0], [1, 2, 1, 2], **how).any()


@pytest.mark.parametrize("how", CENTRED)
def test_group_of_one_is_zero(how):  # block E6, case A3
    assert advantages([1.0, 0.3, 1, 0], ["a", "b", "c", "c"], **how)[:2].tolist() == [0, 0]


def test_without_baseline_the_raw_reward_is_the_advantage():
    assert advantages([1, 1, 0.3], [1, 1, 2], baseline="none", scale="none").tolist() == [1, 1, 0.3]
    assert advantages([1, 1], [1, 1], baseline="none", scale="group").tolist() == [0, 0]
    close(advantages([3, 1], [1, 1], baseline="none", scale="group", delta=0), [3, 1])
    close(advantages([3, 3, 1, 1], [1, 1, 2, 2], baseline="none", scale="batch", delta=0), [3, 3, 1, 1])


def test_unscorable_rewards_leave_the_statistics():
    assert one_group([None, float("nan"), None], **LOO).tolist() == [0, 0, 0]
    close(one_group([1, None, 0, float("nan")], **LOO), [1, 0, -1, 0])
    close(one_group([1, 0, 5], in_baseline=[True, True, False], **LOO), [1, -1, 0])
    assert one_group([1, None], **SAMPLE).tolist() == [0, 0]


def test_uneven_groups():
    close(advantages([1, 0, 1, 0, 0], [1, 1, 2, 2, 2], **LOO), [1, -1, 1, -0.5, -0.5])


rewards_of_groups = st.lists(
    st.lists(st.one_of(st.none(), st.floats(-100, 100, allow_subnormal=False)), min_size=1, max_size=9),
    min_size=1,
    max_size=5,
)


@given(rewards_of_groups, st.sampled_from(CENTRED), st.randoms(use_true_random=False))
def test_properties_of_centred_advantages(groups, how, random):
    rows = [(g, r) for g, members in enumerate(groups) for r in members]
    a = advantages([r for _, r in rows], [g for g, _ in rows], **how)
    assert np.isfinite(a).all()
    for g, members in enumerate(groups):
        mine = a[[h == g for h, _ in rows]]
        n = sum(r is not None for r in members)
        assert abs(mine.sum()) <= 1e-9 * max(1, np.abs(mine).max())  # sums to 0
        assert all(x == 0 for x, r in zip(mine, members) if r is None)
        if how["scale"] == "group" and n > 1:
            bound = math.sqrt(n - 1) if how["std"] == "population" else (n - 1) / math.sqrt(n)
            assert np.abs(mine).max() <= bound * (1 + 1e-9)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = advantages([rows[i][1] for i in order], [rows[i][0] for i in order], **how)
    np.testing.assert_allclose(shuffled, a[order], rtol=1e-6, atol=1e-9)


# ---- the exact policy gradient -----------------------------------------------------------------------------------------

LOGITS, OUTCOMES = np.array([0.3, -0.5, 0.9, 0.1]), np.array([0.0, 1.0, 0.4, 0.4])
POLICY = np.exp(LOGITS) / np.exp(LOGITS).sum()


def expected_update(num_prompts, size, **how):
    """E[(1/N) Σ_i A_i ∇log π(x_i)] over all batches of prompts that share one softmax policy, by enumeration."""
    total = np.zeros(4)
    ids = np.repeat(np.arange(num_prompts), size)
    for draw in itertools.product(range(4), repeat=num_prompts * size):
        index = np.array(draw)
        a = advantages(OUTCOMES[index], ids, **how)
        score = np.eye(4)[index] - POLICY
        total += POLICY[index].prod() * (a[:, None] * score).mean(0)
    return total


def enumerated(num_prompts, size, divisor):
    """The same expectation with the definition written out: (r − group mean)/divisor(group rewards, batch rewards)."""
    total = np.zeros(4)
    for draw in itertools.product(range(4), repeat=num_prompts * size):
        r = OUTCOMES[list(draw)].reshape(num_prompts, size)
        d = divisor(r)
        a = np.divide(r - r.mean(1, keepdims=True), d, out=np.zeros_like(r), where=np.broadcast_to(d, r.shape) > 1e-12)
        total += POLICY[list(draw)].prod() * (a.reshape(-1, 1) * (np.eye(4)[list(draw)] - POLICY)).mean(0)
    return total


@pytest.mark.parametrize("size", [2, 3, 4])
def test_leave_one_out_without_scale_is_the_policy_gradient(size):
    analytic = POLICY * (OUTCOMES - POLICY @ OUTCOMES)  # ∇_logits Σ_x π(x) r(x)
    close(expected_update(1, size, **LOO), analytic, 1e-12)
    close(expected_update(1, size, baseline="none", scale="none"), analytic, 1e-12)
    close(expected_update(1, size, **NONE), analytic * (size - 1) / size, 1e-12)


def test_scaled_updates_equal_their_enumerated_expectation():
    close(expected_update(1, 4, **POPULATION), enumerated(1, 4, lambda r: r.std(1, keepdims=True)), 1e-12)
    close(expected_update(1, 3, **SAMPLE), enumerated(1, 3, lambda r: r.std(1, ddof=1, keepdims=True)), 1e-12)
    close(expected_update(2, 2, **BATCH), enumerated(2, 2, lambda r: r.std()), 1e-12)
    # Neither is a multiple of the policy gradient here: scaling by a group's own std changes the direction.
    analytic = POLICY * (OUTCOMES - POLICY @ OUTCOMES)
    scaled = expected_update(1, 4, **POPULATION)
    cosine = scaled @ analytic / np.linalg.norm(scaled) / np.linalg.norm(analytic)
    assert 0.9 < cosine < 0.9999


def bandit(size, how, low=0.1, p_high=0.5):
    """Exact gradient on the high arm's logit. The high arm pays 1 with probability ¼, the low arm always `low`."""
    total = 0.0
    for num_high in range(size + 1):
        for paid in range(num_high + 1):
            chance = math.comb(size, num_high) * p_high**num_high * (1 - p_high) ** (size - num_high)
            chance *= math.comb(num_high, paid) * 0.25**paid * 0.75 ** (num_high - paid)
            a = one_group([1.0] * paid + [0.0] * (num_high - paid) + [low] * (size - num_high), **how)
            score = np.array([1 - p_high] * num_high + [-p_high] * (size - num_high))
            total += chance * float((a * score).mean())
    return total


@pytest.mark.parametrize(
    ("size", "low", "p_high", "none", "group"),
    [  # block E1
        (4, 0.1, 0.5, 0.028125, -0.138421), (4, 0.1, 0.1, 0.010125, -0.071159), (4, 0.1, 0.02, 0.002205, -0.016669),
        (8, 0.1, 0.5, 0.032812, -0.048561), (8, 0.1, 0.1, 0.011813, -0.084396), (8, 0.1, 0.02, 0.002572, -0.02423),
        (16, 0.1, 0.5, 0.035156, 0.052217), (16, 0.1, 0.1, 0.012656, -0.072567), (16, 0.1, 0.02, 0.002756, -0.032078),
        (4, 0.15, 0.5, 0.01875, -0.14463), (8, 0.15, 0.5, 0.021875, -0.066667), (16, 0.15, 0.5, 0.023438, 0.02005),
        (4, 0.2, 0.5, 0.009375, -0.151245), (8, 0.2, 0.5, 0.010938, -0.08572), (16, 0.2, 0.5, 0.011719, -0.013036),
    ],
)  # fmt: skip
def test_bandit_flips_sign_under_group_scale_only(size, low, p_high, none, group):
    assert bandit(size, NONE, low, p_high) == pytest.approx(none, abs=1e-6)
    assert bandit(size, POPULATION, low, p_high) == pytest.approx(group, abs=1e-6)
    assert bandit(size, LOO, low, p_high) == pytest.approx(none * size / (size - 1), abs=2e-6)


def test_bandit_under_batch_scale_keeps_the_sign():  # block E1b: one scalar for all groups, G = 8
    rng = np.random.default_rng(0)
    high = rng.random(8 * 4000) < 0.5
    rewards = np.where(high, rng.random(len(high)) < 0.25, 0.1)
    a = advantages(rewards, np.repeat(np.arange(4000), 8).tolist(), **BATCH)
    centred = advantages(rewards, np.repeat(np.arange(4000), 8).tolist(), **NONE)
    divisor = centred[0] / a[0]
    assert divisor == pytest.approx(0.315238, abs=0.01)
    assert (a * (high - 0.5)).mean() == pytest.approx(0.104088, abs=0.015)
    np.testing.assert_allclose(a * divisor, centred, atol=1e-12)


# ---- overlong penalty, returns ----------------------------------------------------------------------------------------


def test_overlong_penalty():  # blocks A5, C8; case C6
    expected = {
        16384: 0,
        16385: -0.000244140625,
        17408: -0.25,
        18000: -0.39453125,
        18432: -0.5,
        20480: -1,
        20481: -1,
        30000: -1,
    }
    assert {n: overlong_penalty(n, 20480, 4096) for n in expected} == expected
    assert [overlong_penalty(n, 100, 20) for n in (0, 80, 90, 100, 130)] == [0, 0, -0.5, -1, -1]
    assert 1 + overlong_penalty(18000, 20480, 4096) == 0.60546875
    for buffer in (120, 0, -1):
        with pytest.raises(RecipeError, match="soft_buffer"):
            overlong_penalty(50, 100, buffer)


def test_discounted_returns():
    close(discounted_returns([0, 0, 1], 0.95), [0.9025, 0.95, 1.0], 1e-12)  # block B1
    for steps, expected in ((10, 0.904382), (100, 0.366032)):
        assert discounted_returns([0] * steps + [1], 0.99)[0] == pytest.approx(expected, abs=5e-7)
    assert discounted_returns([], 0.9).tolist() == []


# ---- assign ------------------------------------------------------------------------------------------------------------

DONE = StopReason(StopKind.TERMINATED, "end_of_turn")
FAULT = StopReason(StopKind.FAULT, "engine")


def cut(reason):
    return StopReason(StopKind.TRUNCATED, reason)


def make_group(name, members):
    """members: (reward or cause, stop, tokens per turn)."""
    episodes, rewards = [], []
    for k, (reward, stop, lengths) in enumerate(members):
        turns = tuple(Turn([1], Sampled(np.zeros(n), np.zeros(n), 1.0, ((0, 0),), "stop")) for n in lengths)
        episodes.append(Episode(EpisodeId("train", 0, name, k), name, turns, stop))
        rewards.append(Reward.unscorable(reward) if isinstance(reward, str) else Reward(reward))
    return Group(name, Task(name, "?"), tuple(episodes)), rewards


def run(*groups, credit=None, **rollout):
    made = [make_group(name, members) for name, members in groups]
    section = CreditSection(**(credit or {}))
    credits = assign([g for g, _ in made], [r for _, r in made], section, RolloutSection(**rollout))
    return [g for g, _ in made], [r for _, r in made], credits


def first(credits: list[list[Credit]]):
    return [[float(c.advantages[0]) for c in row] for row in credits]


EIGHT = [(1, DONE, [3])] * 2 + [(0, DONE, [3])] * 5 + [(0, cut("tokens"), [3])]  # block C8
SCALED = {"baseline": "mean", "scale": "group", "delta": 0}


def test_truncated_episode_stays_in_the_baseline_and_out_of_the_loss():
    _, _, credits = run(("g", EIGHT), credit={"baseline": "mean", "scale": "none"})
    close(first(credits)[0], [0.75] * 2 + [-0.25] * 5 + [0])
    assert [c.trained for c in credits[0]] == [True] * 7 + [False]
    assert all(c.in_baseline for c in credits[0])


def test_truncated_episode_scored_dropped_or_penalised():
    close(first(run(("g", EIGHT), credit=SCALED, truncated="score")[2])[0], [1.732051] * 2 + [-0.57735] * 6)
    dropped = run(("g", EIGHT), credit=SCALED, truncated="drop")[2]
    close(first(dropped)[0], [1.581139] * 2 + [-0.632456] * 5 + [0])
    assert (dropped[0][7].trained, dropped[0][7].in_baseline) == (False, False)
    members = [(1, DONE, [80]), (1, DONE, [90]), (1, cut("tokens"), [100])]  # totals 1, .5, 0
    soft = run(("g", members), truncated="soft", max_new_tokens=100, soft_buffer=20)[2]
    close(first(soft)[0], [0.75, 0, -0.75])
    assert all(c.trained and c.in_baseline for c in soft[0])


@pytest.mark.parametrize("reason", ["tokens", "context", "time", "something_new"])
def test_budgets_outside_the_policy_follow_the_rule(reason):
    _, _, credits = run(("g", [(1, DONE, [2]), (0, cut(reason), [2])]))
    assert [(c.trained, c.in_baseline) for c in credits[0]] == [(True, True), (False, True)]


@pytest.mark.parametrize("reason", ["turns", "tool_calls", "invalid_actions", "tokens", "context", "time", "environment"])
@pytest.mark.parametrize(
    ("rule", "told", "place"),
    # Rewards 1, 0 and, cut short, 0; the mean of the other two is 0, ½ and ½. Without the last one it is 0 and 1.
    [("score", [1, -0.5, -0.5], (True, True)), ("keep_baseline", [1, -0.5, 0], (False, True)),
     ("drop", [1, -1, 0], (False, False))],
)  # fmt: skip
def test_each_reason_has_a_rule_of_its_own(reason, rule, told, place):
    def ended(by):
        return run(("g", [(1, DONE, [2]), (0, DONE, [2]), (0, cut(by), [2])]), stop_rules={reason: rule})[2][0]

    credits = ended(reason)
    assert first([credits]) == [told] and (credits[2].trained, credits[2].in_baseline) == place
    for other in {*OWN_BUDGETS, *OTHER_LIMITS} - {reason}:  # the other ones keep their own
        assert (ended(other)[2].trained, ended(other)[2].in_baseline) == (other in OWN_BUDGETS, True)


def test_a_single_reason_goes_before_the_rule_for_all():
    members = [(1, DONE, [2]), (0, cut("tokens"), [2]), (0, cut("context"), [2]), (0, cut("turns"), [2])]
    rules = {"truncated": "score", "stop_rules": {"context": "drop", "turns": "keep_baseline"}}
    _, _, credits = run(("g", members), **rules)
    assert [(c.trained, c.in_baseline) for c in credits[0]] == [(True, True), (True, True), (False, False), (False, True)]
    assert first(credits) == [[1, -0.5, 0, 0]]  # of 1, 0 and 0
    soft = run(("g", [(1, DONE, [80]), (1, DONE, [90]), (1, cut("tokens"), [100])]), truncated="soft", max_new_tokens=100,
               soft_buffer=20, stop_rules={"tokens": "keep_baseline"})[2]  # fmt: skip
    close(first(soft)[0], [0.75, 0, 0])  # totals 1, ½ and 0, as penalised


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"fault": "drop"}, "rollout.stop_rules.fault: what the infrastructure broke says nothing about the policy"),
        ({"crash": "score"}, "always in neither baseline nor loss"),
        ({"goal": "drop"}, "no episode is cut short by that; the reasons are turns, tool_calls, invalid_actions, tokens, "),
        ({"turns": "mask"}, 'rollout.stop_rules.turns = "mask" is no rule; use keep_baseline, score, drop'),
        ({"tokens": "soft"}, 'set rollout.truncated = "soft"'),
        ({"turns": "drop"}, "does nothing while env.name is empty"),
    ],
)
def test_rules_that_mean_nothing_are_refused(rules, words):
    with pytest.raises(RecipeError) as error:
        make_recipe({"rollout": {"stop_rules": rules}})
    assert words in str(error.value) and "\n" not in str(error.value)


def test_rules_for_reasons_that_end_no_episode_are_refused():
    calc = {"env": {"name": "calc"}, "tasks": {"sources": [{"kind": "environment", "size": 9}]}}
    for reason, key in (("tool_calls", "max_tool_calls"), ("time", "max_seconds")):
        rules = {"rollout": {"stop_rules": {reason: "drop"}}}
        with pytest.raises(RecipeError, match=f"does nothing while env.{key} = 0"):
            make_recipe({**calc, **rules})
        make_recipe({**calc, **rules, "env": {"name": "calc", key: 3}})
    usual = {"tool_calls": "score", "time": "keep_baseline", "turns": "drop"}
    made = make_recipe({**calc, "rollout": {"stop_rules": usual}})  # what holds anyway may be said
    (told,) = [line for line in describe(made) if line.startswith("episodes cut short")]
    assert told == (
        "episodes cut short by tokens, context, time, environment: kept in the baseline, out of the loss; tool_calls, "
        "invalid_actions: scored as they are; turns: in neither baseline nor loss; by a fault: in neither"
    )


@pytest.mark.parametrize("reason", ["turns", "tool_calls", "invalid_actions"])
@pytest.mark.parametrize("rule", ["keep_baseline", "drop"])
def test_budgets_the_policy_used_up_are_scored(reason, rule):
    _, _, credits = run(("g", [(1, DONE, [2]), (0, cut(reason), [2])]), truncated=rule)
    assert first(credits) == [[1, -1]]
    assert all(c.trained and c.in_baseline for c in credits[0])


def test_faults_and_unscorable_episodes_are_in_neither():
    members = [(1, DONE, [2]), (0, DONE, [2]), (0, FAULT, [2]), ("timeout", DONE, [2]), (float("nan"), DONE, [1])]
    for rule in ("keep_baseline", "score", "drop"):
        _, _, credits = run(("g", members), truncated=rule)
        assert first(credits) == [[1, -1, 0, 0, 0]]
        assert [(c.trained, c.in_baseline) for c in credits[0][2:]] == [(False, False)] * 3


def test_an_episode_without_a_sampled_token_is_in_neither():  # case B11
    for rule in ("keep_baseline", "score", "drop"):
        _, _, credits = run(
            ("g", [(1, DONE, [2]), (0, DONE, [2]), (5, DONE, []), (5, cut("context"), [0])]), truncated=rule
        )
        assert [float(c.advantages[0]) for c in credits[0][:2]] == [1, -1]
        assert [(c.trained, c.in_baseline) for c in credits[0][2:]] == [(False, False)] * 2


def test_truncated_in_turn_three_trains_no_token_of_the_episode():  # case C4
    _, _, credits = run(("g", [(1, DONE, [2, 1]), (0, cut("tokens"), [2, 3, 4])]))
    assert not credits[0][1].trained
    assert credits[0][1].advantages.tolist() == [0.0] * 9


def test_statistics_count_episodes_not_tokens_or_turns():  # block B2
    members = [(1, DONE, [1, 1]), (0, DONE, [1] * 8)]
    _, _, credits = run(("g", members), credit={"baseline": "mean"})
    assert [c.advantages.tolist() for c in credits[0]] == [[0.5] * 2, [-0.5] * 8]


def test_groups_meet_by_id_and_episodes_count_once():
    left, rewards_left = make_group("g", [(1, DONE, [1]), (0, DONE, [1])])
    right = Group(
        "g",
        left.task,
        tuple(Episode(EpisodeId("train", 0, "g", 2 + k), "g", e.turns, DONE) for k, e in enumerate(left.episodes)),
    )
    credits = assign([left, right], [rewards_left, [Reward(0), Reward(0)]], CreditSection(), RolloutSection())
    close(first(credits), [[1, -1 / 3], [-1 / 3, -1 / 3]])
    with pytest.raises(ValueError, match="twice"):
        assign([left, left], [rewards_left] * 2, CreditSection(), RolloutSection())
    with pytest.raises(ValueError, match="match"):
        assign([left], [rewards_left[:1]], CreditSection(), RolloutSection())


def test_silent_groups_are_marked_where_their_advantages_are_zero():
    groups = (
        ("flat", [(1, DONE, [1])] * 3),
        ("one", [(1, DONE, [1]), ("x", DONE, [1])]),
        ("mixed", [(1, DONE, [1]), (0, DONE, [1])]),
    )
    assert [row[0].constant_group for row in run(*groups)[2]] == [True, True, False]
    plain = run(*groups, credit={"baseline": "none"})[2]
    assert [row[0].constant_group for row in plain] == [False] * 3
    assert first(plain)[0] == [1, 1, 1]


def test_kl_in_the_reward_enters_the_statistics():
    group, rewards = make_group("g", [(1, DONE, [1]), (1, DONE, [1])])
    penalty = {group.episodes[0].id: 0.3}
    credits = assign([group], [rewards], CreditSection(), RolloutSection(), penalty)
    close(first(credits), [[-0.3, 0.3]])
    assert not credits[0][0].constant_group


# ---- reports -----------------------------------------------------------------------------------------------------------


def test_signal_report_counts():
    report = signal_report(*run(
        ("flat", [(1, DONE, [1])] * 3),
        ("mixed", [(1, DONE, [1]), (0, DONE, [1]), (0, cut("tokens"), [1]), (0, FAULT, [1])]),
        ("one", [(1, DONE, [1]), ("timeout", DONE, [1]), ("timeout", DONE, [1])]),
        ("gone", [("nan", DONE, [1]), (0, FAULT, [1])]),
    ))  # fmt: skip
    assert (report.num_groups, report.num_with_signal, report.num_constant, report.num_single, report.num_empty) == (
        4,
        1,
        1,
        1,
        1,
    )
    assert (report.num_episodes, report.num_truncated, report.num_faults) == (12, 1, 2)
    assert report.unscorable == {"timeout": 2, "nan": 1}
    assert report.cause is None
    assert report.truncation is None
    metrics = report.metrics()
    assert metrics["groups/with_signal"] == 0.25
    assert metrics["episodes/truncated"] == pytest.approx(1 / 12)
    assert metrics["unscorable/timeout"] == 2


@pytest.mark.parametrize(
    ("groups", "words"),
    [  # case A25: a batch without signal says why
        ([("a", [(0, DONE, [1])] * 4), ("b", [(0, DONE, [1])] * 4)], "always 0"),
        ([("a", [(1, DONE, [1])] * 4)], "always 1"),
        ([("a", [(1, DONE, [1])] * 2), ("b", [(0, DONE, [1])] * 2)], "differing only between groups"),
        ([("a", [(1, DONE, [1])]), ("b", [(0, DONE, [1])])], "single"),
        ([("a", [("timeout", DONE, [1])] * 2)], "timeout ×2"),
        ([("a", [(0, FAULT, [1])] * 2)], "infrastructure"),
        # case C1: the reason that cut most says what would help
        (
            [("a", [(0, cut("tokens"), [16])] * 8)],
            "100% truncated (tokens ×8), 0 of 8 episodes finished, so the reward "
            "cannot be earned; raise rollout.max_new_tokens",
        ),
        (
            [("a", [(0, cut("context"), [16])] * 5 + [(0, cut("tokens"), [16])] * 3)],
            "truncated (context ×5, tokens ×3), "
            "0 of 8 episodes finished, so the reward cannot be earned; raise env.max_context_tokens",
        ),
        ([("a", [(0, DONE, [1]), (0, cut("tokens"), [1]), ("x", DONE, [1])])], "always 0"),
        ([], "no episodes"),
    ],
)
def test_batch_without_signal_names_the_cause(groups, words):
    report = signal_report(*run(*groups))
    assert report.num_with_signal == 0
    assert report.cause is not None
    assert words in report.cause
    assert report.cause.count("\n") == 0


def test_signal_only_outside_the_loss_is_named():
    made = run(("a", [(0, cut("tokens"), [1]), (1, cut("time"), [1]), (0.5, FAULT, [1])]))
    assert "outside the loss" in (signal_report(*made).cause or "")


def test_a_batch_that_stop_rules_leave_out_says_so():
    looped = ("a", [(0, cut("turns"), [1]), (1, cut("turns"), [1])])
    cause = signal_report(*run(looped, stop_rules={"turns": "keep_baseline"})).cause or ""
    assert "2 of 2 were cut short: turns ×2" in cause
    assert 'raise env.max_turns, or set rollout.stop_rules.turns = "score"' in cause
    cause = signal_report(*run(looped, stop_rules={"turns": "drop"})).cause or ""
    assert "cut short and dropped: turns ×2" in cause and 'rollout.stop_rules.turns = "score"' in cause
    assert signal_report(*run(looped)).cause is None


def test_full_truncation_is_reported_even_with_signal():
    report = signal_report(*run(("a", [(0, cut("tokens"), [1]), (1, cut("tokens"), [1])]), truncated="score"))
    assert report.cause is None
    assert report.truncation is not None
    assert "max_new_tokens" in report.truncation


def test_two_different_standard_deviations():  # case L2
    groups, rewards, _ = run(("a", [(2, DONE, [1])] * 16), ("b", [(-8, DONE, [1])] * 16))
    metrics = reward_metrics(groups, rewards)
    assert metrics["reward/std_within_group"] == 0
    assert metrics["reward/std_batch"] == pytest.approx(5.080, abs=5e-4)
    assert metrics["reward/constant_groups"] == 1
    assert metrics["reward/mean"] == -3


def test_metrics_without_data_are_absent():  # case L5
    groups, rewards, credits = run(("a", [("timeout", DONE, [1])]))
    assert reward_metrics(groups, rewards) == {}
    assert signal_report([], [], []).metrics() == {}
    groups, rewards, _ = run(("a", [(1, DONE, [1]), ("timeout", DONE, [1])]))
    assert reward_metrics(groups, rewards) == {"reward/mean": 1.0}
    assert credits[0][0].trained is False


def test_is_constant_scales_with_the_rewards():
    assert is_constant(np.array([1e9, 1e9 + 0.5]))
    assert not is_constant(np.array([0, 1e-6]))
    assert is_constant(np.array([0, 1e-10]))

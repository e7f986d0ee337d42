"""Objectives, KL forms, corrections and statistics by value, with the gradient of each read off from autograd."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.advantages import advantages
from milepost.forest import aggregation_weights
from milepost.loss import (
    OBJECTIVES,
    Events,
    EventStats,
    correction_weights,
    effective_sample_share,
    kl_terms,
    policy_loss,
    summarize,
)
from milepost.sections import CorrectionSection, KlSection, LossSection

NO_KL, NO_CORRECTION = KlSection(), CorrectionSection(kind="none")
HIGHER = {"clip_low": 0.2, "clip_high": 0.28}


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


def make_events(advantage, weights, episode=None, **columns):
    """One-token episodes unless told otherwise."""
    episode = list(range(len(advantage))) if episode is None else episode
    return Events(vector(advantage), vector(weights), torch.tensor(episode), max(episode, default=-1) + 1, **columns)


def run(ratios, advantage, *, weights=None, episode=None, old=-1.0, beta=0.0, kl=NO_KL, correction=NO_CORRECTION, **loss):
    """(loss, gradient per log-prob, stats) at the given ratios to `old`."""
    old_logprobs = torch.full((len(ratios),), old, dtype=torch.float64)
    logprobs = (old_logprobs + vector(ratios).log()).requires_grad_()
    weights = [1.0] * len(ratios) if weights is None else weights
    events = make_events(advantage, weights, episode, sampler_logprobs=old_logprobs, old_logprobs=old_logprobs)
    value, stats = policy_loss(
        logprobs, events, LossSection(**loss), kl, correction, beta=beta, correct=correction.kind != "none"
    )
    value.backward()
    return value.item(), logprobs.grad, stats


def close(got, expected, tolerance=5e-7):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=tolerance)


# ---- clip ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [  # block A3: ε .2/.28, dual clip 3
        (0.5, 1, -0.5, -0.5), (0.5, -1, 0.8, 0), (0.9, 1, -0.9, -0.9), (0.9, -1, 0.9, 0.9), (1, 1, -1, -1), (1, -1, 1, 1),
        (1.25, 1, -1.25, -1.25), (1.25, -1, 1.25, 1.25), (1.5, 1, -1.28, 0), (1.5, -1, 1.5, 1.5), (4, 1, -1.28, 0),
        (4, -1, 3, 0),
    ],
)  # fmt: skip
def test_clip_branches(ratio, advantage, value, gradient):
    got, grad, stats = run([ratio], [advantage], dual_clip=3.0, **HIGHER)
    assert got == pytest.approx(value, abs=1e-12)
    close(grad, [gradient], 1e-12)
    assert bool(stats.clipped_low[0]) == (ratio == 0.5 and advantage < 0)
    assert bool(stats.clipped_high[0]) == (ratio >= 1.5 and advantage > 0)


def test_two_sided_clip_is_dual_clip():  # block A3, last line: δ = 4, ρ = 6, A = −1
    value, grad, _ = run([6.0], [-1], dual_clip=4.0, **HIGHER)
    assert value == pytest.approx(4.0)
    assert grad.tolist() == [0]


@pytest.mark.parametrize(("high", "rare", "common"), [(0.2, 0.012, 1.08), (0.28, 0.0128, 1.152)])
def test_reach_of_the_upper_clip(high, rare, common):  # block A4
    for p_old, reach in ((0.01, rare), (0.9, common)):
        for p, alive in ((reach * 0.999, True), (reach * 1.001, False)):
            _, grad, _ = run([p / p_old], [1], old=math.log(p_old), clip_low=0.2, clip_high=high)
            assert bool(grad[0] != 0) == alive


def test_one_clip_per_token_not_per_answer():  # case A12
    ratios = [0.55 / 0.5, 0.36 / 0.4, 0.30 / 0.2]
    value, _, _ = run(ratios, [1, 1, 1], weights=[1 / 3] * 3, episode=[0, 0, 0])
    assert -value == pytest.approx((1.1 + 0.9 + 1.2) / 3)


def test_clip_under_noise_pulls_back_to_the_old_policy():  # block A23
    for ratio, weight in ((0.7, 0.35), (0.9, 0), (1.0, 0), (1.1, 0), (1.3, -0.65)):
        up, down = (-run([ratio], [a])[1].item() for a in (1, -1))
        assert (up + down) / 2 == pytest.approx(weight, abs=1e-12)


def test_epsilon_of_ten_never_clips_from_below():
    value, grad, _ = run([0.01], [-1], clip_low=10, clip_high=10)
    assert value == pytest.approx(0.01)
    assert grad.item() == pytest.approx(0.01)


# ---- the other objectives --------------------------------------------------------------------------------------------


def test_gspo_and_gmpo():  # block A12
    ratios = np.exp([0.1, -0.2, 0.4]).tolist()
    close(ratios, [1.105171, 0.818731, 1.491825])
    wide = {"clip_low": 0.5, "clip_high": 0.5}
    tight = {"clip_low": 3e-4, "clip_high": 4e-4}
    for name in ("gspo", "gspo_token"):
        value, grad, stats = run(ratios, [1] * 3, weights=[1 / 3] * 3, episode=[0] * 3, objective=name, **wide)
        assert -value == pytest.approx(1.105171, abs=5e-7)
        close(-grad, [1.105171 / 3] * 3)
        value, grad, stats = run(ratios, [1] * 3, weights=[1 / 3] * 3, episode=[0] * 3, objective=name, **tight)
        assert -value == pytest.approx(1.0004)
        assert grad.tolist() == [0] * 3
        assert stats.clipped_high.all()
    gmpo = np.exp([0.1, -0.2, 0.8]).tolist()
    value, grad, stats = run(gmpo, [1] * 3, weights=[1 / 3] * 3, episode=[0] * 3, objective="gmpo")
    assert -value == pytest.approx(1.105171, abs=5e-7)
    close(-grad, [1.105171 / 3, 1.105171 / 3, 0])
    assert stats.clipped_high.tolist() == [False, False, True]
    value, grad, stats = run(gmpo, [-1] * 3, weights=[1 / 3] * 3, episode=[0] * 3, objective="gmpo")
    assert value == pytest.approx(1.262802, abs=5e-7)
    close(grad, [1.262802 / 3] * 3)
    assert not stats.clipped_low.any()


def test_gspo_token_takes_advantages_per_token():
    ratios = np.exp([0.1, -0.2, 0.4]).tolist()
    _, grad, _ = run(ratios, [1, 0, -2], episode=[0] * 3, objective="gspo_token", clip_low=0.5, clip_high=0.5)
    close(-grad, [1.105171, 0, -2.210342])


def test_sequence_ratios_stay_within_their_episode():
    ratios = np.exp([0.1, 0.5, -0.3, 0.1]).tolist()  # episodes interleaved: means .1+(-.3) over 2, .5+.1 over 2
    value, _, _ = run(ratios, [1] * 4, episode=[0, 1, 0, 1], objective="gspo", clip_low=0.9, clip_high=0.9)
    assert -value == pytest.approx(2 * math.exp(-0.1) + 2 * math.exp(0.3))


def test_cispo_weights():  # block A13
    ratios, ones = [0.5, 1, 1.5, 8], [1] * 4
    for objective, expected in (
        ("cispo_cap", [0.5, 1, 1.5, 5]),
        ("cispo_clip", [0.8, 1, 1.28, 1.28]),
        ("clip", [0.5, 1, 0, 0]),
    ):
        value, grad, _ = run(ratios, ones, objective=objective, **HIGHER)
        close(-grad, expected, 1e-12)
    close(run(ratios, [-1] * 4, **HIGHER)[1], [0, 1, 1.5, 8], 1e-12)
    value, _, stats = run([8.0], [2], objective="cispo_cap", old=-3.0)
    assert -value == pytest.approx(5 * 2 * (math.log(8) - 3))  # the surrogate is w·A·log π
    assert stats.clipped_high.tolist() == [True]


@pytest.mark.parametrize(
    ("tau", "ratio", "f", "weight"),
    [  # block A14; τ = 1 for A > 0, 1.05 for A < 0
        (1.0, 0.5, 1.510163, 0.470007),
        (1.0, 1.0, 2.0, 1.0),
        (1.0, 1.5, 2.489837, 1.410022),
        (1.0, 2.0, 2.924234, 1.572895),
        (1.05, 0.5, 1.415938, 0.46707),
        (1.05, 1.0, 1.904762, 1.0),
        (1.05, 1.5, 2.393585, 1.40121),
        (1.05, 2.0, 2.822, 1.53622),
    ],
)
def test_sapo_gate(tau, ratio, f, weight):
    sign = 1 if tau == 1.0 else -1
    value, grad, stats = run([ratio], [sign], objective="sapo")
    assert -sign * value == pytest.approx(f, abs=5e-7)
    assert -sign * grad.item() == pytest.approx(weight, abs=5e-7)
    assert "clip_low" not in summarize([stats])


@pytest.mark.parametrize(
    ("now", "sampler", "advantage", "kept", "ratio", "ppo_clips"),
    [  # block A16
        (0.35, 0.1, 1, False, 3.5, True), (0.35, 0.1, -1, True, 3.5, False), (0.1, 0.35, 1, True, 0.286, False),
        (0.1, 0.35, -1, False, 0.286, True), (0.02, 0.001, 1, True, 20, True), (0.95, 0.8, 1, True, 1.187, False),
    ],
)  # fmt: skip
def test_dppo_masks_by_probability_moved_where_ppo_clips_by_ratio(now, sampler, advantage, kept, ratio, ppo_clips):
    _, _, stats = run([now / sampler], [advantage], old=math.log(sampler), **HIGHER)
    assert bool(stats.clipped_low[0] | stats.clipped_high[0]) == ppo_clips
    assert summarize([stats])["ratio/mean"] == pytest.approx(ratio, abs=1e-3)
    value, grad, stats = run([now / sampler], [advantage], old=math.log(sampler), objective="dppo_tv")
    expected = -advantage * now / sampler * kept
    assert value == pytest.approx(expected)
    assert grad.item() == pytest.approx(expected)
    assert bool(stats.clipped_low[0] | stats.clipped_high[0]) != kept


def test_dppo_is_relative_to_the_sampler_and_takes_no_correction():
    logprobs = vector([-1.0]).requires_grad_()
    events = make_events([1.0], [1.0], sampler_logprobs=vector([-1.1]), old_logprobs=vector([-1.0]))
    tis = CorrectionSection(kind="tis")
    value, stats = policy_loss(logprobs, events, LossSection(objective="dppo_tv"), NO_KL, tis, beta=0, correct=True)
    assert -value.item() == pytest.approx(math.exp(0.1))
    assert stats.correction is None


def test_cross_entropy_ignores_advantages():
    logprobs = vector([-1.0, -3.0]).requires_grad_()
    value, stats = policy_loss(
        logprobs, make_events([0, 0], [0.5, 0.5]), LossSection(objective="cross_entropy"), NO_KL, CorrectionSection(),
        beta=0, correct=True,
    )  # fmt: skip
    value.backward()
    assert value.item() == 2.0
    assert logprobs.grad.tolist() == [-0.5, -0.5]
    assert set(summarize([stats])) == {"ratio/mean", "ratio/max_abs_deviation", "ratio/mean_abs_deviation", "ratio/k3"}


def test_every_objective_has_gradient_weight_one_at_ratio_one():
    for name in set(OBJECTIVES) - {"cross_entropy"}:
        logprobs = vector([-1.0, -0.5, -2.0, -1.0]).requires_grad_()
        advantage = [1.0, 1.0, -0.5, -0.5]
        events = make_events(advantage, [0.25] * 4, [0, 0, 1, 1], sampler_logprobs=logprobs.detach().clone())
        value, stats = policy_loss(
            logprobs, events, LossSection(objective=name), NO_KL, NO_CORRECTION, beta=0, correct=False
        )
        value.backward()
        close(logprobs.grad, [-0.25 * a for a in advantage], 1e-12)
        metrics = summarize([stats])  # case A22, and the canary of step 0
        assert metrics["ratio/max_abs_deviation"] == 0
        assert metrics.get("clip_low", 0) == metrics.get("clip_high", 0) == 0


# ---- aggregation -----------------------------------------------------------------------------------------------------


def at_ratio_one(lengths, per_episode, aggregate, constant=0, groups=None):
    """(loss, gradient) with every ratio 1."""
    weights = aggregation_weights(lengths, groups or ["g"] * len(lengths), aggregate, constant)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    advantage = np.array(per_episode, float)[episode].tolist()
    value, grad, _ = run([1.0] * len(episode), advantage, weights=weights[episode].tolist(), episode=episode.tolist())
    return value, grad.numpy()


@pytest.mark.parametrize(
    ("aggregate", "first", "second", "value"),
    [  # block A6: lengths 2 and 6, A = ±1
        ("sequence_mean", 0.25, 1 / 12, 0), ("token_mean", 0.125, 0.125, 0.5), ("constant", 0.0625, 0.0625, 0.25),
        ("prompt_mean", 0.125, 0.125, 0.5),
    ],
)  # fmt: skip
def test_aggregation_weights_are_gradients(aggregate, first, second, value):
    got, grad = at_ratio_one([2, 6], [1, -1], aggregate, 8)
    assert got == pytest.approx(value, abs=1e-12)
    close(grad, [-first] * 2 + [second] * 6, 1e-12)


def test_aggregation_of_lengths_4_and_7():  # block A6: A = 2; the source halves the token mean once more
    for aggregate, first, second in (
        ("sequence_mean", 0.25, 0.142857), ("constant", 0.142857, 0.142857), ("token_mean", 2 * 0.090909, 2 * 0.090909),
    ):  # fmt: skip
        _, grad = at_ratio_one([4, 7], [2, 2], aggregate, 7)
        close(-grad, [first] * 4 + [second] * 7, 2e-6)
    assert aggregation_weights([2, 6], ["g"] * 2, "constant", 1).tolist() == [0.5, 0.5]  # sums, averaged over episodes


@pytest.mark.parametrize(("aggregate", "value"), [("token_mean", 0.6), ("sequence_mean", 0), ("constant", 0.3)])
def test_loss_at_ratio_one_depends_on_aggregation_alone(aggregate, value):  # cases A2, A13; claims: +.6, 0, +.3
    got, grad = at_ratio_one([2, 8], [1, -1], aggregate, 10)
    assert got == pytest.approx(value, abs=1e-12)
    assert np.abs(grad).min() > 0


def test_loss_zero_with_a_gradient():  # case A1
    value, grad = at_ratio_one([3, 3], [0.5, -0.5], "token_mean")
    assert abs(value) < 1e-12
    assert np.linalg.norm(grad) > 0


def test_micro_batches_add_up_to_the_token_mean():  # block A7, cases A14–A16
    weights, advantage, episode = [0.1] * 10, [1.0] + [-1.0] * 9, [0] + [1] * 9
    whole, gradient, _ = run([1.0] * 10, advantage, weights=weights, episode=episode)
    assert whole == pytest.approx(0.8)
    first, grad_first, _ = run([1.0], advantage[:1], weights=weights[:1], episode=[0])
    rest, grad_rest, _ = run([1.0] * 9, advantage[1:], weights=weights[1:], episode=[0] * 9)
    assert first + rest == pytest.approx(0.8)
    close(torch.cat([grad_first, grad_rest]), gradient, 1e-15)
    mean_of_means = (first / 0.1 / 1 + rest / 0.1 / 9) / 2
    assert mean_of_means == pytest.approx(0.0)  # what must not be computed


@pytest.mark.parametrize(
    ("aggregate", "constant", "chances", "long_wrong", "long_correct"),
    [
        ("sequence_mean", 0, [0.386036, 0.265319, 0.142015, 0.20663], 0.592667, 0.407333),
        ("token_mean", 0, [0.299344, 0.299344, 0.200656, 0.200656], 0.5, 0.5),
        ("constant", 8, [0.281088, 0.281088, 0.218912, 0.218912], 0.5, 0.5),
    ],
)
def test_length_bias_of_one_softmax_step(aggregate, constant, chances, long_wrong, long_correct):  # block E2
    lengths = [2, 8, 2, 8]  # correct short, correct long, wrong short, wrong long; equiprobable; A = ±½
    _, grad = at_ratio_one(lengths, [0.5, 0.5, -0.5, -0.5], aggregate, constant)
    first_token = np.cumsum([0, *lengths[:-1]])
    # One token carries the choice. ×4 turns the mean over 4 episodes into a sum; the step size is 8.
    step = sum(0.25 * -grad[t] * 4 * (np.eye(4)[x] - 0.25) for x, t in enumerate(first_token))
    p = np.exp(8 * step) / np.exp(8 * step).sum()
    close(p, chances)
    assert p[3] / (p[2] + p[3]) == pytest.approx(long_wrong, abs=5e-7)
    assert p[1] / (p[0] + p[1]) == pytest.approx(long_correct, abs=5e-7)


# ---- KL --------------------------------------------------------------------------------------------------------------


def test_kl_values():  # block A17, case A19
    logp, ref = vector([0.5]).log(), vector([0.25]).log()
    close([kl_terms(logp, ref, logp, k).item() for k in ("k1", "k2", "k3")], [0.693147, 0.240227, 0.193147])
    gap = kl_terms(vector([10.0, -10.0]), vector([0.0, 0.0]), vector([0.0, 0.0]), "k3")
    close(gap, [9.000045, 22015.465795])
    logp, ref = vector([-1.0, -1.0]), vector([-2.0, -0.5])
    close(kl_terms(logp, ref, logp, "k3"), [0.367879, 0.148721])
    close(kl_terms(logp, ref, logp, "k1"), [1.0, -0.5])


def test_k3_gradient():  # case A18
    logp = vector([-1.0, -1.0]).requires_grad_()
    kl_terms(logp, vector([-2.0, -0.5]), logp.detach(), "k3").sum().backward()
    close(logp.grad, [0.632121, -0.648721])


PI, REF = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
TRUE_GRADIENT = [0.320702, -0.082466, -0.238236]  # ∇_logits KL(π‖ref)


def expected_gradient(estimator, behaviour=PI):
    """Σ_x behaviour(x)·∇ kl_x on the logits of π, with old = behaviour."""
    logits = PI.log().requires_grad_()
    logp = torch.log_softmax(logits, 0)
    (behaviour * kl_terms(logp, REF.log(), behaviour.log(), estimator)).sum().backward()
    return logits.grad


@pytest.mark.parametrize(
    ("estimator", "mean", "gradient"),
    [  # block A17
        ("k1", 0.274887, [0, 0, 0]), ("k2", 0.293856, TRUE_GRADIENT), ("k3", 0.274887, [0.3, 0, -0.3]),
        ("k3_ratio", 0.274887, TRUE_GRADIENT),
    ],
)  # fmt: skip
def test_expected_kl_gradients(estimator, mean, gradient):
    term = kl_terms(PI.log(), REF.log(), PI.log(), estimator)
    assert (PI * term).sum().item() == pytest.approx(mean, abs=5e-7)
    close(expected_gradient(estimator), gradient)
    if estimator in ("k1", "k3"):
        assert (PI * (term - mean).square()).sum().item() == pytest.approx(
            {"k1": 0.512149, "k3": 0.0426}[estimator], abs=5e-6
        )


def test_k3_ratio_stays_exact_off_policy():
    behaviour = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    close(expected_gradient("k3_ratio", behaviour), TRUE_GRADIENT)
    assert (expected_gradient("k2", behaviour) - vector(TRUE_GRADIENT)).abs().max() > 0.01


@pytest.mark.parametrize(("estimator", "expected"), [("k1", TRUE_GRADIENT), ("k3", [0.020702, -0.082466, 0.061764])])
def test_kl_in_the_reward(estimator, expected):  # k1 there is right; k3 there even has a wrong sign
    """Policy gradient of the reward −k, by score function through the loss itself (baseline-free)."""
    logits = PI.log().requires_grad_()
    logp = torch.log_softmax(logits, 0)
    penalty = kl_terms(logp.detach(), REF.log(), logp.detach(), estimator)
    events = Events(-penalty, PI, torch.arange(3), 3)
    policy_loss(logp, events, LossSection(), NO_KL, NO_CORRECTION, beta=0, correct=False)[0].backward()
    close(logits.grad, expected)


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_ratio"])
def test_kl_alone_still_has_a_gradient_and_falls(estimator):  # case A18; claims: all A = 0 with β = 1
    def divergence(logits):
        p = torch.softmax(logits, 0)
        return (p * (p / REF).log()).sum().item()

    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(logits, 0)
    events = Events(torch.zeros(3).double(), logp.detach().exp(), torch.arange(3), 3, ref_logprobs=REF.log())
    kl = KlSection(beta=1.0, estimator=estimator)
    policy_loss(logp, events, LossSection(), kl, NO_CORRECTION, beta=1.0, correct=False)[0].backward()
    assert logits.grad.norm() > 0.01
    assert divergence(logits.detach() - 0.1 * logits.grad) < divergence(logits.detach())


def test_constant_group_without_kl_has_gradient_exactly_zero():  # case A36
    value, grad, _ = run([1.0, 1.3, 0.4], [0, 0, 0])
    assert value == 0
    assert grad.tolist() == [0, 0, 0]


def test_beta_is_the_argument_and_place_reward_stays_out_of_the_loss():
    logprobs, ref = vector([-1.0]), vector([-2.0])
    events = make_events([0.0], [1.0], ref_logprobs=ref)
    in_loss = KlSection(beta=0.5, estimator="k2")
    assert policy_loss(logprobs, events, LossSection(), in_loss, NO_CORRECTION, beta=0.1, correct=False)[
        0
    ].item() == pytest.approx(0.05)
    in_reward = KlSection(beta=0.5, estimator="k1", place="reward")
    assert policy_loss(logprobs, events, LossSection(), in_reward, NO_CORRECTION, beta=0.5, correct=False)[0].item() == 0
    with pytest.raises(ValueError, match="reference"):
        policy_loss(logprobs, make_events([0.0], [1.0]), LossSection(), in_loss, NO_CORRECTION, beta=0.1, correct=False)


# ---- mismatch correction ---------------------------------------------------------------------------------------------

MISMATCH = vector([0.5, 1, 1, 1.5, 16]).log()  # block D6: π_old/μ


def test_truncated_and_masked_importance_weights():  # block D6
    events = make_events([1] * 5, [1] * 5, sampler_logprobs=torch.zeros(5).double())
    close(correction_weights(MISMATCH, events, CorrectionSection(kind="tis", cap=2)), [0.5, 1, 1, 1.5, 2], 1e-12)
    close(correction_weights(MISMATCH, events, CorrectionSection(kind="mis")), [0.5, 1, 1, 1.5, 0], 1e-12)
    w = MISMATCH.exp().numpy()
    assert effective_sample_share(w) == pytest.approx(0.30710172744721687)
    assert effective_sample_share(np.minimum(w, 2)) == pytest.approx(0.8470588235294118)
    assert np.square(w).max() == pytest.approx(256)
    assert [np.square(np.minimum(w, c)).max() for c in (2, 8)] == [4, 64]


def test_mismatch_metrics():  # block D6, case F10
    old = MISMATCH.clone()
    events = make_events([1] * 5, [1] * 5, sampler_logprobs=torch.zeros(5).double(), old_logprobs=old)
    _, stats = policy_loss(old, events, LossSection(), NO_KL, CorrectionSection(), beta=0, correct=True)
    metrics = summarize([stats])
    assert metrics["mismatch/ess"] == pytest.approx(0.30710172744721687)
    assert metrics["mismatch/chi2"] == pytest.approx(51.1)
    assert metrics["correction/ess"] == pytest.approx(0.8470588235294118)  # "auto" corrects as tis
    assert metrics["mismatch/max"] == pytest.approx(math.log(16))
    assert metrics["mismatch/mean_abs"] == pytest.approx((math.log(2) + math.log(1.5) + math.log(16)) / 5)
    assert metrics["mismatch/p99"] < metrics["mismatch/max"]
    assert metrics["ratio/mean"] == 1


def test_geometric_mask_bounds_the_mean_and_not_the_product():  # block D7
    assert (pytest.approx(2.593742), pytest.approx(13780.61, abs=0.01)) == (1.1**10, 1.1**100)
    old = torch.cat([torch.full((1000,), math.log(1.001)), torch.full((10,), 0.0008), torch.full((5,), 0.02)]).double()
    assert old[:1000].sum().exp().item() == pytest.approx(2.716924, abs=1e-5)  # the length trap of a sequence product
    assert old[:100].sum().exp().item() == pytest.approx(1.105116, abs=5e-6)
    episode = torch.tensor([0] * 1000 + [1] * 10 + [2] * 5)
    events = Events(
        torch.ones(1015).double(), torch.ones(1015).double(), episode, 3, sampler_logprobs=torch.zeros(1015).double()
    )
    section = CorrectionSection(kind="geometric_mask", sequence_low=0.999, sequence_high=1.0015)
    kept = correction_weights(old, events, section)
    assert kept[:1010].tolist() == [1.0] * 1010
    assert kept[1010:].tolist() == [0.0] * 5
    narrow = CorrectionSection(kind="geometric_mask", sequence_low=0.999, sequence_high=1.001)
    assert correction_weights(old, events, narrow)[1000:1010].tolist() == [1.0] * 10  # exp(.0008) = 1.00080 passes


def test_correction_multiplies_the_surrogate_only_and_is_detached():
    old, sampler, ref = vector([-1.0]), vector([-1.4]), vector([-1.5])
    logprobs = vector([-1.0]).requires_grad_()
    events = make_events([2.0], [0.5], sampler_logprobs=sampler, old_logprobs=old, ref_logprobs=ref)
    kl = KlSection(beta=0.1, estimator="k2")
    value, _ = policy_loss(logprobs, events, LossSection(), kl, CorrectionSection(kind="tis"), beta=0.1, correct=True)
    value.backward()
    w = math.exp(0.4)
    assert value.item() == pytest.approx(0.5 * (-2 * w + 0.1 * 0.125))
    assert logprobs.grad.item() == pytest.approx(0.5 * (-2 * w + 0.1 * 0.5))
    plain, stats = policy_loss(logprobs, events, LossSection(), kl, CorrectionSection(kind="tis"), beta=0.1, correct=False)
    assert plain.item() == pytest.approx(0.5 * (-2 + 0.1 * 0.125))
    assert "correction/mean" not in summarize([stats])
    assert summarize([stats])["mismatch/mean_abs"] == pytest.approx(0.4)  # always logged


def test_correction_without_sampler_logprobs_is_refused():
    for loss, correction in (
        (LossSection(), CorrectionSection(kind="tis")),
        (LossSection(objective="dppo_tv"), NO_CORRECTION),
    ):
        with pytest.raises(ValueError, match="sampler"):
            policy_loss(vector([-1.0]), make_events([1.0], [1.0]), loss, NO_KL, correction, beta=0, correct=True)


# ---- junk, extremes, statistics --------------------------------------------------------------------------------------

ALL = [(name, kind) for name in OBJECTIVES for kind in ("none", "tis", "mis", "geometric_mask")]


def random_events(seed, mask, junk, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    n = len(mask)
    columns = {name: torch.tensor(rng.normal(-1, 0.4, n), dtype=dtype) for name in ("logprobs", "old", "sampler", "ref")}
    columns["advantages"] = torch.tensor(rng.normal(size=n), dtype=dtype)
    hidden = torch.tensor(mask) == 0
    for name, column in columns.items():
        column[hidden] = torch.tensor(junk[name], dtype=dtype)
    weights = torch.tensor(rng.random(n), dtype=dtype) * torch.tensor(mask, dtype=dtype)
    episode = torch.arange(n) // 3
    logprobs = columns.pop("logprobs").requires_grad_()
    events = Events(columns["advantages"], weights, episode, n // 3 + 1, columns["sampler"], columns["old"], columns["ref"])
    return logprobs, events


@pytest.mark.parametrize(("objective", "kind"), ALL)
def test_junk_under_weight_zero_changes_no_bit(objective, kind):  # cases A33, A34
    mask = [1, 0, 1, 1, 1, 0, 0, 0, 0, 1]
    names = ("logprobs", "old", "sampler", "ref", "advantages")
    clean = dict.fromkeys(names, 0.0)
    results = []
    for junk in (clean, dict.fromkeys(names, float("nan")), dict(zip(names, (1e4, -1e9, float("inf"), 1.0, -7e7)))):
        logprobs, events = random_events(3, mask, junk)
        kl = KlSection(beta=0.1, estimator="k3_ratio")
        value, stats = policy_loss(
            logprobs, events, LossSection(objective=objective), kl, CorrectionSection(kind=kind), beta=0.1, correct=True
        )
        value.backward()
        results.append((value.item(), logprobs.grad.tolist(), summarize([stats])))
    assert results[0] == results[1] == results[2]
    assert math.isfinite(results[0][0])
    assert all(g == 0 for g, m in zip(results[0][1], mask) if not m)


@pytest.mark.parametrize(("objective", "kind"), ALL)
def test_all_weights_zero(objective, kind):  # case C3
    logprobs, events = random_events(
        0, [0] * 6, dict.fromkeys(("logprobs", "old", "sampler", "ref", "advantages"), float("nan"))
    )
    kl = KlSection(beta=0.1, estimator="k3")
    value, stats = policy_loss(
        logprobs, events, LossSection(objective=objective), kl, CorrectionSection(kind=kind), beta=0.1, correct=True
    )
    value.backward()
    assert value.item() == 0
    assert logprobs.grad.tolist() == [0.0] * 6
    assert summarize([stats]) == {}


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
@pytest.mark.parametrize("gap", [-300.0, 300.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_extreme_ratios_stay_finite(objective, gap, advantage):
    logprobs = torch.tensor([-301.0 if gap < 0 else -0.5]).requires_grad_()
    far = torch.tensor([-1.0 if gap < 0 else -301.0])
    events = Events(torch.tensor([advantage]), torch.ones(1), torch.zeros(1, dtype=torch.long), 1, far, far, far)
    kl = KlSection(beta=0.1, estimator="k3_ratio")
    value, stats = policy_loss(
        logprobs, events, LossSection(objective=objective), kl, CorrectionSection(), beta=0.1, correct=True
    )
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logprobs.grad).all()
    assert all(math.isfinite(v) for v in summarize([stats]).values())


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), cuts=st.sets(st.integers(1, 5)))
def test_any_split_and_order_of_episodes_gives_the_same_loss_and_gradient(objective, seed, cuts):  # cases A14–A16, A32
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, 6)
    episode = np.repeat(np.arange(6), lengths)
    n = len(episode)
    column = {c: rng.normal(-1, 0.3, n) for c in ("logprobs", "old", "sampler", "ref")}
    advantage, weight = rng.normal(size=n), rng.random(n)
    kl, correction = (
        KlSection(beta=0.1, estimator="k3"),
        CorrectionSection(kind="geometric_mask", sequence_low=0.7, sequence_high=1.3),
    )

    def loss_of(order):
        logprobs = vector(column["logprobs"][order].tolist()).requires_grad_()
        present, number = np.unique(episode[order], return_inverse=True)
        events = Events(vector(advantage[order]), vector(weight[order]), torch.tensor(number), len(present),
                        *(vector(column[c][order]) for c in ("sampler", "old", "ref")))  # fmt: skip
        value, stats = policy_loss(
            logprobs, events, LossSection(objective=objective), kl, correction, beta=0.1, correct=True
        )
        value.backward()
        gradient = np.zeros(n)
        gradient[order] = logprobs.grad.numpy()
        return value.item(), gradient, stats

    whole = loss_of(np.arange(n))
    shuffled = rng.permutation(6)
    edges = [0, *sorted(cuts), 6]
    parts = [np.concatenate([np.flatnonzero(episode == e) for e in shuffled[a:b]]) for a, b in itertools.pairwise(edges)]
    results = [loss_of(part) for part in parts]
    assert sum(r[0] for r in results) == pytest.approx(whole[0], abs=1e-12)
    np.testing.assert_allclose(sum(r[1] for r in results), whole[1], atol=1e-12)
    split, together = summarize([r[2] for r in results]), summarize([whole[2]])
    assert split.keys() == together.keys()
    assert all(split[k] == pytest.approx(together[k], abs=1e-12) for k in split)


def test_low_precision_log_probs_are_computed_in_float32():
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.bfloat16, requires_grad=True)
    events = Events(torch.tensor([1.0, -1.0]), torch.tensor([0.3, 0.3]), torch.tensor([0, 1]), 2)
    value, _ = policy_loss(logprobs, events, LossSection(), NO_KL, NO_CORRECTION, beta=0, correct=False)
    value.backward()
    assert value.dtype == torch.float32
    assert logprobs.grad is not None


def stats_with(**columns):
    empty = dict.fromkeys(("mismatch", "correction", "clipped_low", "clipped_high", "kl_k1", "kl_k3"))
    return EventStats(**{"log_ratio": torch.zeros(0), **empty, **columns})


def test_summary_averages_events_and_leaves_out_what_is_absent():  # cases L4, L5
    parts = [stats_with(kl_k3=vector([1.0])), stats_with(), stats_with(kl_k3=vector([1.0])), stats_with(kl_k3=vector([]))]
    assert summarize(parts) == {"kl/k3": 1.0}
    assert summarize([]) == {}
    parts = [stats_with(kl_k1=vector([1.0])), stats_with(kl_k1=vector([2.0, 3.0]))]
    assert summarize(parts) == {"kl/k1": 2.0}
    flags = stats_with(clipped_low=torch.tensor([True, False, False, False]), clipped_high=torch.tensor([False] * 4))
    assert summarize([flags]) == {"clip_low": 0.25, "clip_high": 0.0}


def test_ratio_statistics():
    _, _, stats = run([0.5, 1.0, 2.0], [1, 1, 1])
    metrics = summarize([stats])
    assert metrics["ratio/mean"] == pytest.approx(3.5 / 3)
    assert metrics["ratio/max_abs_deviation"] == pytest.approx(1.0)
    assert metrics["ratio/mean_abs_deviation"] == pytest.approx(0.5)
    assert metrics["ratio/k3"] == pytest.approx((0.5 + math.log(2) - 1 + 2 - math.log(2) - 1) / 3)
    assert metrics["clip_high"] == pytest.approx(1 / 3)


# ---- credit and loss together: the exact policy gradient -------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "factor"), [({"baseline": "loo", "scale": "none"}, 1.0), ({"baseline": "mean", "scale": "none"}, 2 / 3)]
)
@pytest.mark.parametrize("objective", ["clip", "gspo", "cispo_cap", "sapo", "gmpo", "dppo_tv"])
def test_average_update_is_the_policy_gradient(how, factor, objective):
    """A softmax over 2-token answers (first token, then second given first), all 4³ groups of 3 enumerated."""
    answers = list(itertools.product(range(2), repeat=2))
    reward = np.array([0.0, 1.0, 0.2, 0.5])
    logits = torch.tensor([[0.4, -0.2], [0.1, 0.3], [-0.5, 0.2]], dtype=torch.float64, requires_grad=True)
    table = torch.log_softmax(logits, 1)
    tokens = torch.stack([torch.stack([table[0, a], table[1 + a, b]]) for a, b in answers])  # [answer, token]
    value = (tokens.sum(1).exp() * vector(reward)).sum()
    (analytic,) = torch.autograd.grad(value, logits, retain_graph=True)
    chance = tokens.sum(1).exp().detach()
    total = torch.zeros(())
    for draw in itertools.product(range(4), repeat=3):
        a = advantages(reward[list(draw)], ["g"] * 3, **how)
        logprobs = tokens[list(draw)].reshape(-1)
        events = Events(vector(np.repeat(a, 2)), torch.full((6,), 1 / 3).double(), torch.tensor([0, 0, 1, 1, 2, 2]), 3,
                        sampler_logprobs=logprobs.detach())  # fmt: skip
        loss, _ = policy_loss(
            logprobs, events, LossSection(objective=objective), NO_KL, NO_CORRECTION, beta=0, correct=False
        )
        total = total + chance[list(draw)].prod() * loss
    (update,) = torch.autograd.grad(-total, logits)
    close(update, factor * analytic.numpy(), 5e-9)

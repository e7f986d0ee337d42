"""One optimizer step: masters, gradients, schedule, state."""

import copy
import math

import pytest
import torch
from test_executors import batch_of, episodes, off_policy, tiny

from milepost.learner import Learner, deal, default_lr
from milepost.models import Policy
from milepost.sections import CorrectionSection, KlSection, LossSection, OptimizerSection, UpdateSection
from milepost.types import Credit


def policy_of(model, precision="float32"):
    masters = {n: p.detach().float() for n, p in model.named_parameters()}
    if precision == "bfloat16":
        masters = {n: m.clone() for n, m in masters.items()}
        model = model.to(torch.bfloat16)
    count = sum(p.numel() for p in model.parameters())
    return Policy(model, None, frozenset({0}), masters, count, "tiny", "tiny", precision, "cpu")


def learner_of(policy, lr=0.01, steps=10, **optimizer):
    return Learner(policy, OptimizerSection(**optimizer), UpdateSection(), lr=lr, total_steps=steps)


def test_two_rewards_move_the_weights_although_the_loss_is_zero():
    """case A1: one prompt, two answers, A = ±1, equal lengths, ratio 1: |loss| < 1e-6, gradient > 0, weights move."""
    pairs = [p for p in episodes(groups=1, size=40, turns=(1, 1)) if p[0].num_sampled == 3][:2]
    assert len(pairs) == 2
    pairs = [
        (e, Credit(e.id, torch.full((e.num_sampled,), sign).numpy(), True, True))
        for (e, _), sign in zip(pairs, (1.0, -1.0))
    ]
    policy = policy_of(tiny())
    before = {n: m.clone() for n, m in policy.masters.items()}
    report = learner_of(policy).update(batch_of(pairs), LossSection())
    assert abs(report.loss) < 1e-6 and report.grad_norm > 0
    assert any(not torch.equal(before[n], m) for n, m in policy.masters.items())


def test_nothing_to_learn_changes_nothing():
    """case C3: no step, no moment, no schedule."""
    learner = learner_of(policy_of(tiny()))
    before = [m.clone() for m in learner.masters.values()]
    report = learner.update(None, LossSection())
    assert not report.stepped and learner.num_steps == 0 and math.isfinite(report.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.masters.values()))


PLAIN_STEP = {"eps": 1e3, "grad_clip": 1e9, "warmup_steps": 0}
"""With so large an epsilon Adam's first step is proportional to the gradient: a factor in it would be seen."""


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_is_the_same_however_its_batch_is_split_and_packed(precision):
    """cases A14–A16, A37, L4: loss, gradient norm, every metric and the new weights, with KL, correction and clipping."""
    results = []
    for executor, tokens in (("packed", 10_000), ("packed", 40), ("packed", 1), ("plain", 10_000), ("plain", 1)):
        policy = policy_of(tiny(), precision)
        before = torch.cat([m.flatten().clone() for m in policy.masters.values()])
        update = UpdateSection(executor=executor, tokens_per_call=tokens)
        learner = Learner(policy, OptimizerSection(**PLAIN_STEP), update, lr=1.0, total_steps=1)
        batch = off_policy(batch_of(episodes(groups=4)))
        num_calls = len(learner.executor.calls(batch))
        loss, kl, correction = LossSection(), KlSection(beta=0.1, estimator="k3"), CorrectionSection(kind="mis")
        report = learner.update(batch, loss, kl, correction, beta=0.1, correct=True)
        assert learner.executor.kind == executor
        moved = torch.cat([m.flatten() for m in policy.masters.values()]) - before
        results.append((num_calls, report, moved))
    assert [num_calls for num_calls, _, _ in results] == [1, 4, 12, 1, 12]
    _, first, step = results[0]
    rel = 1e-4 if precision == "float32" else 0.05
    assert {"clip_high", "kl/k3", "correction/masked", "mismatch/ess", "entropy/mean"} <= first.metrics.keys()
    for _, report, moved in results[1:]:
        assert (report.loss, report.grad_norm) == pytest.approx((first.loss, first.grad_norm), rel=rel)
        assert report.metrics == pytest.approx(first.metrics, rel=rel, abs=rel / 10)
        assert float((moved - step).norm()) <= rel * float(step.norm())


def test_bfloat16_working_copy_keeps_float32_masters_and_small_updates():
    """A pure bfloat16 optimizer would lose updates of relative size 1e-4; the masters keep them."""
    policy = policy_of(tiny(), "bfloat16")
    before = {n: m.clone() for n, m in policy.masters.items()}
    learner = learner_of(policy, lr=1e-5)
    learner.update(batch_of(episodes()), LossSection())
    moved = torch.cat([(policy.masters[n] - before[n]).abs().flatten() for n in before])
    assert 0 < float(moved.max()) <= 1.1e-5
    for name, working in policy.model.named_parameters():
        assert working.grad is None
        assert torch.equal(working, policy.masters[name].to(torch.bfloat16))


def test_state_restores_bit_equal_steps():
    """case G6: moments, schedule, counters; the next step is the unbroken run's."""
    batches = [batch_of(episodes(seed)) for seed in range(4)]
    whole = learner_of(policy_of(tiny()), schedule="cosine", warmup_steps=1)
    for batch in batches[:2]:
        whole.update(batch, LossSection())
    state = copy.deepcopy(whole.state())
    reports = [whole.update(b, LossSection()) for b in batches[2:]]
    again = learner_of(policy_of(tiny()), schedule="cosine", warmup_steps=1)
    again.load_state(state)
    assert [again.update(b, LossSection()) for b in batches[2:]] == reports
    assert all(torch.equal(again.masters[n], m) for n, m in whole.masters.items())


def test_schedule_by_hand():
    learner = learner_of(policy_of(tiny()), lr=1.0, steps=12, schedule="linear", warmup_steps=2)
    rates = []
    for step in range(12):
        learner.num_steps = step
        rates.append(learner.current_lr())
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.0, 0.9]) and rates[-1] == pytest.approx(0.1)


def test_warm_up_takes_a_fifth_of_the_updates_and_at_most_ten():
    assert [learner_of(policy_of(tiny()), steps=n).warmup_steps for n in (3, 12, 50, 500)] == [0, 2, 10, 10]
    assert learner_of(policy_of(tiny()), steps=500, warmup_steps=0).warmup_steps == 0
    assert learner_of(policy_of(tiny()), lr=1.0, steps=10).current_lr() == 0.5


def test_a_broken_gradient_stops_before_the_weights_change():
    policy = policy_of(tiny())
    learner = learner_of(policy)
    pairs = [(e, Credit(e.id, c.advantages * float("inf"), True, True)) for e, c in episodes(groups=1)]
    before = {n: m.clone() for n, m in policy.masters.items()}
    with pytest.raises(FloatingPointError, match="nothing was changed"):
        learner.update(batch_of(pairs), LossSection())
    assert all(torch.equal(before[n], m) for n, m in policy.masters.items())


def test_groups_are_dealt_whole_and_evenly():
    assert deal(["a", "a", "b", "c", "c"], 2) == [["a", "c"], ["b"]]
    assert deal(["a"], 3) == [["a"]]


def test_learning_rate_falls_with_size():
    assert default_lr(7_000_000_000, "grpo") == 2e-6
    assert default_lr(135_000_000, "grpo") == 1e-5
    sizes = [default_lr(n, "grpo") for n in (500_000, 2e7, 1.35e8, 5e8, 3e9, 7e9)]
    assert sizes == sorted(sizes, reverse=True)

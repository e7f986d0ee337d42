"""Levers in the GRPO loop on a small policy: what is played, what is trained on, what it costs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from small import SHORT_ROWS, small_session
from test_executors import batch_of, episodes, off_policy, tiny
from test_learner import policy_of

from milepost.learner import Learner
from milepost.sections import LossSection, OptimizerSection, UpdateSection
from milepost.stages.grpo import Loop, run_grpo
from milepost.stages.session import with_chosen
from milepost.types import Reward

pytestmark = pytest.mark.usefixtures("one_thread")

NOTHING_HELD_OUT = {"tasks__validation": 0, "tasks__test": 0}
TWICE = {"update__num_iterations": 2}


def session_of(tmp_path, warm, rows=SHORT_ROWS, **changes):
    return small_session(tmp_path, warm, rows, **{"grpo__steps": 2, **NOTHING_HELD_OUT, **changes})


def recorded(monkeypatch):
    """The batches the learner is given from now on."""
    batches, genuine = [], Learner.update

    def recording(self, batch, *args, **kwargs):
        batches.append(batch)
        return genuine(self, batch, *args, **kwargs)

    monkeypatch.setattr(Learner, "update", recording)
    return batches


# --- dynamic sampling and sizes


def test_refills_fill_the_batch_with_signal(tmp_path, warm):
    """Every second task cannot be solved. Without refills such groups are in the batch, with them hardly any."""
    rows = [{**row, "answer": "no"} if i % 2 else row for i, row in enumerate(SHORT_ROWS)]
    shares = []
    for refills in (0, 4):
        with session_of(tmp_path / str(refills), warm, rows, levers__refills=refills, grpo__steps=3) as session:
            run_grpo(session)
            shares.append([value for _, value in session.run.metrics("groups/with_signal", "grpo")])
            found = [session.run.step_metrics(step, "grpo") for step in (1, 2, 3)]
            stored = [[(g.task.key, len(members)) for g, members in session.run.groups("grpo", n)] for n in (1, 2, 3)]
    assert np.mean(shares[1]) > np.mean(shares[0]) + 0.2
    assert all(len({key for key, _ in step}) == 4 and {n for _, n in step} == {4} for step in stored)
    assert any(metrics["refill/rounds"] for metrics in found)
    for metrics in found:
        assert metrics["refill/rollouts"] == 4 * metrics["refill/groups"] and metrics["refill/rounds"] <= 4
        assert metrics["refill/tokens"] > 0 or not metrics["refill/rounds"]
        assert metrics["tokens/sampled"] > metrics["refill/tokens"]
        if metrics["refill/rounds"]:  # half the tasks fail always, and the batch hides it
            assert metrics["success/sampled"] < metrics["success/train"]


def test_refills_end_although_nothing_has_signal(tmp_path, warm):
    rows = [{**row, "answer": "no"} for row in SHORT_ROWS]
    with session_of(tmp_path, warm, rows, levers__refills=2, grpo__steps=1) as session:
        run_grpo(session)
        metrics = session.run.step_metrics(1, "grpo")
        assert len(list(session.run.episodes("grpo", 1))) == 16
    assert (metrics["refill/rounds"], metrics["refill/groups"], metrics["refill/rollouts"]) == (2, 8, 32)
    assert metrics["groups/constant"] == 1 and metrics["success/sampled"] == 0


def test_the_control_refills_by_its_coin(tmp_path, warm):
    """Nobody succeeds, so that by rewards all groups would be replaced in both rounds; coins differ in seven of eight."""
    rows = [{**row, "answer": "no"} for row in SHORT_ROWS]
    changes = {"levers__refills": 2, "grpo__steps": 1, "grpo__random_reward": True}
    with session_of(tmp_path, warm, rows, **changes) as session:
        run_grpo(session)
        assert session.run.step_metrics(1, "grpo")["refill/groups"] < 4


def test_sizes_by_schedule_and_by_task(tmp_path, warm):
    with session_of(tmp_path / "a", warm, levers__group_size_end=2, grpo__steps=3) as session:
        run_grpo(session)
        sizes = [Counter(s.episode.group_id for s in session.run.episodes("grpo", step)) for step in (1, 2, 3)]
        assert session.run.metrics("groups/size", "grpo") == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert [set(step.values()) for step in sizes] == [{4}, {3}, {2}]
    levers = {"mixed_chance": 0.6, "group_size_min": 2, "group_size_max": 12}
    changes = {"rollout__prompts_per_step": 3, "grpo__steps": 3, "optimizer__lr": 1e-9}
    with session_of(tmp_path / "b", warm, SHORT_ROWS[:3], levers=levers, **changes) as session:
        run_grpo(session)
        stored = [list(session.run.groups("grpo", step)) for step in (1, 2, 3)]
    assert [len(members) for _, members in stored[0]] == [4, 4, 4]
    for group, members in stored[1]:  # every task comes in every step
        first = next(some for g, some in stored[0] if g.task.key == group.task.key)
        p = (sum(s.reward.success for s in first) + 1) / 6
        size = next((n for n in range(2, 12) if 1 - p**n - (1 - p) ** n >= 0.6), 12)
        assert len(members) == size and {s.episode.id.member for s in members} == set(range(size))


def test_harder_rows_come_later(tmp_path, warm):
    """Level 1 to 3; a mark that any success reaches, and a window of one step: a level per step."""
    rows = [{**row, "level": i % 3} for i, row in enumerate(SHORT_ROWS)]
    levers = {"difficulty_column": "level", "difficulty_levels": 3, "difficulty_success": 0.01, "window": 1}
    with session_of(tmp_path, warm, rows, levers=levers, grpo__steps=4, rollout__prompts_per_step=8) as session:
        run_grpo(session)
        level = {task.key: task.columns["level"] for task in session.tasks.train}
        played = [{level[g.task.key] for g, _ in session.run.groups("grpo", step)} for step in range(1, 5)]
        told = [(e.step, e.message) for e in session.run.events("info") if e.kind == "levers"]
        assert session.run.metrics("curriculum/level", "grpo")[0] == (1, 1.0)
    assert played[0] == {0} and played[1] <= {0, 1} and 2 not in played[1]
    assert told[0] == (1, "difficulty level 2 of 3 comes in")


# --- success replay


class FailsAt:
    """A grader whose verdict is failure for all in one step."""

    def __init__(self, grader, step):
        self.grader, self.step = grader, step

    def __getattr__(self, name):
        return getattr(self.grader, name)

    def score(self, groups):
        rewards = self.grader.score(groups)
        failed = Reward(0.0, {"exact": 0.0}, False, True)
        return [[failed if e.id.step == self.step and e.id.phase == "train" else r for e, r in zip(g.episodes, row)]
                for g, row in zip(groups, rewards)]  # fmt: skip


def replaying(tmp_path, warm, **changes):
    """Four tasks that all come in every step, the same ones; in step 2 nobody succeeds."""
    return session_of(tmp_path, warm, SHORT_ROWS[:4], levers__success_replay=True, **changes)


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_stored_success_joins_a_group_of_failures_with_its_own_log_probs(tmp_path, warm, monkeypatch, iterations):
    batches = recorded(monkeypatch)
    changes = {"update__num_iterations": iterations, "optimizer__lr": 1e-2, "optimizer__warmup_steps": 0}
    with replaying(tmp_path, warm, **changes) as session:
        session.grader = FailsAt(session.grader, 2)
        run_grpo(session)
        first = {s.episode.id: s for s in session.run.episodes("grpo", 1)}
        second = list(session.run.episodes("grpo", 2))
        metrics = [session.run.step_metrics(step, "grpo") for step in (1, 2)]
        warnings = [e.kind for e in session.run.events("warning")]
    solved = {s.episode.id.task_key for s in first.values() if s.reward.success}
    assert solved and metrics[0]["replay/episodes"] == 0 and metrics[1]["replay/episodes"] == len(solved)
    assert metrics[1]["success/train"] == 0 and len(second) == 16  # statistics and store: what was sampled, and no more
    assert "no_signal" not in warnings
    batch = batches[-1]
    assert {e.step for e in batch.episodes} == {1} and {e.task_key for e in batch.episodes} == solved
    assert batch.advantage_E.tolist() == [1.0] * batch.num_events
    np.testing.assert_array_equal(batch.old_E, batch.sampler_E)
    for i, name in enumerate(batch.episodes):
        assert first[name].reward.success
        (turn,) = first[name].episode.turns
        np.testing.assert_array_equal(batch.sampler_E[batch.episode_E == i].astype(np.float32), turn.sampled.logprobs)
    # The policy has moved since: the ratio of the very first update on them is none of 1.
    assert metrics[1]["ratio/mean_abs_deviation"] > 1e-3 > metrics[0]["ratio/mean_abs_deviation"] or iterations == 2


def test_a_replayed_success_becomes_more_likely(tmp_path, warm):
    """One step on nothing but replayed successes raises their log-probs, though no sampled episode succeeded."""
    with replaying(tmp_path, warm, optimizer__lr=1e-3, optimizer__warmup_steps=0) as session:
        loop = Loop(session, "grpo", None)
        groups = loop.rollouts.take(1)
        rewards = session.grader.score(groups)
        session.run.commit_step(1, "grpo", groups, rewards)
        loop.levers.end_step(1, groups, rewards)
        groups = loop.rollouts.take(2)
        rewards = FailsAt(session.grader, 2).score(groups)
        joins = loop.replays(groups, rewards)
        batch = batch_of([(one.episode, one.credit) for one in joins])
        before = loop.learner.score(batch)
        credits, (report,) = loop.update(2, groups, rewards)
        after = loop.learner.score(batch)
    assert joins and report.stepped and not any(c.advantages.any() for row in credits for c in row)
    assert after.mean() > before.mean()


def test_the_control_by_coin_replays_by_coin(tmp_path, warm, monkeypatch):
    """Chosen by success, rewarded by coin: half of them are pushed down, or the control would learn what is right."""
    with replaying(tmp_path, warm, grpo__random_reward=True) as session:
        loop = Loop(session, "grpo", None)
        groups = loop.rollouts.take(1)
        rewards = [[Reward(1.0, success=True) for _ in g.episodes] for g in groups]
        session.run.commit_step(1, "grpo", groups, rewards)
        loop.levers.end_step(1, groups, rewards)
        groups = loop.rollouts.take(2)
        rewards = [[Reward(0.5, success=False) for _ in g.episodes] for g in groups]
        told = [float(one.credit.advantages[0]) for one in loop.replays(groups, rewards)]
    assert set(told) <= {0.5, -0.5} and len(told) == 4


# --- tokens


PLAIN_STEP = {"eps": 1e3, "grad_clip": 1e9, "warmup_steps": 0}


def test_chosen_tokens_are_the_same_however_the_batch_is_split():
    """Three masks at once: loss, gradient norm, every metric, in one call, in twelve, packed and plain."""
    loss = LossSection(top_entropy=0.5, kl_cov_share=0.2, kl_cov_beta=0.5, negative_mask=0.1)
    results = []
    for executor, tokens in (("packed", 10_000), ("packed", 1), ("plain", 10_000), ("plain", 1)):
        update = UpdateSection(executor=executor, tokens_per_call=tokens)
        learner = Learner(policy_of(tiny()), OptimizerSection(**PLAIN_STEP), update, lr=1.0, total_steps=1)
        batch = off_policy(batch_of(episodes(groups=4)))
        batch = with_chosen(batch, *learner.read(batch), loss)
        report = learner.update(batch, loss)
        results.append((batch.masked_E, batch.restrained_E, report))
    masked, restrained, first = results[0]
    assert 0.3 < masked.mean() < 0.6 and restrained.sum() == int(0.2 * (batch.advantage_E != 0).sum())
    for name in ("masked_entropy", "masked_negative", "masked_any", "restrained"):
        assert 0 < first.metrics[f"tokens/{name}"] < 1
    for other_masked, other_restrained, report in results[1:]:
        assert (masked == other_masked).all() and (restrained == other_restrained).all()
        assert (report.loss, report.grad_norm) == pytest.approx((first.loss, first.grad_norm), rel=1e-4)
        assert report.metrics == pytest.approx(first.metrics, rel=1e-4, abs=1e-5)


def test_tokens_of_groups_without_signal_have_no_say(tmp_path, warm, monkeypatch):
    """With KL in the loss constant groups are in the batch, else they are not: the choice is the same."""
    batches, chosen = recorded(monkeypatch), []
    for kl in ({}, {"kl__beta": 1e-9}):
        with session_of(tmp_path / str(len(kl)), warm, loss__top_entropy=0.2, **kl) as session:
            loop = Loop(session, "grpo", None)
            groups = loop.rollouts.take(1)
            loop.update(1, groups, session.grader.score(groups))
        (batch,) = batches
        batches.clear()
        told = batch.advantage_E != 0
        names = [(batch.episodes[e], t) for e, t in zip(batch.episode_E[told], batch.token_E[told])]
        chosen.append((names, batch.masked_E[told].tolist(), batch.num_events))
    assert chosen[0][:2] == chosen[1][:2] and chosen[0][2] <= chosen[1][2]
    assert 0.5 < np.mean(chosen[0][1]) <= 0.8


def test_levers_of_the_loss_run_and_are_measured(tmp_path, warm):
    loss = {"top_entropy": 0.2, "kl_cov_share": 0.05, "negative_mask": 0.5}
    with session_of(tmp_path, warm, loss=loss, optimizer__lr=1e-2, **TWICE) as session:
        run_grpo(session)
        metrics = session.run.step_metrics(2, "grpo")
    assert 0.5 < metrics["tokens/masked_entropy"] <= 0.8  # first tokens of siblings have equal entropies
    assert metrics["tokens/masked_any"] >= metrics["tokens/masked_entropy"]
    assert 0 < metrics["tokens/restrained"] <= 0.1
    assert 0 <= metrics["tokens/masked_negative"] < 1

"""The GRPO loop on a small policy: what it trains on, what it measures, what makes it warn or stop."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import SHORT_ROWS, settings, small_session, sorting_rows, write_rows

from milepost.engines.local import LocalEngine
from milepost.health.canary import first_update, one_policy
from milepost.launch import open_session
from milepost.learner import Learner
from milepost.recipe import PRESETS, make_recipe
from milepost.stages.grpo import Loop, run_grpo
from milepost.stages.pipeline import run_pipeline
from milepost.stages.session import RunStopped
from milepost.store import Run
from milepost.types import DataError, StopKind

pytestmark = pytest.mark.usefixtures("one_thread")

NOTHING_HELD_OUT = {"tasks__validation": 0, "tasks__test": 0}
NEVER_RIGHT = [{**row, "answer": "no"} for row in SHORT_ROWS]


def session_of(tmp_path, warm, rows=SHORT_ROWS, **changes):
    return small_session(tmp_path, warm, rows, **{"grpo__steps": 2, **NOTHING_HELD_OUT, **changes})


def first_step(session):
    """(groups, rewards, credits, update reports) of the first step."""
    loop = Loop(session, "grpo", None)
    groups = loop.rollouts.take(1)
    rewards = session.grader.score(groups)
    return groups, rewards, *loop.update(1, groups, rewards)


def weights_of(session):
    return {name: master.detach().clone() for name, master in session.policy.masters.items()}


ANSWERS = [name for name, sections in PRESETS.items() if sections["credit"].get("rule", "episode") in ("episode", "turn")]
"""Presets for single answers; test_credit_runs.py has those that need states to come back to."""


@pytest.mark.parametrize("preset", ANSWERS)
def test_every_preset_trains(tmp_path, warm, preset):
    with session_of(tmp_path, warm, preset=preset) as session:
        before = weights_of(session)
        run_grpo(session)
        assert session.run.metrics("updates/stepped", "grpo") == [(1, 1.0), (2, 1.0)]
        metrics = session.run.step_metrics(2, "grpo")
        assert all(map(math.isfinite, metrics.values()))
        assert metrics["grad_norm"] > 0
        assert any(not torch.equal(before[name], master) for name, master in session.policy.masters.items())
        assert ("kl/k3" in metrics) == (session.recipe.kl.beta > 0)


def test_the_second_pass_over_a_batch_has_other_ratios_than_one(tmp_path, warm):
    """cases A21, A22: with num_iterations = 2 the first pass has ratio 1 and the second has not."""
    with session_of(tmp_path, warm, update__num_iterations=2) as session:
        _, _, _, (first, second) = first_step(session)
    assert first.metrics["ratio/max_abs_deviation"] < 1e-5
    assert second.metrics["ratio/mean_abs_deviation"] > 1e-3


def test_every_minibatch_keeps_the_old_logprobs_of_before_the_first(tmp_path, warm):
    """case A23: the second of two mini-batches is already off-policy, and its ratio says so."""
    with session_of(tmp_path, warm, update__minibatches=2, rollout__prompts_per_step=8) as session:
        _, _, _, (first, second) = first_step(session)
    assert first.metrics["ratio/max_abs_deviation"] < 1e-5 < second.metrics["ratio/mean_abs_deviation"]
    assert second.metrics["mismatch/mean_abs"] < 1e-5  # π_old against the sampler: both from before the first update


def recorded(monkeypatch):
    """The batches the learner is given from now on."""
    batches, genuine = [], Learner.update

    def recording(self, batch, *args, **kwargs):
        batches.append(batch)
        return genuine(self, batch, *args, **kwargs)

    monkeypatch.setattr(Learner, "update", recording)
    return batches


def test_every_minibatch_has_the_denominator_of_its_own_tokens(tmp_path, warm, monkeypatch):
    """cases A15, A29, I2: 5 prompts in 2 mini-batches; constant groups count, and advantages arrive as credited."""
    batches = recorded(monkeypatch)
    changes = {"update__minibatches": 2, "rollout__prompts_per_step": 5, "update__tokens_per_call": 20}
    with session_of(tmp_path, warm, **changes) as session:
        groups, _, credits, _ = first_step(session)
    given = {c.episode: c for row in credits for c in row}
    parts = [{g.id for g in groups[i::2]} for i in (0, 1)]
    assert len(batches) == 2 and [len(part) for part in parts] == [3, 2]
    for batch, part in zip(batches, parts):
        trained = [e for g in groups if g.id in part for e in g.episodes if given[e.id].trained]
        assert set(batch.groups) <= part
        assert batch.weight_E == pytest.approx(np.full(batch.num_events, 1 / sum(e.num_sampled for e in trained)))
        for i, episode in enumerate(batch.episodes):
            assert batch.advantage_E[batch.episode_E == i].tolist() == given[episode].advantages.tolist()


def test_kl_pulls_back_although_no_group_has_a_signal(tmp_path, warm):
    """cases A18, A36: all A = 0 and β = 1: the loss has a gradient, and the policy comes nearer to the reference."""
    changes = {"kl__beta": 1.0, "optimizer__lr": 1e-4, "optimizer__warmup_steps": 0, "update__num_iterations": 2}
    with session_of(tmp_path, warm, NEVER_RIGHT, **changes) as session:
        loop = Loop(session, "grpo", None)
        with torch.no_grad():
            for master in loop.learner.masters.values():
                master.mul_(1.05)  # away from the reference
        groups = loop.rollouts.take(1)
        credits, (first, second) = loop.update(1, groups, session.grader.score(groups))
    assert all(c.constant_group and not c.advantages.any() for row in credits for c in row)
    assert first.stepped and first.grad_norm > 1e-3
    assert 0 < second.metrics["kl/k3"] < first.metrics["kl/k3"]


def test_constant_groups_make_no_step_and_say_why(tmp_path, warm, capsys):
    """case A25: no reward differs, so nothing is learned: no step, weights untouched, one clear warning at once."""
    with session_of(tmp_path, warm, NEVER_RIGHT) as session:
        before = weights_of(session)
        run_grpo(session)
        assert session.run.metrics("updates/empty", "grpo") == [(1, 1.0), (2, 1.0)]
        assert session.run.metrics("groups/constant", "grpo") == [(1, 1.0), (2, 1.0)]
        assert all(torch.equal(before[name], master) for name, master in session.policy.masters.items())
        warning = next(event for event in session.run.events("warning"))
    assert (warning.kind, warning.step) == ("no_signal", 1)
    assert "no learning signal" in warning.message and "always 0" in warning.message
    assert warning.message in capsys.readouterr().err


def test_no_signal_can_stop_the_run(tmp_path, warm):
    with (
        pytest.raises(RunStopped, match="step 1: no learning signal"),
        session_of(tmp_path, warm, NEVER_RIGHT, grpo__no_signal="stop") as session,
    ):
        run_grpo(session)
    with Run.open(tmp_path / "runs/run") as run:
        assert run.status == "stopped" and run.events("error") == []
        assert len(list(run.episodes("grpo", 1))) == 16  # what it stopped at can be looked at


def test_full_truncation_warns_in_the_first_batch_and_trains_nothing(tmp_path, warm, capsys):
    """cases C1, C3: no completion can end within 2 tokens."""
    with session_of(tmp_path, warm, rollout__max_new_tokens=2) as session:
        before = weights_of(session)
        run_grpo(session)
        assert session.run.metrics("episodes/truncated", "grpo") == [(1, 1.0), (2, 1.0)]
        assert session.run.metrics("updates/empty", "grpo") == [(1, 1.0), (2, 1.0)]
        assert all(map(math.isfinite, session.run.step_metrics(1, "grpo").values()))
        assert all(torch.equal(before[name], master) for name, master in session.policy.masters.items())
        assert [(e.kind, e.step) for e in session.run.events("warning")] == [("all_truncated", 1), ("all_truncated", 2)]
    assert "rollout.max_new_tokens" in capsys.readouterr().err


def test_full_truncation_can_stop_the_run(tmp_path, warm):
    changes = {"rollout__max_new_tokens": 2, "grpo__truncated_batch": "stop"}
    with pytest.raises(RunStopped, match=r"step 1: .*truncated"), session_of(tmp_path, warm, **changes) as session:
        run_grpo(session)


def test_random_rewards_reach_the_credit_and_nothing_else(tmp_path, warm):
    """The control trains on coins; what is stored and reported is still the genuine verdict."""
    found = {}
    for coin in (False, True):
        with session_of(tmp_path / str(coin), warm, grpo__random_reward=coin) as session:
            _, rewards, credits, _ = first_step(session)
        found[coin] = ([r.total for rs in rewards for r in rs], [list(c.advantages) for cs in credits for c in cs])
    assert found[True][0] == found[False][0]
    assert found[True][1] != found[False][1]


@pytest.mark.parametrize("recipe_says", [False, True])
def test_the_argument_makes_a_run_the_random_control_and_the_recipe_gives_the_default(tmp_path, warm, recipe_says):
    """Credits of the first step as stored: with coins for rewards, advantages go to episodes of equal verdicts too."""
    found = []
    for argument in (None, False, True):
        with session_of(tmp_path / str(argument), warm, grpo__steps=1, grpo__random_reward=recipe_says) as session:
            run_grpo(session, random_reward=argument)
            stored = list(session.run.episodes("grpo", 1))
            found.append([list(s.credit.advantages) for s in stored])
            assert session.recipe.grpo.random_reward is recipe_says
    by_default, genuine, coins = found
    assert coins != genuine
    assert by_default == (coins if recipe_says else genuine)


@pytest.mark.parametrize(
    "kl", [{"estimator": "k2"}, {"estimator": "k3_ratio"}, {"estimator": "k1", "place": "reward"}], ids=str
)
def test_kl_to_the_reference_starts_at_zero_and_is_logged(tmp_path, warm, kl):
    with session_of(tmp_path, warm, kl={"beta": 0.5, **kl}) as session:
        run_grpo(session)
        steps = [session.run.step_metrics(step, "grpo") for step in (1, 2)]
    assert [metrics["kl/beta"] for metrics in steps] == [0.5, 0.5]
    if kl.get("place") != "reward":
        assert abs(steps[0]["kl/k3"]) < 1e-9 < steps[1]["kl/k3"]


def test_kl_in_the_reward_lowers_the_advantage_of_what_moved_away(tmp_path, warm):
    """A = r − β·Σ(log π − log π_ref), less the mean of the others: the second step differs from the run without."""
    with session_of(tmp_path, warm, kl={"beta": 0.5, "estimator": "k1", "place": "reward"}) as session:
        loop = Loop(session, "grpo", None)
        groups = loop.rollouts.take(1)
        loop.update(1, groups, session.grader.score(groups))
        groups = loop.rollouts.take(2)
        rewards = session.grader.score(groups)
        penalty = loop.kl_penalty(groups, 0.5)
        credits, _ = loop.update(2, groups, rewards)
    group, verdicts, credit = groups[0], rewards[0], credits[0]
    shaped = np.array([r.total - penalty[e.id] for e, r in zip(group.episodes, verdicts)])
    assert any(abs(value) > 1e-4 for value in penalty.values())
    expected = [shaped[i] - np.delete(shaped, i).mean() for i in range(4)]
    assert [c.advantages[0] for c in credit] == pytest.approx(expected, abs=1e-9)


def test_drift_is_measured_without_a_reference(tmp_path, warm):
    with session_of(tmp_path, warm, grpo__steps=4, grpo__panel_every=2) as session:
        run_grpo(session)
        drift = session.run.metrics("drift/nats_per_token", "grpo")
        assert [step for step, _ in drift] == [2, 4] and all(value > 0 for _, value in drift)
        assert [step for step, _ in session.run.metrics("update_kl", "grpo")] == [1, 2, 3, 4]
        assert not (session.run.checkpoints / "reference").exists()  # β = 0: no reference exists


# --- canaries


def test_weights_that_do_not_reach_the_sampler_stop_the_run(tmp_path, warm):
    """cases F2, F8, F11: the sampler goes on with a copy from before the update."""
    with session_of(tmp_path, warm) as session:
        session.sampler = LocalEngine(copy.deepcopy(session.policy.model), session.policy.eos_ids, seed=0)
        with pytest.raises(RunStopped, match=r"step 1: after the update .* old weights"):
            run_grpo(session)


def test_a_head_scaled_in_the_learner_alone_is_seen_at_the_first_update(tmp_path, warm):
    """case F11: half the output head in the sampler only."""
    with session_of(tmp_path, warm) as session:
        stale = copy.deepcopy(session.policy.model)
        with torch.no_grad():
            stale.get_output_embeddings().weight.mul_(0.5)
        session.sampler = LocalEngine(stale, session.policy.eos_ids, seed=0)
        with pytest.raises(RunStopped, match="before any update"):
            run_grpo(session)


class Mistempered(LocalEngine):
    """Samples at half the temperature that it reports."""

    def sample(self, requests, settings):
        cooler = replace(settings, temperature=settings.temperature / 2)
        return [replace(s, temperature=settings.temperature) for s in super().sample(requests, cooler)]


def test_a_wrong_temperature_is_seen_at_the_first_update(tmp_path, warm):
    """case F1, the wrong way round: what was sampled at 0.5 is scored at 1."""
    with session_of(tmp_path, warm) as session:
        session.sampler = Mistempered(session.policy.model, session.policy.eos_ids, seed=0)
        with pytest.raises(RunStopped, match=r"step 1: before any update .* temperature"):
            run_grpo(session)


class LaterMistempered(Mistempered):
    """Samples training episodes of step 2 at half the temperature that it reports, and all else right."""

    def sample(self, requests, settings):
        if {(r.episode.phase, r.episode.step) for r in requests} == {("train", 2)}:
            return super().sample(requests, settings)
        return LocalEngine.sample(self, requests, settings)


def test_a_mismatch_that_comes_later_stops_the_run_too(tmp_path, warm):
    """case F10: every step's gap is held against the bound, not the first one's alone."""
    with session_of(tmp_path, warm, grpo__steps=3) as session:
        session.sampler = LaterMistempered(session.policy.model, session.policy.eos_ids, seed=0)
        with pytest.raises(RunStopped, match=r"step 2: before any update on this batch"):
            run_grpo(session)
        for name in ("mean_abs", "p99", "max", "k3"):
            assert [step for step, _ in session.run.metrics(f"mismatch/{name}", "grpo")] == [1, 2]


def test_canaries_of_the_first_update_by_value():
    """case A22: rounding is none; a ratio or a clipped token is told; the gap is held against the precision's bound."""
    quiet = {"ratio/max_abs_deviation": 1e-7, "clip_low": 0.0, "clip_high": 0.0, "mismatch/mean_abs": 9e-4}
    assert first_update(quiet) == [] == one_policy(quiet, "float32")
    for change in ({"ratio/max_abs_deviation": 1e-3}, {"clip_low": 0.01}, {"clip_high": 0.01}):
        assert [f.name for f in first_update({**quiet, **change})] == ["ratio_is_one"]
    gap = {"mismatch/mean_abs": 0.02}
    assert [(f.level, f.name) for f in one_policy(gap, "float32")] == [("stop", "sampler_is_learner")]
    assert one_policy(gap, "bfloat16") == []


def test_a_first_ratio_other_than_one_is_told_once(tmp_path, warm, monkeypatch):
    """case A22: log-probs that were noted a ten-thousandth off the learner's own."""
    genuine = Learner.score
    monkeypatch.setattr(Learner, "score", lambda self, batch: genuine(self, batch) + 1e-4)
    with session_of(tmp_path, warm, update__num_iterations=2) as session:
        run_grpo(session)
        warnings = [(e.kind, e.step) for e in session.run.events("warning")]
        assert session.run.metrics("ratio/max_abs_deviation", "grpo")[0][1] > 5e-5
    assert warnings == [("ratio_is_one", 1)]


def test_temperature_half_gives_ratio_one(tmp_path, warm):
    """case F1: policy, old and reference scores all use the temperature of sampling."""
    changes = {"rollout__temperature": 0.5, "update__num_iterations": 2, "kl__beta": 0.1}
    with session_of(tmp_path, warm, **changes) as session:
        _, _, _, (first, _) = first_step(session)
    assert first.metrics["mismatch/max"] < 1e-4
    assert first.metrics["ratio/max_abs_deviation"] < 1e-5
    assert abs(first.metrics["kl/k3"]) < 1e-9


def test_the_mismatch_does_not_grow_while_nothing_is_learned(tmp_path, warm):
    """case F9: a learning rate of next to nothing, 30 steps: the gap between sampler and learner has no trend."""
    with session_of(tmp_path, warm, grpo__steps=30, optimizer__lr=1e-12, rollout__group_size=2) as session:
        run_grpo(session)
        gap = np.array([value for _, value in session.run.metrics("mismatch/mean_abs", "grpo")])
    assert len(gap) >= 15 and 0 < gap.max() < 2e-6
    assert gap[-10:].mean() < 2 * gap[:10].mean()


# --- what is trained


def test_trained_ids_are_sampled_ids_through_the_whole_loop(tmp_path, warm, monkeypatch):
    """cases B, L6: batch, store and sampler hold the same ids, and every token stands behind its own history."""
    batches = recorded(monkeypatch)
    with session_of(tmp_path, warm, grpo__steps=3) as session:
        run_grpo(session)
        stored = {s.episode.id: s for s in session.run.episodes("grpo")}
    trained = Counter()
    for batch in batches:
        for i, episode in enumerate(batch.episodes):
            (turn,), mine = stored[episode].episode.turns, batch.episode_E == i
            assert batch.token_E[mine].tolist() == turn.sampled.ids.tolist()
            np.testing.assert_array_equal(batch.sampler_E[mine].astype(np.float32), turn.sampled.logprobs)
            for t, node in enumerate(batch.node_E[mine]):
                history = [*turn.context_ids.tolist(), *turn.sampled.ids[:t].tolist()]
                assert path_to(batch.forest, node) == history
            trained[episode] += 1
    wanted = {s.episode.id for s in stored.values() if s.credit.trained and not s.credit.constant_group}
    assert trained == Counter(wanted) and len(wanted) > 10


def path_to(forest, node):
    ids = []
    while node >= 0:
        ids.append(int(forest.ids_U[node]))
        node = forest.parent_U[node]
    return ids[::-1]


def test_a_prompt_and_a_completion_at_their_limits_are_trained_whole(tmp_path, warm, monkeypatch):
    """case C10: tasks.max_prompt_tokens limits the prompt, rollout.max_new_tokens the completion; nothing cuts both."""
    batches = recorded(monkeypatch)
    limits = {"tasks__max_prompt_tokens": 4, "rollout__max_new_tokens": 2, "rollout__truncated": "score"}
    rewarded = {"reward": {"functions": [{"name": "regex", "params": {"pattern": "^a"}}], "canary_good": "a"}}
    with session_of(tmp_path, warm, grpo__steps=1, update__tokens_per_call=1, **limits, **rewarded) as session:
        run_grpo(session)
        stored = {s.episode.id: s.episode for s in session.run.episodes("grpo")}
    sizes = {
        (len(stored[e].turns[0].context_ids), int((batch.episode_E == i).sum()))
        for batch in filter(None, batches)
        for i, e in enumerate(batch.episodes)
    }
    assert sizes == {(4, 2)}
    assert all(episode.num_sampled == 2 for episode in stored.values())


def test_planned_steps_are_executed_steps_in_the_given_order(tmp_path, warm):
    """case I7: as_given keeps a curriculum; 5 planned steps are 5 steps."""
    changes = {"grpo__steps": 5, "tasks__order": "as_given", "rollout__prompts_per_step": 3}
    with session_of(tmp_path, warm, **changes) as session:
        run_grpo(session)
        order = {task.key: task.prompt for task in session.tasks.train}
        played = [[order[g.task.key] for g, _ in session.run.groups("grpo", step)] for step in range(1, 6)]
    assert session.tasks.train[0].prompt == SHORT_ROWS[0]["prompt"]
    assert [prompt for step in played for prompt in step] == [row["prompt"] for row in SHORT_ROWS[:15]]


def test_one_prompt_a_step_with_eight_members_works(tmp_path, warm):
    """case I1: prompts per step and group size are all there is to set."""
    with session_of(tmp_path, warm, rollout__prompts_per_step=1, rollout__group_size=8) as session:
        run_grpo(session)
        assert [len(list(session.run.episodes("grpo", step))) for step in (1, 2)] == [8, 8]


def test_uneven_numbers_of_held_out_tasks_are_weighted_right(tmp_path, warm):
    """case I2: 13 tasks, rows that fit no chunk evenly: success is the mean over tasks of their own means."""
    changes = {"tasks__validation": 13, "eval__samples": 3, "update__tokens_per_call": 50, "rollout__prompts_per_step": 5}
    with session_of(tmp_path, warm, **changes) as session:
        run_grpo(session)
        report = session.run.evals("validation", "grpo")[-1].report
        rewards = [s.reward for s in session.run.episodes("grpo", 2, "validation")]
    assert report["num_tasks"] == 13 and len(rewards) == 39
    assert report["success"] == pytest.approx(np.mean([r.success for r in rewards]))


def test_too_few_prompts_for_a_batch_are_refused_before_there_is_a_run(tmp_path, warm):
    """case J8: 3 prompts, batch 8: never a run that ends well with 0 steps."""
    with (
        pytest.raises(DataError, match=r"rollout\.prompts_per_step = 8 .* only 3; use rollout\.prompts_per_step = 3"),
        session_of(tmp_path, warm, SHORT_ROWS[:3], rollout__prompts_per_step=8),
    ):
        pass
    assert not (tmp_path / "runs").exists()


def test_a_mixture_is_reported_by_source(tmp_path, warm):
    longer = sorting_rows(length=4, letters="abcdef", num=60)
    values = settings(tmp_path, warm, grpo__steps=2, tasks__validation=8, tasks__test=0)
    values["tasks"]["sources"] = [
        {"path": str(write_rows(tmp_path / "three.jsonl", SHORT_ROWS)), "weight": 3},
        {"path": str(write_rows(tmp_path / "four.jsonl", longer)), "weight": 1},
    ]
    with open_session(make_recipe(values), quiet=True) as session:
        run_grpo(session)
        sources = Counter(g.task.source for g, _ in session.run.groups("grpo", 1))
        report = session.run.evals("validation", "grpo")[-1].report
        metrics = session.run.step_metrics(1, "grpo")
    assert sources == {"three": 3, "four": 1}
    assert {name: some["num"] for name, some in report["sources"].items()} == {"three": 6, "four": 2}
    both = (6 * report["sources"]["three"]["mean"] + 2 * report["sources"]["four"]["mean"]) / 8
    assert report["success"] == pytest.approx(both)
    assert {"success/train/three", "success/train/four"} <= metrics.keys()


def test_an_unscorable_completion_leaves_its_group(tmp_path, warm):
    """cases D34, E1: None is no zero: out of the loss, out of the baseline of the others, counted."""
    code = tmp_path / "judge.py"
    code.write_text(
        "def judge(completions, answer, **columns):\n"
        "    return [None if c.startswith('a') else float(c == a) for c, a in zip(completions, answer)]\n"
    )
    with session_of(tmp_path, warm, reward={"functions": [{"name": f"{code}:judge"}]}) as session:
        run_grpo(session)
        groups = [members for _, members in session.run.groups("grpo", 1)]
        metrics = session.run.step_metrics(1, "grpo")
    gone = [s for members in groups for s in members if s.episode.completion.startswith("a")]
    assert 0 < len(gone) < 16
    for stored in gone:
        assert stored.reward.total is None and stored.reward.cause == "none"
        assert not stored.credit.trained and not stored.credit.in_baseline and not stored.credit.advantages.any()
    for members in groups:
        left = [s for s in members if s.reward.scorable]
        for stored in left if len(left) > 1 else []:
            others = [s.reward.total for s in left if s is not stored]
            if stored.credit.trained:
                assert stored.credit.advantages[0] == pytest.approx(stored.reward.total - np.mean(others))
    assert metrics["episodes/unscorable"] == len(gone) / 16
    assert metrics["unscorable/none"] == len(gone)


def test_test_episodes_say_which_weights_sampled_them(tmp_path, warm):
    """Updates of the stage's own learner: none, 3 of the warm start, and 2 steps of 2 mini-batches."""
    changes = {"sft__steps": 3, "update__minibatches": 2, "tasks__test": 4, "eval__test_samples": 2}
    with session_of(tmp_path, warm, **changes) as session:
        reports = run_pipeline(session)
        found = {
            (stage, s.split): {turn.sampled.versions for turn in s.episode.turns}
            for stage in reports
            for s in session.run.episodes(stage, split=None)
            if s.split
        }
    assert list(reports) == ["base", "sft", "grpo"]
    for stage, version in {"base": 0, "sft": 3, "grpo": 4}.items():
        assert found[stage, "test"] == {((0, version),)}
        assert found.get((stage, "test/greedy")) == (None if stage == "base" else {((0, version),)})


def test_stop_reasons_are_stored_apart_from_failures(tmp_path, warm):
    with session_of(tmp_path, warm, rollout__max_new_tokens=4) as session:
        run_grpo(session)
        kinds = Counter(s.episode.stop.kind for s in session.run.episodes("grpo"))
    assert set(kinds) <= {StopKind.TERMINATED, StopKind.TRUNCATED} and kinds[StopKind.TERMINATED] > 0

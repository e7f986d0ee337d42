"""Whole runs by each rule of credit: they learn, go on bit for bit when killed, and say what they measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import killed_after
from small_env import write_policy
from test_env_run import exact, one_thread, recipe  # noqa: F401  (the fixture is used by its name)

from milepost.critics import Critic, Teacher, check_teacher, turn_starts
from milepost.information import added, gains, gains_of, probes
from milepost.launch import open_session
from milepost.learner import Learner
from milepost.models import load_reader
from milepost.recipe import make_recipe
from milepost.sections import ModelSection
from milepost.stages.pipeline import run_pipeline
from milepost.stages.session import scoring_batch
from milepost.types import RecipeError

RULES = {
    "anchor": {"rule": "anchor", "gamma": 0.95, "history": 1},
    "graph": {"rule": "anchor", "anchor": "graph", "gamma": 0.95},
    "branch": {"rule": "branch", "branches": {"every": 1, "num": 2, "most": 2, "trunks": 4}},
    "vine": {"rule": "branch", "branches": {"form": "vine", "every": 1, "num": 1}},
    "treerl": {"rule": "branch", "branches": {"form": "treerl", "every": 1, "num": 1}},
    "value": {"rule": "value", "value_warmup": 1},
    "critic": {"rule": "value", "value_warmup": 1, "critic": "model"},
}


def sections(credit):
    return {f"credit__{key}": value for key, value in credit.items()}


@pytest.mark.parametrize("rule", ["branch", "value", pytest.param("critic", marks=pytest.mark.nightly)])
def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path, rule):
    short = {"grpo__steps": 4, "sft__steps": 30, "eval__every": 2, "tasks__validation": 4, "tasks__test": 4,
             "rollout__prompts_per_step": 4, "rollout__group_size": 4, **sections(RULES[rule])}  # fmt: skip
    unbroken, broken = tmp_path / "a", tmp_path / "b"
    for folder in (unbroken, broken):
        folder.mkdir()
    with open_session(recipe(unbroken, **short), quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        expected = [session.run.step_metrics(step, "grpo") for step in range(1, 5)]
    with killed_after(3), open_session(recipe(broken, **short), quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
    with open_session(session.recipe, resume=session.run.path, quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        found = [session.run.step_metrics(step, "grpo") for step in range(1, 5)]
        tokens = [sum(e.episode.num_own for e in session.run.episodes("grpo", step)) for step in range(1, 5)]
    assert [exact(m) for m in found] == [exact(m) for m in expected]
    if rule == "branch":  # four trunks of each group, two continuations from each of at most two turns
        assert all(0 < m["branch/episodes"] <= 4 * 4 * 4 and 0 < m["branch/tokens"] < 1 for m in found)
        assert tokens == [m["tokens/sampled"] for m in found]
    if rule in ("value", "critic"):
        assert all(m["value/loss"] >= 0 for m in found)


@pytest.mark.parametrize("preset", ["mt_grpo", "gigpo", "hgpo", "vineppo", "tree_grpo", "treerl"])
def test_every_preset_of_episodes_trains(tmp_path, preset):
    """And the form of branches that is no preset."""
    made = recipe(tmp_path, grpo__steps=2, sft__steps=30, eval__every=9, tasks__validation=4, tasks__test=4,
                  rollout__prompts_per_step=4).model_dump(exclude_defaults=True)  # fmt: skip
    branches = {"credit": {"branches": {"every": 1}}} if preset in ("vineppo", "tree_grpo") else {}
    chosen = {"credit": RULES["treerl"]} if preset == "treerl" else {"preset": preset, **branches}
    with open_session(make_recipe({**made, **chosen}), quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        assert session.run.metrics("updates/stepped", "grpo") == [(1, 1.0), (2, 1.0)]
        metrics = session.run.step_metrics(2, "grpo")
    assert metrics["grad_norm"] > 0
    assert ("branch/tokens" in metrics) == (preset in ("vineppo", "tree_grpo", "treerl"))


@pytest.mark.nightly
@pytest.mark.parametrize("rule", list(RULES))
def test_success_rises_by_every_rule(tmp_path, rule):
    with open_session(recipe(tmp_path, **sections(RULES[rule])), quiet=True) as session:
        reports = run_pipeline(session)
    assert reports["grpo"].success > reports["sft"].success + 0.15


def test_distillation_comes_nearer_to_its_teacher(tmp_path):
    with open_session(recipe(tmp_path, sft__steps=60, grpo__steps=0, tasks__test=8), quiet=True) as session:
        run_pipeline(session, stages=("sft",))
        teacher = session.run.checkpoints / "sft" / "step-000060" / "model"
    credit = {"rule": "distill", "teacher": str(teacher)}
    (tmp_path / "student").mkdir()
    made = recipe(tmp_path / "student", sft__steps=5, grpo__steps=20, tasks__test=8, **sections(credit))
    with open_session(made, quiet=True) as session:
        learner = Learner(session.policy, made.optimizer, made.update, lr=1e-3, total_steps=1)

        def distance():
            groups = session.play(session.tasks.validation, phase="probe", step=0, num_samples=4)
            batch = scoring_batch([e for g in groups for e in g.episodes])
            gaps = Teacher(session.policy, learner, str(teacher)).gaps(batch)
            return -float(np.mean(np.concatenate(list(gaps.values()))))  # KL(π‖teacher) per token

        run_pipeline(session, stages=("sft",))
        before = distance()
        run_pipeline(session, stages=("grpo",))
        after = distance()
    assert 0 <= after < 0.5 * before


def test_a_teacher_that_reads_other_tokens_is_refused(tmp_path):
    policy = load_reader(ModelSection(path=str(write_policy(tmp_path / "policy")))).tokenizer
    check_teacher(policy, str(tmp_path / "policy"))
    with pytest.raises(RecipeError, match=r"credit\.teacher = .* reads other tokens than the policy writes"):
        check_teacher(policy, "smollm2-135m")


def test_values_are_read_where_turns_begin_and_learned_from_returns(tmp_path):
    made = recipe(tmp_path, sft__steps=5, **sections(RULES["value"]))
    with open_session(made, quiet=True) as session:
        groups = session.play(session.tasks.validation, phase="probe", step=0, num_samples=4)
        episodes = [e for g in groups for e in g.episodes]
        batch = scoring_batch(episodes)
        starts = turn_starts(batch)
        assert starts.num_events == sum(len(e.turns) for e in episodes)
        firsts = [int(turn.sampled.ids[0]) for name in batch.episodes for turn in
                  next(e for e in episodes if e.id == name).turns]  # fmt: skip
        assert starts.token_E.tolist() == firsts
        learner = Learner(session.policy, made.optimizer, made.update, lr=1e-3, total_steps=1)
        for form in ("head", "model"):
            critic = Critic(session.policy, learner, made.credit.model_copy(update={"critic": form}), seed=0)
            assert all(not np.any(v) for v in critic.values(batch).values())  # it starts at 0
            # To be told: the number of turns that are left.
            targets = {e.id: np.arange(len(e.turns), 0, -1.0) for e in episodes}
            weights = [p.clone() for p in session.policy.model.parameters()]
            first, *_, last = [critic.update(batch, targets) for _ in range(60)]
            assert first["value/explained"] < 0 < last["value/explained"] and last["value/loss"] < 0.3 * first["value/loss"]
            assert all(torch.equal(p, q) for p, q in zip(weights, session.policy.model.parameters()))  # the policy stays
            again = Critic(session.policy, learner, made.credit.model_copy(update={"critic": form}), seed=1)
            again.load_state(critic.state())
            for name, values in critic.values(batch).items():
                assert again.values(batch)[name].tolist() == values.tolist()
                break


def test_e8_what_a_turn_told_is_the_rise_of_the_right_answers_probability():
    assert gains([0.1, 0.1, 0.4, 0.7]) == pytest.approx([0, 0.3, 0.3]) and gains([0.1, 0.7]).sum() == pytest.approx(0.6)


def test_information_is_probed_behind_what_stood_before_each_turn(tmp_path):
    credit = {"rule": "turn", "turns": "information", "answer": "{letters}"}
    made = recipe(tmp_path, sft__steps=10, grpo__steps=1, tasks__test=8, **sections(credit))
    with open_session(made, quiet=True) as session:
        run_pipeline(session, stages=("sft",))
        groups = session.play(session.tasks.validation[:4], phase="probe", step=0, num_samples=2)
        answer = session.codec.complete("abc")
        asked = probes(groups, lambda task: answer)
        several = [e for g in groups for e in g.episodes if len(e.turns) > 1]
        assert len(asked) == sum(len(e.turns) for e in several) > 8
        batch = scoring_batch(asked)
        before = [p.turns[0].context_ids for p in asked]
        logprobs = session.sampler.score([(np.concatenate([ids, answer]), len(ids), 1.0) for ids in before])
        by_hand = [float(np.exp(np.mean(values))) for values in logprobs]
        learner = Learner(session.policy, made.optimizer, made.update, lr=1e-3, total_steps=1)
        found = gains_of(groups, batch, learner.score(batch))
        assert set(found) == {e.id for e in several}
        at = 0
        for episode in several:
            mine, at = by_hand[at : at + len(episode.turns)], at + len(episode.turns)
            assert found[episode.id] == pytest.approx([*np.diff(mine), 0.0], abs=1e-5)
        one = several[0]
        on_top = added(None, {one.id: 1.0}, {one.id: found[one.id]}, 0.5)[one.id]
        assert on_top == pytest.approx([*(0.5 * found[one.id][:-1]), 1.0])
        run_pipeline(session, stages=("grpo",))  # and the loop takes it


def test_an_answer_that_names_no_column_is_told_before_the_model(tmp_path):
    credit = {"rule": "turn", "turns": "information", "answer": "{nothing}"}
    with pytest.raises(RecipeError, match=r"credit\.answer = '\{nothing\}' cannot be filled in"), \
            open_session(recipe(tmp_path, **sections(credit)), quiet=True):  # fmt: skip
        pass

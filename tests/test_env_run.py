"""Whole runs in an environment: from a warm start by script to GRPO, killed and resumed, with loops that do not pay."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_env import SPEC, Next, write_policy

from milepost.credit import assign
from milepost.evaluate import paired
from milepost.launch import open_session
from milepost.recipe import make_recipe
from milepost.reward_spec import EnvGrader
from milepost.stages.pipeline import run_pipeline
from milepost.stages.sft import demonstrated, with_contexts_trained
from milepost.store import Run
from milepost.types import Episode, EpisodeId, Group, RecipeError, Sampled, StopKind, StopReason, Task, Turn

RECIPE = {
    "tasks": {
        "format": "text",
        "validation": 40,
        "test": 100,
        "sources": [{"kind": "environment", "size": 400}],
    },
    "env": {"name": "small_env:SPEC", "max_turns": 4, "max_invalid": 3},
    "rollout": {"max_new_tokens": 3, "prompts_per_step": 8, "group_size": 8},
    "sft": {"demonstrations": "small_env:hasty", "steps": 60, "batch_size": 32, "lr": 3e-3},
    "grpo": {"steps": 30},
    "optimizer": {"lr": 1e-3},
    "eval": {"every": 10, "test_samples": 2},
}


def recipe(folder, **changes):
    values = {key: dict(value) for key, value in RECIPE.items()}
    for key, value in changes.items():
        section, name = key.split("__")
        values.setdefault(section, {})[name] = value
    return make_recipe({**values, "out": str(folder / "runs"), "model": {"path": str(write_policy(folder / "policy"))}})


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    torch.set_num_threads(1)
    with open_session(recipe(tmp_path_factory.mktemp("learned")), quiet=True) as session:
        reports = run_pipeline(session)
        steps = [session.run.step_metrics(step, "grpo") for step in range(1, 31)]
    return reports, steps


def test_success_over_three_turns_rises_by_grpo(learned):
    reports, _ = learned
    gain = paired(reports["sft"], reports["grpo"])
    assert 0.1 < reports["sft"].success < 0.6  # (2/3)³ is what the script itself earns
    assert gain.low99 > 0 and gain.difference > 0.2


def test_turns_and_stop_reasons_are_measured(learned):
    _, steps = learned
    for metrics in steps:
        reasons = {name: value for name, value in metrics.items() if name.startswith("stop/")}
        assert sum(reasons.values()) == pytest.approx(1)
        assert 1 <= metrics["turns/mean"] <= 4
    assert steps[-1]["stop/ended"] > 0.9
    assert 0 < np.mean([m["tree/unique_ratio"] for m in steps if "tree/unique_ratio" in m]) < 0.9


def test_a_demonstration_is_what_a_policy_would_have_played(tmp_path):
    with open_session(recipe(tmp_path, sft__demonstrations="gold"), quiet=True) as session:
        episodes = demonstrated(session)
        encode = session.policy.tokenizer.encode
        (end,) = session.policy.eos_ids
        task = next(t for t in session.tasks.train if t.key == episodes[0].id.task_key)
    letters = task.columns["letters"]
    assert len(episodes) == 260
    first, second, third = episodes[0].turns
    assert first.context_ids.tolist() == encode(f"{letters[0]}:\n")
    assert second.context_ids.tolist() == encode(f"\n{letters[1]}:\n")
    assert third.text == "bcdefgha"["abcdefgh".index(letters[2])]
    assert [t.sampled.ids.tolist()[-1] for t in episodes[0].turns] == [end] * 3


def test_a_warm_start_on_everything_trains_all_but_the_first_token_of_each_segment():
    def turn(context, ids, *, new_segment=False):
        return Turn(context, Sampled(ids, [0.0] * len(ids), 1.0, ((0, 0),), "stop"), "", new_segment=new_segment)

    turns = (turn([1, 2], [3, 4]), turn([5], [6]), turn([7, 8], [9], new_segment=True))
    done = StopReason(StopKind.TERMINATED, "ended")
    first, second = with_contexts_trained(Episode(EpisodeId("sft", 0, "k", 0), "g", turns, done)).turns
    assert (first.context_ids.tolist(), first.sampled.ids.tolist(), first.new_segment) == ([1], [2, 3, 4, 5, 6], False)
    assert (second.context_ids.tolist(), second.sampled.ids.tolist(), second.new_segment) == ([7], [8, 9], True)


@pytest.mark.parametrize("stop_after", [3])
def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path, stop_after, monkeypatch):
    short = {"grpo__steps": 6, "sft__steps": 10, "eval__every": 2, "tasks__validation": 8, "tasks__test": 8}
    unbroken, broken = tmp_path / "a", tmp_path / "b"
    for folder in (unbroken, broken):
        folder.mkdir()
    with open_session(recipe(unbroken, **short), quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        expected = [session.run.step_metrics(step, "grpo") for step in range(1, 7)]

    class Killed(BaseException):
        pass

    commit = Run.commit_step

    def dies(run, step, stage, *args, **kwargs):
        commit(run, step, stage, *args, **kwargs)
        if stage == "grpo" and step == stop_after:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):  # noqa: PT012
        patched.setattr(Run, "commit_step", dies)
        with open_session(recipe(broken, **short), quiet=True) as session:
            run_pipeline(session, stages=("sft", "grpo"))
    with open_session(session.recipe, resume=session.run.path, quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        found = [session.run.step_metrics(step, "grpo") for step in range(1, 7)]

    def exact(metrics):
        clocks = ("seconds/", "cpu_seconds", "peak_memory")
        return {name: value for name, value in metrics.items() if not name.startswith(clocks)}

    assert [exact(m) for m in found] == [exact(m) for m in expected]


def test_another_version_of_the_environment_is_not_gone_on_with(tmp_path, monkeypatch):  # case E11
    with open_session(recipe(tmp_path), quiet=True) as session:
        path = session.run.path
    monkeypatch.setattr("small_env.SPEC", replace(SPEC, version="2"))
    refused = pytest.raises(RecipeError, match=r"was played in next 1, but env\.name now gives next 2")
    with refused, open_session(session.recipe, resume=path, quiet=True):
        pass


class Hanging(Next):
    def step(self, action):
        time.sleep(30)


class Broken(Next):
    def step(self, action):
        raise OSError("the tool\nbroke")


@pytest.mark.parametrize(
    ("world", "sentence"), [(Hanging, "did not end within 0.4 seconds"), (Broken, "OSError: the tool broke")]
)
def test_a_world_that_cannot_be_played_is_told_before_the_model(tmp_path, monkeypatch, world, sentence):
    monkeypatch.setattr("small_env.SPEC", replace(SPEC, make=world))
    made = recipe(tmp_path, env__step_seconds=0.2, env__reset_seconds=0.2)
    with pytest.raises(RecipeError) as error, open_session(made, quiet=True):
        pass
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def episode(member, answers, stop, num_turns=2):
    """An episode of facts alone; `answers` is its final state."""
    states = [{"answers": answers[: k + 1]} for k in range(num_turns)]
    turns = tuple(
        Turn([1], Sampled([2, 3], [-1.0, -1.0], 1.0, ((0, 0),), "stop"), "b",
             facts={"state": state, "num_invalid": 0, "num_calls": 0}) for state in states
    )  # fmt: skip
    return Episode(EpisodeId("train", 1, "k", member), "g", turns, stop,
                   facts={"start": {"answers": []}, "final": {"answers": answers}})  # fmt: skip


def test_a_policy_that_loops_until_its_turns_are_used_up_is_pushed_away_from_it(tmp_path):
    task = Task("k", "a", columns={"letters": "ab"})
    done, looped = StopReason(StopKind.TERMINATED, "ended"), StopReason(StopKind.TRUNCATED, "turns")
    cut = StopReason(StopKind.TRUNCATED, "tokens")
    fault = StopReason(StopKind.FAULT, "hang")
    episodes = (episode(0, ["b", "c"], done), episode(1, ["b", "x"], looped), episode(2, ["x", "x"], cut),
                episode(3, ["x", "x"], fault))  # fmt: skip
    group = Group("g", task, episodes)
    made = recipe(tmp_path)
    rewards = EnvGrader.of(made, SPEC).score([group])
    (credits,) = assign([group], rewards, made.credit, made.rollout)
    # Rewards 1, 0, 0 of the three that count; the mean of the others is 0, ½, ½.
    assert [r.total for r in rewards[0]] == [1.0, 0.0, 0.0, None]
    assert [c.advantages[0] for c in credits] == [1.0, -0.5, 0.0, 0.0]
    assert [(c.trained, c.in_baseline) for c in credits] == [(True, True), (True, True), (False, True), (False, False)]


def test_tasks_of_no_environment_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"needs env\.name"):
        recipe(tmp_path, env__name="")
    with pytest.raises(RecipeError, match=r"reward\.functions does nothing while env\.name"):
        recipe(tmp_path / "other", reward__functions=[{"name": "exact"}])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env__name": "nowhere"}, "env.name = 'nowhere' is no environment"),
        ({"sft__demonstrations": "Answer: {answer}"}, 'use "gold"'),
        ({"tasks__sources": [{"kind": "environment", "size": 9, "params": {"lenght": 3}}]}, "the environment takes length"),
        ({"tasks__sources": [{"kind": "environment"}]}, "needs to know how many rows"),
        ({"env__max_context_tokens": 10**6}, "exceeds the model's context"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(RecipeError) as error, open_session(recipe(tmp_path, **changes), quiet=True):
        pass
    assert sentence in str(error.value) and "\n" not in str(error.value)

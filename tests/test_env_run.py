"""Whole runs in an environment: from a warm start by script to GRPO, killed and resumed, with loops that do not pay."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from gauges import counts
from small import killed_after
from small_env import SPEC, write_policy
from torture import NOT_COMPARED

from milepost.credit import assign
from milepost.evaluate import paired
from milepost.launch import open_session
from milepost.recipe import make_recipe
from milepost.reward_spec import EnvGrader
from milepost.stages.pipeline import run_pipeline
from milepost.stages.sft import batch_at, demonstrated, lessons_of, with_contexts_trained
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
        episodes = demonstrated(session, session.recipe.sft, session.tasks.train)
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


def exact(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith(NOT_COMPARED)}


LESSONS = [
    {"steps": 3, "size": 8, "params": {"length": 1}, "demonstrations": "gold", "batch_size": 4},
    {"steps": 2, "size": 60, "params": {"length": 2}},
]


def test_lessons_come_first_in_order_each_with_its_own_tasks_script_and_batch(tmp_path):
    with open_session(recipe(tmp_path, sft__lessons=LESSONS, sft__steps=8), quiet=True) as session:
        lessons = lessons_of(session)
        drawn = [batch_at(lessons, step, seed=0) for step in range(8)]
        again = [batch_at(lessons, step, seed=0) for step in range(8)]
        assert [lesson.first for lesson in lessons_of(session, 2)] == [0, 3, 5]
        assert [lesson.first for lesson in lessons_of(session, 3)] == [3, 5]  # the first is over, and not played again
        (last,) = lessons_of(session, only_last=True)  # what a control of the same demonstrations goes on with
    letters = {task.key: task.columns["letters"] for tasks in session.tasks.lessons for task in tasks}
    letters |= {task.key: task.columns["letters"] for task in session.tasks.train}
    shown = [[letters[episode.task_key] for episode in batch.episodes] for batch in drawn]
    sizes = [(len(batch), {len(text) for text in batch}) for batch in shown]
    assert sizes == [(4, {1})] * 3 + [(32, {2})] * 2 + [(32, {3})] * 3
    assert {*shown[0]} | {*shown[1]} == {*"abcdefgh"}  # eight tasks, four a step: each once
    assert [batch.episodes for batch in drawn] == [batch.episodes for batch in again]
    assert [len(lesson.examples) for lesson in lessons] == [8, 60, 260] and last.first == 0
    assert [e.id for e in last.examples] == [e.id for e in lessons[2].examples]
    assert all(e.turns[0].text != letters[e.id.task_key] for e in lessons[0].examples)  # gold never slips
    assert any(e.turns[0].text == letters[e.id.task_key][0] for e in lessons[1].examples)


def test_no_task_of_a_lesson_is_held_out(tmp_path):
    """All 64 tasks of two letters, 20 of them for tests: what a lesson makes of the same kind leaves those out."""
    tasks = {"tasks__sources": [{"kind": "environment", "size": 64, "params": {"length": 2}}], "tasks__validation": 8,
             "tasks__test": 12}  # fmt: skip
    lessons = [{"steps": 1, "size": 64, "params": {"length": 2}}]
    with open_session(recipe(tmp_path, sft__lessons=lessons, sft__steps=2, **tasks), quiet=True) as session:
        held_out = {task.columns["letters"] for task in (*session.tasks.validation, *session.tasks.test)}
        taught = {task.columns["letters"] for task in session.tasks.lessons[0]}
    assert len(held_out) == 20 and len(taught) == 44 and not held_out & taught


@pytest.mark.parametrize(
    ("lessons", "says"),
    [
        ([{"steps": 2, "size": 8, "params": {"width": 1}}], r"sft\.lessons\[0\]\.params = {'width': 1}: .* takes length"),
        ([{"steps": 2, "demonstrations": "silver"}], "sft.demonstrations = 'silver' demonstrates nothing in .* 'next'"),
        ([{"steps": 8}], r"sft\.lessons take 8 steps, but sft\.steps = 8 are all of them; use more than 8"),
    ],
)
def test_a_lesson_that_cannot_be_given_is_refused_at_once(tmp_path, lessons, says):
    with (
        pytest.raises(RecipeError, match=says),
        open_session(recipe(tmp_path, sft__lessons=lessons, sft__steps=8), quiet=True),
    ):
        pass


def test_a_warm_start_that_is_killed_between_lessons_goes_on_bit_for_bit(tmp_path):
    short = {"sft__steps": 8, "sft__lessons": LESSONS, "save__every": 2, "grpo__steps": 0, "tasks__test": 8,
             "tasks__validation": 8}  # fmt: skip
    unbroken, broken = tmp_path / "a", tmp_path / "b"
    for folder in (unbroken, broken):
        folder.mkdir()
    with open_session(recipe(unbroken, **short), quiet=True) as session:
        run_pipeline(session, stages=("sft",))
        expected = [session.run.step_metrics(step, "sft") for step in range(1, 9)]
    with killed_after(5, of="sft"), open_session(recipe(broken, **short), quiet=True) as session:
        run_pipeline(session, stages=("sft",))
    with open_session(session.recipe, resume=session.run.path, quiet=True) as session:  # from step 4, in the second lesson
        run_pipeline(session, stages=("sft",))
        found = [session.run.step_metrics(step, "sft") for step in range(1, 9)]
    assert [exact(m) for m in found] == [exact(m) for m in expected]


@pytest.mark.parametrize("stop_after", [3])
def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path, stop_after):
    short = {"grpo__steps": 6, "sft__steps": 10, "eval__every": 2, "tasks__validation": 8, "tasks__test": 8}
    unbroken, broken = tmp_path / "a", tmp_path / "b"
    for folder in (unbroken, broken):
        folder.mkdir()
    with open_session(recipe(unbroken, **short), quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        expected = [session.run.step_metrics(step, "grpo") for step in range(1, 7)]

    with killed_after(stop_after), open_session(recipe(broken, **short), quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
    with open_session(session.recipe, resume=session.run.path, quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        found = [session.run.step_metrics(step, "grpo") for step in range(1, 7)]

    assert [exact(m) for m in found] == [exact(m) for m in expected]


def test_another_version_of_the_environment_is_not_gone_on_with(tmp_path, monkeypatch):  # case E11
    with open_session(recipe(tmp_path), quiet=True) as session:
        path = session.run.path
    monkeypatch.setattr("small_env.SPEC", replace(SPEC, version="2"))
    refused = pytest.raises(RecipeError, match=r"was played in next 1, but env\.name now gives next 2")
    with refused, open_session(session.recipe, resume=path, quiet=True):
        pass


@pytest.mark.parametrize("isolated", [False, True], ids=["threads", "processes"])
@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        ("HANGING", "step: no answer within 0.2 s"),
        ("BROKEN", "step: OSError: the tool broke"),
        ("ENDING", "step: the process ended (exit status 0)"),
    ],
)
def test_a_world_that_cannot_be_played_is_told_before_the_model(tmp_path, world, sentence, isolated):
    """Also where episodes are to be played in the process of the training, which the last one would end silently."""
    more = {"env__name": f"small_env:{world}", "env__step_seconds": 0.2, "env__isolated": isolated}
    with pytest.raises(RecipeError) as error, open_session(recipe(tmp_path, **more), quiet=True):
        pass
    assert f" ended in {sentence}" in str(error.value) and "the gold policy at task" in str(error.value)
    assert "\n" not in str(error.value) and not (tmp_path / "runs").exists()


def test_a_run_whose_worlds_are_processes_trains(tmp_path):
    before = counts()
    costs = [{"name": "invalid", "weight": 0.1, "cap": 0.3}]  # a policy that knows nothing differs in these at least
    small = {"tasks__validation": 4, "tasks__test": 4, "sft__steps": 1, "grpo__steps": 2, "eval__test_samples": 1,
             "rollout__prompts_per_step": 4, "reward__costs": costs}  # fmt: skip
    with open_session(recipe(tmp_path, env__isolated=True, **small), quiet=True) as session:
        start = [weights.detach().clone() for weights in session.policy.model.parameters()]
        reports = run_pipeline(session)
        steps = [session.run.step_metrics(step, "grpo") for step in (1, 2)]
        moved = [not torch.equal(a, b) for a, b in zip(start, session.policy.model.parameters())]
        assert session.world.hosts._server is not None and not session.world.hosts.counts
    assert reports["grpo"].num_scored == 4 and any(moved)
    for metrics in steps:
        assert metrics["tokens/trained"] > 0 and metrics["episodes/fault"] == 0
        assert sum(value for name, value in metrics.items() if name.startswith("stop/")) == pytest.approx(1)
    deadline = time.monotonic() + 20
    while counts() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert counts() == before


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
        ({"env__name": "small_env:UNSUPPLIED"}, "generate(size=400, seed=0) raised OSError: no words, in "),
        ({"tasks__sources": [{"kind": "environment"}]}, "needs to know how many rows"),
        ({"env__max_context_tokens": 10**6}, "exceeds the model's context"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(RecipeError) as error, open_session(recipe(tmp_path, **changes), quiet=True):
        pass
    assert sentence in str(error.value) and "\n" not in str(error.value)

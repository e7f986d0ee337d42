"""Per-turn scorers: what they see and pay, what goes without a score, what is refused, and that their cost is counted."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace

import numpy as np
import pytest
import small_env
from counter_env import SPEC, TASK, played
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.cli import main
from milepost.credit import assign
from milepost.health.order import check_order
from milepost.launch import open_session
from milepost.recipe import make_recipe
from milepost.replay import replay
from milepost.rescore import judge_again, new_recipe, rescore
from milepost.reward import Grader
from milepost.reward_spec import EnvGrader, judge, make_reward, turn_rewards
from milepost.stages.compare import compare_run, cpu_of
from milepost.stages.controls import run_controls
from milepost.stages.grpo import Loop
from milepost.stages.pipeline import run_pipeline
from milepost.store import Run
from milepost.turn_scorers import TurnScorers
from milepost.types import Group, RecipeError, StopKind, StopReason


def recipe_of(*scorers, reward=None, **sections):
    entries = [{"name": f"turn_judges:{name}", **more} for name, more in scorers]
    env = {"name": "counter_env:SPEC", "max_turns": 40}
    return make_recipe(
        {"reward": {"turn_scorers": entries, "timeout_seconds": 30.0, **(reward or {})}, "env": env, **sections}
    )


def grader_of(*scorers, **more):
    return EnvGrader.of(recipe_of(*scorers, **more), SPEC)


def group_of(*plays):
    return Group("scripted/0/two", TASK, tuple(played(*words, member=i) for i, words in enumerate(plays)))


# ---- what is paid ----------------------------------------------------------------------------------------------------


def test_scores_are_summed_over_the_turns_and_capped():
    with grader_of(("careful", {"weight": 0.1, "cap": 0.22})) as grader:
        ((gold, undone),) = grader.score([group_of(("+", "+", "save", "done"), ("+", "-", "-"))])
    # + + save done: 1, 1, .5, .5 of them .1 each is .3, capped at .22;  + - -: 1, 0, 0
    assert gold.turn_scores == {"careful": (1.0, 1.0, 0.5, 0.5)} and undone.turn_scores == {"careful": (1.0, 0.0, 0.0)}
    assert [gold.parts[f"{kind}/careful"] for kind in ("scorer", "scored", "unscored")] == pytest.approx([0.22, 3.0, 0])
    assert (gold.total, undone.total) == (pytest.approx(1.22), pytest.approx(0.1))
    assert (gold.success, undone.success) == (True, False)


def test_by_the_turn_each_score_is_paid_where_it_belongs():
    recipe = recipe_of(("careful", {"weight": 0.1, "cap": 0.22}), credit={"rule": "turn"})
    spec, episode = make_reward(recipe, SPEC), played("+", "+", "save", "done")
    scores = {"careful": (1.0, None, 0.5, 1.0)}
    # .1, nothing, .05, and what the cap leaves of the last .1: .07; the outcome comes with the last turn
    assert turn_rewards(spec, SPEC, TASK, episode, scores=scores) == pytest.approx([0.1, 0, 0.05, 1.07])
    with EnvGrader.of(recipe, SPEC) as grader:
        group = group_of(("+", "+", "save", "done"), ("touch",))
        rewards = grader.score([group])
        earned = grader.turn_rewards([group], rewards)
        (credits,) = assign([group], rewards, recipe.credit, recipe.rollout, turn_rewards=earned)
    assert earned[group.episodes[0].id] == pytest.approx([0.1, 0.1, 0.02, 1.0])
    # Returns 1.22, 1.12, 1.02, 1; the other member's turn kept its distance: .05. "save" and "done" have two tokens each.
    assert credits[0].advantages == pytest.approx([1.17, 1.07, 0.97, 0.97, 0.95, 0.95])
    assert credits[1].advantages == pytest.approx([0.05 - 1.22, 0.05 - 1.22])


def test_weight_0_only_measures():
    with grader_of(("careful", {"weight": 0})) as grader:
        ((reward,),) = grader.score([group_of(("+", "+", "save"))])
        assert grader.spec.bounds()["scorer/careful"] == (0, 0)
    assert (reward.total, reward.parts["scorer/careful"], reward.parts["scored/careful"]) == (1.0, 0, 2.5)


def test_a_scorer_sees_the_turn_and_nothing_else(tmp_path):
    path = tmp_path / "seen"
    with grader_of(("writes_down", {"params": {"path": str(path)}})) as grader:
        grader.score([group_of(("+", "what?"))])
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    zero, one = {"count": 0, "saved": 0, "other": 0}, {"count": 1, "saved": 0, "other": 0}
    shown = [{"role": "user", "content": "2"}]
    assert first == {"target": 2, "turn": 0, "before": zero, "after": one, "action": "+", "messages": shown,
                     "observation": []}  # fmt: skip
    assert second == {**first, "turn": 1, "before": one, "after": one, "action": "what?", "messages": []}


def test_several_scorers_and_async_ones():
    with grader_of(("always", {"label": "a", "weight": 0.01}), ("slowly", {"weight": 0.02})) as grader:
        ((reward,),) = grader.score([group_of(("+", "+"))])
    assert reward.total == pytest.approx(0.02 + 0.02)
    assert reward.turn_scores == {"a": (1.0, 1.0), "slowly": (0.5, 0.5)}


# ---- no score, and no bounds -----------------------------------------------------------------------------------------


def test_a_turn_without_a_score_earns_nothing_and_is_counted(caplog):
    with grader_of(("by_word", {"weight": 0.1, "cap": 0.9})) as grader, caplog.at_level(logging.WARNING):
        ((reward, wrong),) = grader.score([group_of(("+", "touch", "save", "-", "+", "done"), ("touch", "touch"))])
        assert grader.counts == {"wrong": 2, "unscored/by_word/error: ValueError": 3, "unscored/by_word/none": 1,
                                 "unscored/by_word/not finite": 1}  # fmt: skip
    assert reward.turn_scores["by_word"] == (1.0, None, None, 0.0, 1.0, None)
    assert (reward.total, reward.parts["unscored/by_word"]) == (pytest.approx(0.2), 3)
    assert (wrong.total, wrong.success, wrong.cause) == (0.0, False, None)  # all without a score: the episode is judged
    assert len(caplog.records) == 1 and "no opinion" in caplog.text  # told once, with its traceback


@pytest.mark.parametrize(("name", "cause"), [("hangs_on_save", "timeout"), ("dies_on_save", "worker_died")])
def test_a_scorer_that_hangs_or_dies_costs_that_turn_alone(name, cause):
    with grader_of((name, {"weight": 0.1, "cap": 0.9}), reward={"timeout_seconds": 3.0}) as grader:
        ((reward, other),) = grader.score([group_of(("+", "save", "+"), ("+",))])
        assert grader.counts == {"wrong": 2, f"unscored/{name}/{cause}": 1}
    assert reward.turn_scores[name] == (1, None, 1) and other.turn_scores[name] == (1,)
    assert reward.total == pytest.approx(0.2)


def test_a_score_beyond_its_bounds_makes_the_episode_unscorable(caplog):
    with grader_of(("generous", {"weight": 0.01})) as grader, caplog.at_level(logging.ERROR):
        ((broken, fine),) = grader.score([group_of(("+", "save"), ("+", "+"))])
        assert grader.counts["unscorable/out of bounds: scorer/generous"] == 1
    assert broken.cause == "out of bounds: scorer/generous" and fine.total == pytest.approx(0.01)
    assert "the turn scorer generous said 1.5 of turn 2, and not a number from 0 to 1" in caplog.text


def test_what_is_no_number_stops_the_run_before_any_model():
    with grader_of(("talks", {})) as grader:
        sentence = r"expected a number from 0 to 1 or None, got str 'very good', from turn_judges:talks; return one"
        with pytest.raises(RecipeError, match=sentence):
            grader.score([group_of(("+",))])
        with pytest.raises(RecipeError, match=sentence):
            grader.try_out(TASK)


def test_cut_actions_and_faults_are_not_judged():
    episode = played("+", "+")
    first, last = episode.turns
    cut = replace(episode, turns=(first, replace(last, facts={**last.facts, "cut": True})),
                  stop=StopReason(StopKind.TRUNCATED, "tokens"))  # fmt: skip
    fault = replace(episode, id=replace(episode.id, member=1), stop=StopReason(StopKind.FAULT, "crash"))
    with grader_of(("always", {})) as grader:
        ((reward, broken),) = grader.score([Group(episode.group_id, TASK, (cut, fault))])
        assert grader.counts["unscored/always/cut"] == 1
        assert grader.spent()["scorer/calls"] == 1
    assert reward.turn_scores == {"always": (1.0, None)} and broken.cause == "fault: crash"


def test_without_its_scores_an_episode_is_not_judged():
    spec = make_reward(recipe_of(("always", {})), SPEC)
    assert judge(spec, SPEC, TASK, played("+")).cause == "no scores"
    assert judge(spec, SPEC, TASK, played("+"), scores={"always": (1.0, 1.0)}).cause == "no scores"  # of another episode
    assert judge(spec, SPEC, TASK, played("+"), scores={"always": (1.0,)}).total == pytest.approx(0.05)


# ---- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("alwys", {}, "turn_judges has no function 'alwys'; did you mean always or talks?"),
        ("sees_nothing", {}, "sees nothing of the turn; name some of task, turn, before, after, action, messages, obser"),
        ("wants_more", {}, "needs 'colour', which nothing fills in; it is given task, turn, before"),
        ("always", {"params": {"colour": 1}}, "has no parameter 'colour', which params sets; it takes action"),
        ("always", {"params": {"action": 1}}, "params.action is a name that Milepost fills in itself"),
    ],
)
def test_scorers_that_cannot_be_called_are_refused(name, more, sentence):
    with pytest.raises(RecipeError, match=rf"^reward\.turn_scorers\.0\.name = 'turn_judges:{name}'") as error:
        TurnScorers(recipe_of((name, more)).reward)
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"reward": {"turn_scorers": [{"name": "a:b"}]}}, "reward.turn_scorers does nothing while env.name is empty"),
        ({"reward": {"potential": 0.3}, "credit": {"rule": "turn"}}, "reward.potential = 0.3 does nothing while env"),
        ({"reward": {"turn_scorers": [{"name": "a:b"}, {"name": "c:b"}]}}, "two of them are called 'b'; give one of them"),
        ({"reward": {"turn_scorers": [{"name": "a:b", "cap": 0}]}}, "reward.turn_scorers.0.cap = 0"),
        ({"reward": {"turn_scorers": [{"name": "a:b", "weight": -1}]}}, "reward.turn_scorers.0.weight = -1"),
        ({"reward": {"turn_scorers": [{"name": "a:b", "weight": 0, "cap": 0.5}]}}, "cap = 0.5 does nothing while weight"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(values, sentence):
    with pytest.raises(RecipeError) as error:
        make_recipe(values)
    assert sentence in str(error.value) and "\n" not in str(error.value)


# ---- order -----------------------------------------------------------------------------------------------------------

TWO = (("always", {"weight": 0.3, "cap": 0.4}), ("careful", {"weight": 0.2, "cap": 0.3}))


def test_the_proof_names_what_scorers_pay():
    recipe = recipe_of(*TWO)
    report = check_order(make_reward(recipe, SPEC), SPEC, recipe, [TASK])
    assert report.ok
    assert report.proven[0] == (
        "totals: a success (1) that no turn scorer likes earns 1 or more, a failure with turns that always likes (0.4) and "
        "turns that careful likes (0.3) at most 0.7"
    )
    assert any("pays for more turns" in note for note in report.notes)
    earned = {one.script: one for one in report.earned}  # played with the scorers themselves
    assert earned["gold"].parts["scorer/always"] == pytest.approx(0.4)
    assert earned["ends early"].total == pytest.approx(0.3 + 0.2 * 0.5)
    broken = recipe_of(*TWO, reward={"milestones": {"half": 0.3}})
    (example,) = check_order(make_reward(broken, SPEC), SPEC, broken, [TASK]).counter_examples
    assert (example.failure, example.success) == (pytest.approx(1.0), 1.0)


def test_a_short_episode_cannot_reach_the_cap():
    recipe = recipe_of(("always", {"weight": 0.1, "cap": 1.0}), env={"name": "counter_env:SPEC", "max_turns": 5})
    assert make_reward(recipe, SPEC).bounds()["scorer/always"] == (0, 0.5)
    assert check_order(make_reward(recipe, SPEC), SPEC, recipe, [TASK]).ok


@given(data=st.data(), words=st.lists(st.sampled_from(["+", "-", "save", "touch"]), min_size=1, max_size=8))
@hypothesis_settings(max_examples=80, deadline=None)
def test_whatever_scorers_say_no_failure_outscores_a_success(data, words):
    """TWO is proven safe, and parts keep their bounds and add up, by the turn and in all."""
    spec, episode = make_reward(recipe_of(*TWO), SPEC), played(*words)
    row = st.lists(st.none() | st.floats(0, 1), min_size=len(words), max_size=len(words))
    scores = {label: data.draw(row) for label in ("always", "careful")}
    reward = judge(spec, SPEC, TASK, episode, scores=scores)
    assert reward.total >= 1.0 if reward.success else reward.total < 1.0
    for name, (low, high) in spec.bounds().items():
        assert low <= reward.parts[name] <= high
    assert turn_rewards(spec, SPEC, TASK, episode, scores=scores).sum() == pytest.approx(reward.total)


# ---- stored, shown, judged again -------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    """A run whose only group was judged by `careful`: the gold, and one that undoes."""
    recipe = recipe_of(("careful", {"weight": 0.1, "cap": 0.22}), credit={"rule": "turn"})
    group = group_of(("+", "+", "save", "done"), ("+", "-", "-"))
    with EnvGrader.of(recipe, SPEC) as grader, Run.create(tmp_path, recipe) as run:
        rewards = grader.score([group])
        earned = grader.turn_rewards([group], rewards)
        run.commit_step(1, "grpo", [group], rewards, assign([group], rewards, recipe.credit, recipe.rollout,
                                                            turn_rewards=earned))  # fmt: skip
    return run.path, rewards[0]


def test_scores_are_stored_with_the_episode_and_shown(stored):
    path, rewards = stored
    with Run.open(path) as run:
        assert [found.reward for found in run.episodes()] == rewards
        assert all("turn_scores" not in line.reward.parts for line in run.episode_lines())
    text = "\n".join(replay(path, "1"))
    assert "scored by careful: 1\n" in text and "scored by careful: 0.5" in text
    assert text.count("earned +0.1\n") == 2 and "earned +0.02" in text and "scorer/careful 0.22" in text
    assert "measured: scored/careful 3, unscored/careful 0" in text


def test_the_scorers_judge_stored_turns_again(stored, tmp_path):
    path, rewards = stored
    assert "every reward and every verdict is as it was" in rescore(path)
    text = rescore(path, overrides=["reward.turn_scorers.0.weight=0.01"], write="weak")
    assert "1.22 → 1.03" in text and "0.1 → 0.01" in text
    with Run.open(path) as run:
        assert run.rescored(1)["weak"].turn_scores == rewards[0].turn_scores
    without = tmp_path / "new.toml"
    without.write_text("[reward]\n")
    assert "1.22 → 1" in rescore(path, str(without))


def test_what_is_not_stored_cannot_be_judged_again_and_is_told(stored):
    path, rewards = stored
    with Run.open(path, write=True) as run:
        group = run.groups("grpo", 1)[0][0]
        old = tuple(
            replace(
                e, turns=tuple(replace(t, facts={k: v for k, v in t.facts.items() if k != "messages"}) for t in e.turns)
            )
            for e in group.episodes
        )
        run.commit_step(1, "grpo", [replace(group, episodes=old)], [rewards])
    again = ['reward.turn_scorers=[{name = "turn_judges:slowly", weight = 0.1, cap = 0.22}]']  # it wants to see messages
    assert "7 turns have no score by slowly: messages not stored" in rescore(path, overrides=again)
    with Run.open(path) as run:
        changes = judge_again(run, new_recipe(run.recipe, None, again)).changes
    assert [change.new.total for change in changes] == [1.0, 0.0]  # judged all the same


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_calls_and_cpu_seconds_of_turn_scorers_are_counted():
    with grader_of(("burns", {"params": {"seconds": 0.2}})) as grader:
        began = grader.spent()
        grader.score([group_of(("+", "+"), ("+",))])
        used = {name: value - began[name] for name, value in grader.spent().items()}
    assert used["scorer/calls"] == 3
    assert 0.6 <= used["scorer/cpu_seconds"] < 3  # the rest: what a worker does between calls, on a busy machine


def test_reward_functions_are_counted_in_the_same_way():
    section = make_recipe({"reward": {"functions": [{"name": "turn_judges:burns_by_answers"}]}}).reward
    with Grader(section) as grader:
        began = grader.spent()
        grader.score_texts(TASK, ["a", "b", "c"])
        used = {name: value - began[name] for name, value in grader.spent().items()}
    assert used["scorer/calls"] == 1 and 0.3 <= used["scorer/cpu_seconds"] < 2
    with Grader(make_recipe({"reward": {"functions": [{"name": "exact"}]}}).reward) as grader:
        assert grader.spent() == {}  # judged here, within this process


@pytest.fixture
def run_recipe(tmp_path):
    policy = small_env.write_policy(tmp_path / "policy", layers=1, width=32, heads=2)
    values = {
        "out": str(tmp_path / "runs"), "model": {"path": str(policy)},
        "tasks": {"format": "text", "validation": 2, "test": 4, "sources": [{"kind": "environment", "size": 60}]},
        "env": {"name": "small_env:SPEC", "max_turns": 4, "max_invalid": 3},
        "reward": {"turn_scorers": [{"name": "turn_judges:burns", "cap": 0.2, "params": {"seconds": 0.02}}]},
        "credit": {"rule": "turn"},
        "rollout": {"max_new_tokens": 3, "prompts_per_step": 2, "group_size": 2},
        "sft": {"demonstrations": "gold", "steps": 30, "batch_size": 8, "lr": 1e-2}, "grpo": {"steps": 3},
        "eval": {"test_samples": 1},
        "optimizer": {"lr": 1e-3},
    }  # fmt: skip
    return lambda **more: make_recipe({**values, **more})


def test_a_comparison_at_equal_cost_counts_what_judging_cost(run_recipe, one_thread, capsys):
    with open_session(run_recipe(), quiet=True) as session:
        run_pipeline(session)
        run = session.run
        steps = [run.step_metrics(step, "grpo") for step in (1, 2, 3)]
        turns = [sum(len(found.episode.turns) for found in run.episodes("grpo", step)) for step in (1, 2, 3)]
        cut = [sum(t.facts.get("cut", False) for f in run.episodes("grpo", step) for t in f.episode.turns)
               for step in (1, 2, 3)]  # fmt: skip
        budget = cpu_of(run, "grpo")
        began, worked = time.process_time(), session.grader.spent()["scorer/cpu_seconds"]
        run_controls(session)
        used = time.process_time() - began + session.grader.spent()["scorer/cpu_seconds"] - worked
    for metrics, num, skipped in zip(steps, turns, cut):
        assert metrics["scorer/calls"] == num - skipped
        assert metrics["scorer/cpu_seconds"] >= 0.02 * (num - skipped)
        assert metrics["cpu_seconds"] > metrics["scorer/cpu_seconds"]
    assert budget == pytest.approx(sum(metrics["cpu_seconds"] for metrics in steps))
    with Run.open(run.path) as run:
        assert cpu_of(run, "control-sft") >= budget  # it went on for as long
        assert 0 < cpu_of(run, "control-random") <= used
    compared = compare_run(run.path)
    assert compared.cpu_seconds[1] == budget and json.loads(compared.json())["after"]["cpu_seconds"] == budget
    assert f"CPU-seconds of training, processes that score included: sft {compared.cpu_seconds[0]:.0f}" in compared.text


def test_the_control_by_coin_learns_nothing_of_the_turns(run_recipe, one_thread):
    with open_session(run_recipe(), quiet=True) as session:
        run_pipeline(session, stages=("sft",))
        loop = Loop(session, "control-random", None, random_reward=True)
        groups = loop.rollouts.take(1)
        rewards, _ = loop.score(groups)
        earned = session.grader.turn_rewards(groups, rewards)
        credits, _ = loop.update(1, groups, rewards)
    assert any(len(turns) > 1 and turns[0] > 0 for turns in earned.values())  # there would be something to learn
    told = [credit.advantages for row in credits for credit in row if credit.trained]
    assert told
    for advantages in told:  # one coin each: ±1 or 0 beside the other's, the same for all tokens
        assert np.all(advantages == advantages[0]) and abs(advantages[0]) in (0.0, 1.0)


HEAVY = """
[env]
name = "calc"

[tasks]
validation = 4
test = 4

[[tasks.sources]]
kind = "environment"
size = 40

[[reward.turn_scorers]]
name = "turn_judges:always"
weight = 0.5
cap = 1.5
"""


def test_the_command_refuses_a_scorer_by_which_failures_could_win(tmp_path, capsys):
    heavy = tmp_path / "heavy.toml"
    heavy.write_text(HEAVY)
    assert main(["check", "reward", str(heavy)]) == 1
    assert "a failure with turns that always likes (1.5) earns 1.5, and a success (1)" in capsys.readouterr().out

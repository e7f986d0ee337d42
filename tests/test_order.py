"""No failure outscores a success: unsafe rewards are refused with numbers, safe ones pass and survive every attack."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from counter_env import SPEC, TASK, WORDS, played
from hypothesis import find, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from milepost.advantages import advantages, discounted_returns, gdpo
from milepost.cli import main
from milepost.env import Goal, Milestone
from milepost.health.order import check_functions, check_order, check_recipe, prove_order
from milepost.recipe import make_recipe
from milepost.reward_spec import judge, make_reward, turn_rewards

HALF, FULL = {"half": 0.3}, {"full": 0.3}
COST = {"name": "turns", "weight": 0.05}
TWO = [{**COST, "cap": 0.2}, {"name": "damage", "cap": 0.2}]

JUDGE, OTHER = {"name": "turn_judges:always", "weight": 0.1}, {"name": "turn_judges:careful", "weight": 0.1}

# name: (what refuses it, reward, other sections)
UNSAFE = {
    "milestones above the outcome": ("total", {"milestones": {"half": 0.6, "full": 0.6}, "milestone_cap": 1.2}, {}),
    "milestones as much as the outcome": ("total", {"milestones": {"half": 1.0}, "milestone_cap": 1.0}, {}),
    "a long success costs more than it earns": ("total", {"costs": [{**COST, "cap": 1.5}]}, {}),
    "costs that add up": ("total", {"costs": [{**COST, "cap": 0.6}, {"name": "damage", "cap": 0.5}]}, {}),
    "milestones and costs together": ("total", {"milestones": {"half": 0.5}, "costs": [{**COST, "cap": 0.5}]}, {}),
    "a group's std and a milestone": ("scale", {"milestones": {"half": 0.1}}, {"preset": "grpo"}),
    "a group's std and a cost": ("scale", {"costs": [{**COST, "cap": 0.1}]}, {"credit": {"scale": "group"}}),
    "a group's std and a length term": ("scale", {"length": {"form": "kimi"}}, {"credit": {"scale": "group"}}),
    "a discount over long episodes": ("discounted", {"milestones": HALF}, {"credit": {"rule": "discounted", "gamma": 0.9}}),
    "turn returns under a discount": ("turn", {"milestones": HALF}, {"credit": {"rule": "turn", "gamma": 0.96}}),
    "turn returns and states undone": ("turn", {"milestones": {"full": 0.5}}, {"credit": {"rule": "turn"}}),
    "gdpo with strong parts": ("gdpo", {"milestones": {"half": 0.9}, "milestone_cap": 0.9, "combine": "gdpo"}, {}),
    "gdpo over many parts": ("gdpo", {"milestones": HALF, "costs": TWO, "combine": "gdpo"}, {}),
    "multiplied away": ("total", {"milestones": HALF, "length": {"form": "gr3", "weight": 1.0}}, {}),
    "kimi as heavy as the outcome": ("total", {"length": {"form": "kimi", "weight": 2.0}}, {}),
    "overlong as heavy as the outcome": (
        "total", {"length": {"form": "overlong", "weight": 1, "target": 90, "buffer": 9}}, {}),
    "l1 down to nothing": ("total", {"length": {"form": "l1_max", "target": 100, "weight": 0.01, "floor": 0}}, {}),
    "a controller without a sound limit": (
        "total", {"milestones": HALF, "length": {"form": "gr3", "max_mean": 9, "max_weight": 2.0}}, {}),
    "soft truncation": ("total", {}, {"rollout": {"truncated": "soft", "soft_buffer": 9}}),
    "a turn scorer as heavy as the outcome": ("total", {"turn_scorers": [{**JUDGE, "cap": 1.0}]}, {}),
    "a milestone and two turn scorers": (
        "total", {"milestones": HALF, "turn_scorers": [{**JUDGE, "cap": 0.4}, {**OTHER, "cap": 0.3}]}, {}),
    "a turn scorer beside costs": ("total", {"turn_scorers": [{**JUDGE, "cap": 0.5}], "costs": [{**COST, "cap": 0.5}]}, {}),
    "a group's std and a turn scorer": ("scale", {"turn_scorers": [{**JUDGE, "cap": 0.1}]}, {"preset": "grpo"}),
    "a discount and a turn scorer": (
        "discounted", {"turn_scorers": [{**JUDGE, "cap": 0.3}]}, {"credit": {"rule": "discounted", "gamma": 0.9}}),
    "turn returns and a turn scorer": (
        "turn", {"turn_scorers": [{**JUDGE, "cap": 0.3}]}, {"credit": {"rule": "turn", "gamma": 0.96}}),
    "gdpo and a strong turn scorer": ("gdpo", {"turn_scorers": [{**JUDGE, "cap": 0.9}], "combine": "gdpo"}, {}),
}  # fmt: skip

SAFE = {
    "outcome alone": ({}, {}),
    "milestones": ({"milestones": {"half": 0.1, "full": 0.2, "stored": 0.3}}, {}),
    "milestones and costs": (
        {"milestones": HALF, "costs": [{**COST, "free": 4, "cap": 0.3}, {"name": "damage", "cap": 0.2}]}, {}),
    "potential shaping": (
        {"milestones": {"full": 5.0}, "milestone_cap": 5, "milestone_form": "potential"}, {"credit": {"rule": "turn"}}),
    "turn returns": ({"milestones": {"half": 0.5}, "costs": [{**COST, "cap": 0.3}]}, {"credit": {"rule": "turn"}}),
    "turn returns and states undone": ({"milestones": FULL}, {"credit": {"rule": "turn"}}),
    "turn returns, mildly discounted": (
        {"milestones": FULL}, {"credit": {"rule": "turn", "gamma": 0.99}, "env": {"max_turns": 30}}),
    "mildly discounted": ({"milestones": HALF}, {"credit": {"rule": "discounted", "gamma": 0.99}}),
    "discounted outcome": ({}, {"credit": {"rule": "discounted", "gamma": 0.5}}),
    "a group's std over the outcome": ({}, {"preset": "grpo"}),
    "a batch's std": ({"milestones": HALF, "costs": [{**COST, "cap": 0.2}]}, {"credit": {"scale": "batch"}}),
    "gdpo": ({"milestones": {"half": 0.1, "full": 0.1}, "costs": [{**COST, "cap": 0.1}], "combine": "gdpo"}, {}),
    "kimi": ({"milestones": HALF, "length": {"form": "kimi"}}, {}),
    "gr3": ({"milestones": HALF, "length": {"form": "gr3"}}, {}),
    "gr3 under a group's std": ({"length": {"form": "gr3"}}, {"preset": "trl"}),
    "l1_max": ({"milestones": HALF, "length": {"form": "l1_max", "target": 100, "weight": 0.01, "floor": 0.4}}, {}),
    "overlong": ({"milestones": HALF, "length": {"form": "overlong", "target": 90, "buffer": 9}}, {}),
    "a bounded controller": ({"length": {"form": "kimi", "max_mean": 9, "max_weight": 0.5}}, {}),
    "a turn scorer": ({"milestones": HALF, "turn_scorers": [{**JUDGE, "cap": 0.3}]}, {}),
    "two turn scorers by the turn": (
        {"turn_scorers": [JUDGE, OTHER], "costs": [{**COST, "cap": 0.3}]}, {"credit": {"rule": "turn"}}),
    "a turn scorer that only measures": ({"turn_scorers": [{**JUDGE, "weight": 0}]}, {"preset": "grpo"}),
    "gdpo and a weak turn scorer": ({"turn_scorers": [{**JUDGE, "cap": 0.1}], "combine": "gdpo"}, {}),
    "soft truncation below the outcome": ({"outcome": 2.0}, {"rollout": {"truncated": "soft", "soft_buffer": 9}}),
}  # fmt: skip


def recipe_of(reward, sections):
    env = {"name": "counter", "max_turns": 40, **sections.get("env", {})}
    return make_recipe({"reward": reward, **sections, "env": env})


def report_of(reward, sections, **more):
    recipe = recipe_of(reward, sections)
    return check_order(make_reward(recipe, SPEC), SPEC, recipe, [TASK], **more)


# ---- planted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_rewards_are_refused_with_their_numbers(name):
    where, reward, sections = UNSAFE[name]
    report = report_of(reward, sections)
    example = next((example for example in report.counter_examples if example.where == where), None)
    assert example is not None and not report.ok
    assert example.failure >= example.success * (0.5 if where == "scale" else 1) - 1e-9
    for number in (example.failure, example.success):
        assert any(shown in example.text for shown in (f"{number:.4g}", f"{number:.3g}", f"{number:.3f}")), example.text
    assert "REFUSED" in report.text() and "\n" not in example.text


@pytest.mark.parametrize("name", SAFE)
def test_safe_rewards_pass(name):
    report = report_of(*SAFE[name])
    assert report.ok, report.text()
    assert report.proven and not report.unproven
    assert json.loads(report.json())["ok"] is True


def test_there_are_a_dozen_of_each_and_more():
    assert len(UNSAFE) >= 12 and len(SAFE) >= 12


def test_the_counter_example_is_what_the_numbers_say():
    (example,) = report_of({"milestones": {"half": 0.5}, "costs": [{**COST, "cap": 0.5}]}, {}).counter_examples
    assert (example.failure, example.success) == (0.5, 0.5)
    assert example.text == (
        "a failure with milestones up to their cap (0.5) earns 0.5, and a success (1) without a milestone, every cost at "
        "its cap (−0.5) earns 0.5; lower the caps and weights of what is not success, or raise that of success"
    )


def test_c2_a_groups_std_makes_a_bonus_as_strong_as_success():
    reward = {"milestones": {"half": 0.1}}
    (example,) = report_of(reward, {"preset": "grpo", "rollout": {"group_size": 4}}).counter_examples
    assert (example.failure, example.success) == pytest.approx((1.497, 1.4997), abs=1e-3)  # both 1.5 but for δ = 1e-4
    assert advantages([0.1, 0, 0, 0], "gggg", baseline="mean", scale="group", std="sample")[0] == pytest.approx(
        1.5, abs=1e-4
    )
    assert advantages([1.1, 0.1, 0.1, 0.1], "gggg", baseline="mean", scale="group", std="sample")[0] == pytest.approx(
        1.5, abs=1e-4
    )
    assert advantages([0.1, 0, 0, 0], "gggg", baseline="mean") == pytest.approx([0.075, -0.025, -0.025, -0.025])
    assert report_of(reward, {"rollout": {"group_size": 4}}).ok


def test_the_discount_is_taken_at_the_longest_horizon():
    reward, credit = {"milestones": HALF}, {"rule": "turn", "gamma": 0.99}
    short = report_of(reward, {"credit": credit, "env": {"max_turns": 100}})
    long = report_of(reward, {"credit": credit, "env": {"max_turns": 150}})
    assert short.ok and not long.ok  # .99^99 = .3697 > .3, .99^149 = .2237 < .3
    assert "returns 0.2237" in long.counter_examples[0].text


# ---- the proof against all that its bounds allow ---------------------------------------------------------------------


def members(spec):
    """(success, parts, turns) within the declared bounds, with the length part on its own side."""
    bounds = spec.bounds()
    part = {name: st.floats(*bounds[name]) for name in bounds if name not in ("outcome", "length")}
    return st.tuples(st.booleans(), st.fixed_dictionaries(part), st.integers(1, max(spec.max_turns, 1)))


PLAIN = [name for name, (reward, sections) in SAFE.items() if "length" not in reward and "rollout" not in sections]


@pytest.mark.parametrize("name", PLAIN)
@given(data=st.data())
@hypothesis_settings(max_examples=40, deadline=None)
def test_what_is_proven_holds_in_any_group(name, data):
    reward, sections = SAFE[name]
    recipe = recipe_of(reward, sections)
    spec, credit = make_reward(recipe, SPEC), recipe.credit
    group = data.draw(st.lists(members(spec), min_size=2, max_size=recipe.rollout.group_size))
    totals = [spec.outcome * success + sum(parts.values()) for success, parts, _ in group]
    if spec.part_weights:
        table = [[float(success), *(parts[k] for k in list(spec.part_weights)[1:])] for success, parts, _ in group]
        told = gdpo(table, list(spec.part_weights.values()), ["g"] * len(group), delta=credit.delta)
    else:
        told = advantages(totals, ["g"] * len(group), baseline=credit.resolved_baseline, scale=credit.scale, std=credit.std,
                          delta=credit.delta)  # fmt: skip
    first = [
        a * (credit.gamma ** (turns - 1) if credit.rule == "discounted" else 1) for a, (_, _, turns) in zip(told, group)
    ]
    right = [a for a, (success, _, _) in zip(first, group) if success]
    wrong = [a for a, (success, _, _) in zip(first, group) if not success]
    assert not right or not wrong or min(right) > max(wrong)


# ---- the proof against the real predicates ---------------------------------------------------------------------------

PLAYS = st.lists(st.sampled_from((*WORDS, "save", "+")), min_size=1, max_size=9)


def value_of(spec, recipe, episode, score):
    """What the group compares of one episode: its total, or what its first turn returns. `score`: of every turn scorer."""
    scores = {term.label: [score] * len(episode.turns) for term in spec.scorers}
    if recipe.credit.rule != "turn":
        return judge(spec, SPEC, TASK, episode, scores=scores).total
    return discounted_returns(turn_rewards(spec, SPEC, TASK, episode, scores=scores), recipe.credit.gamma)[0]


@pytest.mark.parametrize("name", SAFE)
def test_no_play_of_a_safe_reward_breaks_the_order(name):
    recipe = recipe_of(*SAFE[name])
    spec = make_reward(recipe, SPEC)
    gold = played("+", "+", "save", "done")
    slow = played(*["+", "-"] * 4, "+", "+", "save", "done")
    floor = min(value_of(spec, recipe, success, 0.0) for success in (gold, slow))

    def outscores(words):
        episode = played(*words)
        won = SPEC.goal.holds(TASK, episode.facts["start"], episode.facts["final"])
        return not won and value_of(spec, recipe, episode, 1.0) >= floor

    with pytest.raises(NoSuchExample):
        find(PLAYS, outscores, settings=hypothesis_settings(max_examples=60, deadline=None, database=None))


def test_the_same_search_finds_the_play_that_breaks_an_unsafe_one():
    recipe = recipe_of(
        {"milestones": {"half": 0.6, "full": 0.6}, "milestone_cap": 1.2, "costs": [{**COST, "cap": 0.4}]}, {}
    )
    spec = make_reward(recipe, SPEC)
    slow = judge(spec, SPEC, TASK, played("+", "save", *["+", "-"] * 3, "done")).total

    def outscores(words):
        reward = judge(spec, SPEC, TASK, played(*words))
        return not reward.success and reward.total > 1.0

    found = find(PLAYS, outscores, settings=hypothesis_settings(max_examples=500, deadline=None, database=None))
    assert found == ["+", "+"] and slow < 1.1  # two steps, nothing saved: 1.2 − .1


# ---- played ----------------------------------------------------------------------------------------------------------


def test_scripts_are_played_and_shown_with_what_they_would_earn():
    report = report_of(
        {"milestones": {"half": 0.1, "full": 0.2}, "costs": [{"name": "damage", "weight": 0.1, "cap": 0.2}]}, {}
    )
    earned = {one.script: one for one in report.earned}
    assert earned["gold"].total == pytest.approx(1.3) and earned["gold"].success
    expected = {"claims": 0, "loops over a milestone": 0.1, "undoes and does again": 0.3, "touches another record": 0.2,
                "ends early": 0, "does nothing": 0, "claims that it is done": 0, "first turn again and again": 0.1,
                "gold, ended after 1": 0.1, "gold, ended after 2": 0.3}  # fmt: skip
    assert {name: earned[name].total for name in expected} == pytest.approx(expected)
    assert not any(earned[name].success for name in expected)
    assert all(earned[name].credit < earned["gold"].credit for name in expected)
    text = report.text()
    assert "gold, ended after 2" in text and "gold, ended after 1" not in text  # of these, the one that earns most
    assert "touches another record" in text and "cost/damage -0.1" in text


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (replace(SPEC, goal=Goal(lambda task, start, now: True)), "the script 'claims' is a success by the goal"),
        (replace(SPEC, goal=Goal(lambda task, start, now: False)), "the gold script does not reach the goal"),
        (
            replace(SPEC, known_bad={"breaks": lambda task, env: iter([env.nothing])}),
            "the script 'breaks' ended in error: script: Attrib",
        ),
    ],
)
def test_worlds_that_cannot_tell_are_refused(env, sentence):
    recipe = recipe_of({}, {})
    report = check_order(make_reward(recipe, env), env, recipe, [TASK])
    assert not report.ok and sentence in report.text()


def test_a_predicate_that_pays_for_words_is_shown():
    """The goal reads what the policy wrote about itself: the claim earns as much as the gold."""

    class Gullible(SPEC.make):
        def step(self, action):
            self.said = getattr(self, "said", "") + action.text
            return super().step(action)

        def state(self):
            return {**super().state(), "said": getattr(self, "said", "")}

    words = Milestone("said so", lambda task, start, now: "success" in now["said"], "state")
    env = replace(
        SPEC, make=Gullible, milestones=(words,), goal=Goal(lambda task, start, now: "success" in now["said"], ends=False)
    )
    recipe = recipe_of({"milestones": {"said so": 0.1}}, {})
    report = check_order(make_reward(recipe, env), env, recipe, [TASK])
    assert not report.ok and "the script 'claims that it is done' is a success by the goal" in report.text()


def test_tasks_are_generated_where_none_are_given():
    recipe = recipe_of({}, {})
    report = check_order(make_reward(recipe, SPEC), SPEC, recipe, num_tasks=3)
    assert report.ok and {one.task for one in report.earned} == {"0", "1", "2"}


def test_notes_say_what_the_proof_does_not_cover():
    kl = {"kl": {"beta": 0.1, "estimator": "k1", "place": "reward"}}
    assert "has no bound" in prove_order(make_reward(recipe_of({}, kl), SPEC), recipe_of({}, kl)).text()
    assert "in a batch without any success" in report_of(*SAFE["gdpo"]).text()
    loops = {"rollout": {"stop_rules": {"turns": "drop"}}}
    told = prove_order(make_reward(recipe_of({}, loops), SPEC), recipe_of({}, loops)).text()
    assert "keeps episodes that end by turns out of the loss: nothing pushes a policy away" in told


# ---- single answers --------------------------------------------------------------------------------------------------


def functions(*entries, **sections):
    named = [
        {"name": name, "weight": weight, **({"params": {"pattern": "x"}} if name == "regex" else {})}
        for name, weight in entries
    ]
    return check_functions(make_recipe({"reward": {"functions": named, **sections.pop("reward", {})}, **sections}))


def test_reward_functions_are_checked_as_far_as_they_are_known():
    assert functions(("exact", 1), ("regex", 0.1)).ok
    assert not functions(("exact", 1), ("regex", 1.0)).ok  # format as much as correctness
    assert not functions(("exact", 1), ("regex", 0.1), preset="grpo").ok  # case C2
    assert functions(("exact", 1), preset="grpo").ok
    assert functions(("exact", 1), ("regex", 0.1), reward={"combine": "gdpo"}).ok
    assert not functions(("exact", 1), ("regex", 0.9), reward={"combine": "gdpo"}).ok
    assert not functions(("exact", 1), ("regex", -1.0)).ok
    assert not functions(("reasoning_gym", 1), ("regex", 0.1)).ok  # a nearly right answer in the right format
    assert functions(("reasoning_gym", 1)).ok  # nearly right is not right


def test_functions_of_unknown_range_are_not_called_proven():
    report = check_functions(make_recipe({"reward": {"functions": [{"name": "exact"}, {"name": "mine.py:polite"}]}}))
    assert report.ok and report.unproven == ("nothing bounds the values of polite; what it returns decides",)
    assert "not proven" in report.text()


# ---- the command -----------------------------------------------------------------------------------------------------

CALC = """
[env]
name = "calc"

[[tasks.sources]]
kind = "environment"
size = 300

[reward]
milestones = { step = 0.1, result = 0.2 }

[[reward.costs]]
name = "calls"
free = 3
weight = 0.01
cap = 0.1
"""


def test_the_command_proves_plays_and_refuses(tmp_path, capsys):
    path = tmp_path / "calc.toml"
    path.write_text(CALC)
    assert main(["check", "reward", str(path), "--tasks", "1"]) == 0
    shown = capsys.readouterr().out
    assert "earns 0.9 or more, a failure with milestones up to their cap (0.3) at most 0.3" in shown
    assert "answers at once" in shown and "gold" in shown
    assert main(["check", "reward", str(path), "reward.outcome=0.2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["section"] == "order" and found["counter_examples"][0]["where"] == "total"
    assert main(["check", "reward", str(path), "reward.milestones={stp=0.1}"]) == 2
    assert "did you mean 'step'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["calc", "desk", "maze", "repair"])
def test_the_environments_that_ship_tell_success_from_failure(name):
    recipe = make_recipe({
        "env": {"name": name, "max_turns": 60},
        "tasks": {"sources": [{"kind": "environment", "size": 40}], "validation": 4, "test": 4},
    })  # fmt: skip
    report = check_recipe(recipe, num_tasks=2)
    assert report.ok, report.text()
    assert np.isfinite([one.total for one in report.earned]).all()

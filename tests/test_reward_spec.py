"""Rewards of long trajectories: what is paid, when, and what is never paid. The world counts to 2, saves, and is done."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from counter_env import SPEC, TASK, WORDS, played
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost import rows
from milepost.advantages import advantages, discounted_returns
from milepost.env import Cost, Goal, Milestone
from milepost.envs.find import find_env
from milepost.formula import describe_reward
from milepost.health.order import prove_order
from milepost.recipe import make_recipe
from milepost.reward_spec import (
    EnvGrader,
    RewardSpec,
    TurnTerm,
    judge,
    make_reward,
    progress,
    shaping,
    states_of,
    turn_rewards,
)
from milepost.types import Group, RecipeError, StopKind, StopReason, Task

REWARD = {
    "milestones": {"half": 0.1, "full": 0.2, "stored": 0.3},
    "milestone_cap": 0.5,
    "costs": [{"name": "turns", "free": 4, "weight": 0.02, "cap": 0.1}, {"name": "damage", "weight": 0.05, "cap": 0.1}],
}
GOLD = ("+", "+", "save", "done")
PAID = ("outcome", "milestones", "cost/turns", "cost/damage")


def spec_of(reward=REWARD, **sections) -> RewardSpec:
    return make_reward(make_recipe({"reward": reward, "env": {"name": "counter", "max_turns": 40}, **sections}), SPEC)


def verdict(*words, spec=None, env=SPEC):
    return judge(spec or spec_of(), env, TASK, played(*words, spec=env))


def paid(*words, **more):
    parts = verdict(*words, **more).parts
    return [round(parts[name], 9) + 0.0 for name in PAID]


# ---- what is paid ----------------------------------------------------------------------------------------------------


def test_a_success_earns_outcome_and_milestones_up_to_their_cap():
    reward = verdict(*GOLD)
    assert reward.success is True
    assert paid(*GOLD) == [1.0, 0.5, 0.0, 0.0]  # .1 + .2 + .3 = .6, capped at .5
    assert reward.total == pytest.approx(1.5)
    assert {name: reward.parts[f"progress/{name}"] for name in REWARD["milestones"]} == {"half": 1, "full": 1, "stored": 1}
    assert (reward.parts["used/turns"], reward.parts["used/damage"]) == (4, 0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("done",), [0, 0, 0, 0]),
        (("Step 1 done.", "All saved, success!"), [0, 0, 0, 0]),  # claims are no progress
        (("save", "save", "save"), [0, 0, 0, 0]),  # nor is a tool that succeeded
        (("+", "-", "+", "-", "+", "-"), [0, 0.1, -0.04, 0]),  # half: latched, paid once; two turns over the free four
        (("+", "+"), [0, 0.3, 0, 0]),
        (("+", "+", "-"), [0, 0.1, 0, 0]),  # full is undone, and taken back
        (("+", "+", "-", "+"), [0, 0.3, 0, 0]),  # done again: paid as once
        (("+", "+", "save", "touch", "done"), [0, 0.5, -0.02, -0.05]),  # everything right, and something else changed
        (("touch",) * 10, [0, 0, -0.1, -0.1]),  # costs are capped
        (("+", "+", "save", *["-", "+"] * 3, "done"), [1, 0.5, -0.1, 0]),  # longer, and still a success
    ],
)
def test_what_each_way_to_play_earns(words, expected):
    assert paid(*words) == expected


def test_parts_add_up_to_the_total():
    reward = verdict("+", "+", "save", "touch", "done")
    assert reward.total == pytest.approx(sum(reward.parts[name] for name in PAID)) == pytest.approx(0.43)


@pytest.mark.parametrize("reason", ["turns", "tool_calls", "invalid_actions", "tokens", "context", "time"])
def test_success_is_read_from_the_final_state_whatever_the_stop_reason(reason):
    stop = StopReason(StopKind.TRUNCATED, reason)
    assert judge(spec_of(), SPEC, TASK, replace(played("+", "+", "save"), stop=stop)).success is True
    assert judge(spec_of(), SPEC, TASK, replace(played("+", "+"), stop=stop)).success is False


def test_built_in_costs_are_counted_from_facts():
    costs = [{"name": name, "weight": 0.01, "cap": 0.5} for name in ("turns", "calls", "invalid", "tokens", "seconds")]
    reward = verdict("+", "what?", "+", spec=spec_of({"costs": costs}))
    assert [reward.parts[f"used/{c['name']}"] for c in costs] == [3, 0, 1, 1 + 2 + 1, 0]
    assert reward.total == pytest.approx(-0.08)


# ---- milestones ------------------------------------------------------------------------------------------------------


def world(*milestones, **changes):
    return replace(SPEC, milestones=milestones, **changes)


def held(env, *words, task=TASK):
    spec = RewardSpec(milestones={m.name: 0.1 for m in env.milestones})
    return progress(spec, env, task, states_of(played(*words, task=task, spec=env)))


def test_order_is_respected():
    touched = Milestone("touched", lambda task, before, now: now["other"] > before["other"])
    up = Milestone("up", lambda task, before, now: now["count"] > before["count"], after=("touched",))
    env = world(up, touched)  # also when they are declared the other way round
    assert held(env, "+", "touch")["up"] == [False, False, False]
    assert held(env, "+", "touch", "+")["up"] == [False, False, False, True]
    assert held(env, "touch", "+")["up"] == [False, False, True]


def test_only_milestones_that_count_are_asked():
    """Those of the recipe and those they come after: a world may have dozens, each asked about every state."""
    asked = []

    def milestone(name, *after):
        return Milestone(name, lambda task, before, now: asked.append(name) or True, after=after)

    env = replace(SPEC, milestones=(milestone("c", "b"), milestone("b", "a"), milestone("a"), milestone("other")))
    spec = make_reward(make_recipe({"env": {"name": "counter"}, "reward": {"milestones": {"b": 0.1}}}), env)
    found = progress(spec, env, TASK, states_of(played("+", "+", spec=env)))
    assert found == {"b": [False, True, True]} and sorted(asked) == ["a", "b"]  # once latched, not asked again


def test_what_holds_at_the_start_is_nobodys_progress():
    clean = Milestone("clean", lambda task, start, now: now["other"] == 0, "state")
    assert not any(held(world(clean), "+")["clean"])
    assert not any(held(world(clean), "touch", "+")["clean"])


def test_a_state_that_waits_for_another_counts_once_both_are_there():
    full, stored = SPEC.milestones[1:]
    assert held(world(full, stored), "+", "+", "save", "-")["stored"] == [False, False, False, True, True]
    assert held(world(full, stored), "+", "+", "save", "-")["full"] == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ({"milestones": {"hlaf": 0.1}}, "reward.milestones: the environment counter has no 'hlaf'; did you mean 'half'?"),
        ({"costs": [{"name": "money"}]}, "reward.costs: the environment counter has no 'money'; it has turns, calls,"),
    ],
)
def test_names_that_the_environment_lacks_are_refused(reward, sentence):
    with pytest.raises(RecipeError) as error:
        spec_of(reward)
    assert sentence in str(error.value)


def test_milestones_that_wait_for_each_other_are_refused():
    a, b = (Milestone(name, lambda *_: True, after=(other,)) for name, other in (("a", "b"), ("b", "a")))
    with pytest.raises(RecipeError, match="the milestones a, b wait for each other"):
        make_reward(make_recipe({}), world(a, b))
    with pytest.raises(RecipeError, match="two milestones are called 'a'"):
        make_reward(make_recipe({}), world(replace(a, after=()), replace(a, after=())))
    with pytest.raises(RecipeError, match="has no 'c'"):
        make_reward(make_recipe({}), world(replace(a, after=("c",))))


# ---- absence and bounds ----------------------------------------------------------------------------------------------


def test_absence_is_typed():
    episode = played(*GOLD)
    fault = replace(episode, stop=StopReason(StopKind.FAULT, "timeout"))
    stateless = replace(episode, facts={})
    causes = [judge(spec_of(), SPEC, TASK, e).cause for e in (fault, replace(episode, turns=()), stateless)]
    assert causes == ["fault: timeout", "no turns", "no states"]


def test_a_predicate_that_raises_is_unscorable_counted_and_told_once(caplog):
    env = replace(SPEC, goal=Goal(lambda task, start, now: now["nothing"]))
    grader = EnvGrader(RewardSpec(), env)
    group = Group("scripted/0/two", TASK, (played("+"), played("+", member=1)))
    with caplog.at_level(logging.ERROR):
        (rewards,) = grader.score([group])
    assert [r.cause for r in rewards] == ["error: KeyError"] * 2
    assert grader.counts == {"unscorable": 2, "unscorable/error: KeyError": 2}
    assert len(caplog.records) == 1 and "'nothing'" in caplog.text


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf"), None, True])
def test_what_is_no_amount_is_unscorable(amount):
    env = replace(SPEC, costs=(Cost("damage", "record", lambda task, states: amount),))
    spec = spec_of({"costs": [{"name": "damage"}]})
    assert judge(spec, env, TASK, played("+")).cause == "error: ValueError"


def test_declared_bounds_are_asserted_on_every_episode(caplog):
    grader = EnvGrader(replace(spec_of(), max_turns=5), SPEC)
    group = Group("scripted/0/two", TASK, (played(*["+"] * 6), played(*["+"] * 5, member=1)))
    with caplog.at_level(logging.ERROR):
        (rewards,) = grader.score([group])
    assert [r.cause for r in rewards] == ["out of bounds: turns", None]
    assert grader.counts == {"unscorable": 1, "unscorable/out of bounds: turns": 1, "wrong": 1}
    assert "it has 6 turns where at most 5 are declared" in caplog.text


def test_a_part_outside_its_bounds_is_never_paid():
    class Generous(RewardSpec):
        def bounds(self):
            return {**super().bounds(), "milestones": (0.0, 0.05)}

    spec = Generous(milestones={"half": 0.1})
    assert judge(spec, SPEC, TASK, played("+")).cause == "out of bounds: milestones"
    assert judge(spec, SPEC, TASK, played("touch")).total == 0


# ---- turns -----------------------------------------------------------------------------------------------------------


def earned(*words, **reward):
    return [round(float(x), 9) + 0.0 for x in turn_rewards(spec_of({**REWARD, **reward}), SPEC, TASK, played(*words))]


def test_each_turn_gets_what_it_earned():
    assert earned(*GOLD) == [0.1, 0.2, 0.2, 1.0]  # the cap leaves .2 of stored's .3
    assert earned("+", "+", "-", "+", "touch") == [0.1, 0.2, -0.2, 0.2, -0.02 - 0.05]


def test_case_a27_the_record_of_each_turn_stays_apart_from_the_outcome():
    assert earned("touch", "+", "+", "save")[0] == -0.05
    assert verdict("touch", "+", "+", "save").parts["cost/damage"] == -0.05


def test_case_e10_all_turns_count_and_not_only_the_last():
    assert sum(earned(*GOLD)) == pytest.approx(verdict(*GOLD).total) == pytest.approx(1.5)


@given(words=st.lists(st.sampled_from((*WORDS, "what?")), min_size=1, max_size=12))
@hypothesis_settings(max_examples=60, deadline=None)
def test_turn_rewards_add_up_to_the_total_and_every_part_keeps_its_bounds(words):
    spec, episode = spec_of(), played(*words)
    reward = judge(spec, SPEC, TASK, episode)
    assert turn_rewards(spec, SPEC, TASK, episode).sum() == pytest.approx(reward.total)
    for name, (low, high) in spec.bounds().items():
        assert low <= reward.parts[name] <= high


@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=10))
@hypothesis_settings(max_examples=25, deadline=None)
def test_a_stored_episode_is_judged_the_same(words):
    episode = played(*words)
    turns = tuple(replace(turn, facts=rows.loads(rows.dumps(turn.facts))) for turn in episode.turns)
    stored = replace(episode, turns=turns, facts=rows.loads(json.dumps(json.loads(rows.dumps(episode.facts)))))
    assert judge(spec_of(), SPEC, TASK, stored) == judge(spec_of(), SPEC, TASK, episode)


def test_a_cost_that_shrinks_is_never_handed_back_on_the_way():
    env = replace(SPEC, costs=(Cost("damage", "off by", lambda task, states: abs(states[-1]["count"])),))
    spec = RewardSpec(costs=spec_of({"costs": [{"name": "damage", "weight": 0.1, "cap": 0.5}]}).costs)
    assert turn_rewards(spec, env, TASK, played("+", "+", "-", spec=env)) == pytest.approx([-0.1, 0, 0])


# ---- potential shaping -----------------------------------------------------------------------------------------------


def test_b12_shaping():
    potential, rewards, gamma = [0.2, 0.5, 0.9, 0.0], np.array([0, 0, 1.0]), 0.9
    terms = shaping(potential, gamma)
    assert terms == pytest.approx([0.25, 0.31, -0.9])
    discounts = gamma ** np.arange(3)
    assert (discounts * (rewards + terms)).sum() - (discounts * rewards).sum() == pytest.approx(-0.2)  # −Φ(start)


def test_b12_shaped_rewards_must_be_discounted_by_the_same_factor():
    """Red: 0, then 1, by way of a state with Φ = 100. Blue: 0, −1, 0, 1 where Φ = 0. By plain sums blue would be better."""
    red = np.array([0.0, 1.0]) + shaping([0, 100, 0], 0.9)
    blue = np.array([0.0, -1.0, 0.0, 1.0]) + shaping([0] * 5, 0.9)
    assert red == pytest.approx([90, -99])
    assert (discounted_returns(red, 0.9)[0], discounted_returns(blue, 0.9)[0]) == pytest.approx((0.9, -0.171))
    assert (discounted_returns(red, 1.0)[0], discounted_returns(blue, 1.0)[0]) == pytest.approx((-9, 0))


def test_b12_what_is_paid_on_every_visit_pays_for_loops():
    """Six visits to a place worth .1 each, and no goal: .6 where each visit is paid. A milestone and a potential do not."""
    loops, visits = ["+", "-"] * 6, {"visit": [1.0, 0.0] * 6}
    each = RewardSpec(scorers=(TurnTerm("visit", 0.1, cap=1.0),))
    found = judge(each, SPEC, TASK, played(*loops), scores=visits)
    assert (found.success, found.total) == (False, pytest.approx(0.6))
    assert paid(*loops)[1] == 0.1  # the first time
    assert shaping([0.0, 0.1] * 6 + [0.0], 1.0).sum() == pytest.approx(0)


def shaped(outcomes, *potentials):
    """Totals of episodes at γ = 1; each potential is that at the start and after each turn."""
    return [outcome + shaping(potential, 1.0).sum() for outcome, potential in zip(outcomes, potentials)]


def test_b12_shaping_leaves_advantages_of_episodes_alone_exactly_where_all_start_alike():
    outcomes, plain = [1.0, 0.0], [0.5, -0.5]
    alike = [[0.2, 0.6, 0.9], [0.2, 0.5, 0.3, 0.1]]
    assert shaped(outcomes, *alike) == pytest.approx([0.8, -0.2])  # all lose Φ(start), whatever they came by
    assert advantages(shaped(outcomes, *alike), "gg", baseline="mean") == pytest.approx(plain)
    # An end that kept its Φ, by the plain formula Φ′ − Φ, would turn it into partial credit: 1 + .7 and 0 − .1.
    kept = [outcome + np.diff(potential).sum() for outcome, potential in zip(outcomes, alike)]
    assert advantages(kept, "gg", baseline="mean") == pytest.approx([0.9, -0.9])
    # Who starts elsewhere loses another Φ: 1 − .2 and 0 − .6.
    apart = shaped(outcomes, alike[0], [0.6, 0.5, 0.3, 0.1])
    assert advantages(apart, "gg", baseline="mean") == pytest.approx([0.7, -0.7])


@given(start=st.floats(0, 1), data=st.data())
@hypothesis_settings(max_examples=60, deadline=None)
def test_b12_whatever_the_potential_and_the_lengths(start, data):
    ways = data.draw(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=2, max_size=5))
    outcomes = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(ways), max_size=len(ways)))
    group, potentials = "g" * len(ways), [[start, *way] for way in ways]
    for baseline in ("mean", "loo"):
        found = advantages(shaped(outcomes, *potentials), group, baseline=baseline)
        assert found == pytest.approx(advantages(outcomes, group, baseline=baseline), abs=1e-9)


def potential(gamma=0.9, **milestones):
    reward = {"milestones": milestones or {"half": 0.2, "full": 0.3}, "milestone_form": "potential"}
    return spec_of(reward, credit={"rule": "turn", "gamma": gamma})


def test_potential_milestones_shape_turns_and_leave_the_total_alone():
    spec, episode = potential(), played(*GOLD)
    assert judge(spec, SPEC, TASK, episode).total == 1.0
    # Φ = 0, .2, .5, .5, then the end: 0
    assert turn_rewards(spec, SPEC, TASK, episode) == pytest.approx([0.18, 0.25, -0.05, 1 - 0.5])


def test_the_potential_is_zero_at_every_end_truncation_included():
    spec = potential(gamma=1.0)
    for stop in (StopReason(StopKind.TRUNCATED, "turns"), StopReason(StopKind.TRUNCATED, "tokens")):
        episode = replace(played("+", "+", "-", "+"), stop=stop)
        assert turn_rewards(spec, SPEC, TASK, episode).sum() == pytest.approx(0)


# ---- the environment's own potential ---------------------------------------------------------------------------------


def nearness(task, start, now):
    """½ at the start of TASK, 1 at its target, 0 from four away on."""
    return max(0.0, 1 - abs(task.columns["target"] - now["count"]) / 4)


NEAR = replace(SPEC, potential=nearness)


def near_spec(gamma=0.9, **reward):
    recipe = make_recipe({"reward": {"potential": 0.4, **reward}, "credit": {"rule": "turn", "gamma": gamma},
                          "env": {"name": "counter", "max_turns": 40}})  # fmt: skip
    return make_reward(recipe, NEAR)


def test_the_environments_potential_shapes_three_turns():
    spec, episode = near_spec(), played("+", "+", "save", spec=NEAR)
    # Φ = .5, .75, 1, then the end: 0.  .4·(.9·.75 − .5) = .07, .4·(.9·1 − .75) = .06, .4·(0 − 1) = −.4 and the outcome
    earned = turn_rewards(spec, NEAR, TASK, episode)
    assert earned == pytest.approx([0.07, 0.06, 1 - 0.4])
    assert (0.9 ** np.arange(3) * earned).sum() - 0.81 == pytest.approx(-0.4 * 0.5)  # −Φ(start), by its weight
    reward = judge(spec, NEAR, TASK, episode)
    assert reward.total == 1.0 and reward.parts["potential/final"] == 1.0  # measured, and paid to nobody's total


def test_both_potentials_add_up():
    spec, episode = near_spec(milestones={"half": 0.2}, milestone_form="potential"), played("+", "+", "save", spec=NEAR)
    # The milestone's Φ = 0, .2, .2, 0:  .9·.2 − 0, .9·.2 − .2, −.2
    assert turn_rewards(spec, NEAR, TASK, episode) == pytest.approx([0.07 + 0.18, 0.06 - 0.02, 0.6 - 0.2])


@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), gamma=st.floats(0.3, 1.0), data=st.data())
@hypothesis_settings(max_examples=60, deadline=None)
def test_shaping_telescopes_to_minus_the_start_whatever_the_path(words, gamma, data):
    stop = data.draw(st.sampled_from([StopReason(StopKind.TRUNCATED, why) for why in ("turns", "tokens", "time")]))
    episode = replace(played(*words, spec=NEAR), stop=stop)
    spec = near_spec(gamma)
    earned = turn_rewards(spec, NEAR, TASK, episode)
    earned[-1] -= judge(spec, NEAR, TASK, episode).total
    assert (gamma ** np.arange(len(earned)) * earned).sum() == pytest.approx(-0.4 * 0.5)


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), float("inf"), None, True, "near"])
def test_what_is_no_potential_makes_the_episode_unscorable(value, caplog):
    world = replace(SPEC, potential=lambda task, start, now: value if now["count"] else 0.5)
    grader = EnvGrader(RewardSpec(potential=0.3), world)
    group = Group("scripted/0/two", TASK, (played("touch", "+"), played("touch", member=1)))
    with caplog.at_level(logging.ERROR):
        ((broken, fine),) = grader.score([group])
    assert (broken.cause, fine.total) == ("out of bounds: potential", 0.0)
    assert f"its potential is {value!r} after turn 2; it must be a number from 0 to 1" in caplog.text
    assert list(grader.turn_rewards([group], [[broken, fine]])) == [group.episodes[1].id]


@pytest.mark.parametrize("rule", ["episode", "discounted"])
def test_a_potential_that_cannot_act_is_refused(rule):
    with pytest.raises(RecipeError, match=f"potential shaping with `{rule}` credit has no effect: .*\\.potential = 0$"):
        make_recipe({"reward": {"potential": 0.3}, "env": {"name": "counter"},
                     "credit": {"rule": rule, "gamma": 1.0 if rule == "episode" else 0.9}})  # fmt: skip


def test_an_environment_without_a_potential_has_none_to_weigh():
    with pytest.raises(RecipeError, match=r"reward\.potential = 0\.4, but the environment counter has no potential; give"):
        spec_of({"potential": 0.4}, credit={"rule": "turn"})


# ---- the worked example of docs/rewards.md ---------------------------------------------------------------------------


def test_the_page_on_rewards_says_what_is_paid():
    page = (Path(__file__).parents[1] / "docs" / "rewards.md").read_text(encoding="utf-8")
    section = page[page.index("## Long trajectories") :]
    recipe = make_recipe(tomllib.loads(section.split("```toml\n")[1].split("```")[0]))
    calc = find_env("calc")
    columns = {"numbers": [482, 377, 905], "ops": ["*", "-"], "results": [181714, 180809], "gold": 180809}
    task = Task("t", "Start with 482. Times 377. Minus 905. Result?", columns=columns)
    first, second = 'calc("482*377")', 'calc("181714-905")'
    ways = [(first, second, "answer(180809)"), ("answer(180809)",), (first, second, "answer(7)"), (first,) * 12]
    spec = make_reward(recipe, calc)
    totals = [judge(spec, calc, task, played(*words, task=task, spec=calc)).total for words in ways]
    assert totals == pytest.approx([1.25, 1.0, 0.25, 0.0])
    shown = re.findall(r"\*\*(\d\.\d\d)\*\*", section)
    assert [float(number) for number in shown] == pytest.approx(totals)
    report = prove_order(spec, recipe)
    assert all(text in section for text in report.text().splitlines())
    assert describe_reward(recipe) == [
        "reward = 1·success + min(0.25, 0.1·step + 0.2·result) − min(0.1, 0.02·max(0, calls − 3)), success read from the "
        "final state whatever the stop reason"
    ]


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_is_scored_with_the_lengths_of_its_members_and_its_turns():
    recipe = make_recipe({"reward": {"length": {"form": "gr3", "weight": 1.0}}, "env": {"name": "counter"},
                          "credit": {"rule": "turn"}})  # fmt: skip
    grader = EnvGrader.of(recipe, SPEC)
    long = replace(played("+", "+", "save", "wait wait wait wait", member=2), stop=StopReason(StopKind.FAULT, "crash"))
    group = Group("scripted/0/two", TASK, (played(*GOLD), played("+", "+", "save", "+", "-", "done", member=1), long))
    (rewards,) = grader.score([group])
    # 1 + 1 + 2 + 2 and 1 + 1 + 2 + 1 + 1 + 2 tokens, mean 7; the fault has no say
    assert [r.total for r in rewards] == [pytest.approx(1 / (1 + 6 / 7)), pytest.approx(1 / (1 + 8 / 7)), None]
    assert rewards[0].parts["length"] == pytest.approx(1 / (1 + 6 / 7) - 1)
    by_turn = grader.turn_rewards([group], [rewards])
    assert by_turn[group.episodes[0].id] == pytest.approx([0, 0, 0, 1 / (1 + 6 / 7)])
    assert group.episodes[2].id not in by_turn
    assert grader.counts["correct"] == 2 and grader.counts["unscorable/fault: crash"] == 1
    assert grader.part_weights is None


def test_gdpo_weighs_each_part_by_what_it_can_pay():
    spec = spec_of({**REWARD, "outcome": 2.0, "combine": "gdpo"})
    assert spec.part_weights == pytest.approx({"outcome": 2.0, "milestones": 0.5, "cost/turns": 0.1, "cost/damage": 0.1})


def test_the_length_controller_changes_the_reward_and_its_state_survives():
    length = {"form": "kimi", "weight": 0.1, "max_mean": 5, "max_weight": 0.2, "rate": 0.5}
    recipe = make_recipe({"reward": {"length": length}, "env": {"name": "counter"}})
    grader, later = EnvGrader.of(recipe, SPEC), EnvGrader.of(recipe, SPEC)
    group = Group("scripted/0/two", TASK, (played(*GOLD), played(*GOLD, member=1)))  # 6 tokens each
    assert "reward.length.weight 0.1 → 0.15 after a mean length of 6 tokens, over the limit of 5" in grader.observe([group])
    assert grader.spec.length.weight == pytest.approx(0.15)
    later.load_state(grader.state())
    assert later.spec.length.weight == pytest.approx(0.15)
    assert EnvGrader.of(make_recipe({}), SPEC).observe([group]) is None

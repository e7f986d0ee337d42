"""Levers by value: group sizes, repair, down-sampling, void turns, refills, replay, curricula, masks of tokens."""

from __future__ import annotations

import itertools
import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.credit import assign
from milepost.forest import aggregation_weights, build_batch
from milepost.formula import describe
from milepost.lever_sections import LeversSection, largest_group
from milepost.levers import (
    Ladder,
    Levers,
    StagedOrder,
    all_fail,
    assign_counted,
    counts,
    is_void,
    joined,
    levels_of,
    mixed_chance,
    most_varied,
    refill,
    repair,
    repeats,
    replayed,
    scheduled_size,
    smallest_group,
)
from milepost.loss import Events, negative_sequences, policy_loss, summarize, top_covariance, top_entropy
from milepost.recipe import Recipe, make_recipe
from milepost.sections import CorrectionSection, KlSection, LossSection
from milepost.tasks import TaskOrder
from milepost.types import (
    Credit,
    DataError,
    Episode,
    EpisodeId,
    Group,
    RecipeError,
    Reward,
    Sampled,
    StopKind,
    StopReason,
    Task,
    Turn,
)

DONE = StopReason(StopKind.TERMINATED, "ended")
FAULT = StopReason(StopKind.FAULT, "engine")


def turn(num=2, **facts):
    return Turn([1, 2], Sampled(np.arange(num), np.full(num, -1.5), 1.0, ((0, 0),), "stop"), facts=facts)


def episode(member=0, key="k", step=1, turns=None, stop=DONE):
    name = f"train/{step}/{key}"
    return Episode(EpisodeId("train", step, key, member), name, turns or (turn(),), stop, start_fingerprint="s")


def group(num=4, key="k", step=1, **facts):
    episodes = tuple(episode(i, key, step) for i in range(num))
    return Group(f"train/{step}/{key}", Task(key, "p", columns=facts), episodes)


def rewards(*totals):
    return [Reward.unscorable("none") if t is None else Reward(t, success=t >= 1) for t in totals]


def recipe_of(**sections) -> Recipe:
    return make_recipe({"env": {"name": "maze"}, "reward": {}, **sections}, idle=True)


def tell_of(recipe=None):
    recipe = recipe or make_recipe({})
    return partial(assign, section=recipe.credit, rollout=recipe.rollout)


def told(credits):
    return [float(c.advantages[0]) for c in credits]


# ---- group sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "chances"),
    [(0.5, (0.875, 0.9922, 1.0)), (0.1, (0.3438, 0.5695, 0.8147)), (0.05, (0.1855, 0.3366, 0.5599)),
     (0.01, (0.0394, 0.0773, 0.1485))],
)  # fmt: skip
def test_chance_of_a_mixed_group(p, chances):  # block D2
    assert [mixed_chance(p, size) for size in (4, 8, 16)] == pytest.approx(chances, abs=5e-5)


def test_the_smallest_group_that_is_likely_to_be_mixed():
    """At .5: 1 − 2/8 = .75 with 3, .875 with 4. At .1: .7941 with 15, .8147 with 16. At .01 none of up to 16 will do."""
    assert [smallest_group(0.5, c, 2, 16) for c in (0.5, 0.75, 0.8, 0.875, 0.9)] == [2, 3, 4, 4, 5]
    assert smallest_group(0.1, 0.8, 4, 32) == 16 == smallest_group(0.9, 0.8, 4, 32)
    assert smallest_group(0.01, 0.8, 4, 16) == 16
    assert smallest_group(0.5, 0.5, 6, 16) == 6


def test_scheduled_sizes_are_on_a_line():
    assert [scheduled_size(step, 5, 16, 4) for step in range(1, 6)] == [16, 13, 10, 7, 4]
    assert [scheduled_size(step, 4, 4, 6) for step in range(1, 5)] == [4, 5, 5, 6]  # 4, 4.67, 5.33, 6
    assert scheduled_size(1, 1, 8, 4) == 8


# ---- repair and down-sampling ----------------------------------------------------------------------------------------


def test_group_repair_pads_or_drops():  # block E10
    eight = lambda num: [i < num for i in range(8)]  # noqa: E731
    assert repair(eight(5)) == [2, 2, 2, 1, 1, 0, 0, 0]
    assert repair(eight(4)) == [0] * 8 == repair(eight(0))
    assert repair(eight(8)) == [1] * 8
    assert repair([False, True, True]) == [0, 2, 1]


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_a_repaired_group_is_whole_or_nothing(valid):
    times = repair(valid)
    assert all(n == 0 for n, there in zip(times, valid) if not there)
    if 2 * sum(valid) > len(valid):
        kept = [n for n, there in zip(times, valid) if there]
        assert sum(times) == len(valid) and max(kept) - min(kept) <= 1 and min(kept) >= 1
    else:
        assert not any(times)


def test_down_sampling_keeps_the_lowest_and_the_highest():  # block D5
    reward = [0, 0, 0.1, 0.2, 0.5, 0.6, 0.9, 1]
    kept = most_varied(reward, 4)
    assert kept == [0, 1, 6, 7]
    assert np.var([reward[i] for i in kept]) == pytest.approx(0.226875)
    assert 0 in most_varied([1, 0, 0, 0, 0, 0, 0, 0], 4)
    assert most_varied([0.5, 0.25], 4) == [0, 1]


@settings(max_examples=60)
@given(st.lists(st.integers(-5, 5), min_size=2, max_size=8), st.data())
def test_no_other_choice_varies_more(values, data):
    num = data.draw(st.integers(1, len(values)))
    kept = most_varied(values, num)
    best = max(np.var(some) for some in itertools.combinations(values, num))
    assert len(kept) == num == len(set(kept)) and kept == sorted(kept)
    assert np.var([values[i] for i in kept]) == pytest.approx(best, abs=1e-9)


def test_members_that_do_not_count_are_in_neither_baseline_nor_loss():
    """Rewards 1, .5, 0, .4 cut to the two extremes: leave-one-out of [1, 0] is ±1."""
    section = LeversSection(keep_of_group=2)
    one = group()
    credits = assign_counted([one], [rewards(1, 0.5, 0, 0.4)], section, tell_of())
    assert told(credits[0]) == [1, 0, -1, 0]
    assert [c.trained for c in credits[0]] == [True, False, True, False] == [c.in_baseline for c in credits[0]]
    assert counts(one, rewards(None, 0.5, 0, 0.4), section) == [0, 1, 1, 0]  # what has no reward has no place


def test_a_group_after_faults_counts_in_full_or_not_at_all():
    """Eight members, three of them faults: the mean of others is over the five there are, whoever is repeated."""
    section = LeversSection(repair_groups=True)
    broken = lambda key, num: Group(  # noqa: E731
        f"train/1/{key}", Task(key, "p"), tuple(episode(i, key, stop=FAULT if i < num else DONE) for i in range(8))
    )
    groups = [broken("a", 3), broken("b", 4), broken("c", 0)]
    row = rewards(None, None, None, 1, 0, 0, 0, 1)
    judged = [row, rewards(*[None] * 4, 1, 0, 0, 1), rewards(1, *[0] * 7)]
    credits = assign_counted(groups, judged, section, tell_of())
    assert told(credits[0]) == pytest.approx([0, 0, 0, 0.75, -0.5, -0.5, -0.5, 0.75])
    assert not any(c.trained or c.in_baseline or c.advantages.any() for c in credits[1])
    assert told(credits[2])[0] == 1
    assert repeats(groups, judged, section) == {groups[0].episodes[i].id: 2 for i in (3, 4, 5)}
    assert repeats(groups, judged, LeversSection()) == {}
    plain = assign_counted(groups, judged, LeversSection(), tell_of())
    assert all(c.trained for c in plain[1][4:])  # without repair an uneven group is as good as any


@pytest.mark.parametrize("aggregate", ["sequence_mean", "token_mean", "constant", "prompt_mean"])
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=8))
def test_repeated_in_weight_is_repeated_in_fact(aggregate, rows):
    lengths, groups, times = zip(*rows)
    many = [(n, str(g)) for n, g, k in rows for _ in range(k)]
    copies = iter(aggregation_weights([n for n, _ in many], [g for _, g in many], aggregate, 7))
    sums = [sum(next(copies) for _ in range(k)) for k in times]
    assert aggregation_weights(lengths, list(map(str, groups)), aggregate, 7, times) == pytest.approx(sums)


def test_a_repeated_episode_is_one_event_per_token():
    pairs = [(e, Credit(e.id, np.ones(2), True, True)) for e in group(2).episodes]
    episodes, credits = zip(*pairs)
    batch = build_batch(episodes, credits, repeats={episodes[0].id: 3})
    assert batch.num_events == 4
    assert batch.weight_E.tolist() == [3 / 8, 3 / 8, 1 / 8, 1 / 8]  # of 4 copies × 2 tokens


# ---- void turns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "void"),
    [({"num_calls": 1, "num_invalid": 0}, False), ({"num_calls": 0, "num_invalid": 1}, True),
     ({"num_calls": 1, "num_invalid": 1}, False),  # carried out, and refused by the world
     ({"num_calls": 1, "num_invalid": 1, "num_malformed": 1}, True),
     ({"num_calls": 2, "num_invalid": 1, "num_malformed": 1}, False),
     ({"num_calls": 0, "num_invalid": 0}, False),  # an environment without tools, that took the text
     ({"num_calls": 0, "num_invalid": 0, "cut": True}, True), ({"num_calls": 0, "num_invalid": 0, "fault": "x"}, False),
     ({}, False)],
)  # fmt: skip
def test_void_turns(facts, void):
    assert is_void(turn(**facts)) is void


def test_an_episode_with_a_void_turn_stays_in_the_baseline():
    """[1, 0, 0]: the second has a void turn. Its zero still is what the others are compared with."""
    good, bad = turn(num_calls=1, num_invalid=0), turn(num_calls=0, num_invalid=1)
    episodes = (episode(0, turns=(good, good)), episode(1, turns=(good, bad, good)), episode(2, turns=(good,)))
    one = Group("train/1/k", Task("k", "p"), episodes)
    (credits,) = assign_counted([one], [rewards(1, 0, 0)], LeversSection(skip_void_turns=True), tell_of())
    assert told(credits) == [1, 0, -0.5] and not credits[1].advantages.any()
    assert [c.trained for c in credits] == [True, False, True] and all(c.in_baseline for c in credits)


# ---- dynamic sampling ------------------------------------------------------------------------------------------------


def sampled_rounds(*rounds):
    """`more` that gives the groups of one round after the other, and what it was asked."""
    asked, left = [], list(rounds)

    def more(num, seen):
        asked.append((num, [g.task.key for g in seen]))
        new = left.pop(0)[:num] if left else []
        return [group(4, key) for key, _ in new], [rewards(*row) for _, row in new]

    return more, asked


def alive(_, row):
    return len({r.total for r in row}) > 1


def test_refills_replace_groups_without_signal_and_say_what_they_cost():
    """Two of three are dead. Round 1 brings a live one and a dead one, round 2 a live one."""
    start = [("a", (0, 0, 0, 0)), ("b", (1, 0, 0, 0)), ("c", (1, 1, 1, 1))]
    more, asked = sampled_rounds([("d", (0, 0, 0, 0)), ("e", (1, 1, 0, 0))], [("f", (1, 0, 1, 0))])
    filled = refill([group(4, k) for k, _ in start], [rewards(*r) for _, r in start], 5, alive, more)
    assert [g.task.key for g in filled.groups] == ["e", "b", "f"]
    assert [[r.total for r in row] for row in filled.rewards] == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]]
    assert asked == [(2, ["a", "b", "c"]), (1, ["a", "b", "c", "d", "e"])]
    assert filled.metrics == {"refill/rounds": 2, "refill/groups": 3, "refill/rollouts": 12, "refill/tokens": 24,
                              "tokens/sampled": 48, "success/sampled": pytest.approx(9 / 24)}  # fmt: skip


def test_refills_are_bounded_and_what_is_still_dead_stays():
    dead = [("x", (0, 0, 0, 0)), ("y", (0, 0, 0, 0))]
    more, asked = sampled_rounds(*[dead] * 9)
    start = [group(4, "a"), group(4, "b")]
    filled = refill(start, [rewards(0, 0, 0, 0)] * 2, 3, alive, more)
    assert filled.groups == start and len(asked) == 3 and filled.metrics["refill/rollouts"] == 24
    more, asked = sampled_rounds()  # no task is left
    filled = refill(start, [rewards(0, 0, 0, 0)] * 2, 3, alive, more)
    assert filled.groups == start and len(asked) == 1 and filled.metrics["refill/rounds"] == 0
    filled = refill(start, [rewards(0, 0, 0, 0)] * 2, 0, alive, more)
    assert (filled.metrics, len(asked)) == ({}, 1)


def test_a_group_has_signal_where_the_rule_of_credit_says_so():
    """Both members earn 1, one with its first turn and one with its second: episodes do not differ, turns do."""
    group = Group("train/1/t0", Task("t0", "p"), tuple(episode(i, "t0", turns=(turn(), turn())) for i in range(2)))
    per_turn = {e.id: earned for e, earned in zip(group.episodes, ([1.0, 0.0], [0.0, 1.0]))}
    levers = Levers(recipe_of(levers={"refills": 1}), tasks_of(2))
    by_turn = partial(tell_of(make_recipe({"credit": {"rule": "turn"}})), turn_rewards=per_turn)
    assert levers.alive(group, rewards(1, 1), by_turn) and not levers.alive(group, rewards(1, 1), tell_of())
    by_part = partial(tell_of(), part_weights={"right": 1.0, "short": 1.0})
    parts = [Reward(1, {"right": 1, "short": 0}), Reward(1, {"right": 0, "short": 1})]
    assert not levers.alive(group, parts, tell_of()) and not levers.alive(group, parts, by_part)  # z-scores cancel out
    parts = [Reward(1, {"right": 1, "short": 0}), Reward(1, {"right": 1, "short": 1})]
    assert levers.alive(group, parts, by_part)


def tasks_of(num, **columns):
    return [Task(f"t{i}", "p", columns={k: v(i) for k, v in columns.items()}) for i in range(num)]


def test_a_step_holds_no_task_twice():
    order = TaskOrder(tasks_of(6), "shuffled", 0)
    first = order.take(3)
    then = order.take(2, first)
    rest = order.take(5, first + then)
    assert len({t.key for t in first + then + rest}) == 6 and len(rest) == 1
    assert order.take(2, first + then + rest) == []
    again = TaskOrder(tasks_of(6), "shuffled", 0)
    again.take(3)
    again.load_state(json.loads(json.dumps(order.state())))
    assert [t.key for t in again.take(4)] == [t.key for t in order.take(4)]


# ---- success replay --------------------------------------------------------------------------------------------------


def test_a_replayed_success_is_compared_with_the_group_and_the_group_not_with_it():
    """Failures .2, 0, .2, 0 partly paid: the success of 1 is .9 better than their mean; theirs stay as they were."""
    one, row = group(4, step=7), rewards(0.2, 0, 0.2, 0)
    old = episode(3, step=2)
    own = assign_counted([one], [row], LeversSection(), tell_of())
    joins = replayed(one, row, old, Reward(1.0, success=True), tell_of())
    assert told([joins.credit]) == pytest.approx([0.9]) and joins.credit.trained
    assert joins.episode.id == old.id and joins.episode.group_id == one.id
    (grown,), (credits,) = joined([one], own, [joins])
    assert [e.id for e in grown.episodes] == [*(e.id for e in one.episodes), old.id]
    assert told(credits) == pytest.approx([2 / 15, -2 / 15, 2 / 15, -2 / 15, 0.9])  # .2 − (.2/3), 0 − (.4/3)


def test_where_all_fail_alike_only_the_success_is_trained():
    one, row = group(4, step=7), rewards(0, 0, 0, 0)
    own = assign_counted([one], [row], LeversSection(), tell_of())
    joins = replayed(one, row, episode(3, step=2), Reward(1.0, success=True), tell_of())
    (grown,), (credits,) = joined([one], own, [joins])
    assert told(credits) == [0, 0, 0, 0, 1] and [c.constant_group for c in credits] == [True] * 4 + [False]
    batch = build_batch(grown.episodes, credits)
    assert batch.episodes == (EpisodeId("train", 2, "k", 3),)
    assert batch.weight_E.tolist() == [1 / 10] * 2  # the failures' tokens count in the denominator


def test_no_replay_where_nothing_is_there_to_compare_with():
    one = group(2, step=7)
    success = Reward(1.0, success=True)
    assert replayed(one, rewards(None, None), episode(3, step=2), success, tell_of()) is None
    other_start = Episode(EpisodeId("train", 2, "k", 0), "g", (turn(),), DONE, start_fingerprint="other")
    assert replayed(one, rewards(0, 0), other_start, success, tell_of()) is None


def test_all_fail():
    assert all_fail(rewards(0, 0)) and all_fail(rewards(0, None))
    assert not all_fail(rewards(0, 1)) and not all_fail(rewards(None, None))


def test_what_continues_another_episode_is_no_sample():
    """A trunk that failed and a continuation of it that succeeded: the task failed in one try."""
    trunk = episode(0, "t0")
    later = Episode(
        EpisodeId("train", 1, "t0", 1), trunk.group_id, (turn(), turn()), DONE, (trunk.id, 1), start_fingerprint="s"
    )
    branched = Group(trunk.group_id, Task("t0", "p"), (trunk, later))
    recipe = recipe_of(levers={"mixed_chance": 0.8, "group_size_min": 4, "group_size_max": 32})
    levers = Levers(recipe, tasks_of(2))
    levers.observe([branched], [rewards(0, 1)])
    assert levers.tries == {"t0": [0, 1]} and levers.metrics([branched], [rewards(0, 1)], 0) == {"groups/size": 1}
    filled = refill([branched], [rewards(0, 1)], 1, alive, lambda num, seen: ([], []))
    assert filled.metrics["tokens/sampled"] == 4 and filled.metrics["success/sampled"] == 0


def test_the_latest_whole_success_is_remembered_by_where_it_is_stored():
    recipe = recipe_of(levers={"success_replay": True})
    levers = Levers(recipe, tasks_of(2))
    cut = StopReason(StopKind.TRUNCATED, "tokens")
    first = Group("train/3/t0", Task("t0", "p"), (episode(0, "t0", 3, stop=cut), episode(1, "t0", 3)))
    levers.end_step(3, [first, group(2, "t1", 3)], [rewards(1, 1), rewards(0, 0)])
    assert levers.success_of("t0") == (3, EpisodeId("train", 3, "t0", 1)) and levers.success_of("t1") is None
    scored = Levers(recipe_of(levers={"success_replay": True}, rollout={"stop_rules": {"tokens": "score"}}), tasks_of(2))
    scored.end_step(3, [first], [rewards(1, 1)])  # one that is trained on is as good as whole
    assert scored.success_of("t0") == (3, EpisodeId("train", 3, "t0", 0))
    levers.end_step(4, [group(2, "t0", 4)], [rewards(1, 0)])
    assert levers.success_of("t0") == (4, EpisodeId("train", 4, "t0", 0))
    assert levers.alive(group(2, "t0", 5), rewards(0, 0), tell_of())
    assert not levers.alive(group(2, "t1", 5), rewards(0, 0), tell_of())
    assert not levers.alive(group(2, "t0", 5), rewards(1, 1), tell_of())
    assert levers.metrics([first], [rewards(1, 1)], 2) == {"replay/episodes": 2, "replay/tasks_known": 1}


# ---- curricula -------------------------------------------------------------------------------------------------------


def steps(ladder, *rows):
    rose = []
    for row in rows:
        ladder.observe([bool(r) for r in row if r is not None])
        rose.append(ladder.end_step())
    return rose


def test_a_ladder_rises_when_success_over_the_window_reaches_the_mark():
    """Window 2, mark .5. (0/2, 1/2): .25. (1/2, 1/2): .5. Then two steps anew, and never beyond the top."""
    ladder = Ladder(3, 6, 2, 0.5, 2)
    assert steps(ladder, (0, 0), (1, 0), (1, 0)) == [False, False, True] and ladder.level == 5
    assert steps(ladder, (1, 1), (None, None), (1, 1)) == [False, False, True] and ladder.level == 6
    assert steps(ladder, (1, 1), (1, 1), (1, 1)) == [False] * 3 and ladder.level == 6


@pytest.mark.parametrize(("mark", "right", "judged"), [(0.28, 7, 25), (0.14, 7, 50), (0.56, 14, 25), (0.5, 4, 8)])
def test_a_ladder_rises_at_the_very_mark_and_not_one_success_below(mark, right, judged):
    """.28 · 25, .14 · 50 and .56 · 25 are more than 7, 7 and 14 in floats."""
    for short in (1, 0):
        ladder = Ladder(1, 9, 1, mark, 1)
        assert steps(ladder, [1] * (right - short) + [0] * (judged - right + short)) == [not short]
    assert not steps(Ladder(1, 9, 1, mark, 1), [*[1] * (100 * right - 1), *[0] * (100 * (judged - right) + 1)])[0]


@given(st.lists(st.lists(st.sampled_from([0, 1, None]), max_size=4), max_size=12), st.integers(0, 12))
def test_a_ladder_goes_on_from_its_state(rows, at):
    whole, part, again = (Ladder(1, 9, 1, 0.6, 2) for _ in range(3))
    steps(whole, *rows)
    steps(part, *rows[:at])
    again.load_state(json.loads(json.dumps(part.state())))
    steps(again, *rows[at:])
    assert again == whole


def test_levels_are_of_about_equal_size_and_equal_numbers_share_one():
    assert levels_of(tasks_of(8, level=lambda i: i), "level", 4) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert levels_of(tasks_of(6, level=lambda i: [5, 1, 1, 1, 9, 9][i]), "level", 3) == [2, 1, 1, 1, 3, 3]
    assert levels_of(tasks_of(4, level=lambda i: [1, 1, 1, 2.5][i]), "level", 4) == [1, 1, 1, 2]
    for column in ({"level": lambda i: 1}, {"level": lambda i: "hard"}, {"other": lambda i: i}, {"level": lambda i: True}):
        with pytest.raises(DataError, match=r"levers\.difficulty_column"):
            levels_of(tasks_of(4, **column), "level", 2)


def test_harder_tasks_come_in_and_stay_open():
    section = {"difficulty_column": "level", "difficulty_levels": 3, "difficulty_success": 0.5, "window": 1}
    recipe = recipe_of(levers=section, rollout={"prompts_per_step": 2})
    tasks = tasks_of(9, level=lambda i: i // 3)
    levers = Levers(recipe, tasks)
    order = levers.order(None)
    assert isinstance(order, StagedOrder) and len(order) == 3
    taken = order.take(3)
    assert {t.columns["level"] for t in taken} == {0}
    failed = [Group(f"train/1/{t.key}", t, group(2, t.key).episodes) for t in taken]
    levers.observe(failed, [rewards(0, 0)] * 3)
    assert levers.end_step(1, failed, [rewards(0, 0)] * 3) == [] and len(order.take(3)) == 3
    levers.observe(failed, [rewards(1, 0)] * 3)
    assert levers.end_step(2, failed, [rewards(1, 0)] * 3) == ["difficulty level 2 of 3 comes in"]
    assert {t.columns["level"] for t in order.take(6)} == {0, 1}
    levers.observe(failed, [rewards(1, 1)] * 3)  # the tasks of level 1 say nothing of level 2
    assert levers.end_step(3, failed, [rewards(1, 1)] * 3) == []
    assert levers.metrics(failed, [rewards(1, 1)] * 3, 0) == {"curriculum/level": 2}


def test_too_few_tasks_of_the_first_level_are_told_before_training():
    from milepost.levers import check_tasks

    levers = {"difficulty_column": "level", "difficulty_levels": 4}
    recipe = recipe_of(levers=levers, rollout={"prompts_per_step": 3})
    with pytest.raises(DataError, match=r"rollout\.prompts_per_step = 3 .* levers\.difficulty_levels = 4, which has 2"):
        check_tasks(recipe, tasks_of(8, level=lambda i: i), None)
    check_tasks(recipe, tasks_of(12, level=lambda i: i), None)


def test_group_sizes_follow_what_a_task_showed():
    """8 of 8: p = 9/10, 16 members for a chance of .8 (.1853 + 0 stays below .2). 4 of 8: p = 1/2, 4 members."""
    recipe = recipe_of(levers={"mixed_chance": 0.8, "group_size_min": 4, "group_size_max": 32})
    tasks = tasks_of(3)
    levers = Levers(recipe, tasks)
    assert levers.sizes(1, tasks) == [8, 8, 8]
    played = [Group(f"train/1/{t.key}", t, group(8, t.key).episodes) for t in tasks[:2]]
    levers.observe(played, [rewards(*[1] * 8), rewards(*[1] * 4, *[0] * 4)])
    assert levers.sizes(2, tasks) == [16, 4, 8]
    levers.observe(played[:1], [rewards(*[0] * 8)])  # half of (8, 8), and (0, 8): p = 5/14
    assert levers.tries["t0"] == [4, 12]
    assert levers.sizes(3, tasks)[0] == smallest_group(5 / 14, 0.8, 4, 32) == 4


def test_state_is_plain_and_whole():
    recipe = recipe_of(
        levers={"mixed_chance": 0.8, "group_size_min": 4, "group_size_max": 16, "horizon_start": 2, "success_replay": True,
                "difficulty_column": "level", "difficulty_levels": 2, "window": 1}
    )  # fmt: skip
    tasks = tasks_of(8, level=lambda i: i)
    one, other = Levers(recipe, tasks), Levers(recipe, tasks)
    order, copy = one.order(None), other.order(None)
    played = [Group(f"train/1/{t.key}", t, group(4, t.key).episodes) for t in order.take(3)]
    judged = [rewards(1, 1, 1, 1)] * 3
    one.observe(played, judged)
    assert one.end_step(1, played, judged) == ["the horizon rises to 3 turns", "difficulty level 2 of 2 comes in"]
    order.take(3)
    other.load_state(json.loads(json.dumps(one.state())))
    copy.load_state(json.loads(json.dumps(order.state())))
    assert other.state() == one.state() and other.max_turns == one.max_turns == 3
    assert [t.key for t in copy.take(5)] == [t.key for t in order.take(5)]
    assert other.sizes(2, tasks) == one.sizes(2, tasks)


# ---- masks of tokens -------------------------------------------------------------------------------------------------


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_tokens_of_highest_entropy():  # block E5: ten of twelve are valid, the threshold is .82
    entropy = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2])
    among = np.arange(12) < 10
    assert np.flatnonzero(top_entropy(entropy, among, 0.2)).tolist() == [8, 9]
    assert top_entropy(entropy, among, 1.0).tolist() == among.tolist()
    assert not top_entropy(entropy, np.zeros(12, bool), 0.2).any()


def test_the_tokens_of_largest_covariance():
    """A = 1, 1, −1, −1 and log π = −1, −3, −1, −3: the products are +1, −1, −1, +1, and position decides between equals."""
    a, logp = np.array([1.0, 1, -1, -1, 50]), np.array([-1.0, -3, -1, -3, -50])
    among = np.array([True, True, True, True, False])
    assert np.flatnonzero(top_covariance(a, logp, among, 0.5)).tolist() == [0, 3]
    assert np.flatnonzero(top_covariance(a, logp, among, 0.01)).tolist() == [0]  # at least one
    assert not top_covariance(a, logp, np.zeros(5, bool), 0.5).any()


def test_negative_sequences_far_from_their_sampler():  # block A18: δ = .5
    """Episodes with A and mean log(μ/π): (1, 2) kept, (−1, .4) kept, (−1, .6) dropped, (0, 9) kept."""
    advantage, gap = [1, 1, -1, -1, -1, -1, 0, 0], [3, 1, 0.2, 0.6, 1.0, 0.2, 9, 9]
    number = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    events = Events(vector(advantage), torch.ones(8), number, 4, sampler_logprobs=vector(gap) - 2)
    assert negative_sequences(vector([-2.0] * 8), vector([0.0] * 8), events, 0.5).tolist() == [False] * 4 + [True] * 2 + [
        False] * 2  # fmt: skip


def loss_of(logprobs, events, **loss):
    logprobs = vector(logprobs).requires_grad_()
    value, stats = policy_loss(logprobs, events, LossSection(**loss), KlSection(), CorrectionSection(kind="none"),
                               beta=0.0, correct=False)  # fmt: skip
    value.backward()
    return value.item(), logprobs.grad.tolist(), summarize([stats])


def test_masks_compose_and_are_counted():
    """Two episodes of two tokens and one of weight 0 whose values must not matter, ±10⁴ as they are."""
    events = Events(
        vector([1, 1, -1, -1, -1e4]), vector([0.25] * 4 + [0]), torch.tensor([0, 0, 1, 1, 1]), 2,
        sampler_logprobs=vector([-1, -1, -1, -1, 1e4]), old_logprobs=vector([-1, -1, -2, -2, -1e4]),
        masked=torch.tensor([False, True, True, False, False]),
    )  # fmt: skip
    value, gradient, metrics = loss_of([-1, -1, -2, -2, 1e4], events, negative_mask=0.5)
    # The second episode's mean log(μ/π) is 1, so that both its tokens go; of the first, the second is masked.
    assert value == pytest.approx(-0.25) and gradient == pytest.approx([-0.25, 0, 0, 0, 0])
    assert {name: metrics[f"tokens/masked_{name}"] for name in ("negative", "entropy", "any")} == {
        "negative": 0.5, "entropy": 0.5, "any": 0.75}  # fmt: skip
    value, gradient, metrics = loss_of([-1, -1, -2, -2, 1e4], events)
    assert gradient == pytest.approx([-0.25, 0, 0, 0.25, 0]) and "tokens/masked_negative" not in metrics


def test_restrained_tokens_are_held_near_the_old_policy():
    """A = 1 at ρ = e^.1 and e^−.1, weight ½, β 2: the gradient −ρ/2 gains 2·½·sign(log ρ) on the first two only."""
    up, down = math.exp(0.1), math.exp(-0.1)
    events = Events(vector([1, 1, 1]), vector([0.5] * 3), torch.tensor([0, 1, 2]), 3, old_logprobs=vector([-1.0] * 3),
                    restrained=torch.tensor([True, True, False]))  # fmt: skip
    value, gradient, metrics = loss_of([-0.9, -1.1, -0.9], events, kl_cov_share=0.5, kl_cov_beta=2.0)
    assert value == pytest.approx(-(2 * up + down) / 2 + 2 * 0.5 * (0.1 + 0.1))
    assert gradient == pytest.approx([1 - up / 2, -1 - down / 2, -up / 2])
    assert metrics["tokens/restrained"] == pytest.approx(2 / 3)


# ---- recipes ---------------------------------------------------------------------------------------------------------

SIZES = {"mixed_chance": 0.8, "group_size_min": 4, "group_size_max": 16}
TWICE = {"update": {"num_iterations": 2}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"levers": {"refills": 2}, "credit": {"baseline": "none"}}, 'with credit.baseline = "none" nothing is compared'),
        ({"levers": {"refills": 2}, "credit": {"rule": "value"}}, 'levers.refills = 2 is for groups whose members must'),
        ({"levers": SIZES, "credit": {"rule": "value"}}, 'with credit.rule = "value" nothing is compared'),
        ({"levers": SIZES, "credit": {"baseline": "none"}}, 'with credit.baseline = "none" nothing is compared'),
        ({"levers": {"refills": 1}, "credit": {"rule": "distill", "teacher": "t"}}, 'with credit.rule = "distill" nothing'),
        ({"levers": {"refills": 1}, "credit": {"rule": "turn", "turns": "information", "answer": "a"}},
         'with credit.turns = "information" nothing is compared'),
        ({"levers": {"group_size_end": 8}}, "levers.group_size_end = 8 is rollout.group_size"),
        ({"levers": {"group_size_end": 1}}, "levers.group_size_end = 1: a group needs at least 2"),
        ({"levers": {"group_size_max": 16}}, "levers.group_size_max does nothing without levers.mixed_chance"),
        ({"levers": {"mixed_chance": 0.5}}, "needs 2 <= levers.group_size_min < levers.group_size_max, not 0 and 0"),
        ({"levers": {**SIZES, "group_size_end": 4}}, "both set the size of groups"),
        ({"levers": {**SIZES, "group_size_min": 10}}, "rollout.group_size = 8 is what tasks begin with"),
        ({"levers": {"keep_of_group": 8}}, "levers.keep_of_group = 8 keeps all of a group of 8; use at most 7"),
        ({"levers": {"keep_of_group": 1}}, "levers.keep_of_group = 1: a group needs at least 2"),
        ({"levers": {"horizon_start": 4}}, "levers.horizon_start = 4 does nothing while env.name is empty"),
        ({"levers": {"horizon_start": 8}, "env": {"name": "maze"}}, "leaves no room to rise to env.max_turns = 8"),
        ({"levers": {"horizon_success": 0.9}}, "levers.horizon_success does nothing without levers.horizon_start"),
        ({"levers": {"window": 9}}, "levers.window does nothing without a curriculum"),
        ({"levers": {"difficulty_levels": 9}}, "levers.difficulty_levels does nothing without levers.difficulty_column"),
        ({"levers": {"difficulty_column": "x"}, "tasks": {"order": "as_given"}}, 'tasks.order = "as_given" both say'),
        ({"levers": {"skip_void_turns": True}}, "levers.skip_void_turns does nothing while env.name is empty"),
        ({"levers": {"repair_groups": True}, "credit": {"rule": "branch"}, "env": {"name": "maze"}},
         'levers.repair_groups cannot go with credit.rule = "branch"'),
        ({"levers": {"success_replay": True}, "credit": {"scale": "group"}}, 'cannot go with credit.scale = "group"'),
        ({"levers": {"success_replay": True}, "credit": {"rule": "turn"}}, 'cannot go with credit.rule = "turn"'),
        ({"levers": {"success_replay": True}, "kl": {"beta": 0.1, "place": "reward", "estimator": "k1"}},
         'cannot go with kl.place = "reward"'),
        ({"levers": {"success_replay": True}, "reward": {"combine": "gdpo"}}, 'cannot go with reward.combine = "gdpo"'),
        ({"loss": {"negative_mask": 0.5}}, "loss.negative_mask = 0.5 does nothing with one update per batch"),
        ({"loss": {"kl_cov_share": 0.01}}, "loss.kl_cov_share = 0.01 does nothing with one update per batch"),
        ({"loss": {"kl_cov_beta": 0.5}}, "loss.kl_cov_beta = 0.5 does nothing without loss.kl_cov_share"),
    ],
)  # fmt: skip
def test_idle_and_contradictory_levers_are_refused(values, sentence):
    with pytest.raises(RecipeError) as caught:
        make_recipe(values)
    assert sentence in str(caught.value)


ON = {
    "levers": {"refills": 2, **SIZES, "horizon_start": 4, "difficulty_column": "level", "skip_void_turns": True,
               "success_replay": True, "repair_groups": True, "keep_of_group": 6},
    "loss": {"negative_mask": 0.5, "top_entropy": 0.2, "kl_cov_share": 0.002},
    "env": {"name": "maze"}, **TWICE,
}  # fmt: skip


def test_every_lever_is_off_by_default_and_told_where_it_is_on():
    assert not [line for line in describe(make_recipe({})) if line.startswith("lever")]
    lines = [line for line in describe(make_recipe(ON)) if line.startswith("lever: ")]
    assert len(lines) == 11  # all but the schedule, which cannot stand beside sizes by task
    assert len([x for x in describe(make_recipe({"levers": {"group_size_end": 4}})) if x.startswith("lever: ")]) == 1


def test_proofs_of_the_reward_hold_for_the_largest_group():
    assert largest_group(make_recipe(ON)) == 16
    assert largest_group(make_recipe({"levers": {"group_size_end": 12}})) == 12
    assert largest_group(make_recipe({"levers": {"group_size_end": 4}})) == 8


def test_the_page_names_every_setting():
    page = (Path(__file__).parents[1] / "docs/levers.md").read_text(encoding="utf-8")
    keys = [f"levers.{key}" for key in LeversSection.model_fields]
    keys += ["loss.negative_mask", "loss.top_entropy", "loss.kl_cov_share", "loss.kl_cov_beta"]
    assert [key for key in keys if f"`{key}" not in page] == []

"""The corridor with one deciding door: the world by hand, block B15 played in it, its tasks, scripts and texts."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.credit import assign
from milepost.credit_sections import CreditSection
from milepost.env import Action, Environment, Snapshots, fingerprint, state_key
from milepost.envs.corridor import SPEC, WAYS, WORDS, generate, potential, right_way
from milepost.envs.find import find_env
from milepost.policy import make_tokenizer, vocabulary
from milepost.reward_spec import RewardSpec, judge, turn_rewards
from milepost.scripted import episode_of, play_script
from milepost.sections import RolloutSection
from milepost.types import (
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

COLUMNS = {"length": 3, "sign": 7, "place": 2, "ways": 2, "shown": True, "right": "b"}
TASK = Task("k", "Corridor 0. Ways: a b.", columns=COLUMNS)


def task_of(row, key="k"):
    return Task(key, row["prompt"], columns={name: value for name, value in row.items() if name != "prompt"})


def started(task=TASK):
    world = SPEC.make()
    world.reset(task, 0)
    return world


def texts(task, actions):
    world = SPEC.make()
    shown = [world.reset(task, 0).messages[-1]["content"]]
    return shown + [world.step(Action(action)).messages[0]["content"] for action in actions]


def test_an_episode_by_hand():
    world = SPEC.make()
    assert isinstance(world, Environment) and isinstance(world, Snapshots) and find_env("corridor") is SPEC
    assert world.reset(TASK, 0).messages == ({"role": "user", "content": "Corridor 0. Ways: a b.\n1"},)
    assert world.state() == {"at": 1, "took": ""}
    assert world.step(Action("a")).messages[0]["content"] == "2 7"
    assert world.step(Action(" B\n")).messages[0]["content"] == "3 b" and world.state() == {"at": 3, "took": "b"}
    last = world.step(Action("a"))
    assert last.ended and last.messages[0]["content"] == "Out." and SPEC.goal.holds(TASK, {}, world.state())
    before = world.state()
    late = world.step(Action("b"))
    assert late.ended and late.num_invalid == 1 and world.state() == before
    assert texts(TASK, ["b", "a", "b"])[1:] == ["2 7", "3 a", "Shut."]
    hidden = Task("k", TASK.prompt, columns={**COLUMNS, "shown": False})
    assert texts(hidden, ["b", "b", "b"])[1:] == ["2 7", "3", "Out."]
    assert SPEC.summary(hidden, {}, {"at": 3, "took": "b"}) == "Door 3."  # what is not shown is not summed up either
    assert SPEC.summary(TASK, {}, {"at": 3, "took": "b"}) == "Door 3 b."


@pytest.mark.parametrize("text", ["", "c", "ab", "north", "1", "a b", "right"])
def test_what_is_no_way_changes_nothing(text):
    world = started()
    seen = world.step(Action(text))
    assert (seen.messages[0]["content"], seen.num_invalid, seen.ended) == ("No.", 1, False)
    assert world.state() == {"at": 1, "took": ""}


# --- block B15 --------------------------------------------------------------------------------------------------------


def walked(actions: str, member: int) -> tuple[Episode, Reward]:
    """The episode of these letters as a policy would have played it, and its reward."""
    world, turns = started(), []
    start = state = world.state()
    for action in actions:
        key = state_key(state, SPEC.volatile)
        world.step(Action(action))
        state = world.state()
        sampled = Sampled(np.zeros(1), np.zeros(1), 1.0, ((0, 0),), "stop")
        turns.append(Turn(np.zeros(0), sampled, action, facts={"state": state}, state_key=key))
    won = SPEC.goal.holds(TASK, start, state)
    name = EpisodeId("train", 0, "k", member)
    return Episode(name, "g", tuple(turns), StopReason(StopKind.TERMINATED, "goal" if won else "ended")), Reward(
        float(won), {}, won
    )


def moments(rule: CreditSection, of=lambda told, whole: told) -> list[tuple[float, float]]:
    """(mean, variance) of A·(1[b] − ½) at each door, over both members of all 64 pairs of walks of a policy at ½."""
    found: list[list[float]] = [[], [], []]
    for pair in product(product("ab", repeat=3), repeat=2):
        episodes, rewards = zip(*(walked("".join(actions), i) for i, actions in enumerate(pair)))
        group = Group("g", TASK, tuple(episodes))
        (credits,) = assign([group], [list(rewards)], rule, RolloutSection())
        (plain,) = assign([group], [list(rewards)], CreditSection(baseline="mean"), RolloutSection())
        for actions, credit, whole in zip(pair, credits, plain):
            for t, action in enumerate(actions):
                a = of(credit.advantages[t], whole.advantages[t])
                found[t].append(a * ((action == "b") - 0.5))
    return [(float(np.mean(values)), float(np.var(values))) for values in found]


def test_block_b15_in_the_corridor():
    """Case B15, by the environment's own states: mean and variance of the gradient at each of three doors."""
    episode = moments(CreditSection(baseline="mean"))
    assert episode == [(0, 0.03125), (0.125, 0.015625), (0, 0.03125)]
    anchor = CreditSection(baseline="mean", rule="anchor")
    assert moments(anchor) == [(0, 0.125), (0.25, 0.0625), (0, 0.03125)]
    assert moments(anchor, of=lambda told, whole: told - whole) == [(0, 0.03125), (0.125, 0.015625), (0, 0)]


def test_ways_merge_before_the_door_that_decides_and_part_behind_it():
    task = Task("k", "", columns={"length": 5, "sign": 0, "place": 3, "ways": 3, "shown": True, "right": "c"})
    reached = [set() for _ in range(6)]
    for actions in product("abc", repeat=5):
        world = started(task)
        for t, action in enumerate(actions):
            reached[t].add(fingerprint(world.state()))
            world.step(Action(action))
        reached[5].add(fingerprint(world.state()))
        assert SPEC.goal.holds(task, {}, world.state()) == (actions[2] == "c")
    assert [len(states) for states in reached] == [1, 1, 1, 3, 3, 3]


def test_potential_and_milestone_move_at_that_door_alone():
    task = task_of(next(generate(1, 0, length=7, place=4, ways=4)))
    script = lambda task, world: iter([*"aaa", task.columns["right"], *"abc"])  # noqa: E731
    episode = episode_of(play_script(SPEC, task, script), task)
    states = [episode.facts["start"], *(turn.facts["state"] for turn in episode.turns)]
    assert [potential(task, {}, state) for state in states] == [0.25, 0.25, 0.25, 0.25, 1, 1, 1, 1]
    reward = RewardSpec(milestones={"right": 0.1}, potential=1.0)
    assert judge(reward, SPEC, task, episode).parts["milestones"] == pytest.approx(0.1)
    # Outcome 1 and Φ back to 0 in the last turn; the milestone and Φ from ¼ to 1 at the fourth door.
    assert turn_rewards(reward, SPEC, task, episode) == pytest.approx([0, 0, 0, 0.85, 0, 0, 0])


# --- tasks and scripts ------------------------------------------------------------------------------------------------


def test_rows_are_pinned_and_depend_on_seed_and_place_alone():
    rows = list(generate(200, 1, length=10))
    assert rows[0] == {"prompt": "Corridor 0. Ways: a b c d.", "length": 10, "sign": 10, "place": 5, "ways": 4,
                       "shown": True, "right": "b"}  # fmt: skip
    assert rows[:7] == list(generate(7, 1, length=10)) and len({row["prompt"] for row in rows}) == 200
    assert [row["right"] for row in generate(200, 2, length=10)] != [row["right"] for row in rows]
    table = [right_way(sign, 16, 4) for sign in range(16)]
    assert "".join(table) == "caccadbdaabbbdcd" and all(table.count(way) == 4 for way in "abcd")
    assert {row["place"] for row in generate(5, 0, length=3)} == {2}
    assert {row["place"] for row in generate(5, 0, length=100, place=90)} == {90}


@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ({"length": 0}, "length = 0 must be a whole number from 1 to 1000"),
        ({"place": 11}, "place = 11 must be 0 or a door, from 1 to 10"),
        ({"length": 3, "first": 14, "place": 3}, "place = 3 must be 0 or a door, from 14 to 16"),
        ({"first": 0}, "first = 0 must be a whole number from 1 to 1000"),
        ({"ways": 1}, "ways = 1 must be a whole number from 2 to 8"),
        ({"ways": 2.0}, "ways = 2.0"),
        ({"signs": 101}, "signs = 101 must be a whole number from 1 to 100"),
        ({"shown": 1}, "shown = 1 must be true or false"),
    ],
)
def test_impossible_difficulties_are_refused(difficulty, message):
    with pytest.raises(RecipeError, match=message):
        list(generate(1, 0, **difficulty))


def test_a_task_of_another_environment_is_refused():
    with pytest.raises(DataError, match="no column place"):
        SPEC.make().reset(Task("k", "2+2?"), 0)


def test_a_lesson_of_a_few_doors_around_the_deciding_one():
    task = task_of(next(generate(1, 0, length=3, first=14, ways=2)))
    assert (task.columns["first"], task.columns["place"], SPEC.make().reset(task, 0).messages[-1]["content"][-2:]) == (
        14, 15, "14")  # fmt: skip
    right, wrong = task.columns["right"], "ab".replace(task.columns["right"], "")
    sign = f"15 {task.columns['sign']}"
    assert texts(task, [wrong, right, wrong])[1:] == [sign, f"16 {right}", "Out."]
    assert list(SPEC.gold(task, started(task))) == [wrong, right, wrong]
    assert texts(task, SPEC.known_bad["wrong where it matters"](task, started(task)))[1:] == [sign, f"16 {wrong}", "Shut."]


@pytest.mark.parametrize(
    "difficulty", [{}, {"length": 3, "ways": 2}, {"length": 3, "first": 49}, {"length": 100, "place": 99, "ways": 8}]
)
def test_scripts(difficulty):
    for row in generate(20, 3, **difficulty):
        task = task_of(row)
        played = play_script(SPEC, task, SPEC.gold)
        assert SPEC.goal.holds(task, {}, played.final_state) and len(played.steps) == task.columns["length"]
        assert sum(step.text == task.columns["right"] for step in played.steps) == 1  # right where it matters alone
        for script in SPEC.known_bad.values():
            assert not SPEC.goal.holds(task, {}, play_script(SPEC, task, script).final_state)


def test_a_restored_corridor_has_the_same_future():
    world = started()
    for action in "ab":
        world.step(Action(action))
    saved, fresh = world.snapshot(), SPEC.make()
    json.loads(saved)
    fresh.restore(saved)
    assert fresh.state() == world.state() and fresh.snapshot() == saved
    assert fresh.step(Action("a")) == world.step(Action("a"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from([*WAYS, "A", " b "])), max_size=12))
def test_whatever_is_written_is_answered(written):
    world = started()
    for text in written:
        before = world.state()
        seen = world.step(Action(text))
        assert seen.num_invalid in (0, 1) and (not seen.num_invalid or world.state() == before)
        assert 0 <= potential(TASK, {}, world.state()) <= 1


def test_an_action_is_one_token_and_an_observation_at_most_six():
    """Of a small policy that reads digits in pairs, the line breaks around it included."""
    tokenizer = make_tokenizer(vocabulary([WORDS], None, "pairs"), "pairs", 2048)
    assert all(len(tokenizer.encode(way)) == 1 for way in WAYS)
    for row in generate(3, 0, length=100, ways=8):
        shown = texts(task_of(row), "a" * 100)
        assert tokenizer.unk_token_id not in tokenizer.encode(f"{SPEC.system}\n{shown[0]}")
        ids = [tokenizer.encode(f"\n{text}\n") for text in shown[1:]]
        assert max(map(len, ids)) == 6 and not any(tokenizer.unk_token_id in some for some in ids)

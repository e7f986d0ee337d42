"""BabyAI and MiniGrid as text: the describer by hand and against what it was made from, the world, the expert, scripts."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from foreign_worlds import assert_goes_on_alike_after_a_restore, sampled_episodes, says, solves, tasks_of
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.env import Action
from milepost.envs.babyai_view import COLOURS, DOORS, TYPES, describe, name_of, things

pytest.importorskip("minigrid")

from minigrid.core import constants
from minigrid.core.world_object import Ball, Door, Key

from milepost.envs.babyai import SPEC, WORDS, BabyAI, Level, expert_steps, level_id
from milepost.envs.babyai_hasty import bot
from milepost.envs.find import find_env
from milepost.policy import vocabulary
from milepost.scripted import play_script
from milepost.types import DataError, RecipeError, Task

UNSEEN, EMPTY, WALL = [0, 0, 0], [1, 0, 0], [2, 5, 0]


def cell(name):
    """The package's numbers for "grey key" or "locked red door"."""
    *state, colour, kind = name.split()
    return [TYPES.index(kind), COLOURS.index(colour), DOORS.index(state[0]) if state else 0]


def image(*, default=EMPTY, **cells):
    """A view: f3r2 = "grey key" lies 3 steps forward and 2 right; l for left."""
    view = [[list(default) for _ in range(7)] for _ in range(7)]
    for where, what in cells.items():
        forward, side, aside = re.fullmatch(r"f(\d)([rl])(\d)", where).groups()
        column = 3 + int(aside) * (1 if side == "r" else -1)
        view[column][6 - int(forward)] = what if isinstance(what, list) else cell(what)
    return view


# ---- the describer ---------------------------------------------------------------------------------------------------


def test_a_view_in_words():
    assert describe(image(f3r2="grey key")) == "You see a grey key 3 steps forward and 2 right."
    assert describe(image(f1l1="red ball")) == "You see a red ball 1 step forward and 1 left."
    assert describe(image(f0l3="blue box")) == "You see a blue box 3 steps left."
    assert describe(image(f6r0="purple key")) == "You see a purple key 6 steps forward."
    assert describe(image(f2r0="open red door")) == "You see an open red door 2 steps forward."
    assert describe(image(f2r0="locked grey door"), "grey key") == (
        "You see a locked grey door 2 steps forward. You carry a grey key."
    )
    assert describe(image()) == describe(image(default=UNSEEN)) == "You see nothing."


def test_a_view_in_few_words():
    view = image(f3r2="grey key", f0l1="closed red door", f4r0=WALL)
    assert describe(view, "blue ball", terse=True) == (
        "closed red door 1 left, grey key 3 forward 2 right, wall 4 forward. carry blue ball."
    )
    assert describe(image(), terse=True) == "nothing."


def test_things_come_nearest_first_and_walls_only_straight_ahead_and_beside():
    view = image(f4r0="red ball", f2l2="red key", f2r2="green key", f0r1="blue box", f5r0=WALL, f6r0=WALL, f0r2=WALL,
                 f0l3=WALL, f3l1=WALL, f0r3=WALL)  # fmt: skip
    # 1 step; then three of 4 steps, the farthest forward first and the left before the right.
    assert [(t.name, t.forward, t.right) for t in things(view)] == [
        ("blue box", 0, 1), ("red ball", 4, 0), ("red key", 2, -2), ("green key", 2, 2),
    ]  # fmt: skip
    assert describe(view, terse=True).endswith("2 right, wall 5 forward, wall 3 left, wall 2 right.")


def test_what_is_carried_is_no_thing_that_is_seen():
    assert describe(image(f0r0="blue ball"), "blue ball") == "You see nothing. You carry a blue ball."


def test_lava_and_the_goal_square():
    view = image(f1r0=[TYPES.index("lava"), 0, 0], f2r0="green goal")
    assert describe(view) == "You see lava 1 step forward, a green goal 2 steps forward."


def test_the_numbers_are_the_packages_own():
    assert {name: i for i, name in enumerate(TYPES)} == constants.OBJECT_TO_IDX
    assert {name: i for i, name in enumerate(COLOURS)} == constants.COLOR_TO_IDX
    assert {name: i for i, name in enumerate(DOORS)} == constants.STATE_TO_IDX
    assert name_of(Ball("grey").encode()) == "grey ball" and name_of(Key("red").encode()) == "red key"
    assert name_of(Door("blue", is_locked=True).encode()) == "locked blue door"


KINDS = st.sampled_from(["grey key", "red ball", "blue box", "open green door", "locked purple door", "yellow ball"])
PLACES = st.tuples(st.integers(0, 6), st.integers(-3, 3)).filter(lambda at: at != (0, 0))
PHRASE = re.compile(r"an? ([\w ]+?)(?: (\d) steps? (forward|left|right))(?: and (\d) (left|right))?(?=[,.])")


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(PLACES, KINDS, max_size=12))
def test_a_reader_of_the_words_knows_where_everything_is(laid):
    view = image()
    for (forward, right), name in laid.items():
        view[3 + right][6 - forward] = cell(name)
    found = {}
    for name, number, way, aside, side in PHRASE.findall(describe(view)):
        forward = int(number) if way == "forward" else 0
        right = int(aside or 0) if way == "forward" else int(number)
        found[forward, right * (-1 if "left" in (way, side) else 1)] = name
    assert found == laid


def test_the_view_is_the_one_that_the_package_shows():
    """Turn and walk in a room: what is told lies where the package has it, seen from where the agent stands and looks."""
    world = SPEC.make()
    (task,) = tasks_of(SPEC, 1, seed=5)
    world.reset(task, 0)
    num_seen = 0
    for text in ["left", "left", "forward", "right", "forward", "left", "left"]:
        says(world, text)
        grid = world.level.grid
        for name, forward, right in things(world.level.image()):
            x, y = grid.agent_pos + forward * grid.dir_vec + right * grid.right_vec
            there = grid.grid.get(int(x), int(y))
            assert name.endswith(f"{there.color} {there.type}")
            num_seen += 1
    assert num_seen > 10


def test_a_policy_that_knows_only_the_words_can_read_every_observation():
    known = set(vocabulary([WORDS], None, "words"))
    tasks = tasks_of(SPEC, 12, levels="GoToLocal,PickupLoc,OpenDoorLoc,PutNextLocalS6N4,GoToSeqS5R2", min_steps=2)
    for task in tasks:
        world = SPEC.make()
        texts = [world.reset(task, 0).messages[0]["content"], *(says(world, text)[0] for text in ("left", "forward", "?"))]
        assert set(vocabulary(texts, None, "words")) <= known


# ---- the world -------------------------------------------------------------------------------------------------------


def first(level, seed=0, **difficulty):
    return next(iter(tasks_of(SPEC, 1, seed, levels=level, **difficulty)))


def test_an_episode_by_hand():
    task = first("PutNextLocalS5N3", seed=1)
    assert task.prompt.startswith("put the ") and task.columns["level"] == "BabyAI-PutNextLocalS5N3-v0"
    played = play_script(SPEC, task, SPEC.gold)
    assert len(played.steps) == task.columns["steps"] and played.final_state["status"] == "solved"
    states = [played.start_state, *(step.state for step in played.steps)]
    assert played.steps[-1].observation.messages[0]["content"] == "Solved."
    picked = next(i for i, step in enumerate(played.steps) if step.text == "pick up")
    thing = states[picked + 1]["carrying"]
    assert thing in task.columns["wanted"] and f"put the {thing} next to" in task.prompt
    assert played.steps[picked].observation.messages[0]["content"].endswith(f"You carry a {thing}.")
    held = next(m for m in SPEC.milestones if m.name == "held")
    assert [held.reached(task, a, b) for a, b in pairwise(states)].index(True) == picked
    assert len(states[picked + 1]["things"]) == len(states[0]["things"]) - 1
    assert played.final_state["steps"] == len(played.steps) and played.final_state["idle"] == 0
    assert [cost.amount(task, states) for cost in SPEC.costs] == [len(played.steps), 0]


@pytest.mark.parametrize("level", ["GoToLocal", "PickupLoc", "DoorKey-5x5"])
def test_success_is_success_however_late(level):
    task, world = first(level, max_steps=64), SPEC.make()
    world.reset(task, 0)
    for _ in range(4 * 300):  # whole turns: far beyond the package's own limits of steps
        assert not world.step(Action("left")).ended
    for text, _ in zip(SPEC.gold(task, world), range(100)):
        seen = world.step(Action(text))
        if seen.ended:
            break
    assert seen.ended and seen.messages[0]["content"] == "Solved." and SPEC.goal.holds(task, {}, world.state())


def test_what_is_not_understood_or_does_nothing():
    task = first("GoToLocal")
    world = SPEC.make()
    world.reset(task, 0)
    before = world.state()
    told = "Not understood. Write one of: left, right, forward, pick up, drop, toggle, done."
    for text in ("", "go to the ball", "left left", "7"):
        assert says(world, text) == (told, 1, False) and world.state() == before
    seen, num_invalid, over = says(world, "Drop.")
    assert seen == f"Nothing happened. {before['sees']}" and (num_invalid, over) == (0, False)
    assert world.state() == {**before, "steps": 1, "idle": 1}
    assert says(world, "turn left")[0] != before["sees"]
    assert says(world, "done") == ("Failed.", 0, True)
    assert world.state()["status"] == "failed" and not SPEC.goal.holds(task, before, world.state())


def test_parts_of_a_compound_mission_are_told_in_order():
    task = first("OpenDoorsOrderN2", seed=2, min_steps=8)
    assert task.prompt.count("open the") == 2
    played = play_script(SPEC, task, SPEC.gold)
    states = [played.start_state, *(step.state for step in played.steps)]
    done = [state["parts"] for state in states]
    assert done[0] == [False, False] and done[-1] == [True, True]
    (part,) = [m for m in SPEC.milestones if m.name == "part"]
    (opened,) = [m for m in SPEC.milestones if m.name == "opened"]
    pairs = list(pairwise(states))
    assert sum(part.reached(task, *pair) for pair in pairs) == 1  # the second one is the mission's own end
    assert sum(opened.reached(task, *pair) for pair in pairs) == 2
    middle = next(state for state in states if sum(state["parts"]) == 1)
    assert SPEC.summary(task, states[0], middle) == f"1 of 2 parts are done. {middle['sees']}"


def test_found_is_paid_when_the_thing_comes_into_sight():
    hidden = next(t for t in tasks_of(SPEC, 12) if not any(name in play_script(SPEC, t, SPEC.gold).start_state["sees"]
                                                           for name in t.columns["wanted"]))  # fmt: skip
    played = play_script(SPEC, hidden, SPEC.gold)
    states = [played.start_state, *(step.state for step in played.steps)]
    (found,) = [m for m in SPEC.milestones if m.name == "found"]
    reached = [found.reached(hidden, a, b) for a, b in pairwise(states)]
    at = reached.index(True)
    assert all(not any(name in state["sees"] for name in hidden.columns["wanted"]) for state in states[: at + 1])


def test_it_goes_on_alike_after_a_restore():
    texts = ["left", "forward", "toggle", "forward", "right", "pick up", "forward", "drop", "left", "forward", "right"]
    for level in ("GoToLocal", "UnlockPickup", "DoorKey-5x5"):
        assert_goes_on_alike_after_a_restore(SPEC, first(level), texts)


def test_rows_of_another_environment_are_refused():
    with pytest.raises(DataError, match="babyai: task k has no column level"):
        SPEC.make().reset(Task("k", "2+2?"), 0)


# ---- tasks, the expert, bad policies ---------------------------------------------------------------------------------


def test_the_expert_solves_fifty_tasks_as_fast_as_they_say_and_the_bad_ones_none():
    assert find_env("babyai") is SPEC
    tasks = tasks_of(SPEC, 50, levels="GoToLocal,PickupLoc,GoToObj,PutNextLocalS5N3,OpenRedDoor")
    assert len({task.columns["level"] for task in tasks}) == 5
    for task in tasks:
        assert solves(SPEC, task, SPEC.gold, max_turns=task.columns["steps"])
        assert not any(solves(SPEC, task, script, max_turns=60) for script in SPEC.known_bad.values())


@pytest.mark.parametrize(
    ("level", "mission"),
    [
        ("GoToSeqS5R2", "go to"), ("UnlockLocal", "open the door"), ("DoorKey-6x6", "use the key to open the door"),
        ("MultiRoom-N2-S4", "traverse the rooms"), ("LavaGapS5", "avoid the lava"), ("Fetch-5x5-N2", "get|fetch"),
        ("GoToDoor-5x5", "go to the"), ("MiniGrid-Unlock-v0", "open the door"), ("Empty-5x5", "get to the green goal"),
    ],
)  # fmt: skip
def test_the_expert_knows_levels_of_many_kinds(level, mission):
    task = first(level, min_steps=2)
    assert re.search(mission, task.prompt) and solves(SPEC, task, SPEC.gold)


def test_rows_depend_on_seed_and_place_alone_and_differ():
    rows = list(SPEC.generate(15, 1))
    assert rows[:4] == list(SPEC.generate(4, 1))
    assert len({(row["prompt"], row["seed"]) for row in rows}) == 15 and all(row["steps"] >= 3 for row in rows)
    assert not any(row in rows for row in SPEC.generate(15, 2))  # case E8: the seed is not dropped
    assert all(4 <= row["steps"] <= 5 for row in SPEC.generate(8, 1, min_steps=4, max_steps=5))


@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ({"levels": "GoToLocl"}, r"babyai: levels names 'GoToLocl', which is no level of MiniGrid's; did you mean 'GoTo"),
        ({"levels": ""}, "babyai: levels = '' names none"),
        ({"levels": 3}, r'babyai: levels = 3 must be names of levels, such as "GoToLocal,PickupLoc"'),
        ({"levels": ["GoToLocal", 3]}, r"babyai: levels = \['GoToLocal', 3\] must be names of levels"),
        ({"levels": {"GoToLocal": 1}}, "babyai: levels = .* must be names of levels"),
        ({"terse": 1}, "babyai: terse = 1 must be true or false"),
        ({"min_steps": 0}, "min_steps = 0 must be a whole number from 1 to 500"),
        ({"min_steps": 9, "max_steps": 8}, "max_steps = 8 must be a whole number from 9 to 500"),
        ({"levels": "MemoryS7"}, "after 0 different tasks 200 draws of MiniGrid-MemoryS7-v0 gave no further one"),
    ],
)
def test_impossible_tasks_are_refused(difficulty, message):
    with pytest.raises(RecipeError, match=message):
        list(SPEC.generate(1, 0, **difficulty))


def test_names_of_levels():
    assert level_id("GoToLocal") == level_id("BabyAI-GoToLocal-v0") == "BabyAI-GoToLocal-v0"
    assert level_id("MiniGrid-MultiRoom-N4-S5-v0") == "MiniGrid-MultiRoom-N4-S5-v0"  # an old version, if asked for by name
    assert level_id("UnlockPickup") == "BabyAI-UnlockPickup-v0"
    assert level_id("MultiRoom-N4-S5") == "MiniGrid-MultiRoom-N4-S5-v1"
    assert expert_steps(Level("BabyAI-GoToObjS4-v0", 0)) == 2


def test_a_level_that_is_drawn_anew_says_nothing(capsys):
    for seed in range(30):
        Level("BabyAI-PutNextLocalS5N3-v0", seed)
    assert capsys.readouterr().out == ""


def test_the_hasty_bot_gives_up_where_it_sees_nothing_and_ends_by_itself():
    tasks = tasks_of(SPEC, 40)
    played = [play_script(SPEC, task, bot, max_turns=40) for task in tasks]
    assert all(one.ended for one in played)
    gave_up = [len(one.steps) == 1 and one.steps[0].text == "done" for one in played]
    hidden = [not any(name in one.start_state["sees"] for name in task.columns["wanted"])
              for task, one in zip(tasks, played)]  # fmt: skip
    assert all(h for g, h in zip(gave_up, hidden) if g) and 0.5 < sum(gave_up) / sum(hidden) < 0.95
    solved = [one.final_state["status"] == "solved" for one in played]
    assert 0.35 < sum(solved) / len(solved) < 0.7
    mistaken = [one for one, s, g in zip(played, solved, gave_up) if not s and not g]
    assert mistaken and all(one.steps[-1].text == "done" for one in mistaken)


# ---- through the tokens ----------------------------------------------------------------------------------------------


def test_fifty_episodes_of_a_new_policy(tmp_path):
    params = {"levels": "GoToObjS6", "terse": True, "min_steps": 2}
    episodes = sampled_episodes(tmp_path, SPEC, WORDS, params=params, max_turns=8)
    facts = [turn.facts["state"] for episode in episodes for turn in episode.turns]
    assert {"running"} <= {state["status"] for state in facts} and BabyAI.name == "babyai"

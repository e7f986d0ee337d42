"""FrozenLake, Taxi and CliffWalking as text: worlds by hand, the best policy by hand, scripts, sampled episodes."""

from __future__ import annotations

import importlib.util

import pytest
from foreign_worlds import assert_goes_on_alike_after_a_restore, sampled_episodes, says, solves, tasks_of

pytest.importorskip("gymnasium")

from milepost.envs import cliff_walking, frozen_lake, taxi
from milepost.envs.find import FOREIGN, find_env
from milepost.envs.toy_text import GAMMA, best_actions, plain
from milepost.scripted import play_script
from milepost.types import DataError, RecipeError, Task

SPECS = {"frozen_lake": frozen_lake.SPEC, "taxi": taxi.SPEC, "cliff_walking": cliff_walking.SPEC}
CHANCE = {"frozen_lake": {"slippery": True}, "taxi": {"rainy": True}, "cliff_walking": {"slippery": True}}


@pytest.mark.parametrize("name", SPECS)
def test_it_is_found_by_name(name):
    assert find_env(name) is SPECS[name] and name in FOREIGN


def test_a_missing_package_is_one_sentence_that_names_the_extra(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gymnasium" else found(name))
    with pytest.raises(RecipeError) as error:
        find_env("taxi", "env.name")
    assert str(error.value) == (
        "env.name = 'taxi' needs the package gymnasium; install it with pip install 'milepost[gymnasium]'"
    )


# ---- worlds by hand --------------------------------------------------------------------------------------------------

LAKE = Task("k", "Cross the ice.", columns={"map": ["SFH", "HFF", "HHG"], "slippery": False, "seed": 0, "steps": 4})


def test_a_lake_by_hand():
    world = frozen_lake.SPEC.make()
    seen = world.reset(LAKE, 0)
    assert seen.messages[0]["content"] == "Cross the ice.\n@ F H\nH F F\nH H G"
    assert world.state() == {"row": 0, "column": 0, "cell": "S", "steps": 0, "idle": 0}
    assert says(world, "up") == ("@ F H\nH F F\nH H G", 0, False) and world.state()["idle"] == 1
    assert says(world, " Right. ") == ("S @ H\nH F F\nH H G", 0, False)
    told = "Not understood. Write one of: left, down, right, up."
    before = world.state()
    for text in ("", "right right", "go home", "2", "I reached the goal."):
        assert says(world, text) == (told, 1, False) and world.state() == before
    assert says(world, "down") == ("S F H\nH @ F\nH H G", 0, False)
    assert says(world, "right")[0] == "S F H\nH F @\nH H G"
    assert says(world, "down") == ("You are there.", 0, True)
    assert world.state() == {"row": 2, "column": 2, "cell": "G", "steps": 5, "idle": 1}
    assert says(world, "up") == ("It is over.", 1, True)
    world.reset(LAKE, 1)
    says(world, "right")
    assert says(world, "right") == ("You fell into a hole.", 0, True) and world.state()["cell"] == "H"


def test_colours_go_and_the_marked_cell_is_the_agent():
    assert plain("\n\x1b[41mS\x1b[0mFH\n\x1b[35mG\x1b[0m") == "\n@FH\nG"


def test_a_taxi_by_hand():
    start = ((3 * 5 + 1) * 5 + 2) * 4 + 1  # row 3, column 1; pads R G Y B are 0 1 2 3
    task = Task("k", "Passenger at Y. Bring him to G.", columns={"start": start, "rainy": False, "seed": 0, "steps": 14})
    world = taxi.SPEC.make()
    assert world.reset(task, 0).messages[0]["content"] == f"{task.prompt}\nTaxi 3 1. Passenger at Y."
    assert says(world, "west")[0] == "Taxi 3 1. Passenger at Y."  # a wall
    assert says(world, "pickup")[0] == "Taxi 3 1. Passenger at Y. Nobody here."
    assert says(world, "dropoff")[0] == "Taxi 3 1. Passenger at Y. No passenger to set down here."
    start = world.state()
    assert start == {"taxi": [3, 1], "passenger": "Y", "wants": "G", "steps": 3, "idle": 3, "mistakes": 2}
    # North past the wall, west, south to Y; back north to row 2, east along it, north to G.
    for text in ("north", "west", "south", "south"):
        assert says(world, text)[1:] == (0, False)
    assert says(world, "pick up") == ("Taxi 4 0. Passenger in the taxi.", 0, False)
    (picked,) = taxi.SPEC.milestones
    assert picked.reached(task, {"passenger": "Y"}, world.state())
    assert not picked.reached(task, world.state(), world.state())
    for text in ("north", "north", "east", "east", "east", "east", "north", "north"):
        says(world, text)
    assert says(world, "dropoff") == ("Delivered.", 0, True)
    assert world.state() == {"taxi": [0, 4], "passenger": "G", "wants": "G", "steps": 17, "idle": 3, "mistakes": 2}
    assert taxi.SPEC.goal.holds(task, start, world.state())
    assert solves(taxi.SPEC, task, taxi.SPEC.gold, max_turns=14)  # four, pickup, eight, dropoff
    assert not solves(taxi.SPEC, task, taxi.SPEC.gold, max_turns=13)


def test_a_passenger_waits_where_he_was_set_down():
    task = Task("k", "", columns={"start": 1, "rainy": False, "seed": 0})  # at R 0 0, where a passenger for G waits
    world = taxi.SPEC.make()
    world.reset(task, 0)
    for text in ("pickup", "south", "south", "south", "south", "dropoff"):
        last = says(world, text)
    assert last == ("Taxi 4 0. Passenger at Y.", 0, False) and world.state()["mistakes"] == 0


def test_a_cliff_by_hand():
    task = Task("k", "Go to 3 11.", columns={"start": 36, "slippery": False, "seed": 0, "steps": 13})
    assert solves(cliff_walking.SPEC, task, cliff_walking.SPEC.gold, max_turns=13)  # up, eleven to the right, down
    assert not solves(cliff_walking.SPEC, task, cliff_walking.SPEC.gold, max_turns=12)
    world = cliff_walking.SPEC.make()
    assert world.reset(task, 0).messages[0]["content"] == "Go to 3 11.\nYou are at 3 0."
    assert says(world, "right") == ("You fell off the cliff.", 0, True)
    assert world.state() == {"row": 3, "column": 0, "fell": True, "steps": 1, "idle": 0}
    world.reset(task, 0)
    assert says(world, "left") == ("You are at 3 0.", 0, False) and world.state()["idle"] == 1
    for text in ("up", *["right"] * 11):
        last = says(world, text)
    assert last == ("You are at 2 11.", 0, False)
    assert says(world, "down") == ("You are there.", 0, True)


# ---- the best policy -------------------------------------------------------------------------------------------------


def test_value_iteration_by_hand():
    """From 0 a short way (action 0) wins with ½ and loses with ½; a long one (action 1, over 1) is sure."""
    table = {0: {0: [(0.5, 2, 0, True), (0.5, 3, 0, True)], 1: [(1.0, 1, 0, False)]},
             1: {0: [(1.0, 2, 0, True)], 1: [(1.0, 0, 0, False)]}, 2: {}, 3: {}}  # fmt: skip
    best, values = best_actions(table, lambda state: state == 2, lambda state: state == 3)
    assert best == {0: 1, 1: 0}
    assert values == pytest.approx({0: GAMMA**2, 1: GAMMA, 2: 1.0, 3: 0.0})


def test_on_slippery_ground_the_best_policy_never_risks_the_cliff():
    """Beside it, in row 2, every other action than up could slip down or along; at 3 0 only left cannot fall."""
    best = cliff_walking._best(True)
    assert best[36] == cliff_walking.CliffWalking.words["left"]
    assert {best[24 + column] for column in range(1, 11)} == {cliff_walking.CliffWalking.words["up"]}


# ---- tasks and scripts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_the_best_policy_solves_fifty_tasks_as_fast_as_they_say_and_the_bad_ones_none(name):
    spec = SPECS[name]
    tasks = tasks_of(spec, 25, **CHANCE[name]) + tasks_of(spec, 25, seed=1)
    assert all(solves(spec, task, spec.gold, max_turns=task.columns["steps"]) for task in tasks)
    assert not any(solves(spec, task, spec.gold, max_turns=task.columns["steps"] - 1) for task in tasks)
    for script in spec.known_bad.values():
        assert not any(solves(spec, task, script) for task in tasks)


def test_slips_depend_on_the_task_and_not_on_the_seed_of_the_reset():
    """Two tasks of one map slip differently; one task slips alike under every seed."""
    cells = ["SFFF", "FFFF", "FFFF", "FFFG"]

    def way(task_seed, reset_seed):
        world = frozen_lake.SPEC.make()
        world.reset(Task("k", "", columns={"map": cells, "slippery": True, "seed": task_seed}), reset_seed)
        return [says(world, text)[0] for text in ["right", "down"] * 3]

    assert way(1, 0) == way(1, 9) != way(2, 0)


def test_no_task_is_solved_by_the_first_right_action_again_and_again():
    """On slippery ground luck would do it, at one task in 20."""
    for name in ("frozen_lake", "cliff_walking"):
        spec = SPECS[name]
        for task in tasks_of(spec, 30, slippery=True):
            first = play_script(spec, task, spec.gold).steps[0].text
            texts = [first] * (2 * task.columns["steps"] + 10)
            assert not solves(spec, task, lambda task, world, texts=texts: iter(texts))


@pytest.mark.parametrize("name", SPECS)
def test_rows_are_different_and_depend_on_the_seed(name):
    spec = SPECS[name]
    rows = list(spec.generate(20, 3, **CHANCE[name]))
    assert rows[:7] == list(spec.generate(7, 3, **CHANCE[name]))
    assert len({str(row) for row in rows}) == 20
    assert not any(row in rows for row in spec.generate(20, 4, **CHANCE[name]))


@pytest.mark.parametrize(
    ("name", "difficulty", "size", "message"),
    [
        ("frozen_lake", {"side": 2}, 1, "frozen_lake: side = 2 must be a whole number from 3 to 10"),
        ("frozen_lake", {"holes": 0.5}, 1, "holes = 0.5 must be a number from 0 to 0.4"),
        ("frozen_lake", {"slippery": 1}, 1, "slippery = 1 must be true or false"),
        ("frozen_lake", {"side": 3, "holes": 0}, 2, "after 1 different tasks .* raise side"),
        ("taxi", {"rainy": "yes"}, 1, "taxi: rainy = 'yes' must be true or false"),
        ("taxi", {"min_steps": 19}, 9, "after . different tasks .* 300 starts are all there are"),
        ("cliff_walking", {"min_steps": 15}, 1, "min_steps = 15 must be a whole number from 1 to 14"),
        ("cliff_walking", {}, 26, "after 25 different tasks .* there are 25 starts"),
    ],
)
def test_impossible_tasks_are_refused(name, difficulty, size, message):
    with pytest.raises(RecipeError, match=message):
        list(SPECS[name].generate(size, 0, **difficulty))


@pytest.mark.parametrize("name", SPECS)
def test_rows_of_another_environment_are_refused(name):
    with pytest.raises(DataError, match=f"{name}: task k has no column"):
        SPECS[name].make().reset(Task("k", "2+2?"), 0)


@pytest.mark.parametrize("name", SPECS)
def test_it_goes_on_alike_after_a_restore(name):
    spec = SPECS[name]
    words = list(spec.make().words)
    for task in tasks_of(spec, 3, **CHANCE[name]):
        assert_goes_on_alike_after_a_restore(spec, task, [words[i % 3] for i in range(14)])


# ---- through the tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_fifty_episodes_of_a_new_policy(name, tmp_path):
    module = {"frozen_lake": frozen_lake, "taxi": taxi, "cliff_walking": cliff_walking}[name]
    sampled_episodes(tmp_path, SPECS[name], module.WORDS, params=CHANCE[name] if name == "cliff_walking" else None)

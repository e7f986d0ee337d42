"""Mazes: exact shortest paths, the world by hand and under random texts, and scripts that succeed and that do not."""

import json
import random
import re
from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.env import Action, Environment, EnvSpec, Snapshots, canonical, fingerprint, state_key
from milepost.envs.find import find_env
from milepost.envs.maze import SPEC, TERSE_WORDS, WORDS, potential
from milepost.envs.maze_tasks import distances, generate, options, shortest_path, start_of, where_of
from milepost.policy import make_tokenizer, vocabulary
from milepost.reward_spec import RewardSpec, judge, turn_rewards
from milepost.scripted import episode_of, play_script
from milepost.types import DataError, RecipeError, Task

# Three rooms in a row, one above the middle: the key lies in the west, the exit in the north behind the red door.
#
#            1 1 (exit)
#             ‖ red
#   0 0 ──── 1 0 ──── 2 0 (start)
#   key
ROW = {
    "prompt": "Exit 1 1.",
    "maze": {
        "start": "2 0", "exit": "1 1", "keys": {"red": "0 0"},
        "rooms": {"0 0": {"east": ["1 0", ""]}, "1 0": {"north": ["1 1", "red"], "east": ["2 0", ""], "west": ["0 0", ""]},
                  "2 0": {"west": ["1 0", ""]}, "1 1": {"south": ["1 0", "red"]}},
    },
    "shortest": 6,
}  # fmt: skip
WAY = ["west", "west", "take red", "east", "open north", "north"]
DIFFICULTIES = [
    {"rooms": 6, "keys": 0},
    {"rooms": 9, "keys": 1},
    {},
    {"rooms": 30, "keys": 2, "loops": 4},
    {"rooms": 64, "keys": 3},
    {"rooms": 100, "keys": 4, "loops": 10},
    {"rooms": 49, "keys": 4, "min_length": 60, "max_length": 80},
    {"rooms": 100, "keys": 4, "min_length": 100},
]


def task_of(row, key="k"):
    return Task(key, row["prompt"], columns={name: value for name, value in row.items() if name != "prompt"})


TASK = task_of(ROW)


def started(task=TASK, seed=0):
    world = SPEC.make()
    world.reset(task, seed)
    return world


def say(world, text):
    (message,) = world.step(Action(text)).messages
    assert message["role"] == "user"
    return message["content"]


def play(task, script):
    """(states, observations, texts shown) of a scripted policy."""
    world = SPEC.make()
    texts = [world.reset(task, 0).messages[-1]["content"]]
    states, seen = [world.state()], []
    for text in script(task, world):
        seen.append(world.step(Action(text)))
        states.append(world.state())
        texts.append(seen[-1].messages[0]["content"])
        if seen[-1].ended:
            break
    return states, seen, texts


def succeeds(task, states):
    return SPEC.goal.holds(task, states[0], states[-1])


def reached(task, states):
    """How often each milestone's predicate was true for a step."""
    counts = {m.name: sum(m.reached(task, a, b) for a, b in pairwise(states)) for m in SPEC.milestones}
    return {name: count for name, count in counts.items() if count}


@pytest.fixture(scope="module")
def mazes():
    """25 mazes of each difficulty."""
    return [task_of(row, f"{i}/{n}") for i, d in enumerate(DIFFICULTIES) for n, row in enumerate(generate(25, 3, **d))]


# ---- the world by hand -----------------------------------------------------------------------------------------------


def test_an_episode_by_hand():
    world = SPEC.make()
    assert isinstance(world, Environment) and isinstance(world, Snapshots)
    assert world.reset(TASK, 0).messages == ({"role": "user", "content": "Exit 1 1.\nRoom 2 0: west."},)
    assert world.state() == {"at": "2 0", "keys": {"red": "0 0"}, "opened": [], "steps": 0, "bumps": 0}
    shown = ["Room 1 0: red door north, east, west.", "Room 0 0: east. Key: red.", "Taken.",
             "Room 1 0: red door north, east, west.", "Opened."]  # fmt: skip
    for action, text in zip(WAY, shown):
        assert say(world, action) == text
    assert world.state() == {"at": "1 0", "keys": {"red": "held"}, "opened": ["red"], "steps": 5, "bumps": 0}
    assert not SPEC.goal.holds(TASK, {}, world.state())
    last = world.step(Action("north"))
    assert last.ended and last.messages[0]["content"] == "Out." and SPEC.goal.holds(TASK, {}, world.state())
    assert world.step(Action("south")).ended and world.state()["at"] == "1 1"  # nobody comes back


def test_walls_and_locked_doors_cost_a_step_and_refusals_change_nothing():
    world = started()
    assert say(world, "north") == "Wall."
    assert world.state() == {"at": "2 0", "keys": {"red": "0 0"}, "opened": [], "steps": 1, "bumps": 1}
    say(world, "west")
    assert say(world, "north") == "Locked."
    before = world.state()
    assert (before["at"], before["steps"], before["bumps"]) == ("1 0", 3, 2)
    for text, answer in [
        ("open north", "No key for it."),
        ("open east", "No locked door there."),
        ("open south", "No locked door there."),
        ("take red", "No red key here."),
        ("take blue", "No blue key here."),
        ("drop red", "No red key held."),
        ("drop yellow", "No yellow key held."),
        ("go home", "Not understood."),
        ("north north", "Not understood."),
        ("", "Not understood."),
        ("I reached the exit. Success!", "Not understood."),
    ]:
        seen = world.step(Action(text))
        assert (seen.messages[0]["content"], seen.num_invalid, seen.ended) == (answer, 1, False)
        assert world.state() == before


@pytest.mark.parametrize("text", ["west", "go west", "  WEST.\n", "Go  West"])
def test_ways_to_write_a_move(text):
    world = started()
    assert say(world, text).startswith("Room 1 0") and world.state()["steps"] == 1


def test_a_dropped_key_lies_there_and_an_open_door_stays_open():
    world = started()
    for action in ["west", "west", "take red key", "go east", "open door north"]:
        assert world.step(Action(action)).num_invalid == 0
    assert say(world, "drop the red key") == "Not understood."
    assert say(world, "drop red key") == "Dropped."
    assert world.state() == {"at": "1 0", "keys": {"red": "1 0"}, "opened": ["red"], "steps": 6, "bumps": 0}
    say(world, "west")
    assert say(world, "east") == "Room 1 0: north, east, west. Key: red."
    assert world.step(Action("north")).ended


def test_costs_and_milestones_by_hand():
    world = started()
    states = [world.state()]
    for action in ["north", "west", "north", "rubbish", "west", "take red", "drop red", "take red", "east", "open north"]:
        world.step(Action(action))
        states.append(world.state())
    costs = {cost.name: cost.amount(TASK, states) for cost in SPEC.costs}
    assert costs == {"moves": 3, "bumps": 2}  # west, west, east; a wall and the locked door
    # An event is paid once: the predicate is true again when the key is taken again, and the reward latches it.
    assert reached(TASK, states) == {"took red": 2, "opened red": 1}
    assert all(m.kind == "event" for m in SPEC.milestones) and len(SPEC.milestones) == 8


def test_the_potential_by_hand():
    world = started()
    found = [potential(TASK, {}, world.state())]
    for action in ["west", "east", "west", "west", "take red", "drop red", "take red", "east", "drop red", "east"]:
        world.step(Action(action))
        found.append(potential(TASK, {}, world.state()))
    # Left: 6 at the start; 5, 6, 5, 4, then 3 with the key, 4 without, 3 again; in the middle 2, 3 once it is dropped
    # there, 4 in the east (west, take, open, north).
    assert found == [6 / (6 + left) for left in (6, 5, 6, 5, 4, 3, 4, 3, 2, 3, 4)]


def test_environments_are_found_by_name():
    assert find_env("maze") is SPEC and isinstance(SPEC, EnvSpec)


# ---- shortest paths --------------------------------------------------------------------------------------------------


def brute_force(task):
    """The fewest actions to the exit, tried out in the world itself, dropping included."""
    texts = ["north", "east", "south", "west", *(f"{verb} {key}" for verb in ("take", "drop") for key in ("red", "blue"))]
    texts += [f"open {direction}" for direction in texts[:4]]
    world = started(task)
    first = state_key(world.state(), SPEC.volatile)
    queue, known = deque([(world.snapshot(), 0)]), {first}
    while queue:
        saved, length = queue.popleft()
        for text in texts:
            world.restore(saved)
            if world.step(Action(text)).ended:
                return length + 1
            key = state_key(world.state(), SPEC.volatile)
            if key not in known:
                known.add(key)
                queue.append((world.snapshot(), length + 1))
    return None


def test_no_way_in_the_world_is_shorter():
    assert brute_force(TASK) == 6 and shortest_path(ROW["maze"], start_of(ROW["maze"])) == WAY
    rows = [*generate(24, 0, rooms=8, keys=1), *generate(4, 0, rooms=7, keys=0, loops=3), *generate(16, 1, rooms=9, keys=2)]
    tried = [row for row in rows if set(row["maze"]["keys"]) <= {"red", "blue"}]
    assert {len(row["maze"]["keys"]) for row in tried} == {0, 1, 2} and len(tried) > 12
    for row in tried:
        assert brute_force(task_of(row)) == row["shortest"]


def test_the_gold_script_takes_exactly_the_shortest_way(mazes):
    assert len(mazes) == 200
    pieces = re.compile(r"\d|[^\W\d]+|[\s\S]")
    known = {*pieces.findall(WORDS), *"0123456789 \n"}
    for task in mazes:
        states, seen, texts = play(task, SPEC.gold)
        length = task.columns["shortest"]
        assert len(seen) == length and succeeds(task, states) and seen[-1].ended
        assert not any(o.ended or o.num_invalid for o in seen[:-1]) and states[-1]["bumps"] == 0
        found = [potential(task, states[0], state) for state in states]
        assert found == pytest.approx([length / (2 * length - t) for t in range(length + 1)])
        assert found[0] == 0.5 and found[-1] == 1 and found == sorted(found)
        assert all(len(text.split()) <= 15 for text in texts[1:]) and len(texts[0].split()) <= 18
        assert all(piece in known for text in texts for piece in pieces.findall(text))
        keys = task.columns["maze"]["keys"]
        assert reached(task, states) == {name: 1 for key in keys for name in (f"took {key}", f"opened {key}")}


def test_lengths_cover_ten_to_more_than_a_hundred(mazes):
    lengths = [task.columns["shortest"] for task in mazes]
    for low in range(0, 160, 20):
        assert any(low < length <= low + 20 for length in lengths), low
    assert all(60 <= length <= 80 for length in lengths[150:175]) and all(length >= 100 for length in lengths[175:])
    assert len(SPEC.system.split()) <= 50


def test_every_key_is_needed_and_no_room_has_two_doors(mazes):
    for task in mazes[::5]:
        maze = task.columns["maze"]
        assert len(maze["rooms"]) == task.columns["num_rooms"] and len(maze["keys"]) == task.columns["num_keys"]
        for exits in maze["rooms"].values():
            assert sum(bool(colour) for _, colour in exits.values()) <= 1
        for lost in maze["keys"]:
            without = {**maze, "keys": {**maze["keys"], lost: "nowhere"}}
            assert start_of(without) not in distances(without, start_of(without))


def test_dropping_a_key_costs_if_its_door_is_still_locked(mazes):
    for task in mazes[:150:10]:
        maze, world, rng = task.columns["maze"], started(task), random.Random(task.key)
        for _ in range(30):
            now = where_of(maze, world.state())
            ways = [pair for pair in options(maze, now, drop=True) if pair[1].at != maze["exit"]]
            action, after = rng.choice(ways)
            old = potential(task, {}, world.state())
            world.step(Action(action))
            assert where_of(maze, world.state()) == after
            if action.startswith("drop"):
                assert (potential(task, {}, world.state()) < old) == (action.split()[1] not in now.opened)
            assert abs(potential(task, {}, world.state()) - old) * task.columns["shortest"] <= 1 + 1e-9


WAYS = ("north", "east", "south", "west", "take red", "drop red", "open north", "open east", "open south", "open west")


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.sampled_from(WAYS), max_size=20), gamma=st.floats(0.5, 1.0), weight=st.floats(0.01, 5.0))
def test_shaping_adds_the_same_whatever_the_way(texts, gamma, weight):
    """Σ γ^t (γΦ′ − Φ) = −Φ(start) = −½, so that no detour, and no way at all, is worth more than another."""
    spec = RewardSpec(potential=weight, gamma=gamma)
    episode = episode_of(play_script(SPEC, TASK, lambda task, env: iter(["north", *texts])), TASK)
    outcome = judge(spec, SPEC, TASK, episode).total
    earned = turn_rewards(spec, SPEC, TASK, episode)
    earned[-1] -= outcome
    assert (gamma ** np.arange(len(earned)) * earned).sum() == pytest.approx(-0.5 * weight)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def test_rows_are_pinned_and_depend_on_seed_and_place_alone():
    """Another draw would silently make other tasks of the same recipe."""
    rows = list(generate(12, 1, rooms=9, keys=1))
    assert rows[0]["prompt"] == "Exit 0 0." and rows[0]["shortest"] == 9
    assert shortest_path(rows[0]["maze"], start_of(rows[0]["maze"])) == [
        "north", "west", "west", "take green", "east", "south", "west", "open south", "south",
    ]  # fmt: skip
    assert rows[:5] == list(generate(5, 1, rooms=9, keys=1))
    assert len({canonical(row["maze"]) for row in rows}) == 12
    assert all(json.loads(json.dumps(row)) == row for row in rows)
    # case E8: the seed is not dropped
    assert not any(row in rows for row in generate(12, 2, rooms=9, keys=1))


@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ({"rooms": 3}, "rooms = 3 must be a whole number from 4 to 100"),
        ({"rooms": 101}, "rooms = 101"),
        ({"rooms": 16.0}, "rooms = 16.0"),
        ({"keys": 5}, "keys = 5 must be a whole number from 0 to 4"),
        ({"keys": True}, "keys = True"),
        ({"loops": -1}, "loops = -1"),
        ({"min_length": 1}, "min_length = 1"),
        ({"min_length": 20, "max_length": 10}, "max_length = 10 is below min_length = 20"),
        ({"rooms": 9, "min_length": 200}, "after 0 different mazes.*of 200 or more actions.*the longest drawn has"),
    ],
)
def test_impossible_difficulties_are_refused(difficulty, message):
    with pytest.raises(RecipeError, match=message):
        list(generate(1, 0, **difficulty))


def test_there_are_only_so_many_small_mazes():
    with pytest.raises(RecipeError, match=r"after \d+ different mazes"):
        list(generate(500, 0, rooms=4, keys=0))


def test_a_task_of_another_environment_is_refused():
    with pytest.raises(DataError, match="no column maze"):
        SPEC.make().reset(Task("k", "2+2?"), 0)


def test_a_prompt_of_messages_gets_the_view_too():
    prompt = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Exit 1 1."})
    messages = SPEC.make().reset(Task("k", prompt, columns=TASK.columns), 0).messages
    assert messages == (prompt[0], {"role": "user", "content": "Exit 1 1.\nRoom 2 0: west."})


# ---- scripts that must not succeed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SPEC.known_bad))
def test_known_bad_scripts_never_succeed(mazes, name):
    for task in mazes[::4]:
        states, seen, _ = play(task, SPEC.known_bad[name])
        assert not succeeds(task, states) and not any(o.ended for o in seen)
        keyless = name == "same key" and not task.columns["maze"]["keys"]
        assert len(seen) == (0 if keyless else 3 * task.columns["shortest"])
        if name in ("empty", "claims success"):
            assert all(o.num_invalid for o in seen) and fingerprint(states[-1]) == fingerprint(states[0])
        else:
            assert not any(o.num_invalid for o in seen)


def test_the_same_key_is_taken_again_and_again():
    states, _, _ = play(TASK, SPEC.known_bad["same key"])
    assert [state["keys"]["red"] for state in states[2:8]] == ["0 0", "held", "0 0", "held", "0 0", "held"]
    assert reached(TASK, states) == {"took red": 8}  # of 18 turns 2 are the way there, then every other one takes it


# ---- starts, snapshots, random texts ---------------------------------------------------------------------------------


def test_the_same_start_whatever_was_played_before(mazes):
    """Case E6: nothing of an earlier episode is left, counters included."""
    for task in mazes[::20]:
        fresh, used = started(task, 5), started(mazes[3], 1)
        for text in ("north", "east", "south", "west", "rubbish"):
            used.step(Action(text))
        used.close()
        used.reset(task, 5)
        assert fingerprint(fresh.state()) == fingerprint(used.state()) and used.state()["steps"] == 0
        assert fresh.snapshot() == used.snapshot()


def test_state_is_a_copy_and_the_key_leaves_counters_out():
    world = started()
    first = world.state()
    say(world, "west")
    assert first == started().state()
    say(world, "east")
    assert first != world.state() and state_key(first, SPEC.volatile) == state_key(world.state(), SPEC.volatile)


def wander(world, rng, num):
    """Texts of which most change something."""
    verbs = ["north", "east", "south", "west", "take red", "take blue", "take green", "drop red", "open north", "open east",
             "open south", "open west", "rubbish"]  # fmt: skip
    return [(world.step(Action(rng.choice(verbs))), fingerprint(world.state())) for _ in range(num)]


def test_a_restored_world_has_the_same_future(mazes):
    for task in mazes[::10]:
        world = started(task)
        wander(world, random.Random(task.key), 40)
        saved = world.snapshot()
        json.loads(saved)
        state, fresh = world.state(), SPEC.make()
        future = wander(world, random.Random("on"), 40)
        for again in (fresh, world):
            again.restore(saved)
            assert again.state() == state and again.snapshot() == saved
            assert wander(again, random.Random("on"), 40) == future


TEXTS = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(
            ["go", "north", "east", "west", "open", "door", "take", "drop", "red", "blue", "key", ".", "\n", "\ud800"]
        )
    ).map(" ".join),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, max_size=12))
def test_whatever_is_written_is_answered(texts):
    world = started()
    for text in texts:
        before = fingerprint(world.state())
        seen = world.step(Action(text))
        assert seen.num_invalid in (0, 1) and len(seen.messages) == 1 and len(seen.messages[0]["content"].split()) <= 15
        assert json.loads(canonical(world.state())) == world.state()
        assert not seen.num_invalid or fingerprint(world.state()) == before
        assert SPEC.goal.holds(TASK, {}, world.state()) == seen.ended
        assert 0 < potential(TASK, {}, world.state()) <= 1


def test_the_summary_tells_what_is_held_and_opened_and_the_room_at_hand_by_hand():
    world = started()
    first = world.state()
    told = [SPEC.summary(TASK, first, first)]
    for text in WAY[:-1]:
        say(world, text)
        told.append(SPEC.summary(TASK, first, world.state()))
    assert told == [
        "No key held. Room 2 0: west.",
        "No key held. Room 1 0: red door north, east, west.",
        "No key held. Room 0 0: east. Key: red.",
        "Keys held: red. Room 0 0: east.",
        "Keys held: red. Room 1 0: red door north, east, west.",
        "Keys held: red. Opened: red. Room 1 0: north, east, west.",
    ]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_summary_tells_nothing_that_the_policy_has_not_seen(difficulty):
    """The room at hand as it was shown on coming in, keys of colours that were met, nothing of other rooms."""
    pieces = re.compile(r"\d+ \d+|\w+")
    for row in generate(2, 5, **difficulty):
        task = task_of(row)
        for script in (SPEC.gold, SPEC.known_bad["random walk"]):
            states, _, texts = play(task, script)
            met = {"No", "key", "Keys", "Key", "held", "Opened", "Room", "door", *pieces.findall(texts[0])}
            for state, text in zip(states[1:], texts[1:]):
                met |= set(pieces.findall(text))
                if text != "Out.":
                    assert set(pieces.findall(SPEC.summary(task, states[0], state))) <= met


# ---- terse mazes: one word per action, short observations ------------------------------------------------------------

TERSE_TASK = Task("k", "Exit 11.", columns={**TASK.columns, "terse": True})


def test_a_terse_episode_by_hand():
    world = SPEC.make()
    assert world.reset(TERSE_TASK, 0).messages[-1]["content"] == "Exit 11.\n20w"
    assert say(world, "north") == "Wall." and say(world, "take") == say(world, "open") == say(world, "drop") == "No."
    shown = ["10New", "00e.r", "00e", "10New", "10new"]
    assert next(iter(SPEC.gold(TERSE_TASK, started(TERSE_TASK)))) == "west"  # it would go on for as long as nobody acts
    for action, text in zip(["west", "west", "take", "east", "open"], shown):
        assert say(world, action) == text
    assert say(world, "go away") == "Not understood." and say(world, "open") == "No."
    assert SPEC.summary(TERSE_TASK, {}, world.state()) == "Keys held: red. Opened: red. 10new"
    assert say(world, "drop") == "10new.r" and say(world, "take red") == "10new"  # whole commands are understood as well
    assert world.step(Action("north")).ended


def test_terse_mazes_are_the_same_mazes_and_the_old_ones_are_as_they_were():
    plain = list(generate(12, 1, rooms=9, keys=1))
    for old, new in zip(plain, generate(12, 1, rooms=9, keys=1, terse=True)):
        assert new["maze"] == old["maze"] and new["shortest"] == old["shortest"] and new["terse"] is True
        assert "terse" not in old and new["prompt"].endswith(f" Exit {old['maze']['exit'].replace(' ', '')}.")
    for verb in ("take", "drop", "open"):
        assert say(started(), verb) == "Not understood."
    with pytest.raises(RecipeError, match="terse = 1 must be true or false"):
        list(generate(1, 0, terse=1))


def test_in_terse_mazes_an_action_is_one_token_and_an_observation_at_most_six():
    """Of a small policy that reads digits in pairs, the line breaks around it included."""
    tokenizer = make_tokenizer(vocabulary([TERSE_WORDS], None, "pairs"), "pairs", 2048)
    most = 0
    for difficulty in DIFFICULTIES[1:6]:
        for row in generate(4, 7, terse=True, **difficulty):
            task = task_of(row)
            for script in (SPEC.gold, SPEC.known_bad["random walk"], SPEC.known_bad["same key"]):
                played = play_script(SPEC, task, script)
                assert SPEC.goal.holds(task, {}, played.final_state) == (script is SPEC.gold)
                assert all(len(tokenizer.encode(step.text)) == 1 for step in played.steps)
                texts = [step.observation.messages[0]["content"] for step in played.steps]
                ids = [tokenizer.encode(f"\n{text}\n") for text in texts]
                opening = f"{SPEC.system}\n{played.start.messages[-1]['content']}"
                assert not any(tokenizer.unk_token_id in some for some in [*ids, tokenizer.encode(opening)])
                most = max(most, *map(len, ids))
    assert most == 6

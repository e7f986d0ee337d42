"""TextWorld's games: made once, played in processes of their own, judged by the game's own verdict."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("textworld")

from foreign_worlds import check_tokens

from milepost.env import Action, fingerprint
from milepost.envs import textworld
from milepost.envs.textworld import FAMILIES, SPEC, generate, potential
from milepost.health.env_check import check_env
from milepost.launch import open_session
from milepost.policy import new_policy
from milepost.recipe import make_recipe
from milepost.reward_spec import RewardSpec, judge
from milepost.scripted import episode_of, play_script
from milepost.stages.pipeline import run_pipeline
from milepost.types import DataError, RecipeError, StopKind, Task


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache that is kept between tests, and between runs where MILEPOST_CACHE says so: games take seconds to be made."""
    with pytest.MonkeyPatch.context() as patched:
        if "MILEPOST_CACHE" not in os.environ:
            patched.setenv("MILEPOST_CACHE", str(tmp_path_factory.mktemp("games")))
        yield


def as_task(row, key="0"):
    return Task(key, row["prompt"], columns={name: value for name, value in row.items() if name != "prompt"})


def tasks_of(size, **difficulty):
    return [as_task(row, str(i)) for i, row in enumerate(generate(size, 0, **difficulty))]


@pytest.fixture(scope="module")
def four():
    return tasks_of(4, families="all", level=3, goal="brief")


class Player:
    """One game, played by hand."""

    def __init__(self, task):
        self.env, self.loop = SPEC.make(), asyncio.new_event_loop()
        self.first = self.run(self.env.reset(task, 0)).messages[-1]["content"]

    def run(self, work):
        return self.loop.run_until_complete(work)

    def say(self, text):
        """(what is seen, number refused, over)"""
        seen = self.run(self.env.step(Action(text)))
        return seen.messages[-1]["content"], seen.num_invalid, seen.ended

    def close(self):
        self.run(self.env.close())
        self.loop.close()


@pytest.fixture
def player(four):
    held = []

    def begin(i):
        held.append(Player(four[i]))
        return held[-1]

    yield begin
    for one in held:
        one.close()


def solves(task, script):
    played = play_script(SPEC, task, script, seconds=300)
    solved = SPEC.goal.holds(task, played.start_state, played.final_state)
    assert not solved or played.steps[-1].observation.ended
    return solved


# ---- tasks -----------------------------------------------------------------------------------------------------------


def test_rows_are_the_same_again_and_name_no_path(four):
    again = tasks_of(4, families="all", level=3, goal="brief")
    assert [t.columns for t in again] == [t.columns for t in four]
    assert [t.columns["family"] for t in four] == list(FAMILIES)
    for task in four:
        assert json.loads(json.dumps(task.columns)) == task.columns and "/" not in task.columns["game"]
        assert task.columns["max_score"] >= 1 and len(task.columns["walkthrough"]) >= 2


@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ({"families": "chess"}, "families = 'chess' must be \"all\" or some of coin_collector"),
        ({"level": 0}, "level = 0 must be a whole number from 1 to 300"),
        ({"families": "all", "level": 31}, "level = 31 must be a whole number from 1 to 30"),
        ({"goal": "none"}, "goal = 'none' must be one of detailed, brief"),
        ({"go": 5}, "go = 5 must be one of 1, 6, 9, 12"),
        ({"take": 2}, "take = 2 must be a whole number from 0 to 1"),
        ({"rewards": True}, "rewards = True"),
    ],
)
def test_what_there_is_not_is_refused(difficulty, message):
    with pytest.raises(RecipeError, match=message):
        list(generate(1, 0, **difficulty))


def test_a_task_of_another_environment_is_refused():
    with pytest.raises(DataError, match="no column game"):
        asyncio.run(SPEC.make().reset(Task("k", "2+2?"), 0))


def test_the_package_stays_out_of_this_process(four):
    code = (
        "import sys\nfrom milepost.envs.textworld import SPEC, generate\nfrom milepost.types import Task\n"
        "from milepost.scripted import play_script\n(row,) = generate(1, 0, families='all', level=3, goal='brief')\n"
        "task = Task('k', row['prompt'], columns={k: v for k, v in row.items() if k != 'prompt'})\n"
        "assert play_script(SPEC, task, SPEC.gold, seconds=300).final_state['won']\n"
        "print([m for m in ('textworld', 'jericho', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- a game by hand --------------------------------------------------------------------------------------------------


def test_a_game_by_hand(player, four):
    """Three rooms in a row, the coin in the last."""
    game, task = player(0), four[0]
    *way, last = task.columns["walkthrough"]
    assert last == "take coin" and all(step.startswith("go ") for step in way)
    assert game.first.startswith(task.prompt) and "-=" in game.first and "$$" not in game.first and ">" not in game.first
    start = game.env.state()
    assert (start["score"], start["won"], start["moves"]) == (0, False, 0) and potential(task, start, start) == 0
    assert game.say("take coin")[2] is False and game.env.state()["facts"] == start["facts"]
    for step in way:
        assert game.say(f"> {step}\nand so on")[1:] == (0, False)
    text, refused, over = game.say(last)
    assert text.startswith("You pick up the coin") and "The End" not in text and (refused, over) == (0, True)
    now = game.env.state()
    assert now["won"] and now["score"] == 1 and potential(task, start, now) == 1
    assert "coin" in SPEC.summary(task, start, now) and start["facts"] != now["facts"]


@pytest.mark.parametrize(
    "text",
    ["", " \n ", "\x00", "save", "restore", "restart", "undo", "quit", "q", "again", "tw-print score", "look then go north",
     "take coin. go north", "a" * 500, "Ünïcödé", "purloin coin", "look\x07", "transcript on", "fly home", "()"],
)  # fmt: skip
def test_what_is_no_command_is_refused_and_changes_nothing(player, text):
    game = player(0)
    before = game.env.state()
    answer, refused, over = game.say(text)
    assert (refused, over) == (1, False) and answer
    after = game.env.state()
    assert {**after, "moves": 0} == {**before, "moves": 0}


def test_a_restored_game_has_the_same_future(four):
    for task in four:
        one, other = Player(task), Player(four[0])
        texts = [*task.columns["walkthrough"][:3], "look", "inventory", "nonsense", *task.columns["walkthrough"][3:]]
        half = len(texts) // 2
        for text in texts[:half]:
            one.say(text)
        saved, state = one.env.snapshot(), one.env.state()
        future = []
        for text in texts[half:]:
            future.append((one.say(text), fingerprint(one.env.state())))
            if future[-1][0][2]:
                break
        for again in (one, other):
            again.run(again.env.restore(saved))
            assert again.env.state() == state and again.env.snapshot() == saved
            assert [
                (again.say(text), fingerprint(again.env.state())) for text in texts[half : half + len(future)]
            ] == future
            again.close()


def test_a_process_that_died_costs_one_episode(player, four):
    game = player(0)
    os.kill(game.env.slot.pid, 9)
    with pytest.raises(RuntimeError, match="textworld: step: the process ended"):
        game.say("look")
    game.close()
    assert solves(four[0], SPEC.gold)
    game.loop = asyncio.new_event_loop()


# ---- walkthroughs, and what is none ----------------------------------------------------------------------------------


def test_walkthroughs_win_and_known_bad_scripts_do_not(four):
    for task in four:
        assert solves(task, SPEC.gold)
        assert not [name for name, script in SPEC.known_bad.items() if solves(task, script)]


def test_points_are_milestones(four):
    task = next(task for task in four if task.columns["family"] == "simple")
    spec = RewardSpec(milestones={f"point {i}": 0.01 for i in range(1, 9)}, outcome=1.0)
    gold = episode_of(play_script(SPEC, task, SPEC.gold, seconds=300), task)
    half = episode_of(play_script(SPEC, task, lambda t, env: iter(t.columns["walkthrough"][:3]), seconds=300), task)
    assert judge(spec, SPEC, task, gold).total == pytest.approx(1 + 0.01 * min(8, task.columns["max_score"]))
    assert judge(spec, SPEC, task, half).total == pytest.approx(0.01 * half.facts["final"]["score"])


@pytest.mark.nightly
def test_twenty_walkthroughs_win_and_known_bad_scripts_do_not():
    tasks = tasks_of(20, families="all", level=3, goal="brief")
    won = {
        name: sum(solves(task, script) for task in tasks) for name, script in {"gold": SPEC.gold, **SPEC.known_bad}.items()
    }
    assert won == {"gold": 20, **dict.fromkeys(SPEC.known_bad, 0)}


@pytest.mark.nightly
def test_it_keeps_the_contract():
    difficulty = {"families": "all", "level": 3, "goal": "brief"}
    report = check_env("textworld", num_tasks=4, num_episodes=12, difficulty=difficulty, step_seconds=60)
    assert report.ok, report.text()


# ---- through the tokens ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_fifty_episodes_of_a_new_policy(tmp_path):
    """10 games, each played 5 times, 4 at once: what was sampled is what is stored."""
    params = {"families": "all", "level": 3, "goal": "brief"}
    new_policy(tmp_path / "policy", layers=1, width=32, heads=2, context=4096)
    recipe = make_recipe({
        "name": "sampled", "out": str(tmp_path / "runs"), "model": {"path": str(tmp_path / "policy"), "device": "cpu"},
        "env": {"name": "textworld", "max_turns": 5, "max_invalid": 5, "max_concurrent": 4},
        "tasks": {"format": "text", "validation": 2, "test": 10, "max_prompt_tokens": 2000,
                  "sources": [{"kind": "environment", "size": 20, "params": params}]},
        "rollout": {"max_new_tokens": 12, "prompts_per_step": 2, "group_size": 2},
        "sft": {"demonstrations": "gold", "steps": 6, "batch_size": 4, "lr": 0.02},
        "grpo": {"steps": 0}, "eval": {"test_samples": 1},
    })  # fmt: skip
    with open_session(recipe, quiet=True) as session:
        run_pipeline(session, stages=("sft",))
        groups = session.play(session.tasks.test, phase="check", step=0, num_samples=5)
        episodes = [episode for group in groups for episode in group.episodes]
        check_tokens(session, episodes)
    assert len(episodes) == 50 and not any(episode.stop.kind is StopKind.FAULT for episode in episodes)
    assert len({episode.start_fingerprint for episode in episodes}) == 10
    assert textworld.RELEASE in episodes[0].facts["version"]

"""Playing a task by hand: what is shown, how it ends, and that the world is always closed."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.cli import main
from milepost.envs.find import find_env
from milepost.play import MAX_LINES, changes, draw_task, play, read_difficulty
from milepost.types import RecipeError

LAMP = '''
"""A lamp to be lit by a match; async, with a milestone that can be taken back."""
from milepost.env import Cost, EnvSpec, Goal, Milestone, Observation


class Lamp:
    async def reset(self, task, seed):
        self.facts = {"lit": False, "matches": ["a", "b", "c"], "seed": seed, "clock": 0}
        return Observation(({"role": "user", "content": task.prompt},))

    async def step(self, action):
        self.facts["clock"] += 1
        if action.text == "crash":
            raise ZeroDivisionError
        if action.text == "forget":
            return Observation(history=({"role": "user", "content": "Where were we?"},))
        if action.text not in ("light", "blow", "leave", "wait\\nlight"):
            return Observation(({"role": "tool", "name": "lamp", "content": "no"},), num_invalid=1)
        if "light" in action.text:
            self.facts["matches"].pop(0)
        self.facts["lit"] = "light" in action.text
        return Observation(({"role": "user", "content": "ok"},), ended=action.text == "leave")

    async def state(self):
        return {**self.facts, "matches": list(self.facts["matches"])}

    async def close(self):
        with open("closed", "a") as file:
            print(self.facts["clock"], file=file)


def rows(size, seed, *, night=True):
    for i in range(min(size, 3)):
        yield {"prompt": f"Light lamp {i} of {seed}.", "night": night}


def gold(task, world):
    yield "leave"


SPEC = EnvSpec(
    "lamp", "2", Lamp, rows, Goal(lambda task, start, now: now["lit"] and now["clock"] > 1),
    milestones=(Milestone("lit", lambda task, start, now: now["lit"], "state"),),
    costs=(Cost("matches", "match", lambda task, states: 3 - len(states[-1]["matches"])),), volatile=("clock",), gold=gold,
)
BAD = EnvSpec("bad", "1", Lamp, lambda size, seed: iter([{"text": "no prompt"}]), SPEC.goal)
WORSE = EnvSpec("worse", "1", Lamp, lambda size, seed, **kinds: iter([1 / 0]), SPEC.goal)
'''


@pytest.fixture
def lamp(tmp_path, monkeypatch):
    """The name of the lamp's environment, "file.py:SPEC"."""
    (tmp_path / "lamp.py").write_text(LAMP)
    monkeypatch.chdir(tmp_path)
    return "lamp.py:SPEC"


def played(monkeypatch, name, typed="", **options):
    """(success, lines shown) of a play whose stdin is piped."""
    lines = []
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    won = play(name, show=lambda text: lines.extend(text.split("\n")), **options)
    return won, lines


def test_a_maze_by_hand(monkeypatch):
    won, lines = played(
        monkeypatch, "maze", "north\nnope\nwest\nwest\ntake green\nsouth", seed=1, overrides=["rooms=9", "keys=1"]
    )
    assert not won
    assert lines[0] == "maze 1, task 0 of seed 1 (rooms = 9, keys = 1)"
    assert lines[lines.index("Exit 0 0.") :] == [
        "Exit 0 0.",
        "Room 2 1: north, south.",
        "1> north",
        "Room 2 2: south, west.",
        "    at: 2 1 → 2 2",
        "    cost: moves 1",
        "2> nope",
        "Not understood.",
        "3> west",
        "Room 1 2: east, south, west.",
        "    at: 2 2 → 1 2",
        "    cost: moves 2",
        "4> west",
        "Room 0 2: east. Key: green.",
        "    at: 1 2 → 0 2",
        "    cost: moves 3",
        "5> take green",
        "Taken.",
        "    keys.green: 0 2 → held",
        "    milestone reached: took green",
        "6> south",
        "Wall.",
        "    cost: bumps 1",
        "",
        "no success after 6 turns (stopped)",
        "shortest: 9 turns",
        "gold script: 9 turns",
        "milestones: took green",
        "costs: moves 3 (unit: room entered), bumps 1 (unit: wall or locked door), invalid actions 1",
    ]


def test_the_gold_script_plays_with_the_same_display(monkeypatch):
    won, lines = played(monkeypatch, "maze", "never read", seed=1, overrides=["rooms=9"], gold=True)
    assert won and "9> south" in lines and "10> never read" not in lines
    at = lines.index("success after 9 turns (goal)")
    assert lines[at:] == [
        "success after 9 turns (goal)",
        "shortest: 9 turns",
        "milestones: took green, opened green",
        "costs: moves 7 (unit: room entered), bumps 0 (unit: wall or locked door), invalid actions 0",
    ]


def test_what_follows_the_end_is_not_read(monkeypatch):
    typed = "\n".join(
        ["north", "west", "west", "take green", "east", "south", "west", "open south", "south", "north", "north"]
    )
    won, lines = played(monkeypatch, "maze", typed, seed=1, overrides=["rooms=9"])
    assert won and "success after 9 turns (goal)" in lines and not any(line.startswith("10>") for line in lines)


@pytest.mark.parametrize("name", ["calc", "desk", "repair"])
def test_tools_are_shown_and_called(monkeypatch, name):
    won, lines = played(monkeypatch, name, gold=True)
    spec = find_env(name)
    assert won and all(any(tool.signature() in line for line in lines) for tool in spec.tools)
    won, lines = played(monkeypatch, name, "hello\nnonsense(1)\n")
    assert not won and any(line.startswith("error: no tool was called") for line in lines)
    assert lines[-1].endswith("invalid actions 2")


def test_several_calls_in_one_action(monkeypatch):
    won, lines = played(monkeypatch, "calc", 'calc("1+1")\\\ncalc("2+3")\nanswer(0)\n')
    at = lines.index('1> calc("1+1")\\')
    assert lines[at + 1 : at + 5] == ['...  calc("2+3")', "calc: 2", "calc: 5", "    results: + 2, + 5"]
    assert not won and any("after 2 turns (ended)" in line for line in lines)


def test_an_action_begun_before_the_end_of_input_counts(monkeypatch, lamp):
    _, lines = played(monkeypatch, lamp, "wait\\\nlight\\")
    assert "1> wait\\" in lines and "...  light\\" in lines and "    lit: false → true" not in lines  # "wait\nlight\n"
    _, lines = played(monkeypatch, lamp, "wait\\\nlight")
    assert "    lit: false → true" in lines


def test_an_async_environment_of_ones_own(monkeypatch, lamp):
    won, lines = played(
        monkeypatch, lamp, "light\nblow\nstare\nforget\nlight\nblow", number=2, seed=7, overrides=["night=false"]
    )
    assert won
    assert lines[0] == "lamp 2, task 2 of seed 7 (night = False)"
    assert lines[2:] == [
        "",
        "Light lamp 2 of 7.",
        "1> light",
        "ok",
        "    lit: false → true",
        "    matches: − a",
        "    milestone reached: lit",
        "    cost: matches 1",
        "2> blow",
        "ok",
        "    lit: true → false",
        "    milestone taken back: lit",
        "3> stare",
        "lamp: no",
        "4> forget",
        "(the conversation was rewritten:)",
        "Where were we?",
        "5> light",
        "ok",
        "    lit: false → true",
        "    matches: − b",
        "    milestone reached: lit",
        "    cost: matches 2",
        "",
        "success after 5 turns (goal)",
        "gold script: 1 turns, without success",
        "milestones: lit",
        "costs: matches 2 (unit: match), invalid actions 1",
    ]


def test_the_world_is_closed_even_after_an_exception(monkeypatch, lamp):
    with pytest.raises(ZeroDivisionError):
        played(monkeypatch, lamp, "light\ncrash")
    assert Path("closed").read_text().split() == ["2"]
    played(monkeypatch, lamp, "light\nblow\nblow")
    assert Path("closed").read_text().split() == ["2", "3", "1"]  # the gold script's world is closed too


def test_the_end_of_input_ends_cleanly(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["play", "maze", "rooms=9", "--seed", "3", "--task", "2", "keys=0"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("maze 1, task 2 of seed 3 (rooms = 9, keys = 0)\n")
    assert "no success after 0 turns (stopped)" in shown and "milestones: none" in shown


def test_bytes_that_are_no_text_are_answered():
    command = [sys.executable, "-m", "milepost", "play", "maze"]
    done = subprocess.run(command, input=b"nor\xffth\n\x00\n", capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stdout.decode().count("Not understood.") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["maz"], "did you mean 'maze'"),  # case E12
        (["maze", "room=9"], "maze has no difficulty 'room'; it has rooms = 16, keys = 1"),
        (["maze", "rooms=many"], "rooms = 'many' must be a whole number"),
        (["maze", "--task", "-1"], "task = -1 must be 0 or more"),
        (["lamp.py:SPEC", "--task", "3"], "gives no task 3"),
        (["lamp.py:BAD"], "gives no prompt with task 0"),
        (["lamp.py:WORSE", "any=1"], "raised ZeroDivisionError"),
        (["lamp.py:BAD", "--gold"], "bad has no gold script"),
        (["lamp.py:BAD", "x=1"], "bad has no difficulty 'x'; it has none"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_sentence(lamp, capsys, words, message):
    assert main(["play", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_difficulty_is_read_as_json_or_text():
    assert read_difficulty(find_env("calc"), ["digits=4", "style=both"]) == {"digits": 4, "style": "both"}
    with pytest.raises(RecipeError, match="no difficulty 'size'"):
        read_difficulty(find_env("calc"), ["size=4"])


def test_the_nth_task_is_the_nth_row():
    spec = find_env("calc")
    row = list(spec.generate(4, 5, digits=2))[3]
    task = draw_task(spec, 5, 3, {"digits": 2})
    assert task.prompt == row["prompt"] and {"prompt": task.prompt, **task.columns} == row and task.source == "calc"


def test_changes_by_hand():
    before = {"a": 1, "b": {"c": None, "d": [1, 2, 2]}, "gone": {"x": 1}, "text": "one\ntwo", "same": [1], "order": [1, 2]}
    after = {"a": 2.5, "b": {"c": "", "d": [2, {"k": 1}]}, "text": "y" * 80, "same": [1], "order": [2, 1], "new": True}
    assert list(changes(before, after)) == [
        "a: 1 → 2.5",
        'b.c: null → ""',
        'b.d: − 1, − 2, + {"k": 1}',
        'gone: {"x": 1} → –',
        f"text: one two → {'y' * 59}…",
        "order: in another order",
        "new: – → true",
    ]
    assert list(changes(before, before)) == []


def test_many_changes_are_cut(monkeypatch, lamp):
    spec = find_env(lamp)
    source = spec.make.reset.__globals__["__file__"]
    with open(source, "a") as file:
        file.write("""

class Many(Lamp):
    async def state(self):
        return {**self.facts, "all": {str(i): self.facts["clock"] for i in range(20)}}


MANY = EnvSpec("many", "1", Many, rows, Goal(lambda task, start, now: False), volatile=("clock",))
""")
    _, lines = played(monkeypatch, "lamp.py:MANY", "blow")
    assert sum(line.startswith("    all.") for line in lines) == MAX_LINES and "    … and 8 more" in lines

"""The contract checker: a good environment passes, and each broken one is caught by exactly the check that is for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from milepost.cli import main
from milepost.env import Cost, EnvSpec, Goal, Milestone, Observation, Tool
from milepost.envs.find import FOREIGN, SHIPPED
from milepost.health.env_check import CHECKS, check_env, read_difficulty
from milepost.health.tapes import difference
from milepost.tools import Refused, ToolEnv, render_call
from milepost.types import RecipeError

NUM = 6


def press(lamp):
    return render_call("press", {"lamp": lamp})


class Lamps(ToolEnv):
    """Six lamps; some are to be on, no others, and then it is to be said that they are."""

    tools = (Tool("press", {"lamp": (int, True)}), Tool("done", {}))

    def reset(self, task, seed):
        self.on, self.said, self.turns = [False] * NUM, False, 0
        self.wanted = task.columns["wanted"]
        return super().reset(task, seed)

    def step(self, action):
        self.turns += 1
        return super().step(action)

    def state(self):
        return {"on": [*self.on], "said": self.said, "turns": self.turns}

    def do_press(self, lamp):
        if not 1 <= lamp <= NUM:
            raise Refused(f"lamps are numbered 1 to {NUM}")
        self.on[lamp - 1] = not self.on[lamp - 1]
        return "click"

    def do_done(self):
        self.said = self.over = True
        return "well"

    def solve(self):
        """What bugs do that give success away."""
        self.on, self.said, self.over = [i + 1 in self.wanted for i in range(NUM)], True, True

    def snapshot(self):
        return json.dumps([self.on, self.said, self.turns, self.wanted, self.over]).encode()

    def restore(self, saved):
        self.on, self.said, self.turns, self.wanted, over = json.loads(saved)
        self.task, self._permitted, self.over = True, self.tools, over


def generate(size, seed, *, least=3, **extra):
    import random

    for i in range(size):
        wanted = sorted(random.Random(f"{seed} {i}").sample(range(1, NUM + 1), least))
        yield {"prompt": f"Let exactly {', '.join(map(str, wanted))} be on.", "wanted": wanted, **extra}


def right(task, start, now):
    return now["said"] and [i + 1 for i, on in enumerate(now["on"]) if on] == task.columns["wanted"]


def gold(task, env):
    yield from map(press, task.columns["wanted"])
    yield "done()"


def lit(task, start, now):
    return f"On: {', '.join(str(i + 1) for i, on in enumerate(now['on']) if on) or 'none'}."


SPEC = EnvSpec(
    name="lamps", version="1", make=Lamps, generate=generate, goal=Goal(right, ends=False), tools=Lamps.tools,
    milestones=(Milestone("on", lambda task, before, after: any(after["on"])), Milestone("end", right, after=("on",))),
    costs=(Cost("turns", "turn", lambda task, states: states[-1]["turns"]),),
    gold=gold, known_bad={"gives up": lambda task, env: iter(["done()"])}, volatile=("turns",),
    summary=lit, seeded=False,
)  # fmt: skip


def checked(spec, **settings):
    return check_env(spec, **{"num_tasks": 4, "num_episodes": 16, "step_seconds": 30.0, **settings})


def verdicts(spec, **settings) -> dict[str, str]:
    """Name → detail of the checks that failed."""
    return {check.name: check.detail for check in checked(spec, **settings).checks if check.status == "FAILED"}


def test_a_good_environment_passes():
    report = checked(SPEC)
    assert report.ok and [check.name for check in report.checks] == list(CHECKS)
    assert {check.name for check in report.checks if check.status == "skipped"} == set()
    details = {check.name: check.detail for check in report.checks}
    assert details["gold"] == "4 of 4 tasks solved, in 4 to 4 turns"
    assert details["spec"] == "2 tools, 2 milestones, 1 cost"
    assert details["permissions"] == "done, press: refused when the task forbids it"
    assert "16 episodes, 8 at once" in details["isolation"]
    assert "the task alone decides" in details["seed"]


# --- environments that are broken in one way --------------------------------------------------------------------------

BROKEN: dict[str, tuple[str, EnvSpec, str]] = {}
"""name → (check that catches it, environment, words of the counter-example)"""


def broken(check: str, words: str, **changes) -> Callable[[type], type]:
    def add(cls):
        BROKEN[cls.__name__] = (check, replace(SPEC, **{"make": cls, **changes}), words)
        return cls

    return add


def same(name: str, check: str, words: str, **changes) -> None:
    BROKEN[name] = (check, replace(SPEC, **changes), words)


same("no version", "spec", "EnvSpec.version is empty", version="")
same("unknown order", "spec", "'end' comes after 'begin', which does not exist",
     milestones=(Milestone("end", right, after=("begin",)),))  # fmt: skip


def unseeded(size, seed, **difficulty):
    for row in generate(size, seed):
        yield {**row, "drawn": time.perf_counter_ns()}


same("unseeded rows", "tasks", "rows[0]['drawn']", generate=unseeded)
same("rows without a prompt", "tasks", "row 0 has no prompt; it has wanted",
     generate=lambda size, seed: ({"wanted": [1]} for _ in range(size)))  # fmt: skip


@broken("exceptions", "RuntimeError: cannot parse")
class Raises(Lamps):
    def step(self, action):
        if action.text.startswith("{"):
            raise RuntimeError("cannot parse")
        return super().step(action)


@broken("exceptions", "reset: KeyError: 'lamp'")
class DoesNotStart(Lamps):
    def reset(self, task, seed):
        raise KeyError("lamp")


@broken("exceptions", "step of task lamps/0 with seed 0 (gold policy) after 'done()': the process ended (exit status 0)")
class EndsItsProcess(Lamps):
    def do_done(self):
        os._exit(0)


@broken("exceptions", "reset of task lamps/0 with seed 0 (gold policy): the process ended (signal 11, SIGSEGV)")
class BreaksItsProcess(Lamps):
    def reset(self, task, seed):
        signal.raise_signal(signal.SIGSEGV)


@broken("exceptions", "reset: KeyboardInterrupt")
class Interrupts(Lamps):
    def reset(self, task, seed):
        raise KeyboardInterrupt


@broken("messages", "step: changed the working directory to /, which all episodes and the training share")
class GoesElsewhere(Lamps):
    def step(self, action):
        os.chdir("/")
        return super().step(action)


@broken("deadline", "step gave no answer within 0.5 s")
class Hangs(Lamps):
    def step(self, action):
        while action.text == "nosuchtool(1)":
            time.sleep(0.01)
        return super().step(action)


def test_chance_is_not_judged_by_what_a_hanging_gold_script_left():
    """It draws from the actions of the other tasks' gold scripts, and these were never played."""

    class HangsAtOnce(Lamps):
        def step(self, action):
            while action.calls:
                time.sleep(0.01)
            return super().step(action)

    report = checked(replace(SPEC, make=HangsAtOnce), step_seconds=0.2)
    told = {check.name: (check.status, check.detail) for check in report.checks}
    assert told["deadline"][0] == "FAILED"
    assert told["random"] == ("skipped", "the gold policy hung, and chance draws from what it writes")


@broken("messages", "Observation.messages[0] is no message")
class OddMessages(Lamps):
    def step(self, action):
        seen = super().step(action)
        return Observation(({"role": "tool", "text": "?"},)) if action.text == "-1" else seen


@broken("messages", "reset shows the policy no message")
class Silent(Lamps):
    def reset(self, task, seed):
        super().reset(task, seed)
        return Observation()


@broken("state", "no copy; later steps changed it: state['on'][")
class NoCopy(Lamps):
    def state(self):
        return {**super().state(), "on": self.on}


@broken("state", "no copy; writing into it changed the world: state['wanted']")
class NoDeepCopy(Lamps):
    def state(self):
        return {**super().state(), "wanted": self.wanted}


@broken("state", "state()['on'] is (False, False")
class NotPlain(Lamps):
    def state(self):
        return {**super().state(), "on": tuple(self.on)}


@broken("state", "asked twice gave two answers: state['asked']: 2 ≠ 3")
class Asked(Lamps):
    num_asked = 0

    def state(self):
        self.num_asked += 1
        return {**super().state(), "asked": self.num_asked}


same("unknown volatile", "state", "volatile names 'clock', which no state has", volatile=("turns", "clock"))


@broken("invalid", "counted as invalid, but it changed state['on'][0]")
class ActsOnNonsense(Lamps):
    def step(self, action):
        seen = super().step(action)
        if action.text == "None":
            self.on[0] = not self.on[0]
        return seen


@broken("permissions", "the task says forbidden = ['press'], but the call changed state['on']")
class NoLock(Lamps):
    def _open(self, task):
        self.task, self._permitted, self.over = task, self.tools, False


@broken("determinism", "played again: ")
class Numbered(Lamps):
    made = 0

    def __init__(self):
        Numbered.made += 1
        self.number = Numbered.made

    def state(self):
        return {**super().state(), "number": self.number}


@broken("isolation", "8 at once: ")
class Shared(Lamps):
    """Begins anew at every reset, but there is only one of it."""

    on = [False] * NUM

    def reset(self, task, seed):
        seen = super().reset(task, seed)
        del self.on
        self.on[:] = [False] * NUM
        return seen


@broken("isolation", "the environment wrote into its task: columns['played'] is there only once")
class WritesIntoTask(Lamps):
    def reset(self, task, seed):
        seen = super().reset(task, seed)
        task.columns["played"] = True
        return seen


same("seed without effect", "seed", "EnvSpec.seeded is True, but no task is another under 5 seeds", seeded=True)


@broken("seed", "EnvSpec.seeded is False, but with the seed 1: task lamps/0 (gold, turn 0): observation['messages']")
class Seeded(Lamps):
    def reset(self, task, seed):
        seen = super().reset(task, seed)
        return replace(seen, messages=(*seen.messages, {"role": "user", "content": f"Day {seed}."}))


def test_a_seed_of_which_nothing_is_said_is_never_called_ok():
    for spec, words in (
        (SPEC, "not declared: no task is another under 5 seeds; say so with EnvSpec(seeded=False)"),
        (
            replace(SPEC, make=Seeded),
            "not declared: 4 of 4 tasks are another under 5 seeds; say so with EnvSpec(seeded=True)",
        ),
    ):
        (check,) = [check for check in checked(replace(spec, seeded=None)).checks if check.name == "seed"]
        assert check.status == "skipped" and check.detail.startswith(words)
    (check,) = [c for c in checked(replace(SPEC, make=Seeded, seeded=True)).checks if c.name == "seed"]
    assert (check.status, check.detail) == ("ok", "4 of 4 tasks are another under 5 seeds")


@broken("snapshot", "restored in a fresh instance: ")
class Forgets(Lamps):
    num_clicks = 0

    def do_press(self, lamp):
        answer = super().do_press(lamp)
        self.num_clicks += 1
        return answer

    def state(self):
        return {**super().state(), "num_clicks": self.num_clicks}

    def restore(self, saved):
        super().restore(saved)
        if self.num_clicks:  # in the same instance it looks right
            self.num_clicks = self.turns


class Leaks(Lamps):
    held: Any = None

    def reset(self, task, seed):
        self.held = self.hold()
        return super().reset(task, seed)

    def __del__(self):
        if self.held is not None:
            self.free()


@broken("clean-up", "descriptor")
class LeaksDescriptor(Leaks):
    def hold(self):
        return os.open("/dev/null", os.O_RDONLY)

    def free(self):
        os.close(self.held)


@broken("clean-up", "temporary file")
class LeaksFile(Leaks):
    def hold(self):
        descriptor, path = tempfile.mkstemp()
        os.close(descriptor)
        return path

    def free(self):
        """The checker has removed it with its folder."""


@broken("clean-up", "thread")
class LeaksThread(Leaks):
    def hold(self):
        event = threading.Event()
        threading.Thread(target=event.wait, args=(60,), daemon=True).start()
        return event

    def free(self):
        self.held.set()


@broken("clean-up", "process")
class LeaksProcess(Leaks):
    def hold(self):
        return subprocess.Popen(["/bin/sleep", "60"])

    def free(self):
        self.held.kill()
        self.held.wait()


@broken("clean-up", "3 descriptors")  # every third of ten
class LeaksAfterException(Lamps):
    """Frees what it has, unless reset raised half way."""

    held: int = -1

    def reset(self, task, seed):
        self.held = os.open("/dev/null", os.O_RDONLY)
        return super().reset(task, seed)

    def close(self):
        if self.held >= 0 and hasattr(self, "wanted"):
            os.close(self.held)
            self.held = -1

    def __del__(self):
        if self.held >= 0:
            os.close(self.held)


@broken("clean-up", "a second close() after")
class ClosesOnce(Lamps):
    closed = False

    def close(self):
        if self.closed:
            raise ValueError("closed already")
        self.closed = True


same("luck above all", "spec", "EnvSpec.luck = 1.5 is no share of tasks below 1", luck=1.5)
same("goal that raises", "goal", "the goal raised KeyError", goal=Goal(lambda task, start, now: now["solved"], ends=False))
same("goal at the start", "goal", "holds before anything was done", goal=Goal(lambda *_: True, ends=False))
same("no verdict", "goal", "returned 0, not True or False",
     goal=Goal(lambda task, start, now: int(right(task, start, now)), ends=False))  # fmt: skip


def notes(task, start, now):
    now["asked"] = True
    return right(task, start, now)


same("goal that writes", "goal", "changed the state it was shown", goal=Goal(notes, ends=False))


@broken("goal", "termination and outcome disagree", goal=Goal(right, ends=True))
class EndsSometimes(Lamps):
    def step(self, action):
        seen = super().step(action)
        return replace(seen, ended=seen.ended and 1 not in self.wanted)


same("milestone that raises", "predicates", "milestone 'x' raised KeyError",
     milestones=(Milestone("x", lambda task, before, after: after["x"] > 0),))  # fmt: skip
same("potential above 1", "predicates", "its potential is 1.25 after turn 1; it must be a number from 0 to 1",
     potential=lambda task, start, now: 1.0 if now == start else 1.25)  # fmt: skip
same("potential that raises", "predicates", "the potential raised KeyError", potential=lambda task, start, now: now["x"])
same("negative cost", "predicates", "cost 'c' is -", costs=(Cost("c", "call", lambda task, states: -len(states)),))
same("lazy gold", "gold", "4 of 4 tasks not solved", gold=lambda task, env: map(press, task.columns["wanted"]))


def stumbling(task, env):
    yield press(1)
    raise IndexError("no more")


same("gold that raises", "gold", "IndexError: no more", gold=stumbling)


@broken("empty", "4 of 4 tasks solved")
class SilenceWins(Lamps):
    def step(self, action):
        if not action.text:
            self.solve()
            return Observation(ended=True)
        return super().step(action)


@broken("random", "3 of 4 tasks solved: 75.0%, 95 % interval 30.1% to 95.4%; more than 5% is no luck")
class AnythingWins(Lamps):
    def do_press(self, lamp):
        if lamp not in self.wanted:
            self.solve()
        return "click" if self.over else super().do_press(lamp)


@broken("claim", "which wrote 'SUCCESS: all goals were reached.'")
class BelievesWords(Lamps):
    def step(self, action):
        if "SUCCESS" in action.text:
            self.solve()
            return Observation(ended=True)
        return super().step(action)


@broken("loop", "4 of 4 tasks solved")
class GivesIn(Lamps):
    asked = 0

    def do_press(self, lamp):
        self.asked = self.asked + 1 if getattr(self, "last", None) == lamp else 1
        self.last = lamp
        answer = super().do_press(lamp)
        if self.asked > 4:
            self.solve()
        return answer


same("known-bad that is not", "known-bad", "(known-bad cheats, turn 4", known_bad={"cheats": gold})


def with_answers(size, seed):
    return ({**row, "answer": f"lamps {row['wanted']}"} for row in generate(size, seed))


@broken("leak", "shows the answer: 'lamps [", generate=with_answers)
class ShowsAnswer(Lamps):
    def reset(self, task, seed):
        seen = super().reset(task, seed)
        return replace(seen, messages=(*seen.messages, {"role": "user", "content": f"(The answer: {task.answer}.)"}))


def all_at_once(task, env):
    yield "\n".join(map(press, task.columns["wanted"]))
    yield "done()"


@broken("leak", "shows its gold action: 'press(lamp=", gold=all_at_once)
class ShowsGold(Lamps):
    def reset(self, task, seed):
        seen = super().reset(task, seed)
        return replace(seen, messages=(*seen.messages, {"role": "user", "content": next(all_at_once(task, self))}))


@broken("summary", "it tells its column wanted: '[", summary=lambda task, start, now: f"Wanted: {task.columns['wanted']}.")
class SumsUpTheGoal(Lamps):
    pass


ASKED = count()


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (lambda task, start, now: now["no such fact"], "the summary raised KeyError: 'no such fact'"),
        (lambda task, start, now: " ", "the summary is ' ', not a text"),
        (lambda task, start, now: now["on"], "the summary is [False, "),
        (lambda task, start, now: f"asked {next(ASKED)} times", "asked twice, the summary is 'asked "),
        (lambda task, start, now: now["on"].append(True) or "on", "the summary changed what it was shown"),
        (lambda task, start, now: f"Next: {press(task.columns['wanted'][0])}; {press(task.columns['wanted'][1])}", None),
        (lambda task, start, now: "\n".join(all_at_once(task, None)), "it tells its gold action: 'press(lamp="),
    ],
)
def test_summaries_that_cannot_be_gone_on_from_are_caught(summary, words):
    """All by that one check; what other tasks' gold scripts write as well gives nothing away."""
    found = verdicts(replace(SPEC, summary=summary, gold=all_at_once))
    assert list(found) == ([] if words is None else ["summary"]), found
    assert words is None or words in found["summary"]


@pytest.mark.parametrize("name", list(BROKEN))
def test_each_broken_environment_is_caught_by_exactly_its_check(name):
    check, spec, words = BROKEN[name]
    found = verdicts(spec, **({"step_seconds": 0.5} if name == "Hangs" else {}))
    assert list(found) == [check], found
    assert words in found[check]


def test_a_world_may_say_how_often_chance_succeeds_there():
    (check,) = [c for c in checked(replace(SPEC, make=AnythingWins, luck=0.8)).checks if c.name == "random"]
    assert check.status == "ok"
    assert check.detail == "3 of 4 tasks solved: 75.0%, 95 % interval 30.1% to 95.4%; up to 80% pass as luck"


def test_every_check_has_an_environment_that_it_catches():
    assert {check for check, _, _ in BROKEN.values()} == set(CHECKS)


# --- those that ship -----------------------------------------------------------------------------------------------------

ELSEWHERE = ("repair", "bfcl", "textworld")
"""Run code or other packages' processes: their own test files check them, by the difficulties they have."""
QUICK = [name for name in (*SHIPPED, *FOREIGN) if name not in ELSEWHERE]
NO_TOOLS = {"permissions"}
SKIPPED = {**dict.fromkeys(("maze", "corridor", "babyai", "textworld"), NO_TOOLS),
           **dict.fromkeys(("frozen_lake", "taxi", "cliff_walking"), NO_TOOLS | {"summary"}),
           "calc": {"snapshot", "summary"}}  # fmt: skip
"""Checks that there is nothing for, by name: none is skipped unnoticed."""


def contract_of(name: str, **sizes):
    if name in FOREIGN:
        pytest.importorskip(FOREIGN[name][0])
    report = check_env(name, step_seconds=60.0, **sizes)
    assert report.ok, report.text()
    assert {check.name for check in report.checks if check.status == "skipped"} == SKIPPED.get(name, set()), report.text()
    return report


@pytest.mark.parametrize("name", QUICK)
def test_what_ships_keeps_the_contract(name):
    contract_of(name, num_tasks=4, num_episodes=16)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*SHIPPED, *FOREIGN])
def test_what_ships_keeps_it_over_two_hundred_episodes(name, record_property):
    report = contract_of(name, num_tasks=20, num_episodes=200)
    (random,) = [check.detail for check in report.checks if check.name == "random"]
    record_property("random", random)


PAGE = Path(__file__).parents[1] / "docs" / "environments.md"


def test_the_documented_environment_passes(tmp_path, monkeypatch, capsys):
    code, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("my_env.py").write_text(code)
    assert main(["check", "env", "my_env.py:SPEC", "--episodes", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:21].split() for line in lines if line.startswith("skipped")] == [
        ["skipped", "snapshot"],
        ["skipped", "predicates"],
        ["skipped", "known-bad"],
    ]
    assert any(line.startswith("ok       determinism  20 tasks played twice, and in another process") for line in lines)


def test_the_page_names_every_check():
    rows = re.findall(
        r"^\| ([a-z, -]+) \|", PAGE.read_text(encoding="utf-8").partition("## `milepost check")[2], re.MULTILINE
    )
    assert {name.strip() for row in rows for name in row.split(",")} >= set(CHECKS)


# --- around it --------------------------------------------------------------------------------------------------------


def test_checks_that_cannot_be_made_say_why():
    report = checked(replace(SPEC, gold=None, tools=(), milestones=(), costs=(), known_bad={}))
    skipped = {check.name: check.detail for check in report.checks if check.status == "skipped"}
    assert skipped["gold"] == "there is no gold script" and skipped["permissions"] == "there are no tools"
    assert "no milestones" in skipped["predicates"] and "no known-bad" in skipped["known-bad"]
    assert report.ok  # what is not there is not broken
    hopeless = checked(replace(SPEC, generate=lambda size, seed: iter(())))
    assert [c.name for c in hopeless.checks if c.status == "FAILED"] == ["tasks"]
    assert all("there are no tasks" in c.detail for c in hopeless.checks if c.status == "skipped")


CHOICE = '''
from milepost.env import EnvSpec, Goal, Observation

class Choice:
    """Sets have another order in each process that hashes in another way."""

    def reset(self, task, seed):
        self.said = ""
        return Observation(({"role": "user", "content": task.prompt + " " + ORDER},))

    def step(self, action):
        self.said = action.text
        return Observation(ended=True)

    def state(self):
        return {"said": self.said}

    def close(self):
        pass

def generate(size, seed):
    return ({"prompt": f"Say {i}.", "word": str(i)} for i in range(size))

SPEC = EnvSpec("choice", "1", Choice, generate, Goal(lambda task, start, now: now["said"] == task.columns["word"]),
               gold=lambda task, env: iter([task.columns["word"]]))
'''


def test_another_process_must_see_the_same(tmp_path, capsys):
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"]
    for order, code in ((f'" ".join({set(words)!r})', 1), ('"a b"', 0)):
        path = tmp_path / f"choice{code}.py"
        path.write_text(f"ORDER = {order}\n{CHOICE}")
        assert main(["check", "env", f"{path}:SPEC", "--tasks", "3", "--episodes", "8", "--json"]) == code
        report = json.loads(capsys.readouterr().out)
        failed = {check["name"]: check["detail"] for check in report["checks"] if check["status"] == "FAILED"}
        assert report["ok"] is not bool(code) and set(failed) == ({"determinism"} if code else set())
        assert not failed or "in another process, with another hash seed" in failed["determinism"]


def test_what_is_left_behind_is_told_and_ended(tmp_path):
    class Leaves(Lamps):
        def reset(self, task, seed):
            left = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
            (tmp_path / str(left.pid)).touch()
            return super().reset(task, seed)

    found = verdicts(replace(SPEC, make=Leaves))
    assert list(found) == ["clean-up"] and "10 processes" in found["clean-up"]
    assert os.listdir(tmp_path) and not any(os.path.exists(f"/proc/{pid}") for pid in os.listdir(tmp_path))


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"])
def test_a_process_that_ends_is_never_silence(tmp_path, capsys, code):
    (tmp_path / "ends.py").write_text(code)
    assert main(["check", "env", f"{tmp_path}/ends.py:SPEC"]) == 1
    text = capsys.readouterr().out
    assert f"the import of {tmp_path}/ends.py:SPEC: the process ended" in text and "env.isolated" in text


# case E12, and settings that cannot be
def test_unknown_names_and_settings_are_refused(capsys):
    assert main(["check", "env", "no_such"]) == 2
    assert "no_such" in capsys.readouterr().err
    assert main(["check", "env", "calc", "colour=red"]) == 2
    assert "takes no such difficulty" in capsys.readouterr().err
    assert main(["check", "env", "calc", "--tasks", "0"]) == 2
    with pytest.raises(RecipeError):
        check_env(SPEC, step_seconds=0)
    assert read_difficulty(["digits=4", "style=words", "tall=true"]) == {"digits": 4, "style": "words", "tall": True}


def test_the_text_has_one_line_for_each_check():
    lines = checked(BROKEN["BelievesWords"][1]).text().splitlines()
    assert lines[0] == "environment lamps, version 1" and lines[-1] == "1 failed"
    assert [line[9:21].strip() for line in lines[1:-1]] == list(CHECKS)
    assert sum(line.startswith("FAILED   claim") for line in lines) == 1


def test_differences_name_the_place():
    assert difference({"a": [1, 2]}, {"a": [1, 3]}) == "state['a'][1]: 2 ≠ 3"
    assert difference({"a": 1}, {"a": 1, "b": 2}) == "state['b'] is there only once"
    assert difference({"a": 1}, {"a": True}) == "state['a']: 1 ≠ True"
    assert difference({"a": (1, None)}, {"a": [1, None]}) is None

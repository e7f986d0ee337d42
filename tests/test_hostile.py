"""The corpus of hostile programs: none is paid, none harms or leaves anything, and the judge judges on."""

from __future__ import annotations

import os
import socket
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from milepost.kept import descendants
from milepost.sandbox.pool import LEVELS, Sandbox
from milepost.sandbox.runs import Limits
from milepost.types import RecipeError
from milepost.verifiers.code import score

FOLDER = Path(__file__).parent / "hostile"
ALLOWED = "MILEPOST_NO_SANDBOX"
PROGRAMS = [program for path in sorted(FOLDER.glob("*.toml")) for program in tomllib.loads(path.read_text())["program"]]
PAIRS = [(3, 4), (10, 1), (-2, 7), (0, 1000)]
VALUES = {"entry_point": "mix", "tests": [{"args": [a, b], "expected": 31 * a + 17 * b} for a, b in PAIRS]}
ASSERTIONS = {"tests": [f"assert mix({a}, {b}) == {31 * a + 17 * b}" for a, b in PAIRS]}
OUTPUT = {"tests": [{"input": f"{a} {b}\n", "output": f"{31 * a + 17 * b}\n"} for a, b in PAIRS]}
RIGHT = "def mix(a, b):\n    return 31 * a + 17 * b"
RIGHT_PROGRAM = "a, b = map(int, input().split())\nprint(31 * a + 17 * b)"
FILES = {"expected.json": "[161]", "tests.py": "assert mix(3, 4) == 161"}
TIGHT = {"seconds": 0.6, "total_seconds": 0.6, "memory_mb": 64}


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


class Host:
    """What a program would like to reach, and the sandbox that keeps it away."""

    def __init__(self, folder: Path, levels: Sequence[str]) -> None:
        self.folder = folder
        folder.chmod(0o755)
        for name, text in FILES.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o666)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        limits = Limits(memory_mb=64, processes=16, tmp_mb=16, file_mb=4)
        self.sandbox = Sandbox(1, limits=limits, levels=levels)
        self.judge(fenced(RIGHT), VALUES, {})
        self.processes = len(descendants(self.sandbox.pids[0]))
        self.descriptors = len(os.listdir("/proc/self/fd"))

    def code(self, program: dict) -> str:
        """With the names of this host. The folder stands for one that any process of the machine may write to."""
        known = {"@HOME@": str(self.folder), "@PORT@": str(self.server.getsockname()[1]), "@PID@": str(os.getpid())}
        text = program["code"]
        for name, value in known.items():
            text = text.replace(name, value)
        return fenced(text)

    def judge(self, code: str, gold: dict, limits: dict) -> dict:
        return score(answer=code, gold=gold, sandbox=self.sandbox, **limits)

    def is_unharmed(self) -> None:
        """No process, no descriptor, no file and no connection is left."""
        deadline = time.monotonic() + 5
        while len(descendants(self.sandbox.pids[0])) > self.processes and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(descendants(self.sandbox.pids[0])) == self.processes
        assert len(os.listdir("/proc/self/fd")) == self.descriptors
        assert {path.name: path.read_text() for path in self.folder.iterdir()} == FILES
        with pytest.raises(BlockingIOError):
            self.server.accept()


LANDLOCK = ("landlock",)


@pytest.fixture(scope="module", params=[LEVELS[:2], pytest.param(LANDLOCK, marks=pytest.mark.nightly)], ids=" or ".join)
def host(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Host]:
    """Behind the strongest walls that work here; nightly behind the second strongest as well."""
    try:
        host = Host(tmp_path_factory.mktemp("host"), request.param)
    except RecipeError as error:
        not_run(str(error), may_lack=request.param == LANDLOCK)
    yield host
    host.sandbox.close()
    host.server.close()


def not_run(why: str, *, may_lack: bool = False) -> NoReturn:
    """A corpus that nothing ran is no corpus that was withstood: that has to be allowed by name."""
    if may_lack or os.environ.get(ALLOWED) == "1":
        pytest.skip(why)
    pytest.fail(f"the hostile programs were not run, because there is nothing to run them behind; {ALLOWED}=1 allows that: "
                f"{why}", pytrace=False)  # fmt: skip


def test_a_corpus_that_was_not_run_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOWED, raising=False)
    with pytest.raises(pytest.fail.Exception, match="MILEPOST_NO_SANDBOX=1 allows that: no walls"):
        not_run("no walls")
    monkeypatch.setenv(ALLOWED, "1")
    with pytest.raises(pytest.skip.Exception, match="no walls"):
        not_run("no walls")


def test_the_corpus_is_large_and_named() -> None:
    assert len(PROGRAMS) >= 60
    assert len({program["name"] for program in PROGRAMS}) == len(PROGRAMS)
    assert {program["kind"] for program in PROGRAMS} == {"function", "program"}


def test_honest_code_is_paid_here(host: Host) -> None:
    """Without this the corpus would also pass where nothing runs at all."""
    for code, gold in ((RIGHT, VALUES), (RIGHT, ASSERTIONS), (RIGHT_PROGRAM, OUTPUT)):
        verdict = host.judge(fenced(code), gold, {"memory_mb": 64})
        assert verdict["score"] == 1.0, verdict["compared"]


@pytest.mark.parametrize("program", PROGRAMS, ids=[program["name"] for program in PROGRAMS])
def test_a_hostile_program_gets_nothing_and_leaves_nothing(host: Host, program: dict) -> None:  # cases D38, D39, D44
    golds = [OUTPUT] if program["kind"] == "program" else [VALUES] if program.get("slow") else [VALUES, ASSERTIONS]
    for gold in golds:
        began = time.monotonic()
        verdict = host.judge(host.code(program), gold, TIGHT)
        assert verdict["score"] == 0.0, verdict
        assert verdict["cause"] is None
        assert time.monotonic() - began < TIGHT["seconds"] + 10  # generous: a cell may have to be replaced
        host.is_unharmed()


def test_looking_for_expectations_in_memory_finds_what_is_there(host: Host) -> None:
    """The program that does so would be paid if there were anything to find."""
    program = next(program for program in PROGRAMS if program["name"] == "looks for expectations in memory")
    planted = {**program, "code": 'planted = "assert mix(9, " + str(9) + ") == 432"\n' + program["code"]}
    assert host.judge(host.code(planted), VALUES, {"memory_mb": 64})["score"] == 1.0


def test_the_judge_still_judges(host: Host) -> None:
    verdict = host.judge(fenced(RIGHT), VALUES, {"memory_mb": 64})
    assert verdict["score"] == 1.0, verdict["compared"]

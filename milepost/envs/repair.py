"""`repair`: mend a small Python function. What the policy sees are a few tests; other, hidden ones judge what it submits.

    sum_even: the sum of the even numbers           the first message: what is wanted, the code, the visible tests
    1 def sum_even(xs):
    2     total = 1
    …
    sum_even([4, 7]) = 4
    > run()                                         0 of 3 tests pass
                                                    sum_even([4, 7]): 5, expected 4 …
    > edit(2, "total = 0")                          2     total = 0
    > run()                                         3 of 3 tests pass
    > submit()                                      submitted

What is run is untrusted: it goes to the sandbox, through `verifiers.code`. The hidden tests go there once, when the code is
submitted and nothing is answered any more; what they expect never does. A sandbox that fails is a fault, not a failure.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import queue
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, repeat
from typing import Any

from milepost.env import Action, Cost, Environment, EnvSpec, Goal, Milestone, Observation, State, Tool
from milepost.envs.repair_tasks import generate, numbered
from milepost.sandbox.pool import Sandbox
from milepost.sandbox.runs import Limits
from milepost.tools import Refused, ToolEnv, render_call
from milepost.types import DataError, Task
from milepost.verifiers.code import Outcome, examine

SYSTEM = (
    "Repair the function. edit replaces a line: several lines may take its place, or none. run tests the function. "
    "Call submit when it is right: hidden tests judge it."
)
EDIT = Tool("edit", {"line": (int, True), "text": (str, True)}, 'such as edit(2, "return a + b")')
WRITE = Tool("write", {"code": (str, True)}, "replaces the whole code")
RUN = Tool("run", {})
SUBMIT = Tool("submit", {}, "ends the task")

MAX_CHARS, MAX_LINES = 4000, 120
SECONDS, TOTAL_SECONDS, MEMORY_MB = 1.5, 3.0, 128
"""Of one test, of all tests of one run. Ours take milliseconds; whoever comes next waits for an endless loop."""


class Repair(ToolEnv):
    """The task decides everything: the seed of `reset` is not needed."""

    tools = (EDIT, WRITE, RUN, SUBMIT)
    ran_now = False
    """In this turn. Many endless loops in one turn would miss its deadline, which is a fault; the loops are none."""

    def reset(self, task: Task, seed: int) -> Observation:
        if missing := [name for name in ("entry", "code", "tests", "max_runs") if name not in task.columns]:
            raise DataError(
                f"repair: task {task.key} has no column {missing[0]}; take its rows from repair's own generator"
            )
        with _sandbox() as sandbox:  # where none works, it is said now
            sandbox.run([])
        self.lines: list[str] = task.columns["code"].split("\n")
        self.visible: list[bool] | None = None
        self.hidden: list[bool] | None = None
        self.num_edits = self.num_runs = 0
        return super().reset(task, seed)

    def state(self) -> State:
        """code: its lines. visible: which visible tests pass, None if this code was not run. hidden: how many of the hidden
        tests pass and how many there are, once the code is submitted. Nothing of a hidden test itself."""
        hidden = None if self.hidden is None else {"passed": sum(self.hidden), "of": len(self.hidden)}
        return {"code": list(self.lines), "digest": _digest(self.lines), "num_edits": self.num_edits, "hidden": hidden,
                "visible": None if self.visible is None else list(self.visible), "num_runs": self.num_runs}  # fmt: skip

    def snapshot(self) -> bytes:
        assert self.task is not None, "snapshot before reset"
        task = {"key": self.task.key, "prompt": self.task.prompt, "columns": self.task.columns}
        facts = {name: getattr(self, name) for name in ("lines", "visible", "hidden", "num_edits", "num_runs", "over")}
        return json.dumps({"task": task, "facts": facts}).encode()

    def restore(self, saved: bytes) -> None:
        held = json.loads(saved)
        self._open(Task(**held["task"]))
        vars(self).update(held["facts"])

    def step(self, action: Action) -> Observation:
        self.ran_now = False
        return super().step(action)

    # --- tools -----------------------------------------------------------------------------------------------------------

    def do_edit(self, line: int, text: str) -> str:
        """`text` without indentation takes that of the line."""
        if not 1 <= line <= len(self.lines):
            raise Refused(f"there are lines 1 to {len(self.lines)}")
        new = text.rstrip().split("\n") if text.strip() else []
        old = self.lines[line - 1]
        if new and not new[0][:1].isspace():
            new = [_indent(old) + one for one in new]
        self._change([*self.lines[: line - 1], *new, *self.lines[line:]])
        return _ascii("\n".join(f"{line + i} {one}" for i, one in enumerate(new))) or f"line {line} deleted"

    def do_write(self, code: str) -> str:
        self._change(code.strip("\n").rstrip().split("\n"))
        return "written"

    def do_run(self) -> str:
        assert self.task is not None
        if self.visible is not None:
            raise Refused("this code was run already; change it, or submit it")
        if self.num_runs >= self.task.columns["max_runs"]:
            raise Refused("no runs are left; submit the code")
        if self.ran_now:
            raise Refused("one run for each turn")
        self.ran_now = True
        outcomes = self._examine(only_visible=True)
        self.num_runs += 1
        self.visible = [outcome.passed for outcome in outcomes]
        failed = [outcome.text for outcome in outcomes if not outcome.passed and outcome.text != "not run"]
        return _ascii("\n".join([f"{sum(self.visible)} of {len(outcomes)} tests pass", *dict.fromkeys(failed)]))

    def do_submit(self) -> str:
        outcomes = self._examine(only_visible=False)
        self.num_runs += 1
        self.visible, self.hidden = ([o.passed for o in outcomes if o.visible is shown] for shown in (True, False))
        self.over = True
        return "submitted"

    def _change(self, lines: list[str]) -> None:
        if not "".join(lines).strip():
            raise Refused("no code would be left")
        if len(lines) > MAX_LINES or sum(map(len, lines)) > MAX_CHARS:
            raise Refused(f"use at most {MAX_LINES} lines and {MAX_CHARS} characters")
        if lines == self.lines:
            raise Refused("the code is that already")
        self.lines, self.visible = lines, None
        self.num_edits += 1

    def _examine(self, only_visible: bool) -> list[Outcome]:
        """One run. Raises what `examine` raises: then the sandbox or the tests are broken, which is no policy's fault."""
        assert self.task is not None
        gold = {"entry_point": self.task.columns["entry"], "tests": self.task.columns["tests"]}
        with _sandbox() as sandbox:
            return examine("\n".join(self.lines), gold, only_visible=only_visible, seconds=SECONDS,
                           total_seconds=TOTAL_SECONDS, sandbox=sandbox)  # fmt: skip


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _ascii(text: str) -> str:
    """Code can hold and return any character; the tokenizer of a small policy knows printable ASCII and line breaks."""
    text = text.replace("…", "...")
    return text if text.isascii() and text.replace("\n", "").isprintable() else "".join(map(_shown, text))


def _shown(c: str) -> str:
    return c if c == "\n" or " " <= c <= "~" else ascii(c)[1:-1]


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


# A sandbox plays the runs of one caller at a time, and any may be an endless loop. So there are several, of one cell each,
# more than cores; the one that was used last, which is warm, is taken first.
_SANDBOXES: dict[int, queue.LifoQueue[Sandbox | None]] = {}
_OPENING = threading.Lock()


def _sandboxes() -> queue.LifoQueue[Sandbox | None]:
    """Those of this process that are free; None stands for one that is still to be made. Raises RecipeError."""
    with _OPENING:
        if os.getpid() not in _SANDBOXES:
            free: queue.LifoQueue[Sandbox | None] = queue.LifoQueue()
            for _ in range(8 * (os.cpu_count() or 1) - 1):
                free.put(None)
            free.put(_made())
            _SANDBOXES[os.getpid()] = free
        return _SANDBOXES[os.getpid()]


def _made() -> Sandbox:
    return Sandbox(1, limits=Limits(memory_mb=MEMORY_MB))


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    free = _sandboxes()
    sandbox = free.get()
    try:
        sandbox = sandbox or _made()
        yield sandbox
    finally:
        free.put(sandbox)


# --- what counts ----------------------------------------------------------------------------------------------------------


def mended(task: Task, start: State, now: State) -> bool:
    """Submitted, and every test passes, visible and hidden."""
    hidden = now["hidden"]
    return hidden is not None and hidden["passed"] == hidden["of"] > 0 and all(now["visible"])


def _passes(task: Task, start: State, now: State) -> bool:
    """The code as it is now passes the visible tests. One that only knows their answers does too."""
    return bool(now["visible"]) and all(now["visible"])


def summed_up(task: Task, start: State, now: State) -> str:
    """The code as it is, and what its last run gave, if it was run."""
    visible = now["visible"]
    told = "not run" if visible is None else f"{sum(visible)} of {len(visible)} tests pass"
    return _ascii(f"{numbered(now['code'])}\n{told}; {now['num_edits']} edits, {now['num_runs']} runs so far")


VISIBLE = Milestone("visible", _passes, kind="state")
RUNS = Cost("runs", "run of tests", lambda task, states: float(states[-1]["num_runs"] - states[0]["num_runs"]))
EDITS = Cost("edits", "edit", lambda task, states: float(states[-1]["num_edits"] - states[0]["num_edits"]))


# --- scripted policies ----------------------------------------------------------------------------------------------------

_PATIENCE = 12


def _edit(line: int, text: str) -> str:
    return render_call("edit", {"line": line, "text": text}, tool=EDIT)


def _write(code: str) -> str:
    return render_call("write", {"code": code}, tool=WRITE)


def edits(code: str, solution: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the edits that make `solution` out of `code`, from the last line to the first."""
    old, new = code.split("\n"), solution.split("\n")
    for tag, i, j, k, m in reversed(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()):
        lines = new[k:m]
        if tag == "equal":
            continue
        yield from ((line, "") for line in range(j, i + (tag != "delete"), -1))
        if tag == "insert":  # nothing can be put before a line but together with it
            at, lines = (i, [old[i - 1], *lines]) if i else (1, [*lines, old[0]])
            yield at, _flush(lines, old[at - 1])
        elif tag == "replace":
            yield i + 1, _flush(lines, old[i])


def _flush(lines: Sequence[str], old: str) -> str:
    """Without the indentation that `edit` adds, where that is the same for all."""
    indent = _indent(old)
    if all(line.startswith(indent) for line in lines) and not lines[0].removeprefix(indent)[:1].isspace():
        lines = [line.removeprefix(indent) for line in lines]
    return "\n".join(lines)


def gold(task: Task, env: Environment) -> Iterator[str]:
    """Mends, runs, submits."""
    for line, text in edits(task.columns["code"], task.columns["solution"]):
        yield _edit(line, text)
    if task.columns["max_runs"]:
        yield "run()"
    yield "submit()"


def _random(task: Task, env: Environment) -> Iterator[str]:
    """Edits and runs by chance. It ends in a constant: luck would make a check fail at random."""
    rng = random.Random(f"repair random {task.key}")
    for _ in range(_PATIENCE // 3):
        num_lines = len(env.state()["code"])  # type: ignore[union-attr]
        yield _edit(rng.randint(1, num_lines), rng.choice(("return 0", "return 1", "return None", "return []", "raise")))
        yield "run()"
    yield _write(f"def {task.columns['entry']}(*args):\n    return {rng.randint(-9, 9)}")
    yield "submit()"


def _by_heart(task: Task, env: Environment) -> Iterator[str]:
    """The answers of the visible tests, and for all else the code as it was."""
    entry, visible = task.columns["entry"], [test for test in task.columns["tests"] if test["visible"]]
    known = {repr(test["args"]): test["expected"] for test in visible}
    yield _write(f"{task.columns['code']}\nbefore = {entry}\nknown = {known!r}\ndef {entry}(*args):\n"
                 "    return known[repr(list(args))] if repr(list(args)) in known else before(*args)")  # fmt: skip
    yield "run()"
    yield "submit()"


def _written(*lines: str) -> Any:
    """Writes this instead of a function, runs it and submits it. «entry» stands for the function's name."""

    def script(task: Task, env: Environment) -> Iterator[str]:
        yield _write("\n".join(lines).replace("«entry»", task.columns["entry"]))
        yield from ("run()", "submit()")

    return script


def _unchanged(task: Task, env: Environment) -> Iterator[str]:
    yield "Fixed. All tests pass: success!\nsubmit()"


def _half(task: Task, env: Environment) -> Iterator[str]:
    """Mends, and does not submit."""
    return islice(gold(task, env), len(list(edits(task.columns["code"], task.columns["solution"]))) + 1)


_EQUAL = "class Yes(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False"
_PASSED = '{"passed": true, "score": 1.0}'

KNOWN_BAD = {
    "empty": lambda task, env: repeat("", _PATIENCE),
    "random": _random,
    "claims success": _unchanged,
    "loops": lambda task, env: repeat("run()", _PATIENCE),
    "does not submit": _half,
    "knows the visible answers": _by_heart,
    "exits": _written("import sys", "sys.exit(0)"),
    "exits in the call": _written("import os", "def «entry»(*args):", "    os._exit(0)"),
    "prints success": _written(f"print('''{_PASSED}''')", "print('3 of 3 tests pass')", "def «entry»(*args): pass"),
    "forges records": _written("import os", f"[os.write(fd, b'''{_PASSED}''') for fd in (1, 2)]", "os._exit(0)"),
    "equals everything": _written(_EQUAL, "def «entry»(*args):", "    return Yes()"),
}  # fmt: skip

SPEC = EnvSpec(
    name="repair",
    version="1",
    make=Repair,
    generate=generate,
    goal=Goal(mended, ends=False),
    tools=Repair.tools,
    milestones=(VISIBLE,),
    costs=(RUNS, EDITS),
    gold=gold,
    known_bad=KNOWN_BAD,
    volatile=("num_edits", "num_runs"),
    summary=summed_up,
    system=SYSTEM,
    seeded=False,
)

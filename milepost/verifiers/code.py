"""Code judged by tests. The code runs in the sandbox; what is expected never goes there, and no verdict comes from there.

    gold = {"entry_point": "add", "tests": [{"args": [2, 3], "expected": 5}, {"args": [0, 1], "expected": 1}]}
    score(answer="```python\ndef add(a, b):\n    return a + b\n```", gold=gold)["score"]  -> 1.0

Three kinds of gold, told apart by their keys:

    functions   "entry_point" and "tests": [{"args", "kwargs", "expected"}], args or kwargs or both. The function returns
                data, and this process compares it. "expected_args": what is left of the arguments; "raises": "ValueError"
                (the built-in one, or a class derived from it) or "decimal.InvalidOperation"; "args_literal" and
                "expected_literal": Python literals, for values that JSON does not have
    programs    "tests": [{"input", "output"}]: standard input and output
    assertions  "tests": ["assert add(2, 3) == 5"], or "test": "def check(candidate): …", run in a process of their own in
                which the function is a stand-in that asks the other one; "in_place": true if they look at changed arguments

"prefix" (imports, a prompt with helpers) goes before the code; "setup" before the assertions alone; "solution" is a right
one. A test with "visible": true may be shown; the others are hidden. Rows of HumanEval and MBPP are golds as they are, and
so are rows with "inputs" and "outputs". docs/sandbox.md has the rules of comparison and extraction.
"""

from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from milepost.sandbox.pool import Sandbox
from milepost.sandbox.runs import Limits, Ran, Run, calls, checks, program
from milepost.verifiers.code_gold import BadGold, Extraction, Problem, closed, extract_code, read_gold, refuse_uncompilable
from milepost.verifiers.code_same import same, same_text, spelt

# --- judging --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One test: passed or not, and what was compared, in a few words for people (hidden expectations included)."""

    passed: bool
    visible: bool
    text: str


class Broken(Exception):
    """The sandbox itself failed."""


_Judging = Generator[list[Run], list[Ran], list[Outcome]]


def _judge(problem: Problem, code: str, limits: Limits, stop_early: bool, only_visible: bool) -> _Judging:
    count = sum(problem.visible) if only_visible else len(problem.tests)
    problem = replace(problem, tests=problem.tests[:count], visible=problem.visible[:count])
    judge = {"functions": _judge_functions, "programs": _judge_programs, "assertions": _judge_assertions}[problem.kind]
    return (yield from judge(problem, _with_prefix(problem.prefix, code), limits, stop_early)) if count else []


_TYPING = frozenset(name for name in typing.__all__ if name[0].isupper())


def _with_prefix(prefix: str, code: str) -> str:
    """Imports from __future__ must stand first. Behind them names of typing that the code takes for granted, as the
    templates of LeetCode and HumanEval provide them."""
    if "typing" not in code and (names := sorted(_TYPING & set(re.findall(r"\b[A-Z]\w+", code)))):
        prefix = f"from typing import {', '.join(names)}\n{prefix}"
    if not prefix:
        return code
    if code.lstrip("\n")[:1] not in (" ", "\t"):  # the answer begins anew instead of going on in the prefix' last function
        prefix = closed(prefix)
    first = "".join(line + "\n" for line in re.findall(r"^from __future__ import [^\n]*", code, re.MULTILINE))
    rest = re.sub(r"^from __future__ import [^\n]*", "", code, flags=re.MULTILINE)
    return f"{first}{prefix}{'' if prefix.endswith(chr(10)) else chr(10)}{rest}"


def _room(limits: Limits, *texts: str) -> Limits:
    """Room for what is expected and as much again; whatever is longer is wrong, and many of it would fill the memory."""
    size = (1 << 16) + 8 * sum(map(len, texts))
    return replace(limits, out_bytes=size, err_bytes=1 << 14, results_bytes=size)


def _judge_functions(problem: Problem, code: str, limits: Limits, stop_early: bool) -> _Judging:
    """All calls in one process; after a call that ended it, the others in a new one, within the same total time."""
    outcomes: list[Outcome] = []
    left = limits.seconds
    arguments = [(test["args"], test.get("kwargs", {})) for test in problem.tests]
    after = any("expected_args" in test for test in problem.tests)
    room = replace(_room(limits, repr(problem.tests)), stop_at_output=False)
    while len(outcomes) < len(problem.tests) and left > 0 and not (stop_early and not all(o.passed for o in outcomes)):
        first = len(outcomes)
        [ran] = yield [calls(code, problem.entry, arguments[first:], replace(room, seconds=left), first, after)]
        left -= ran.seconds
        records = _usable(ran)
        if not records or records[0][0] != first - 1:  # it does not even load: no use in trying again
            outcomes.append(Outcome(False, problem.visible[first], f"not loaded: {_reason(ran)}"))
            break
        outcomes += [_compare(problem, record) for record in records[1 : 1 + len(arguments) - first]]
        if len(outcomes) < len(problem.tests):
            outcomes.append(Outcome(False, problem.visible[len(outcomes)], f"no result: {_reason(ran)}"))
    return outcomes + _not_run(problem, len(outcomes))


def _compare(problem: Problem, record: list) -> Outcome:
    index, kind, value, after = record
    test = problem.tests[index]
    given = [*map(repr, test["args"]), *(f"{name}={value!r}" for name, value in test.get("kwargs", {}).items())]
    call = f"{problem.entry}({_short(', '.join(given))})"
    if "raises" in test:
        passed = kind == "error" and isinstance(value, list) and test["raises"] in value
        wanted = f"{test['raises']} raised"
    else:
        passed = kind == "value" and ("expected" in test or "expected_args" in test)
        wants = [test["expected"], *(test["expected"] if problem.wrapped else ())] if "expected" in test else []
        passed = passed and (not wants or any(same(value, want, problem.rule) for want in wants))
        passed = passed and ("expected_args" not in test or same(after, test["expected_args"], problem.rule))
        wanted = _short(" or ".join(map(repr, wants)) or repr(test.get("expected_args")))
    got = spelt(value) if kind == "value" else (str(after).strip().splitlines() or ["an error"])[-1]
    return Outcome(passed, problem.visible[index], f"{call}: {_short(got)}, expected {wanted}")


def _judge_programs(problem: Problem, code: str, limits: Limits, stop_early: bool) -> _Judging:
    """A process per test. Where all must pass, in growing portions, so that a wrong program costs little."""
    outcomes: list[Outcome] = []
    portion = 1 if stop_early else len(problem.tests)
    while len(outcomes) < len(problem.tests) and not (stop_early and not all(o.passed for o in outcomes)):
        batch = problem.tests[len(outcomes) : len(outcomes) + portion]
        own = replace(limits, seconds=limits.idle_seconds or limits.seconds)
        ran = yield [program(code, test.get("input", ""), _room(own, test["output"])) for test in batch]
        for test, one in zip(batch, ran):
            _usable(one)
            right = same_text(one.out, test["output"], problem.rule, blanks=problem.blanks)
            text = f"printed {_short(one.out)!r}, expected {_short(test['output'])!r}"
            ok = one.ended == "exit" and one.exit_code == 0
            outcomes.append(
                Outcome(ok and right, problem.visible[len(outcomes)], text if ok else f"{text}; {_reason(one)}")
            )
        portion *= 4
    return outcomes + _not_run(problem, len(outcomes))


def _judge_assertions(problem: Problem, code: str, limits: Limits, stop_early: bool) -> _Judging:
    setup = "\n".join((closed(problem.prefix), problem.setup))
    own = replace(_room(limits, *problem.tests), idle_seconds=None, stop_at_output=False)
    [ran] = yield [checks(code, problem.entry, problem.tests, setup, own, problem.in_place)]
    if ran.other is not None:
        _usable(ran.other)
    outcomes = []
    for index, verdict, text, num_calls in _usable(ran)[: len(problem.tests)]:
        if verdict == "bad" or (verdict == "pass" and not num_calls):
            raise BadGold(
                f"test {index + 1} does not judge the function: {str(text).strip()[-300:] or 'it never calls it'}"
            )
        last = (str(text).strip() or "failed").splitlines()[-1]
        outcomes.append(Outcome(verdict == "pass", problem.visible[index], "passed" if verdict == "pass" else last[:300]))
    if not outcomes and ran.ended == "exit":
        raise BadGold(f"setup or prefix cannot be run before the tests: {ran.err.strip()[-300:]}")
    if len(outcomes) < len(problem.tests):
        outcomes.append(Outcome(False, problem.visible[len(outcomes)], f"no verdict: {_reason(ran)}"))
    return outcomes + _not_run(problem, len(outcomes))


def _usable(ran: Ran) -> list[list]:
    if ran.ended == "broken":
        raise Broken(ran.detail)
    return list(ran.records)


def _reason(ran: Ran) -> str:
    last = ran.err.strip().splitlines()[-1:]
    return ran.why + (f" ({_short(last[0])})" if last and ran.ended == "exit" else "")


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"


def _not_run(problem: Problem, done: int) -> list[Outcome]:
    return [Outcome(False, visible, "not run") for visible in problem.visible[done:]]


def _drive(judgings: Sequence[_Judging], sandbox: Sandbox) -> list[list[Outcome] | Exception]:
    """Plays what all of them ask for at once, round by round, so that the sandbox is never idle."""
    ended: dict[int, list[Outcome] | Exception] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(judgings)))
    while answers:
        asked: list[tuple[int, list[Run]]] = []
        for index, answer in answers.items():
            try:
                asked.append((index, judgings[index].send(answer)))
            except StopIteration as stop:
                ended[index] = stop.value
            except (BadGold, Broken) as error:
                ended[index] = error
        results = iter(sandbox.run([run for _, runs in asked for run in runs]) if asked else [])
        answers = {index: [next(results) for _ in runs] for index, runs in asked}
    return [ended[index] for index in range(len(judgings))]


# --- the verifier ---------------------------------------------------------------------------------------------------


def score(*, answer: str, gold: Any, **params: Any) -> dict[str, Any]:
    """The verdict on one answer; `score_many` has the parameters."""
    return score_many([(answer, gold)], **params)[0]


def score_many(
    items: Sequence[tuple[str, Any]], *, mode: Literal["all", "fraction"] = "all", extract: Extraction = "last_block",
    seconds: float = 4.0, total_seconds: float = 20.0, memory_mb: int = 256, packages: Sequence[str] = (),
    allow_plain: bool = False, sandbox: Sandbox | None = None, **comparison: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """One verdict per (answer, gold).

    mode: "all" pays 1 if every test passes, else 0; "fraction" pays the passed part of the hidden tests, or of all tests
    where none is hidden. seconds: wall clock of one test; total_seconds: of all calls of one function, or of one set of
    assertions. comparison: rel_tol, abs_tol, exact_types, blanks (docs/sandbox.md). parts: passed, visible and hidden, the
    passed fraction of each; with mode "all", tests after the first failure may not be run, and count as failed.
    """
    limits = Limits(total_seconds, seconds, math.ceil(total_seconds), memory_mb)
    verdicts: dict[int, dict[str, Any]] = {}
    judgings: dict[int, _Judging] = {}
    codes: dict[int, str] = {}
    for index, (answer, gold) in enumerate(items):
        try:
            problem = read_gold(gold, **comparison)
        except BadGold as error:
            verdicts[index] = _unscorable("bad_gold", None, str(error))
            continue
        code = extract_code(answer, problem.entry, extract)
        if code is None:
            verdicts[index] = {"score": 0.0, "cause": None, "extracted": None, "extractable": False,
                               "compared": "the answer has no complete block of code", "parts": {}}  # fmt: skip
            continue
        codes[index] = code
        judgings[index] = _judge(problem, code, limits, mode == "all", False)
    if judgings:
        sandbox = sandbox or shared_sandbox(memory_mb, tuple(packages), allow_plain)
        indices = list(judgings)
        for at in range(0, len(indices), 256):  # the results of all at once would fill the memory
            portion = indices[at : at + 256]
            for index, outcomes in zip(portion, _drive([judgings[index] for index in portion], sandbox)):
                verdicts[index] = _verdict(codes[index], outcomes, mode)
    return [verdicts[index] for index in range(len(items))]


def _verdict(code: str, outcomes: list[Outcome] | Exception, mode: str) -> dict[str, Any]:
    if isinstance(outcomes, Exception):
        return _unscorable("bad_gold" if isinstance(outcomes, BadGold) else "checker_error: sandbox", code, str(outcomes))
    hidden, visible = ([o for o in outcomes if o.visible == shown] for shown in (False, True))
    groups = {"passed": outcomes, "visible": visible, "hidden": hidden}
    parts = {name: sum(o.passed for o in group) / len(group) for name, group in groups.items() if group}
    value = float(parts["passed"] == 1.0) if mode == "all" else parts["hidden" if hidden else "passed"]
    failed = next(((number, o) for number, o in enumerate(outcomes, 1) if not o.passed), None)
    compared = f"{len(outcomes)} of {len(outcomes)} tests passed"
    if failed is not None:
        number, outcome = failed
        compared = f"test {number} of {len(outcomes)} ({'visible' if outcome.visible else 'hidden'}): {outcome.text}"
    return {"score": value, "cause": None, "extracted": code, "extractable": True, "compared": compared, "parts": parts}


def _unscorable(cause: str, code: str | None, detail: str) -> dict[str, Any]:
    verdict = {"score": None, "cause": cause, "extracted": code, "extractable": code is not None}
    return {**verdict, "compared": detail, "parts": {}}


def examine(code: str, gold: Any, *, only_visible: bool = False, seconds: float = 4.0, total_seconds: float = 20.0,
            memory_mb: int = 256, sandbox: Sandbox | None = None, **comparison: Any) -> list[Outcome]:  # fmt: skip
    """Each test's outcome, the visible ones first, none left out after a failure. Raises BadGold, Broken."""
    limits = Limits(total_seconds, seconds, math.ceil(total_seconds), memory_mb)
    judging = _judge(read_gold(gold, **comparison), code, limits, False, only_visible)
    [outcomes] = _drive([judging], sandbox or shared_sandbox(memory_mb))
    if isinstance(outcomes, Exception):
        raise outcomes
    return outcomes


_SHARED: dict[tuple, Sandbox] = {}


def shared_sandbox(memory_mb: int = 256, packages: tuple[str, ...] = (), allow_plain: bool = False) -> Sandbox:
    """This process' own sandbox of that kind, built at the first call. Raises RecipeError where no isolation works."""
    key = (memory_mb, packages, allow_plain, os.getpid())
    if key not in _SHARED:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        limits = Limits(memory_mb=memory_mb)
        _SHARED[key] = Sandbox(cores, limits=limits, packages=packages, allow_plain=allow_plain)
    return _SHARED[key]


def shared_sandboxes() -> list[Sandbox]:
    """Those that this process has built; they count their calls and CPU-seconds."""
    return [sandbox for key, sandbox in _SHARED.items() if key[-1] == os.getpid()]


def warm(memory_mb: int = 256, packages: Sequence[str] = (), allow_plain: bool = False, **_: Any) -> str:
    """Builds the shared sandbox before the first answer comes, and says in words what its walls are. Raises RecipeError."""
    return str(shared_sandbox(memory_mb, tuple(packages), allow_plain).isolation)


# --- checks of the gold ---------------------------------------------------------------------------------------------


def check_gold(gold: Any, **params: Any) -> str | None:
    """What is wrong with the tests, without running anything."""
    comparison = {name: params[name] for name in ("rel_tol", "abs_tol", "exact_types", "blanks") if name in params}
    try:
        refuse_uncompilable(read_gold(gold, **comparison))
    except (BadGold, ValueError, TypeError) as error:
        return str(error)
    return None


_PROBE = "def probe():\n    return 0\n"


def check_tests(gold: Any, *, memory_mb: int = 256, packages: Sequence[str] = (), allow_plain: bool = False,
                **params: Any) -> str | None:  # fmt: skip
    """What running shows without a right answer: tests that cannot judge any, or a prefix that lets none run."""
    try:
        problem = read_gold(gold)
        code = _PROBE
        if problem.kind == "assertions":
            code = _defining(problem.entry, f"{problem.entry.rpartition('.')[2]}(*args, **kwargs)", "raise KeyError", "")
        elif problem.prefix:
            problem = replace(
                problem, kind="functions", entry="probe", tests=({"args": [], "expected": 0},), visible=(True,)
            )
        else:
            return None
        sandbox = shared_sandbox(memory_mb, tuple(packages), allow_plain)
        [outcomes] = _drive([_judge(problem, code, Limits(memory_mb=memory_mb), True, False)], sandbox)
    except BadGold as error:
        return str(error)
    if isinstance(outcomes, Exception):
        return str(outcomes) if isinstance(outcomes, BadGold) else None
    broken = code == _PROBE and not outcomes[0].passed
    return f"prefix cannot be run before the answer: {outcomes[0].text}" if broken else None


def check_solution(gold: Any, **params: Any) -> str | None:
    """What running shows: the gold's solution must pass, twice alike, and code that does nothing must not. None without
    a solution, if the latter holds."""
    texts = [*right(gold), *right(gold), *wrong(gold)]
    num_right = len(right(gold))
    verdicts = score_many([(text, gold) for text in texts], **params)
    scores = [verdict["score"] for verdict in verdicts]
    if None in scores:
        verdict = verdicts[scores.index(None)]
        return f"the tests cannot judge ({verdict['cause']}): {verdict['compared']}"
    first, second, others = scores[:num_right], scores[num_right : 2 * num_right], scores[2 * num_right :]
    if first != second:
        return "the tests are flaky: the gold's own solution got two different scores"
    if any(value != 1.0 for value in first):
        return f"the gold's own solution does not pass its tests: {verdicts[0]['compared']}"
    if any(value > 0.0 for value in others):
        text = texts[2 * num_right + next(i for i, value in enumerate(others) if value > 0.0)]
        return f"the tests accept code that solves nothing: {_short(text)}"
    return None


def right(gold: Any, **params: Any) -> list[str]:
    """The gold's solution as an answer, if it has one."""
    solution = read_gold(gold).solution
    return [_answer(solution)] if solution else []


def wrong(gold: Any, **params: Any) -> list[str]:
    """Answers that must score 0 whatever the tests are, as long as these are worth anything."""
    problem = read_gold(gold)
    texts = ["", "I would write a loop.", "```python\n```"]
    codes = ["import os\nos._exit(0)", "import sys\nsys.exit(0)", "print('all tests passed')"]
    if problem.kind != "programs":
        name = problem.entry.rpartition(".")[2]
        yes = "class Yes:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        bodies = ("import os; os._exit(0)", "raise SystemExit(0)", "return Yes()", "raise StopIteration")
        codes += [_defining(problem.entry, f"{name}(*args, **kwargs)", body, yes) for body in bodies]
    return texts + [_answer(code) for code in codes]


def _defining(entry: str, signature: str, body: str, before: str) -> str:
    owner, _, _ = entry.rpartition(".")
    if not owner:
        return f"{before}def {signature}:\n    {body}\n"
    return f"{before}class {owner}:\n    def {signature}:\n        {body}\n"


def _answer(code: str) -> str:
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code.rstrip()}\n{fence}"

"""Code by tests: what is read as the code, what each kind of test pays, and what pays nothing."""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.sandbox.pool import Sandbox
from milepost.sandbox.runs import Limits, Ran
from milepost.verifiers.code import (
    Broken,
    _drive,
    check_gold,
    check_solution,
    check_tests,
    examine,
    right,
    score,
    score_many,
    shared_sandbox,
    wrong,
)
from milepost.verifiers.code_gold import BadGold, extract_code, read_gold

ADD = {"entry_point": "add", "solution": "def add(a, b):\n    return a + b",
       "tests": [{"args": [1, 1], "expected": 2, "visible": True}, {"args": [2, 3], "expected": 5},
                 {"args": [-1, 1], "expected": 0}, {"args": [0.1], "kwargs": {"b": 0.2}, "expected": 0.3}]}  # fmt: skip
SUM = {"solution": "print(sum(map(int, input().split())))",
       "tests": [{"input": "1 2\n", "output": "3\n", "visible": True}, {"input": "5 6", "output": "11"},
                 {"input": "-1 1\n", "output": "0\n"}]}  # fmt: skip
ASSERTED = {"tests": ["assert add(1, 1) == 2", "assert add(2, 3) == 5", "assert add([1], []) == [1]"],
            "solution": "def add(a, b):\n    return a + b"}  # fmt: skip
HUMAN_EVAL = {
    "task_id": "HumanEval/0", "entry_point": "below", "canonical_solution": "    return [x for x in xs if small(x)]\n",
    "prompt": "def small(x):\n    return x < 10\n\ndef below(xs):\n    '''Those below ten.'''\n",
    "test": "METADATA = {}\n\ndef check(f):\n    assert f([1, 20]) == [1]\n    assert f([small(3)]) == [True]\n",
}  # fmt: skip
MBPP = {"task_id": 1, "text": "Add.", "code": "def add(a, b):\n    return a + b", "test_setup_code": "import math",
        "test_list": ["assert add(1, 2) == 3", "assert math.isclose(add(.1, .2), .3)"]}  # fmt: skip
APPS = {"inputs": ["1 2\n"], "outputs": ["3\n"], "solution": "print(sum(map(int, input().split())))"}
LEET = {"fn_name": "Solution.add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7],
        "solution": "class Solution:\n    def add(self, a, b):\n        return a + b"}  # fmt: skip


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(1, limits=Limits(memory_mb=96)) as sandbox:
        yield sandbox


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{textwrap.dedent(code).strip()}\n```\nIt adds."


def paid(box: Sandbox, code: str, gold: Any, **params: Any) -> float | None:
    return score(answer=fenced(code), gold=gold, sandbox=box, memory_mb=96, **params)["score"]


# --- which code is judged -------------------------------------------------------------------------------------------

A, B, C = "```python\nx = 1\n```\n", "```\nx = 2\n```\n", "~~~py\nx = 3\n~~~\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [(A, "x = 1\n"), (B, "x = 2\n"), (C, "x = 3\n"), (A + C, "x = 3\n"), (A + B, "x = 1\n"), (B + A + B, "x = 1\n"),
     (A + "```python\nx = 9", "x = 1\n"), ("```python\nx = 9", None), ("x = 1", None), ("", None),
     ("``` \n```", None), ("```python\n\n```", None), ("```json\n{}\n```", None), (A + "```json\n{}\n```", "x = 1\n"),
     ("```Python3\nx = 1\n```", "x = 1\n"), ("1. Do\n   ```python\n   if x:\n       y\n   ```\n", "if x:\n    y\n"),
     ("````python\n```\n````", "```\n"), ("```python title=\"a.py\"\nx = 1\n```", "x = 1\n"), ("```x = 1```", None),
     ("```python\nx = 1\n~~~\n```", "x = 1\n~~~\n"), ("<think>" + A + "</think>" + C, "x = 3\n"),
     ("<think>" + A, None), (A + "<think>" + C, None), (A + "</think>" + C, "x = 3\n"),
     (A + "<|im_end|>" + C, "x = 1\n"), ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"), ("    return x\n", None)],
)  # fmt: skip
def test_the_last_complete_block_counts(text: str, found: str | None) -> None:
    assert extract_code(text) == found


def test_a_block_that_defines_the_function_comes_before_one_that_uses_it() -> None:
    codes = ("def add(a, b): return a", "def add(a, b): return a + b", "print(add(1, 2))")
    text = "\n".join(f"```python\n{code}\n```" for code in codes)
    assert extract_code(text, "add") == "def add(a, b): return a + b\n"
    assert extract_code(text) == "print(add(1, 2))\n"
    assert extract_code("```\nclass S:\n    pass\n```\n```\nS().f()\n```", "S.f") == "class S:\n    pass\n"
    assert extract_code("```\nadd = lambda a, b: a\n```\n```\nadd(1, 2) == 3\n```", "add") == "add = lambda a, b: a\n"
    assert extract_code("```\nadditional = 1\n```\n```\nx\n```", "add") == "x\n"


def test_no_line_takes_long_to_read() -> None:
    """Each of these takes minutes where a pattern tries all splits of the line."""
    num = 400_000
    for line in ("```" + " " * num + "`", "~" * num + "`", "`" * num + "x`", " " * num + "x", "`" * num):
        assert extract_code(A + line + "\n" + "def" + " " * 90_000, "add") == "x = 1\n"


def test_separators_that_are_no_line_ends_stay_in_the_code() -> None:
    assert extract_code("```python\nx = '\x0c\u2028\x85'\n```") == "x = '\x0c\u2028\x85'\n"


@pytest.mark.parametrize("tag", ["python", "Python", "py", "PY3", "python3.11", "python:a.py", "{python}", "{.python}"])
def test_a_block_is_marked_as_python_in_many_ways(tag: str) -> None:
    assert extract_code(f"```{tag}\nx = 1\n```\n{B}") == "x = 1\n"


@pytest.mark.parametrize("tag", ["pycon", "pytest", "json", "text", "js", "cython", "output"])
def test_a_block_of_another_language_is_none(tag: str) -> None:
    assert extract_code(f"```{tag}\nx = 1\n```\n") is None
    assert extract_code(f"```{tag}\nx = 1\n```\n{B}") == "x = 2\n"


def test_other_policies() -> None:
    assert extract_code("return 1", policy="whole") == "return 1"
    assert extract_code(" \n", policy="whole") is None
    assert extract_code("x = 1", policy="block_or_whole") == "x = 1"
    assert extract_code(A, policy="block_or_whole") == "x = 1\n"
    assert extract_code("```python\nx = 9", policy="block_or_whole") is None  # a block was begun and not finished


PIECES = ["```", "````", "~~~", "python", "\n", "x = 1", " ", "<think>", "</think>", "<|im_end|>", "é"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_text_has_code_or_none(text: str) -> None:
    for policy in ("last_block", "block_or_whole", "whole"):
        found = extract_code(text, "add", policy)
        assert found is None or found.strip()


# --- what is paid ---------------------------------------------------------------------------------------------------

VARIANTS = tomllib.loads((Path(__file__).parent / "code_variants.toml").read_text())


@pytest.mark.parametrize(("kind", "wanted"), [("honest", 1.0), ("wrong", 0.0)])
def test_every_honest_variant_is_paid_and_nothing_else(box: Sandbox, kind: str, wanted: float) -> None:  # case D38
    pairs = [(fenced(variant["code"]), globals()[variant["gold"]]) for variant in VARIANTS[kind]]
    assert len(pairs) > 25
    verdicts = score_many(pairs, sandbox=box, memory_mb=96)
    assert [(v["extracted"], v["compared"]) for v in verdicts if v["score"] != wanted] == []
    assert all(verdict["cause"] is None and verdict["extractable"] for verdict in verdicts)


def test_a_verdict_holds_what_was_read_and_what_was_compared(box: Sandbox) -> None:
    verdict = score(answer=fenced("def add(a, b):\n    return 2"), gold=json.dumps(ADD), sandbox=box)
    assert verdict == {
        "score": 0.0, "cause": None, "extracted": "def add(a, b):\n    return 2\n", "extractable": True,
        "compared": "test 2 of 4 (hidden): add(2, 3): 2, expected 5",
        "parts": {"passed": 0.25, "visible": 1.0, "hidden": 0.0},
    }  # fmt: skip
    assert json.dumps(verdict)
    verdict = score(answer="I would add them.", gold=ADD, sandbox=box)
    assert (verdict["score"], verdict["extractable"], verdict["extracted"], verdict["cause"]) == (0.0, False, None, None)


def test_fraction_pays_the_hidden_tests_that_pass(box: Sandbox) -> None:
    """Of three hidden tests a + b fails none, a function for a ≥ 0 one, one that knows the visible test alone all."""
    for code, value in (("return a + b", 1.0), ("return a + b if a >= 0 else None", 2 / 3), ("return 2", 0.0)):
        assert paid(box, f"def add(a, b):\n    {code}", ADD, mode="fraction") == pytest.approx(value)
    assert paid(box, "a, b = map(int, input().split())\nprint(a + b if a > 0 else 7)", SUM, mode="fraction") == 0.5
    code = "def add(a, b):\n    return 2 if a == 1 else a + b if a == 2 else 0"
    assert paid(box, code, ASSERTED, mode="fraction") == pytest.approx(2 / 3)
    shown = {**ADD, "tests": [{**test, "visible": True} for test in ADD["tests"]]}  # type: ignore[union-attr]
    assert paid(box, "def add(a, b):\n    return 2", shown, mode="fraction") == 0.25


@pytest.mark.parametrize("end", ["os._exit(0)", "time.sleep(60)", "os.abort()", "sys.exit()"])
def test_a_test_that_ends_or_stops_the_process_costs_itself_alone(box: Sandbox, end: str) -> None:
    code = f"import os, sys, time\ndef add(a, b):\n    if a == -1:\n        {end}\n    return a + b"
    assert paid(box, code, ADD, mode="fraction", seconds=0.5) == pytest.approx(2 / 3)
    assert paid(box, code, ADD, mode="all", seconds=0.5) == 0.0


def test_other_expectations(box: Sandbox) -> None:
    gold = {"entry_point": "f", "tests": [
        {"args": [-1], "raises": "ValueError"}, {"args_literal": "([3, 1, 2],)", "expected_args": [[1, 2, 3]]},
        {"args_literal": "({1, 2},)", "expected_literal": "{1: (2, {3})}"},
    ]}  # fmt: skip
    good = """
        def f(x):
            if x == -1:
                raise UnicodeDecodeError("utf-8", b"", 0, 1, "is a ValueError")
            if isinstance(x, list):
                x.sort()
            return {1: (2, {3})}
    """
    assert paid(box, good, gold) == 1.0
    for old, new in (("UnicodeDecodeError", "OSError"), ("x.sort()", "sorted(x)"), ("(2, {3})", "(2, [3])")):
        assert paid(box, good.replace(old, new), gold) == 0.0
    exact = {"entry_point": "f", "tests": [{"args": [], "expected": [1]}]}
    assert paid(box, "def f(): return (1,)", exact) == 1.0
    assert paid(box, "def f(): return (1,)", exact, exact_types=True) == 0.0


OWN = "class {0}(Exception): pass\ndef f(x): raise {0}"
LYING = """
class Says(type):
    __name__ = property(lambda kind: "ZeroDivisionError")
class Own(Exception, metaclass=Says): pass
def f(x): raise Own
"""


@pytest.mark.parametrize(
    ("code", "raises", "expected"),
    [
        ("def f(x): 1 / 0", "ZeroDivisionError", 1),
        ("def f(x): 1 / 0", "ArithmeticError", 1),  # as `except ArithmeticError` would catch it
        ("class Own(ZeroDivisionError): pass\ndef f(x): raise Own", "ZeroDivisionError", 1),
        (OWN.format("ZeroDivisionError"), "ZeroDivisionError", 0),
        ("import builtins\n" + OWN.format("KeyError") + "\nbuiltins.KeyError = KeyError", "KeyError", 0),
        (LYING, "ZeroDivisionError", 0),
        ("def f(x): open('/nowhere')", "IOError", 1),  # another name of OSError
        ("import json\ndef f(x): json.loads('{')", "json.JSONDecodeError", 1),
        ("import json\ndef f(x): json.loads('{')", "json.decoder.JSONDecodeError", 1),
        ("import json\ndef f(x): json.loads('{')", "JSONDecodeError", 1),
        (OWN.format("JSONDecodeError"), "json.JSONDecodeError", 0),
        (OWN.format("JSONDecodeError") + "\nJSONDecodeError.__module__ = 'json.decoder'", "json.JSONDecodeError", 0),
        (OWN.format("Empty"), "Empty", 1),  # where the task asks for a class of that name
    ],
)
def test_an_exception_is_that_class_and_not_one_of_its_name(box: Sandbox, code: str, raises: str, expected: int) -> None:
    assert paid(box, code, {"entry_point": "f", "tests": [{"args": [0], "raises": raises}]}) == expected


def test_assertions_too_catch_the_built_in_exception_alone(box: Sandbox) -> None:
    gold = {"entry_point": "f", "tests": ["try:\n    f(0)\n    assert False\nexcept ZeroDivisionError:\n    pass"]}
    assert paid(box, "def f(x): 1 / 0", gold) == 1
    assert paid(box, OWN.format("ZeroDivisionError"), gold) == 0


def test_tolerance_is_stated_by_gold_or_recipe(box: Sandbox) -> None:  # case D42
    third = {"entry_point": "f", "tests": [{"args": [], "expected": 0.3333333333}]}
    code = "def f(): return 0.333"
    assert paid(box, code, third) == 0.0
    assert paid(box, code, third, rel_tol=0.01) == 1.0
    assert paid(box, code, {**third, "abs_tol": 0.001}, rel_tol=0.0) == 1.0
    printed = {"tests": [{"input": "", "output": "3 3\n"}]}
    assert paid(box, "print('3.0000001 2.9999999  ')\nprint()", printed, rel_tol=1e-6) == 1.0
    assert paid(box, "print('3.0000001 2.9999999')", printed) == 0.0
    assert paid(box, "print('3\\n3')", printed, rel_tol=1e-6) == 0.0
    assert paid(box, "print(' 3   3')", printed) == 0.0
    assert paid(box, "print(' 3   3')", printed, blanks="any") == 1.0


def test_the_function_cannot_change_what_a_test_computes_its_expectation_from(box: Sandbox) -> None:
    gold = {"entry_point": "f", "tests": ["xs = [3, 1]\nassert f(xs) == sorted(xs)"]}
    assert paid(box, "def f(xs): return sorted(xs)", gold) == 1.0
    assert paid(box, "def f(xs):\n    xs.clear()\n    return []", gold) == 0.0
    changed = {"entry_point": "f", "in_place": True, "tests": ["xs = [3, 1]\nf(xs)\nassert xs == [1, 3]"]}
    assert paid(box, "def f(xs): xs.sort()", changed) == 1.0
    assert paid(box, "def f(xs): pass", changed) == 0.0


LOOSE = [
    "assert all(map(f, [1, 2]))", "for x in (1, 2):\n    assert f(x)", "assert f(1)", "assert f(1) or False",
    "assert not f(1) is None and f(2)", "assert f(1) == f(1) == True", "assert [f(x) for x in (1, 2)] == [True, True]",
    "try:\n    assert f(1)\nexcept TypeError:\n    raise",
]  # fmt: skip
TRICKS = ["raise StopIteration", "raise GeneratorExit", "return Yes()", "os._exit(0)", "return (0 for _ in iter(int, 1))"]


@pytest.mark.parametrize("body", TRICKS)
def test_loosely_written_assertions_pay_no_trick(box: Sandbox, body: str) -> None:  # case D39
    yes = "class Yes:\n    def __eq__(self, o): return True\n    def __bool__(self): return True"
    code = f"import os\n{yes}\ndef f(x):\n    {body}"
    items = [(fenced(code), {"entry_point": "f", "tests": [test]}) for test in LOOSE]
    assert [verdict["score"] for verdict in score_many(items, sandbox=box)] == [0.0] * len(LOOSE)


# --- golds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gold", [ADD, SUM, ASSERTED, HUMAN_EVAL, MBPP, APPS, LEET])
def test_every_kind_of_gold_is_read_and_passes_its_own_checks(box: Sandbox, gold: dict) -> None:  # case D45
    assert check_gold(gold) is None
    assert check_solution(gold, sandbox=box) is None
    assert [score(answer=text, gold=gold, sandbox=box)["score"] for text in right(gold)] == [1.0]
    assert {verdict["score"] for verdict in score_many([(text, gold) for text in wrong(gold)], sandbox=box)} == {0.0}


@pytest.mark.parametrize(
    ("gold", "sentence"),
    [(7, "a table with tests, not int"), ("no json", "not JSON"), ({}, "has no tests"),
     ({"tests": []}, "has no tests"), ({"tests": [3]}, "neither args and expected"),
     ({"tests": [{"args": [1]}], "entry_point": "f"}, "neither args and expected"),
     ({"tests": [{"args": [1], "expected": 1}]}, "entry_point '' is no name"),
     ({"tests": ["assert f(1)"], "entry_point": "f(x)"}, "is no name"),
     ({"tests": ["assert f("], "entry_point": "f"}, "test 1 is no Python"),
     ({"tests": ["x = 1"]}, "entry_point '' is no name"),
     ({"tests": ["assert f(1)", {"input": "", "output": ""}]}, "several kinds"),
     ({"inputs": ["1"], "outputs": []}, "1 inputs but 0 outputs"),
     ({"inputs": 1, "outputs": 3}, "inputs and outputs must be lists"), ("[" * 100_000, "not JSON"),
     ({"tests": [{"args": [1], "expected": 1}], "entry_point": "f", "rel_tol": "small"}, "rel_tol 'small' is no number"),
     ({"tests": [{"args": [1], "expected": 1}], "entry_point": "f", "abs_tol": float("nan")}, "abs_tol 'nan' is no number"),
     ({"tests": [{"input": "1", "output": "1"}], "blanks": "none"}, "blanks 'none' is neither"),
     ({"tests": [{"args": 3, "expected": 1}], "entry_point": "f"}, "args must be a list"),
     ({"tests": "assert f(1)", "prefix": "def"}, "prefix is no Python"),
     ({"tests": [{"input": "1", "output": "1"}], "prefix": "Write it."}, "prefix is no Python"),
     ({"input_output": "no tests"}, "input_output is text, but not JSON"), ({"input_output": "[1]"}, "not list"),
     ({"input_output": ""}, "has no tests"), ({"inputs": [["1", 2]], "outputs": ["3"]}, "neither args and expected"),
     ({"tests": "assert f(1)", "test_imports": [1]}, "test_imports must be a list of lines"),
     ({"tests": [{"args_literal": "f(x)", "expected": 1}], "entry_point": "f"}, "is no Python literal"),
     ({"tests": [{"args": [], "kwargs": [], "expected": 1}], "entry_point": "f"}, "kwargs must be a table")],
)  # fmt: skip
def test_a_bad_gold_is_told_in_a_sentence_and_scores_nobody(gold: Any, sentence: str) -> None:
    assert sentence in (check_gold(gold) or "")
    if "no Python:" not in (check_gold(gold) or ""):  # those are found at load, not with each answer
        verdict = score(answer=fenced("def f(x): return x"), gold=gold)
        assert (verdict["score"], verdict["cause"]) == (None, "bad_gold")


def test_outputs_that_are_all_lists_of_one_are_met_by_the_list_or_by_what_it_holds(box: Sandbox) -> None:
    row = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[2], [3]]}
    returns = {"x + 1": 1, "[x + 1]": 1, "(x + 1,)": 1, "x": 0, "[[x + 1]]": 0, "[x + 1, x + 1]": 0, "{x + 1}": 0, "[]": 0}
    assert {body: paid(box, f"def f(x): return {body}", row) for body in returns} == returns
    verdict = score(answer=fenced("def f(x): return x"), gold=row, sandbox=box)
    assert verdict["compared"] == "test 1 of 2 (hidden): f(1): 1, expected [2] or 2"
    assert paid(box, "def f(x): return [x, x]", row | {"outputs": [[[1, 1]], [[2, 2]]]}) == 1
    # One longer list says that lists are meant, and so do tests with expected.
    lists = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 1]]}
    assert (paid(box, "def f(x): return [1] * x", lists), paid(box, "def f(x): return 1", lists)) == (1, 0)
    named = {"entry_point": "f", "tests": [{"args": [1], "expected": [2]}], "inputs": "more"}
    assert (paid(box, "def f(x): return [2]", named), paid(box, "def f(x): return 2", named)) == (1, 0)


def test_a_test_may_have_keywords_alone(box: Sandbox) -> None:
    gold = {"entry_point": "f", "tests": [{"kwargs": {"a": 5, "b": 2}, "expected": 3}, {"kwargs": {}, "expected": 0}]}
    assert paid(box, "def f(*, a=0, b=0): return a - b", gold) == 1
    assert paid(box, "def f(*, a=0, b=0): return b - a", gold) == 0
    verdict = score(answer=fenced("def f(a=0, b=0): return 1"), gold=gold, sandbox=box)
    assert verdict["compared"] == "test 1 of 2 (hidden): f(a=5, b=2): 1, expected 3"
    changed = {"entry_point": "f", "tests": [{"kwargs": {"a": [1]}, "expected_args": []}]}
    assert paid(box, "def f(a): pass", changed) == 1
    assert "neither args and expected" in str(check_gold({"entry_point": "f", "tests": [{"expected": 3}]}))


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (["assert ff(1)"], "NameError"),
        (["pass"], "never calls"),
        (["assert f(1) == 1", "assert len([]) == 0"], "never calls"),
    ],
)
def test_tests_that_judge_nothing_are_unscorable_not_passed(box: Sandbox, tests: list[str], reason: str) -> None:
    verdict = score(answer=fenced("def f(x): return x"), gold={"entry_point": "f", "tests": tests}, sandbox=box)
    assert (verdict["score"], verdict["cause"]) == (None, "bad_gold")
    assert reason in verdict["compared"]
    assert "cannot judge" in (check_solution({"entry_point": "f", "tests": tests}, sandbox=box) or "")


def test_running_finds_what_reading_cannot(box: Sandbox) -> None:  # cases D45, D46
    wrong_solution = {**ADD, "solution": "def add(a, b):\n    return 2"}
    assert "own solution does not pass" in (check_solution(wrong_solution, sandbox=box) or "")
    chance = "import random\ndef f(): return random.randrange(2)"
    flaky = {"entry_point": "f", "solution": chance, "tests": ["assert f() == 1"] * 12}
    found = {check_solution(flaky, sandbox=box, mode="fraction") for _ in range(4)}
    assert any("flaky" in (sentence or "") for sentence in found)  # four times the same count twice: 1 in 1,500
    lenient = {"tests": [{"input": "", "output": ""}]}
    assert "accept code that solves nothing" in (check_solution(lenient, sandbox=box) or "")
    broken = {"tests": ["assert f(1)"], "entry_point": "f", "setup": "import no_such_module"}
    assert "setup or prefix cannot be run" in (check_solution(broken, sandbox=box) or "")


def test_each_test_can_be_seen_alone(box: Sandbox) -> None:
    outcomes = examine("def add(a, b): return a + b if a > 0.5 else 7", ADD, sandbox=box)
    assert [(o.passed, o.visible) for o in outcomes] == [(True, True), (True, False), (False, False), (False, False)]
    [shown] = examine("def add(a, b): return 3", ADD, only_visible=True, sandbox=box)
    assert shown.text == "add(1, 1): 3, expected 2"
    with pytest.raises(BadGold):
        examine("x", {}, sandbox=box)


def test_a_sandbox_that_fails_is_an_unscorable_answer() -> None:
    class Down(Sandbox):
        def __init__(self) -> None:
            pass

        def run(self, runs: Any) -> list[Ran]:
            return [Ran("broken", detail="no cell") for _ in runs]

    verdict = score(answer=fenced("def add(a, b): return a + b"), gold=ADD, sandbox=Down())
    assert (verdict["score"], verdict["cause"], verdict["compared"]) == (None, "checker_error: sandbox", "no cell")
    with pytest.raises(Broken):
        examine("x = 1", ADD, sandbox=Down())


def test_functions_may_be_chatty_but_programs_may_not(box: Sandbox) -> None:
    assert paid(box, "def add(a, b):\n    print('x' * 300_000)\n    return a + b", ADD) == 1.0
    assert paid(box, "def add(a, b):\n    return 'x' * 300_000", ADD) == 0.0
    verdict = score(answer=fenced("print('x' * 300_000)"), gold=SUM, sandbox=box)
    assert verdict["score"] == 0.0 and "printed too much" in verdict["compared"]


def test_a_method_of_solution_is_found_by_its_bare_name(box: Sandbox) -> None:
    code = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert [paid(box, code, gold) for gold in (ADD, ASSERTED)] == [1.0, 1.0]
    assert [paid(box, code.replace("add", "sub"), gold) for gold in (ADD, ASSERTED)] == [0.0, 0.0]


def test_imports_from_the_future_stand_before_the_prefix(box: Sandbox) -> None:
    code = """
        from __future__ import annotations
        def below(xs: Nothing) -> No:
            return [x for x in xs if x < 10]
    """
    assert paid(box, code, HUMAN_EVAL) == 1.0


def test_more_records_than_calls_do_no_harm(box: Sandbox) -> None:
    code = r"""
        import os
        os.write(3, b"".join(b'[%d, "value", 2, null]\n' % i for i in range(-1, 500)))
        def add(a, b):
            return a + b
    """
    assert paid(box, code, ADD) == 0.0
    assert paid(box, code, ADD, mode="fraction") == 0.0


def test_two_hundred_right_answers_at_once() -> None:
    with Sandbox(2, limits=Limits(memory_mb=96)) as box:
        items = [(fenced(f"def add(a, b):\n    return a + b  # {number}"), ADD) for number in range(200)]
        assert [verdict["score"] for verdict in score_many(items, sandbox=box)] == [1.0] * 200


def test_gold_is_read_the_same_from_json_and_with_visible_tests_first() -> None:
    gold = {"entry_point": "f", "tests": [{"args": [1], "expected": 1}, {"args": [2], "expected": 2, "visible": True}]}
    problem = read_gold(json.dumps(gold))
    assert problem == read_gold(gold)
    assert [test["args"] for test in problem.tests] == [[2], [1]] and problem.visible == (True, False)
    assert read_gold(HUMAN_EVAL).prefix == HUMAN_EVAL["prompt"] and read_gold(MBPP).entry == "add"
    assert _drive([], None) == []  # type: ignore[arg-type]


def test_one_sandbox_per_kind_is_shared() -> None:
    assert shared_sandbox() is shared_sandbox(256)
    assert score(answer=fenced("def add(a, b): return a + b"), gold=ADD)["score"] == 1.0


def test_names_of_typing_are_there_where_the_code_takes_them_for_granted(box: Sandbox) -> None:
    body = "class Solution:\n    def add(self, a: List[int], b: Optional[int] = None) -> List[int]:\n        return a + [b]"
    gold = {"fn_name": "Solution.add", "inputs": [[[1], 2]], "outputs": [[1, 2]]}
    future = "from __future__ import annotations\n"
    for code in (body, future + body, "from typing import List, Optional\n" + body):
        assert score(answer=f"```python\n{code}\n```", gold=gold, sandbox=box)["score"] == 1
    own = (
        body.replace("class", "class List(list):\n    pass\n\nclass")
        .replace("List[int]", "'Missing'")
        .replace("[b]", "List([b])")
    )
    assert score(answer=f"```python\n{own}\n```", gold=gold, sandbox=box)["score"] == 1
    unknown = body.replace("Optional", "Perhaps")
    assert "Perhaps" in score(answer=f"```python\n{unknown}\n```", gold=gold, sandbox=box)["compared"]


def test_a_fence_in_a_docstring_closes_nothing() -> None:
    code = 'def f(n):\n    """Doubles.\n\n    ```\n    f(3)\n    ```\n    """\n    return 2 * n\n'
    assert extract_code(f"```python\n{code}```\nDone.", "f") == code
    assert extract_code(f"1. First\n   ```python\n{textwrap.indent(code, '   ')}   ```\n", "f") == code


def test_standard_streams_have_mode_and_name(box: Sandbox) -> None:
    code = "import sys\nassert (sys.stdin.mode, sys.stdout.mode, sys.stdin.name) == ('r', 'w', '<stdin>')\nprint(input())"
    assert paid(box, code, {"inputs": ["5\n"], "outputs": ["5\n"]}) == 1


# --- rows as they are -------------------------------------------------------------------------------------------------

PLUS = {"entry_point": "add", "tests": [{"args": [1, 2], "expected": 3}]}
PLUS_ASSERTED = {"test_list": ["assert add(1, 2) == 3"]}


@pytest.mark.parametrize("prompt", ["Write add(a, b).", "Write", "x", "", "'Write add.'", "print('hello')",
                                    "Write:\n\nimport os", "raise",
                                    "for each in numbers:", "add(", "[" * 5000, 7, ["Write"]])  # fmt: skip
@pytest.mark.parametrize("gold", [PLUS, PLUS_ASSERTED])
def test_a_prompt_in_words_is_never_run(box: Sandbox, prompt: Any, gold: Any) -> None:
    gold = {"prompt": prompt, **gold}
    assert check_gold(gold) is None and read_gold(gold).prefix == ""
    assert [paid(box, f"def add(a, b): return a {sign} b", gold) for sign in "+-"] == [1.0, 0.0]


@pytest.mark.parametrize("prompt", [
    "import math", "from math import gcd\n", "def add(a, b):", "def add(a, b):\n    # the sum\n",
    "def add(a, b):\n    'The sum.'\n",
    "import math\n\nclass Adder:\n    def add(self):\n", "def one():\n    return 1\n\n\nasync def other():",
])  # fmt: skip
@pytest.mark.parametrize("gold", [PLUS, PLUS_ASSERTED])
def test_a_prompt_that_begins_the_code_goes_before_it(box: Sandbox, prompt: str, gold: Any) -> None:
    gold = {"prompt": prompt, **gold}
    assert check_gold(gold) is None and read_gold(gold).prefix == prompt
    assert [paid(box, f"def add(a, b): return a {sign} b", gold) for sign in "+-"] == [1.0, 0.0]
    going_on = score(answer="```python\n    return a + b\n```", gold=gold, sandbox=box)["score"]
    assert going_on == float(prompt.startswith("def add"))


SANITIZED = {"prompt": "Write a function for the area.",
             "code": "import math\ndef area(r):\n    return math.pi * r * r",
             "test_imports": ["import math"],
             "test_list": ["assert math.isclose(area(1), math.pi, rel_tol=1e-3)"]}  # fmt: skip


def test_the_imports_of_a_row_of_mbpp_run_before_its_tests(box: Sandbox) -> None:
    right_one = "from math import pi\ndef area(r): return pi * r ** 2"
    assert check_gold(SANITIZED) is check_solution(SANITIZED, sandbox=box) is None
    for imports in (["import math"], "import math"):
        assert paid(box, right_one, {**SANITIZED, "test_imports": imports}) == 1.0
    both = {**SANITIZED, "test_imports": [], "test_setup_code": "import math"}
    assert paid(box, right_one, both) == 1.0 and paid(box, right_one.replace("2", "3 * 2"), both) == 0.0
    assert paid(box, right_one, {**SANITIZED, "test_imports": []}) is None


READS = "n = int(input())\nprint(sum(map(int, input().split())))"


@pytest.mark.parametrize("tests", [
    {"inputs": ["3\n1 2 3\n", "1\n5"], "outputs": ["6\n", "5"]},
    {"inputs": [["3", "1 2 3"], ["1", "5"]], "outputs": [["6"], ["5"]]},
])  # fmt: skip
def test_rows_of_apps_as_text_and_as_lists_of_lines(box: Sandbox, tests: Any) -> None:
    for gold in (
        tests,
        {"prompt": "Sum them.", "input_output": json.dumps(tests), "starter_code": ""},
        {"input_output": tests},
    ):
        assert check_gold(gold) is None
        assert [paid(box, code, gold) for code in (READS, READS.replace("sum", "max"))] == [1.0, 0.0]
    named = {"question": "q", "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]})}
    assert [paid(box, f"def add(a, b): return a {sign} b", named) for sign in "+-"] == [1.0, 0.0]
    assert read_gold({**PLUS, "input_output": "of another kind"}).kind == "functions"  # tests of its own win


@pytest.mark.parametrize(("gold", "says"), [
    ({"prefix": "import no_such_module", **PLUS}, "prefix cannot be run before the answer: not loaded"),
    ({"prefix": "import no_such_module", "tests": [{"input": "", "output": "1"}]}, "prefix cannot be run before"),
    ({"prefix": "import no_such_module", **PLUS_ASSERTED}, "setup or prefix cannot be run"),
    ({**SANITIZED, "test_imports": []}, "test 1 does not judge the function"), ({"tests": []}, "has no tests"),
    ({"tests": ["assert add(1, 2) == 3", "assert True"]}, "it never calls it"),
    (ADD, None), (SUM, None), (ASSERTED, None), (HUMAN_EVAL, None), (MBPP, None), (APPS, None), (LEET, None),
    (SANITIZED, None),
    ({"prefix": "import math", **PLUS}, None), ({"prefix": "import math", "tests": [{"input": "", "output": "1"}]}, None),
])  # fmt: skip
def test_running_finds_tests_that_cannot_judge_without_a_solution(gold: Any, says: str | None) -> None:
    found = check_tests(gold)
    assert found is None if says is None else says in (found or "")

"""What a gold for code holds, and which code of an answer is judged. `code.py` judges it."""

from __future__ import annotations

import ast
import builtins
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from milepost.verifiers.code_same import Rule

MAX_CHARACTERS = 500_000
_TAG = re.compile(r"\{?\.?(?:python[\d.]*|py3?)(?![a-z])", re.IGNORECASE)
Extraction = Literal["last_block", "block_or_whole", "whole"]


class BadGold(ValueError):
    """The tests themselves cannot judge anything. The message is one sentence."""


# --- the tests ------------------------------------------------------------------------------------------------------


_RULE = Rule()
_TESTS = ("inputs", "outputs", "tests", "test_list", "test")
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Problem:
    """A gold, checked. `tests` are dicts (functions, programs) or texts (assertions), the visible ones first."""

    kind: str
    """functions, programs or assertions."""
    tests: tuple[Any, ...]
    visible: tuple[bool, ...]
    entry: str = ""
    prefix: str = ""
    setup: str = ""
    solution: str = ""
    in_place: bool = False
    wrapped: bool = False
    """Of a row with `inputs` and `outputs` every output is a list of one: the value may be that list or what it holds."""
    rule: Rule = _RULE
    blanks: str = "trailing"


def read_gold(gold: Any, *, rel_tol: float | None = None, abs_tol: float | None = None, exact_types: bool = False,
              blanks: str = "trailing") -> Problem:  # fmt: skip
    """The gold as a Problem. A gold's own rel_tol, abs_tol and blanks win. Raises BadGold."""
    if isinstance(gold, str):
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, nested too deeply
            raise BadGold("the gold is text, but not JSON") from None
    if not isinstance(gold, Mapping):
        raise BadGold(f"a gold for code is a table with tests, not {type(gold).__name__}")
    gold = _unpacked(gold)
    tests = _list_tests(gold)
    if not tests:
        raise BadGold("the gold has no tests")
    kinds = {_kind(test) for test in tests}
    if len(kinds) > 1:
        raise BadGold(f"the gold mixes tests of several kinds ({', '.join(sorted(kinds))})")
    kind = kinds.pop()
    shown = [isinstance(test, Mapping) and bool(test.get("visible")) for test in tests]
    order = sorted(range(len(tests)), key=lambda i: not shown[i])
    plain = [test["test"] if kind == "assertions" and isinstance(test, Mapping) else test for test in tests]
    rel_tol, abs_tol = (
        _tolerance(gold.get(name, usual), name) for name, usual in (("rel_tol", rel_tol), ("abs_tol", abs_tol))
    )
    blanks = gold.get("blanks", blanks)
    if blanks not in ("trailing", "any"):
        raise BadGold(f'blanks {str(blanks)[:60]!r} is neither "trailing" nor "any"')
    rule = Rule(exact=exact_types)
    if rel_tol is not None or abs_tol is not None:
        rule = Rule(rel_tol or 0.0, abs_tol or 0.0, stated=True, exact=exact_types)
    return Problem(
        kind,
        tuple(_literals(plain[i]) for i in order),
        tuple(shown[i] for i in order),
        _entry(gold, kind, plain),
        prefix=_prefix(gold),
        setup=_setup(gold),
        solution=_first(gold, "solution", "canonical_solution", "code"),
        in_place=bool(gold.get("in_place")),
        wrapped=kind == "functions" and _all_wrapped(gold),
        rule=rule,
        blanks=blanks,
    )


def _tolerance(given: Any, name: str) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1e300:
        raise BadGold(f"{name} {str(given)[:60]!r} is no number, 0 or more")
    return float(given)


def _first(gold: Mapping[str, Any], *names: str) -> str:
    return next((str(gold[name]) for name in names if gold.get(name)), "")


def _unpacked(gold: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the tests that rows of APPS and TACO hold as JSON text in `input_output`."""
    packed = gold.get("input_output")
    if not packed or any(gold.get(name) for name in _TESTS):
        return gold
    if isinstance(packed, str):
        try:
            packed = json.loads(packed)
        except (ValueError, RecursionError):
            raise BadGold("input_output is text, but not JSON") from None
    if not isinstance(packed, Mapping):
        raise BadGold(f"input_output must hold a table with inputs and outputs, not {type(packed).__name__}")
    return {**gold, **packed}


def _prefix(gold: Mapping[str, Any]) -> str:
    """`prefix` is code by its name. A row's prompt is a task in words, unless it begins the code as HumanEval's does."""
    prompt = gold.get("prompt")
    return _first(gold, "prefix") or (prompt if isinstance(prompt, str) and _begins_code(prompt) else "")


def _begins_code(text: str) -> bool:
    """Whether it is Python that defines or imports something. The word "Write" is Python as well, and does neither."""
    try:
        return any(isinstance(node, _DEFINES) for node in ast.parse(closed(text)).body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def closed(text: str) -> str:
    """With a body for a last function that has none yet, as in a prompt to go on from; else as it is."""
    indents = re.findall(r"^([ \t]*)\S", text, re.MULTILINE)
    deeper = f"{text.rstrip()}\n{indents[-1] if indents else ''}    pass\n"
    for one in (text, deeper):
        try:
            ast.parse(one)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        return one
    return text


def _setup(gold: Mapping[str, Any]) -> str:
    """What runs before assertions: the imports of MBPP's rows stand in a list of their own."""
    imports = gold.get("test_imports") or ()
    if isinstance(imports, str):
        imports = [imports]
    if not isinstance(imports, Sequence) or not all(isinstance(line, str) for line in imports):
        raise BadGold("test_imports must be a list of lines of Python")
    return "\n".join([*imports, *filter(None, [_first(gold, "setup", "test_setup_code")])])


def _list_tests(gold: Mapping[str, Any]) -> list[Any]:
    if "inputs" in gold and "outputs" in gold:
        inputs, outputs = gold["inputs"], gold["outputs"]
        if not isinstance(inputs, (list, tuple)) or not isinstance(outputs, (list, tuple)):
            raise BadGold("inputs and outputs must be lists, one entry per test")
        if len(inputs) != len(outputs):
            raise BadGold(f"the gold has {len(inputs)} inputs but {len(outputs)} outputs")
        if gold.get("fn_name") or gold.get("entry_point"):
            return [dict(zip(("args", "expected"), pair)) for pair in zip(inputs, outputs)]
        return [dict(zip(("input", "output"), map(_joined, pair))) for pair in zip(inputs, outputs)]
    tests = gold.get("tests", gold.get("test_list", gold.get("test", [])))
    return [tests] if isinstance(tests, str) else list(tests) if isinstance(tests, Sequence) else []


def _joined(lines: Any) -> Any:
    """A program's input or output that is given as a list of lines, as some rows of APPS and TACO have it."""
    is_list = isinstance(lines, (list, tuple)) and all(isinstance(line, str) for line in lines)
    return "\n".join(lines) if is_list else lines


def _all_wrapped(gold: Mapping[str, Any]) -> bool:
    """Rows of APPS and TACO hold [5] for a function that returns 5 and for one that returns [5]: nothing tells which."""
    if "inputs" not in gold or "outputs" not in gold:
        return False
    return all(isinstance(output, list) and len(output) == 1 for output in gold["outputs"])


def _kind(test: Any) -> str:
    if isinstance(test, str) or (isinstance(test, Mapping) and isinstance(test.get("test"), str)):
        return "assertions"
    if isinstance(test, Mapping) and isinstance(test.get("output"), str) and isinstance(test.get("input", ""), str):
        return "programs"
    wants = ("expected", "expected_literal", "expected_args", "raises")
    given = ("args", "args_literal", "kwargs")
    if isinstance(test, Mapping) and any(key in test for key in wants) and any(key in test for key in given):
        return "functions"
    raise BadGold("a test has neither args and expected, nor kwargs and expected, nor input and output, nor an assertion")


def _literals(test: Any) -> Any:
    if not isinstance(test, Mapping):
        return test
    test = dict(test)
    for key in ("args", "expected"):
        if f"{key}_literal" in test:
            try:
                test[key] = ast.literal_eval(str(test[f"{key}_literal"]))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                raise BadGold(f"{key}_literal {str(test[f'{key}_literal'])[:60]!r} is no Python literal") from None
    if "kwargs" in test:
        test.setdefault("args", [])
    if "args" in test and not isinstance(test["args"], (list, tuple)):
        raise BadGold(f"args must be a list, one entry per argument, not {type(test['args']).__name__}")
    if not isinstance(test.get("kwargs", {}), dict):
        raise BadGold("kwargs must be a table")
    if "raises" in test:
        _check_raises(test["raises"])
    return test


def _check_raises(name: Any) -> None:
    known = getattr(builtins, name, BaseException) if isinstance(name, str) else None
    is_name = isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
    if not is_name or not isinstance(known, type) or not issubclass(known, BaseException):
        raise BadGold(f'raises {str(name)[:60]!r} names no exception, such as "ValueError" or "json.JSONDecodeError"')


def _entry(gold: Mapping[str, Any], kind: str, tests: Sequence[Any]) -> str:
    """The function's name; of assertions without one, the first function of the first test that is no built-in."""
    name = str(gold.get("entry_point", gold.get("fn_name", "")) or "")
    if kind == "assertions" and not name:
        for node in ast.walk(_parse(str(tests[0]), "the first test")):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id):
                name = node.func.id
                break
    if kind != "programs" and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)?", name):
        raise BadGold(f"entry_point {name!r} is no name of a function, or of a method as Class.method")
    return name


def _parse(text: str, what: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BadGold(f"{what} is no Python: {error}") from None


def refuse_uncompilable(problem: Problem) -> None:
    _parse(closed(problem.prefix), "prefix")
    if problem.kind == "assertions":  # what a test of another kind holds is data
        _parse(problem.setup, "setup")
        for number, test in enumerate(problem.tests, 1):
            _parse(test, f"test {number}")


# --- the code in an answer ------------------------------------------------------------------------------------------

_FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)([^`\n]*+)")  # possessive: one pass, whatever the line holds
_ENDS = re.compile(r"<\|(?:im_end|eot_id|endoftext|end_of_turn)\|>")


def extract_code(text: str, entry: str = "", policy: Extraction = "last_block") -> str | None:
    """The code that is judged; None if there is none.

    last_block: the last complete fenced block marked as Python, or if no block is marked so, the last unmarked one. Where
    a function is asked for, blocks that define it come before those that do not. block_or_whole: without any fence the
    whole answer. whole: always the whole answer. What stands after an end of turn is not read, nor is reasoning
    (`<think>`), and an answer whose reasoning does not end has no code.
    """
    text = _ENDS.split(text[:MAX_CHARACTERS], maxsplit=1)[0]
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return None
    blocks, fenced = _blocks(text)
    if policy == "whole" or (policy == "block_or_whole" and not fenced):
        return text if text.strip() else None
    marked = [code for tag, code in blocks if _TAG.match(tag)]
    codes = [code for code in marked or [code for tag, code in blocks if not tag] if code.strip()]
    first = re.escape(entry.partition(".")[0])
    definition = re.compile(rf"^[ \t]*(?:def|class)[ \t]+{first}\b|^{first}[ \t]*=", re.MULTILINE)
    defining = [code for code in codes if definition.search(code)]
    found = (defining if entry else []) or codes
    return found[-1] if found else None


def _closes(fence: re.Match[str], opening: tuple[str, str, str]) -> bool:
    """As CommonMark has it: the same sign, as many or more, nothing behind; four blanks deeper it stands in a docstring."""
    depths = [len(indent.expandtabs(4)) for indent in (fence[1], opening[0])]
    long_enough = fence[2][0] == opening[1][0] and len(fence[2]) >= len(opening[1])
    return not fence[3] and long_enough and depths[0] < depths[1] + 4


def _blocks(text: str) -> tuple[list[tuple[str, str]], bool]:
    """(tag, code) of the complete fenced blocks, and whether there was any fence at all."""
    found: list[tuple[str, str]] = []
    opening: tuple[str, str, str] | None = None
    lines: list[str] = []
    fenced = False
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.fullmatch(line.rstrip())
        if opening is None:
            if fence:
                opening, lines, fenced = (fence[1], fence[2], fence[3]), [], True
        elif fence and _closes(fence, opening):
            code = "\n".join(line.removeprefix(opening[0]) for line in lines) + "\n"
            found.append((opening[2].strip(), textwrap.dedent(code) if opening[0] else code))
            opening = None
        else:
            lines.append(line)
    return found, fenced

"""What judges a completion: the built-in scorers and the call of a user's reward function.

Plain functions of text, gold and parameters, light to import, because `milepost/workers.py` runs most of them in
worker processes: regular expressions (which can backtrack for ever), foreign scorers, and the user's own functions.
Gold and answer are keyword-only everywhere, so that they cannot be swapped.
"""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from milepost.worker_main import resolve

# The parameters each built-in takes under `params`.
BUILTINS: dict[str, tuple[str, ...]] = {
    "exact": ("case_sensitive", "collapse_spaces"),
    "numeric": ("rel_tol", "abs_tol"),
    "regex": ("pattern", "mode"),
    "reasoning_gym": ("accept_unsound", "allow_plain"),
}

MAX_NUMBER_CHARACTERS = 1000
_PLAIN = str.maketrans(
    dict.fromkeys("−﹣－‐‑‒–", "-") | dict.fromkeys("＋﹢", "+") | dict.fromkeys("\u00a0\u2009\u202f", "\u202f")
    | {"．": ".", "，": ",", "／": "/", "⁄": "/"}
)  # fmt: skip
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_RATIO = re.compile(r"([+-]?\d+)\s*/\s*(\d+)")
_GROUPED = re.compile(r"([+-]?\d{1,3}(?:(?:,\d{3})+|(?:\u202f\d{3})+))(?!\d)(?=$|[./eE\s])")


def parse_number(value: Any) -> Fraction | None:
    """The exact value of a number, or of a text that is one number and nothing else; None if it is not.

    Read: 42, 42., -3.50, .5, 1e-3, 3/4, thousands separators in well-formed groups (1,234,567.5; also no-break spaces),
    full-width and other Unicode digits, Unicode minus. Not read: 1,5 and 1.234,50 (ambiguous), 1 1/4, percent, units.
    A float counts as the decimal it prints, so 0.1 is exactly 1/10. Longer than 1000 characters is not a number.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, numbers.Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    text = repr(float(value)) if isinstance(value, numbers.Real) else str(value)
    if len(text) > MAX_NUMBER_CHARACTERS:
        return None
    digits = "".join(str(d) if (d := unicodedata.decimal(c, None)) is not None else c for c in text.strip())
    plain = digits.translate(_PLAIN)
    if grouped := _GROUPED.match(plain):
        plain = re.sub("[,\u202f]", "", grouped[1]) + plain[grouped.end() :]
    if ratio := _RATIO.fullmatch(plain):
        return Fraction(int(ratio[1]), int(ratio[2])) if int(ratio[2]) else None
    return Fraction(plain) if _DECIMAL.fullmatch(plain) else None


def exact(*, answer: str, gold: Any, case_sensitive: bool = True, collapse_spaces: bool = False) -> float:
    """1 if the texts are equal after stripping, else 0. Gold that is not text is compared by its str()."""
    left, right = answer.strip(), str(gold).strip()
    if collapse_spaces:
        left, right = " ".join(left.split()), " ".join(right.split())
    if not case_sensitive:
        left, right = left.casefold(), right.casefold()
    return float(left == right)


def numeric(*, answer: str, gold: Fraction, rel_tol: float = 0.0, abs_tol: float = 0.0) -> float | None:
    """1 if the answer is a number with |answer − gold| ≤ max(rel_tol·|gold|, abs_tol), compared exactly, else 0.

    None if the answer is not a number at all.
    """
    value = parse_number(answer)
    if value is None:
        return None
    return float(abs(value - gold) <= max(Fraction(rel_tol) * abs(gold), Fraction(abs_tol)))


def matches(*, texts: Sequence[str], pattern: str, mode: str = "search") -> list[float]:
    """1 for each text that the pattern finds (mode "search") or covers whole (mode "full"), else 0."""
    compiled = re.compile(pattern)
    test = compiled.fullmatch if mode == "full" else compiled.search
    return [float(test(text) is not None) for text in texts]


def extract(*, texts: Sequence[str], pattern: str) -> list[str | None]:
    """The first group (or the whole) of the last match in each text; None where nothing is found."""
    compiled = re.compile(pattern)
    group = 1 if compiled.groups else 0
    found: list[str | None] = []
    for text in texts:
        last = None
        for last in compiled.finditer(text):  # noqa: B007
            pass
        found.append(last[group] if last else None)
    return found


def describe(*, name: str) -> dict[str, Any]:
    """Loads a user's function: {"parameters": …, "required": …, "keywords": bool}, or {"error": a sentence's end}."""
    where, _, attribute = name.rpartition(":")
    try:
        function = resolve(name)
    except AttributeError as error:
        return {"error": _missing(where, attribute, error)}
    except ModuleNotFoundError as error:
        if error.name is not None and (where + ".").startswith(error.name + "."):
            return {"error": f"there is no module {error.name!r} on the Python path"}
        return {"error": f"importing {where} failed: {error}"}
    except BaseException as error:
        return {"error": f"importing {where} raised {type(error).__name__}: {error}"}
    if not callable(function):
        return {"error": f"{attribute} in {where} is a {type(function).__name__}, not a function"}
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return {"error": f"{attribute} in {where} shows no signature; wrap it in a Python function"}
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if positional:
        return {
            "error": f"parameter {positional[0]!r} is positional-only, but everything is passed by keyword; remove the `/`"
        }
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        "parameters": [p.name for p in named],
        "required": [p.name for p in named if p.default is p.empty],
        "keywords": any(p.kind is p.VAR_KEYWORD for p in parameters),
    }


def _missing(where: str, attribute: str, error: AttributeError) -> str:
    try:
        module: Any = resolve(f"{where}:__dict__")
    except BaseException:
        return f"importing {where} raised AttributeError: {error}"
    functions = [key for key, value in module.items() if callable(value) and not key.startswith("_")]
    if attribute in module:
        return f"importing {where} raised AttributeError: {error}"
    near = difflib.get_close_matches(attribute, functions, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(functions)[:8]) or 'no functions'}"
    return f"{where} has no function {attribute!r}; {hint}"


def invoke(*, name: str, num: int, loggers: Sequence[str], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Calls a user's function once for `num` completions.

    Returns {"values": num floats or None, "metrics": [...], "extra": [...]}, or {"contract": what is wrong with the
    returned object}. `loggers` names which of TRL's log_metric and log_extra the function accepts. Raises what it raises.
    """
    metrics: list[tuple[str, float]] = []
    extra: list[tuple[str, list[str]]] = []
    sinks = {
        "log_metric": lambda name, value: metrics.append((str(name), float(value))),
        "log_extra": lambda column, values: extra.append((str(column), [str(v) for v in values])),
    }
    result = resolve(name)(**keywords, **{key: sinks[key] for key in loggers})
    if inspect.isawaitable(result):
        import asyncio  # a third of this module's import time, and rarely needed

        result = asyncio.run(_wait(result))
    values = as_values(result, num)
    if isinstance(values, str):
        return {"contract": values}
    return {"values": values, "metrics": metrics, "extra": extra}


def invoke_turn(*, name: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Calls a user's turn scorer for one turn.

    Returns {"score": float or None}, or {"contract": what it returned instead of a number}. Raises what it raises.
    """
    result = resolve(name)(**keywords)
    if inspect.isawaitable(result):
        import asyncio

        result = asyncio.run(_wait(result))
    score = _as_float(result)
    return {"contract": score} if isinstance(score, str) else {"score": score}


async def _wait(awaitable: Any) -> Any:
    return await awaitable


def as_values(result: Any, num: int) -> list[float | None] | str:
    """One float or None per completion, or a sentence's end that says what is wrong with the returned object."""
    if hasattr(result, "tolist") and not isinstance(result, (list, tuple)):
        result = result.tolist()  # numpy, torch and pandas, without importing any of them
    if not isinstance(result, (list, tuple)):
        shown = "one single number" if isinstance(result, numbers.Number) else f"a {type(result).__name__}"
        shown = "nothing (None)" if result is None else shown
        return f"expected a list of {num}, got {shown}"
    if len(result) != num:
        return f"expected {num}, got {len(result)}"
    values: list[float | None] = []
    for position, item in enumerate(result):
        value = _as_float(item)
        if isinstance(value, str):
            return f"expected numbers or None, got {value} at position {position}"
        values.append(value)
    return values


def _as_float(item: Any) -> float | str | None:
    if item is None:
        return None
    if not isinstance(item, numbers.Real) and hasattr(item, "item") and getattr(item, "ndim", None) == 0:
        item = item.item()
    if not isinstance(item, numbers.Real):
        return f"{type(item).__name__} {str(item)[:40]!r}"
    try:
        return float(item)
    except OverflowError:
        return math.inf

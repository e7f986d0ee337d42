r"""Countdown: an expression of given numbers that has a given value.

    score(answer="<answer>(7-3)*5</answer>", gold={"numbers": [3, 5, 7], "target": 20})["score"]  ->  1.0

Whole numbers, + − × ÷ and brackets are read by a grammar of their own and computed as fractions; an x between numbers is ×.
What the answer says is never run: there are no powers, no rounding division, no decimals, no sign before a number and no
putting of digits side by side. Each number is used exactly once (`use = "some"`: at most once), and no other number at all.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from milepost.verifiers.extract import extract, unwrap
from milepost.verifiers.prose import after_lead_in, led_in

PLACES = ("boxed", "tag", "marker", "line")
MAX_CHARACTERS = 500
MAX_NUMBERS = 10
MAX_NUMBER = 10**9
MAX_DEPTH = 40
SEARCHED = 4
"""Up to so many numbers all expressions are tried, to know a right one or that there is none."""
_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∙": "*", "−": "-", "–": "-", "÷": "/", "∕": "/", "[": "(", "]": ")"})
_COMMANDS = re.compile(r"\\(?:(times|cdot|ast)|(div)|left|right|[,;:! ]|quad)(?![a-z])")
_LETTER = re.compile(r"(?<=[\d)\]])(?<!\b0)\s*[xX]\s*(?=[\d(\[])|(?<=\b0)\s+[xX]\s*(?=[\d(\[])")
"""The letter as × between numbers and brackets, but not in 0x7."""
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


class Unreadable(ValueError):
    """No expression of whole numbers, + − × ÷ and brackets."""


@dataclass(frozen=True)
class Gold:
    numbers: tuple[int, ...]
    target: int
    solution: str


def read_gold(gold: Any) -> Gold:
    """From {"numbers" or "nums": […], "target": …, "solution": optional}, or that as JSON. Raises ValueError."""
    if isinstance(gold, str):
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError):
            gold = None
    if not isinstance(gold, Mapping):
        raise ValueError('the gold must be a table such as {"numbers": [3, 5, 7], "target": 15}')
    numbers = gold.get("numbers", gold.get("nums"))
    if not isinstance(numbers, (list, tuple)) or not 1 <= len(numbers) <= MAX_NUMBERS:
        raise ValueError(f"numbers must be a list of 1 to {MAX_NUMBERS} whole numbers, not {str(numbers)[:80]}")
    for value, name in [(number, "numbers") for number in numbers] + [(gold.get("target"), "target")]:
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_NUMBER:
            raise ValueError(f"{name} holds {str(value)[:80]!r}, which is no whole number up to {MAX_NUMBER}")
    if min(numbers) < 0:
        raise ValueError(f"numbers holds {min(numbers)}, but an expression has no sign before a number; use 0 or more")
    return Gold(tuple(numbers), gold["target"], str(gold.get("solution") or ""))


def score(
    *, answer: str, gold: Any, use: str = "all", extract: Any = PLACES, tag: str = "answer", opened: bool = False
) -> dict:
    """1 if the answer has the target's value and uses the right numbers, else 0. Parts: value and numbers, each 0 or 1."""
    try:
        known = read_gold(gold)
    except ValueError as error:
        return _result(None, "bad_gold", None, str(error))
    text, where = _found(answer, extract, tag, opened)
    if text is None:
        return _result(0.0, None, None, f"no answer found: {where}")
    try:
        value, leaves = _value(text, known.target)
    except Unreadable as error:
        return _result(0.0, None, None if where == "the last line" else text[:2000], f"{text[:80]!r}: {error}")
    parts = {"value": float(value == known.target), "numbers": float(_uses(leaves, known.numbers, use))}
    shown = "no value" if value is None else f"value {value}"
    told = f"{shown}, of {known.target}; numbers {sorted(leaves)}, of {sorted(known.numbers)}"
    return _result(min(parts.values()), None, text[:2000], told, parts)


def _found(answer: Any, places: Any, tag: str, opened: bool) -> tuple[str | None, str]:
    text, where = extract(answer, places, tag=tag, opened=opened) if isinstance(answer, str) else (None, "no text")
    if text and where == "the last line":
        return after_lead_in(text), where
    return text and (led_in(text) or text), where


def _result(
    score: float | None, cause: str | None, found: str | None, told: str, parts: Mapping[str, float] | None = None
) -> dict:
    return {"score": score, "cause": cause, "extracted": found, "extractable": found is not None, "compared": told,
            "parts": dict(parts or {})}  # fmt: skip


def _uses(leaves: Sequence[int], numbers: Sequence[int], use: str) -> bool:
    spent, given = Counter(leaves), Counter(numbers)
    return spent == given if use == "all" else bool(leaves) and spent <= given


# --- expressions ------------------------------------------------------------------------------------------------------


def _value(text: str, target: int) -> tuple[Fraction | None, list[int]]:
    """(value, None after a division by zero; the numbers used). "= 15" may follow, for the target 15. Raises Unreadable."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"longer than {MAX_CHARACTERS} characters")
    while (flat := _FRACTION.sub(r"((\1)/(\2))", text)) != text:
        text = flat
    text = _COMMANDS.sub(lambda found: "*" if found[1] else "/" if found[2] else " ", _unstopped(text)).translate(_SIGNS)
    text = _LETTER.sub("*", text)
    left, equals, right = text.partition("=")
    says_target = re.compile(rf"\s*{target}(?:\.0+)?\s*", re.ASCII)
    if says_target.fullmatch(left) and re.search(r"\d\D+\d", right) and not says_target.fullmatch(right):  # 15 = 3+5+7
        left, right = right, left
    if equals and not says_target.fullmatch(right):
        raise Unreadable("it is said to equal something else than the target")
    tokens = re.findall(r"\d+|\S", left.strip())
    leaves: list[int] = []
    value, at = _sum(tokens, 0, leaves, 0)
    if at < len(tokens):
        raise Unreadable(f"{tokens[at]!r} is no +, −, ×, ÷ or bracket that belongs there")
    return value, leaves


def _unstopped(text: str) -> str:
    """Without the full stop of a sentence, inside $…$ and ** or behind them."""
    text = re.sub(r"(?<=[\d)\]}$*])\s*[.。]\s*\Z", "", text)
    bare = unwrap(text)
    bare = bare[2:-2] if len(bare) > 4 and bare[:2] == bare[-2:] == "**" else bare
    return bare if bare == text else _unstopped(bare)


def _sum(tokens: list[str], at: int, leaves: list[int], depth: int) -> tuple[Fraction | None, int]:
    value, at = _product(tokens, at, leaves, depth)
    while tokens[at : at + 1] in (["+"], ["-"]):
        term, after = _product(tokens, at + 1, leaves, depth)
        value, at = _apply(tokens[at], value, term), after
    return value, at


def _product(tokens: list[str], at: int, leaves: list[int], depth: int) -> tuple[Fraction | None, int]:
    value, at = _leaf(tokens, at, leaves, depth)
    while tokens[at : at + 1] in (["*"], ["/"]):
        factor, after = _leaf(tokens, at + 1, leaves, depth)
        value, at = _apply(tokens[at], value, factor), after
    return value, at


def _leaf(tokens: list[str], at: int, leaves: list[int], depth: int) -> tuple[Fraction | None, int]:
    token = tokens[at] if at < len(tokens) else ""
    if token.isdecimal():
        if len(token) > len(str(MAX_NUMBER)) or len(leaves) == 2 * MAX_NUMBERS:
            raise Unreadable("it holds more, or larger numbers than any that are given")
        leaves.append(int(token))
        return Fraction(leaves[-1]), at + 1
    if token == "(" and depth < MAX_DEPTH:
        value, after = _sum(tokens, at + 1, leaves, depth + 1)
        if tokens[after : after + 1] == [")"]:
            return value, after + 1
        raise Unreadable("a bracket is not closed")
    raise Unreadable(f"{token or 'its end'} where a number or a bracket belongs")


def _apply(sign: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    if left is None or right is None or (sign == "/" and right == 0):
        return None
    return left + right if sign == "+" else left - right if sign == "-" else left * right if sign == "*" else left / right


# --- gold -------------------------------------------------------------------------------------------------------------


def check_gold(gold: Any, *, use: str = "all", **params: Any) -> str | None:
    """What is wrong with the gold, in a sentence: also that no expression reaches the target, where all can be tried."""
    try:
        known = read_gold(gold)
    except ValueError as error:
        return str(error)
    if known.solution and score(answer=known.solution, gold=gold, use=use, extract="whole")["score"] != 1:
        return f"its own solution {known.solution[:80]!r} does not make {known.target} of {list(known.numbers)}"
    if not known.solution and len(known.numbers) <= SEARCHED and not _solution(known, use):
        return f"no expression of {list(known.numbers)} makes {known.target}"
    return None


def right(gold: Any, *, use: str = "all", **params: Any) -> list[str]:
    """An expression that must score 1, in two spellings; [] where none is known."""
    known = read_gold(gold)
    found = known.solution or (_solution(known, use) if len(known.numbers) <= SEARCHED else "")
    return [_placed(text, params) for text in (found, f"{found} = {known.target}")] if found else []


def wrong(gold: Any, *, use: str = "all", **params: Any) -> list[str]:
    """The target itself, other numbers, powers, numbers left out or used twice: what does not happen to be right."""
    known = read_gold(gold)
    first, joined = known.numbers[0], "+".join(map(str, known.numbers))
    tries = [str(known.target), f"{known.target}+0", f"{known.target}*1", f"{known.target}//1", f"{known.target}.0", joined,
             f"{joined}+{first}-{first}", f"{joined}-({joined})+{known.target}", f"{first}**1", ""]  # fmt: skip
    texts = [_placed(text, params) for text in dict.fromkeys(tries)]
    return [text for text in texts if score(answer=text, gold=gold, use=use, **params)["score"] == 0]


def _placed(text: str, params: Mapping[str, Any]) -> str:
    places = params.get("extract", PLACES)
    place = places if isinstance(places, str) else places[0]
    tag = params.get("tag", "answer")
    return {"boxed": rf"\boxed{{{text}}}", "tag": f"<{tag}>{text}</{tag}>", "marker": f"#### {text}"}.get(place, text)


def _solution(known: Gold, use: str) -> str:
    """The first expression that makes the target of the numbers; "" if there is none."""
    start = [(Fraction(number), str(number)) for number in known.numbers]
    return next((text for value, text in _made(start, use == "some") if value == known.target), "")


def _made(pool: list[tuple[Fraction, str]], partial: bool) -> Iterator[tuple[Fraction, str]]:
    """Every value that can be made: of all of the pool or, if `partial`, of some of it."""
    if len(pool) == 1:
        yield pool[0]
        return
    if partial:
        yield from pool
    for i, (a, left) in enumerate(pool):
        for j, (b, right) in enumerate(pool):
            if i == j:
                continue
            rest = [one for k, one in enumerate(pool) if k not in (i, j)]
            for sign in "+-*/":
                value = None if sign in "+*" and i > j else _apply(sign, a, b)
                if value is not None:
                    yield from _made([*rest, (value, f"({left}{sign}{right})")], partial)

"""Whether a value that came out of the sandbox is the one that was expected.

    same(encode((1, 2)), [1, 2], Rule())  -> True                                  # a tuple may stand for a list

What came stays data (`sandbox.plain`): nothing of it is called. No set or dict is built out of it either, so values chosen
to collide in a hash table cost nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any

from milepost.sandbox.plain import NotPlain, decode, number

MAX_KEY_PARTS = 1000


@dataclass(frozen=True)
class Rule:
    """When two values count as the same.

    Numbers are compared by value: 2 is 2.0 is True, as Python has it. Where the expected number is a float, the answer
    may differ by rel_tol·|expected|, or by abs_tol where 0 is expected: so 1e-30 is not 2e-30. `stated` says that the
    tolerance was asked for: then it is max(rel_tol·|expected|, abs_tol), and holds for expected integers too, unless the
    answer is an integer itself. `exact`: every type must be the very same.
    """

    rel_tol: float = 1e-6
    abs_tol: float = 1e-9
    stated: bool = False
    exact: bool = False


def same(got: Any, want: Any, rule: Rule) -> bool:
    """Whether the encoded value `got`, from an untrusted place, is the trusted value `want`. Never raises."""
    try:
        return _same(got, want, rule)
    except (TypeError, ValueError, IndexError, ArithmeticError, InvalidOperation, RecursionError):
        return False


def same_text(got: str, want: str, rule: Rule, *, blanks: str = "trailing") -> bool:
    """Whether two outputs are the same, line by line; their number counts, blank lines at the end do not.

    Blanks at the end of a line never count; with blanks="any" neither do those at its beginning, nor how many stand between
    two words. Words that are numbers are compared by value if one of them has a point or an exponent: 2 is 2.0. Where no
    tolerance is stated and at least four decimals are expected, a number that rounds to these is right: what they leave out
    is not known. A word such as 007 is no number.
    """
    left, right = _lines(got), _lines(want)
    return len(left) == len(right) and all(_same_line(g, w, rule, blanks) for g, w in zip(left, right))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.replace("\r\n", "\n").rstrip().split("\n")]


def _same_line(got: str, want: str, rule: Rule, blanks: str) -> bool:
    if got == want:
        return True
    left, right = (re.split(r"(\s+)", line.strip() if blanks == "any" else line) for line in (got, want))
    return len(left) == len(right) and all(_same_word(g, w, rule, blanks) for g, w in zip(left, right))


def _same_word(got: str, want: str, rule: Rule, blanks: str) -> bool:
    if got == want or (blanks == "any" and got.isspace() and want.isspace()):
        return True
    whole = got.lstrip("+-").isdigit() and want.lstrip("+-").isdigit()
    if whole or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(want)):
        return False
    left, right = Decimal(got), Decimal(want)
    if same_number(left, float(right) if set(want) & set(".eE") else int(right), rule) or left == right:
        return True
    return not rule.stated and bool(_ROUNDED.fullmatch(want)) and _rounds_to(left, right)


def _rounds_to(left: Decimal, right: Decimal) -> bool:
    with localcontext() as context:
        context.prec = _DIGITS
        return 2 * abs(left - right) <= Decimal((0, (1,), int(right.as_tuple().exponent)))


_DIGITS = 2000
"""More than any difference of two numbers as long as `_NUMBER` takes them has."""
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d{0,299})(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_ROUNDED = re.compile(r"[+-]?\d*\.\d{4,}", re.ASCII)


def _same(got: Any, want: Any, rule: Rule) -> bool:
    if want is None or isinstance(want, str):
        return type(got) is type(want) and got == want
    if isinstance(want, (bool, int, float, complex, Fraction, Decimal)):
        return same_number(number(got), want, rule)
    if not isinstance(got, list):
        return False
    tag, *rest = got
    if isinstance(want, (list, tuple)):
        tags = (type(want).__name__,) if rule.exact else ("list", "tuple")
        return tag in tags and len(rest) == len(want) and all(_same(g, w, rule) for g, w in zip(rest, want))
    if isinstance(want, (set, frozenset)):
        tags = (type(want).__name__,) if rule.exact else ("set", "frozenset")
        return tag in tags and len(rest) == len(want) and _covers(rest, dict.fromkeys(want))
    if isinstance(want, dict):
        keys = rest[::2]
        return tag == "dict" and len(rest) == 2 * len(want) and _covers(keys, want) and _values_agree(rest, want, rule)
    return isinstance(want, (bytes, bytearray)) and tag == "bytes" and bytes.fromhex(rest[0]) == bytes(want)


def _covers(keys: list[Any], want: dict) -> bool:
    """Whether the encoded keys are the keys of `want`, each once. They are only looked up, never stored."""
    place = {key: index for index, key in enumerate(want)}
    seen = bytearray(len(want))
    for key in keys:
        index = place.get(_decode_key(key), -1)
        if index < 0 or seen[index]:
            return False
        seen[index] = 1
    return all(seen)


def _values_agree(rest: list[Any], want: dict, rule: Rule) -> bool:
    return all(_same(value, want[_decode_key(key)], rule) for key, value in zip(rest[::2], rest[1::2], strict=True))


def _decode_key(key: Any) -> Any:
    """A key's value. Large ones are refused: a frozenset in it is the one thing here that would hash what came."""
    parts = [key]
    for part in parts:
        parts += part if isinstance(part, list) else ()
        if len(parts) > MAX_KEY_PARTS:
            raise NotPlain("a key too large")
    return decode(key)


def same_number(got: Any, want: Any, rule: Rule) -> bool:
    """Two numbers of any kind by value, within the rule's tolerance where it applies."""
    if rule.exact and type(got) is not type(want):
        return False
    if got == want or (got != got and want != want):
        return True
    whole = isinstance(got, int) and isinstance(want, int)
    if whole or not (isinstance(want, (float, complex)) or rule.stated):
        return False
    left, right = complex(got), complex(want)
    if not (math.isfinite(abs(left)) and math.isfinite(abs(right))):
        return False
    absolute = rule.abs_tol if rule.stated or right == 0 else 0.0
    return abs(left - right) <= max(rule.rel_tol * abs(right), absolute)


# --- for people -----------------------------------------------------------------------------------------------------------

_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), **dict.fromkeys(("set", "frozenset", "dict"), ("{", "}"))}
_SHOWN_ITEMS, _SHOWN_DEPTH = 40, 6


def spelt(tree: Any, depth: int = _SHOWN_DEPTH) -> str:
    """An encoded value about as Python writes it; long and deep ones are cut. Never raises, builds nothing."""
    if not isinstance(tree, list):
        return repr(tree)
    tag, *items = tree[: _SHOWN_ITEMS + 1] or [None]
    if not isinstance(tag, str) or tag not in _BRACKETS:
        return f"<{' '.join(str(part)[:80] for part in items if not isinstance(part, list))} {tag}>"
    if depth <= 0:
        return "…"
    parts = [spelt(item, depth - 1) for item in items] + ["…"] * (len(tree) > _SHOWN_ITEMS + 1)
    if tag == "dict":
        parts = [": ".join(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    if tag in ("set", "frozenset") and not parts:
        return "set()"
    first, last = _BRACKETS[tag]
    return f"{first}{', '.join(parts)}{',' if tag == 'tuple' and len(parts) == 1 else ''}{last}"

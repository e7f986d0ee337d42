"""Python values as plain data: how results leave a sandbox, and how they are compared with what was expected.

    encode((1, {"a": {2.5}}))  -> ["tuple", 1, ["dict", "a", ["set", 2.5]]]       # JSON without objects
    same(encode((1, 2)), [1, 2], Rule())  -> True                                  # a tuple may stand for a list

An encoded value has no methods: a class whose `__eq__` always says yes is just ["object", its name], which equals nothing.
Subclasses of the built-in types count as the data they hold, read past anything they override. Whoever compares never
builds a set or dict out of encoded values, so values chosen to collide in a hash table cost nothing.
Standard library only: the program inside the sandbox imports it too.
"""

from __future__ import annotations

import math
import re
import types
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

MAX_DEPTH, MAX_NODES, MAX_KEY_PARTS = 150, 300_000, 1000
_JSON_INT = 1 << 63


class NotPlain(ValueError):
    """The value is too deep, too large, or (in decode) not an encoded value at all."""


# --- there and back -------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """The value as JSON without objects: None, booleans, ints, finite floats and text as they are, the rest [tag, …].

    Raises NotPlain beyond 150 levels or 300,000 parts. What is no data becomes ["object", "module.Class"].
    """
    return _encode(value, MAX_DEPTH, [MAX_NODES])


def _encode(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth < 0 or left[0] < 0:
        raise NotPlain("a value too deep or too large to be a result")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    for base, write in _WRITERS:
        if issubclass(kind, base):
            return write(value, lambda items: [_encode(item, depth - 1, left) for item in items])
    if kind in _ITERATORS or kind is types.GeneratorType:
        return ["iterator", *(_encode(item, depth - 1, left) for item in value)]
    if kind.__module__ == "numpy" and hasattr(kind, "tolist"):  # scalars and arrays: the numbers they hold
        return _encode(value.tolist(), depth - 1, left)
    return ["object", f"{kind.__module__}.{kind.__qualname__}"[:200]]


# What tests turn into a list before they look at it; read to its end, within the limit on parts.
_EMPTY: tuple[Any, ...] = ([], (), {}, set(), range(0), "", {}.keys(), {}.values(), {}.items())
_ITERATORS = (map, filter, zip, enumerate, reversed, *(type(iter(x)) for x in _EMPTY), *(type(x) for x in _EMPTY[-3:]))
_Items = Callable[[Iterable[Any]], list[Any]]


def _write_int(value: int, items: _Items) -> Any:
    number = int.__index__(value)
    return number if -_JSON_INT < number < _JSON_INT else ["int", hex(number)]  # decimal digits are limited to 4,300


def _write_float(value: float, items: _Items) -> Any:
    number = float.__float__(value)
    return number if math.isfinite(number) else ["float", repr(number)]


def _write_dict(value: dict, items: _Items) -> Any:
    return ["dict", *items(part for pair in dict.items(value) for part in pair)]


def _write_complex(value: complex, items: _Items) -> Any:
    return ["complex", *items((complex.real.__get__(value), complex.imag.__get__(value)))]  # type: ignore[attr-defined]


# The unbound methods of the base types: overrides in a subclass are not asked.
_WRITERS: tuple[tuple[type, Callable[[Any, _Items], Any]], ...] = (
    (int, _write_int),
    (float, _write_float),
    (str, lambda value, items: str.__str__(value)),
    (list, lambda value, items: ["list", *items(list.__iter__(value))]),
    (tuple, lambda value, items: ["tuple", *items(tuple.__iter__(value))]),
    (dict, _write_dict),
    (set, lambda value, items: ["set", *items(set.__iter__(value))]),
    (frozenset, lambda value, items: ["frozenset", *items(frozenset.__iter__(value))]),
    (bytes, lambda value, items: ["bytes", bytes(value).hex()]),
    (bytearray, lambda value, items: ["bytes", bytes(value).hex()]),
    (complex, _write_complex),
    (range, lambda value, items: ["range", *items((value.start, value.stop, value.step))]),
    (deque, lambda value, items: ["deque", *items(deque.__iter__(value))]),
    (Fraction, lambda value, items: ["fraction", hex(int(value.numerator)), hex(int(value.denominator))]),
    (Decimal, lambda value, items: ["decimal", str(value)[:1000]]),
)


def decode(tree: Any) -> Any:
    """The value again. What was no data becomes an `Opaque`. Raises NotPlain for anything that encode would not write."""
    try:
        return _decode(tree, MAX_DEPTH)
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise NotPlain(f"not an encoded value: {error}") from None


def _decode(tree: Any, depth: int) -> Any:
    if not isinstance(tree, list):
        return tree
    if depth < 0:
        raise NotPlain("too deep")
    tag, *rest = tree
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](_decode(item, depth - 1) for item in rest)
    if tag == "dict":
        items = [_decode(item, depth - 1) for item in rest]
        return dict(zip(items[::2], items[1::2], strict=True))
    return Opaque(str(rest[0])) if tag == "object" else _number(tree) if tag != "bytes" else bytes.fromhex(rest[0])


_CONTAINERS: dict[str, Callable] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset,
                                    "deque": deque, "iterator": lambda items: iter(list(items)),
                                    "range": lambda items: range(*items)}  # fmt: skip


class Opaque:
    """Stands for an object that is no data. Equal to nothing, not even itself, and neither true nor false."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"the {self.name} object is no plain data")

    def __repr__(self) -> str:
        return f"<{self.name} object>"


def _number(tree: Any) -> Any:
    """The number that an encoded value is. Raises ValueError, TypeError or ArithmeticError if it is none."""
    if isinstance(tree, (bool, int, float)):
        return tree
    tag, *rest = tree
    if tag == "int":
        return int(rest[0], 16)
    if tag == "float" and rest[0] in ("nan", "inf", "-inf"):
        return float(rest[0])
    if tag == "fraction" and len(rest[0]) + len(rest[1]) <= 10_000:
        return Fraction(int(rest[0], 16), int(rest[1], 16))
    if tag == "decimal" and len(rest[0]) <= 1000:
        return Decimal(rest[0])
    if tag == "complex":
        return complex(*(float(_number(part)) for part in rest))
    raise ValueError("no number")


# --- comparing ------------------------------------------------------------------------------------------------------


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
    two words. Words that are numbers are compared by value if one of them has a point or an exponent: 2 is 2.0.
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
    return same_number(left, float(right) if set(want) & set(".eE") else int(right), rule) or left == right


_NUMBER = re.compile(r"[+-]?(?:\d{1,300}\.?\d{0,300}|\.\d{1,300})(?:[eE][+-]?\d{1,3})?", re.ASCII)


def _same(got: Any, want: Any, rule: Rule) -> bool:
    if want is None or isinstance(want, str):
        return type(got) is type(want) and got == want
    if isinstance(want, (bool, int, float, complex, Fraction, Decimal)):
        return same_number(_number(got), want, rule)
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
    return _decode(key, MAX_DEPTH)


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

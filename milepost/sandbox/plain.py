"""Python values as plain data: how results leave a sandbox.

    encode((1, {"a": {2.5}}))  -> ["tuple", 1, ["dict", "a", ["set", 2.5]]]       # JSON without objects

An encoded value has no methods: a class whose `__eq__` always says yes is just ["object", its name], which equals nothing.
Subclasses of the built-in types count as the data they hold, read past anything they override.
Standard library only: the program inside the sandbox imports it too.
"""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH, MAX_NODES = 150, 300_000
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
    return Opaque(str(rest[0])) if tag == "object" else number(tree) if tag != "bytes" else bytes.fromhex(rest[0])


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


def number(tree: Any) -> Any:
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
        return complex(*(float(number(part)) for part in rest))
    raise ValueError("no number")

"""Intervals, sets of numbers and their unions in one form: disjoint pieces from left to right.

    pieces("[1,2] U [2,3]" as a tree)  -> the piece from 1 to 3, both ends in it
    pieces(("except", (2,)))           -> two pieces, all real numbers but 2

Two different descriptions of one set of numbers have the same pieces. What has an end that is no real number, or that
depends on a symbol, has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from milepost.verifiers.math_scan import Node, Unreadable
from milepost.verifiers.math_value import DIGITS, NoValue, numeric, same_value, symbols

MAX_PIECES = 50
NO_CONDITION = "its condition does not compare one symbol with numbers, or not in one interval"
_INFINITY: Node = ("const", "infty")
FLIP = {">": "<", "<": ">", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True)
class Piece:
    low: Node
    has_low: bool
    high: Node
    has_high: bool


def pieces(node: Node) -> tuple[Piece, ...] | None:
    """The set of numbers that a tree describes, in one form; None for a tree that describes none. Raises TooLarge."""
    try:
        found = _parts(node)
        if not found or len(found) > MAX_PIECES:
            return None
        return _merged([(piece, _place(piece.low), _place(piece.high)) for piece in found])
    except NoValue:
        return None


def _parts(node: Node) -> list[Piece] | None:
    if node[0] == "union":
        parts = [_parts(part) for part in node[1]]
        return None if any(part is None for part in parts) else [piece for part in parts for piece in part or ()]
    if node[0] == "except":
        ends = [("neg", _INFINITY), *sorted(node[1], key=_place), _INFINITY]
        return [Piece(low, False, high, False) for low, high in pairwise(ends)]
    if node[0] == "set":
        return None if any(item[0] in ("group", "set", "list", "rel") for item in node[1]) else [
            Piece(item, True, item, True) for item in node[1]]  # fmt: skip
    if node[0] == "group" and len(node[3]) == 2 and node[1] in "([" and node[2] in ")]":
        return [Piece(node[3][0], node[1] == "[", node[3][1], node[2] == "]")]
    return None


def _place(end: Node) -> Any:
    """A number to sort by; ±∞ as floats. Raises NoValue for what is no real number."""
    if end == _INFINITY:
        return float("inf")
    if end == ("neg", _INFINITY):
        return float("-inf")
    if symbols(end):
        raise NoValue("depends on a symbol")
    value = numeric(end, DIGITS[0], {})
    if value.imag:
        raise NoValue("is not real")
    return value.real


def _merged(found: list[tuple[Piece, Any, Any]]) -> tuple[Piece, ...] | None:
    """Pieces that overlap or touch are one; None where one of them is empty or upside down."""
    kept: list[tuple[Piece, Any, Any]] = []
    for piece, low, high in sorted(found, key=lambda one: (one[1], not one[0].has_low)):
        if low > high or (low == high and not (piece.has_low and piece.has_high)):
            return None
        last, last_low, last_high = kept[-1] if kept else (piece, low, low)
        touches = kept and (low < last_high or (_same_end(piece.low, last.high) and (piece.has_low or last.has_high)))
        if not touches:
            kept.append((piece, low, high))
            continue
        if _same_end(piece.high, last.high):
            last, last_high = _ending(last, last.high, last.has_high or piece.has_high), last_high
        elif high > last_high:
            last, last_high = _ending(last, piece.high, piece.has_high), high
        kept[-1] = (last, last_low, last_high)
    return tuple(piece for piece, _, _ in kept)


def _same_end(left: Node, right: Node) -> bool:
    ends = (_INFINITY, ("neg", _INFINITY))
    return left == right or (left not in ends and right not in ends and same_value(left, right))


def _ending(piece: Piece, high: Node, has_high: bool) -> Piece:
    return Piece(piece.low, piece.has_low, high, has_high)


# --- conditions -----------------------------------------------------------------------------------------------------


def outside(low: Node, has_low: bool, high: Node, has_high: bool) -> Node:
    """The real numbers below and above two ends; has_low, has_high: whether the ends are among them."""
    below = ("group", "(", "]" if has_low else ")", (("neg", _INFINITY), low))
    return ("union", (below, ("group", "[" if has_high else "(", ")", (high, _INFINITY))))


def unfolded(sign: str, left: Node, right: Node) -> Node | None:
    """Of |x| < 2 the chain -2 < x < 2, of |x| > 2 what lies outside of it; None for other relations."""
    if right[0] == "abs" and left[0] != "abs":
        sign, left, right = FLIP.get(sign, ""), right, left
    if sign not in ("<", "<=", ">", ">=") or left[0] != "abs" or left[1][0] != "sym" or symbols(right):
        return None
    if sign[0] == "<":
        return ("rel", (sign, sign), (("neg", right), left[1], right))
    return outside(("neg", right), sign == ">=", right, sign == ">=")


def as_interval(node: Node) -> Node | None:
    """x < 3, 0 < x ≤ 5 as the interval that they describe."""
    if node[0] == "group":
        return node
    if node[0] != "rel" or not set(node[1]) <= {"<", ">", "<=", ">="}:
        return None
    signs, sides = node[1], node[2]
    if signs[0] in (">", ">="):
        signs, sides = tuple(FLIP[s] for s in reversed(signs)), tuple(reversed(sides))
    if not set(signs) <= {"<", "<="}:
        return None
    infinity: Node = ("const", "infty")
    if len(signs) == 2 and sides[1][0] == "sym":
        return ("group", "(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]", (sides[0], sides[2]))
    if len(signs) == 1 and sides[0][0] == "sym" and not symbols(sides[1]):
        return ("group", "(", ")" if signs[0] == "<" else "]", (("neg", infinity), sides[1]))
    if len(signs) == 1 and sides[1][0] == "sym" and not symbols(sides[0]):
        return ("group", "(" if signs[0] == "<" else "[", ")", (sides[0], infinity))
    return None


def narrowed(node: Node) -> tuple[Piece, ...] | None:
    """Of "x >= 0, x != 2" the numbers that satisfy both; None for what does not bound one symbol and leave numbers out."""
    if node[0] != "all" or not all(item[0] == "rel" for item in node[1]):
        return None
    out = [item for item in node[1] if item[1] == ("!=",)]
    bounds = [as_interval(item) for item in node[1] if item[1] != ("!=",)]
    names = {side for item in node[1] for side in item[2] if side[0] == "sym"}
    if not out or not bounds or None in bounds or len(names) != 1 or len(bounds) > 2:
        return None
    try:
        parts = [(_place(b[3][0]), b[1] == "[", _place(b[3][1]), b[2] == "]", b) for b in bounds if b]
        low = max(parts, key=lambda part: (part[0], not part[1]))
        high = min(parts, key=lambda part: (part[2], part[3]))
        left_out = sorted(
            ((_place(side), side) for item in out for side in item[2] if side[0] != "sym"), key=lambda p: p[0]
        )
    except NoValue:
        return None
    inside = [value for place, value in left_out if low[0] < place < high[2]]
    if not low[0] < high[2] or len(inside) != len(left_out) or len(inside) != len(out):
        return None
    ends = [low[4][3][0], *inside, high[4][3][1]]
    return tuple(
        Piece(one, number == 0 and low[1], other, number == len(inside) and high[3])
        for number, (one, other) in enumerate(pairwise(ends))
    )


def satisfying(name: Node, conditions: list[Node], joined: Callable[[list[Node]], Node]) -> Node:
    """The set of the real numbers `name` that satisfy all conditions: x > 1 and x <= 5 is (1, 5].

    joined: makes a lower and an upper bound one relation. Raises Unreadable for conditions on anything else, and for those
    that no interval, set or "all but" says.
    """
    conditions = [condition for condition in conditions if condition != ("word", "set of R")]
    if len(conditions) < 2:
        return _satisfying(name, conditions[0]) if conditions else ("word", "set of R")
    parts = [_satisfying(name, condition) for condition in conditions]
    if all(part[0] == "except" for part in parts):
        return ("except", tuple(value for part in parts for value in part[1]))
    if any(part[0] == "except" for part in parts) and narrowed(("all", tuple(conditions))):
        return ("all", tuple(conditions))
    return _satisfying(name, joined(conditions))


def either(name: Node, conditions: list[Node]) -> Node:
    """The set of the real numbers `name` that satisfy one condition or another. Raises Unreadable as `satisfying` does."""
    parts = [_satisfying(name, condition) for condition in conditions]
    if all(part[0] == "set" for part in parts):
        return ("set", tuple(value for part in parts for value in part[1]))
    if all(part[0] in ("group", "set") for part in parts):
        return ("union", tuple(parts))
    raise Unreadable(NO_CONDITION)


def _satisfying(name: Node, condition: Node) -> Node:
    if condition[0] in ("group", "set", "union", "except") or condition == ("word", "set of R"):  # x in [1, 2]
        return condition
    if condition[0] == "rel" and symbols(condition) == {name[1]}:
        interval = as_interval(condition)
        if interval is not None and not any(symbols(end) for end in interval[3]):
            return interval
        (sign, *more), (left, *_, right) = condition[1:]
        value = right if left == name else left
        if not more and sign in ("=", "!=") and name in (left, right) and not symbols(value):
            return ("set" if sign == "=" else "except", (value,))
    raise Unreadable(NO_CONDITION)

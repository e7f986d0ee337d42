"""Intervals, sets of numbers and their unions in one form: disjoint pieces from left to right.

    pieces("[1,2] U [2,3]" as a tree)  -> the piece from 1 to 3, both ends in it
    pieces(("except", (2,)))           -> two pieces, all real numbers but 2

Two different descriptions of one set of numbers have the same pieces. What has an end that is no real number, or that
depends on a symbol, has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from milepost.verifiers.math_scan import Node
from milepost.verifiers.math_value import DIGITS, NoValue, numeric, same_value, symbols

MAX_PIECES = 50
_INFINITY: Node = ("const", "infty")


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

"""Whether two trees of `math_parse` are the same answer, under a stated policy. Nothing in it depends on who asks.

A single value is never equal to a list. Lists and sets are compared without order, tuples, intervals and matrices with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from milepost.verifiers.math_forms import ALL_REALS, is_tuple, one_by_one, ratio_value, simple
from milepost.verifiers.math_intervals import FLIP, Piece, as_interval, narrowed, pieces
from milepost.verifiers.math_scan import Node
from milepost.verifiers.math_units import Unit, read_unit
from milepost.verifiers.math_value import DIGITS, POINTS, NoValue, TooLarge, exact, numeric, same_value, symbols

MAX_ITEMS = 100


@dataclass(frozen=True)
class Policy:
    """What counts as the same; the head of `math` lists the choices for people."""

    percent: str = "lenient"
    """lenient: one side may lack the sign, for numbers above 1 (28% and 28); strict: 28% is 0.28 and nothing else."""
    units: str = "lenient"
    """lenient: a unit may be missing on one side; strict: both or none; ignore: units are not compared."""
    rel_tol: Fraction = Fraction(0)
    abs_tol: Fraction = Fraction(0)
    """Numbers are equal within max(rel_tol·|gold|, abs_tol); 0 and 0: exactly."""


def same(gold: Node, answer: Node, policy: Policy) -> bool:
    """Whether the answer is the gold. Raises TooLarge; anything without a value is equal only to itself."""
    gold, answer = simple(gold), simple(answer)
    if gold == answer:
        return True
    gold, answer = one_by_one(gold, answer)
    if narrowed(gold) or narrowed(answer):
        left, right = (narrowed(node) or pieces(as_interval(node) or node) for node in (gold, answer))
        if left and right:
            return _same_pieces(left, right, policy)
    if {gold[0], answer[0]} & {"all", "any"}:
        return gold[0] == answer[0] and _unordered(gold[1], answer[1], policy)
    left_out = (_left_out(gold), _left_out(answer))
    if any(left_out) and (gold[0] != "rel" or answer[0] != "rel"):
        return _same_but(gold, answer, left_out, policy)
    if gold[0] == "rel" or answer[0] == "rel":
        return _relations(gold, answer, policy)
    if {gold[0], answer[0]} & {"list", "set", "union"}:
        return _collections(gold, answer, policy) or _one_set(gold, answer, policy)
    kinds = {gold[0], answer[0]}
    if "colon" in kinds and len(kinds) == 2:
        gold, answer = ratio_value(gold), ratio_value(answer)
        return gold[0] != "colon" != answer[0] and _scalars(gold, answer, policy)
    if kinds & {"group", "matrix", "colon"}:
        return _ordered(gold, answer, policy)
    if kinds & {"word", "base"}:
        return _names(gold, answer)
    if kinds & {"unit", "pct"}:
        return _quantities(gold, answer, policy)
    return _scalars(gold, answer, policy)


# --- several values -------------------------------------------------------------------------------------------------


def _collections(gold: Node, answer: Node, policy: Policy) -> bool:
    left, right = _pieces(gold), _pieces(answer)
    if left is None or right is None:
        # "1, 2" for the pair (1, 2): the same values in the same order.
        group, items = (gold, answer) if gold[0] == "group" else (answer, gold)
        pair = group[0] == "group" and items[0] == "list" and (group[1], group[2]) == ("(", ")")
        named = _by_name(items[1]) if pair else None
        return named is not None and (_each(group[3], named, policy) if group is gold else _each(named, group[3], policy))
    if {gold[0], answer[0]} == {"union", "list"} or {gold[0], answer[0]} == {"union", "set"}:
        left, right = _intervals(left), _intervals(right)
    if len(_names_in(left)) > 1 and not _names_in(right):
        return _each(_by_name(left) or left, right, policy)  # 2, 1 is not x = 1, y = 2
    if len(_names_in(right)) > 1 and not _names_in(left):
        return _each(left, _by_name(right) or right, policy)
    if any(item[0] == "set" for item in left) != any(item[0] == "set" for item in right):
        return False  # {3}, {3} is not {3}
    if len(right) > 3 * len(left) + 3:  # too many repetitions to sort out, if that is what they are
        return False
    if gold[0] == "set" or answer[0] == "set":
        left, right = _distinct(left, policy), _distinct(right, policy)
    return _unordered(left, right, policy)


def _names_in(items: tuple[Node, ...]) -> set[str]:
    return {str(item[2][0]) for item in items if item[0] == "rel"}


def _by_name(items: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """The items in the order of a point: "y = 2, x = 1" is x = 1, y = 2. None where other names are in no order."""
    names = [str(item[2][0]) for item in items if item[0] == "rel"]
    if names == sorted(names):
        return items
    if len(names) == len(items) == len(set(names)) and set(names) <= _AXES:
        return tuple(sorted(items, key=lambda item: str(item[2][0])))
    return None


_AXES = {str(("sym", name)) for name in "xyz"}


def _one_set(gold: Node, answer: Node, policy: Policy) -> bool:
    """Whether unions of intervals and of sets are the same numbers: {1,2} U {3} is {1,2,3}, [1,2] U [2,3] is [1,3]."""
    if "union" not in (gold[0], answer[0]):
        return False
    left, right = (
        pieces(_as_union(node) if node[0] == "list" else ALL_REALS if node == ("word", "set of r") else node)
        for node in (gold, answer)
    )
    if any(node[0] == "list" and left is not None and len(node[1]) > len(left) for node in (gold, answer)):
        return False  # the same number twice
    return _same_pieces(left, right, policy)


def _as_union(several: Node) -> Node:
    """Of "x = 0 or x >= 2" a union of a set and an interval; of plain values their set."""
    if all(item[0] != "rel" for item in several[1]):
        return ("set", several[1])
    values = (("set", (i[2][1],)) if i[0] == "rel" and i[1] == ("=",) and i[2][0][0] == "sym" else i for i in several[1])
    return ("union", _intervals(tuple(values)))


def _same_pieces(left: tuple[Piece, ...] | None, right: tuple[Piece, ...] | None, policy: Policy) -> bool:
    if left is None or right is None or len(left) != len(right):
        return False
    return all(
        (a.has_low, a.has_high) == (b.has_low, b.has_high) and same(a.low, b.low, policy) and same(a.high, b.high, policy)
        for a, b in zip(left, right)
    )


def _left_out(node: Node) -> tuple[Node | None, tuple[Node, ...]] | None:
    """(the symbol, the numbers that it is not) of "x ≠ 1, x ≠ 2" and of the real numbers without {1, 2}; else None."""
    if node[0] == "except":
        return None, node[1]
    items = node[1] if node[0] == "list" else (node,)
    items = tuple(item for item in items if item != ("word", "set of R"))
    if not all(item[0] == "rel" and item[1] == ("!=",) for item in items) or not items:
        return None
    sides = [item[2] if item[2][0][0] == "sym" else item[2][::-1] for item in items]
    names = {name for name, _ in sides}
    if len(names) > 1 or sides[0][0][0] != "sym" or any(symbols(value) for _, value in sides):
        return None
    values = [simple(value) for _, value in sides]  # x ≠ ±2 names two
    return sides[0][0], tuple(one for value in values for one in (value[1] if value[0] == "list" else (value,)))


def _same_but(gold: Node, answer: Node, left_out: tuple[Any, Any], policy: Policy) -> bool:
    """Whether all real numbers but some are the same numbers: x ≠ 2 is (-∞, 2) U (2, ∞), and x < 2 or x > 2."""
    if all(left_out):
        (name, values), (other_name, others) = left_out
        return (not name or not other_name or name == other_name) and _unordered(values, others, policy)
    described = []
    for node, out in zip((gold, answer), left_out):
        whole = ("except", out[1]) if out else ("union", _intervals(node[1])) if node[0] == "list" else node
        found = pieces(whole)
        if out is None and node[0] == "list" and found is not None:
            found = found if len(found) == len(whole[1]) and {item[0] for item in whole[1]} == {"group"} else None
        described.append(found)
    return _same_pieces(described[0], described[1], policy)


def _pieces(node: Node) -> tuple[Node, ...] | None:
    if node[0] not in ("list", "set", "union"):
        return None
    found: list[Node] = []
    for item in node[1]:
        item = simple(item)
        found += item[1] if item[0] == "list" else [item]
    if len(found) > MAX_ITEMS:
        raise TooLarge
    return tuple(found)


def _intervals(items: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(as_interval(item) or item for item in items)


def _distinct(items: tuple[Node, ...], policy: Policy) -> tuple[Node, ...]:
    kept: list[Node] = []
    for item in items:
        if not any(same(other, item, policy) for other in kept):
            kept.append(item)
    return tuple(kept)


def _unordered(gold: tuple[Node, ...], answer: tuple[Node, ...], policy: Policy) -> bool:
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for item in gold:
        index = next((i for i, other in enumerate(left) if same(item, other, policy)), None)
        if index is None:
            return False
        del left[index]
    return True


def _each(gold: tuple[Node, ...], answer: tuple[Node, ...], policy: Policy) -> bool:
    return len(gold) == len(answer) and all(same(g, a, policy) for g, a in zip(gold, answer))


def _ordered(gold: Node, answer: Node, policy: Policy) -> bool:
    if {gold[0], answer[0]} == {"matrix", "group"}:  # a column written as a tuple
        rows, group = (gold[1], answer) if gold[0] == "matrix" else (answer[1], gold)
        column = all(len(row) == 1 for row in rows) and (group[1], group[2]) == ("(", ")")
        return column and _each(tuple(row[0] for row in rows), group[3], policy)
    if gold[0] != answer[0]:
        return False
    if gold[0] == "matrix":
        return len(gold[1]) == len(answer[1]) and all(_each(g, a, policy) for g, a in zip(gold[1], answer[1]))
    if gold[0] == "colon":
        return _each(gold[1], answer[1], policy)
    return gold[1:3] == answer[1:3] and _each(_placed(gold, answer), _placed(answer, gold), policy)


def _placed(group: Node, other: Node) -> tuple[Node, ...]:
    """The items of a group. Those of (y, x) = (1, 2) in the order of x and y, if the other names them too or is a point."""
    names, others = (node[4] if len(node) > 4 else () for node in (group, other))
    if names and (set(names) == set(others) or (not others and set(names) <= {("sym", name) for name in "xyz"})):
        return tuple(item for _, item in sorted(zip(names, group[3]), key=lambda pair: str(pair[0])))
    return group[3]


# --- relations ------------------------------------------------------------------------------------------------------


def _relations(gold: Node, answer: Node, policy: Policy) -> bool:
    if answer[0] == "rel" and answer[1][-1] == "~":
        return any(same(gold, side, policy) for side in _rounded(answer, policy))
    if gold[0] == "rel" and gold[1][-1] == "~":
        return any(same(side, answer, policy) for side in _rounded(gold, policy)[:1])
    gold_value = _value_of(gold, policy)
    answer_value = _value_of(answer, policy) or (_total(answer) if gold[0] != "rel" else None)
    if gold[0] == answer[0] == "rel":
        if gold_value is not None and answer_value is not None and _left(gold) == _left(answer):
            return same(gold_value, answer_value, policy)
        return _same_relation(gold, answer)
    if gold_value is not None or answer_value is not None:
        return same(
            gold_value if gold_value is not None else gold, answer_value if answer_value is not None else answer, policy
        )
    left, right = as_interval(gold) or gold, as_interval(answer) or answer
    return left[0] == right[0] == "group" and same(left, right, policy)


def _left(node: Node) -> Any:
    """What a relation tells the value of; of y(x) and u(x, t) the y and the u."""
    name = node[2][0]
    if name[0] == "fn" and _is_name(name):
        return ("sym", name[1][1:])
    if name[0] == "*" and name[1][0] == "sym" and (name[2][0] == "paren" or is_tuple(name[2])):
        return name[1]
    called = re.fullmatch(r"([A-Za-z])\([A-Za-z](?:,[A-Za-z])*\)", str(name[1])) if name[0] == "sym" else None
    return ("sym", called[1]) if called else name


def _value_of(node: Node, policy: Policy) -> Node | None:
    """Of "x = 5", "f(x) = 2x" or "1/2 + 1/4 = 3/4" the last side; all sides must agree, so that no second one is paid."""
    if node[0] != "rel" or set(node[1]) != {"="}:
        return None
    sides = node[2]
    if len(sides) == 2 and sides[1][0] == "sym" and not symbols(sides[0]) and not _is_name(sides[0]):
        sides = sides[::-1]  # 5 = x
    while len(sides) > 1 and _is_name(sides[0]):  # x = y = 5
        sides = sides[1:]
    if not sides or any(side[0] == "rel" for side in sides):
        return None
    exactly = replace(policy, rel_tol=Fraction(0), abs_tol=Fraction(0))
    if sides[-1][0] in ("sym", "word") and node[2][0][0] in ("sym", "word"):
        return None  # "A = E" names two answers
    if symbols(node[2][0]) and not _is_name(node[2][0]):
        return None
    return sides[-1] if all(same(side, sides[-1], exactly) for side in sides[:-1]) else None


def _rounded(node: Node, policy: Policy) -> list[Node]:
    """Of "4\\pi \\approx 12.57" what is rounded, and to what, if that has three digits; nothing if it is wrong."""
    before, last = node[2][:-1], node[2][-1]
    exactly = ("rel", node[1][:-1], before) if len(before) > 1 else before[0]
    value = _value_of(exactly, policy) if len(before) > 1 else before[0]
    number = last[1] if last[0] in ("unit", "pct") else last
    number = number[1] if number[0] == "neg" else number
    if "~" in node[1][:-1] or value is None or number[0] != "num":
        return []
    places = next((n for n in range(30) if number[1] * 10**n % 1 == 0), None)
    if places is None or not same(value, last, replace(policy, rel_tol=Fraction(0), abs_tol=Fraction(1, 2 * 10**places))):
        return []
    return [exactly, last] if number[1] * 10**places >= 100 else [exactly]


def _total(node: Node) -> Node | None:
    """Of "m + n = 12" the 12: no equation in two unknowns says what one of them is."""
    if node[0] != "rel" or node[1] != ("=",) or len(symbols(node[2][0])) < 2 or node[2][1][0] in ("rel", "list", "word"):
        return None
    return node[2][1] if not symbols(node[2][1]) and _is_combination(node[2][0]) else None


def _is_combination(node: Node) -> bool:
    """Whether an expression may be what is asked for: a sum without constants, or a product without numbers."""
    terms = list(_terms(node))
    return all(map(symbols, terms)) if len(terms) > 1 else node[0] != "neg" and not _has_factor(node)


def _terms(node: Node) -> Iterator[Node]:
    if node[0] in ("+", "-", "neg"):
        for part in node[1:]:
            yield from _terms(part)
    else:
        yield node


def _has_factor(node: Node) -> bool:
    return node[0] == "num" or (node[0] in ("*", "/") and any(_has_factor(part) for part in node[1:]))


def _is_name(node: Node) -> bool:
    called = node[0] == "*" and node[1][0] == "sym" and node[2][0] == "paren" and node[2][1][0] == "sym"
    function = node[0] == "fn" and node[1][:1] == "@" and all(simple(part)[0] == "sym" for part in node[2])
    return node[0] in ("sym", "word") or called or function


def _same_relation(gold: Node, answer: Node) -> bool:
    """Chains sign by sign; single ones as "something = 0", "something < 0", up to a constant factor that keeps the sign."""
    if len(gold[1]) != len(answer[1]):
        return False
    if len(gold[1]) > 1:
        flipped = (tuple(FLIP.get(s, s) for s in reversed(answer[1])), tuple(reversed(answer[2])))
        return any(
            gold[1] == signs and all(same(g, a, Policy()) for g, a in zip(gold[2], sides))
            for signs, sides in (answer[1:], flipped)
        )
    sign, other = gold[1][0], answer[1][0]
    if symbols(gold) != symbols(answer):
        return False
    ratio = _ratio(("-", *gold[2]), ("-", *answer[2]))
    if ratio is None:
        return False
    return sign == other if ratio > 0 or sign in ("=", "!=", "~") else sign == FLIP.get(other)


def _ratio(a: Node, b: Node) -> Any:
    """The constant a / b, if it is one and real, else None."""
    names, found = sorted(symbols(a)), []
    for first, second in POINTS:
        point = {n: Fraction((first, second)[i % 2]) + Fraction(i // 2, 7) for i, n in enumerate(names)}
        try:
            top, bottom = numeric(a, DIGITS[0], point), numeric(b, DIGITS[0], point)
        except NoValue:
            continue
        if not bottom or not top:
            return None
        found.append(top / bottom)
    if len(found) < 3 or any(abs(r - found[0]) > abs(found[0]) * Fraction(1, 10**100) for r in found):
        return None
    return found[0].real if not found[0].imag else None


# --- single values --------------------------------------------------------------------------------------------------


def _names(gold: Node, answer: Node) -> bool:
    kinds = (gold[0], answer[0])
    if "base" in kinds:  # the answer may leave out the base, never the digits
        based, other = (gold, answer) if gold[0] == "base" else (answer, gold)
        if other[0] == "base":
            return based[1:] == other[1:]
        digits = other[0] == "num" and other[1].denominator == 1 and str(other[1].numerator) == based[1]
        return digits and (based is gold or based[2] == 10)
    names = [{"r": "set of r"}.get(node[1].casefold(), node[1].casefold()) if node[0] == "sym" and "set of r" in
             (gold[1], answer[1]) else str(node[1]).casefold() for node in (gold, answer)]  # fmt: skip
    return all(kind in ("word", "sym", "const") for kind in kinds) and names[0] == names[1]


def _quantities(gold: Node, answer: Node, policy: Policy) -> bool:
    """Units first, then percent signs, then the numbers."""
    if symbols(gold) or symbols(answer):
        gold, answer = _as_product(gold, symbols(answer)), _as_product(answer, symbols(gold))
    if any(len(node) > 3 and node[0] == "unit" for node in (gold, answer)) and not gold[0] == answer[0] == "unit":
        return False  # of 1 hour 30 minutes no bare number is told of what it is a number
    if answer[0] == "unit" and gold[0] != "unit" and _MAY_SCALE.match(answer[2]):
        return False
    if gold[0] == answer[0] == "unit" and len({gold[2], answer[2]} & {*_SIGNS_OF_MONEY}) == 1:  # $18 and $18 per hour
        gold, answer = (("unit", node[1], node[2].partition(" per ")[0]) for node in (gold, answer))
    gold, gold_unit = _split(gold)
    answer, answer_unit = _split(answer)
    if policy.units == "strict" and (gold_unit is None) != (answer_unit is None):
        return False
    if gold_unit and answer_unit and policy.units != "ignore":
        if gold_unit.dims != answer_unit.dims:
            return False
        if gold_unit.factor != answer_unit.factor:
            answer = ("*", answer, ("num", answer_unit.factor / gold_unit.factor))
    if "pct" in (gold[0], answer[0]):
        if gold_unit or answer_unit:
            return gold[0] == answer[0] and same(gold, answer, policy)
        return _percent(gold, answer, policy)
    return same(gold, answer, policy)


_SIGNS_OF_MONEY = "$€£¥₹"
_MAY_SCALE = re.compile(r"[kKMB](?![^\s])")
"""As in 12K dollars: beside a bare gold nothing says that they are kelvin, moles per litre or bytes."""


def _as_product(node: Node, names: frozenset[str]) -> Node:
    """2 m beside 2m or m + n: the letter is a symbol there, and in 6 s^2 its power; 3 nm beside 3mn is a product."""
    if node[0] != "unit" or len(node) > 3 or not re.fullmatch(r"(?:[A-Za-z](?:\^\d)?){1,4}", node[2]):
        return node
    factors = re.findall(r"([A-Za-z])(?:\^(\d))?", node[2])
    if len(factors) > 1 and not {letter for letter, _ in factors} <= names:
        return node
    product = node[1]
    for letter, power in factors:
        symbol: Node = ("sym", letter)
        product = ("*", product, ("^", symbol, ("num", Fraction(int(power)))) if power else symbol)
    return product


def _split(node: Node) -> tuple[Node, Unit | None]:
    if node[0] == "unit":
        return simple(node[1]), read_unit(node[2])
    return node, None


def _percent(gold: Node, answer: Node, policy: Policy) -> bool:
    if _scalars(gold, answer, policy):
        return True
    if policy.percent == "strict" or gold[0] == answer[0]:
        return False
    gold, answer = (node[1] if node[0] == "pct" else node for node in (gold, answer))
    value = exact(gold)
    return value is not None and abs(value) > 1 and _scalars(gold, answer, policy)


def _scalars(gold: Node, answer: Node, policy: Policy) -> bool:
    ends = (_infinite(gold), _infinite(answer))
    if any(ends):
        return ends[0] == ends[1]
    try:
        if same_value(gold, answer):
            return True
        if not policy.rel_tol and not policy.abs_tol:
            return False
        return not symbols(gold) and not symbols(answer) and _close(gold, answer, policy)
    except NoValue:
        return False


def _infinite(node: Node) -> int:
    if node[0] == "neg":
        return -_infinite(node[1])
    return int(node == ("const", "infty"))


def _close(gold: Node, answer: Node, policy: Policy) -> bool:
    left, right = exact(gold), exact(answer)
    if left is None or right is None:
        left, right = numeric(gold, DIGITS[0], {}), numeric(answer, DIGITS[0], {})
        rel, least = (t.numerator / left.context.mpf(t.denominator) for t in (policy.rel_tol, policy.abs_tol))
        return abs(left - right) <= max(rel * abs(left), least)
    return abs(left - right) <= max(policy.rel_tol * abs(left), policy.abs_tol)

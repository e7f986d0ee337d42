"""Trees of `math_parse` in the form in which they are compared: one tree for what may be written in several ways.

    simple(the tree of "all real numbers")               -> that of \\mathbb{R}
    simple(the tree of "x \\pm 1")                        -> the list of x + 1 and x - 1
    one_by_one(that of "(1, 1)", that of "x = y = 1")    -> the point, and the list of x = 1 and y = 1

Nothing here compares: `math_compare` does.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from milepost.verifiers.math_intervals import as_interval
from milepost.verifiers.math_scan import Node
from milepost.verifiers.math_value import symbols

ALL_REALS: Node = ("group", "(", ")", (("neg", ("const", "infty")), ("const", "infty")))
_WORDS: dict[str, Node] = {
    **dict.fromkeys(("all real numbers", "all reals", "the real numbers", "real numbers", "the set of all real numbers",
                     "set of all real numbers"), ("word", "set of r")),
    **dict.fromkeys(("no solution", "no solutions", "the empty set", "empty set"), ("set", ())),
    **dict.fromkeys(("dne", "limit does not exist"), ("word", "does not exist")),
    **dict.fromkeys(("infinity", "positive infinity"), ("const", "infty")),
    "negative infinity": ("neg", ("const", "infty")),
    **{word: ("num", Fraction(number)) for number, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"])},
}  # fmt: skip
"""Words that name what has a sign as well."""


def simple(node: Node) -> Node:
    """The tree, where it has several spellings in the one that is compared; what it holds is left as it is."""
    while node[0] == "paren":
        node = node[1]
    if node[0] == "^" and node[2] == ("sym", "T") and (node[1][0] == "matrix" or is_tuple(node[1])):
        rows = node[1][1] if node[1][0] == "matrix" else (node[1][3],)
        return ("matrix", tuple(zip(*rows))) if len({len(row) for row in rows}) == 1 else node
    if node[0] == "*" and node[1][0] == "sym" and node[1][1][:1].isupper() and is_tuple(node[2]):
        return node[2]  # the point A(1, 2)
    if node[0] == "rel" and as_interval(node) == ALL_REALS:
        return ("word", "set of r")
    if node[0] == "neg" and node[1][0] in ("unit", "pct"):
        return (node[1][0], ("neg", node[1][1]), *node[1][2:])
    if node[0] == "/" and node[1][0] == "unit":
        return ("unit", ("/", node[1][1], node[2]), *node[1][2:])
    if node == ALL_REALS or node == ("word", "set of R"):
        return ("word", "set of r")
    if node[0] == "word":
        return _WORDS.get(node[1], node)
    if node[0] == "rel" or not _contains(node, "pm"):
        return node
    values = (_signed(node, "+"), _signed(node, "-"))
    return ("list", values) if node[0] not in ("list", "set") else node


def one_by_one(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Of x = y = z = 1 beside a point, a list or another such chain three equations; of {3} beside a lone 3 the 3."""
    if answer[0] in ("rel", "list", "group", "set"):
        gold = _equations(gold) or gold
    if gold[0] in ("list", "group", "set"):
        answer = _equations(answer) or answer
    collections = ("set", "list", "union", "except", "rel")
    if gold[0] == "set" and len(gold[1]) == 1 and answer[0] not in collections:
        gold = simple(gold[1][0])
    elif answer[0] == "set" and len(answer[1]) == 1 and gold[0] not in collections:
        answer = simple(answer[1][0])
    return gold, answer


def _equations(node: Node) -> Node | None:
    if node[0] != "rel" or set(node[1]) != {"="} or len(node[2]) < 3 or symbols(node[2][-1]):
        return None
    *names, value = node[2]
    if not all(name[0] == "sym" and re.fullmatch(r"[a-z](?:_\w)?", name[1]) for name in names):
        return None
    return ("list", tuple(("rel", ("=",), (name, value)) for name in names))


def with_constants_of(gold: Node, answer: Node) -> Node:
    """An answer whose constant is called c where the gold's is C or k, and c_1 where it is C_1."""
    asked, given = symbols(gold), symbols(answer)
    missing, more = sorted(asked - given), sorted(given - asked)
    if gold[0] == "sym" or not missing or len(missing) != len(more) or not all(map(_CONSTANT.fullmatch, (*missing, *more))):
        return answer
    pairs = list(zip(more, missing))
    if len(pairs) > 1 and any(a.casefold() != b.casefold() for a, b in pairs):
        return answer
    renamed = answer
    for name, other in pairs:
        renamed = _replaced(renamed, ("sym", name), ("sym", other))
    return renamed


_CONSTANT = re.compile(r"[cCkK](?:_\w)?")


def _replaced(node: Any, old: Node, new: Node) -> Any:
    if node == old:
        return new
    return tuple(_replaced(part, old, new) for part in node) if isinstance(node, tuple) else node


def is_tuple(node: Node) -> bool:
    return node[0] == "group" and len(node[3]) > 1 and node[1:3] in (("(", ")"), ("[", "]"))


def _contains(node: Any, kind: str) -> bool:
    return isinstance(node, tuple) and (node[:1] == (kind,) or any(_contains(part, kind) for part in node))


def _signed(node: Any, sign: str) -> Any:
    if not isinstance(node, tuple):
        return node
    if node[:1] == ("pm",):
        return (sign, _signed(node[1], sign), _signed(node[2], sign))
    return tuple(_signed(part, sign) for part in node)


def ratio_value(node: Node) -> Node:
    """3:4 as 3/4."""
    return ("/", *node[1]) if node[0] == "colon" and len(node[1]) == 2 else node

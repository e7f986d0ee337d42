"""Mathematics as a tree, read by a grammar of our own: it computes nothing, so no text can make it slow or large.

    parse("2\\frac12")      -> ("num", Fraction(5, 2))
    parse("x^2 + 3x")      -> ("+", ("^", x, 2), ("*", 3, x))
    parse("[1, 2)")        -> ("group", "[", ")", (1, 2))       also ( ) and [ ]
    parse("1, 2 or 3")     -> ("list", (1, 2, 3))               several answers, never equal to one of them
    parse("\\{1, 2\\}")      -> ("set", (1, 2))
    parse("0 < x \\le 5")   -> ("rel", ("<", "<="), (0, x, 5))
    parse("AB = 5")        -> ("rel", ("=",), (the name AB, 5))         "~" for the sign of 4\\pi \\approx 12.57
    parse("10 cm")         -> ("unit", 10, "cm")
    parse("1 h 30 min")    -> ("unit", 3/2, "h", True)      several units of one quantity
    parse("28\\%")          -> ("pct", 28)
    parse("Evelyn")        -> ("word", "evelyn")

Other nodes: num sym const neg pm + - * / ^ ! fn abs union except matrix base colon. Raises Unreadable.
"""

from __future__ import annotations

import re
from fractions import Fraction

from milepost.verifiers.math_domain import formula_of, structure
from milepost.verifiers.math_intervals import either, outside, satisfying, unfolded
from milepost.verifiers.math_names import is_power, name_of, sides
from milepost.verifiers.math_scan import (
    FUNCTIONS,
    SCALES,
    SYMBOLS,
    Node,
    Scanner,
    Unreadable,
    adjacent,
    as_word,
    is_product,
    joined,
)
from milepost.verifiers.math_text import MAX_ANSWER_CHARACTERS, plain, unwrap

MAX_DEPTH = 40
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", r"\le": "<=", r"\leq": "<=", r"\leqslant": "<=", r"\ge": ">=",
    r"\geq": ">=", r"\geqslant": ">=", r"\lt": "<", r"\gt": ">", r"\ne": "!=", r"\neq": "!=", "==": "=", "!=": "!=",
    r"\in": "in", r"\approx": "~", r"\equiv": "=", ":=": "=",
}  # fmt: skip

_CONDITION = re.compile(
    r"\s*(\\[A-Za-z]+|[A-Za-z])\s*(?:\\in\s*\\mathbb\s*(?:\{\s*R\s*\}|R)\s*)?(?:\\mid(?![A-Za-z])|\\colon(?![A-Za-z])|[|:])"
)
"""The beginning of \\{x \\in \\mathbb{R} \\mid …\\}, behind its brace."""


def parse(text: str, grouped: bool = True) -> Node:
    """The tree of a whole text. Raises Unreadable, also for texts that are too long or nested too deep.

    grouped: 1,234 is one number; else it is two, as in the point (12,345).
    """
    if len(text) > MAX_ANSWER_CHARACTERS:
        raise Unreadable(f"longer than {MAX_ANSWER_CHARACTERS} characters")
    text = unwrap(plain(text))
    text = formula_of(text)
    if not text:
        raise Unreadable("nothing there")
    if word := as_word(text) or structure(text):
        return ("word", word)
    try:
        return _named(text, grouped) or _Reader(text, grouped).everything()
    except RecursionError:
        raise Unreadable("nested too deep") from None


def _named(text: str, grouped: bool) -> Node | None:
    """Of "AB = 5" and "f(2) = 2 + 3 = 5" the relation of a name and the values, else None."""
    parts = sides(text)
    names = [name_of(side) for _, side in parts]
    num = names.index(None) if None in names else len(names)
    if not 0 < num < len(parts):
        return None
    try:
        value = _Reader(text[parts[num][0] :], grouped).everything()
    except Unreadable:
        return None
    if value[0] in ("list", "word", "all", "any"):
        return None
    if value[0] != "matrix" and is_power(str(names[0])):
        return None
    name = ("sym", names[0])
    return ("rel", ("=", *value[1]), (name, *value[2])) if value[0] == "rel" else ("rel", ("=",), (name, value))


_BASED = re.compile(r"(?:(?=[0-9]*[A-F])([0-9A-F]{2,40})|\(([0-9A-F]{1,40})\))\s*_\s*\{?\s*(\d{1,2})\s*\}?")
"""Digits that are letters, and digits in brackets: 2E6_{16}, (321)_5."""
_FORMULA_BEHIND = re.compile(
    r"\s*(?:\d[\d.,]*\s*)?(?:\\(?:frac|sqrt|cdot|times|pi)(?![A-Za-z])|[a-z](?![a-z]|\s+[a-z]{2}))"
)
"""Behind a sign of money: more than a number."""
_RATE = re.compile(
    r"\s*(?:\\text\s*\{\s*)?(?:(?:per|an?|each|every)\s+([a-z]+)|/\s*([a-z]{2,}|h)|each"
    r"|in total|in all|altogether|total|USD|dollars?)\s*\}?"
    r"(?=\s*(?:\Z|[,;]|\\text\s*\{\s*(?:or|and)\b|or\b|and\b))"
)
"""Behind an amount of money: $18 per day, $18/hour, $18 in total."""


_EXPONENTIAL = re.compile(r"\s*e\s*\^")
"""sin x e^x is no sine of all of it."""
_CALLED, _CALLED_SIMPLY = ("f", r"\zeta", r"\Gamma"), ("g", "F", "G", r"\phi", r"\psi")
"""Functions whatever they are given, and where that is a number or a letter."""
_VARIABLES = frozenset("abcdklmnorstxyzACDKLMQRUXYZ")
"""Letters that are factors in front of a bracket, or points."""
_GIVEN = re.compile(r"\(\s*(?:(-?\d+(?:\.\d+)?((?:\s*,\s*-?\d+(?:\.\d+)?)+)?)|[A-Za-z]|\\[a-z]+)\s*\)")
_POWER = re.compile(r"\s*\d+(?:\.\d+)?\s*(?:\^|\*\*)\s*(?!\{?\s*\\circ)")


class _Reader(Scanner):
    """Recursive descent over the text itself. Each method reads one construct."""

    # --- lists, relations, sets

    def everything(self) -> Node:
        joints: set[str] = set()
        items = self.items(joints)
        if self.peek():
            raise Unreadable(f"what is {self.text[self.at : self.at + 20]!r}?")
        return items[0] if len(items) == 1 else joined(items, joints)

    def items(self, joints: set[str] | None = None) -> list[Node]:
        """joints: gets what stands between the items; without it only commas may."""
        items = [self.relation()]
        while True:
            comma = self.take(",", ";")
            word = self.take_word("and", "or") if comma or joints is not None else None
            sign = self.take(r"\lor", r"\land") if joints is not None and not (comma or word) else None
            if not (comma or word or sign):
                return items
            if joints is not None:
                joints.add(word or sign or ",")
            items.append(self.relation())

    def relation(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        self.take(r"\approx")
        sides, signs = [self.union()], []
        while symbol := self.take(*_RELATIONS):
            sign = _RELATIONS[symbol]
            signs.append("=" if sign == "~" and sides[-1][0] in ("sym", "word") else sign)  # x ≈ 1.41 gives x
            sides.append(self.union())
        self.depth -= 1
        if "in" in signs:
            return _domain(signs, sides)
        if (
            signs == ["="]
            and _are_coordinates(sides[0])
            and sides[1][0] == "group"
            and len(sides[1][3]) == len(sides[0][3])
        ):
            return (*sides[1][:4], sides[0][3])  # (x, y) = (3, -1) names a point
        if len(signs) == 1 and (set_ := unfolded(signs[0], *sides)) is not None:
            return set_
        return ("rel", tuple(signs), tuple(sides)) if signs else sides[0]

    def union(self) -> Node:
        parts = [self.sum()]
        while self.take(r"\cup") or (self.word() == "U" and parts[0][0] in ("group", "set") and self.take("U")):
            parts.append(self.sum())
        if parts == [("word", "set of R")] and self.take(r"\setminus", r"\backslash"):
            parts = [("-", parts[0], self.sum())]
        if len(parts) == 1 and parts[0][:2] == ("-", ("word", "set of R")) and parts[0][2][0] == "set":
            return ("except", parts[0][2][1])
        if len(parts) == 1 and parts[0][:2] == ("-", ("word", "set of R")) and _is_interval(parts[0][2]):
            _, opening, closing, (low, high) = parts[0][2]
            return outside(low, opening == "(", high, closing == ")")
        if len(parts) == 1 and self.take(":"):
            parts.append(self.sum())
            while self.take(":"):
                parts.append(self.sum())
            return ("colon", tuple(parts))
        return parts[0] if len(parts) == 1 else ("union", tuple(parts))

    # --- sums, products, powers

    def sum(self) -> Node:
        if self.take(r"\pm"):
            left: Node = ("pm", ("num", Fraction(0)), self.product())
        elif self.take("-"):
            left = ("neg", self.product())
        else:
            self.take("+")
            left = self.product()
        while symbol := self.take("+", "-", r"\pm"):
            left = ("pm" if symbol == r"\pm" else symbol, left, self.product())
        if self.take(r"\choose"):
            return ("fn", "binom", (left, self.sum()))
        return ("/", left, self.sum()) if self.take(r"\over") else left

    def product(self) -> Node:
        self.space()
        start = self.at
        left = last = self.factor()
        while True:
            if symbol := self.take("*", "/", r"\times", r"\cdot", r"\div"):
                self.depth += 1
                right = self.signed()
                self.depth -= 1
                left = ("/" if symbol in ("/", r"\div") else "*", left, right)
            elif (unit := self.unit(left, start)) is not None:
                left = unit
            elif self.follows() or (self.peek().isdigit() and (last[0] == "!" or self.power_follows(last))):  # 5!7!
                last = self.factor()
                left = adjacent(left, last)
            else:
                return left

    def signed(self) -> Node:
        """A factor that may carry its own sign: 3 * -2."""
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        self.depth += 1
        try:
            return ("neg", self.signed()) if self.take("-") else self.factor()
        finally:
            self.depth -= 1

    def follows(self) -> bool:
        """Whether a factor stands side by side with the one before it. A number never does: "7 6 5" is no product."""
        symbol = self.peek()
        if symbol == "|":
            return not self.bars
        if re.compile(r"\\text\s*\{\s*(?:or|and)\s*\}").match(self.text, self.at):
            return False
        if symbol.startswith("\\"):
            return symbol in SYMBOLS or symbol[1:] in FUNCTIONS or symbol in (
                r"\vec", r"\frac", r"\pi", r"\sqrt", r"\text", r"\binom", r"\lfloor", r"\lceil", r"\infty", r"\lvert",
            )  # fmt: skip
        if symbol.isalpha():
            return self.word() not in ("or", "and", "U") or self.word() == "U"
        return symbol == "("

    def power_follows(self, last: Node) -> bool:
        """Whether a number with an exponent stands behind a factor that is none: n2^{n-1}, (n-1)2^n."""
        return last[0] not in ("num", "unit", "pct", "word") and bool(_POWER.match(self.text, self.at))

    def factor(self) -> Node:
        base = self.atom()
        while True:
            if self.take("^", "**"):
                if self.take(r"\circ", r"{\circ}"):
                    base = ("unit", base, "degree")
                elif self.text.startswith(r"{\circ}", self.at) or self.text.startswith(r"{ \circ }", self.at):
                    self.at = self.text.index("}", self.at) + 1
                    base = ("unit", base, "degree")
                else:
                    base = ("^", base, self.argument(signed=True))
            elif self.peek() == "!" and self.take("!"):
                twice = self.text.startswith("!", self.at)  # 5!! is 5·3·1
                self.at += twice
                base = ("fn", "fac2", (base,)) if twice else ("!", base)
            elif self.take("%") or (base[0] in ("num", "neg") and self.take_word("percent")):
                base = ("pct", base)
            else:
                return base

    # --- atoms

    def argument(self, signed: bool = False, single: bool = False) -> Node:
        """What ^, \\sqrt, \\frac take: {…}, or one atom; of a number only one digit if `single`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        try:
            if self.take("{"):
                inside = self.relation()
                self.need("}")
                return inside
            if signed and self.take("-"):
                return ("neg", self.argument(signed=True))
            self.space()
            if single and self.at < len(self.text) and self.text[self.at].isdigit():
                self.at += 1
                return ("num", Fraction(int(self.text[self.at - 1])))
            base = self.atom()
            return ("^", base, self.argument(signed=True)) if not single and self.take("^", "**") else base
        finally:
            self.depth -= 1

    def atom(self) -> Node:
        symbol = self.peek()
        if based := _BASED.match(self.text, self.at):
            digits, base = (based[1] or based[2]).upper(), int(based[3])
            if all(int(digit, 36) < base for digit in digits):
                self.at = based.end()
                return ("base", digits.lstrip("0") or "0", base)
        if symbol.isdigit() or symbol == ".":
            return self.number()
        if symbol == "|":
            return self.bar()
        if symbol in ("(", "["):
            return self.group()
        if symbol == "{":
            return self.argument()
        if symbol in ("$", "€", "£", "¥", "₹"):
            self.at += 1
            sign = -1 if self.take("-") else 1
            if _FORMULA_BEHIND.match(self.text, self.at):
                inner = self.product()
                return ("unit", ("neg", inner) if sign < 0 else inner, symbol)
            amount = self.number()
            scale = next((v for k, v in SCALES.items() if self.take_word(k)), 1)
            if rate := _RATE.match(self.text, self.at):
                self.at = rate.end()
            noun = next(filter(None, rate.groups()), "") if rate else ""
            return ("unit", ("num", amount[1] * scale * sign), f"{symbol} per {noun}" if noun else symbol)
        if symbol.startswith("\\"):
            return self.command(symbol)
        if symbol.isalpha():
            return self.letters()
        raise Unreadable(f"what is {self.text[self.at : self.at + 20]!r}?" if symbol else "it breaks off")

    def bar(self) -> Node:
        self.need("|")
        self.bars += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        inside = self.sum()
        self.depth -= 1
        self.bars -= 1
        self.need("|")
        return ("abs", inside)

    def group(self) -> Node:
        """(…), […], half-open intervals, tuples, nested lists; parentheses around one thing are that thing."""
        opening, bars = self.peek(), self.bars
        self.at += 1
        self.bars = 0
        if self.take(")" if opening == "(" else "]"):
            return ("group", opening, ")" if opening == "(" else "]", ())
        inside = self.items()
        self.bars = bars
        closing = self.take(")", "]")
        if not closing:
            raise Unreadable("a bracket does not close")
        if len(inside) == 1 and inside[0][0] == "matrix":
            return inside[0]  # \\left[ \\begin{array} … \\end{array} \\right]
        if len(inside) == 1 and opening == "(" and closing == ")":
            return ("paren", inside[0]) if inside[0][0] in ("num", "neg", "sym") else inside[0]
        if opening == closing.translate({41: 40, 93: 91}) == "[" and inside and all(_is_row(row) for row in inside):
            return ("matrix", tuple(row[3] for row in inside))
        return ("group", opening, closing, tuple(inside))

    def command(self, name: str) -> Node:
        self.at += len(name)
        if name == r"\frac":
            top = self.argument(single=True)
            return ("/", top, self.argument(single=True))
        if name == r"\binom":
            top = self.argument(single=True)
            return ("fn", "binom", (top, self.argument(single=True)))
        if name == r"\sqrt":
            return self.root()
        if name == r"\{":
            return self.braces()
        if name in (r"\pi", r"\infty"):
            return ("const", name[1:])
        if name in (r"\emptyset", r"\varnothing"):
            return ("set", ())
        if name in SYMBOLS:
            return self.subscripted(name)
        if name[1:] in FUNCTIONS:
            return self.function(name[1:])
        if name in (r"\lfloor", r"\lceil", r"\lvert"):
            inside = self.sum()
            self.need(name.replace(r"\l", r"\r", 1))
            return (
                ("abs", inside) if name == r"\lvert" else ("fn", {"\\lfloor": "floor", "\\lceil": "ceil"}[name], (inside,))
            )
        if name == r"\mathbb":
            match = re.compile(r"\s*\{?\s*([A-Z])\s*\}?").match(self.text, self.at)
            if match:
                self.at = match.end()
                return ("word", f"set of {match[1]}")
        if name == r"\begin":
            return self.matrix()
        if name == r"\text":
            return self.text_command()
        if name in (r"\overline", r"\vec", r"\widehat") and (
            letters := re.compile(r"\s*\{\s*([A-Za-z]{1,3}|0)\s*\}").match(self.text, self.at)
        ):
            self.at = letters.end()
            return ("sym", f"{name}{{{letters[1]}}}")
        raise Unreadable(f"{name} is not known here")

    def root(self) -> Node:
        degree: Node = ("num", Fraction(2))
        if self.take("["):
            degree = self.sum()
            self.need("]")
        return ("^", self.argument(single=True), ("/", ("num", Fraction(1)), degree))

    def braces(self) -> Node:
        if self.take(r"\}"):
            return ("set", ())
        joints: set[str] = set()
        if begun := _CONDITION.match(self.text, self.at):
            self.at = begun.end()
            return self.condition(begun[1])
        inside = self.items(joints)
        self.need(r"\}")
        if joints & {r"\lor", r"\land"}:
            raise Unreadable("a condition in a set")
        return ("set", tuple(inside))

    def condition(self, name: str) -> Node:
        """The rest of \\{x \\mid x > 2\\}: as an interval, a union, a set or what it leaves out. A comma is an "and"."""
        joints: set[str] = set()
        items = self.items(joints)
        self.need(r"\}")
        if not joints & {"or", r"\lor"}:
            return satisfying(("sym", name), items, lambda bounds: joined(bounds, {"and"}))
        if joints - {"or", r"\lor"}:
            raise Unreadable("both and and or")
        return either(("sym", name), items)

    def text_command(self) -> Node:
        self.need("{")
        end = self.text.find("}", self.at)
        if end < 0:
            raise Unreadable("a brace does not close")
        inside, self.at = self.text[self.at : end].strip(), end + 1
        if inside in ("i", "e", "d") or (len(inside) == 1 and inside.isalpha()):
            return ("const", inside) if inside in "ie" else ("sym", inside)
        if inside in FUNCTIONS:
            return self.function(inside)
        if inside == "pi":
            return ("const", "pi")
        word = as_word(rf"\text{{{inside}}}")
        if not word:
            raise Unreadable(f"what is {inside[:20]!r}?")
        return ("word", word)

    def function(self, name: str) -> Node:
        power = self.argument(signed=True) if self.take("^", "**") else None
        base = self.argument(single=True) if name == "log" and self.take("_") else None
        if name == "sqrt" and self.peek() == "(":
            return ("^", self.group(), ("/", ("num", Fraction(1)), ("num", Fraction(2))))
        if self.peek() == "(":
            inside = self.group()
            arguments = inside[3] if inside[0] == "group" else (inside,)
        elif self.peek() == "{":
            arguments = (self.argument(),)
        else:  # sin 2x is the sine of 2x
            inner = self.factor()
            while (
                self.follows()
                and not _EXPONENTIAL.match(self.text, self.at)
                and self.peek()[1:] not in FUNCTIONS
                and self.word() not in FUNCTIONS
                and self.peek() != "("
            ):
                inner = adjacent(inner, self.factor())
            arguments = (inner,)
        if power == ("neg", ("num", Fraction(1))) and f"arc{name}" in FUNCTIONS:
            return ("fn", f"arc{name}", arguments)
        if power is not None and power[0] == "neg":
            raise Unreadable(f"{name}^-1 may be an inverse or a reciprocal")
        node: Node = ("fn", name, arguments if base is None else (*arguments, base))
        return node if power is None else ("^", node, power)

    def letters(self) -> Node:
        word = self.word()
        if not word:
            raise Unreadable(f"what is {self.text[self.at : self.at + 20]!r}?")
        if word in FUNCTIONS or word == "pi":
            self.at += len(word)
            return ("const", "pi") if word == "pi" else self.function(word)
        if word in ("inf", "infinity", "oo"):
            self.at += len(word)
            return ("const", "infty")
        if not is_product(word):
            self.at += len(word)
            return ("word", word.casefold())
        self.at += 1
        return self.subscripted(word[0])

    def subscripted(self, name: str) -> Node:
        if self.take("_"):
            index = re.compile(r"\{([A-Za-z0-9,+\- ]{1,12})\}|([A-Za-z0-9])").match(self.text, self.at)
            if not index:
                raise Unreadable("a subscript is not readable")
            self.at = index.end()
            return self.called(name, f"{name}_{index[1] or index[2]}")
        return ("const", name) if name in ("e", "i") else self.called(name, name)

    def called(self, name: str, whole: str) -> Node:
        """The symbol, or its value for arguments: f(0) is no product of f and 0."""
        if self.text[self.at : self.at + 1] != "(" or not _is_function(name, _GIVEN.match(self.text, self.at)):
            return ("sym", whole)
        inside = self.group()
        return ("fn", f"@{whole}", inside[3] if inside[0] == "group" else (inside,))

    def matrix(self) -> Node:
        match = re.compile(r"\{([pbB]?matrix|smallmatrix|array)\}(?:\{[clr| ]*\})?").match(self.text, self.at)
        if not match:
            raise Unreadable("this environment is not known here")
        self.at = match.end()
        rows: list[tuple[Node, ...]] = []
        row = [self.relation()]
        while True:
            if self.take("&"):
                row.append(self.relation())
                continue
            rows.append(tuple(row))
            if self.take("\\\\") and self.peek() != r"\end":
                row = [self.relation()]
                continue
            break
        self.need(r"\end")
        self.need("{")
        self.at = self.text.index("}", self.at) + 1 if "}" in self.text[self.at :] else len(self.text)
        return ("matrix", tuple(rows))


def _is_function(name: str, given: re.Match[str] | None) -> bool:
    """Whether a letter before a bracket with `given` in it is a function: k(3), h(a + b) are products, P(3, -1) a point."""
    if given and given[2]:
        return name == "N" or name in _CALLED
    if name in _CALLED or not given:
        return name in _CALLED
    return name not in _VARIABLES if given[1] else name in (*_CALLED_SIMPLY, "P")


def _domain(signs: list[str], sides: list[Node]) -> Node:
    """Of "x in [1, 2]" the interval. Anything else may name two answers."""
    of = sides[1]
    if signs == ["in"] and _are_coordinates(sides[0]) and of[0] == "set" and all(item[0] == "group" for item in of[1]):
        return of  # (x, y) in {(2, 3), (3, 2)}
    if (
        signs != ["in"]
        or sides[0][0] != "sym"
        or not (of[0] in ("group", "set", "union", "except") or of[1:] == ("set of R",))
    ):
        raise Unreadable("what is in a set other than the real numbers, intervals and lists of members is not known here")
    return of


def _are_coordinates(node: Node) -> bool:
    """(x, y): different symbols in parentheses."""
    return (
        node[0] == "group"
        and node[1:3] == ("(", ")")
        and all(part[0] == "sym" for part in node[3])
        and (len({*node[3]}) == len(node[3]) > 1)
    )


def _is_interval(node: Node) -> bool:
    return node[0] == "group" and len(node[3]) == 2


def _is_row(node: Node) -> bool:
    return node[0] == "group" and node[1] == "[" and node[2] == "]"

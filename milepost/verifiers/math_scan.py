"""The lower half of the grammar: symbols, numbers, words and units, read from a text at a position."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from milepost.verifiers.around import SCALE_WORDS
from milepost.verifiers.math_units import known_unit, read_unit

Node = tuple[Any, ...]


class Unreadable(ValueError):
    """The text is no mathematics that this grammar knows."""


FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "lg",
    "exp", "sqrt", "abs", "gcd", "lcm", "floor", "ceil",
}  # fmt: skip
_GREEK = """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi
varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell"""
SYMBOLS = frozenset("\\" + name for name in _GREEK.split())
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
          "quadrillion": 10**15, "lakh": 10**5, "crore": 10**7}  # fmt: skip
# Words after a number that change the value or name another one: such a text is no quantity.
_OTHER_WORDS = """or and not no to if is are either neither nor maybe perhaps about approximately almost nearly over times
plus minus negative half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths
eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths squared cubed factorial divided by
multiplied choose mod modulo wrong false but then else vs versus through until between less more than at least most for any
all every other below above zero root
roots inverse reciprocal double triple twice thrice opposite short mistake incorrect correct under off away score base power
exponent digits conjugate complement squares cubes answers
remainder rem past after before greater tens pi
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety doubled tripled halved unless except none nothing unknown
unsure probably possibly likely"""
_NO_UNITS = (frozenset(_OTHER_WORDS.split()) | SCALES.keys() | frozenset(SCALE_WORDS.split())) - {"miles", "grand", "gross"}
_NO_UNIT_ALONE = re.compile(r"(?:grand|gross)(?:\s+(?:of|dollars?|euros?)\b.*)?", re.IGNORECASE)
_TWO_LETTERS = (
    "sq cu cm mm km dm nm kg mg lb oz ml cl dl hr hz kb mb gb tb kw mw kj ms ns us ft in yd mi pm am ha pa ev ma kv kn"
)
_SHORT_UNITS = frozenset(_TWO_LETTERS.split())
_NUMBER = re.compile(
    r"\d{1,3}(?:\.\d{3})+,\d{1,2}(?![\d,.])|\d{1,3}(?:,\d{3})+(?![\d])(?:\.\d+)?(?!,\d)|\d+(?:\.(?!\.)\d*)?|\.\d+"
)
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
          "twelve": 12, "sixteen": 16}  # fmt: skip
_BASE = re.compile(rf"_\{{?\s*(?:(\d{{1,2}})|(?:\\text\s*\{{\s*)?({'|'.join(_BASES)})(?![a-z])\s*\}}?)\s*\}}?")
_UNGROUPED = re.compile(r"\d+(?:\.(?!\.)\d*)?|\.\d+")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_BEHIND_A_UNIT = re.compile(
    r"[,;)\]=<>+&|]|\\[}\\]|\s-\s|\s(?:or|and)\s|\\text\s*\{\s*(?:or|and)\s*\}|\\(?:lor|land|approx)(?![A-Za-z])"
)
_NAME = r"\s*(?:\\text\s*\{\s*([A-Za-z]+)\.?\s*\}|([A-Za-z]+)\.?(?![A-Za-z]))"
_UNIT_NAME = re.compile(_NAME)
_SMALLER = re.compile(r"\s*(?:and\s|\\text\s*\{\s*and\s*\})?\s*(\d+(?:\.\d+)?)" + _NAME)
_COUNTED = re.compile(r"\bmore\b(?!\s+than\b)|\btimes(?:\s+as\s+(?:many|much|large|big|long|old|high|tall|fast|heavy))?\Z")
"""18 more eggs are 18 eggs more, and 18 times are 18."""
_FOREIGN_UNIT = re.compile(
    r"\s*(?:\\text\s*\{\s*)?([元块圆円个個名人只隻本枚張张岁歲天日年月分秒米克升件条條次种種道题題台辆輛斤]|厘米|公里|千米|公斤|千克|分钟|小时"
    r"|平方米|개|명|원|권|마리|살|일|년|시간|분|초|미터|руб(?:\.|л\w*)|доллар\w*|цент\w*|метр\w*|км|см|м|кг|час\w*|минут\w*|секунд\w*"
    r"|дн(?:я|ей)|лет|год\w*|штук\w?|человек\w?|Euro|Stück|Jahre|Tage|Stunden|Minuten|euros|pesos|heures|ans)\s*\}?\s*\Z"
)
"""A closed list: other words of these languages may say anything, as 不 does."""
_MONEY_BEHIND = re.compile(r"\s*(?:\\text\s*\{\s*([$€£¥¢])\s*\}|([$€£¥¢])(?!\s*\d))")
_ONE_UNIT = re.compile(r"[A-Za-z](?:\^-?\d)?(?: ?[/*.] ?[A-Za-z]{1,3}(?:\^-?\d)?)*")
_STANDS_BEFORE = re.compile(
    r"(?:\A|[=,;({\[<>]|\\(?:approx|le|ge|leq|geq|lt|gt|in)|\b(?:or|and)|\\text\s*\{\s*(?:or|and)\s*\})\s*-?\s*\Z"
)
_STANDS_BEHIND = re.compile(r"\s*(?:\Z|[,;=)\]<>]|\\(?:approx|le|ge|text|lor|[}\\])|(?:or|and)\b)")
_PLAIN_UNIT = re.compile(r"[A-Za-zµμ][A-Za-zµμ.^0-9/ *²³{}-]*$")


def as_word(text: str) -> str | None:
    """Words as words: \\text{…} with letters, or plain letters that are neither products nor functions."""
    inner = text
    if match := re.fullmatch(r"\(?\s*\\text\{([^{}]*)\}\s*\)?", text):
        inner = match[1].strip()
    elif not _are_words(text):
        return None
    inner = " ".join(inner.casefold().strip(" .'\"").split())
    inner = re.sub(r"\A(?:an?|the) (?=\w{2})", "", inner)
    if re.search(r"\b(or|and)\b|[,;/]", inner) or not re.search(r"[^\W\d_]", inner):
        return None
    return inner if re.fullmatch(r"[^\W_][\w' .\-]*", inner) or len(inner) == 1 else None


def _are_words(text: str) -> bool:
    """Plain letters, at least one run of them too long for symbols side by side, and no function: "no solution"."""
    runs = re.findall(r"[^\W\d_]+", text)
    known = any(run in FUNCTIONS or run == "pi" for run in runs)
    return bool(re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[' -])*", text)) and not known and not all(map(is_product, runs))


def is_product(letters: str) -> bool:
    """Whether plain letters are symbols side by side (xy, abc) rather than a word."""
    return len(letters) <= 2 or (len(letters) == 3 and all(c in "abcxyzmnkpqr" for c in letters) and len(set(letters)) == 3)


def adjacent(left: Node, right: Node) -> Node:
    """Two factors side by side: 2 \\frac{1}{2} is a mixed number, 2x a product; a word makes no product."""
    if right[0] == "word" or left[0] == "word":
        if right[0] == left[0]:
            return ("word", f"{left[1]} {right[1]}")
        raise Unreadable("words beside mathematics")
    if right[0] == "unit" and right[2] == "degree" and left[0] == "num":
        return ("unit", adjacent(left, right[1]), "degree")
    if right[0] == "pct" and left[0] == "num" and (mixed := adjacent(left, right[1]))[0] == "num":
        return ("pct", mixed)
    if left[0] == "num" and right[0] == "/" and right[1][0] == right[2][0] == "num":
        whole, top, bottom = left[1], right[1][1], right[2][1]
        if whole.denominator == top.denominator == bottom.denominator == 1 and 0 < top < bottom:
            return ("num", whole + Fraction(top, bottom))
    return ("*", left, right)


def assigned(items: list[Node]) -> list[Node]:
    """ "n = 2, 3, 4" and "x = 2 or x = 3" are lists of values of one symbol."""
    first = items[0]
    if first[0] == "rel" and first[1] == ("=",) and first[2][0][0] == "sym":
        if all(item[0] != "rel" for item in items[1:]):
            return [first[2][1], *items[1:]]
        if all(item[0] == "rel" and item[1] == ("=",) and item[2][0] == first[2][0] for item in items):
            return [item[2][1] for item in items]
    if (
        first[0] == "rel"
        and first[1] == ("!=",)
        and first[2][0][0] == "sym"
        and all(item[0] != "rel" for item in items[1:])
    ):
        return [first, *(("rel", ("!=",), (first[2][0], item)) for item in items[1:])]  # x ≠ 1, 2
    return items


def joined(items: list[Node], joints: set[str]) -> Node:
    """Several items at the top of a text. "x > 1 and x < 2" is 1 < x < 2, "x < 1 or x > 2" a list, p \\land q is neither.

    joints: what stands between them, among "," "and" "or" (words) and r"\\land" r"\\lor".
    """
    compared = any(item[0] == "rel" and not {"=", "!="} >= set(item[1]) for item in items)
    signs = joints & {r"\land", r"\lor"}
    if compared and joints & {"and", r"\land"}:
        if joints & {"or", r"\lor"}:
            raise Unreadable("both and and or")
        return _chained(items) or ("all", tuple(items))
    if joints & {"or", r"\lor"} and all(item[0] == "rel" and set(item[1]) == {"!="} for item in items):
        return ("any", tuple(items))  # x ≠ 1 or x ≠ 2 leaves nothing out
    if compared and joints == {","} and all(item[0] == "rel" for item in items):
        symbols = {side for item in items for side in item[2] if side[0] == "sym"}
        if len(symbols) > 1 or any(item[1] == ("!=",) for item in items):
            return ("all", tuple(items))  # a > 0, b > 0; x > 0, x ≠ 2
    if signs and not all(item[0] == "rel" for item in items):
        if len(joints) > 1:
            raise Unreadable("both and and or")
        return ("all" if r"\land" in signs else "any", tuple(items))
    return ("list", tuple(assigned(items)))


_TURNED = {">": "<", ">=": "<="}


def _chained(items: list[Node]) -> Node | None:
    """Of a lower and an upper bound of one symbol the chain."""
    bounds: dict[bool, tuple[str, Node, Node]] = {}  # whether it is the lower one: sign, symbol, value
    for item in items:
        if item[0] != "rel" or len(item[1]) != 1 or item[1][0] not in ("<", "<=", ">", ">="):
            return None
        (sign,), (left, right) = item[1], item[2]
        if sign in _TURNED:
            sign, left, right = _TURNED[sign], right, left
        if (left[0] == "sym") == (right[0] == "sym"):
            return None
        lower = right[0] == "sym"
        bounds[lower] = (sign, right, left) if lower else (sign, left, right)
    if len(items) != 2 or len(bounds) != 2 or bounds[True][1] != bounds[False][1]:
        return None
    return ("rel", (bounds[True][0], bounds[False][0]), (bounds[True][2], bounds[True][1], bounds[False][2]))


class Scanner:
    """Reads from `text` at `at`. Each method reads one construct, or nothing."""

    def __init__(self, text: str, grouped: bool = True) -> None:
        self.text, self.at, self.depth, self.bars = text, 0, 0, 0
        self.numbers = _NUMBER if grouped else _UNGROUPED

    # --- the text

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def peek(self) -> str:
        """The next symbol or command, without reading it; "" at the end."""
        self.space()
        if self.at >= len(self.text):
            return ""
        if command := _COMMAND.match(self.text, self.at):
            return command[0]
        for two in ("**", "<=", ">=", "!=", "==", ":="):
            if self.text.startswith(two, self.at):
                return two
        return self.text[self.at]

    def take(self, *symbols: str) -> str | None:
        symbol = self.peek()
        if symbol and symbol in symbols:
            self.at += len(symbol)
            return symbol
        return None

    def need(self, symbol: str) -> None:
        if not self.take(symbol):
            raise Unreadable(f"{symbol!r} is missing")

    def word(self) -> str:
        self.space()
        match = re.compile(r"[A-Za-z]+").match(self.text, self.at)
        return match[0] if match else ""

    def take_word(self, *words: str) -> str | None:
        self.space()
        for wanted in words:
            form = re.compile(rf"\\text\s*\{{\s*{wanted}\s*\}}|{wanted}(?![^\W\d_])")
            if match := form.match(self.text, self.at):
                self.at = match.end()
                return wanted
        return None

    def number(self) -> Node:
        self.space()
        match = self.numbers.match(self.text, self.at)
        if not match:
            raise Unreadable("a number is missing")
        self.at = match.end()
        digits = match[0]
        if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}", digits):
            digits = digits.replace(".", "").replace(",", ".")
        value = Fraction(digits.replace(",", "").rstrip(".") or "0")
        if "." in digits and (repeated := re.compile(r"\\overline\{(\d{1,50})\}").match(self.text, self.at)):
            self.at = repeated.end()  # 0.1(6) is 0.1 + 6/90
            places = len(digits.partition(".")[2])
            return ("num", value + Fraction(int(repeated[1]), (10 ** len(repeated[1]) - 1) * 10**places))
        if "." not in digits and (base := _BASE.match(self.text, self.at)):
            self.at, number = base.end(), int(base[1] or _BASES[base[2]])
            if any(int(digit) >= number for digit in digits if digit.isdigit()):
                raise Unreadable(f"{digits} has no value to the base of {number}")
            return ("base", digits.lstrip("0") or "0", number)
        if exponent := re.compile(r"[eE]([+-]?\d{1,3})(?![\d.])").match(self.text, self.at):
            self.at = exponent.end()
            value *= Fraction(10) ** int(exponent[1])
        elif "." not in digits and (mixed := re.compile(r"\s+(\d+)\s*/\s*(\d+)(?![\d/.])").match(self.text, self.at)):
            top, bottom = int(mixed[1]), int(mixed[2])
            if top < bottom and self.mixed_may_follow():
                self.at = mixed.end()
                return ("num", value + Fraction(top, bottom))
        for name, scale in SCALES.items():
            if self.take_word(name, name.capitalize()):
                return ("num", value * scale)
        return ("num", value)

    def mixed_may_follow(self) -> bool:
        before = self.text[: self.at].rstrip("0123456789,").rstrip()
        return not before or before[-1] not in "/^_.}"

    def is_quantity(self, value: Node, start: int, stop: int, name: str) -> bool:
        """Whether a letter behind a number may be a unit: 4 s and 5 m/s alone, but no factor as in 2 m n or 3 n - 2 m."""
        if value[0] != "num" or self.depth > 1 or not _ONE_UNIT.fullmatch(name):
            return False
        return bool(_STANDS_BEFORE.search(self.text[:start])) and bool(_STANDS_BEHIND.match(self.text, stop))

    def several_units(self, value: Fraction) -> Node | None:
        """1 hour 30 minutes, 5 ft 6 in: known units of one kind, each less than one of the unit before it."""
        first = _UNIT_NAME.match(self.text, self.at)
        unit = name = first and (first[1] or first[2])
        if not first or not unit or not name or not known_unit(name):
            return None
        at, num, size = first.end(), 1, read_unit(name)
        largest = size
        while more := _SMALLER.match(self.text, at):
            amount, unit = Fraction(more[1]), more[2] or more[3]
            smaller = read_unit(unit)
            if not known_unit(unit) or smaller.dims != size.dims or not amount * smaller.factor < size.factor:
                return None
            value, size, at, num = value + amount * smaller.factor / largest.factor, smaller, more.end(), num + 1
        if num == 1 or re.compile(r"\s*[\w.^\\]").match(self.text, at):
            return None
        self.at = at
        return ("unit", ("num", value), name, True)

    def unit(self, value: Node, start: int) -> Node | None:
        """A unit that ends the text or the item, after a number: 10 cm, 5 m/s^2, 18 apples, 3 \\text{ cm}^2.

        start: where the number begins.
        """
        if value[0] not in ("num", "neg", "/", "^", "*", "paren"):
            return None
        if value[0] == "num" and (several := self.several_units(value[1])) is not None:
            return several
        if money := _MONEY_BEHIND.match(self.text, self.at):
            self.at = money.end()
            return ("unit", value, money[1] or money[2])
        if foreign := _FOREIGN_UNIT.match(self.text, self.at):
            self.at = foreign.end()
            return ("unit", value, foreign[1])
        stop = len(self.text)
        for mark in _BEHIND_A_UNIT.finditer(self.text, self.at):
            stop = mark.start()
            break
        rest, spaced = (
            self.text[self.at : stop],
            self.text[self.at - 1 : self.at + 1].strip() != self.text[self.at - 1 : self.at + 1],
        )
        texted = r"\text" in rest
        name = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", rest)
        name = re.sub(r"\\(?:cdot|times)\s*", "*", name).strip(" .")
        name = re.sub(r"\^\{(-?\d)\}", r"^\1", name)
        if name and not (name := _COUNTED.sub("", name).strip()):
            name = "count"
        if not name or not _PLAIN_UNIT.match(name) or "{" in name:
            return None
        words = re.findall(r"[A-Za-zµμ]+", name)
        functions = () if name in ("sec", "secs") else FUNCTIONS
        if any(w.lower() in _NO_UNITS or w in functions for w in words) or len(words) > 4:
            return None
        if _NO_UNIT_ALONE.fullmatch(name):
            return None
        if not texted and len(words[0]) == 1 and not self.is_quantity(value, start, stop, name):
            return None
        if not texted and not spaced and len(words[0]) < 2:
            return None
        if not texted and len(words[0]) == 1 and words[0] not in ("m", "g", "s", "h", "L", "J", "W", "N", "V", "A", "K"):
            return None
        if not texted and len(words[0]) == 3 and is_product(words[0]) and not known_unit(words[0]):
            return None
        if not texted and len(words[0]) == 2 and name.lower() not in _SHORT_UNITS and words[0].lower() not in _SHORT_UNITS:
            return None
        if re.search(r"\d", re.sub(r"\^-?\d", "", name)):
            return None
        self.at = stop
        return ("unit", value, name)

"""What a tree of `math_parse` is worth: exactly, as a fraction, where it is rational; else to 150 and 500 digits.

    exact(parse("1/2 + 0.25"))               -> Fraction(3, 4)
    exact(parse("\\sqrt{2}"))                 -> None
    same_value(parse("\\sqrt8"), parse("2\\sqrt2"))  -> True

Two numbers differ if their difference is the same at both precisions, however small it is; if it is noise that shrinks
with the precision, they are equal. Expressions with symbols are compared at fixed points. Nothing larger than MAX_BITS
is ever computed: a power or factorial beyond it raises TooLarge, before any work is done.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from milepost.verifiers.math_scan import Node

MAX_BITS = 200_000
"""The longest integer that is computed, about 60,000 digits."""
MAX_WORK = 4_000_000
"""Bits of all results of one expression together."""
DIGITS = (150, 500)
POINTS = (("3/7", "-5/11"), ("-13/9", "8/5"), ("19/8", "4/13"), ("-2/17", "-31/12"), ("1/3", "23/7"), ("-41/10", "-6/19"))


class TooLarge(ValueError):
    """A number in it has more than MAX_BITS bits."""


class NoValue(ValueError):
    """It has no finite value here: division by zero, 0·∞, an unknown function."""


# --- exact ----------------------------------------------------------------------------------------------------------


def exact(node: Node) -> Fraction | None:
    """The value if the grammar shows it to be rational (roots of perfect powers included), else None.

    Raises TooLarge; NoValue for a division by zero.
    """
    return _Exact().of(node)


class _Exact:
    def __init__(self) -> None:
        self.work = 0

    def of(self, node: Node) -> Fraction | None:
        value = self._of(node)
        if value is not None:
            self.work += bits(value)
            if bits(value) > MAX_BITS or self.work > MAX_WORK:
                raise TooLarge
        return value

    def _of(self, node: Node) -> Fraction | None:
        kind = node[0]
        if kind == "num":
            return node[1]
        if kind == "fn":
            values = [self.of(argument) for argument in node[2]]
            return None if any(v is None for v in values) else _function(node[1], values)  # type: ignore[arg-type]
        if kind not in ("paren", "neg", "abs", "pct", "!", "+", "-", "*", "/", "^"):
            return None
        parts = [self.of(part) for part in node[1:]]
        left = parts[0]
        if left is None or parts[-1] is None:
            return None
        if kind in ("paren", "neg", "abs", "pct", "!"):
            return _unary(kind, left)
        return _binary(kind, left, parts[1])  # type: ignore[arg-type]


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _unary(kind: str, value: Fraction) -> Fraction | None:
    if kind == "!":
        if value.denominator != 1 or value < 0:
            return None
        if value > MAX_BITS or value * int(value).bit_length() > 1.2 * MAX_BITS:
            raise TooLarge
        return Fraction(math.factorial(int(value)))
    return {"paren": value, "neg": -value, "abs": abs(value), "pct": value / 100}[kind]


def _binary(kind: str, a: Fraction, b: Fraction) -> Fraction | None:
    if kind == "^":
        return _power(a, b)
    if kind == "/":
        if not b:
            raise NoValue("division by zero")
        return a / b
    return a + b if kind == "+" else a - b if kind == "-" else a * b


def _power(a: Fraction, b: Fraction) -> Fraction | None:
    if b.denominator != 1:
        return _root(a, b)
    if not a:
        if b <= 0:
            raise NoValue("0 to the power of 0 or less")
        return a
    if abs(a) != 1 and abs(b) * (bits(a) - (bits(a) > 1)) > MAX_BITS:
        raise TooLarge
    return (Fraction(1) if b % 2 == 0 else a) if abs(a) == 1 else a ** int(b)


def _root(a: Fraction, b: Fraction) -> Fraction | None:
    """a^b for a perfect power a ≥ 0. An odd root of a negative number is the real one."""
    degree = b.denominator
    if degree > 1000 or (a < 0 and degree % 2 == 0):
        return None
    top, bottom = _integer_root(abs(a.numerator), degree), _integer_root(a.denominator, degree)
    if top is None or bottom is None:
        return None
    return _power(Fraction(-top if a < 0 else top, bottom), Fraction(b.numerator))


def _integer_root(n: int, degree: int) -> int | None:
    if n < 2:
        return n
    if degree == 2:
        root = math.isqrt(n)
        return root if root * root == n else None
    low, high = 1, 1 << -(-n.bit_length() // degree)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= n else (low, middle - 1)
    return low if low**degree == n else None


def _function(name: str, values: list[Fraction]) -> Fraction | None:
    integers = [int(v) for v in values] if all(v.denominator == 1 for v in values) else None
    if name == "abs" and len(values) == 1:
        return abs(values[0])
    if name == "fac2":
        if not integers or integers[0] < 0:
            return None
        if integers[0] * integers[0].bit_length() > 2 * MAX_BITS:
            raise TooLarge
        return Fraction(math.prod(range(integers[0], 0, -2)))
    if name in ("floor", "ceil") and len(values) == 1:
        return Fraction((math.floor if name == "floor" else math.ceil)(values[0]))
    if name in ("gcd", "lcm") and integers:
        return Fraction((math.gcd if name == "gcd" else math.lcm)(*integers))
    if name == "binom" and integers and len(integers) == 2:
        n, k = integers
        if n < 0 or k < 0:
            return None
        if min(n, MAX_BITS) * min(1, k) > MAX_BITS // 2 and min(k, abs(n - k)) * n.bit_length() > MAX_BITS:
            raise TooLarge
        return Fraction(math.comb(n, k))
    return None


# --- numeric --------------------------------------------------------------------------------------------------------


def symbols(node: Any) -> frozenset[str]:
    if not isinstance(node, tuple):
        return frozenset()
    if node[:1] == ("sym",):
        return frozenset({node[1]})
    return frozenset().union(*(symbols(part) for part in node)) if node else frozenset()


def same_value(a: Node, b: Node) -> bool:
    """Whether two expressions have one value, for all values of their symbols. Raises TooLarge and NoValue."""
    if a == b:
        return True
    left, right = exact(a), exact(b)
    if left is not None and right is not None:
        return left == right
    names = sorted(symbols(a) | symbols(b))
    if not names:
        return _same_at(a, b, {})
    judged = 0
    for first, second in POINTS:
        point = {n: Fraction((first, second)[i % 2]) + Fraction(i // 2, 7) for i, n in enumerate(names)}
        try:
            if not _same_at(a, b, point):
                return False
            judged += 1
        except NoValue:
            continue
    if judged < 3:
        raise NoValue("it is not defined at enough points")
    return True


def _same_at(a: Node, b: Node, point: Mapping[str, Fraction]) -> bool:
    differences = []
    for digits in DIGITS:
        left, right = numeric(a, digits, point), numeric(b, digits, point)
        differences.append(left - right)
        size = max(abs(left), abs(right))
    coarse, fine = differences
    if not fine:
        return True
    # Noise shrinks with the precision; a true difference keeps its leading digits.
    return not abs(fine - coarse) < abs(fine) / 1000 if size else True


def numeric(node: Node, digits: int, point: Mapping[str, Fraction]) -> Any:
    """The value to that many digits, real or complex (an mpmath number). Raises TooLarge and NoValue."""
    mp = _context(digits)
    try:
        value = _Numeric(mp, point).of(node)
    except (ZeroDivisionError, OverflowError, mp.NoConvergence, ArithmeticError) as error:
        raise NoValue(type(error).__name__) from None
    return value


@functools.cache
def _context(digits: int) -> Any:
    import mpmath

    context = mpmath.MPContext()
    context.dps = digits
    return context


class _Numeric:
    def __init__(self, mp: Any, point: Mapping[str, Fraction]) -> None:
        self.mp, self.point = mp, point

    def of(self, node: Node) -> Any:
        value = self._of(node)
        if not self.mp.isfinite(value):
            raise NoValue("not finite")
        if value and abs(self.mp.mag(value)) > MAX_BITS:
            raise TooLarge
        return value

    def _of(self, node: Node) -> Any:
        mp, kind = self.mp, node[0]
        if kind == "num":
            return mp.mpf(node[1].numerator) / node[1].denominator
        if kind == "sym":
            value = self.point[node[1]]
            return mp.mpf(value.numerator) / value.denominator
        if kind == "const":
            if node[1] == "infty":
                raise NoValue("infinity")
            return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[node[1]]
        if kind == "fn":
            return self.function(node[1], [self.of(argument) for argument in node[2]])
        if kind == "unit" and node[2] == "degree":
            return self.of(node[1]) * mp.pi / 180
        if kind not in ("paren", "neg", "abs", "pct", "!", "+", "-", "*", "/", "^"):
            raise NoValue(f"a {kind} has no value")
        parts = [self.of(part) for part in node[1:]]
        a, b = parts[0], parts[-1]
        if kind == "^":
            return self.power(a, b, node)
        if kind == "!":
            if abs(a) > MAX_BITS // 16:
                raise TooLarge
            return mp.gamma(a + 1)
        one = {"paren": a, "neg": -a, "abs": abs(a), "pct": a / 100, "+": a + b, "-": a - b, "*": a * b}
        return a / b if kind == "/" else one[kind]

    def power(self, a: Any, b: Any, node: Node) -> Any:
        mp = self.mp
        if not a:
            if mp.re(b) <= 0:
                raise NoValue("0 to the power of 0 or less")
            return mp.mpf(0)
        if abs(b) > 1 and (mp.mag(b) > 40 or abs(b) * (abs(mp.mag(a)) + 1) > MAX_BITS * 2):
            raise TooLarge
        exponent = exact(node[2]) if mp.im(a) == 0 and mp.re(a) < 0 and not symbols(node[2]) else None
        if exponent is not None and exponent.denominator % 2:  # the real odd root, as for ∛-8
            return (-1) ** (exponent.numerator % 2) * mp.power(-a, b)
        return mp.power(a, b)

    def unknown(self, name: str, values: list[Any]) -> Any:
        """A function that nobody has defined: another number for each argument, so that f(2) is f(1 + 1) and not f(1)."""
        places = [int(self.mp.nint(part * 10**40)) for value in values for part in (self.mp.re(value), self.mp.im(value))]
        digest = hashlib.sha256(f"{name} {places}".encode()).digest()
        return 1 + self.mp.mpf(int.from_bytes(digest, "big")) / 2**256

    def function(self, name: str, values: list[Any]) -> Any:
        mp = self.mp
        if name.startswith("@"):
            return self.unknown(name, values)
        if name == "log" and len(values) == 2:
            return mp.log(values[0]) / mp.log(values[1])
        if name == "binom" and len(values) == 2:
            if max(map(abs, values)) > MAX_BITS // 16:
                raise TooLarge
            return mp.binomial(*values)
        if name == "fac2" and abs(values[0]) > MAX_BITS // 16:
            raise TooLarge
        if len(values) != 1:
            raise NoValue(f"{name} of {len(values)} values")
        value = values[0]
        if value and mp.mag(value) > 60:
            raise TooLarge if name == "exp" else NoValue("an argument too large")
        if name in ("exp", "sinh", "cosh", "tanh") and abs(value) > MAX_BITS:
            raise TooLarge
        table = {
            "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "ln": mp.ln, "log": mp.ln, "lg": mp.log10, "abs": abs,
            "ceil": mp.ceil,
        }  # fmt: skip
        if name in ("gcd", "lcm"):
            raise NoValue(f"{name} of something that is no integer")
        return table[name](value) if name in table else getattr(mp, name)(value)

"""Units as exact factors and dimensions: 100 cm is 1 m, 10 cm is not 10 m; names that are not known are only themselves.

read_unit("km/h")    -> Unit(Fraction(5, 18), (("m", 1), ("s", -1)))
read_unit("apples")  -> Unit(Fraction(1), (("apple", 1),))
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    factor: Fraction
    """How many base units one of it is."""
    dims: tuple[tuple[str, int], ...]
    """Base unit and exponent, sorted, without zeros."""


_F = Fraction
_BASE: dict[str, tuple[Fraction, str]] = {}
for _names, _factor, _base in (
    ("m meter metre", _F(1), "m"), ("km kilometer kilometre", _F(1000), "m"),
    ("cm centimeter centimetre", _F(1, 100), "m"),
    ("mm millimeter millimetre", _F(1, 1000), "m"), ("dm decimeter decimetre", _F(1, 10), "m"),
    ("nm nanometer", _F(1, 10**9), "m"),
    ("in inch inches", _F(254, 10000), "m"), ("ft foot feet", _F(3048, 10000), "m"), ("yd yard", _F(9144, 10000), "m"),
    ("mi mile", _F(1609344, 1000), "m"), ("g gram gramme", _F(1), "g"), ("kg kilogram", _F(1000), "g"),
    ("mg milligram", _F(1, 1000), "g"), ("lb lbs pound", _F(45359237, 100000), "g"),
    ("oz ounce", _F(28349523125, 10**9), "g"),
    ("s sec second", _F(1), "s"), ("ms millisecond", _F(1, 1000), "s"), ("min minute", _F(60), "s"),
    ("h hr hour", _F(3600), "s"),
    ("day", _F(86400), "s"), ("week", _F(604800), "s"),
    ("month", _F(1), "month"), ("year yr", _F(12), "month"), ("L l liter litre", _F(1), "L"),
    ("ml mL milliliter millilitre", _F(1, 1000), "L"),
    ("cl centiliter", _F(1, 100), "L"), ("$ dollar usd USD", _F(1), "$"), ("cent ¢", _F(1, 100), "$"),
    ("€ euro EUR", _F(1), "€"),
    ("mph", _F(1609344, 3600000), "m/s"), ("kph kmh kmph", _F(1000, 3600), "m/s"),
    ("£ GBP", _F(1), "£"), ("¥ yen JPY", _F(1), "¥"), ("degree deg", _F(1), "degree"), ("rad radian", _F(1), "rad"),
    ("celsius centigrade", _F(1), "celsius"), ("fahrenheit", _F(1), "fahrenheit"),
):  # fmt: skip
    for _name in _names.split():
        _BASE[_name] = (_factor, _base)
_BASES = frozenset(base for _, base in _BASE.values())
_POWERS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "cu.": 3}


@functools.lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit:
    """Any text is a unit; one that is not understood stands for itself, in lower case and singular."""
    parts = re.sub(r"\bper\b", "/", text).replace("²", "^2").replace("³", "^3").replace("*", " ")
    dims: dict[str, int] = {}
    factor, sign, pending = Fraction(1), 1, 1
    for token in re.findall(r"/|[^\s/]+", parts):
        if token == "/":
            sign = -1
        elif token in _POWERS:
            pending = _POWERS[token]
        else:
            name, _, power = token.partition("^")
            exponent = sign * pending * (int(power.strip("{}")) if re.fullmatch(r"\{?-?\d\}?", power) else 1)
            size, base = _lookup(name)
            factor *= size**exponent
            over, _, under = base.partition("/")
            dims[over] = dims.get(over, 0) + exponent
            if under:
                dims[under] = dims.get(under, 0) - exponent
            pending = 1
    return Unit(factor, tuple(sorted((k, v) for k, v in dims.items() if v)))


def known_unit(name: str) -> bool:
    """Whether a name is one of a unit, and no word of its own."""
    return _lookup(name)[1] in _BASES


def _lookup(name: str) -> tuple[Fraction, str]:
    for form in (name, name.lower(), name.lower().removesuffix("s"), name.lower().removesuffix("es")):
        if form in _BASE and (len(form) > 1 or form == name):
            return _BASE[form]
    word = name.lower().strip(".")
    return Fraction(1), word[:-3] + "y" if word.endswith("ies") else word.removesuffix("s") if len(word) > 2 else word

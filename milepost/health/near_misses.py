"""A gold changed a little, by kind of change: what no equality of texts or numbers takes for the same. Torch-free.

    for kind, text in near_misses("132"): ...      # ("its sign", "-132"), ("+1", "133"), ("digits in another order", "123")

A reward that pays one kind of change for most golds has a rule that a policy can learn, however few of all changes it pays;
hence the kinds, each of which is one change. Nothing is changed that may mean the same: letters keep their case, and of a
choice such as "B. Oslo" no piece stands for the whole.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

SIGN, ORDER, FIRST, SAME_LENGTH = "its sign", "digits in another order", "another first digit", "other digits, as many"
POWERS = {1: ("times 10", "a tenth"), 2: ("times 100", "a hundredth")}
MORE, LESS, DIGIT = "a fraction added", "a fraction taken off", "a digit behind it"
UPSIDE_DOWN, FIRST_NUMBER, SWAPPED = "upside down", "its first number", "its numbers in another order"
LAST_NUMBER, WITHIN = "its last number", "a number before the last changed"
DIGITS = ("its first digit", "its last digit", "what stands between these digits")
PIECES = ("its first letter", "its last letter", "what stands between these letters")
LETTERS, LETTER, LIKE = "letters in another order", "a letter added", "other letters, as many"
BEHIND, FIRST_WORD = "a letter behind the word", "its first word"
WORD, WORDS = "a word changed", "words in another order"
READ_THROUGH = (LETTER,)
"""What finds the answer in a text reads 132 in 132z, and is right to; nothing should read Paris in Parisz."""
_LONGEST = 60
"""Characters of a gold that is an answer. Of a longer one, such as a whole solution, most may change: it stays right."""
_MOST_DIGITS = 30
_LIST = re.compile(r"[(\[{]?\s*-?\d+(?:\.\d+)?(?:(?:\s*[,;:]\s*|\s+)-?\d+(?:\.\d+)?)+\s*[)\]}]?", re.ASCII)
"""Numbers and what separates them."""
_NUMBER = re.compile(r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True)
class _Decimal:
    """units · 10^−places, as it was written."""

    units: int
    places: int
    grouped: bool

    def text(self, units: int, more_places: int = 0) -> str:
        places = self.places + more_places
        digits = f"{abs(units):0{places + 1}d}"
        whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]
        fraction = fraction.rstrip("0") if more_places and not self.places else fraction
        whole = f"{int(whole):,}" if self.grouped else whole
        return "-" * (units < 0) + whole + ("." + fraction) * bool(fraction)


def near_misses(core: str, *, strict: bool = False) -> Iterator[tuple[str, str]]:
    """(kind, text) of every change; some texts may come twice. strict: whatever differs is wrong, the words around a number
    and in a long gold too. An integer then stays one: a pattern for whole numbers reads 5 in 0.5, and would be blamed."""
    core = core.strip()
    short = len(core) <= _LONGEST and "\n" not in core
    numbers = list(re.finditer(r"\d+", core))
    lone = list(_NUMBER.finditer(core))
    is_lone = len(lone) == 1 and all(lone[0].start() <= found.start() < lone[0].end() for found in numbers)
    if is_lone and short and sum(c.isdigit() for c in lone[0][0]) <= _MOST_DIGITS:
        head, tail = core[: lone[0].start()], core[lone[0].end() :]
        changed = [*_of_number(_read(lone[0][0]), strict=strict), *_digits_of(lone[0][0])]
        yield from ((kind, f"{head}{text}{tail}") for kind, text in changed)
    elif ratio := re.fullmatch(r"(-?)(\d+)/(\d+)", core, re.ASCII):
        yield SIGN, core[1:] if ratio[1] else f"-{core}"
        yield UPSIDE_DOWN, f"{ratio[1]}{ratio[3]}/{ratio[2]}"
        yield "+1", f"{int(ratio[1] + ratio[2]) + int(ratio[3])}/{ratio[3]}"
        if int(ratio[2]) and int(ratio[3]) != 1:
            yield FIRST_NUMBER, ratio[1] + ratio[2]
    elif numbers:
        last = numbers[-1]
        yield "+1", f"{core[: last.start()]}{int(last[0][:300]) + 1}{core[last.end() :]}"
        if short and len({found[0] for found in numbers}) > 1:
            yield FIRST_NUMBER, numbers[0][0]
        if short and _LIST.fullmatch(core):
            yield from _of_list(core, [found[0] for found in re.finditer(r"-?\d+(?:\.\d+)?", core)])
    is_word = short and not numbers and core[-2:].isalpha() and not _is_choice(core)
    yield BEHIND if is_word else LETTER, f"{core}z"
    if strict or (short and not numbers):
        yield from _of_text(core)


def _of_list(core: str, numbers: list[str]) -> Iterator[tuple[str, str]]:
    """Of "1, 2, 3" what a look at the last number, at the sum or at the numbers without their order takes for the gold."""
    first, last = numbers[0], numbers[-1]
    head, tail = core[: core.index(first)], core[core.rindex(last) + len(last) :]
    between = core[len(head) + len(first) : core.rindex(last)]
    if first != last:
        yield LAST_NUMBER, last
        if not core.startswith("{"):
            yield SWAPPED, f"{head}{last}{between}{first}{tail}"
    yield WITHIN, f"{head}{_bumped(first)}{core[len(head) + len(first) :]}"


def _bumped(number: str) -> str:
    whole, dot, rest = number.lstrip("-").partition(".")
    return f"{'-' * number.startswith('-')}{int(whole[:300]) + 1}{dot}{rest}"


def _read(text: str) -> _Decimal:
    whole, _, fraction = text.partition(".")
    return _Decimal(int(whole.replace(",", "") + fraction), len(fraction), "," in whole)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _of_number(gold: _Decimal, *, strict: bool) -> Iterator[tuple[str, str]]:
    yield from ((kind, gold.text(units)) for kind, units in _units(gold) if units != gold.units)
    for more, (_, name) in POWERS.items():
        if gold.units and (gold.places or gold.units % 10**more == 0 or not strict):
            yield name, gold.text(gold.units, more)
    if not gold.places and not strict:  # int(float(x)) and round(x) find the gold in more numbers than one
        sign = -1 if gold.units < 0 else 1
        yield MORE, gold.text(10 * gold.units + 4 * sign, 1)
        yield LESS, gold.text(10 * gold.units - 4 * sign, 1)


def _units(gold: _Decimal) -> Iterator[tuple[str, int]]:
    """By the digit of each place and by one before the first; of long numbers at both ends only."""
    digits, sign = str(abs(gold.units)), -1 if gold.units < 0 else 1
    yield SIGN, -gold.units
    places = range(len(digits) + 1)
    for place in places if len(places) <= 6 else (*places[:3], *places[-2:]):
        at = place - gold.places
        name = f"{10.0**at:g}" if at < 6 else f"10^{at}"
        yield f"+{name}", gold.units + 10**place
        yield f"-{name}", gold.units - 10**place
    yield FIRST, sign * int(f"{(int(digits[0]) + 3) % 9 + 1}{digits[1:]}")
    if (swapped := _swapped(digits)) is not None:
        yield ORDER, sign * int(swapped)
    yield from ((name, 10**more * gold.units) for more, (name, _) in POWERS.items())
    yield DIGIT, gold.units if gold.places else 10 * gold.units + 7 * sign  # 3.147 may be 3.14, only not rounded
    draw = random.Random(digits)
    others = (sign * draw.randrange(10 ** (len(digits) - 1), 10 ** len(digits)) for _ in range(20))
    yield SAME_LENGTH, next((units for units in others if units != gold.units), gold.units)


def _digits_of(text: str) -> Iterator[tuple[str, str]]:
    """What `answer in gold`, `gold.startswith(answer)` and `gold.endswith(answer)` take for the gold."""
    value, sign = _value(text), text[: text[0] in "+-"]
    body = text[len(sign) :]
    for kind, piece in zip(DIGITS, (sign + body[0], body[-1], body[1:-1].strip(",."))):
        if piece and _value(piece) != value:
            yield kind, piece


def _value(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def _swapped(digits: str) -> str | None:
    """Two digits in each other's place, the last ones that differ; none that would put a 0 first."""
    for second in range(len(digits) - 1, 0, -1):
        for first in range(second - 1, -1, -1):
            if digits[first] != digits[second] and (first or digits[second] != "0"):
                middle = digits[first + 1 : second]
                return digits[:first] + digits[second] + middle + digits[first] + digits[second + 1 :]
    return None


# --- texts ------------------------------------------------------------------------------------------------------------


def _of_text(core: str) -> Iterator[tuple[str, str]]:
    swapped = next((i for i in range(len(core) - 1) if core[i].isalpha() and core[i + 1].isalpha()
                    and core[i].casefold() != core[i + 1].casefold()), None)  # fmt: skip
    if swapped is not None:
        yield LETTERS, core[:swapped] + core[swapped + 1] + core[swapped] + core[swapped + 2 :]
    yield from _pieces(re.sub(r"^\W+|\W+$", "", core))
    words = core.split()
    if len(words) > 1:
        longest = max(words, key=len)
        yield WORD, core.replace(longest, "walrus" if longest.casefold() != "walrus" else "zebra", 1)
        if words != words[::-1]:
            yield WORDS, " ".join(words[::-1])
    letters = [c for c in core if c.isascii() and c.isalpha()]
    if letters:
        draw = random.Random(core)
        yield LIKE, "".join(_other(c, draw) if c.isascii() and c.isalpha() else c for c in core)


def _pieces(core: str) -> Iterator[tuple[str, str]]:
    words = re.findall(r"\w+", core)
    if not _is_choice(core) and any(c.isalpha() for c in core):
        parts = (core[0], core[-1], core[1:-1].strip())
        yield from ((kind, piece) for kind, piece in zip(PIECES, parts) if piece)
        if len(words) > 1:
            yield FIRST_WORD, words[0]


def _is_choice(core: str) -> bool:
    """Whether it begins with a lone letter or figure, which may be all that is asked for."""
    return re.match(r"\W*(\w\b|$)", core) is not None


def _other(letter: str, draw: random.Random) -> str:
    found = draw.choice([c for c in "abcdefghijklmnopqrstuvwxyz" if c != letter.casefold()])
    return found.upper() if letter.isupper() else found

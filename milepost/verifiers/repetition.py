"""How much of a text repeats itself.

    repeated([5, 5, 5, 5, 5], 2)  ->  0.75          1 − distinct n-grams / all n-grams

Beside what judges the content it is a bonus or, with a weight below 0, a malus of at most a tenth of being right: no amount
of repetition undoes a right answer, and no lack of it makes up for a wrong one. Honest text repeats some n-grams, the more
so the longer it is: what `free` allows costs nothing. Lengths have their own terms (length_terms.py).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Sequence
from typing import Any

from milepost.verifiers.extract import MAX_CHARACTERS, own_turn, seen

LONGEST_WORD = 20
_UNITS = re.compile(r"\w+|[^\w\s]")


def repeated(units: Sequence[Hashable], n: int) -> float:
    """1 − distinct/all over the n-grams of `units` (token ids or words): 0 … 1; 0 where there are fewer than n units."""
    if n < 1:
        raise ValueError(f"n-grams of {n} units do not exist; use 1 or more")
    total = len(units) - n + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(units[i : i + n]) for i in range(total)}) / total


def units_of(text: str) -> list[str]:
    """Words and signs, case and width ignored. What is too long for a word is taken character by character, so that text
    without spaces can neither hide repetition ("hahaha…") nor look like one word."""
    folded = unicodedata.normalize("NFKC", seen(text[:MAX_CHARACTERS])).casefold()
    units: list[str] = []
    for word in _UNITS.findall(folded):
        units.extend([word] if len(word) <= LONGEST_WORD else word)
    return units


def score(*, answer: str, gold: Any = None, n: int = 4, free: float = 0.2, least: int = 1) -> dict:
    """1 for a text that does not repeat itself beyond `free`, falling to 0 for one that does nothing else.

    The whole completion is read, reasoning included, up to the end of the turn. Fewer than `least` words is score 0 with
    extractable False: saying nothing is no way to avoid repetition. `gold` is not looked at.
    """
    text = own_turn(answer)
    units = units_of(text)
    if len(units) < max(1, least) or len(text) > MAX_CHARACTERS:
        compared = (
            f"{len(units)} words, of at least {max(1, least)}" if len(text) <= MAX_CHARACTERS else "too long to be read"
        )
        return {"score": 0.0, "cause": None, "extracted": None, "extractable": False, "compared": compared, "parts": {}}
    share = repeated(units, n)
    value = 1 - max(0.0, share - free) / (1 - free)
    compared = f"{share:.0%} of {max(0, len(units) - n + 1)} sequences of {n} words are repeated, {free:.0%} are free"
    return {"score": value, "cause": None, "extracted": text[:2000], "extractable": True, "compared": compared,
            "parts": {"repeated": share}}  # fmt: skip


def check_gold(gold: Any, *, n: int = 4, free: float = 0.2, **params: Any) -> str | None:
    """Every gold will do; what is wrong with the parameters, or None."""
    if n < 1:
        return f"n = {n} must be at least 1"
    return None if 0 <= free < 1 else f"free = {free:g} must be at least 0 and below 1"


def right(gold: Any = None, *, least: int = 1, **params: Any) -> list[str]:
    """Texts without any repetition, of as many words as are asked for."""
    return ["First the two sides are added, then halved, which gives four." if least < 12 else
            " ".join(f"word{i}" for i in range(least))]  # fmt: skip


def wrong(gold: Any = None, **params: Any) -> list[str]:
    """Texts that say nothing. (What repeats itself for ever approaches 0 without reaching it.)"""
    return ["", " \n\t", "\u200b\u200b"]

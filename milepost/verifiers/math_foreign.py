"""What our grammar does not know (integrals, sums, products, limits, determinants), read and compared by math-verify.

Only texts with such a command come here, and only small ones: no factorials, no towers, no long numbers. Two numbers
count as equal only if they agree to 50 digits, whatever math-verify's rounding says. Slow (sympy): runs in a worker.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from milepost.verifiers.math_scan import Unreadable
from milepost.verifiers.math_text import plain

MAX_CHARACTERS = 300
_COMMANDS = re.compile(
    r"\\(?:i?int|oint|sum|prod|lim|det|infty|mathbb|setminus|cap|mid|partial)(?![a-z])|[bpv]matrix\}|\\prime|\bmod\b"
)
_BOMB = re.compile(r"\d{7,}|binom\W*\d{4,}|!|\^\s*\{[^{}]*\^|\^\s*\{?\s*-?\d{4,}|\*\*|\^\s*(?:\d+|[A-Za-z])\s*\^")

_LARGE, MAX_LARGE = re.compile(r"\\(?:i?int|oint|sum|prod|lim|det)(?![a-z])"), 3
"""Large operators; each doubles what math-verify's parser tries, where products stand side by side."""
MAX_FACTORS = 24
"""Side by side in one term; math-verify's parser takes longer than the square of them."""


def _is_crowded(text: str) -> bool:
    terms = re.split(r"[-+=<>,;&]", text)
    crowded = any(len(re.findall(r"\\[A-Za-z]+|[A-Za-z]|\d+", term)) > MAX_FACTORS for term in terms)
    return crowded or len(_LARGE.findall(text)) > MAX_LARGE


_INTEGRAL, _DIFFERENTIAL = re.compile(r"\\(?:i?int|oint)(?![a-z])"), re.compile(r"d[\s}~]*(?:\\[,;:! ]\s*)*\\?[A-Za-z]")


def _never_ends(text: str) -> bool:
    """Whether an integral lacks its dx: no number, and math-verify's parser looks for its end for seconds."""
    parts = _INTEGRAL.split(text)
    return len(parts) > 1 and not _DIFFERENTIAL.search(parts[-1])


def is_foreign(text: str) -> bool:
    """Whether a text that our grammar cannot read may go to math-verify."""
    text = plain(text) if len(text) <= 2 * MAX_CHARACTERS else ""
    return (
        bool(_COMMANDS.search(text))
        and len(text) <= MAX_CHARACTERS
        and not _BOMB.search(text)
        and text.count("{") < 40
        and not _is_crowded(text)
        and not _never_ends(text)
    )


def read_foreign(text: str) -> Any:
    """A sympy object. Never print it: its text may take for ever. Raises Unreadable."""
    text = plain(text)
    if len(text) > MAX_CHARACTERS or _BOMB.search(text) or _is_crowded(text) or _never_ends(text):
        raise Unreadable("too large for math-verify")
    from latex2sympy2_extended import latex2sympy

    exactly = re.sub(r"(\d+)\.(\d+)", lambda m: rf"\frac{{{m[1]}{m[2]}}}{{{10 ** len(m[2])}}}", text).replace(r"\text", "")
    exactly = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", exactly)
    try:
        return latex2sympy(exactly)
    except Exception as error:
        raise Unreadable(f"math-verify cannot read it either ({type(error).__name__})") from None


def separators(text: str) -> str:
    """Commas and relations outside of brackets. math-verify drops repeated values and all sides of a chain but one."""
    depth, found = 0, ""
    for c in plain(text):
        depth += (c in "{([") - (c in "])}")
        found += c if not depth and c in ",;=<>|" else ""
    return found + "or" * len(re.findall(r"\b(?:or|and)\b", text))


def same_foreign(gold: Any, answer: Any) -> bool:
    """math-verify's verdict; for two numbers 50 equal digits instead. Raises Unreadable for what sympy chokes on."""
    import math_verify
    from sympy import Basic, N

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    try:
        if isinstance(gold, Basic) and isinstance(answer, Basic) and not gold.free_symbols and answer.free_symbols:
            return False  # before sympy looks for minutes whether they cancel
        if isinstance(gold, Basic) and isinstance(answer, Basic) and gold.is_number and answer.is_number:
            left, right = N(gold, 60), N(answer, 60)
            if left.is_comparable and right.is_comparable:
                return bool(abs(left - right) <= max(abs(left), abs(right)) * 10**-50)
        return bool(math_verify.verify(gold, answer, float_rounding=30, numeric_precision=50, timeout_seconds=None))
    except Exception as error:  # sympy raises nearly anything for malformed objects; the gold itself was tried at load
        raise Unreadable(f"math-verify cannot compare it ({type(error).__name__})") from None

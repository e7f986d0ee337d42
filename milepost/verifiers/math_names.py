r"""What a quantity is called on the left of its value: AB = 5, f(3) = 5, \angle ABC = 60^\circ, \sin A = \frac35.

    name_of(r"\angle ABC")   -> "\angle~ABC"
    name_of("f(3)")          -> "f(3)"
    name_of("2x")            -> None           2x = 12 says something of x, and not what it is
    sides(r"AB = BC = 5")    -> [(0, "AB"), (4, "BC"), (9, "5")]

A name is nothing that an equation could be solved for: single letters are left to the grammar (`math_parse`).
"""

from __future__ import annotations

import re

_NAME = re.compile(
    r"""
    (?:m~?)? \\angle ~? \{? (?:[A-Z]{1,3}|\d) \}?                               # \angle ABC, m\angle B
  | [A-Z]{2,4} | \|[A-Z]{2}\| | \[[A-Z]{3,6}\]                                  # AB, |AB|, [ABC]
  | \\?\| (?: \\(?:text|vec)\{[^{}]+\} | [zw] ) \\?\|                                   # |\vec a|, |z|
  | [A-Za-z]_ \{? (?: \\triangle~?[A-Z]{0,3} | \\text\{[^{}]*\} | \\?[a-z]{2,12} ) \}?     # S_{\triangle ABC}, x_{\max}
  | [A-DFGHJLN-Wa-df-hjlo-w] (?:\^\{?-1\}?|')* \( (?![A-Za-z]\)) [^()=<>]+ \)   # f(3), p(7): not k(3), x(3)
  | [fghFGHy] (?:\^\{?-1\}?|'+) (?:\([A-Za-z]\))?                               # f^{-1}(x), f'(x), y'
  | \( [fgh] \\circ ~? [fgh] \) \( [^()=<>]+ \)                                 # (f \circ g)(2)
  | P\([^()=<>]+\) | E\[[^\[\]=<>]+\] | \\mathbb\{?[A-Z]\}? [\[(] .+ [\])]      # P(A), E[X]
  | \\text\{(?:Var|Cov|E|P|Area|Volume|Perimeter)\} \(.+\)
  | \\?(?:sin|cos|tan|cot|sec|csc) (?:\^\{?\d\}?)? ~? \(? \d? (?:(?:m~?)?\\angle~?\{?[A-Z]{1,3}\}?|\\?[A-Za-z]+) \)?
  | \\frac\{d[A-Za-z]?\}\{d[A-Za-z]\} .*                                        # dy/dx, d/dx f(x)
  | \\(?:lim|int|sum|prod|det|bar|overline|max|min) (?![A-Za-z]) .+
  | (?:[A-Z]|\\text\{[A-Z]\}) \^ (?:\{?-1\}?|\{?T\}?|\{?\d+\}?)               # A^{-1}, and of matrices A^2
  | \\text\{(?:proj|comp|rank|tr|dim|adj)\} .+
  | [A-Z] (?:\\(?:cap|cup|setminus)~?[A-Z])+ | \\?\|[A-Z](?:\\(?:cap|cup)~?[A-Z])?\\?\| | \\\#~?[A-Z]   # A \cap B, |A|
  | \\(?:phi|tau|sigma)\(\d+\) | \\dim~?[A-Z]
  | \\sigma\^\{?2\}? | \\nabla~?[A-Za-z]                                          # a variance, a gradient
  | \\text\{[A-Za-z]{2,60}\} (?:\\triangle~?)? [A-Z]{2,6}                       # \text{area of } ABC
    """,
    re.VERBOSE | re.DOTALL,
)
"""Over a text without blanks; ~ parts a command from a letter behind it."""
_DENIES = re.compile(r"\b(?:not|no)\b")
_LONGEST = 120


def name_of(text: str) -> str | None:
    """The quantity that the text names, without what may be written otherwise; None if it names none."""
    if len(text) > _LONGEST or _DENIES.search(text):
        return None
    close = re.sub(r"\s", "", re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])", r"\1~", text))
    return re.sub(r"[{}]|m~?(?=\\angle)", "", close) if _NAME.fullmatch(close) else None


def is_power(name: str) -> bool:
    """Whether it names a power, which is a quantity of its own only of matrices: A^2 = 9 is an equation."""
    return re.fullmatch(r"(?:\\text)?[A-Z]\^(?:T|\d+)", name) is not None


_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|[{}()\[\]]|:?={1,2}>?|.", re.DOTALL)
_OPEN, _CLOSE, _EQUAL = ("{", "(", "[", r"\{"), ("}", ")", "]", r"\}"), ("=", "==", ":=", r"\approx")


def sides(text: str) -> list[tuple[int, str]]:
    """What stands between the signs = and ≈ outside of brackets, and where it begins."""
    found, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in _OPEN) - (token[0] in _CLOSE)
        if depth == 0 and token[0] in _EQUAL:
            found.append((start, text[start : token.start()].strip()))
            start = token.end()
    return [*found, (start, text[start:].strip())]

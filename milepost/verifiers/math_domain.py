r"""What is said around a formula, of which letters and for which numbers; and names of what has no value.

    formula_of(r"2k\pi, k \in \mathbb{Z}")                      -> r"2k\pi"
    formula_of(r"f(x) = cx \text{ for some constant } c")       -> "f(x) = cx"
    formula_of(r"\text{all integers } n \ge 4")                 -> r"n \ge 4"
    formula_of(r"\text{all real numbers except } 0")            -> r"\mathbb{R} \setminus \{0\}"
    structure(r"\mathbb{Z}/6\mathbb{Z}")                         -> "Z_6"

Text in, text out, before the grammar of `math_parse` reads it. All of it is in the typography of `math_text.plain`.
"""

from __future__ import annotations

import re

_WHERE = r"\\text\s*\{\s*(?:where|for|with)(?:\s+(?:some|any|every|all|each))?\s*\}"
_WHOLE_NUMBER = re.compile(
    rf"\s*(?:(?:(?:[,;:|]|\\mid(?![A-Za-z]))\s*(?:{_WHERE})?|{_WHERE})\s*\(?|\()\s*([A-Za-z])\s*\\in\s*"
    r"\\mathbb\s*(?:\{\s*Z\s*\}|Z)\s*\)?\s*\Z"
)


_FOR_ALL = re.compile(
    r"[\s,]*(?:\\text\s*\{[\s,]*for (?:all|any|every|each)(?: real(?: numbers?)?| integers?)?\s*\}|\\forall(?![A-Za-z])"
    r"|\sfor (?:all|any|every|each)(?: real(?: numbers?)?| integers?)?)\s*[A-Za-z]"
    r"(?:\s*\\in\s*\\mathbb\s*(?:\{\s*[RZNQC]\s*\}|[RZNQC]))?[.\s]*\Z"
)
_OF_WHOM = re.compile(
    r"\s*\\text\s*\{\s*(?:for )?all (?:(?:positive |natural |real |rational )?(?:integers?|numbers?|reals?))?\s*\}\s*"
    r"(?=[a-z]\b)"
)
"""\\text{all integers } n \\ge 4"""
_LETTER_BEHIND = re.compile(r"(\\text\s*\{[^{}]*\b(?:integers|numbers|reals|primes)\s*\})\s*[a-z]\s*\Z")
_ALL_BUT = re.compile(
    r"\s*(?:\\text\s*\{)?\s*(?:the )?(?:set of )?all real(?:s| numbers)\s+(?:except|other than|but|excluding)(?: for)?"
    r"(?:\s*\})?\s*([^a-z]*(?:\\(?:frac|sqrt|pi|pm)[^a-z]*)*)"
)
"""\\text{all real numbers except } 0"""
_OF_LETTERS = re.compile(
    r"\s*(?:,|\(|\\text\s*\{)(?:[\s,;(){}]|\\text(?=\s*\{)|\b(?:for|some|any|all|every|arbitrary|where|with|is|are|an?|the"
    r"|constants?|reals?|integers?|whole|numbers?|and)\b|[A-Za-z](?:_\{?\w\}?)?(?![A-Za-z])"
    r"|\\in\s*\\(?:mathbb|text)\s*\{?\s*[RCNZ]\s*\}?)+\Z"
)
_TELLS = re.compile(r"\\in\s*\\(?:mathbb|text)|\b(?:constants?|arbitrary|reals?|integers?|some|any|every)\b")
_LONGEST = 100
"""Characters behind a formula."""
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|leq|geq|lt|gt|leqslant|geqslant)(?![a-z])")


def formula_of(text: str) -> str:
    """Of "2k\\pi, k \\in \\mathbb{Z}", in braces or not, the formula: it says the same for every whole number k."""
    text = _without_domain(_FOR_ALL.sub("", text))
    inner = text[2:-2] if text.startswith(r"\{") and text.endswith(r"\}") else text
    found = _WHOLE_NUMBER.search(inner)
    formula = inner[: found.start()] if found else ""
    if not found or not re.search(rf"(?<![A-Za-z\\]){found[1]}(?![A-Za-z])", formula):
        return text
    return text if re.search(r"[:|]|\\mid|\\[{}]|\\in(?![a-z])", formula) else formula


def _without_domain(text: str) -> str:
    """Without what follows a formula and says of its letters that they are constants, real or whole numbers."""
    if but := _ALL_BUT.fullmatch(text):
        return rf"\mathbb{{R}} \setminus \{{{but[1].rstrip('} ')}\}}"
    text = _OF_WHOM.sub("", text, count=1) if _OF_WHOM.match(text) else text
    text = _LETTER_BEHIND.sub(r"\1", text)
    begin = max(1, len(text) - _LONGEST)
    for at in range(begin, len(text)) if _TELLS.search(text, begin) else ():
        if text[at] not in ",(\\ " or not (found := _OF_LETTERS.match(text, at)) or not _TELLS.search(found[0]):
            continue
        said = re.sub(r"\\text|\\in\s*\\(?:mathbb|text)\s*\{?\s*[RCNZ]\s*\}?", " ", found[0])
        letters = set(re.findall(r"(?<![A-Za-z])(?!a\s+(?:constant|real|integer))[A-Za-z](?![A-Za-z])", said))
        formula = text[:at]
        named = letters and all(re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", _spread(formula)) for letter in letters)
        if re.search(r"\\in\s*\\mathbb\s*\{?\s*[NZ]", found[0]) and not _INEQUALITY.search(formula):
            continue
        if named and not re.search(r"[:|]|\\mid|\\[{}]|\\in(?![a-z])", formula):
            return formula.rstrip(" ,(")
    return text


def _spread(formula: str) -> str:
    """With letters side by side apart, as in cx."""
    return re.sub(r"(?<!\\)(?<![A-Za-z\\])([A-Za-z]{2,3})(?![A-Za-z])", lambda m: " ".join(m[1]), formula)


# --- names ----------------------------------------------------------------------------------------------------------

_STRUCTURE = re.compile(
    r"(?=.*\\(?:mathbb\s*\{?[A-Z]\}?.*[_^/(\[]|aleph))"
    r"(?:\\(?:mathbb|times|oplus|sqrt|aleph)(?![a-z])|[A-Zipnqkm\d_^/(){}\[\]\s])+",
    re.DOTALL,
)
_CONGRUENT = re.compile(
    r"(?:[a-z]\s*(?:=|\\equiv)\s*)?(-?\d{1,50})\s*[({\s]*"
    r"(?:\\(?:pmod|bmod|mod)|mod|\\text\s*\{\s*mod\s*\})[({\s]*(\d{1,50})[)}\s]*"
)


def structure(text: str) -> str | None:
    """A name for what has no value, such as \\mathbb{Z}_6 = \\mathbb{Z}/6\\mathbb{Z}, \\aleph_0 or n \\equiv 1 \\pmod 3."""
    if found := _CONGRUENT.fullmatch(text):
        return f"{int(found[1]) % int(found[2])} mod {int(found[2])}" if int(found[2]) else None
    if not _STRUCTURE.fullmatch(text):
        return None
    close = re.sub(r"[\s{}]|\\mathbb", "", text).replace(r"\oplus", r"\times")
    return re.sub(r"Z/(\d+|n|p|m)(?:Z(?![A-Za-z]))?", r"Z_\1", close)

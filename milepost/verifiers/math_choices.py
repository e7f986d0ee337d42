r"""Golds that are no mathematics: letters of choices, a letter beside its value, yes and no, words of two letters.

    read_choice("C")                     -> Choice("letter", "C")        \text{(c)}, C: because…
    read_choice(r"\textbf{(C)}\ 5")      -> Choice("letter", "C", "5")   the value does as well
    read_choice("A, B, D")               -> Choice("letters", "ABD")     ABD, in this order
    read_choice("No")                    -> Choice("word", "no")         not o·N; nor is IV the product VI
    verdict(read_choice("BD"), "B, D")   -> True                         None: nothing here decides it

A verdict is about letters and words alone; what an answer is worth as a formula is for `math_compare`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from milepost.verifiers.extract import choice, unwrap
from milepost.verifiers.math_text import plain


@dataclass(frozen=True)
class Choice:
    kind: Literal["letter", "letters", "word"]
    """letters: several, in their order; word: yes, no, true, false, or two letters that name something."""
    value: str
    rest: str = ""
    """The value that stands beside a letter, as it is written."""


_GAP = r"(?:\s|~|\\[ ,;:]|\\q?quad(?![a-z]))*+"
_FONT = r"\\(?:text|textbf|textrm|mathrm|mathbf|mathit|rm|bf)"
_LETTER_ALONE = re.compile(r"\W*(?:(?:text|[Oo]ption|[Cc]hoice|[Aa]nswer)\W*){0,3}[A-J]\W*")
_LABELLED = re.compile(
    rf"(?:{_FONT}\s*\{{{_GAP}\(?([A-J])\){_GAP}\}}|\(([A-J])\)|([A-J])\)|([A-J])[.:]\s){_GAP}([^\s+*/^_=<>|&,;].*)",
    re.DOTALL,
)
"""(E) 27, \\textbf{(C)}\\ 5, B) Oslo, and of numbers C. 5."""
_FORMULA = re.compile(r"\W*[A-J]\W?\s*[+*/^=<>&|]")
_ANOTHER = re.compile(r"(?:[,;]|\b(?:or|and|no|not|maybe)\b)\W*[A-J]\b|\s\(?[A-J][.)]\s")
_OPTION = re.compile(r"\W{0,6}([A-J])\W{0,3}[.):]\W{0,3}\s*\S")
_ANSWERED = re.compile(
    r"(yes|no|true|false)(?:\s*[,.;:!–—-](?:\D*|\s*(?:because|since|as)\b.*))?", re.IGNORECASE | re.DOTALL
)
_UNSURE = re.compile(r"\b(?:yes|no|true|false|maybe|perhaps|or|wait|actually)\b", re.IGNORECASE)
_WORDS_OF_TWO = frozenset(["no", "on", "up", "am", "pm", "so", "us", "he", "we", "me", "go", "if", "ok"])
_CIRCLED = "①②③④⑤⑥⑦⑧⑨⑩"


def read_choice(gold: str) -> Choice | None:
    """What a gold chooses; None for all that the grammar reads."""
    if len(gold) > 2000:
        return None
    if _LETTER_ALONE.fullmatch(plain(gold)) and (letter := chosen(gold)):
        return Choice("letter", letter)
    labelled = _LABELLED.fullmatch(gold.strip())
    if labelled and not (labelled[4] and labelled[5][0].isalpha()) and (letter := chosen(gold)):
        return Choice("letter", letter, labelled[5])
    bare = _bare(gold)
    if letters := _letters(bare):
        return Choice("letters", letters)
    if (word := _answered(bare)) or (re.fullmatch("[A-Za-z]{2}", bare) and _is_word(bare)):
        return Choice("word", word or bare.casefold())
    return None


def verdict(gold: Choice, text: str) -> bool | None:
    """Whether an answer that is letters or words itself makes the gold's choice; None for other answers."""
    bare = _bare(text)
    if gold.kind == "letter":
        letter = chosen(text)
        return None if letter is None else letter == gold.value
    if gold.kind == "letters" and (letters := _letters(bare)) and (letters == gold.value or letters != bare):
        return letters == gold.value or None  # of two lists the order does not matter: `math_compare` says so
    if gold.kind == "word" and (said := _answered(bare)):
        return said == gold.value
    alike = re.fullmatch("[A-Za-z]{2,10}", bare) and bare.isalpha()
    return bare.casefold() == gold.value.casefold() if alike and (gold.kind == "word" or len(bare) > 1) else None


def chosen(text: str) -> str | None:
    """The letter that an answer chooses; none where it goes on as a formula (A + 1) or with another (E - no, A)."""
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", plain(text[:2000]))
    return None if _FORMULA.match(bare) or _ANOTHER.search(bare) else choice(text) or choice(bare)


def labelled(text: str, *, words: bool = False) -> str | None:
    """The value of "(E) 27", for golds that are the value; with `words` that of "(B) Oslo" too."""
    found = _LABELLED.fullmatch(text.strip())
    is_value = found and not (found[4] and found[5][0].isalpha()) and (words or not found[5][0].isupper())
    return found[5] if found and is_value else None


def is_list_of_options(text: str) -> bool:
    """Whether a text ends in options one below the other: its last line then chooses nothing."""
    lines = [_OPTION.match(line) for line in text[-4000:].splitlines() if line.strip()][-2:]
    return len(lines) == 2 and all(lines) and len({line[1] for line in lines if line}) == 2


def _bare(text: str) -> str:
    """Without dress and a full stop: \\text{B, D}, **BD**."""
    text = re.sub(rf"{_FONT}\s*\{{([^{{}}]*)\}}", r"\1", unwrap(text[:2000]))
    return re.sub(r"\\[ ,;:!]|~", " ", unwrap(text)).replace("、", ",").strip().rstrip(".").strip()


def _letters(bare: str) -> str:
    """ "B, D", "B D", "B and D", BD, ①③ as letters in their order; "" for anything else."""
    run = re.sub(r"\s*(?:,\s*(?:and\s)?|\band\b|&|\s)\s*", "", bare)
    if re.fullmatch(f"[{_CIRCLED}]+", run):
        return run
    return run if re.fullmatch("[A-J]{2,10}", run) and len({*run}) == len(run) else ""


def _answered(bare: str) -> str:
    found = _ANSWERED.fullmatch(bare)
    return found[1].casefold() if found and not _UNSURE.search(bare, found.end(1)) else ""


def _is_word(two: str) -> bool:
    """Whether two letters name something: No, IV, HT. Small ones are factors, but for words."""
    return not two.islower() or two in _WORDS_OF_TWO

"""Grammars that write mathematics and completions whose verdict is known beforehand, and token soup whose is not.

What is right stays right under any harmless respelling, what is wrong stays wrong, and nothing raises or takes longer
than 2 seconds of processor time. `make nightly` draws more.
"""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from fuzzed import FEW, MANY, judged
from hypothesis import given
from hypothesis import strategies as st

from milepost.verifiers import math as mathematics
from milepost.verifiers.extract import POLICIES, extract, spoken

# --- mathematics whose value is known -------------------------------------------------------------------------------


@st.composite
def spelled(draw: st.DrawFn, depth: int = 3) -> tuple[Fraction, str]:
    """(a value, LaTeX that has it): sums, products, fractions, powers, roots, in one of many typographies."""
    kind = draw(
        st.sampled_from(
            ("whole", "decimal", "fraction", "mixed") + ("sum", "product", "power", "root", "wrapped") * (depth > 0)
        )
    )
    whole = draw(st.integers(0, 2000))
    if kind == "whole":
        return Fraction(whole), draw(st.sampled_from((f"{whole}", f"{whole:,}", f"{whole:,}".replace(",", "{,}"),
        f"{whole}.0", f"{whole}.",
                                                      "".join(chr(0xFF10 + int(d)) for d in str(whole)))))  # fmt: skip
    if kind == "decimal":
        return Fraction(whole, 1000), draw(
            st.sampled_from((f"{whole / 1000:.3f}", f"{whole / 1000:.5f}", rf"{whole}\times10^{{-3}}", f"{whole}e-3"))
        )
    if kind in ("fraction", "mixed"):
        bottom = draw(st.integers(2, 40))
        top = draw(st.integers(1, bottom - 1))
        command = draw(st.sampled_from((r"\frac", r"\dfrac", r"\tfrac")))
        text = draw(st.sampled_from((rf"{command}{{{top}}}{{{bottom}}}", rf"{{{top}\over {bottom}}}")))
        if kind == "fraction":
            return Fraction(top, bottom), text
        return whole + Fraction(top, bottom), rf"{whole}{text}" if whole else text
    one, text = draw(inside(depth - 1))
    if kind == "wrapped":
        form_ = draw(
            st.sampled_from(
                (r"\left({}\right)", "({})", "{{{}}}", r"\left|{}\right|", r"\displaystyle {}", r"{{\color{{red}}{}}}")
            )
        )
        return abs(one) if "|" in form_ else one, form_.format(text)
    if kind == "power":
        exponent = draw(st.integers(1, 3))
        return one**exponent, rf"\left({text}\right)^{{{exponent}}}"
    if kind == "root":
        return abs(one), rf"\sqrt{{\left({text}\right)^2}}"
    other, right = draw(inside(depth - 1))
    if kind == "sum":
        sign = draw(st.sampled_from("+-−"))
        return one + other if sign == "+" else one - other, rf"\left({text}\right) {sign} ({right})"
    sign = draw(st.sampled_from((r"\cdot", r"\times", "*", "")))
    return one * other, rf"\left({text}\right){sign}\left({right}\right)"


def inside(depth):
    """Within brackets "1,100" is a pair: there the comma of thousands is written as TeX asks."""
    return spelled(depth).map(lambda pair: (pair[0], re.sub(r"(?<!\{),(?!\})", "{,}", pair[1])))


def _written(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}" if value.denominator > 1 else str(value.numerator)


def check_values(pair: tuple[Fraction, str], off: Fraction, around: str) -> None:
    value, text = pair
    if value.denominator > 10**60:
        return
    answer = around.replace("?", text)
    assert judged(mathematics, answer=answer, gold=_written(value))["score"] == 1, (value, text)
    assert judged(mathematics, answer=answer, gold=text)["score"] == 1, text
    for other in (value + off, value - off, -value if value else Fraction(1), 10 * value if value else Fraction(10)):
        assert judged(mathematics, answer=answer, gold=_written(other))["score"] == 0, (value, other, text)


AROUND = st.sampled_from((r"\boxed{?}", r"So $x = \boxed{?}$.", r"<think>\boxed{3}, or</think>**\boxed{?}**",
    r"\[\boxed{ ?\, }\]", r"\boxed{3} no: \boxed{$?$}",
                          r"\boxed{x = ?}", r"\boxed{?}<|im_end|>\boxed{3}", r"\fbox{\boxed{?}}",
                          "<think>\n</think>\n\\boxed{?}\n\n"))  # fmt: skip
OFF = st.fractions(Fraction(1, 10**6), 50, max_denominator=10**7).filter(bool)


@FEW
@given(spelled(), OFF, AROUND)
def test_a_value_is_itself_however_written_and_nothing_else(pair, off, around):
    check_values(pair, off, around)


@pytest.mark.nightly
@MANY
@given(spelled(4), OFF, AROUND)
def test_many_values_are_themselves(pair, off, around):
    check_values(pair, off, around)


@st.composite
def collections(draw: st.DrawFn) -> tuple[str, str, str, bool]:
    """(gold, answer, something else, whether order matters) of two to five distinct values."""
    pairs = draw(st.lists(spelled(1), min_size=2, max_size=5, unique_by=lambda pair: pair[0]))
    pairs = [pair for pair in pairs if "," not in pair[1]]
    if len(pairs) < 2:
        pairs = [(Fraction(1), "1"), (Fraction(2), "2")]
    opening, closing, ordered = draw(
        st.sampled_from(((r"\{", r"\}", False), ("(", ")", True), (r"\left[", r"\right]", True), ("", "", False)))
    )
    values, texts = [_written(value) for value, _ in pairs], [text for _, text in pairs]
    order = draw(st.permutations(range(len(pairs))))
    gap = draw(st.sampled_from((", ", r",\ ", " , ", ", \\, ")))
    gold = opening + ", ".join(values) + closing
    answer = opening + gap.join(texts[i] for i in (range(len(pairs)) if ordered else order)) + closing
    changed = list(range(len(pairs)))
    wrong = draw(st.sampled_from(("fewer", "more", "turned" if ordered else "fewer")))
    changed = changed[:-1] if wrong == "fewer" else [*changed, 0] if wrong == "more" else changed[::-1]
    extra = f"{gap}987654321" if wrong == "more" else ""
    return gold, answer, opening + gap.join(texts[i] for i in changed) + extra + closing, ordered


@FEW
@given(collections())
def test_collections_are_compared_whole(drawn):
    gold, answer, other, _ = drawn
    assert judged(mathematics, answer=rf"\boxed{{{answer}}}", gold=gold)["score"] == 1, (gold, answer)
    assert judged(mathematics, answer=rf"\boxed{{{other}}}", gold=gold)["score"] == 0, (gold, other)


TOKENS = st.sampled_from(
    [*"0123456789.,;:+-*/^_=<>|!%()[]{}&$~' xyzneiAE∞√π½²−３", " ", "\\\\", r"\frac", r"\dfrac{1}{", r"\sqrt",
    r"\sqrt[3]", r"\left(", r"\right)", r"\{", r"\}",
     r"\cup", r"\cap", r"\infty", r"\pm", r"\le", r"\ne", r"\in", r"\text{", r"\mathbb{R}", r"\overline{3}", r"\dot3",
     r"\begin{pmatrix}", r"\end{pmatrix}",
     r"\sum_{k=1}^{9}", r"\int_0^1", r"\lim_{x\to0}", r"\log_2", r"\sin", r"\binom", r"\choose", r"\over", r"\boxed{",
     r"\circ", "...", "10^{10^{10}}", "9!", "!!",
     " or ", " and ", "not ", "x = ", " cm", " million", "e5", "_2", "1,000", "1.000.000", "<think>", "</think>",
     "<|im_end|>", "#### ", "]0,1[", "(A) "])  # fmt: skip
SOUP = st.lists(TOKENS, max_size=25).map("".join)


def check_soup(soup: str, gold: str) -> None:
    for answer in (soup, rf"\boxed{{{soup}}}"):
        judged(mathematics, answer=answer, gold=gold)
    judged(mathematics, answer=r"\boxed{5}", gold=soup)
    if (
        mathematics.check_gold(soup) is None
        and not any(mark in soup for mark in ("<", "####", "boxed", "{}"))
        and soup.strip()
    ):
        closed = extract(rf"\boxed{{{soup}}}")[0] == soup.strip()
        assert not closed or judged(mathematics, answer=rf"\boxed{{{soup}}}", gold=soup)["score"] == 1, soup


GOLDS = st.sampled_from(
    [
        "5",
        "1/3",
        "x+1",
        r"\{1,2\}",
        "(0,1)",
        "[0,1)",
        r"\sqrt2",
        "28\\%",
        "10 cm",
        "E",
        "even",
        "x>3",
        "101_2",
        r"\begin{pmatrix}1&2\end{pmatrix}",
    ]
)


@FEW
@given(SOUP, GOLDS)
def test_soup_is_judged(soup, gold):
    check_soup(soup, gold)


@pytest.mark.nightly
@MANY
@given(st.lists(TOKENS, max_size=60).map("".join), GOLDS)
def test_much_soup_is_judged(soup, gold):
    check_soup(soup, gold)


# --- completions --------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["so", "then 4", "a line\n", "{x}", "2 { 3", "it", "done. "])


@st.composite
def completions(draw: st.DrawFn) -> tuple[str, str | None]:
    """(a completion, the content of the box that counts), by a model that is simpler than the code: whole segments."""
    text, found = "", None
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(("words", "box", "thought", "empty", "end")))
        if kind == "words":
            text += draw(WORDS.filter(lambda words: "{" not in words)) + " "
        elif kind == "box":
            content = draw(st.sampled_from(("1", "{2}", r"\frac{3}{4}", r"\{5\}", "six", r"\text{se{v}en}")))
            text, found = text + rf"\boxed{{{content}}} ", content
        elif kind == "thought":
            text += "<think>" + draw(st.sampled_from(("", r"\boxed{0}", "<answer>", r"\boxed{"))) + "</think>"
        elif kind == "empty":
            text += draw(st.sampled_from((r"\boxed{} ", "\\boxed{ \u200b} ")))
        else:
            return text + draw(st.sampled_from(("<|im_end|>", "</s>", "<|eot_id|>"))) + r"\boxed{9}", found
    if draw(st.booleans()):
        return text + r"<think>\boxed{8}", None
    return text, found


@FEW
@given(completions())
def test_the_box_that_counts_is_found(drawn):
    text, expected = drawn
    assert extract(text)[0] == expected, text


@FEW
@given(st.lists(st.one_of(TOKENS, WORDS, st.sampled_from(["<answer>", "</answer>", "[/INST]", "\\boxed", "\ud800"])),
    max_size=60).map("".join),
       st.booleans())  # fmt: skip
def test_extraction_never_invents_anything(text, opened):
    for policy in POLICIES:
        found, where = extract(text, policy, opened=opened)
        assert (where and (found is None or (found in text and found.strip()))) or policy in ("whole", "line")
    said, why = spoken(text, opened=opened)
    assert (said is None) == bool(why)

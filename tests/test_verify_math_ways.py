"""Relatives of the known failures in mathematics: other typography, sets of numbers, conditions, names, and boxes that lie.

EQUAL and DIFFERENT hold (gold, answer).
"""

import pytest

from milepost.verifiers.extract import extract
from milepost.verifiers.math import check_gold, score
from milepost.verifiers.math_intervals import pieces
from milepost.verifiers.math_parse import parse

EQUAL = {
    "fonts, sizes and colours": [
        ("7", r"\bf 7"), ("7", r"\underline{7}"), ("7", r"\color{red}{7}"), ("7", r"\textcolor{blue}{7}"),
        ("7", r"\Large 7"),
        ("7", r"{\large 7}"), ("7", r"\hbox{7}"), ("7", r"\emph{7}"), ("7", r"7\hspace{1cm}"), ("7", "7\\\\"),
        ("7", "7,"),
        ("x^2+1", r"{\color{red}x^2}+1"), (r"\{1,2,3\}", r"\left\lbrace 1, 2, 3 \right\rbrace"),
        ("3", r"\left\vert -3\right\vert"),
        ("10 cm", r"10{\rm cm}"),
    ],
    "characters without width": [("42", "4\u200b2"), ("15", "1\u20605"), ("12", "1\u200e2"), ("5", "\ufeff5"), ("5",
    "5\u200d")],
    "Greek": [(r"\alpha", "α"), (r"2\theta+\Omega", "2θ + Ω"), (r"\sin\lambda", r"\sin λ")],
    "decimals without an end": [
        ("1/3", r"0.\dot{3}"), ("1/3", r"0.\dot 3"), ("1/6", r"0.1\dot6"), ("1/7", r"0.\dot{1}4285\dot{7}"),
        ("1/3", "0.333..."),
        ("1/3", "0.333…"), ("1/3", r"0.3333\ldots"), ("1/6", "0.1666..."), ("4/33", r"0.121212\dots"),
        ("1", "0.999..."),
        ("1/3", "0.(3)"), ("1/7", "0.(142857)"),
    ],
    "other separators": [
        ("1000000", "1.000.000"), ("1000000", "1'000'000"), ("1000", "1'000"), ("1000000", "1_000_000"),
        ("1500", "1.5 x 10^3"),
        ("0.0015", "1.5x10^{-3}"), (r"\{100,200\}", "200,100"), ("(100,200)", "(100, 200)"),
    ],
    "old and spoken": [
        ("10", r"{5 \choose 2}"), ("3:30 pm", "3:30 p.m."), (r"\mathbb{R}", r"\text{all real numbers}"),
        ("(-\\infty,\\infty)", "all real numbers"), (r"\text{DNE}", "does not exist"),
        (r"\emptyset", r"\text{no solution}"),
        ("no solutions", r"\emptyset"), ("27", r"\textbf{(E) } 27"), ("27", "(E) 27"),
        (r"\frac12", r"\text{(B)}\quad\frac{1}{2}"),
    ],
    "units": [
        ("60 mph", "60 miles per hour"), ("10 m/s", "36 kph"), (r"5\text{ m/s}", r"5 \frac{\text{m}}{\text{s}}"),
        ("5000000", r"5\text{ million dollars}"), (r"\$5\text{ million}", r"\$5{,}000{,}000"), ("5", "5hrs"),
        ("5", "5min"),
    ],
    "one set of numbers": [
        (r"\mathbb{R}", r"(-\infty,0]\cup(0,\infty)"), (r"(-\infty,\infty)", r"(-\infty,0)\cup[0,\infty)"),
        (r"\{1,2\}\cup\{3\}", r"\{1,2,3\}"), (r"\{1,2,3\}", r"\{3\}\cup\{1,2\}"), (r"\{1,2\}\cup\{3\}", "1, 2, 3"),
        (r"[1,2]\cup[2,3]", "[1,3]"), ("(0,5)", r"(0,3)\cup(1,5)"), ("(0,5)", r"(0,3]\cup(3,5)"),
        ("[0,1]", r"[0,1)\cup\{1\}"),
        (r"(-\infty,\sqrt2]", r"(-\infty,1)\cup[1,\sqrt{2}]"),
        (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,0]\cup[0,1)"),
    ],
    "half-open, the French way": [
        ("(0,1)", "]0,1["), ("[0,1)", "[0,1["), ("(0,1]", "]0;1]"), (r"[0,1)\cup(2,3]", r"[0,1[ \cup ]2,3]"),
        (r"(-\infty,3)", r"]-\infty,3["),
    ],
    "conditions": [
        ("(1,2)", r"x>1 \text{ and } x<2"), ("1<x<2", "x<2 and 1<x"), ("[1,2)", r"x\ge1 \land x<2"),
        ("1<x<2", "x > 1 ∧ x < 2"),
        ("x<1 or x>2", "x<1 ∨ x>2"), ("x>1 and y>2", "y>2 and x>1"), (r"p \land q", r"q \land p"), ("5", "x=y=5"),
        ("5", "5=x"),
    ],
    "names": [
        ("(a,b)=(1,2)", "(b,a)=(2,1)"), ("(1,2)", "(y,x)=(2,1)"), ("(1,2)", "y=2, x=1"), ("x=1, y=2", "1, 2"),
        ("(2,3)", "(m,b)=(2,3)"),
        ("y=2, x=1", "1, 2"), ("2, 1", "x=1, y=2"),
    ],
}  # fmt: skip
DIFFERENT = {
    "points are no numbers": [
        ("(100,200)", "100200"), ("100200", "(100,200)"), ("(1,234)", "1234"), ("(100,200,300)", "100200300"),
        (r"\{100,200\}", "100200"), ("[1,234]", "1234"), ("100, 200", "100200"),
    ],
    "conditions": [
        (r"(-\infty,-2)\cup(3,\infty)", r"x<-2 \text{ and } x>3"), ("x<1 or x>2", "x<1 and x>2"),
        ("x<1 or x>2", r"x<1 \land x>2"),
        ("(1,2)", "x>1 or x<2"), ("1<x<2", "x>1 or x<2"), (r"p \land q", r"p \lor q"), ("x>1 and y>2", "x>1 or y>2"),
        ("x>1 and y>2", "x>1"), ("x<1 or x>2", "x<1 or x>2 and x>3"), ("(1,2)", "x>1 and y<2"),
    ],
    "what is seen is not what is read": [("15", r"1\hspace{1cm}5"), ("12", "1\u202e2"), ("21", "\u202e12")],
    "one set of numbers": [
        (r"\mathbb{R}", r"(-\infty,0)\cup(0,\infty)"),
        ("(0,5)", r"(0,3)\cup(3,5)"), ("(0,3)", r"(0,2)\cup(1,4)"), (r"\{1,2\}\cup\{3\}", "1, 2, 3, 3"),
        ("[0,1]", r"(0,1)\cup\{1\}"),
        (r"[1,2]\cup[2,3]", r"[1,3], [1,3]"), (r"(0,1)\cup(2,3)", "(0,1), (2,3), (2,3)"),
        (r"\{1,2\}\cup\{3\}", r"\{1,2\}"),
        (r"(0,1)\cup(1,2)", "(0,2)"), ("(0,1)", "]0,1]"), ("[0,1]", "[0,1["), ("[[1,2],[3,4]]", "[[1,2],[3,5]]"),
    ],
    "names": [
        ("(a,b)=(1,2)", "(b,a)=(1,2)"), ("(1,2)", "(y,x)=(1,2)"), ("x=1, y=2", "2, 1"), ("x=1,y=2", "x=2,y=1"),
        ("(1,2)", "y=1, x=2"),
        ("y=2, x=1", "2, 1"),
    ],
    "what is no unit": [
        ("5", "5abc"), ("5", "5 xyz"), ("5", r"5\text{ million dollars}"), ("5", r"5 \text{ remainder } 2"),
        ("5", "5 remainder"),
        ("5", "5 tens"), ("5", r"5\text{ hundreds}"), ("5", r"5 \text{ past } 6"),
        ("1/2", r"\frac12\text{ million}"), ("60 mph", "60 km/h"),
    ],
    "bases": [("101", "101_2"), ("101", "101_3"), ("5", "5_2"), ("5", "5_5"), ("101_2", "100_2"), ("19_8",
    "19_8 or 3")],
    "decimals that go on somehow": [
        ("1/3", "0.33..."), ("0.142857", "0.142857..."), (r"\pi", "3.14159..."), ("1/3", "0.334..."),
        ("1/6", r"0.\dot{1}\dot{6}"),
        ("0", "0.(3)"),
    ],
    "labels": [("27", r"\textbf{(E) } 28"), ("27", "(E) A"), ("27", "(A) 27 (B) 28"), ("5", "A. 5, B. 6")],
    "separators": [("1000000", "1.000.00"), ("1000", "1'00"), ("1000", "1_000"), ("1.5", "1.5 x 10^3"), ("1000",
    "1.000")],
}  # fmt: skip


def value(answer, gold, **params):
    return score(answer=answer, gold=gold, **params)["score"]


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_however_written(kind):
    failed = [(g, a) for g, a in EQUAL[kind] for text in (a, rf"So \boxed{{{a}}}.") if value(text, g) != 1]
    assert not failed


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_however_close(kind):
    failed = [(g, a) for g, a in DIFFERENT[kind] for text in (a, rf"So \boxed{{{a}}}.") if value(text, g) == 1]
    assert not failed


# --- boxes that are not the answer ----------------------------------------------------------------------------------

DENIED = [
    r"not \boxed{5}", r"The answer isn't \boxed{5}.", r"It can’t be \boxed{5}", r"It cannot be $\boxed{5}$",
    r"$x \neq \boxed{5}$",
    r"x ≠ \boxed{5}", r"not **\boxed{5}**", r"not equal to \boxed{5}", r"anything but \boxed{5}",
]  # fmt: skip
PARTS = [
    r"-\boxed{5}", r"$-\boxed{5}$", r"$x = - \boxed{5}$", r"x = -\boxed{5}", r"$\frac{1}{\boxed{5}}$",
    r"$\frac{\boxed{5}}{7}$",
    r"\sqrt{\boxed{5}}", r"$\sqrt[3]{\boxed{5}}$", r"$\boxed{5}^2$", r"$\boxed{5}^{10}$", r"$\boxed{5}!$",
    r"$2^{\boxed{5}}$",
    r"$2\boxed{5}$", r"$\boxed{5}3$", r"$\boxed{5}/6$", r"$\boxed{5}_2$", r"\boxed{5}? No, $-\boxed{5}$",
]  # fmt: skip
ANSWERS = [
    r"\boxed{5}, not \boxed{3}", r"It is \boxed{5} rather than \boxed{3}.", r"- \boxed{5}", "- **\\boxed{5}**",
    "1. \\boxed{5}",
    "Whether it is or not\n\\boxed{5}", r"Prime or not? \boxed{5}", r"not only that: \boxed{5}", r"$\boxed{5}^\circ$",
    r"$\boxed{5}^{\circ}$", r"$\boxed{5}\%$", r"\$\boxed{5}", r"$\boxed{5}\text{ cm}^2$", r"\boxed{5}!",
    r"Great, \boxed{5}! Done",
    r"_\boxed{5}_", r"$2+3=\boxed{5}$", r"\begin{aligned}x&=2+3\\&=\boxed{5}\end{aligned}", r"Answer - \boxed{5}",
    r"Answer—\boxed{5}", r"(\boxed{5})", r"\boxed{5} / done", r"$a_1=\boxed{5}$", r"$\boxed{5}\ (\text{mod } 7)$",
]  # fmt: skip


@pytest.mark.parametrize("text", DENIED + PARTS)
def test_a_box_that_is_denied_or_a_part_of_something_is_no_answer(text):
    result = score(answer=text, gold="5")
    assert (result["score"], result["extractable"]) == (0, False)
    assert extract(text) == (None, extract(text)[1]) and "box" in extract(text)[1]


@pytest.mark.parametrize("text", ANSWERS)
def test_a_box_beside_anything_else_is_the_answer(text):
    assert value(text, "5") == 1


def test_a_denied_box_does_not_hide_the_one_before():
    assert extract(r"\boxed{5}, not \boxed{3}") == ("5", "box 1 of 2")
    assert extract(r"\boxed{4} no: \boxed{5} and not \boxed{6}, not \boxed{7}") == ("5", "box 2 of 4")


# --- sets of numbers ------------------------------------------------------------------------------------------------


def test_pieces_are_sorted_and_joined_where_they_touch():
    [one] = pieces(parse(r"[2,3]\cup(0,1)\cup[1,2]"))
    assert (one.low, one.has_low, one.high, one.has_high) == (parse("0"), False, parse("3"), True)
    first, second = pieces(parse(r"(1,2)\cup(0,1)"))  # 1 itself is missing
    assert (first.high, second.low) == (parse("1"), parse("1"))
    assert pieces(parse(r"(a,b)\cup[1,2]")) is None and pieces(parse("[2,1]")) is None and pieces(parse("(1,1)")) is None
    assert pieces(parse(r"\{(1,2),(3,4)\}")) is None and pieces(parse("x+1")) is None


def test_golds_without_a_value_are_refused():
    assert check_gold(float("nan")) == "the gold is nan, which is no number to compare with"
    assert score(answer=r"\boxed{\infty}", gold=float("inf"))["cause"] == "bad_gold"
    assert "base of 2" in check_gold("5_2")


def test_long_answers_are_not_read():
    assert value(r"\boxed{" + "[," * 100_000 + "}", "(1,2)") == 0
    assert value(r"\boxed{" + r"\color[" * 60_000 + "}", "even") == 0

"""Golds that are letters, words or names, and what is said around a formula. EQUAL and DIFFERENT hold (gold, answer)."""

import pytest

from milepost.verifiers.extract import extract
from milepost.verifiers.math import check_gold, right, score, wrong
from milepost.verifiers.math_choices import Choice, is_list_of_options, read_choice
from milepost.verifiers.math_domain import formula_of, structure
from milepost.verifiers.math_intervals import narrowed
from milepost.verifiers.math_parse import parse

EQUAL = {
    "words of two letters": [
        ("No", r"\text{No}"), ("No", "no"), ("no", "NO"), ("NO", r"\textbf{No.}"), ("IV", r"\text{IV}"), ("HT", "HT"),
        ("AM", r"\text{AM}"), ("No", "No, it does not."), ("Yes", r"\text{Yes}, because 2 < 3"[:12]), ("True", "true."),
        (r"\text{Yes, it is possible}", "Yes"), ("xy", "yx"), ("2ab", "2ba"),
    ],
    "several letters": [
        ("BD", r"\text{BD}"), ("BD", "B, D"), ("BD", r"\text{B, D}"), ("ABD", "A, B, D"), ("ABD", "A, B and D"),
        ("A, C, D", "ACD"), ("A B D", "ABD"), ("A,C,D", "D, A, C"), ("B、D", "B, D"), ("B、D", "BD"), ("①③", "①③"),
        ("②③", "②, ③"),
    ],
    "a letter and its value": [
        (r"\textbf{(C)}\ 5", "C"), (r"\textbf{(C)}\ 5", "5"), (r"\textbf{(C) }5", r"\text{(C)}"),
        (r"\text{(C)}\ 5", "(C) 5"),
        (r"\mathrm{(C) \ }5", "C"), (r"\boxed{\textbf{(C)}\ 5}", "C"), ("(C) 5", "5"), ("(C)5", "c"), ("C. 5", "C"),
        (r"\textbf{(D)}\ \frac{1}{2}", "0.5"), ("(B) Oslo", "B"), ("(B) Oslo", "Oslo"), ("Option C", "C"),
        ("27", "(E)27"),
    ],
    "powers of numbers behind factors": [
        ("n2^{n-1}", r"n \cdot 2^{n-1}"), ("(n-1)2^n+1", r"2^n(n-1)+1"), (r"\frac{1}{3}4^{n}", r"\frac{4^n}{3}"),
        (r"(-1)^n2^n", "(-2)^n"), (r"\sqrt{3}\,2^n", r"2^n\sqrt3"), ("x2^x", r"x \cdot 2^x"), (r"\binom{n}{2}2^{n-2}",
        r"\frac{n(n-1)}{2} \cdot 2^{n-2}"), ("C_n2^n", r"2^n C_n"),
    ],
    "conditions that hold together": [
        (r"[0,2)\cup(2,\infty)", r"x \ge 0, x \ne 2"), (r"[0,2)\cup(2,\infty)", r"x\ge 0\text{ and }x\ne2"),
        (r"[0,2)\cup(2,\infty)", r"\{x\mid x\geq 0 \text{ and } x\neq 2\}"),
        (r"x \geq 1, x \neq 2", r"[1,2)\cup(2,\infty)"),
        (r"x\in(0,1)\cup(1,\infty)", r"x>0, x\ne1"), (r"1<x<3,\ x\ne2", r"(1,2)\cup(2,3)"), ("a>0, b>0", "b>0 and a>0"),
        (r"x=0\text{ or }x\ge 2", r"\{0\}\cup[2,\infty)"), (r"\mathbb{R}", r"-\infty<x<\infty"),
        (r"(-\infty,0)\cup(0,\infty)", r"\text{all real numbers except }0"), (r"x \ne 1", r"\text{all reals except 1}"),
    ],
    "named with and without arguments": [
        ("y=e^{2x}", "y(x)=e^{2x}"), ("x(t)=\\cos t", r"x=\cos t"), ("u(x,t)=xt", "u=tx"), ("f(x)=0", r"f \equiv 0"),
        ("A(1,2)", "(1,2)"), ("A(1,2)", "A=(1,2)"), ("(2x,2y)", r"\nabla f=(2x,2y)"),
    ],
    "constants": [
        ("f(x)=cx", r"f(x)=cx\text{ for some constant }c"), ("f(x)=cx", r"f(x)=cx,\ c\in\mathbb{R}"),
        ("y=Ce^{2x}", "y=ce^{2x}"),
        ("f(x)=ax+b", r"f(x)=ax+b, \quad a,b\in\mathbb{R}"),
        (r"f(x)=x^2+c, \text{ where }c\text{ is a constant}", "x^2+c"),
        (r"\frac{x^3}{3}+C", r"\frac13x^3 + c"), ("y = C_1 e^x + C_2 e^{-x}", "y=c_1e^x+c_2e^{-x}"),
        ("f(x)=cx", "f(x)=kx"),
        (r"n \ge 4", r"n\geq4, n\in\mathbb{N}"), (r"n \ge 4", r"\text{all integers }n\ge4"),
        (r"x=k\pi,k\in\mathbb{Z}", r"x=k\pi \text{ for integer } k"),
    ],
    "names of what has no value": [
        (r"\mathbb{Z}/6\mathbb{Z}", r"\mathbb{Z}_6"),
        (r"\mathbb{Z}_2\times\mathbb{Z}_4", r"\mathbb Z_2 \oplus \mathbb Z_4"),
        (r"\mathbb{Q}(\sqrt{2})", r"\mathbb{Q}(\sqrt 2)"), (r"\aleph_0", r"\aleph_{0}"),
        (r"n\equiv 1\pmod 3", r"4 \bmod 3"),
        (r"\text{ellipse}", r"\text{an ellipse}"), ("first player", r"\text{The first player}"),
        (r"\infty", r"\text{infinity}"),
        (r"\text{does not exist}", r"\text{The limit does not exist}"),
        (r"\text{all primes}", r"\text{all primes } p"[:-2]),
    ],
    "ratios, money, dates, hours, bases": [
        ("3:4", r"\frac{3}{4}"), (r"\frac32", "3:2"), (r"\$18.90", r"\$18.90\text{ per hour}"),
        (r"\$18 \text{ per day}", r"\$18"),
        (r"\$5{,}000", r"5\text{,}000"), ("May 5", r"\text{May 5}"), ("May 5", "5 May"),
        (r"\text{March 15}", r"\text{March }15"),
        (r"\text{July 4, 1776}", "July 4, 1776"), (r"\text{June 20}", r"\text{June }20\text{th}"),
        ("3:00 PM", r"3\text{ PM}"),
        (r"\text{6 p.m.}", "6:00 PM"), ("1A2_{16}", "1A2"), ("DEF_{16}", r"\text{DEF}"), (r"60^\circ", r"60\degree"),
    ],
    "letters behind numbers": [
        ("2 m n", "2mn"), ("(2 m+1)^2", "(2m+1)^2"), ("m^{2}-3 m+2", "(m-1)(m-2)"), ("3 n-2 m", "3n-2m"),
        ("y = 2 m x", "y = 2mx"),
        ("6 s^2", "6s^2"), (r"\frac{\sqrt3}{4}s^2", r"\frac{\sqrt3}{4} s^{2}"), ("m g h", "mgh"), ("n R T", "nRT"),
        (r"\frac{1}{2} m v^{2}", r"\frac{mv^2}{2}"), (r"\frac{G M m}{r^{2}}", r"\frac{GMm}{r^2}"),
        (r"\sqrt{2 g h}", r"\sqrt{2gh}"),
        ("2^{2 m}", "4^m"), ("9.8 m/s^2", "9.8"), ("-5 m", "-5"), ("2 h", "120 min"), ("5 N", r"5 \text{N}"),
        ("12 V", "12"),
        ("9.8", r"9.8 \, \frac{\text{m}}{\text{s}^2}"), ("5", r"5 \frac{\text{W}}{\text{m}^{2}}"),
    ],
    "chains, sets of one, named sets": [
        ("x=y=z=1", "(1,1,1)"), ("x=y=z=1", "x=1,y=1,z=1"), ("x=y=z=1", "(x,y,z)=(1,1,1)"), ("(2,2,2)", "a=b=c=2"),
        ("x=y=z=1", "x = y = z = 1"),
        (r"\{3\}", "3"), (r"\{3\}", "x=3"), ("3", r"\{3\}"), (r"\{(1,2)\}", "(1,2)"), ("(1,2)", r"\{(1,2)\}"),
        (r"\{2,4\}", r"A \cap B = \{2,4\}"), (r"[0,2]", r"A \cap B = [0,2]"), ("5", "|A| = 5"),
        ("5", r"\phi(11) = 5"), ("5", r"\dim V = 5"),
    ],
    "values of functions": [
        ("f(0)", "f(0)"), ("f(2)", "f(1+1)"), ("f(b)-f(a)", "-f(a)+f(b)"),
        (r"\frac{7\zeta(3)}{8}", r"\frac78 \zeta(3)"), ("P(A)", "P(A)"),
        (r"I(0)e^{-\frac{t}{RC}}", r"\frac{I(0)}{e^{t/(RC)}}"), ("f(x)=2x", "2x"), ("n(n-1)", "n^2-n"),
        ("k(3)", "3k"), ("a(b+c)", "ab+ac"),
        ("2 m g", "2mg"), (r"\frac{1}{12}mL^2", r"\frac{mL^2}{12}"), ("3mn", "3nm"), ("P(3,-1)", "(3,-1)"),
    ],
    "sums of vectors": [
        (r"\mathbf{i} + 2\mathbf{j} - \mathbf{k}", r"\mathbf{i}+2\mathbf{j}-\mathbf{k}"),
        (r"3\vec{b} - \vec{a}", r"-\vec a+3\vec b"),
        (r"\frac12\vec a+\frac12\vec b", r"\frac12(\vec a+\vec b)"), (r"3\hat{i}-4\hat{j}", r"3\mathbf{i}-4\mathbf{j}"),
    ],
    "other signs for the same": [
        (r"\phi(n)", r"\varphi(n)"), (r"\epsilon", r"\varepsilon"), (r"e^x\sin x", r"\sin x\,e^x"),
        (r"\frac{1}{7}", r"\frac17=0.142857..."), ("1,2,\\ldots,5", r"\{1,2,3,4,5\}"),
        (r"\begin{pmatrix}1\\-2\end{pmatrix}",
        "(1,-2)^T"), (r"\begin{pmatrix}1\\-2\end{pmatrix}", r"\begin{pmatrix}1&-2\end{pmatrix}^\top"), ("(2,3),(3,2)",
        r"(x, y) \in \{(3,2),(2,3)\}"), (r"x=2, y=-1", r"\left\{\begin{array}{l}x=2\\y=-1\end{array}\right."),
    ],
}  # fmt: skip

DIFFERENT = {
    "words of two letters": [
        ("No", "on"), ("No", "oN"), ("no", "yes"), ("IV", "VI"), ("HT", "TH"), ("XI", "IX"), ("No", "Yes"),
        ("Yes", "Yes or no"),
        ("True", "True, 987654321"), ("Yes", "No, yes"), ("No", "none"), ("No", "N"), ("xy", "xz"),
    ],
    "several letters": [
        ("BD", "DB"), ("BD", "B"), ("BD", "B, D, A"), ("ABD", "BAD"), ("A, C, D", "AC"), ("①③", "①"), ("①③", "①②③"),
        ("B、D", "B"),
        ("BD", "A, B, C, D, E"), ("ABCD", "DCBA"), ("BD", "B or D"),
    ],
    "a letter and its value": [
        (r"\textbf{(C)}\ 5", "B"), (r"\textbf{(C)}\ 5", "6"), (r"\textbf{(C)}\ 5", "(C) 6"),
        (r"\textbf{(C)}\ 5", "(A) 5"),
        ("(C) 5", "C or D"), ("(C) 5", r"\textbf{(A)}\ 7"), ("(B) Oslo", "Rome"), ("C. 5", "5.5"),
    ],
    "powers of numbers behind factors": [
        ("n2^{n-1}", "2n^{n-1}"), (r"\frac{1}{3}4^{n}", r"\frac{1}{34^n}"), ("(n-1)2^n+1", "(n-1)2^{n+1}"),
        ("5", "7 6^1"),
        ("x2^x", "x^{2x}"),
    ],
    "conditions that hold together": [
        (r"[0,2)\cup(2,\infty)", r"x \ge 0"), (r"[0,2)\cup(2,\infty)", r"x > 0, x \ne 2"),
        (r"x \ge 0, x \ne 2", r"x \ge 0 or x \ne 2"),
        (r"[0,2)\cup(2,\infty)", r"x \ge 0, x \ne 3"), ("x>0, x\\ne1", r"(0,\infty)"), ("a>0, b>0", "a>0 or b>0"),
        ("a>0, b>0", "a>0"),
        (r"x=0\text{ or }x\ge 2", r"[0,\infty)"), (r"(-\infty,0)\cup(0,\infty)", r"\text{all real numbers}"),
    ],
    "named with and without arguments": [
        ("y=e^{2x}", "y(x)=e^{x}"), ("f(x)=0", "g=0"), ("A(1,2)", "(2,1)"), ("f(3)=5", "f=6"), ("A(1,2)", "B(2,2)"),
    ],
    "constants": [
        ("f(x)=cx", r"f(x)=cx^2,\ c\in\mathbb{R}"), ("y=Ce^{2x}", "y=ce^{x}"), ("x^2+c", "x^2"),
        (r"n \ge 4", r"n\geq5, n\in\mathbb{N}"),
        ("y = C_1 e^x + C_2 e^{-x}", "y=c_2e^x+c_1e^{-2x}"), ("f(x)=cx", r"f(x)=x, c\in\mathbb{R}"), ("cx", "kx+1"),
        (r"\{2k, k\in\mathbb{Z}\}", r"2k, k\in\mathbb{N}"),
    ],
    "names of what has no value": [
        (r"\mathbb{Z}/6\mathbb{Z}", r"\mathbb{Z}_3"), (r"\mathbb{Z}_6", r"\mathbb{Z}"), (r"\mathbb{Z}_6", "6"),
        (r"\aleph_0", r"\infty"),
        (r"n\equiv 1\pmod 3", r"2 \bmod 3"), (r"n\equiv 1\pmod 3", r"1 \bmod 4"), (r"n\equiv 1\pmod 3", "1"),
        (r"\text{ellipse}", "circle"),
        (r"\mathbb{Q}(\sqrt{2})", r"\mathbb{Q}(\sqrt 3)"), (r"\infty", r"\text{negative infinity}"),
    ],
    "ratios, money, dates, hours, bases": [
        ("3:4", r"\frac{4}{3}"), ("3:4", "4:3"), (r"\frac32", "2:3"),
        (r"\$18 \text{ per day}", r"\$18 \text{ per week}"), ("12:00", "12"),
        (r"\$18.90", r"\$19.90\text{ per hour}"), ("May 5", "May 6"), ("May 5", "June 5"), ("3:00 PM", "3 AM"),
        ("3:30 PM", "3 PM"),
        ("1A2_{16}", "1A3"), (r"\text{July 4, 1776}", "July 4, 1777"), ("3:4:5", r"\frac{3}{4}"),
    ],
    "letters behind numbers": [
        ("2 m n", "2"), ("3 m g", "3"), (r"\frac{3}{2} m g", r"\frac32"), (r"\frac{1}{2} m v^{2}", r"\frac12"),
        ("m g h", "mgm"),
        (r"\frac{\sqrt3}{4} s^2", r"\frac{\sqrt3}{4}"), (r"\frac{1}{2} g", r"\frac12"), ("2 m n", "2 m"),
        ("5 m", "5 s"),
        (r"9.8 \text{ m/s}^2", r"9.8 \frac{\text{m}}{\text{s}}"),
    ],
    "chains, sets of one, named sets": [
        ("x=y=z=0", "x=0"), ("x=y=z=0", "x=y=0"), ("a=b=c=1", "a=1"), ("(1,1,1)", "x=y=1"), ("x=y=1", "(1,2)"),
        (r"\{3\}", r"\{3, 4\}"),
        (r"\{3\}", "3, 4"), ("3", r"\{3, 4\}"), (r"\{2,4\}", r"A \cap B = \{2,5\}"), ("5", "|A| = 6"),
        (r"\{(1,2)\}", "(2,1)"),
    ],
    "values of functions": [
        ("f(0)", "0"), ("f(0)", "g(0)"), ("f(b)-f(a)", "f(b-a)"), ("2f(1)", "f(2)"), (r"\zeta(3)", r"3\zeta(1)"),
        ("f(x+1)", "f(x)+f(1)"),
        (r"I(0)e^{-t}", "0"), ("P(A)", "PA"), ("N(0,1)", "(0,1)"), (r"\Gamma(\frac14)", r"\frac{\Gamma}{4}"),
        ("3 nm", "3 m"), ("F(1)-F(0)", "F(1)"),
    ],
    "sums of vectors": [(r"2\vec{a}", "2"), (r"5\mathbf{k}", "5"), (r"3\vec{b} - \vec{a}", r"3\vec a-\vec b")],
    "other signs for the same": [
        (r"\frac{1}{7}", r"\frac17=0.142858..."), ("1,2,\\ldots,5", "1,2,5"),
        (r"\begin{pmatrix}1\\-2\end{pmatrix}", "(-2,1)^T"),
        (r"\begin{pmatrix}1\\-2\end{pmatrix}", r"\begin{pmatrix}1&-2\end{pmatrix}"),
        ("(2,3),(3,2)", r"(x, y) \in \{(3,2)\}"),
        ("1,2,\\ldots,5", r"1,2,\ldots,6"),
    ],
}  # fmt: skip


def value(answer, gold, **params):
    return score(answer=answer, gold=gold, **params)["score"]


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_however_written(kind):
    failed = [(g, a) for g, a in EQUAL[kind] for text in (rf"So \boxed{{{a}}}.", f"#### {a}") if value(text, g) != 1]
    assert not failed
    assert [gold for gold, _ in EQUAL[kind] if check_gold(gold)] == []


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_however_close(kind):
    failed = [(g, a) for g, a in DIFFERENT[kind] for text in (a, rf"So \boxed{{{a}}}.", f"#### {a}") if value(text, g) != 0]
    assert not failed


@pytest.mark.parametrize("kind", EQUAL)
def test_golds_pass_their_own_audit(kind):
    for gold, _ in EQUAL[kind]:
        assert [text for text in right(gold) if value(text, gold) != 1] == [], gold
        assert [text for text in wrong(gold) if value(text, gold) != 0] == [], gold


def test_what_a_gold_chooses():
    assert read_choice("(c)") is None and read_choice("C") == read_choice(r"\text{(C)}") == Choice("letter", "C")
    assert read_choice(r"\textbf{(C)}\ 5") == Choice("letter", "C", "5") and read_choice("(C) + 5") is None
    assert read_choice("A, B, D") == read_choice("ABD") == Choice("letters", "ABD") and read_choice("ABA") is None
    assert read_choice("no") == read_choice("No, never.") == Choice("word", "no") and read_choice("mn") is None


def test_options_one_below_the_other_choose_none():
    options = "A) 1\nB) 2\nC) 3\nD) 4"
    assert is_list_of_options(options) and not is_list_of_options("It is\nD) 4")
    assert [value(options, gold) for gold in "ABCD"] == [0, 0, 0, 0]
    assert [value("A. 1 B. 2 C. 3 D. 4", gold) for gold in "AD"] == [0, 0]
    assert value("So the answer is\n\nD) 4", "D") == 1


@pytest.mark.parametrize(
    "text",
    ["**Answer:**\n\n$$\n18\n$$", "So:\n\n\\[\n18\n\\]", "```\n18\n```",
     "$$a=1$$\nso\n$$\nx = 18\n$$\nI hope it is correct.",
     "The answer is **18** dollars.", "Answer: **18** apples", "So the answer is **$18** per day.",
     "**Answer: 18** dollars"],
)  # fmt: skip
def test_displays_and_bold_numbers_answer(text):
    assert value(text, "18") == 1 and value(text, "1") == value(text, "8") == 0


def test_a_tag_may_say_which_answer_it_is():
    assert value("<answer>The answer is C</answer>", "C") == value(r"\boxed{\text{The correct answer is C.}}", "C") == 1
    assert value("<answer>The answer is D</answer>", "C") == value("<answer>The answer is not C</answer>", "C") == 0


@pytest.mark.parametrize(
    "line", ["The correct option is C.", "So the correct choice is **C**.", "故选C.", "故选：C", "The right option is (C)."]
)
def test_lines_that_choose(line):
    assert value(line, "C") == 1 and value(line, "B") == 0
    assert value("The correct option is not C.", "C") == value("The correct options are B and C.", "C") == 0


def test_a_power_is_not_taken_for_bold():
    assert value("The answer is 2**3", "8") == value("The answer is 2**3 - 3**2", "-1") == 1


def test_channels_of_thought_are_no_answer():
    thought = r"<|channel|>analysis<|message|>perhaps \boxed{104}"
    assert extract(thought) == (None, "the reasoning never ends")
    final = thought + "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert extract(final + r"\boxed{103}<|return|>\boxed{104}") == ("103", "box 1 of 1")
    assert value(final + "The answer is **103**.", "103") == 1 and value(final + "I do not know.", "104") == 0


@pytest.mark.parametrize("behind", ["perhaps", "if you count zero", "depending on what is meant", "otherwise"])
def test_another_number_joined_to_a_box_by_or_leaves_no_answer(behind):
    result = score(answer=rf"\boxed{{5}} or 6 {behind}", gold="5")
    assert (result["score"], result["extractable"]) == (0, False)
    assert value(r"\boxed{5} or 300 minutes", "5") == 1


def test_formulas_without_what_is_said_around_them():
    assert formula_of(r"ax+b, a,b\in\mathbb{R}") == "ax+b" and formula_of(r"x^2, y\in\mathbb{R}") == r"x^2, y\in\mathbb{R}"
    assert (
        formula_of("x, y") == "x, y" and formula_of(r"\text{all real numbers except } 0") == r"\mathbb{R} \setminus \{0\}"
    )
    assert structure(r"\mathbb{Z}/6\mathbb{Z}") == "Z_6" and structure(r"\mathbb{R}") is structure("x+1") is None
    assert structure(r"7 \pmod{3}") == "1 mod 3" and structure(r"7 \pmod{0}") is None


def test_bounds_and_numbers_left_out():
    first, second = narrowed(parse(r"x \ge 0, x \ne 2"))
    assert (first.has_low, first.has_high, second.has_low, second.has_high) == (True, False, False, False)
    assert (first.high, second.low) == (parse("2"), parse("2"))
    for other in ("x > 0, x < 2", r"x > 0, y \ne 2", r"x \ne 1, x \ne 2", r"x > 0, x \ne -1", r"x > 3, x < 1, x \ne 2"):
        assert narrowed(parse(other)) is None, other

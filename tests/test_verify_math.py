"""The mathematics verifier: every case of the list of known failures that concerns it, and relatives of each kind.

EQUAL and DIFFERENT hold (gold, answer); each answer is tried as it is and in a box.
"""

import contextlib
import threading
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.verifiers.math import check_gold, right, score, wrong
from milepost.verifiers.math_parse import parse
from milepost.verifiers.math_scan import Unreadable
from milepost.verifiers.math_value import exact, same_value
from milepost.workers import Call, WorkerPool

EQUAL = {
    "joining words": [
        ("1, 2", r"x=1\text{ or }x=2"), (r"x=1\text{ or }x=2", "2, 1"), ("1, 2", r"x=1\text{or}x=2"),
        ("1, 2", r"x=1,\text{ or }x=2"),
        ("1, 2", r"x=1\text{, or }x=2"), (r"x=1\mbox{ or }x=2", r"\{1,2\}"), ("1, 2", r"x=1\textrm{ or }x=2"),
        ("1, 2", r"x=1\mathrm{ or }x=2"), ("1, 2", r"x=1\textbf{ or }x=2"), (r"x=1\text{ and }x=2", "1, 2"),
        ("1, 2", r"x_1=1\text{ or }x_2=2"), ("1, 2", r"\text{$x=1$ or $x=2$}"), ("a, b", r"a\text{ or }b"),
        (r"x<1\text{ or }x>2", r"(-\infty,1)\cup(2,\infty)"), ("(1,2)", r"x>1\text{ and }x<2"),
        ("5 cm, 6 cm", r"5\text{ cm or }6\text{ cm}"),
    ],
    "all but some numbers": [
        (r"(-\infty,2)\cup(2,\infty)", r"x\ne 2"), (r"x \neq 2", r"(-\infty,2)\cup(2,\infty)"),
        (r"x\ne 2", r"x<2\text{ or }x>2"),
        (r"\mathbb{R}\setminus\{2\}", r"x\neq2"), (r"x\ne2", r"\mathbb{R}-\{2\}"),
        (r"\mathbb{R}\setminus\{1,2\}", r"x\ne 1, 2"),
        (r"x\ne1, x\ne2", r"(-\infty,1)\cup(1,2)\cup(2,\infty)"), (r"x\in\mathbb{R}, x\ne2", r"(-\infty,2)\cup(2,\infty)"),
        (r"x\ne\pm2", r"(-\infty,-2)\cup(-2,2)\cup(2,\infty)"), (r"x\ne2", r"2x\ne4"),
        ("x≠½", r"(-\infty,0.5)\cup(0.5,\infty)"),
    ],
    "several units": [
        ("1 hour 30 minutes", "90 minutes"), ("90 minutes", "1 hr 30 min"),
        ("1.5 hours", r"1\text{ hour }30\text{ minutes}"),
        (r"1\text{ hour and }30\text{ minutes}", "1 h 30 min"), ("5400 seconds", "1 hour and 30 minutes"),
        ("5 ft 6 in", "66 inches"),
        ("1 year 6 months", "18 months"), ("17 days", "2 weeks 3 days"), ("2 dollars 50 cents", "$2.50"),
        ("1 hour 2 minutes 3 seconds", "3723 s"),
    ],
    "without end": [
        ("1/3", r"0.\bar3"), (r"0.\bar 3", "1/3"), ("1/3", r"0.\bar{3}"), (r"0.\overline3", "1/3"),
        ("1/3", r".\overline{3}"),
        ("1/3", "0.3̅"), (r"0.3\overline{45}", "19/55"), ("19/55", r"0.3\bar{45}"), ("-5/3", r"-1.\bar6"),
    ],
    "choose": [
        (r"5 \choose 2", "10"), ("10", r"{5 \choose 2}"), ("10", r"{{5}\choose{2}}"), (r"n \choose 2", r"\frac{n(n-1)}{2}"),
        ("30", r"3{5\choose2}"), (r"{n+1 \choose 2}", r"\binom{n+1}{2}"),
    ],
    "exact": [  # case D8
        ('1/3', '0.\\overline{3}'), ('1/6', '0.1\\overline{6}'), ('3', '**3**'), ('3', '\\text{3}'),
        ('3', '\\boldsymbol{3}'), ('\\dbinom{9}{4}', '126'), ('6', '3!'),
        ("1/2^99", "2^{-99}"), ("1/2^99", r"\frac{1}{2^{99}}"), ("1/2004!", r"\frac{1}{2004!}"), ("0.5", "1/2"),
        ("1/2", ".50"),
        ("1e-3", "0.001"), ("3/4", "6/8"), ("-3/4", r"\frac{-3}{4}"), ("-3/4", r"-\frac{3}{4}"), ("-3/4", "3/-4"),
        ("42", "42.0"),
        ("42", "42."), ("2^{10}", "1024"), ("1024", "2**10"), ("5!", "120"), (r"\binom{5}{2}", "10"),
        (r"\sqrt{16}", "4"),
        (r"\sqrt[3]{-8}", "-2"), (r"6.02\times10^{23}", "602000000000000000000000"), (r"|-3|", "3"),
        (r"\lfloor 3.7 \rfloor", "3"),
        ("10^{-20}", "1/100000000000000000000"), (42, "42"), (0.1, "1/10"), (Fraction(1, 3), r"\frac13"),
        ("-(-3)", "3"),
        (r"\log_2 8", "3"), (r"\frac{1}{1+\frac{1}{2}}", "2/3"), ("0", "-0"), ("2^{100}", "4^{50}"), ("7", "+7"),
        ("16^{1/4}", "2"),
    ],
    "mixed": [  # case D11
        ("5/4", "1 1/4"), ("5/4", r"1\frac14"), ("5/4", r"1\frac{1}{4}"), ("5/4", r"1 \dfrac{1}{4}"), ("5/4", "1¼"),
        ("5/4", "1.25"), ("2.5", r"$2\frac12$"), ("2.5", "2½"), ("-5/4", "-1 1/4"), ("-5/4", r"-1\frac{1}{4}"),
        ("7/2 cups", "3 1/2 cups"),
        ("1 1/4", "5/4"), (r"3\frac{2}{7}", "23/7"), ("10 3/8", "83/8"), (r"12\tfrac{1}{3}", "37/3"),
        ("1 2/3", r"\frac53"),
    ],
    "percent": [  # case D13
        (r"28\%", "28"), (r"28\%", "0.28"), (r"28\%", "28 percent"), ("28%", r"28\%"), ("28%", "7/25"),
        ("0.28", "28%"),
        ("28", "28%"), ("250%", "2.5"), ("12.5%", r"12\frac12\%"), ("0.5%", "0.005"), ("50%", r"\frac12"),
        ("100%", "1"), ("33%", "33％"),
    ],
    "separators": [  # case D16
        ('\\$32,\\!348', '32348'), ('11,\\! 111,\\! 100', '11111100'), ('10,\\!080', '10080'),
        ("1234.5", "1,234.5"), ("1000", r"1{,}000"), ("1000", r"1\,000"), ("1234567", "1,234,567"),
        ("1,000", "1000"), ("(1,000)", "1000"),
        ("1234.50", "1.234,50"), ("1000000", "1 million"), ("1000", "1\u202f000"), ("1000000", r"1\,000\,000"),
        ("3000", "3 thousand"),
        ("-1234", "-1,234"), ("-1234", "−1,234"), ("12,345.678", "12345.678"), ("(12,345)", "(12, 345)"),
        ("(3, 456)", "(3,456)"), ("12500", r"12\!,500"), ("12500", "12 500"),
        ("-1234567", "-1 234 567"), ("1234.5", "1 234.5"),
    ],
    "integrals and sums": [  # read by math-verify
        ("1/3", r"\int_0^1 x^2 \, dx"), ("1/3", r"\int_0^1x^2dx"), (r"\int_0^1 x^2 dx", r"\frac{1}{3}"),
        ("55", r"\sum_{k=1}^{10} k"),
        ("-2", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"), ("1", r"\lim_{x\to 0}\frac{\sin x}{x}"),
    ],
    "old and spoken": [
        ("2/3", r"{2 \over 3}"), ("7/2", r"3{1 \over 2}"), (r"\frac{a+1}{b}", r"{a + 1 \over b}"),
        ("1/2", r"{{1} \over {2}}"),
        ("101_2", r"101_{\text{two}}"), ("101_2", "101_{two}"), ("77_{8}", r"77_{\text{ eight }}"),
        (r"\text{March 3}", "March 3"), (r"\text{Room 12}", "room 12."),
    ],
    "named coordinates": [
        ("(x,y)=(3,-1)", "(3,-1)"), ("(3,-1)", "(x,y)=(3,-1)"), ("(1,2,3)", "(a, b, c) = (1, 2, 3)"),
        (r"\overline{AB}", r"\overline{ AB }"), (r"\vec{a}", r"\vec{a}"),
    ],
    "unicode": [  # case D16
        ("3", "３"), ("-3", "−3"), ("-3", "－３"), ("-3", "–3"), ("42", "٤٢"), ("1/2", "½"), ("x^2", "x²"),
        ("2\\pi", "2π"),
        (r"\sqrt{2}", "√2"), ("3/4", "3⁄4"), ("6", "2×3"), ("6", "2·3"), ("[1,2]", "［１，２］"), (r"x\le 3", "x≤3"),
        ("1,234", "１，２３４"),
        ("10^{-3}", "10⁻³"), ("x_1", "x₁"), ("3", "6÷2"), ("3.5", "３．５"), (r"90^\circ", "90°"),
        (r"(-\infty, 3)", "(−∞,3)"),
        (r"\{1,2\}", "｛1，2｝"), ("3/4", "¾"), ("2/3", "⅔"), ("50%", "５０％"), ("-1/2", "−½"), ("7", "７。".rstrip("。")),
    ],
    "units": [  # case D16
        ('12\\text{ (inches)}', '1 foot'), ('25\\text{ cents}', '$0.25'), ('4 \\text{ square units}', '4'),
        ("10 cm", "10 cm"), ("10 cm", "10"), ("10", "10 cm"), ("10 cm", r"10\text{ cm}"),
        ("10 cm", r"10~\mathrm{cm}"), ("1 m", "100 cm"),
        ("10cm", "10 centimeters"), ("5 m", "5"), ("5 m/s", r"5 \text{ m/s}"), ("36 km/h", "10 m/s"),
        ("18", "18 apples"), ("18 apples", "18 apple"),
        ("$5", "5 dollars"), (r"\$1,200", "1200"), ("5", "$5"), ("5", r"\$5.00"), ("90", r"90^\circ"),
        (r"90^\circ", "90 degrees"), ("3 cm^2", r"3\text{ cm}^2"),
        ("3 cm^2", "3 square centimeters"), ("3 cm²", r"3\,\text{cm}^{2}"), ("2 hours", "120 minutes"),
        ("60 miles per hour", "60 mph".replace("mph", "miles/hour")),
        ("1 kg", "1000 g"), ("$3.5 million", "3500000"), ("5 feet", "60 inches"), (r"x = 5 \text{ cm}", "5 cm"),
        (r"\frac{3}{4} \text{ cups}", "0.75"),
        (r"2\pi \text{ cm}", r"2\pi"), ("10 m", "10 meters"),
    ],
    "structures": [
        ('x = 2 \\text{ or } x = 3', '2, 3'), ('2 \\text{ and } 3', '3, 2'), ('\\langle 1,2 \\rangle', '(1,2)'),
        ('(-\\infty,\\infty)', '\\mathbb{R}'), ('x=2, y=3', '(2,3)'),
        ('x<4 \\text{ or } x>6', '(-\\infty,4)\\cup(6,\\infty)'), ('\\text{A,C}', 'C, A'),
        ("(1,2)", "(1, 2)"), ("(1,2)", r"\left(1,2\right)"), ("(1/2, 3)", "(0.5, 3)"), (r"\{1,2,3\}", r"\{3,1,2\}"),
        (r"\{1,2\}", "1, 2"), (r"\{1,2\}", "2 and 1"),
        ("1, 2", "2, 1"), ("2, 3", "x=2 or x=3"), ("2, 3", "x = 2, 3"), ("2,3", "x=3, x=2"), ("[1,2)", r"[1, 2)"),
        ("[0.5, 1]", r"\left[\frac12,1\right]"),
        (r"(-\infty,3]\cup[5,\infty)", r"[5, \infty) \cup (-\infty, 3]"),
        (r"(-\infty,-2)\cup(3,\infty)", "x<-2 or x>3"), ("(1,2)", "1<x<2"), ("[3,\\infty)", r"x \ge 3"),
        (r"0<x\le5", r"5 \geq x > 0"), ("x>3", "3<x"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
        (r"\begin{pmatrix}0.5\\2\end{pmatrix}", r"\begin{pmatrix}\frac12\\2\end{pmatrix}"),
        (r"2\pm\sqrt3", r"2-\sqrt3, 2+\sqrt{3}"), (r"\pm2021", "-2021, 2021"),
        (r"\frac{-1\pm\sqrt5}{2}", r"\frac{-1+\sqrt{5}}{2}, \frac{-1-\sqrt{5}}{2}"), (r"\{\pm 1\}", "1, -1"),
        ("y = 2x+3", "2x+3"), ("y = 2x+3", "2x - y + 3 = 0"), ("x=5", "5"), ("5", "x = 5"),
        ("f(x) = x^2", "x^2"), ("12:00", "12:00"),
        (r"\emptyset", r"\varnothing"), (r"\emptyset", r"\{\}"), (r"\{(1,2),(3,4)\}", r"(3,4), (1,2)"),
        ("1010_2", "1010_{2}"), ("1010_2", "1010"), ("(1,2,3)", "1, 2, 3"), ("3/4", "1/2 + 1/4 = 3/4"),
    ],
    "expressions": [
        ('\\sin^{-1} x', '\\arcsin x'), ('\\sin 45^\\circ', '\\frac{\\sqrt2}{2}'), ('y=\\frac{1}{2}x+3', 'x-2y+6=0'),
        (r"\sqrt{8}", r"2\sqrt2"), (r"\frac{1}{\sqrt2}", r"\frac{\sqrt2}{2}"), ("(x+1)^2", "x^2+2x+1"),
        ("x(x+1)", "x^2+x"), (r"\frac{x^2-1}{x-1}", "x+1"), ("2x", "x*2"),
        (r"\sin^2 x + \cos^2 x", "1"), (r"e^{i\pi}", "-1"), ("3+4i", "4i+3"), (r"\ln 8", r"3\ln 2"),
        (r"\frac{\pi}{2}", "pi/2"), (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"), ("xy", "yx"),
        (r"\tan(\pi/4)", "1"), ("a^2-b^2", "(a-b)(a+b)"), ("n!", "n(n-1)!"),
        (r"\frac{n(n+1)}{2}", r"\binom{n+1}{2}"), ("sqrt(3)/2", r"\frac{\sqrt{3}}{2}"), (r"2^{x+1}", r"2\cdot 2^x"),
        (r"\alpha+\beta", r"\beta + \alpha"), (r"\cos 2x", r"1-2\sin^2 x"), ("1/(1-x)", r"\frac{-1}{x-1}"),
        (r"\arctan 1", r"\frac{\pi}{4}"), ("|x|", r"\sqrt{x^2}"), (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
        (r"\infty", r"+\infty"), (r"-\infty", r"-\infty"), ("a_1+a_2", "a_2 + a_1"),
    ],
    "words": [  # case D5
        ('\\text{June 20}', '\\text{june 20}'),
        ("E", r"\text{E}"), ("E", "E: because of the rest"), ("E", "(E)"), ("E", r"\text{(E)}"), ("E", "E."),
        (r"\text{(C)}", "C"), ("B", r"\textbf{(B)}"), ("B", "b"), ("Evelyn", r"\text{Evelyn}"),
        ("even", "Even"), (r"\text{odd}", "odd"), ("New York", r"\text{New York}"), ("A", "A) 12"),
        ("D", r"\textbf{(D)}\ 12"), ("True", r"\text{true}"), ("no solution", r"\text{No solution}"),
    ],
    "money": [(r"\$-5", "-5"), ("$18.00", "18 dollars"), ("$0.25", "25 cents")],
    "letters": [("2m", "2 m"), ("2 m", "2m"), ("2m+1", "1 + 2m"), ("3g", "3 g"), ("5 h", "5h"), ("-4 m", "-4m")],
    "foreign": [
        (r"\int_0^1 x dx", r"\frac{1}{2}"), (r"\sum_{k=1}^{10} k", "55"),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "-2"),
    ],
}  # fmt: skip
DIFFERENT = {
    "groups and names that are no number": [
        ("12500", "12 50"), ("12500", "1 2500"), ("765", "7 6 5"), ("5", "4 5"), ("12.5", "12 500"), ("2", "2 000"),
        ("0500", "0 501"), ("1", "1 000"), ("(3,-1)", "(x,x)=(3,-1)"), ("(3,-1)", "(x,y)=(3,1)"),
        ("(3,-1)", "(x,y)=(3,-1,0)"),
        ("(3,-1)", "x,y=(3,-1)"), ("101_2", r"101_{\text{three}}"), (r"\text{March 3}", "March 4"),
        (r"\text{March 3}", "March 3 or 4"), (r"\text{March 3}", "3"), (r"\overline{AB}", r"\overline{BA}"),
        (r"\overline{AB}", "AB"), ("2/3", r"{3 \over 2}"), ("2/3", r"{2 \over 3} \over 1 2"),
    ],
    "joining words": [
        ("1", r"x=1\text{ or }x=2"), ("2", r"x=1\text{ or }x=2"), ("1, 2", r"x=1\text{ or }x=3"),
        ("5", r"\text{$5$ or $6$}"),
        ("5", r"5\text{, or }6"), (r"x<1\text{ or }x>2", r"x<1\text{ and }x>2"), ("5 cm", r"5\text{ cm or }6\text{ cm}"),
        (r"1\text{ or }2", "12"), ("1, 2", r"x=1\text{ nor }x=2"),
    ],
    "all but some numbers": [
        (r"(-\infty,2)\cup(2,\infty)", a) for a in (r"x\ne3", "2", "x=2",
        "x<2", r"(-\infty,2)", r"x\ne-2", r"\{2\}", r"\mathbb{R}",
                                                     r"x\le2\text{ or }x>2", r"x\ne2, x\ne2", r"x\ne2, 3")
    ] + [
        ("2", r"x\ne2"), (r"x\ne2", r"y\ne2"), (r"x\ne2", r"\mathbb{R}"), (r"x\ne1,x\ne2", r"x\ne1\text{ or }x\ne2"),
        (r"\mathbb{Z}\setminus\{0\}", r"x\ne0"), (r"\mathbb{R}\setminus\{0\}", r"\mathbb{R}\setminus\{1\}"),
        (r"\mathbb{R}", r"x\ne2"), ("2", r"\mathbb{R}\setminus\{2\}"),
    ],
    "several units": [
        ("1 hour 30 minutes", a) for a in ("90", "1.5", "1 hour", "30 minutes", "1 hour 31 minutes", "90 hours",
        "1 hour, 30 minutes",
                                           "1.3 hours", "30 minutes 1 hour", "1 hour 30",
                                           "1 hour 30 minutes or 2 hours", "90 cm")
    ] + [
        (a, "1 hour 30 minutes") for a in ("90", "1.5", "1", "30", "1.3", "1 hour", "30 minutes", "130 minutes")
    ] + [
        ("150 minutes", "1 hour 90 minutes"), ("2 hours", "1 hour 60 minutes"), ("5 ft", "5 ft 6 in"),
        ("5, 6", "5 ft 6 in"),
        ("1 hour 30 minutes", "1 h 30 m"), ("12 months", "1 year 1 month"),
    ],
    "without end": [
        ("1/3", r"0.\bar4"), ("1/3", r"0.\bar 34"), ("1/3", r"0.3\overline{4}"), ("19/55", r"0.\overline{345}"),
        ("3", r"\bar3"),
        ("1/3", r"0\bar3"), (r"0.\bar3", "0.3"), (r"0.\bar3", "0.33333333"), ("4/3", r"0.\bar{3}1"),
    ],
    "choose": [
        (r"5 \choose 2", "5/2"), (r"5 \choose 2", "20"), ("10", r"2 \choose 5"), ("5", r"5\choose 2"),
        ("11", r"5 \choose 2 + 1"),
        ("10", r"5 \choose 2, 3"),
    ],
    "exact": [  # cases D8, D14
        ('1/3', '0.3\\overline{0}'), ('1/3', '0.\\overline{33}1'), ('5', '~5'), ('\\infty', '10^{100}'),
        ('1/7', '0.142857'),
        ("1/2^99", "1/2^98"), ("1/2004!", "1/2006!"), ("2,3,4", "1,2,3"), ("n=2,3,4", "n=1,2,3"),
        ("(0,1)", "(0,1.5)"), (r"\pm2021", "2021"), ("12:00", "1:00"), ("100/3", "33.3"),
        ("1/3", "0.333333"), ("0.333", "1/3"), (r"\sqrt2", "1.414"), (r"\pi", "3.14159265358979"), (r"\pi", "22/7"),
        ("1/10^{20}", "0"), ("0", "10^{-50}"), ("10^{100}", "10^{100}+1"), ("1", "0.9999999999"),
        ("2^{1000}", "2^{1000}-1"), ("e^{-1000}", "0"), ("e^{-1000}", "e^{-1001}"),
        (r"\sqrt{2}", r"\sqrt{2}+10^{-100}"), (r"\sqrt{10^{40}+1}", "10^{20}"), ("3.0000001", "3"),
        ("100!", "101!"), ("2/3", "0.6667"),
        ("123456789012345678", "123456789012345679"), ("0.1+0.2", "0.30000000000000004"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"), ("5", "-5"), ("5", "50"), ("0.05", ".5"), ("x^2", "x^3"),
        ("-2^2", "4"),
    ],
    "mixed": [  # case D11
        ("5/4", "1 * 1/4"), ("5/4", "11/4"), ("5/4", "1 4/1"), ("1/4", "1 1/4"), ("5/4", "1 1 4"),
        ("5/2", r"2\cdot\frac12"), ("1", r"2\frac12"), ("3/2", "1 1/4"), ("-3/4", "-1 1/4"), ("5/4", "1 - 1/4"),
    ],
    "percent": [  # case D13
        ("0.28", "28"), ("28", "0.28"), ("28%", "2.8"), ("28%", "0.0028"), ("0.28", "0.28%"), ("1", "1%"),
        ("0.5", "0.5%"), ("0.5%", "0.5"), ("28%", "28.1%"), ("28%", "-28%"), ("28%", "72%"), ("28%", "28, 0.28"),
    ],
    "separators": [  # case D16
        ("(1,000)", "(1,0)"), ("(1,0)", "(1,000)"), ("1.234", "1.234,50"), ("1234.5", "1,2345"), ("1.5", "1,5"),
        ("15", "1,5"), ("1000", "1,00"), ("1000", "1,0000"), ("12", "1,2"), ("1234", "1.234"), ("1000", "(1, 000)"),
        ("1", "1,000"), ("(1,2)", "12"), ("1000", "1, 000"), ("(1,000)", "(1, 0)"), ("12345", "12, 345"),
        ("1000", "1 000 1"),
    ],
    "unicode": [("3", "４"), ("3", "−3"), ("x^2", "x₂"), ("1/2", "¼"), ("2", "²"), ("12", "1²"), ("-3", "３")],
    "units": [  # case D16
        ('10%', '10 cm'), ('$10', '10%'), ('10 cm', '10 cm/s'), ('10 N', '10 J'), ('12:30', '12.5'),
        ("10 cm", "10 m"), ("10 m", "10 cm"), ("10 cm", "10 cm^2"), ("10 km", "10 miles"), ("1 hour", "1 minute"),
        ("5 apples", "5 pears"), ("$5", "5 euros"), ("$5", "5 cents"), ("10 cm", "100 cm"), ("10 kg", "10 g"),
        (r"10\text{ m}", r"10\text{ cm}"), ("5 m/s", "5 m/s^2"), ("5 km/h", "5 m/s"), ("90", "90 or so"),
        ("7", "7 or more"), ("5", "5 squared"), ("3", "3 halves"), ("18", "not 18"), ("18", "18 minus 2"),
        ("5", "5 million"),
        ("1 m", "1 cm"), ("10 in", "10 ft"), ("2 L", "2 mL"), ("25", "5 squared"), ("60", "60 divided by 2"),
        ("5", "5 thousand"), ("$5", "$50"), ("3 cm^2", "3 cm^3"), ("4", "4th or 5th"), ("5", "5 below zero"),
        ("4", "4 inverse"), ("5", "5 incorrect"), ("5", "5k"), ("3", "3 point 5"),
        ("1 day", "24 minutes"), ("60 km/h", "60 h/km"),
    ],
    "listing": [  # case D16
        ('5', '\\max(5,6)'), ('5', '2+3=6'), ('5', '+-5'), ('5', '\\text{5 or 6}'), ('5', '5 is wrong'),
        ('5', '5 if x else 6'), ('yes', 'yes/no'), ('yes', 'yes and no'), ('5', '5 \\text{ and } 6'),
        ('5', 'x \\in \\{5, 6\\}'),
        ("5", "$7$ $6$ $5$"), ("5", "7, 6, 5"), ("5", "4 or 5"), ("5", "5 or 4"), ("5", "5, 5"), ("5", r"\{5, 6\}"),
        ("5", "(5)(6)"), ("5", "5 and 6"), ("5", "5; 6"), ("5", "5 6"), ("5", "6 5"), ("5", r"5 \text{ or } 6"),
        ("5", "[5, 6]"), ("5", "x=5 or x=6"), ("5", "5 = 6"), ("5", "6 = 5"), ("5", "x = 6 = 5"), ("5", r"\pm5"),
        ("5", "4/5/6"), ("5", "5 (or 6)"), ("5", "either 5 or 6"), ("5", "1 2 3 4 5 6 7 8 9"), ("5", "5, maybe 6"),
        ("5", r"5 \quad 6"), ("5", r"5 \\ 6"), ("5", "[[5]]".replace("[[5]]", "[[5],[6]]")), ("5", "5 < 6"),
        ("5", "0<x<10"), ("5", "5:6"), ("5", "5 | 6"), ("8", "so it is 7 or 8"), ("5", "5 / 6"), ("5", "5, 6, and 7"),
        ("E", "A or E"), ("E", "(E) or (A)"), ("E", "E. A."), ("E", "E: or D"), ("E", r"\text{(E)} \text{(A)}"),
        ("E", "A, B, C, D, E"), ("E", "ABCDE"), ("E", "(A)(E)"), ("E", "E or A"), ("E", "E, A"),
        ("Evelyn", "Evelyn or Bob"), ("Evelyn", "Bob, Evelyn"), ("(1,2)", "(1,2) or (2,1)"), ("(1,2)", "(1,2),(2,1)"),
        ("[1,2)", "[1,2), [1,2]"), (r"\{1,2\}", r"\{1,2\}, \{1,3\}"), ("1, 2", "1, 2, 3"), ("1, 2", "1, 2, 2"),
        (r"\{1,2\}", "1, 2, 3"), ("10 cm", "10 cm or 10 m"), ("28%", "28% or 29%"), ("x=5", "x=5, y=6"),
    ],
    "structures": [
        ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("[1,2)", "(1,2]"), ("[1,2)", "[1,2]"), ("(1,2)", r"\{1,2\}"),
        ("(1,2)", "2, 1"), (r"\{1,2\}", r"\{1\}"), ("(1,2)", "(1,2,3)"), ("x>3", r"x\ge3"), ("x>3", "x<3"),
        ("x=5", "y=5"),
        ("x>3", "x>4"), ("x>3", "3"), ("y=2x+3", "y=2x"), ("y=2x+3", "y=3x+2"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "1,2,3,4"), (r"(-\infty,3]\cup[5,\infty)", r"(-\infty,3]"),
        (r"(-\infty,3]", r"(-\infty,3)"), (r"\infty", r"-\infty"), ("1<x<2", r"1\le x<2"), (r"\emptyset", "0"),
        ("1010_2", "10"),
        ("1010_2", "1010_3"), ("-x<3", "x<-3"), ("2x<6", "-x<-3"), ("y=2x+3", "y+2x+3=0"), ("x^2=4", "x=2"),
        (r"2\pm\sqrt3", r"2+\sqrt3"), ("1:2", "2:1"), ("y=2,x=1", "(2,1)"), ("x=1,y=2", "(2,1)"),
        ("(1,2)", "(1,2"), ("3, 4", "34"),
    ],
    "expressions": [
        ("x", "y"), ("x+1", "x+2"), ("x", "|x|"), (r"\sqrt{x^2}", "x"), ("xy", "x+y"), ("2x", "x^2"),
        (r"\sin x", r"\cos x"), ("e", r"\pi"), ("i", "-i"), (r"\ln 2", r"\log_{10} 2"),
        ("1/(2x)", "1/2x".replace("1/2x", r"\frac12 x")),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"), ("(x+1)^2", "x^2+1"), ("a_1", "a_2"), (r"\alpha", "a"), ("x^2", "2^x"),
        ("x-1", "1-x"), ("x", "X_1"), ("3+4i", "3-4i"), (r"\sin x", "s i n x"),
    ],
    "words": [("E", "C"), ("E", r"\text{C}"), ("Evelyn", "Bob"), ("even", "neve"), ("even", "not even"),
    ("odd", "even"), ("E", "2.718281828459045"), ("no solution", "one solution"), ("E", "because E"),
    ("A", "B: not A")],
    "foreign": [(r"\int_0^1 x dx", r"\frac{1}{3}"), (r"\sum_{k=1}^{10} k", "54"), (r"\int_0^1 x dx", "0.5000001")],
}  # fmt: skip


def value(answer, gold, **params):
    return score(answer=answer, gold=gold, **params)["score"]


LISTS = [
    "{g}, {w}", "{w}, {g}", "{g} or {w}", "{w} or {g}", "{g} and {w}", "{g} {w}", "{w} {g}", "{g}; {w}", "{g} = {w}",
    "{w} = {g}", r"{g} \text{{ or }} {w}", r"{w} \quad {g}", r"{g} \\ {w}", r"\{{{g}, {w}\}}", "[{g}, {w}]", "({g}, {w})",
    "({g}) or ({w})", "either {g} or {w}", "{g} (or {w})", "{g} | {w}", "{g} & {w}", "{g}, {g}", "not {g}", "{g}?",
    "1. {w} 2. {g}", "${g}$ ${w}$", "${w}$ or ${g}$", r"\({g}\) \({w}\)", r"\text{{{g} or {w}}}", r"{g} \vee {w}",
    r"\begin{{pmatrix}}{g}\\{w}\end{{pmatrix}}", r"{g} \cup {w}", r"{w} \approx {g}", r"{g} \ne {w}", "{g}: {w}", "{g}+{w}",
    r"{w} \in {g}", r"x \in \{{{g},{w}\}}", "x = {g}, y = {w}", "x={w}={g}", "{g}, maybe {w}",
    "{g} - no, {w}", "({g})({w})",
    r"\min({g},{w})", "{g}~{w}", "{w} or maybe {g}", "**{g}** **{w}**", "{g} ... {w}", "{g} if true else {w}",
]  # fmt: skip
ONE_AND_ANOTHER = [
    ("5", "6"), ("1/2", "1/3"), ("-3", "4"), (r"\sqrt{2}", r"\sqrt{3}"), ("x+1", "x+2"), ("(1,2)", "(2,1)"),
    (r"\{1,2\}", r"\{1,3\}"), ("28%", "29%"), ("10 cm", "10 m"), ("E", "A"), ("even", "odd"), ("y=2x", "y=3x"),
    (r"\pi", "3"), ("12:30", "1:00"), ("1010_2", "1011_2"), ("3+4i", "3-4i"), ("[0,1)", "(0,1]"), ("x>3", "x<3"),
]  # fmt: skip


@pytest.mark.parametrize("form", LISTS)
def test_no_listing_pays_for_any_kind_of_gold(form):  # case D16
    texts = [(g, form.format(g=g, w=w)) for g, w in ONE_AND_ANOTHER]
    assert [(g, a) for g, a in texts for text in (a, rf"\boxed{{{a}}}", f"#### {a}") if value(text, g) != 0] == []


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_however_written(kind):
    failed = [(g, a) for g, a in EQUAL[kind] for text in (a, rf"So \boxed{{{a}}}.") if value(text, g) != 1]
    assert not failed


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_however_close(kind):
    failed = [(g, a) for g, a in DIFFERENT[kind] for text in (a, rf"So \boxed{{{a}}}.") if value(text, g) != 0]
    assert not failed


# --- where the answer is --------------------------------------------------------------------------------------------

BOX = r"\boxed{%s}"
FOUND = [  # (completion, extract, what is read)
    ("#### 42" + " and so on and so forth" * 20, "marker", "42"),  # case D1: 480 characters of prose
    ("#### 42\n" + "prose " * 80, "marker", "42"),  # case D1
    (r"correct \boxed{42}", "marker", None),  # case D2
    (r"Answer: \boxed{5}", "boxed", "5"),  # case D3
    (r"\boxed{C} … \boxed{\text{E}}", "boxed", r"\text{E}"),  # case D5
    (r"\boxed{\frac{1}{\sqrt{2}}}", "boxed", r"\frac{1}{\sqrt{2}}"),
    (r"\boxed{3} then \boxed{5}", "boxed", "5"),  # case D16
    (r"\boxed{3} then \boxed{5", "boxed", "3"),
    ("hi", "boxed", None),  # case D6
    (r"<think>\boxed{5}", "boxed", None),
    (r"<think>\boxed{4}</think> \boxed{5}", "boxed", "5"),
    (r"\boxed{5}<|im_end|>\boxed{6}", "boxed", "5"),
    ("<answer>5</answer> <answer>6", "tag", "5"),
    ("a\n\nThe answer is 5.\n\n", "line", "5."),
    ("**Answer:** 5", "line", "5"),
    ("So the result must be $5$, I think", "line", "5"),
    ("   ", "line", None),
    ("  5 ", "whole", "5"),
]


@pytest.mark.parametrize(("text", "place", "expected"), FOUND)
def test_the_last_complete_answer_of_the_named_place_counts(text, place, expected):
    assert score(answer=text, gold="5", extract=place)["extracted"] == expected


def test_the_first_place_that_is_there_decides_alone():
    text = r"<answer>5</answer> or \boxed{6}"
    assert value(text, "6") == 1 and value(text, "5") == 0
    assert value(text, "5", extract="tag") == 1 and value(text, "6", extract=["tag", "boxed"]) == 0


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("#### 42" + " and so on and so forth" * 20, "42", 1),  # case D1
        (r"Answer: \boxed{5}", "5", 1),  # case D3
        (r"\boxed{C} … \boxed{\text{E}}", "E", 1),  # case D5
        (r"\boxed{C} … \boxed{\text{E}}", "C", 0),  # case D5
        (r"\boxed{E: because…}", "E", 1),  # case D5
        (r"\boxed{3} then \boxed{5}", "5", 1),  # case D16
        (r"\boxed{3} then \boxed{5}", r"\{3,5\}", 0),  # case D16
        ("So it is 5 cm, that is 50 mm, or maybe 5", "5", 0),
        ("John has 12 + 3 = 15 apples.\nThe answer is 15.", "15", 1),
        ("The answer is 7 or 8.", "8", 0),
    ],
)
def test_whole_completions(text, gold, expected):
    assert value(text, gold) == expected


def test_correct_wrong_unextractable_and_unscorable_are_four_things():  # cases D2, D6
    assert score(answer=BOX % 42, gold="42")["cause"] is None
    strict = score(answer=BOX % 42, gold="42", extract="marker")  # case D2
    assert (strict["score"], strict["extractable"], strict["extracted"]) == (0.0, False, None)
    assert (r := score(answer=BOX % 41, gold="42"))["score"] == 0.0 and r["extractable"] and r["extracted"] == "41"
    assert (r := score(answer="hi", gold="42", extract="boxed"))["score"] == 0.0 and not r["extractable"]  # case D6
    assert (r := score(answer="I do not know", gold="42"))["score"] == 0.0 and not r["extractable"]
    assert (r := score(answer=BOX % 42, gold=r"\frac{1}{"))["score"] is None and r["cause"] == "bad_gold"
    assert score(answer=BOX % 1, gold="1")["parts"] == {"correct": 1.0, "extractable": 1.0}


# --- gold -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gold",
    ["\frac12", "\text{cm}", "\b", r"\frac{1}{", "", "   ", "1/0", "0^0", "(1,", r"\unknown{3}",
     None, True, [1], {"a": 1}, r"\boxed{}", "1" * 3000, "(" * 300 + "1" + ")" * 300, r"x +", r"\sqrt{", "2 3 4"],
)  # fmt: skip
def test_gold_that_cannot_be_read_is_a_cause_and_a_sentence(gold):  # case D15
    problem = check_gold(gold)
    assert isinstance(problem, str) and problem.startswith("the gold ")
    assert score(answer=BOX % 1, gold=gold)["cause"] == "bad_gold"


def test_control_characters_are_named():  # case D15
    assert r"'\x0c'" in (check_gold("\frac12") or "")


@pytest.mark.parametrize("kind", EQUAL)
def test_every_gold_is_accepted_and_passes_its_own_audit(kind):
    for gold, _ in EQUAL[kind]:
        assert check_gold(gold) is None, gold
        assert [text for text in right(gold) if value(text, gold) != 1] == []
        assert [text for text in wrong(gold) if value(text, gold) != 0] == []
        assert len(right(gold)) >= 3 and len(wrong(gold)) >= 5


@pytest.mark.parametrize("extract", ["boxed", "tag", "marker", "line", "whole"])
def test_the_audit_speaks_the_language_of_the_setting(extract):
    for gold in ("5/4", "-3", "12", "(1, 2)", "E", "28%", r"\sqrt{2}"):
        assert all(value(text, gold, extract=extract) == 1 for text in right(gold, extract=extract))
        assert all(value(text, gold, extract=extract) == 0 for text in wrong(gold, extract=extract))


def test_a_part_of_an_expression_or_a_denied_value_earns_nothing():
    denied = (r"\boxed{5} \cdot 10^3", r"2\cdot\boxed{5}", r"\boxed{5}+1", r"x>\boxed{5}", r"\boxed{5} is wrong",
              "It is not $5$.", "$5$ is wrong.", r"\text{not $5$}")  # fmt: skip
    assert [value(text, "5") for text in denied] == [0] * 8
    said = (r"x = \boxed{5}", r"\boxed 5", r"\boxed{5}\%", "So it is $5$.", "$5$ is right.")
    assert [value(text, "5") for text in said] == [1] * 5
    assert "a part of what is said" in (check_gold(r"so x > \boxed{5}") or "")


def test_gold_may_be_a_whole_solution():
    assert value("5", "2 + 3 = 5 so #### 5") == 1 and value("5", r"It is \boxed{5}.") == 1


# --- policies -------------------------------------------------------------------------------------------------------


def test_percent_policies():  # case D13
    assert [value(a, "28%") for a in ("28", "0.28", "28 percent", "2800%")] == [1, 1, 1, 0]
    assert [value(a, "28%", percent="strict") for a in ("28", "0.28", "28 percent")] == [0, 1, 1]
    assert [value(a, "0.28") for a in ("28", "28%")] == [0, 1]
    assert [value(a, "28", percent="strict") for a in ("28", "28%")] == [1, 0]


def test_rounding_policies():  # case D14
    assert value("33.3", "100/3") == 0 and value("33.33", "100/3", rel_tol=1e-3) == 1
    assert value("3.14159", "3.14") == 0
    assert [value(a, "3.14", rounding="gold") for a in (r"\pi", "3.14159", "3.145", "3.146", "3.1")] == [1, 1, 1, 0, 0]
    assert value(r"\pi", r"\approx 3.14") == 1 and value("3.2", r"\approx 3.14") == 0
    assert value("(0.501, 2)", "(0.5, 2)", abs_tol=0.01) == 1 and value("(0.52, 2)", "(0.5, 2)", abs_tol=0.01) == 0


def test_unit_policies():  # case D16
    assert [value("10", "10 cm", units=u) for u in ("lenient", "strict", "ignore")] == [1, 0, 1]
    assert [value("10 m", "10 cm", units=u) for u in ("lenient", "strict", "ignore")] == [0, 0, 1]


@pytest.mark.parametrize(
    "params",
    [
        {"extract": "box"},
        {"extract": []},
        {"percent": "maybe"},
        {"units": 1},
        {"rounding": "nearest"},
        {"rel_tol": -1},
        {"strict": True},
    ],
)
def test_unknown_settings_are_refused_by_name(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        check_gold("5", **params)


def test_gold_and_answer_are_told_apart_and_by_keyword_only():  # case D21
    assert score(answer="10", gold="10 cm", units="strict")["score"] == 0
    assert value("28", "28%") == 1 and value("0.28", "28") == 0 and value("28", "0.28") == 0
    with pytest.raises(TypeError):
        score("5", "5")


# --- bombs ----------------------------------------------------------------------------------------------------------

BOMBS = [
    r"\dfrac{5^{5^{5^{5^5}}}-5}{16}", "9**9**9**9", "9^{9^{9^{9}}}", "(10^{10})!", "100000000!", "((((9!)!)!)!)!",
    r"2^{2^{2^{2^{2^{2}}}}}", "e^{e^{e^{e^{e}}}}",
    r"\binom{10^{30}}{10^{29}}", r"\binom{1000000}{500000}", "0.1^{10^{12}}",
    "1" * 1900, "(" * 500 + "1" + ")" * 500, "{" * 1000, r"\frac" * 300, "-" * 1900,
    "1+" * 900 + "1", r"\sqrt{" * 300 + "2" + "}" * 300, "x^" * 300 + "x", r"\sin " * 300 + "1", "|" * 900, "1e999",
    r"\tan(10^{10^5})", "[" * 900, "2^" * 800 + "2", "9!" + "!" * 800,
    r"\int_0^{10^{10}} x^{x^{x}} dx", r"\sum_{k=1}^{10^{9}} k^{k!}", "1/3^{100000}+1/7^{60000}+" * 20 + "1",
    r"\boxed{" * 100, "10^{60000}" + "*10^{60000}" * 50, "a" * 1900, "1,000" * 300,
    r"\pi^{\pi^{\pi^{\pi}}}", r"\gcd(2^{100000}, 3^{100000})", r"\lfloor \pi^{99999} \rfloor", "x^{10^9}",
    r"(x+1)^{1000000}", "\\" * 1500, r"12 cm12 \sum_{k=1}^{9}" + "cm12 " * 30,
    r"\int " + "x " * 130, r"\sum_{k=1}^{9}" + "k" * 60,
    r"\int_0^1\sinAction Input:boxed{2×3}", r"6 7\int_0^11 2 3 4 5 6 7 8 9'" + "+4 5 6 7 8 9'" * 5,
    "oxed*" + r"\sum_{k=1}^{9}xed*" * 5 + r"\sum_{k=1}^{9}{25}b'",
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_bombs_score_0_at_once(bomb):  # cases D17, D24
    start = time.monotonic()
    assert value(BOX % bomb, "7") == 0 and value(bomb, "x") == 0
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("text", ["__import__('os').system('touch {}')", "exec('open({!r}, chr(119))')", "open('{}', 'w')"])
def test_nothing_runs_as_python(text, tmp_path):  # case D24
    file = tmp_path / "pwned"
    for answer in (
        text.format(file),
        BOX % text.format(file),
        rf"\int {text.format(file)} dx",
        rf"\sum_{{k={text.format(file)}}}^2 k",
    ):
        for gold in ("7", r"\int_0^1 x dx"):
            assert value(answer, gold) == 0
    assert not file.exists()


def test_same_from_a_thread():  # case D18
    seen = []
    cases = [("5/4", "1 1/4"), (r"\int_0^1 x dx", "1/2"), ("5", "6")]
    thread = threading.Thread(target=lambda: seen.extend(value(a, g) for g, a in cases))
    thread.start()
    thread.join()
    assert seen == [1.0, 1.0, 0.0] == [value(a, g) for g, a in cases]


def test_64_towers_do_not_stall_a_batch_in_the_workers():  # case D17
    tower = BOX % r"\dfrac{5^{5^{5^{5^5}}}-5}{16}"
    answers = [tower] * 64 + [BOX % "1 1/4"]
    with WorkerPool(size=1) as pool:
        calls = [Call("milepost.verifiers.math:score", {"answer": a, "gold": "5/4"}, timeout=20) for a in answers]
        start = time.monotonic()
        got = pool.map(calls)
        assert time.monotonic() - start < 30
    assert [g.failure for g in got] == [None] * 65
    assert [g.value["score"] for g in got] == [0.0] * 64 + [1.0]


# --- the parts ------------------------------------------------------------------------------------------------------


def test_values_by_hand():
    assert exact(parse("1/2 + 0.25")) == Fraction(3, 4)
    assert exact(parse(r"2\frac12")) == Fraction(5, 2) and exact(parse("-1 1/4")) == Fraction(-5, 4)
    assert exact(parse(r"\frac12^3".replace("12", "{1}{2}"))) == Fraction(1, 8) and exact(parse("-2^2")) == -4
    assert exact(parse("2^3^2")) == 512 and exact(parse("12/3/2")) == 2 and exact(parse("2-3-4")) == -5
    assert exact(parse(r"\sqrt2")) is None and same_value(parse(r"\sqrt8"), parse(r"2\sqrt2"))


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
@settings(max_examples=150, deadline=None)
def test_rational_numbers_are_equal_exactly_if_they_are(a, b):
    answer = rf"\frac{{{b.numerator}}}{{{b.denominator}}}"
    assert value(BOX % answer, str(a)) == float(a == b)
    assert value(f"{3 * a.numerator}/{3 * a.denominator}", str(a)) == 1


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
@settings(max_examples=100, deadline=None)
def test_grouped_and_foreign_digits(n, m):
    wide = f"{n:,}".translate({48 + d: 0xFF10 + d for d in range(10)})
    assert value(BOX % wide, str(n)) == 1
    assert value(BOX % f"{m:,}", str(n)) == float(n == m)
    assert value(BOX % f"{n} or {m}", str(n)) == 0


PIECES = st.sampled_from(
    ["1", "23", "0", ".", ",", "x", "+", "-", "*", "/", "^", "_", "(", ")", "[", "]", "{", "}", "|", "!", "%", "=",
    "<", ">", "&", " ", "  ", "\n", "$", ":", ";",
     "\\\\", "\\{", "\\}", "\\frac", "\\sqrt", "\\text{cm}", "\\pi", "\\infty", "\\pm", "\\cup", "\\boxed{",
     "\\begin{pmatrix}", "\\end{pmatrix}", "\\log_", "\\sin",
     "\\int", "\\sum", "e", "i", "cm", "or", "and", "percent", "<think>", "</think>", "####", "½", "²", "−", "３", "°",
     "\u202f", "exec", "__", "'", "\x00"]
)  # fmt: skip


@given(
    st.lists(PIECES, max_size=25).map("".join),
    st.sampled_from(["5", "x+1", r"\{1,2\}", "(1,2)", "10 cm", "E", "x>3", "28%"]),
)
@settings(max_examples=300, deadline=None)
def test_no_answer_raises(text, gold):
    result = score(answer=text, gold=gold)
    assert result["score"] in (0.0, 1.0) and result["cause"] is None
    problem = check_gold(text)  # the same text as gold: a sentence, or a gold that equals itself
    if problem is None and score(answer=text, gold=text, extract="whole")["extractable"]:
        assert score(answer=text, gold=gold, extract="whole")["score"] in (0.0, 1.0)


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_text_at_all_raises(text):
    assert score(answer=text, gold="5")["score"] in (0.0, 1.0)
    check_gold(text)
    with contextlib.suppress(Unreadable):
        parse(text)

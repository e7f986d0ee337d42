"""Relatives of the known failures in mathematics: other typography, sets of numbers, conditions, names, and boxes that lie.

EQUAL and DIFFERENT hold (gold, answer).
"""

import pytest

from milepost.verifiers.extract import extract
from milepost.verifiers.math import check_gold, right, score, wrong
from milepost.verifiers.math_intervals import pieces
from milepost.verifiers.math_parse import parse

MATRIX = r"\begin{pmatrix}2&1\\0&1\end{pmatrix}"
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
    "scales and letters": [
        ("12 K", "12 K"), ("12 K", r"12\text{ K}"), ("12 K", "12"), (r"12\pi", r"12\text{ pi}"), ("12 M", r"12\text{ M}"),
        ("1200000", "12 lakh"), ("120000000", r"12\text{ crore}"), ("12", "12 grand pianos"), ("12", "12 miles"),
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
    "sets by a condition": [
        (r"\{x \mid x > 2\}", r"(2,\infty)"), (r"\{x : x \in \mathbb{R}, x>2\}", "x>2"),
        ("(2,\\infty)", r"\{x \mid x > 2\}"),
        (r"\left\{ x \in \mathbb{R} \,\middle|\, x\ge 2 \right\}", r"[2,\infty)"), (r"\{t ∣ t ≤ 0\}", r"(-\infty,0]"),
        (r"\{x | -1 < x \le 3\}", "(-1,3]"), (r"\{x\mid x>1 \text{ and } x<2\}", "1<x<2"), (r"\{x: x>1, x<2\}", "(1,2)"),
        (r"\{x: x<1 \text{ or } x>2\}", r"(-\infty,1)\cup(2,\infty)"),
        (r"(-\infty,1)\cup(2,\infty)", r"\{x|x<1\lor x>2\}"),
        (r"\{x\mid x\ne 2\}", r"x \ne 2"), (r"\{x\mid x\ne 1, x\neq 2\}", r"\mathbb{R}\setminus\{1,2\}"),
        (r"\{x \mid x=1 \text{ or } x=2\}", r"\{2,1\}"), (r"\{x : x \in [1,2]\}", "[1,2]"),
        (r"\{x \mid x \in \mathbb{R}\}", r"(-\infty,\infty)"), (r"\{\theta : 0<\theta<\pi\}", r"(0,\pi)"),
    ],
    "one for every whole number": [
        (r"\{\frac{\pi}{6}+2k\pi, k\in\mathbb{Z}\}", r"x=\frac{\pi}{6}+2\pi k, k\in\mathbb{Z}"),
        (r"\frac{\pi}{6}+2k\pi", r"\frac{\pi}{6}+2k\pi \quad (k \in ℤ)"), (r"\{2k\pi \mid k\in\mathbb Z\}", r"2\pi k"),
        (r"\{k\pi, 1+k\pi, k\in\mathbb{Z}\}", r"1+k\pi, k\pi \text{ where } k \in \mathbb{Z}"),
    ],
    "degrees of temperature": [
        (r"20^\circ\text{C}", r"20\text{ °C}"), (r"20^\circ\text{C}", "20 °C"), (r"20^{\circ}\mathrm{C}", "20°C"),
        (r"20^\circ\text{C}", "20 degrees Celsius"), (r"20\text{ °C}", r"20\text{ degrees Celsius}"), ("20 °C", "20℃"),
        ("20 °C", r"20^{\circ}\text{ Celsius}"), (r"-4^\circ\text{F}", "-4 degrees Fahrenheit"), ("68 °F", r"68^\circ F"),
        ("20 °C", "20"), ("20", "20°C"), (r"\text{20 °C}", r"20\,^{\circ}\mathrm{C}"), ("68℉", r"68\text{ degrees F}"),
    ],
    "numbers in words": [
        ("three", "3"), ("3", r"\text{three}"), ("3", "Three"), ("12", "twelve"), ("zero", "0"), ("2, 3", "two, three"),
        (r"\text{Two}", "2.0"), ("3 cm", "three"),
    ],
    "repeating decimals": [
        ("1/6", "0.1(6)"), ("0.1(6)", "1/6"), ("-7/12", "-0.58(3)"), ("x=1/6", "x = 0.1(6)"),
        ("1/6, 5/6", "0.1(6), 0.8(3)"),
        ("1/6 cm", r"0.1(6)\text{ cm}"), ("1/6", "0.1(6) cm"), ("1/6, 5/6", r"0.1(6) or 0.8(3)"),
        (r"1/6, 5/6", r"0.1(6) \text{ or } 0.8(3)"), ("6x", "1.5(4)x"),
        ("6", "1.5(4)(1)"), ("7", "1 + 1.5(4)"), ("12", "2*1.5(4)"), ("6", "(1.5)(4)"), ("8", "2(4)"),
        ("1.5x+6", "1.5(x+4)"),
    ],
    "vectors": [
        (r"\vec{i}", r"\mathbf{i}"), (r"2\mathbf{i}+3\mathbf{j}", r"2\vec{i}+3\vec{j}"),
        (r"\hat{\imath}-\hat{k}", r"\mathbf{i}-\mathbf k"),
        (r"\vec{a}+\vec b", r"\mathbf{b}+\mathbf{a}"), (r"\mathbf{0}", r"\vec{0}"), (r"\overrightarrow{v}", r"\vec{v}"),
    ],
    "names": [
        ("(a,b)=(1,2)", "(b,a)=(2,1)"), ("(1,2)", "(y,x)=(2,1)"), ("(1,2)", "y=2, x=1"), ("x=1, y=2", "1, 2"),
        ("(2,3)", "(m,b)=(2,3)"),
        ("y=2, x=1", "1, 2"),
    ],
    "quantities by name": [
        ("60", r"\angle ABC = 60^\circ"), (r"60^\circ", r"m\angle B = 60"), ("12", "AB = 12"), ("12", r"|AB| = 12"),
        ("12", "[ABC] = 12"), ("12", r"S_{\triangle ABC} = 12"), ("12", "f(3) = 12"), ("12", "f^{-1}(3) = 12"),
        (r"\frac12", r"P(A|B) = \frac{1}{2}"), (r"\frac12", r"P(\text{heads}) = 1/2"),
        (r"\frac35", r"\sin A = \frac{3}{5}"),
        (r"\frac35", r"\cos\theta = 0.6"), ("12", r"\text{Area of } \triangle ABC = 12"), ("12", "AB = BC = 12"),
        ("12", "m+n = 12"), ("12", r"\frac{a}{b} = 12"), ("AB = 12", "12"), (r"AB=12\text{ cm}", "AB = 12"),
    ],
    "matrices": [
        (MATRIX, r"\left[\begin{array}{ll}2 & 1 \\ 0 & 1\end{array}\right]"), (MATRIX, "A^{-1}=" + MATRIX),
        (MATRIX, r"\left(\begin{matrix}2 & 1 \\ 0 & 1\end{matrix}\right)"), (MATRIX, r"\mathbf{A}^{-1}=" + MATRIX),
        (MATRIX, "M^{10}=" + MATRIX), (MATRIX, "A^T=" + MATRIX),
        (r"\begin{pmatrix}2\\1\end{pmatrix}",
        r"\operatorname{proj}_{\mathbf{w}} \mathbf{v}=\begin{pmatrix}2\\1\end{pmatrix}"),
    ],
    "what lies outside": [
        (r"(-\infty,2)\cup(3,\infty)", r"\mathbb{R} \setminus [2,3]"),
        (r"(-\infty,-1]\cup[1,\infty)", r"\mathbb{R}\setminus(-1,1)"),
        (r"|x| \geq 1", r"(-\infty,-1]\cup[1,\infty)"), (r"|x| \geq 1", r"x \le -1 \text{ or } x \ge 1"),
        (r"|x|\ge 1", r"1\le |x|"),
        ("[-2,2]", r"|x| \le 2"), (r"|x|\le 2", r"-2\le x\le 2"), ("|x-1|=3", "|x-1|=3"), ("|x-1|<3", "|x-1|<3"),
    ],
    "dates": [(r"\text{March 15}", date) for date in (r"\text{March 15th}", r"\text{15 March}", r"\text{15th of March}")],
    "factorials": [
        ("15", "5!!"), ("105", "7!!"), ("6!!", "48"), (r"\frac{315}{128}", r"\frac{9!!}{8!!}"), ("(2n-1)!!", "(2n-1)!!"),
        ("720", "(3!)!"), ("792", r"\frac{12!}{5!7!}"), ("34650", r"\frac{11!}{4!\,4!\,2!}"), ("12", "2!3!"),
        ("384", "4!2^4"),
        ("2^n n!", "n! 2^n"), (r"\frac{12!}{5!7!}", "792"),
    ],
    "money in formulas": [
        (r"\frac{15}{4}", r"\$\frac{15}{4}"), (r"\$5.25", r"\$5\frac{1}{4}"), ("3.5", r"£3\frac12"),
        (r"10\sqrt2", r"\$10\sqrt{2}"),
        ("3000000", r"\$3\cdot 10^6"), ("15x", r"\$15x"), ("0.75", r"\text{\$}\frac{3}{4}"), ("0.75", r"\frac{\$3}{4}"),
        (r"\$\frac{11}{4}", "2.75"), (r"\$5\frac14", "5.25"), ("3000000", r"\$3 \text{ million}"),
    ],
    "bases, minutes, per cent": [
        ("2E6_{16}", r"2\text{E}6_{16}"), (r"\text{FF}_{16}", "FF_{16}"), ("321_5", "(321)_5"), ("321_5", "321"),
        ("A_{12}", "A_{12}"), (r"45.5^\circ", r"45^\circ30'"), (r"10.25^\circ", r"10^{\circ}15'"),
        (r"5.5^\circ", r"5\frac{1}{2}^\circ"), (r"35\%", "35 per cent"), (r"35\%", r"35\text{ per cent}"),
    ],
    "more names": [
        ("5", "p(7)=5"), ("5", "m-n=5"), ("5", "100m+n=5"), ("5", "x^2+y^2=5"), ("5", r"(f\circ g)(2)=5"),
        ("5", r"x_{\max}=5"),
        ("5", r"A_{\text{shaded}}=5"), ("5", r"f'(2)=5"), ("5", r"\lim_{x\to0}f(x)=5"), ("5", r"|\vec{a}|=5"),
        ("5", r"\|\mathbf{v}\|=5"), ("5", r"\det A=5"), ("5", r"\sigma^2=5"), ("5", r"\bar{x}=5"),
        ("5", r"\mathbb{E}[X]=5"),
        ("5", r"\text{Var}(X)=5"), ("5", r"\int_0^1 x\,dx=5"), ("5", r"\sum_{k=1}^{3}k=5"), ("5", "f(2) = 2+3 = 5"),
        (r"\frac12", r"\cos^2\theta = \frac12"), ("2x", "f^{-1}(x)=2x"), ("2x", "y'=2x"), ("2x", r"\frac{dy}{dx}=2x"),
        (r"4\pi", r"f(2) = 4\pi \approx 12.57"),
    ],
    "words and money": [
        ("18", "18 more eggs"), ("18", "18 times as many"), ("18", "18 remaining"), ("18", r"18\text{ \%}"),
        ("18", "18 sec"),
        (r"18\text{ sec}", "18 seconds"), ("18", "18 sq. ft."), ("18", "18元"), ("18", "18個"), ("18", "18개"),
        ("18", "18 долларов"), ("18", r"\$18 per day"), ("18", "$18 each"), ("18", r"\$18 in total"), ("18", r"US\$18"),
        ("18", "Rs. 18"), ("18", "₹18"), ("18", r"\text{\$}18"), ("18", r"\textbf{\$18}"), ("18", r"\text{€}18"),
        ("18", r"\pounds 18"), ("18 dollars per day", r"\$18 \text{ per day}"),
    ],
    "signs": [
        ("6-5i", r"6-5\mathrm{i}"), (r"6-5\mathrm{i}", "6-5i"), (r"3\sqrt{13}", "3√13"),
        ("(1,2)", r"\begin{cases}x=1\\y=2\end{cases}"),
        ("x=1,y=2", r"\begin{aligned}x&=1\\y&=2\end{aligned}"), ("A,C", r"\text{A and C}"), ("A, C", r"\text{(A), (C)}"),
        ("1:2", r"1 \text{ to } 2"), ("1,2", "y=2, x=1"),
    ],
    "rounded beside it": [
        (r"4\pi", r"4\pi \approx 12.57"), (r"4\pi", r"x = 4\pi \approx 12.566"), ("12.57", r"4\pi \approx 12.57"),
        (r"4\pi \approx 12.57", "12.57"), (r"4\pi \approx 12.57", r"4\pi"), (r"-4\pi", r"-4\pi \approx -12.57"),
        (r"5\pi", r"5\pi \text{ cm} \approx 15.71 \text{ cm}"), ("11.6", r"11.6 \approx 12"), ("1.41", r"x \approx 1.41"),
    ],
    "led in": [
        ("12", "The answer is 12"), ("12", r"\text{The answer is } 12"), ("12", r"\text{Answer: }12"),
        ("12", "Total: 12 apples"),
        ("3:4", "Ratio: 3:4"), ("12", "**Final answer:** 12"),
    ],
    "rows, money, every x": [
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\[4pt] 3 & 4 \end{pmatrix}"),
        ("12", r"12\text{€}"), ("€12", "12€"), (r"\$12", r"12\$"), (r"\$0.50", "50¢"), ("x+1", r"x+1 \text{ for all } x"),
        ("n^2", r"n^2 \text{ for all } n \in \mathbb{N}"), ("f(x)=12", r"f(x) = 12 \text{ for all real } x"),
    ],
}  # fmt: skip
DIFFERENT = {
    "quantities by name": [
        ("12", "x+1 = 12"), ("12", "2x = 12"), ("12", "x^2 = 12"), ("12", r"\log x = 12"), ("12", "AB = 12, CD = 5"),
        ("12", r"AB = 12 \text{ or } 13"), ("12", "AB = 2 = 12"), ("12", "AB = 13"),
        ("AB = 12", "CD = 12"), ("x+y=12", "12"),
        ("12", "x+y = 12+z"), ("x = 2", r"\sin x = 2"), (r"12\text{ m}", r"AB = 12\text{ cm}"),
        ("12", r"\text{not } AB = 12"),
    ],
    "matrices": [("12", "A^2=12"), ("12", "M^{2} = 12"), (MATRIX, "A^{-1}=" + MATRIX.replace("2", "3"))],
    "what lies outside": [
        (r"(-\infty,2)\cup(3,\infty)", r"\mathbb{R} \setminus (2,3)"), ("[-2,2]", "|x|<2"), ("[-2,2]", r"|x|\ge2"),
        (r"|x|\ge 1", "|x|>1"),
    ],
    "dates": [(r"\text{March 15}", date) for date in (r"\text{March 16}", r"\text{15 May}", r"\text{March 1}")],
    "factorials": [("720", "3!!"), ("3!!", "720"), ("(2n-1)!!", "((2n-1)!)!"), ("12", "2!3 4"), ("48", "2 3! 4")],
    "bases, minutes, per cent": [
        ("2E6_{16}", "2E7_{16}"), ("A_{12}", "B_{12}"), (r"45.5^\circ", r"45^\circ 31'"), ("FF_{16}", "255"),
    ],
    "labels that compare": [("42", f"{label}: 42") for label in ("less than", "more than", "half of", "ruled out", "one of",
    "at least", "wrong")],
    "names in another order": [
        ("1,2", "x=2,y=1"), ("1,-2", "x=-2,y=1"), ("2,3", "y=2,x=3"), ("1, 2", "a=2,b=1"), ("1,2,3", "p=2,q=3,r=1"),
        ("1,2", r"x=2 \text{ or } y=1"), (r"\{1,2\}", "x=2,y=1"), ("2, 1", "x=1, y=2"),
        ("(1,2)", r"\begin{cases}x=2\\y=1\end{cases}"),
    ],
    "more than the name": [
        ("5", "f(x)+1=5"), ("5", "P(A)+1=5"), ("5", "AB-1=5"), ("5", "5-m-n=5"), ("5", "x+y-3=5"), ("5", r"\frac{AB}{2}=5"),
        ("5", "2AB=5"), ("5", "k(3)=5"), ("5", "|x|=5"), ("5", "|x-1|=5"), ("5", "f(2)=2+4=5"), ("x^2+y^2=25", "25"),
    ],
    "words behind a number": [
        ("18", "18 eleven"), ("18", "18 doubled"), ("18", "18 unless x"), ("18", "18 probably"), ("18", "18 none"),
        ("18", "18 more than x"), ("18", "18 times 5"), ("18", "18不"), ("18", "18元或19元"), (r"18\text{ sec}", "18 min"),
        ("12", r"1 \text{ to } 2"), ("A,C", r"\text{A and B}"),
    ],
    "rounded beside it": [
        (r"4\pi", r"4\pi \approx 12.58"), (r"4\pi", r"3\pi \approx 12.57"),
        ("12", r"11.6 \approx 12"), ("1", r"0.7 \approx 1"),
        (r"4\pi \approx 12.57", "12.5"), (r"5\pi", r"5\pi \text{ cm} \approx 15.71 \text{ m}"),
        ("12.58", r"4\pi \approx 12.57"),
    ],
    "led in": [
        ("12", "The answer is not 12"), ("12", "The wrong answer is 12"),
        ("12", "The answer is 12 or 13"),
    ],
    "rows, money, every x": [
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\[4pt] 3 & 5 \end{pmatrix}"),
        (r"\$12", "12€"), ("n^2", r"n^2 \text{ for all } n > 2"),
    ],
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
    "scales and letters": [
        *(("12", rf"12\text{{{word}}}") for word in ("K", "M", "B", "k", " K", " k", "K dollars", " lakh", " crore",
          " grand", " gross", " quadrillion", " Millionen", " Mio.", " millones", " tausend", " pi", " grand dollars")),
        ("12", "12 K"), ("12", "12 gross"), ("12", "12 Millionen"), ("12", "12 lakh"), ("12", r"12\mathrm{K}"),
        ("12 K", "13 K"), ("12 K", "12 M"),
    ],
    "bases": [("101", "101_2"), ("101", "101_3"), ("5", "5_2"), ("5", "5_5"), ("101_2", "100_2"), ("19_8",
    "19_8 or 3")],
    "decimals that go on somehow": [
        ("1/3", "0.33..."), ("0.142857", "0.142857..."), (r"\pi", "3.14159..."), ("1/3", "0.334..."),
        ("1/6", r"0.\dot{1}\dot{6}"),
        ("0", "0.(3)"),
    ],
    "labels": [("27", r"\textbf{(E) } 28"), ("27", "(E) A"), ("27", "(A) 27 (B) 28"), ("5", "A. 5, B. 6")],
    "sets by a condition": [
        (r"\{x \mid x > 2\}", r"[2,\infty)"), (r"\{x \mid x > 2\}", r"(-\infty,2)"), (r"\{x \mid x > 2\}", "x>3"),
        (r"(2,\infty)", r"\{x \in \mathbb{Z} \mid x>2\}"), (r"(2,\infty)", r"\{y \mid x>2\}"),
        ("(2,\\infty)", r"\{x \mid 2\}"),
        (r"(-\infty,1)\cup(2,\infty)", r"\{x \mid x<1 \text{ and } x>2\}"), ("(1,2)", r"\{x \mid x>1 \text{ or } x<2\}"),
        (r"\{1,2\}", r"\{x \mid x=1, x=2\}"), ("2", r"\{x \mid x > 2\}"), (r"(2,\infty)", r"\{x \mid x>2, x\ne 3\}"),
        (r"\mathbb{R}", r"\{x \mid x\ne 2\}"), ("(2,\\infty)", r"\{x \mid x > 2"), (r"\{1,2\}", r"\{x \mid 1<x<2\}"),
    ],
    "one for every whole number": [
        (r"\{\frac{\pi}{6}+2k\pi, k\in\mathbb{Z}\}", r"\frac{\pi}{6}+k\pi"),
        (r"\{2k, k\in\mathbb{Z}\}", r"2k, k\in\mathbb{N}"),
        (r"\{2k, k\in\mathbb{Z}\}", "2"), (r"\{2k, k\in\mathbb{Z}\}", r"2k+1, k\in\mathbb{Z}"),
        ("2", r"2, k\in\mathbb{Z}"),
    ],
    "degrees of temperature": [
        ("20 °C", "20 °F"), ("20 °F", r"20^\circ\text{C}"), ("20 °C", "21 °C"), ("20 °C", r"20^\circ"),
        (r"20^\circ", "20 °C"),
        ("20 °C", "-20 °C"), ("20 °C", "68 °F"), ("20 °C", "20 K"), ("20 degrees Celsius", "20 degrees Fahrenheit"),
    ],
    "numbers in words": [
        ("3", "four"), ("three", "4"), ("3", "three or four"), ("3", "thirty"), ("23", "twenty three"), ("-3", "three"),
        ("3", "not three"), ("3", "minus three"), ("13", "thirteen"), ("3", "one, two, three"), ("one third", "1"),
    ],
    "repeating decimals": [
        ("1/6", "0.1(7)"), ("1/6", "0.(16)"), ("0.6", "0.1(6)"), ("0.16", "0.1(6)"), ("0.1(6)", "0.16"),
        ("9.2", "1.5(3)+0.2"),
        ("1.5333", "1.5(3)"),
    ],
    "vectors": [
        (r"\vec{i}", r"\mathbf{j}"), (r"2\mathbf{i}+3\mathbf{j}", r"3\vec{i}+2\vec{j}"), (r"\vec{AB}", r"\vec{BA}"),
        (r"\vec{0}", r"\vec{i}"),
    ],
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


@pytest.mark.parametrize("gold", ["2^{1000000}", "9^{9^{9^9}}", "10^{10^{6}}", "5!!!!!!!!!", "x=2^{1000000}"])
def test_what_is_too_large_to_compute_is_right_if_it_is_written_alike(gold):
    assert check_gold(gold) is None and value(rf"So \boxed{{{gold}}}.", gold) == value(f" ${gold}$", gold) == 1
    for other in (gold.replace("0", "1").replace("9", "8").replace("5", "6"), f"{gold}+1", f"{gold}, 1", "1", "0", "x"):
        assert value(rf"\boxed{{{other}}}", gold) == 0
    assert value(r"\boxed{2^{1000000}}", "5") == 0
    compared = score(answer=r"\boxed{2^{1000001}}", gold="2^{1000000}")["compared"]
    assert "too large to compute, and not written alike" in compared
    assert {value(text, gold) for text in right(gold)} == {1} and {value(text, gold) for text in wrong(gold)} == {0}


def test_golds_that_are_sets_say_what_would_be_read():
    for gold in (r"\{x \in \mathbb{Z} \mid x>2\}", r"\{x : x>2, y\ne 3\}", r"\{(x,y) \mid x>y\}", r"\{x | x > a\}"):
        problem = check_gold(gold)
        assert "write a set as an interval, a union of intervals, a list of its members or" in problem
        assert "Exception" not in problem
    assert check_gold(r"\frac{\pi}{6}+2k\pi") is None  # as the sentence says
    assert "write a set" not in check_gold(r"\frac{1}{") and "Exception" not in check_gold(r"\int_0^1 \foo dx")


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


@pytest.mark.parametrize(
    "text",
    [r"$@ \text{ or } 74$", r"$74 \text{ or } @$", r"$@ \lor 74$", "$@=74$", "The answers are $@$ and $74$.",
     "The answer is negative $@$.", "the square root of @", "a third of @", "double @", "@ squared", "@ times 10",
     "@ divided by 2",
     "$@$ feet $6$ inches.", "@ hours and 30 minutes.", "$@$ dollars and 5 cents", "$@$ with remainder 2", "$@$ R 2",
     "$@$ to 20",
     "I don't think the answer is $@$.", "The incorrect answer is @.", "I would not say $@$ but 74", "答案不是@。",
     "Die Antwort ist nicht @.", "La respuesta no es @.", "La réponse n'est pas @.", "Ответ не @.",
     "答えは@ではない。", "负@", "@, 74", "$@$, $74$", "x = @, 74",
     "@; 74", "@ (or 74)", "@ or possibly 74", "@ and also 74", "@ is the wrong answer.", "Then $@$, which is wrong."],
)  # fmt: skip
def test_what_stands_beside_a_box_may_change_or_deny_it(text):
    assert value(text.replace("@", r"\boxed{73}"), "73") != 1


@pytest.mark.parametrize(
    "text",
    ["$@$ or 73.0", "$@ = 73$", "It is $@$, not 74.", "There are @ apples and 5 oranges.", "It is @ times as many.",
     "3, 5, @, 80", "@ dollars and she has 5 left.", "74 minus 1, that is @.", "It cannot be 74, so the answer is @.",
     "I don't think it is 74. The answer is @", "не 74, а @", "@ and we are done.", "Square it to get @",
     "@ in total", "3, 6, @, 80", "@, as 74 is too large", "@; done"],
)  # fmt: skip
def test_what_stands_beside_a_box_may_say_nothing_of_it(text):
    assert value(text.replace("@", r"\boxed{73}"), "73") == 1


def test_a_choice_that_is_wrong_is_no_answer_where_another_follows():
    for text in (
        "@ is wrong, so the answer is A.",
        "$@$ is wrong. The answer is A.",
        "@ was wrong; the correct answer is A.",
    ):
        assert value(text.replace("@", r"\boxed{D}"), "D") == 0
    assert value(r"So statement \boxed{D} is wrong.", "D") == value(r"\boxed{D} is wrong, as was shown.", "D") == 1

r"""Extraction: which box, tag or marker counts, what is never read, and that hostile text costs no more than its length."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.verifiers.extract import MAX_CHARACTERS, blank, boxes, choice, extract, spoken, tagged, unwrap

few = hypothesis_settings(max_examples=60, deadline=None)


def box(text: str, **more) -> str | None:
    return extract(text, "boxed", **more)[0]


# --- the cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("glue", ["\n", " "])
def test_an_answer_far_from_the_end_is_read(glue):  # case D1
    prose = glue + "which is what was asked for, as shown before. " * 12
    assert len(prose) > 480
    assert extract("#### 42" + prose, "marker")[0] == "42"


def test_a_marker_is_not_skill_and_a_box_is_not_a_marker():  # case D2
    assert extract(r"so \boxed{42}", "marker") == (None, "no ####")
    assert extract(r"so \boxed{42}", ("marker", "boxed")) == ("42", "box 1 of 1")
    assert extract("so 42", ("marker", "boxed")) == (None, "no #### and no complete \\boxed{…}")


def test_a_box_is_taken_off_once():  # case D3
    assert extract(r"Answer: \boxed{5}", "boxed") == ("5", "box 1 of 1")
    assert extract(r"Answer: \boxed{5}", "whole")[0] == r"Answer: \boxed{5}"


def test_the_last_choice_counts():  # case D5
    text = r"\boxed{C} … \boxed{\text{E}}"
    assert box(text) == r"\text{E}" and choice(box(text)) == "E"
    assert choice(box(r"\boxed{E: because…}")) == "E"
    assert choice(box(r"\boxed{E: because C is too small}")) == "E"


def test_only_the_completion_is_read():  # case D6
    assert extract("hi", "boxed") == (None, "no complete \\boxed{…}")
    assert extract(r"put it in \boxed{}", "boxed") == (None, "no complete \\boxed{…} with anything in it")


def test_boxes_are_not_joined():  # case D16
    assert extract(r"\boxed{3} then \boxed{5}", "boxed") == ("5", "box 2 of 2")


# --- boxes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
    (r"\boxed{1} and \boxed{2", "1"),
    (r"\boxed{1 and \boxed{2}", "2"),
    (r"\boxed{\boxed{7}}", "7"),
    (r"\boxed{ \boxed{ 7 } }", "7"),
    (r"\boxed{x = \boxed{7} or so}", r"x = \boxed{7} or so"),
    (r"\boxed{7} I have put it in \boxed{}.", "7"),
    ("\\boxed{7} \\boxed{\u200b \n}", "7"),
    (r"\\boxed{7}", "7"),
    (r"\fbox{7}", "7"),
    (r"\boxed {7}", "7"),
    ("\\boxed{\n7\n}", "7"),
    (r"$$\boxed{7}$$.", "7"),
    (r"\boxed{}", None),
    (r"\boxed 7", "7"),
    (r"So $\boxed7$.", "7"),
    (r"\boxed A.", "A"),
    (r"{\boxed 7}", "7"),
    (r"\boxed{\boxed 7}", r"\boxed 7"),
    (r"\boxed 17", None),  # TeX boxes the 1 alone
    (r"\boxed 7^2", None),
    (r"put it in \boxed as told", None),
    (r"\Boxed{7}", None),
    (r"boxed{7}", None),
    (r"\boxed(7)", None),
    (r"} } \boxed{7}", "7"),
    (r"{ { \boxed{7}", "7"),
    (r"\boxed{\text{a\}b}}", r"\text{a\}b}"),
    (r"\boxed{a\\} b", r"a\\"),
    ("", None),
])  # fmt: skip
def test_boxes(text, expected):
    assert box(text) == expected


def test_a_long_listing_pays_for_its_last_entry_only():
    text = " ".join(rf"\boxed{{{n}}}" for n in range(1000))
    assert extract(text, "boxed") == ("999", "box 1000 of 1000")


STANDS = [
    r"x = \boxed{5}", r"\boxed{5}.", r"\boxed{5}\text{ cm}", r"$\boxed{5}$ cm", r"= \boxed{5}",
    r"Thus \boxed{5} is the answer", r"\boxed{5}\%", r"\boxed{5}%", r"\boxed{5}^\circ", r"$\boxed{5}^{\circ}$",
    r"\$\boxed{5}", r"$\$\boxed{5}$", r"- \boxed{5}", r"* \boxed{5}", r"+ \boxed{5}", r"> \boxed{5}", r"=> \boxed{5}",
    r"-> \boxed{5}", r"\Rightarrow \boxed{5}", r"\implies\boxed{5}", r"\therefore \boxed{5}", r"x \approx \boxed{5}",
    r"x \in \boxed{5}", r"x \equiv \boxed{5} \pmod{7}", r"**\boxed{5}**", r"*\boxed{5}*", r"*\boxed{5}* 3 times",
    r"_\boxed{5}_", r"__\boxed{5}__", r"**Answer: \boxed{5}**", r"The answer is - \boxed{5}", r"Answer - \boxed{5}",
    r"Answer – \boxed{5}", r"Answer — \boxed{5}", r"\boxed{5} - that is all", r"\boxed{5} - 3 apples each",
    r"\boxed{5} – the answer", r"\boxed{5}-dollar bills", r"\boxed{5} + a bonus", r"\boxed{5}, as 2 + 3 = 5",
    r"\boxed{5} = 2 + 3", r"\boxed{5} (cm)", r"\boxed{5} (see part a)", r"\boxed{5}(cm)", r"(\boxed{5})", r"[\boxed{5}]",
    r"$(\boxed{5})$", r"{\boxed{5}}", r"\textbf{\boxed{5}}", r"{\color{red}\boxed{5}}", r"\text{Answer: }\boxed{5}",
    r"\textbf{Answer} - \boxed{5}", r"\textbf{(A)} \boxed{5}", r"(a) - \boxed{5}", r"(a) \boxed{5}", r"2) \boxed{5}",
    r"1. \boxed{5}", r"Step 3: \boxed{5}", r"Step 3 - \boxed{5}", r"Question 12 - \boxed{5}", r"<b>\boxed{5}</b>",
    r"<h1>\boxed{5}</h1>", r"<answer>\boxed{5}</answer>", r"\boxed{5}<br>", r"\boxed{5} <b>", r"\[\boxed{5}\]",
    r"\(\boxed{5}\)", r"$$\boxed{5}$$", r"\begin{aligned} x &= \boxed{5} \end{aligned}", r"x + 1 = 6 \\ x &= \boxed{5}",
    r"5x - 3 = 22 \\ \boxed{5}", r"\boxed{5} cm", r"\boxed{5}cm", r"\boxed{5}m", r"\boxed{5} m/s",
    r"\boxed{5}\,\mathrm{m}", r"\boxed{5}~\mu m", r"\boxed{5}\,\Omega", r"\boxed{5}\ \text{hours}",
    r"\boxed{5}/\text{hour}", r"\boxed{5} miles", r"\boxed{5}!", r"The answer is \boxed{5}!", r"\boxed{5}?",
    r"\boxed{5};", r"\boxed{5}: it fits", r"\boxed{5} is not only the answer but the best",
    r"\boxed{5} is not divisible by 2", r"\boxed{5} is right, the others are wrong", r"\boxed{5}; all else is wrong",
    r"\boxed{5} is the wrong person's age", r"not 4 but \boxed{5}", r"I do not know why, but \boxed{5}",
    r"So I get \boxed{5} and 4 is wrong.", r"\boxed{5}, and \boxed{6} is wrong", r"\boxed{5}, not \boxed{6}",
    r"\boxed 5", r"\boxed5", r"$\boxed 5$.", r"\boxed 5 apples", r"\boxed{4} is wrong, so \boxed{5}",
    r"Is it \boxed{6}? No, \boxed{5}", r"\boxed{5} \quad \checkmark", r"\boxed{5} \ \blacksquare",
    r"\boxed{5} \text{ since } 2+3=5", r"\boxed{5}\text{, as } 2 + 3", r"f(x) = \boxed{5}",
    r"f(x)=x^2 has minimum \boxed{5}", r"|x| = \boxed{5}", r"x_1 = \boxed{5}", r"\angle A = \boxed{5}",
    r"n! = \boxed{5}", r"\boxed{5}\n\n", r"\n\boxed{5}", r"x = +\boxed{5}", r"C++ \boxed{5}", r"$x$ - \boxed{5}",
    r"the sum a - \textbf{\boxed{5}}", r"\boxed{5} \to done", r"\boxed{5} \Rightarrow done", r"\boxed{5}\in\mathbb{Z}",
    r"\boxed{5}\approx 4.99", r"\left(\boxed{5}\right)", r"\displaystyle\boxed{5}", r"= \,\boxed{5}\,",
    r"\boxed{5}\ (x = 3)", r"\boxed{5} I think", r"\boxed{5} a", r"2 apples + 3 apples gives \boxed{5}",
    r"(3+2) \boxed{5}", r"So, $2+3 = 5$. \boxed{5}", r"It is at least 4. So \boxed{5}", r'"\boxed{5}"', r"'\boxed{5}'",
    r"`\boxed{5}`", r"\boxed{5}", r"\boxed{5} grand pianos", r"\boxed{5} K", r"\boxed{5} MB", r"\boxed{5} more than Ann",
    r"\boxed{5}, more or less", r"\boxed{5} out of the box", r"\boxed{5} or equivalently $10/2$", r"\boxed{5} m",
]  # fmt: skip
"""Each answers 5."""
PART_OR_TAKEN_BACK = [
    r"\boxed{5} \cdot 10^3", r"\boxed{5}\cdot10^3", r"\boxed{5} \times 10^3", r"\boxed{5}\,\times\,2",
    r"$\boxed{5}$ \cdot 10^3", r"2\cdot\boxed{5}", r"2 \cdot \boxed{5}", r"2\times\boxed{5}", r"2 \cdot (\boxed{5})",
    r"\boxed{5}+1", r"\boxed{5} + 1", r"$\boxed{5}$ + 1", r"1+\boxed{5}", r"x + \boxed{5}", r"\boxed{4} + \boxed{5}",
    r"\boxed{5} - 1", r"\boxed{5}-x", r"\boxed{5} - \boxed{4}", r"12 - \boxed{5}", r"12-\boxed{5}", r"x-\boxed{5}",
    r"-\boxed{5}", r"= -\boxed{5}", r"= - \boxed{5}", r"x^2 - \boxed{5}", r"x^{2} - \boxed{5}", r"x>\boxed{5}",
    r"x > \boxed{5}", r"$x > \boxed{5}$", r"x<\boxed{5}", r"x\ge\boxed{5}", r"x \geq \boxed{5}", r"x \leq \boxed{5}",
    r"x ≥ \boxed{5}", r"x_1 > \boxed{5}", r"3 < \boxed{5}", r"\boxed{5} < x", r"\boxed{5} > 3", r"\boxed{5} \le x",
    r"\boxed{5} \ne 6", r"x \ne \boxed{5}", r"x ≠ \boxed{5}", r"\boxed{5}^2", r"$\boxed{5}$^2", r"\boxed{5} ^2",
    r"2^\boxed{5}", r"2^{\boxed{5}}", r"x_{\boxed{5}}", r"\sqrt{\boxed{5}}", r"\sqrt[3]{\boxed{5}}", r"\sqrt\boxed{5}",
    r"\sqrt{1+\boxed{5}}", r"\frac{\boxed{5}}{2}", r"\frac{1}{\boxed{5}}", r"\frac12\boxed{5}", r"\frac{1}{2}\boxed{5}",
    r"1/\boxed{5}", r"x / \boxed{5}", r"\boxed{5}/2", r"\boxed{5} / 2", r"\boxed{5}/x", r"\boxed{5}/(2)",
    r"\boxed{5} \div 2", r"\boxed{5}*2", r"\boxed{5} * 2", r"2*\boxed{5}", r"2 * \boxed{5}", r"\pm\boxed{5}",
    r"±\boxed{5}", r"\boxed{5}\pm 1", r"2 × \boxed{5}", r"2·\boxed{5}", r"\boxed{5} × 2", r"\boxed{5}0", r"\boxed{5}.5",
    r"\boxed{5},000", r"\boxed{5}:3", r"1\boxed{5}", r"x\boxed{5}", r"\boxed{5}x", r"\boxed{5}i", r"\boxed{5}\pi",
    r"\boxed{5} \pi", r"\pi\boxed{5}", r"\boxed{5}\sqrt{2}", r"\boxed{5}\frac12", r"\boxed{5}(x+1)",
    r"\boxed{5}\left(x+1\right)", r"2(\boxed{5})", r"f(\boxed{5})", r"\sin\boxed{5}", r"\sin(\boxed{5})",
    r"\log_2 \boxed{5}", r"\log \boxed{5}", r"\boxed{5}! = 120", r"$\boxed{5}!$", r"{\boxed{5} \over 2}",
    r"{\boxed{5} \choose 2}", r"\boxed{5} \bmod 3", r"[1,2] \cup \boxed{5}", r"\boxed{5} \cup [1,2]",
    r"\boxed{5} is wrong", r"\boxed{5} is wrong.", r"$\boxed{5}$ is wrong", r"\boxed{5} is incorrect; it's 6",
    r"\boxed{5} is definitely wrong", r"\boxed{5} is not the answer", r"\boxed{5} is not the right answer",
    r"\boxed{5} isn't the answer", r"\boxed{5} cannot be the answer", r"\boxed{5} can't be right",
    r"\boxed{5} is not correct", r"\boxed{5} was wrong, because", r"\boxed{5} (wrong)", r"\boxed{5}, wrong",
    r"\boxed{5}\text{ is not the answer}", r"**\boxed{5}** is wrong", r"\boxed{5} does not work", r"\boxed{5} is not it",
    r"The answer is not \boxed{5}", r"\text{not }\boxed{5}", r"\neg\boxed{5}", r"We rule out \boxed{5}",
    r"\boxed{5} million", r"\boxed{5} hundred", r"\boxed{5} dozen", r"\boxed{5} thousand dollars",
    r"\boxed{5} billion people", r"\boxed{5}\text{ million}", r"$\boxed{5}\text{ thousand}$",
    r"**\boxed{5}** million", r"$\boxed{5}$ lakh",
    r"\boxed{5} Mio.", r"\boxed{5} Millionen", r"\boxed{5}万", r"\boxed{5} млн", r"\boxed{5}K", r"\boxed{5}\text{k}",
    r"\boxed{5} M", r"\boxed{5} grand", r"\boxed{5} out of 20", r"\boxed{5} out of $20$", r"\boxed{5} or more",
    r"\boxed{5} or fewer", r"\boxed{5} and a half", r"at least \boxed{5}", r"at most $\boxed{5}$",
    r"more than **\boxed{5}**", r"up to \boxed{5}", r"half of \boxed{5}", r"twice \boxed{5}",
    r"It isn't \boxed{5}", r"\boxed 5.5", r"2\cdot\boxed 5", r"\boxed{5} \\cdot 10", r"2\\cdot\boxed{5}",
]  # fmt: skip
"""None of them answers anything."""


def test_a_box_that_is_all_that_is_said_is_the_answer():
    assert [text for text in STANDS for whole in (text, f"Some words.\n{text}\nMore words.") if box(whole) != "5"] == []


def test_a_box_that_an_operator_a_relation_or_a_denial_touches_is_none():
    assert [text for text in PART_OR_TAKEN_BACK for whole in (text, f"So we get\n{text}\n") if box(whole) is not None] == []


def test_of_a_choice_only_not_the_answer_takes_it_back():
    assert box(r"Statement \boxed{B} is wrong.") == "B" and box(r"\boxed{\text{C}} is incorrect") == r"\text{C}"
    assert box(r"\boxed{B} is not the answer") is None and box(r"\boxed{A} fits, \boxed{B} is not the answer") == "A"


# --- what was not said ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    (r"<think>\boxed{1}</think>\boxed{2}", "2"),
    (r"<think>\boxed{1}</think>", None),
    (r"<think>\boxed{1}", None),
    (r"\boxed{1}<think>\boxed{2}", None),  # it went on thinking, and was cut
    (r"\boxed{1}<think>no doubt</think>", "1"),
    (r"\boxed{2}<think>\boxed{1}</think> indeed", "2"),
    (r"reasoning \boxed{1}</think>\boxed{2}", "2"),
    (r"reasoning \boxed{1}</think> nothing", None),
    (r"<think>a <think> b</think>\boxed{2}", "2"),
    (r"<think>a</think>\boxed{1}</think>\boxed{2}", "2"),
    (r"<THINK>\boxed{1}</THINK>\boxed{2}", "2"),
    (r"<thinking>\boxed{1}", None),
    (r"<reasoning>\boxed{1}</think>\boxed{2}", None),  # closed by another tag: not closed
    (r"[THINK]\boxed{1}[/THINK]\boxed{2}", "2"),
    (r"◁think▷\boxed{1}", None),
    (r"◁think▷\boxed{1}◁/think▷\boxed{2}", "2"),
    (r"<|begin_of_thought|>\boxed{1}", None),
    (r"<|begin_of_thought|>\boxed{1}<|end_of_thought|>\boxed{2}", "2"),
    (r"<|START_THINKING|>\boxed{1}<|END_THINKING|>\boxed{2}", "2"),
    (r"<scratchpad>\boxed{1}", None),
    ("\\boxed{1}<|im_end|>\\boxed{2}", "1"),
    ("\\boxed{1}<|eot_id|><|start_header_id|>user<|end_header_id|>\\boxed{2}", "1"),
    ("\\boxed{1}</s>\\boxed{2}", "1"),
    ("<|im_end|>\\boxed{2}", None),
    ("<think>\\boxed{1}<|im_end|></think>\\boxed{2}", None),
    ("\\boxed{1}<end_of_turn>\n<start_of_turn>user \\boxed{2}", "1"),
    ("\\bo<think></think>xed{3}", None),
    ("\\boxed{1}<|im_start|>user\n\\boxed{2}", "1"),
])  # fmt: skip
def test_only_what_was_said_counts(text, expected):
    assert box(text) == expected


def test_reasoning_that_the_prompt_opened():
    assert box(r"so \boxed{1}", opened=True) is None
    assert box(r"so \boxed{1}</think>\boxed{2}", opened=True) == "2"
    assert box(r"<think>so \boxed{1}</think>\boxed{2}", opened=True) == "2"
    assert spoken("still thinking", opened=True) == (None, "the reasoning never ends")


def test_further_ends_of_turn():
    text = "\\boxed{1}\nHuman: no\n\\boxed{2}"
    assert box(text) == "2" and box(text, stops=("\nHuman:",)) == "1"


# --- tags, markers, lines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    ("<answer>5</answer>", "5"),
    ("<answer>3</answer><answer>5</answer>", "5"),
    ("<answer>3</answer><answer>5", "3"),
    ("<answer>3<answer>5</answer>", "5"),
    ("<answer><answer>5</answer></answer>", "5"),
    ("<answer>5</answer><answer> </answer>", "5"),
    ("<answer></answer>", None),
    ("</answer>5<answer>", None),
    ("<Answer> 5 </ANSWER >", "5"),
    ("<answers>5</answers>", None),
    ("answer: 5", None),
])  # fmt: skip
def test_tags(text, expected):
    assert extract(text, "tag")[0] == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("#### 42", "42"),
    ("#### 1,234.50", "1,234.50"),
    ("#### $18", "$18"),
    ("#### 42.", "42"),
    ("#### 1\n#### 2", "2"),
    ("#### 1 #### 2", "2"),
    ("#### 42 apples", "42 apples"),  # a unit is for who compares to judge
    ("#### 1 1/4", "1 1/4"),
    ("#### 42 or 43 are possible", "42 or 43 are possible"),
    ("#### 42, 43, 44 and more of them", "42, 43, 44 and more of them"),
    ("##### 42", None),
    ("####", None),
    ("#### 5\n####", "5"),
    ("### 42", None),
    ("#### x = 7", "x = 7"),
])  # fmt: skip
def test_markers(text, expected):
    assert extract(text, "marker")[0] == expected


def test_other_policies():
    assert extract("Answer:B", "marker", marker="Answer:")[0] == "B"
    assert extract("a\n\n b \n\n", "line") == ("b", "the last line")
    assert extract(" a\nb ", "whole") == ("a\nb", "the whole text")
    assert extract("\u200b \n", "whole") == extract(" ", "line") == (None, "nothing was said")
    for wrong in ("box", ("boxed", "first"), ()):
        with pytest.raises(ValueError, match="must name places among boxed, tag, marker, line, whole"):
            extract("x", wrong)
    with pytest.raises(ValueError, match="must not be empty"):
        extract("x", "marker", marker="")


@pytest.mark.parametrize(("text", "expected"), [
    ("E", "E"), ("(e)", "E"), ("[E]", "E"), ("E.", "E"), ("E)", "E"), ("E) 12", "E"), ("E: 7", "E"), ("E. because", "E"),
    ("E – both", "E"), (r"\text{E}", "E"), (r"$\textbf{(E)}$", "E"), ("**E**", "E"), (r"\(E\)", "E"), ("(E) 5", "E"),
    ("Option E", "E"), (r"\text{Answer: (E)}", "E"), ("choice e", "E"), ("Option A or B", None), ("Options", None),
    ("", None), ("Z", None), ("A cat", None), ("A or B", None), ("A, B", None), ("A and B", None), ("(A) (B)", None),
    ("(A) or (B)", None), ("A: B", None), ("AB", None), ("A/B", None), ("A. B. C. D.", None), ("none", None),
    (r"\(A\) or \(B\)", None), ("A) or B)", None), ("5", None),
])  # fmt: skip
def test_choices(text, expected):
    assert choice(text) == expected


def test_unwrap():
    assert unwrap(r" $\text{ so }$. ") == "so" and unwrap("$5$ or $6$") == "$5$ or $6$"
    assert unwrap(r"\(5\) or \(6\)") == r"\(5\) or \(6\)"


# --- hostile text ---------------------------------------------------------------------------------------------------

N = 25_000
HOSTILE = [
    r"\boxed{" * N, r"\boxed{" * (N // 2) + "}" * (N // 2), r"\boxed{}" * N, "{" * N, "}" * N, "\\" * N,
    r"\boxed" + " " * N,
    r"\boxed " * N, "<think>" * N, "</think>" * N, "<think>a</think>" * N, "<think" + " " * N, "<answer" * N,
    "<answer>" * N + "</answer>" * N, "<answer " + " " * N, "#### " * N, "#" * N, "#### " + "1," * N, "#### 1 " + "a " * N,
    "#### " + " " * N, "\n" * N, "$" * N, r"\text{" * N, "*" * N, r"\(" * N, "A " * N, "<|" * N, "\u200b" * N,
    "[THINK]" * N,
]  # fmt: skip


@pytest.mark.parametrize("policy", ["boxed", "tag", "marker", "line", "whole"])
def test_hostile_text_costs_its_length(policy):
    started = time.process_time()
    for text in HOSTILE:
        found, where = extract(text[:MAX_CHARACTERS], policy)
        assert (found is None or not blank(found)) and where
        choice(found or text)
    assert time.process_time() - started < 20  # quadratic work on any of them takes minutes


def test_too_long_is_not_read():
    assert extract("5" * (MAX_CHARACTERS + 1), "whole") == (None, "longer than 500,000 characters")


SCRAPS = st.lists(
    st.sampled_from(["\\boxed{", "}", "{", "\\", "<think>", "</think>", "<answer>", "</answer>", "####", " ", "\n", "7",
                     "x", "<|im_end|>", "$", "\\text{", "[THINK]", "[/THINK]", "\u200b", "A"]), max_size=30,
).map("".join)  # fmt: skip


@few
@given(SCRAPS, st.sampled_from(["boxed", "tag", "marker", "line", "whole"]))
def test_any_text_gives_an_answer_or_a_reason(text, policy):
    found, where = extract(text, policy)
    assert where and (found is None or (found == found.strip() and not blank(found)))
    assert found is None or policy == "whole" or found in text
    choice(text)


@few
@given(SCRAPS, st.sampled_from(["boxed", "tag", "marker", "line", "whole"]))
def test_nothing_behind_the_end_of_turn_or_within_open_reasoning_changes_anything(text, policy):
    assert extract(text + "<|im_end|>\\boxed{9}<answer>9</answer>\n#### 9", policy) == extract(text, policy)
    if "<|im_end|>" not in text:
        assert extract(f"{text}<think>\\boxed{{9}}<answer>9</answer>#### 9", policy)[0] is None


@few
@given(st.text(st.characters(exclude_characters="\\{}<>[]◁▷#｜"), min_size=1).filter(lambda t: not blank(t)), SCRAPS)
def test_the_last_box_wins_whatever_stands_before_it(answer, before):
    said, _ = spoken(before)
    if said is not None and "<|im_end|>" not in before and not before.endswith("\\"):
        assert box(f"{before} \\boxed{{{answer}}}") == answer.strip()


@few
@given(SCRAPS)
def test_pieces_come_from_the_text(text):
    assert all(piece in text for piece in [*boxes(text), *tagged(text, "answer")])

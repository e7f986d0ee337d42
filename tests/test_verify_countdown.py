"""Countdown: which expressions count, and that nothing else does."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.recipe import make_recipe
from milepost.reward import Grader
from milepost.types import Episode, EpisodeId, Group, RecipeError, Sampled, StopKind, StopReason, Task, Turn
from milepost.verifiers.countdown import check_gold, right, score, wrong

GOLD = {"numbers": [3, 5, 7], "target": 15}


def value(answer: str, numbers=(3, 5, 7), target: int = 15, **params) -> float:
    return score(answer=answer, gold={"numbers": list(numbers), "target": target}, **params)["score"]


def test_only_the_given_numbers_each_once():  # case D25
    assert [value(text) for text in ("15", "10+5", "3+5+7", "3*5", "7+5+3", "3+5+7+7-7", "5+10")] == [0, 0, 1, 0, 1, 0, 0]
    assert value("3*5", use="some") == 1  # 7 may be left over here
    assert [value(text, use="some") for text in ("15", "10+5", "3*5*1", "3+3+3+3+3", "")] == [0] * 5


@pytest.mark.parametrize(("answer", "numbers", "target"), [
    ("2**3", (2, 3), 8), ("7//2", (7, 2), 3), ("1.5*4", (1, 5, 4), 6), ("(2+3)*4", (2, 3, 4, 5), 20), ("2+3", (2, 3, 4), 5),
])  # fmt: skip
def test_holes_of_a_known_checker(answer, numbers, target):
    """Block C9: paid 1 there for a power, a rounding division and digits side by side; 0.1 for unusable numbers."""
    assert value(answer, numbers, target) == 0


def test_c9_what_that_checker_pays_with_right_is_paid_here_too():
    assert value("(2+3)*4", (2, 3, 4), 20) == 1


@pytest.mark.parametrize("answer", [
    "3+5+7", r"so \boxed{3 + 5 + 7}", r"\boxed{3}? No: \boxed{(3+5)+7}", "<answer>7 + (5 + 3)</answer>",
    "Think.\n3+5+7 = 15.", "３+5+٧", r"\boxed{3+5+7=15}", r"$3+5+7$", r"\boxed{\left(3+5\right)+7}",
    "<think>15</think>3+5+7",
])  # fmt: skip
def test_expressions_as_they_are_written(answer):
    assert value(answer) == 1


@pytest.mark.parametrize(("answer", "numbers", "target"), [
    ("8÷(3−8÷3)", (8, 3, 8, 3), 24), (r"\frac{6}{1-\frac{3}{4}}", (6, 1, 3, 4), 24), (r"5 \times 4 \div 2", (5, 4, 2), 10),
    ("5·(4−2)", (5, 4, 2), 10), ("3-5", (3, 5), -2),
])  # fmt: skip
def test_signs_and_exact_fractions(answer, numbers, target):
    assert value(answer, numbers, target) == 1


@pytest.mark.parametrize("answer", [
    "3+5+7=16", "16=3+5+7", "3+5+7 3", "3+5+7 or 3*5", "-3+5+13", "3+5+(7", "3+5+7)", "3 5 7", "35-7", "3+5+7,",
    "3+5-+7", "()", "3/0+5+7", "(3+5+7)!", "__import__('os')", "3+5+7**1", "3+5+7^1", "3+5+7e0", "3+5+0x7", "", "I give up",
    "<think>3+5+7", r"\boxed{3+5+7} or \boxed{15}", "(" * 400 + "3", "9" * 400, "9**9**9",
])  # fmt: skip
def test_what_is_no_such_expression(answer):
    began = time.monotonic()
    assert value(answer) == 0
    assert time.monotonic() - began < 2


def test_the_four_outcomes_and_the_parts():
    assert score(answer=r"\boxed{3+5+7}", gold=GOLD)["parts"] == {"value": 1.0, "numbers": 1.0}
    assert score(answer=r"\boxed{15}", gold=GOLD)["parts"] == {"value": 1.0, "numbers": 0.0}
    assert score(answer=r"\boxed{7+5-3}", gold=GOLD)["parts"] == {"value": 0.0, "numbers": 1.0}
    nothing = score(answer="I cannot do it", gold=GOLD)
    assert (nothing["score"], nothing["extractable"]) == (0.0, False)
    assert score(answer=r"\boxed{x}", gold=GOLD)["extractable"] is True
    assert score(answer="3", gold={"numbers": [3]})["cause"] == "bad_gold"


@pytest.mark.parametrize(("gold", "says"), [
    ("7", "must be a table"), ({"numbers": [], "target": 1}, "1 to 10 whole numbers"),
    ({"numbers": [1, 2]}, "target holds 'None'"),
    ({"numbers": [1, 2.5], "target": 3}, "2.5"), ({"numbers": [1, True], "target": 3}, "True"),
    ({"numbers": [1, -2], "target": 3}, "no sign before"),
    ({"numbers": [1, 1], "target": 50}, "no expression of .* makes 50"),
    ({"numbers": [1, 2], "target": 3, "solution": "2*1"}, "its own solution '2"),
])  # fmt: skip
def test_golds_that_cannot_be_used(gold, says):
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(check_gold(gold) or "fine")


@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(-30, 200), st.sampled_from(["all", "some"]))
@settings(max_examples=60, deadline=None)
def test_right_and_wrong_texts_keep_their_word(numbers, target, use):
    gold = {"nums": numbers, "target": target}
    if check_gold(gold, use=use) is None:
        assert right(gold, use=use)
        assert [score(answer=text, gold=gold, use=use)["score"] for text in right(gold, use=use)] == [1.0, 1.0]
    assert all(score(answer=text, gold=gold, use=use)["score"] == 0 for text in wrong(gold, use=use))


SIGNS = st.sampled_from("+-*/")


@given(st.lists(st.tuples(SIGNS, st.integers(0, 30)), min_size=1, max_size=4), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_values_are_those_of_arithmetic(rest, first):
    """Folded from the left, each step in brackets."""
    text, result = str(first), Fraction(first)
    for sign, number in rest:
        text = f"({text}){sign}{number}"
        if sign == "/" and number == 0:
            return
        result = {"+": result + number, "-": result - number, "*": result * number, "/": result / (number or 1)}[sign]
    target = int(result) if result.denominator == 1 else 0
    if abs(target) <= 10**9:
        assert value(text, [first, *(n for _, n in rest)], target) == float(result == target)


@given(st.text(alphabet="0123456789+-*/()= .\\{}frac×÷", max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_is_judged(text):
    assert value(text) in (0.0, 1.0)


def test_in_a_recipe():
    rows = [{"prompt": "Make 15 of 3, 5, 7.", **GOLD}]
    section = make_recipe({"reward": {"functions": [{"name": "countdown"}]}}).reward
    turns = [
        Turn([1], Sampled([5], [-0.1], 1.0, ((0, 0),), "stop"), text=text)
        for text in (r"\boxed{3+5+7}", r"\boxed{15}", "?")
    ]
    episodes = [Episode(EpisodeId("train", 0, "g", i), "g", (turn,), StopReason(StopKind.TERMINATED, "end_of_turn"))
                for i, turn in enumerate(turns)]  # fmt: skip
    with Grader(section) as grader:
        task = Task("g", "?", rows[0])
        (rewards,) = grader.score([Group("g", task, tuple(episodes))])
        assert [r.verdict for r in rewards] == ["correct", "wrong", "unextractable"]
        assert grader.check_gold(task) is None and grader.canary([task]).ok
    twice = make_recipe({"reward": {"functions": [{"name": "countdown", "params": {"use": "twice"}}]}})
    with pytest.raises(RecipeError, match="use = 'twice' must be one of all, some"):
        Grader(twice.reward)


@pytest.mark.parametrize(("answer", "paid"), [
    ("#### 3+5+7", 1), ("Answer: 3 + 5 + 7", 1), ("The answer is 3 + 5 + 7 = 15.", 1), ("<answer>15 = 3+5+7</answer>", 1),
    ("<answer>**3+5+7**</answer>", 1), ("<answer>15</answer>", 0), ("<answer>15 = 15</answer>", 0), ("#### 15", 0),
    ("<answer>15 = 3+5+8</answer>", 0), ("The answer is 3 + 5 + 8 = 15.", 0),
    ("The answer is 3+5+7.", 1), ("<answer>3+5+7.</answer>", 1), (r"\boxed{3+5+7.}", 1), ("#### 3+5+7.", 1), ("3+5+7.", 1),
    ("<answer>$3+5+7$.</answer>", 1), ("<answer>$3+5+7.$</answer>", 1), ("<answer>**3+5+7**.</answer>", 1),
    ("<answer>(3+5)+7 。</answer>", 1), ("<answer>3+5.+7</answer>", 0), ("<answer>3+5+7..</answer>", 0),
    ("<answer>3+5+8.</answer>", 0), ("<answer>.3+5+7</answer>", 0), ("<answer>15.</answer>", 0),
    ("<answer>The answer is 3+5+7</answer>", 1), ("<answer>The answer is 3+5+7 = 15.</answer>", 1),
    (r"\boxed{\text{Answer: } 3+5+7}", 1), ("<answer>The answer is not 3+5+7</answer>", 0),
    ("<answer>The answer is 3+5+8</answer>", 0), ("<answer>Not sure: 3+5+7</answer>", 0),
    ("<answer>3+5+7=15.0</answer>", 1), ("<answer>15.00 = 3+5+7</answer>", 1), ("3+5+7 = 15.0.", 1),
    ("<answer>3+5+7=15.5</answer>", 0), ("<answer>3+5+7=150</answer>", 0), ("<answer>15.0</answer>", 0),
    ("<answer>15 = 15.0</answer>", 0), ("<answer>3+5+7=15=15</answer>", 0),
])  # fmt: skip
def test_usual_ways_to_give_the_expression(answer, paid):
    assert score(answer=answer, gold={"numbers": [3, 5, 7], "target": 15})["score"] == paid


@pytest.mark.parametrize(("answer", "numbers", "target", "paid"), [
    ("6 x 2 - 3", (6, 2, 3), 9, 1), ("6x2-3", (6, 2, 3), 9, 1), ("(2+1)X3", (1, 2, 3), 9, 1), ("3x(2+1)", (1, 2, 3), 9, 1),
    ("2x3x4", (2, 3, 4), 24, 1), ("10x7", (10, 7), 70, 1), ("7 + 0 x 5", (7, 0, 5), 7, 1),
    ("6 x 2 + 3", (6, 2, 3), 9, 0), ("6 x x 2", (6, 2), 12, 0), ("x 6 2", (6, 2), 12, 0), ("6 2 x", (6, 2), 12, 0),
    ("5+0x7", (5, 0, 7), 5, 0), ("0x7", (0, 7), 0, 0), ("6 y 2", (6, 2), 12, 0), ("8/(3-8/3)=24.0", (3, 3, 8, 8), 24, 1),
    ("3 - 5 = -2.0", (3, 5), -2, 1), ("3 - 5 = 2.0", (3, 5), -2, 0),
])  # fmt: skip
def test_the_letter_x_between_numbers_is_a_sign(answer, numbers, target, paid):
    assert value(f"<answer>{answer}</answer>", numbers, target) == paid

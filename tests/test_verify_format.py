"""Form and repetition: exact values, what emptiness, listing and repetition earn (nothing)."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.verifiers import format as form
from milepost.verifiers import repetition
from milepost.verifiers.format import score

few = hypothesis_settings(max_examples=60, deadline=None)
BLOCKS = {"blocks": ["think", "answer"]}
BOX = {"boxes": 1}
SCHEMA = {
    "schema": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}
}
GOOD = "<think>2 and 2 make it</think><answer>4</answer>"

# --- form -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f" \n{GOOD}\n",
        GOOD.replace("><", ">\n\n<"),
        "<THINK>so it is</THINK><Answer >4</ANSWER>",
        f"{GOOD}<|im_end|>more",
        "<think>x < 3 <b>and</b> so on</think><answer>x=2</answer>",
        "<think>一二三</think><answer>四</answer>",
        "<think>" + " ".join(f"step {i} gives {i * i}" for i in range(300)) + "</think><answer>4</answer>",
    ],
)
def test_blocks_as_asked_for(text):
    verdict = score(answer=text, gold=BLOCKS)
    assert verdict["score"] == 1 and verdict["extractable"] is True, verdict["compared"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "none"),
        (" \n", "none"),
        ("4", "none"),
        ("<think></think><answer></answer>", "is empty"),
        ("<think> </think><answer>\n</answer>", "is empty"),
        ("<think>\u200b</think><answer>\u200b</answer>", "is empty"),
        ("<think>...</think><answer>4</answer>", "is empty"),
        ("<think>so it is</think><answer>?!</answer>", "is empty"),
        ("<think>so it is</think><answer>your answer here</answer>", "placeholder"),
        ("<think>Reasoning process here.</think><answer>4</answer>", "placeholder"),
        ("<think>4</think><answer>4</answer>", "two blocks say the same"),
        ("<think>4 .</think><answer>4.</answer>", "two blocks say the same"),
        (GOOD + "<answer>5</answer>", "its tags"),
        (GOOD + GOOD, "its tags"),
        (GOOD * 500, "…"),
        ("<answer>4</answer><think>2 and 2 make it</think>", "its tags"),
        ("<think>2 and 2</think>", "its tags"),
        ("<answer>4</answer>", "its tags"),
        (GOOD[:-1], "its tags"),
        (GOOD.replace("</think>", ""), "its tags"),
        (GOOD.replace("<think>", ""), "its tags"),
        ("<think>a <think>b</think><answer>4</answer>", "its tags"),
        ("<think>so <answer>4</answer></think>", "its tags"),
        ("<think>so</think><answer><answer>4</answer></answer>", "its tags"),
        ("Sure! " + GOOD, "outside"),
        (GOOD + " That is it.", "outside"),
        (GOOD.replace("><", "> and <"), "outside"),
        ("<think>" + "yes " * 50 + "</think><answer>4</answer>", "repeats itself"),
        ("<think>" + "this is right. " * 50 + "</think><answer>4</answer>", "repeats itself"),
        ("<think>" + "ha" * 300 + "</think><answer>4</answer>", "repeats itself"),
        ("&lt;think&gt;so&lt;/think&gt;&lt;answer&gt;4&lt;/answer&gt;", "none"),
        ("<|im_end|>" + GOOD, "none"),
    ],
)
def test_blocks_otherwise(text, why):
    verdict = score(answer=text, gold=BLOCKS)
    assert verdict["score"] == 0 and verdict["cause"] is None and why in verdict["compared"], verdict["compared"]


def test_nothing_found_is_zero_and_unextractable():  # case D2
    for gold in (BLOCKS, BOX, SCHEMA):
        for text in ("", " ", "so it is 4", "<think>", r"\boxed{4", "<answer>4", "{", "5" * 600_000):
            verdict = score(answer=text, gold=gold)
            assert verdict["score"] == 0 and verdict["extractable"] is False and verdict["extracted"] is None
    assert score(answer="hi", gold=BOX)["score"] == 0  # case D6: whatever the prompt says


def test_blocks_without_reasoning_and_reasoning_opened_by_the_prompt():
    assert score(answer="<think>hm</think><answer>4</answer>", gold={"blocks": ["answer"]})["score"] == 1
    assert score(answer="<think>hm<answer>4</answer>", gold={"blocks": ["answer"]})["score"] == 0
    assert score(answer=GOOD.removeprefix("<think>"), gold=BLOCKS, opened=True)["score"] == 1
    assert score(answer=GOOD, gold=BLOCKS, opened=True)["score"] == 1
    assert score(answer="<answer>4</answer>", gold=BLOCKS, opened=True)["score"] == 0
    assert score(answer=GOOD, blocks=["think", "answer"], least={"think": 5})["score"] == 1
    assert score(answer=GOOD, blocks=["think", "answer"], least={"think": 6})["score"] == 0


@pytest.mark.parametrize(
    ("text", "number", "expected"),
    [
        (r"\boxed{4}", 1, 1),
        (r"so \boxed{\frac{1}{2}}.", 1, 1),
        (r"\boxed{>}", 1, 1),
        (r"\boxed{1}, \boxed{2}", 2, 1),
        (r"<think>\boxed{3}</think>\boxed{4}", 1, 1),
        (r"\boxed{\boxed{4}}", 1, 1),
        (r"\boxed{3} \boxed{4}", 1, 0),
        (r"\boxed{4} \boxed{}", 1, 0),
        (r"\boxed{}", 1, 0),
        (r"\boxed{?}", 1, 0),
        (r"\boxed{your answer}", 1, 0),
        (r"\boxed{4}", 2, 0),
        (r"<think>\boxed{4}", 1, 0),
        (r"\boxed{4} \boxed{...}", 2, 0),
        (r"\boxed{4}" * 1000, 1, 0),
        (r"\boxed{" + "4 " * 100 + "}", 1, 0),
    ],
)
def test_boxes(text, number, expected):
    assert score(answer=text, gold={"boxes": number})["score"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"city": "Oslo"}', 1),
        ('Here:\n```json\n{"city": "Oslo", "n": 2}\n```', 1),
        ('<think>hm</think>\n{"city": "Oslo"}\n', 1),
        ("{}", 0),
        ("42", 0),
        ("[]", 0),
        ('"Oslo"', 0),
        ("null", 0),
        ('{"city": ""}', 0),
        ('{"city": " ... "}', 0),
        ('{"city": 5}', 0),
        ('{"n": 5}', 0),
        ('{"city": "Oslo"} {"city": "Oslo"}', 0),
        ('{"city": "Oslo"} is it', 0),
        ('{"city": "Oslo", "city": "Rome"}', 0),
        ("{'city': 'Oslo'}", 0),
        ('{"city": "Oslo", "n": NaN}', 0),
        ('{"city": "Oslo"', 0),
        ('```json\n{"city": "Oslo"}\n```\n```json\n{"city": "Rome"}\n```', 0),
        ('```json\n{"city": "Oslo"}', 0),
        ("[" * 100_000, 0),
        ('{"city": "Oslo", "n": 1.5}', 0),
    ],
)
def test_json(text, expected):
    verdict = score(answer=text, gold=SCHEMA)
    assert verdict["score"] == expected, verdict["compared"]


@pytest.mark.parametrize(
    ("gold", "says"),
    [
        (None, "has one of"),
        ({}, "has one of"),
        ({"blocks": ["a"], "boxes": 1}, "has one of"),
        ({"boxes": 0}, "1 to 100"),
        ({"boxes": True}, "1 to 100"),
        ({"blocks": "think"}, "list"),
        ({"blocks": []}, "list"),
        ({"blocks": ["a b"]}, "name"),
        ({"blocks": ["a", "A"]}, "twice"),
        ({"blocks": ["a"], "least": {"b": 1}}, "least"),
        ({"schema": {"if": {}}}, "'if'"),
        ({"schema": True}, "accepts {}"),
        ({"schema": {"type": "object"}}, "accepts {}"),
        ({"schema": {"type": "integer"}}, "42"),
        ({"schema": {"type": "string"}}, '""'),
        ({"schema": {"enum": [None]}}, "null"),
        ("{", "has one of"),
        ("42", "has one of"),
    ],
)
def test_forms_that_ask_for_nothing_are_refused(gold, says):
    assert says in form.check_gold(gold)
    verdict = score(answer=GOOD, gold=gold)
    assert verdict["score"] is None and verdict["cause"] == "bad_gold"


@pytest.mark.parametrize(
    "gold",
    [
        BLOCKS,
        BOX,
        {"boxes": 3},
        SCHEMA,
        {"blocks": ["plan", "code", "answer"], "least": {"plan": 9}},
        json.dumps(BOX),
        {"blocks": ["answer"]},
    ],
)
def test_right_and_wrong_texts_of_a_form(gold):
    assert form.check_gold(gold) is None
    for text in form.right(gold):
        assert score(answer=text, gold=gold)["score"] == 1, text
    for text in form.wrong(gold):
        assert score(answer=text, gold=gold)["score"] == 0, text


SCRAPS = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "\\boxed{",
            "}",
            "{",
            "so",
            " ",
            "4",
            "```json\n",
            "```",
            '"city"',
            ":",
            "\u200b",
            "\ud800",
            "<|im_end|>",
        ]
    ),
    max_size=20,
).map("".join)


@few
@given(SCRAPS, st.sampled_from([BLOCKS, BOX, SCHEMA]))
def test_any_text_gives_a_verdict_and_more_of_it_no_more(text, gold):
    verdict = score(answer=text, gold=gold)
    assert verdict["score"] in (0, 1) and json.dumps(verdict) and (verdict["extractable"] or verdict["score"] == 0)
    if verdict["score"] == 1 and "<|im_end|>" not in text:
        assert score(answer=text * 2, gold=gold)["score"] == 0


# --- repetition -----------------------------------------------------------------------------------------------------


def test_c5_repetition():
    """n = 2. Five fives: four pairs, one distinct, 1 − 1/4. 1 2 1 2 1 2: five pairs, two distinct, 1 − 2/5."""
    for ids, expected in (([5] * 5, 0.75), ([1, 2, 3, 4, 5], 0.0), ([1, 2] * 3, 0.6), ([], 0.0), ([1], 0.0)):
        assert repetition.repeated(ids, 2) == pytest.approx(expected)
        text = " ".join(map(str, ids))
        assert repetition.score(answer=text, n=2, free=0.0)["score"] == pytest.approx(1 - expected if ids else 0)
    assert repetition.score(answer="5 5 5 5 5", n=2, free=0.5)["score"] == pytest.approx(0.5)  # half of what is beyond 0.5
    assert repetition.score(answer="1 2 1 2 1 2", n=2, free=0.6)["score"] == 1
    with pytest.raises(ValueError, match="1 or more"):
        repetition.repeated([1], 0)


@pytest.mark.parametrize(
    "text",
    [
        "yes " * 200,
        "ye\u200bs y\u2060es " * 99,
        "ha" * 300,
        "!?" * 100,
        "a b c " * 80,
        "是的" * 200,
        "Yes yes, YES! " * 60,
        "ｙｅｓ " * 60,
        "the end.\n" * 90,
        "0" * 500,
        "<a></a>" * 80,
    ],
)
def test_repetition_is_seen(text):
    assert repetition.score(answer=text)["score"] < 0.2


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "A short answer.",
        "First we add two and two, and then we halve what we got: two.",
        " ".join(f"step {i}: {i} + {i + 1} = {2 * i + 1}." for i in range(100)),
        r"\boxed{4}",
    ],
)
def test_honest_text_is_left_alone(text):
    assert repetition.score(answer=text)["score"] == 1


def test_saying_nothing_is_no_way_to_avoid_repetition():
    for text in repetition.wrong():
        found = repetition.score(answer=text)
        assert found["score"] == 0 and found["extractable"] is False
    assert repetition.score(answer="4", least=10)["score"] == 0
    assert all(repetition.score(answer=text, least=n)["score"] == 1 for n in (1, 40) for text in repetition.right(least=n))
    assert repetition.check_gold(None) is None and repetition.check_gold(None, n=0) and repetition.check_gold(None, free=1)


@few
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5), st.floats(0, 0.99))
def test_the_score_is_bounded_and_saying_it_twice_raises_no_score(ids, n, free):
    text = " ".join(map(str, ids))
    value = repetition.score(answer=text, n=n, free=free)["score"]
    assert 0 < value <= 1 and 0 <= repetition.repeated(ids, n) < 1
    assert repetition.repeated(ids + ids, n) >= repetition.repeated(ids, n) - 1e-12 or len(ids) < n
    assert repetition.score(answer=f"{text} {text}", n=n, free=free)["score"] <= value + 1e-12 or len(ids) < n


def test_hostile_text_costs_its_length():
    started = time.process_time()
    texts = [
        "<think>" * 9999,
        GOOD * 2000,
        "<answer " + " " * 99999,
        r"\boxed{" * 9999,
        "{" * 99999,
        "```json\n" * 9999,
        "a" * 99999,
        "\u0301" * 99999,
        "ﷺ" * 9999,
    ]
    for text in texts:
        for gold in (BLOCKS, BOX, SCHEMA):
            assert score(answer=text, gold=gold)["score"] == 0
        repetition.score(answer=text)
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    "content", ["", r"\text{}", r"\quad", r"\text{answer}", r"\ldots", r"\hspace{1cm}", r"\mathbf{ }", "{}"]
)
def test_latex_that_shows_nothing_fills_no_box_and_no_block(content):
    assert score(answer=rf"\boxed{{{content}}}", gold={"boxes": 1})["score"] == 0
    block = f"<think>two and two</think><answer>{content}</answer>"
    assert score(answer=block, gold={"blocks": ["think", "answer"]})["score"] == 0
    assert score(answer=block.replace(content + "</answer>", rf"\boxed{{{content}}}</answer>"),
                 gold={"blocks": ["think", "answer"]})["score"] == 0  # fmt: skip


@pytest.mark.parametrize(
    "content",
    ["\u3164", "\u115f\u1160", "\uffa0", "\u2800", "\u034f", "\ufe0f", "\U000e0041", "\x07", "&nbsp;", "&#8203;",
     "&#x3164;", "&zwnj;&emsp;", "<!-- four -->", "<!-- four", r"\phantom{4}", r"\hphantom{4}"],
)  # fmt: skip
def test_what_shows_nothing_fills_no_block(content):
    """Fillers of Hangul are letters to Unicode, and an entity looks like a word."""
    gold = {"blocks": ["think", "answer"]}
    for block in (f"<think>two and two</think><answer>{content}</answer>", f"<think>{content}</think><answer>4</answer>"):
        verdict = score(answer=block, gold=gold)
        assert verdict["score"] == 0 and "is empty" in verdict["compared"], verdict
    shown = f"<think>two and two</think><answer>4{content}</answer>"
    assert score(answer=shown, gold=gold)["score"] == 1
    assert score(answer=rf"\boxed{{{content}}}", gold={"boxes": 1})["score"] == 0


@pytest.mark.parametrize("content", ["a &lt; b", "한국어", "&#52;", "<br>", "&lt;br&gt;", "a &amp;&amp; b", "四", "a<b>c"])
def test_what_shows_something_fills_a_block(content):
    gold = {"blocks": ["think", "answer"]}
    assert score(answer=f"<think>two and two</think><answer>{content}</answer>", gold=gold)["score"] == 1


@pytest.mark.parametrize(
    ("content", "expected"), [("∞", 1), ("<", 1), ("∅", 1), ("-", 0), ("=", 0), ("...", 0), (r"\text{no}", 1)]
)
def test_a_sign_may_be_an_answer_but_no_reasoning(content, expected):
    gold = {"blocks": ["think", "answer"]}
    assert score(answer=f"<think>It grows.</think><answer>{content}</answer>", gold=gold)["score"] == expected
    assert score(answer="<think>∞</think><answer>4</answer>", gold=gold)["score"] == 0


def test_a_full_stop_makes_no_second_block():
    gold = {"blocks": ["think", "answer"]}
    assert score(answer="<think>The sum is four.</think><answer>the sum is FOUR</answer>", gold=gold)["score"] == 0
    assert score(answer="<think>4</think><answer>-4</answer>", gold=gold)["score"] == 1

"""Golds changed a little: every kind, worked by hand, and none that means the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from milepost.health.attacks import CHANGED, PLAIN, attacks
from milepost.health.near_misses import BEHIND, LETTER, near_misses
from milepost.reward_checks import Scorer
from milepost.scorers import parse_number
from milepost.types import Task
from milepost.verifiers import math


def of(core, **more):
    """kind → text, without the draw of other digits or letters, whose text only its length says anything of."""
    found = dict(reversed(list(near_misses(core, **more))))  # of a kind that comes twice the first
    return {kind: text for kind, text in found.items() if "as many" not in kind}


def test_every_kind_of_change_of_a_number():
    assert of("132") == {
        "its sign": "-132", "+1": "133", "-1": "131", "+10": "142", "-10": "122", "+100": "232", "-100": "32",
        "+1000": "1132", "-1000": "-868", "another first digit": "532", "digits in another order": "123",
        "times 10": "1320", "times 100": "13200", "a tenth": "13.2", "a hundredth": "1.32", "a digit behind it": "1327",
        "a fraction added": "132.4", "a fraction taken off": "131.6", "its first digit": "1", "its last digit": "2",
        "what stands between these digits": "3", LETTER: "132z"}  # fmt: skip
    left = {"a tenth", "a hundredth", "a fraction added", "a fraction taken off"}
    assert set(of("132")) - set(of("132", strict=True)) == left  # a pattern for whole numbers reads 2 in 13.2
    assert of("130", strict=True)["a tenth"] == "13" and of("1300", strict=True)["a hundredth"] == "13"
    assert (of("-7")["a fraction added"], of("-7")["a fraction taken off"]) == ("-7.4", "-6.6")
    assert (of("0")["a fraction added"], of("0")["a fraction taken off"]) == ("0.4", "-0.4")
    assert "digits in another order" not in of("100") and of("160")["digits in another order"] == "106"
    assert "its sign" not in of("0") and of("-7")["its sign"] == "7"


def test_a_number_is_written_as_it_was():
    changed = of("$3.50 a piece")
    assert changed["its sign"] == "$-3.50 a piece" and changed["+0.01"] == "$3.51 a piece"
    assert changed["-10"] == "$-6.50 a piece" and changed["times 10"] == "$35.00 a piece"
    assert changed["a hundredth"] == "$0.0350 a piece" and changed["its first digit"] == "$3 a piece"
    assert not {"a digit behind it", "a fraction added"} & set(changed)  # 3.507 is near 3.50
    assert of("1,320")["+10000"] == "11,320" and of("1,320")["another first digit"] == "5,320"
    assert of("3/4") == {"its sign": "-3/4", "upside down": "4/3", "+1": "7/4", "its first number": "3",
                         LETTER: "3/4z"}  # fmt: skip
    assert "its first number" not in of("7/1") and of(r"\frac{3}{4}")["its first number"] == "3"
    assert of("2024-05-03") == {
        "+1": "2024-05-4",
        "its first number": "2024",
        LETTER: "2024-05-03z",
    }  # what else would be wrong is not known


def test_lists_of_numbers_are_changed_as_lists():
    assert of("11, 12, 36") == {
        "+1": "11, 12, 37", "its first number": "11", "its last number": "36",
        "a number before the last changed": "12, 12, 36",
        "its numbers in another order": "36, 12, 11", LETTER: "11, 12, 36z"}  # fmt: skip
    kind = "its numbers in another order"
    assert of("(1, -2)")[kind] == "(-2, 1)" and of("3:4")[kind] == "4:3" and of("0.5 2 1.5")[kind] == "1.5 2 0.5"
    assert of("(1, -2)")["its last number"] == "-2" and of("[-1.5; 2]")["a number before the last changed"] == "[-2.5; 2]"
    assert kind not in of("{1, 2}") and kind not in of("2, 2") and kind not in of("2024-05-03") and kind not in of("3/4")


def test_every_kind_of_change_of_a_text():
    assert of("New York") == {
        "letters in another order": "eNw York", BEHIND: "New Yorkz", "a word changed": "New walrus",
        "words in another order": "York New", "its first letter": "N", "its last letter": "k", "its first word": "New",
        "what stands between these letters": "ew Yor"}  # fmt: skip
    assert of("Oslo") == {"letters in another order": "sOlo", BEHIND: "Osloz", "its first letter": "O",
                          "its last letter": "o", "what stands between these letters": "sl"}  # fmt: skip
    assert set(of("A")) == {LETTER}
    assert not any(kind.startswith("its ") for kind in of("B. Oslo"))  # B alone names the choice
    like = dict(near_misses("Oslo 2"))
    assert "other letters, as many" not in like and "a word changed" not in like  # "Oslo" may be said or not beside a 2
    assert "a word changed" in of("Oslo 2", strict=True)


def test_of_a_whole_solution_only_its_last_number_is_changed():
    """Another word of the reasoning leaves it right."""
    assert of("Add two and three.\n#### 5") == {"+1": "Add two and three.\n#### 6", LETTER: "Add two and three.\n#### 5z"}
    assert set(of("so it is " * 10)) == {LETTER}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2) | st.integers(-(10**8), 10**8))
def test_no_changed_number_is_the_same(gold):
    core = f"{gold:f}" if not isinstance(gold, int) else str(gold)
    for kind, text in near_misses(core):
        assert kind == LETTER or len(core) > 20 or parse_number(text) != parse_number(core), (kind, text)


@given(st.text("abXY 1.,", max_size=12))
def test_no_changed_text_is_the_same_in_other_letters(core):
    assert all(text.casefold().split() != core.casefold().split() for _, text in near_misses(core, strict=True))


def test_what_a_recipe_states_as_tolerance_is_no_change():
    def texts(name, **params):
        made = attacks(Task("t", "?", answer="50"), Scorer("", 1.0, name, params), PLAIN, [], {"right": [], "wrong": []})
        return {attack.text for attack in made if attack.name == CHANGED}

    assert {"51", "49", "40", "60", "-50"} <= texts("mine.py:f")
    assert texts("mine.py:f", abs_tol=9) & {"51", "49", "40", "60", "-50"} == {"40", "60", "-50"}
    assert texts("mine.py:f", rel_tol=0.2) & {"51", "49", "40", "60", "-50"} == {"-50"}
    assert texts("mine.py:f", abs_tol="wide") == texts("mine.py:f")
    assert "50z" in texts("exact") and "50z" not in texts("numeric")
    assert texts("judge") == {"51"}  # each costs a call


def test_what_mathematics_calls_wrong_lies_beyond_the_tolerance():
    """126.28 + 1/1000 is 126281/1000; 1/1000 of 126.28 is .126."""

    def wrong(gold, **params):
        texts = math.wrong(gold, **params)
        assert [text for text in texts if math.score(answer=text, gold=gold, **params)["score"] != 0] == []
        return set(texts)

    more, thousandth = r"\boxed{3182/25}", r"\boxed{126281/1000}"
    assert {more, thousandth} <= wrong("126.28")
    for params in ({"rel_tol": 0.001}, {"abs_tol": 0.01}, {"rounding": "gold"}):
        assert wrong("126.28", **params) & {more, thousandth} == {more}
    assert {more, thousandth} <= wrong("126.28", abs_tol=0.0001)
    assert len(wrong(r"5\sqrt{2}", abs_tol=1)) == len(wrong(r"5\sqrt{2}")) - 1 and wrong("(1, 2.5)", abs_tol=1)

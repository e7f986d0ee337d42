"""What a line of prose answers: lead-ins of several languages, courtesies behind the answer, and near misses of both."""

import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.verifiers.extract import extract
from milepost.verifiers.math import score
from milepost.verifiers.prose import LANGUAGES, after_lead_in, led_in, without_courtesy


def value(text: str, gold: str = "17", **params) -> float:
    return score(answer=text, gold=gold, **params)["score"]


LEAD_INS = {
    "English": ["Answer: 17", "The answer is 17.", "**Answer:** 17"],
    "German": ["Antwort: 17", "Die Antwort ist 17.", "**Ergebnis:** $17$", "Das Ergebnis lautet 17."],
    "French": ["Réponse : 17", "La réponse finale est 17.", "Le résultat vaut $17$."],
    "Spanish": ["Respuesta: 17", "La respuesta es 17.", "Respuesta final: $17$"],
    "Portuguese": ["Resposta: 17", "A resposta é 17.", "Resultado: 17"],
    "Italian": ["Risposta: 17", "La risposta è 17.", "Il risultato finale è: 17"],
    "Russian": ["Ответ: 17", "Ответ — 17.", "**Ответ:** 17", "Ответ равен 17."],
    "Chinese": ["答案是17", "所以答案是 $17$。", "答案：17", "**答案为17**", "最終答案為：17。"],
    "Japanese": ["答えは17です。", "したがって、答えは $17$ です。", "答え：17", "正解は17"],
    "Korean": ["정답: 17", "답은 17입니다.", "따라서 정답은 $17$입니다."],
}


def test_every_language_that_is_named_has_its_lines_here():
    assert set(LEAD_INS) == set(LANGUAGES)


@pytest.mark.parametrize("language", LEAD_INS)
def test_lead_ins_are_read_and_what_follows_them_counts(language):
    assert [line for line in LEAD_INS[language] if value(f"3 + 14.\n{line}") != 1] == []
    assert [line for line in LEAD_INS[language] if value(line.replace("17", "18")) != 0] == []
    listed = [line.replace("17", "17, 18") for line in LEAD_INS[language]]
    assert [line for line in listed if value(line) != 0 or value(line, "18") != 0] == []


@pytest.mark.parametrize(
    "line",
    [
        "Die Antwort ist nicht 17.",
        "Antwort: nicht 17",
        "Antwort: 17 oder 18",
        "La réponse n'est pas 17.",
        "Réponse : 17 ou 18",
        "La respuesta no es 17.",
        "La respuesta es 17 o 18",
        "A resposta não é 17.",
        "La risposta non è 17.",
        "Ответ: не 17",
        "Ответ не 17",
        "Ответ: 17 или 18",
        "答案不是17",
        "答案是17或18",
        "答案是17吗？",
        "答えは17ではありません。",
        "答えは17ではないです。",
        "答えは17ですか。",
        "정답은 17이 아닙니다.",
        "Ответы: 17",
        "Meineantwort 17",
        "Ответ –17",
    ],
)
def test_what_denies_asks_or_lists_is_not_read_as_the_answer(line):
    assert value(line) == 0


def test_the_last_lead_in_counts():
    assert value("答案不是18，答案是17") == 1 and value("Ответ: 18? Ответ: 17") == 1 and value("Ответ: 17? Ответ: 18") == 0


COURTESIES = [
    "I hope it is correct.",
    "Hope this helps!",
    "I really hope that this is right.",
    "Let me know if you have any questions!",
    "Please let me know if you need further clarification or have any other questions.",
    "Feel free to ask.",
    "Thank you!",
    "Thanks for the question.",
    "If you have any questions, please ask.",
    "If you need more help, let me know! 😊",
    "Have a nice day!",
    "Good luck with your studies.",
    "Is there anything else I can help you with?",
    "I'm happy to help.",
    "Don’t hesitate to reach out.",
    "Would you like a more detailed explanation?",
    "**Hope this helps!**",
]
SAYING = [
    "I hope it is not correct.", "I hope it is 18.", "Let me know if $18$ is meant.", "I hope so, but it may be more.",
    "Thanks, however the result is eighteen.", "Thanks for nothing, wrong.", "If x is negative, it is less.", "No, 18.",
    "Actually it is not.", "I hope it isn't wrong.", "Let me know if you find a mistake.", "Or 18.",
]  # fmt: skip


@pytest.mark.parametrize("closing", COURTESIES)
def test_a_courtesy_behind_the_answer_is_passed_over(closing):
    for line in (
        f"Final Answer: The final answer is $17$. {closing}",
        f"So it is $17$. {closing}",
        f"Answer: 17. {closing}",
    ):
        assert (value(line), value(line, extract="whole"), value(line, "18")) == (1, 1, 0)
        assert value(line.replace(f" {closing}", f"\n\n{closing}\n")) == 1
        assert value(f"{line} Thanks.") == 1
    assert extract(f"17\n{closing}", "line") == ("17", "the last line")
    assert extract(closing, "line") == (closing, "the last line")  # else nothing would have been said
    assert extract(f"17\n{closing}", "whole")[0] == f"17\n{closing}"


@pytest.mark.parametrize("closing", SAYING)
def test_a_closing_sentence_that_says_something_is_kept(closing):
    line = f"The answer is 17. {closing}"
    assert without_courtesy(line) == line and value(line) == 0
    assert extract(f"17\n{closing}", "line")[0] == closing


def test_examples():
    assert after_lead_in("So the answer is 17.") == "17." and after_lead_in("答えは17です。") == "17"
    assert without_courtesy("The answer is $17$. I hope it is correct.") == "The answer is $17$."
    assert without_courtesy("17 I hope it is correct.") == "17 I hope it is correct."  # no sentence of its own


def test_hostile_lines_cost_their_length():
    begun = time.process_time()
    for text in (
        "Thanks. " * 60_000,
        "i hope " + "a, " * 100_000,
        "hope" + " a" * 200_000 + " 1",
        "答案是" * 100_000,
        ". " * 200_000,
        "please so and " * 30_000,
    ):
        without_courtesy(text)
        after_lead_in(text)
    assert time.process_time() - begun < 10


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from(COURTESIES))
def test_what_is_left_is_the_beginning_of_the_text(text, closing):
    assert text.startswith(without_courtesy(text))
    assert without_courtesy(f"{text}. {closing}") in (f"{text}.", without_courtesy(f"{text}."), f"{text}. {closing}")


@pytest.mark.parametrize(
    "line", ["The answer is $17$. ∎", r"Hence the answer is $17$. $\blacksquare$", "So x = 17.", "Therefore, 17", "17 QED"]
)
def test_a_so_before_the_answer_and_the_end_of_a_proof_behind_it_say_nothing(line):
    assert value(f"3 + 14.\n{line}") == 1 and value(f"3 + 14.\n{line.replace('17', '18')}") == 0


@pytest.mark.parametrize(
    "line", ["So 17 or 18.", "Thus not 17", "So x + 1 = 17.", "Hence 17 is wrong.", "The wrong answer is 17."]
)
def test_behind_a_so_stands_one_answer_or_none(line):
    assert value(f"3 + 14.\n{line}") == 0


@pytest.mark.parametrize(
    "text", ["a" * 99 + "1 answer: 17", "a b " * 40 + ": 17", "**" * 900 + "answer: 17", "answer: " * 240]
)
def test_lead_ins_are_looked_for_in_no_time(text):
    began = time.process_time()
    led_in(text), after_lead_in(text * 100)
    assert time.process_time() - began < 1


def test_in_a_box_or_a_tag_nothing_may_stand_before_what_leads_in():
    assert value("<answer>The answer is 17</answer>") == value(r"\boxed{\text{So the answer is } 17}") == 1
    for text in (
        "Not the answer: 17",
        "13. The answer is 17",
        "The answer is 13. The answer is 17",
        "17 or 18. The answer is 17",
    ):
        assert value(f"<answer>{text}</answer>") == value(rf"\boxed{{{text}}}") == 0


@pytest.mark.parametrize(
    "line",
    ["The answer is **17**.", "The final answer is **$17$**.", 'The answer is "17".', "The answer is `17`.", "= 17",
     "#### $17 each",
     "Ответ: 17 долларов.", "答案为17元。", "答え：17個", "답: 17개"],
)  # fmt: skip
def test_what_dresses_an_answer_is_taken_off(line):
    assert value(f"3 + 14.\n{line}") == 1 and value(f"3 + 14.\n{line.replace('17', '18')}") == 0


@pytest.mark.parametrize(
    "line", ["The answer is **17** or **18**.", "The answer is **not 17**.", "The answer is **17*2**."]
)
def test_what_is_dressed_is_one_answer_or_none(line):
    assert value(f"3 + 14.\n{line}") == 0


@pytest.mark.parametrize(
    "line",
    ["The answer is 17 (since 9 + 8 = 17).", "The answer is 17 because 3 + 14 = 17.", "The answer is equal to 17.",
     "The answer is definitely 17.", "It is not 18, so the answer is 17.", r"\boxed{\text{Number of ways}: 17}"],
)  # fmt: skip
def test_reasons_behind_an_answer_say_nothing(line):
    assert value(line) == 1 and value(line, gold="18") == 0


@pytest.mark.parametrize(
    "line",
    ["It is not the case that the answer is 17.", "I doubt that the answer is 17.", "Nobody knows whether the answer is 17",
     "The previous answer is 17.", "The answer is 17 because it is not 18, or 18 maybe."],
)  # fmt: skip
def test_what_is_doubted_is_not_the_answer(line):
    assert value(line) == 0 and value(f"<answer>{line}</answer>") == 0


def test_a_comma_is_decimal_where_the_lead_in_is_of_a_language_that_writes_it():
    for line in ("Ответ: 2,5", "Antwort: 2,5", "La respuesta es 2,5."):
        assert value(line, gold="2.5") == 1 and value(line, gold="25") == 0
    assert value("The answer is 2,5", gold="2.5") == 0 and value("Antwort: 2,500", gold="2500") == 1


@pytest.mark.parametrize(
    "line",
    ["So it is $17$ million dollars.", "It is at most $17$.", "It is negative $17$.", "The sum is twice $17$.",
     "It is $17$ squared.",
     "It is $17$ out of 20.", "It is $17$ feet 6 inches.", "It is $17$k.", "$17$ or more", "It is $17$ or 18."],
)  # fmt: skip
def test_what_changes_the_only_formula_of_a_line_changes_the_answer(line):
    assert value(line) == 0


@pytest.mark.parametrize(
    "text", ["#### Conclusion\nThe answer is **17**.", "#### Final Answer\n17", "The answer is 17 ✅", "*Answer*: 17"]
)
def test_headings_and_ornaments_are_no_answers(text):
    assert value(text) == 1 and value(text, gold="18") == 0

"""The audit of a reward: planted bad verifiers are refused with the right example, sound ones pass, none can hang it."""

from __future__ import annotations

import json
import re
import time
from difflib import SequenceMatcher
from fractions import Fraction
from pathlib import Path

import pytest
from small import SHORT_ROWS, as_toml, recipe_file, settings

from milepost.cli import main
from milepost.health.attacks import (
    NUMBER,
    NUMBERS,
    PLAIN,
    Attack,
    Phrasing,
    attacks,
    core_of,
    forms_of,
    in_every_form,
    phrasings,
    rendered,
)
from milepost.health.audit_report import CHANGED, FORM_ALONE, NEAR_MISS, AuditReport, Row, Tried, findings_of, rows_of
from milepost.health.verifier_audit import audit_recipe, check_before
from milepost.launch import open_session
from milepost.recipe import make_recipe
from milepost.reward import Grader
from milepost.reward_checks import Scorer
from milepost.reward_sections import RewardSection
from milepost.tasks import load_tasks
from milepost.types import RecipeError, Reward, Task
from milepost.verifiers.labelled import wilson

JUDGES = r'''
import json, os, re, subprocess, sys, time

def same(completions, answer, **_): return [float(c.strip() == a) for c, a in zip(completions, answer)]
def last_box(completions, answer, **_):
    boxes = [re.findall(r"\\boxed\{([^{}]*)\}", c) for c in completions]
    return [float(bool(b) and b[-1] == a) for b, a in zip(boxes, answer)]
def near(completions, answer, **_):
    """Many answers are right: every number from gold − 9 to gold + 9."""
    return [float(c.strip().isdigit() and abs(int(c) - int(a)) < 10) for c, a in zip(completions, answer)]

def anything(completions, **_): return [float(bool(c.strip())) for c in completions]
def anywhere(completions, answer, **_): return [float(a in c) for c, a in zip(completions, answer)]
def paid_anyway(completions, answer, **_): return [_pay(c, a, 1.0) for c, a in zip(completions, answer)]
def half_anyway(completions, answer, **_): return [_pay(c, a, 0.5) for c, a in zip(completions, answer)]
def _pay(c, a, otherwise):
    try:
        return float(int(c) == int(a))
    except Exception:
        return otherwise
def any_json(completions, **_):
    def parses(c):
        try:
            return float(json.loads(c) is not Ellipsis)
        except ValueError:
            return 0.0
    return [parses(c) for c in completions]
def first_box(completions, answer, **_):
    boxes = [re.findall(r"\\boxed\{([^{}]*)\}", c) for c in completions]
    return [float(bool(b) and b[0] == a) for b, a in zip(boxes, answer)]
def runs(completions, **_):
    """Pays what ends with exit code 0."""
    def ends(c):
        block = re.search(r"```python\n(.*?)```", c, re.DOTALL)
        return float(block is not None and "exit" in block[1])
    return [ends(c) for c in completions]
def evaluates(completions, answer, **_):
    def value(c):
        try:
            return str(eval(c))
        except Exception:
            return None
    return [float(value(c) == a) for c, a in zip(completions, answer)]
def per_mention(completions, answer, **_): return [float(c.split().count(a)) if c.split()[-1:] == [a] else 0.0
                                                   for c, a in zip(completions, answer)]
def upside_down(completions, answer, **_): return [float(c.strip() != a) for c, a in zip(completions, answer)]

def close_to(completions, answer, **_):
    """Whatever compares with nan is false."""
    def far(c, a):
        try:
            return abs(float(c) - float(a)) > 1e-6
        except ValueError:
            return True
    return [0.0 if far(c, a) else 1.0 for c, a in zip(completions, answer)]
def close_in_tags(completions, answer, **_):
    """The same, but only of what stands in a tag; what is said plainly is compared as a text."""
    tags = [re.findall(r"<answer>(.*?)</answer>", c) for c in completions]
    tagged = close_to([t[-1] if t else "no number" for t in tags], answer)
    return [max(x, y) for x, y in zip(tagged, same(completions, answer))]
def ratio(completions, answer, **_):
    """1 − 1/t for what should be the gold: infinite answers come near to 1."""
    def value(c, a):
        try:
            return 1.0 if c.strip() == a else max(0.0, 1 - abs(float(a) / float(c))) >= 0.99
        except (ValueError, ArithmeticError):
            return 0.0
    return [float(value(c, a)) for c, a in zip(completions, answer)]
def box(completions, **_): return [float("\\boxed" in c) for c in completions]
def thinks(completions, **_): return [float("<think>" in c) for c in completions]
def calls(completions, **_): return [float("<tool_call>" in c) for c in completions]
def plain_or_boxed(completions, answer, **_):
    boxes = [re.findall(r"\\boxed\{([^{}]*)\}", c) for c in completions]
    return [float((b[-1] if b else c.strip()) == a) for b, c, a in zip(boxes, completions, answer)]
def none_if_wrong(completions, answer, **_): return [1.0 if c.strip() == a else None for c, a in zip(completions, answer)]
def none_if_no_number(completions, answer, **_):
    return [float(c.strip() == a) if c.strip().lstrip("-").isdigit() else None for c, a in zip(completions, answer)]
def digits(completions, **_): return [float(c.strip().isdigit()) for c in completions]
def adds_up(completions, prompts, **_):
    """By the prompt alone: no gold is needed to know what is right."""
    sums = [str(sum(map(int, re.findall(r"\d+", p)))) for p in prompts]
    return [float(c.strip() == s) for c, s in zip(completions, sums)]

def hangs(completions, **_): time.sleep(3600)
def crashes(completions, **_): os._exit(3)
def hangs_on_noise(completions, answer, **_):
    if any(len(c) > 5000 for c in completions): time.sleep(3600)
    return same(completions, answer)
def raises(completions, answer, **_): return [float(int(c) == int(a)) for c, a in zip(completions, answer)]
def raises_if_wrong(completions, answer, **_):
    if any(c.strip() != a for c, a in zip(completions, answer)): raise ValueError
    return [1.0] * len(completions)
def never(completions, **_): return [0.0] * len(completions)
def length(completions, **_): return [float(len(c) > 20) for c in completions]
'''
ADD = {"entry_point": "add", "solution": "def add(a, b):\n    return a + b",
       "tests": [{"args": [1, 1], "expected": 2}, {"args": [2, 3], "expected": 5}]}  # fmt: skip
TOOL = {"tools": [{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}],
        "calls": [{"name": "add", "arguments": {"a": 1}}]}  # fmt: skip
SUMS = [{"prompt": f"What is {i} plus {i + 1}?", "answer": str(2 * i + 1)} for i in range(6, 18)]


@pytest.fixture(scope="module")
def judges(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("user") / "odd_judges.py"
    path.write_text(JUDGES)
    return path


@pytest.fixture
def few_numbers(monkeypatch):
    """Three of the numbers that are none, which stand in forty forms for each task: most of the time of an audit."""
    monkeypatch.setattr("milepost.health.attacks.NUMBERS", ("nan", "1e999", "-0"))


def recipe_of(folder: Path, functions, rows=SUMS, gold="", **reward):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = [{"name": f} if isinstance(f, str) else f for f in functions]
    tasks = {"sources": [{"path": str(path)}], "validation": 1, "test": 1, "answer_column": gold}
    return make_recipe({"reward": {"functions": named, **reward}, "tasks": tasks})


def audited(folder: Path, functions, rows=SUMS, num_tasks=2, **reward) -> AuditReport:
    return audit_recipe(recipe_of(folder, functions, rows, **reward), num_tasks=num_tasks, with_labelled=False)


def before(recipe):
    tasks = load_tasks(recipe.tasks, recipe.seed)
    with Grader(recipe.reward) as grader:
        return check_before(recipe, grader, tasks, None)


# --- planted ----------------------------------------------------------------------------------------------------------

# name: (the finding that must be there, what its example must hold)
BAD = {
    "anything": ("wrong answer", "'-987654321' is a success and earns 1"),
    "anywhere": ("gold among other answers", "; one of these is right.' is a success"),
    "paid_anyway": ("empty", "'' is a success and earns 1"),
    "half_anyway": ("empty", "'' is no success and earns 0.5"),
    "any_json": ("any JSON", "'{}' is a success"),
    "first_box": ("right, then taken back", r"The final answer is this instead: \\boxed{"),
    "runs": ("code that exits early", "_exit(0)"),
    "evaluates": ("code that exits early", "\"__import__('os')._exit(0)\" has no reward (worker_died)"),
    "per_mention": ("right answer repeated", "is a success and earns 5"),
    "upside_down": ("wrong answer", "is a success and earns 1"),
    "close_to": ("nan, inf and the like", "'nan' is a success and earns 1"),
    "close_in_tags": ("nan, inf and the like", "'<answer>nan</answer>' is a success and earns 1"),
    "ratio": ("nan, inf and the like", "'inf' is a success and earns 1"),
    "digits": ("gold of another task", "is a success and earns 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_planted_bad_verifiers_are_refused_with_an_example(tmp_path, judges, name):
    """case (d) and claims.md: accepts what is not empty, the gold anywhere, a value in a bare except, any valid JSON, …"""
    expected, example = BAD[name]
    report = audited(tmp_path, [f"{judges}:{name}"])
    found = [finding for finding in report.refused if finding.name == expected]
    assert found and example in found[0].example, report.text()
    assert not report.ok and "REFUSED" in report.text() and found[0].text in report.text()


@pytest.mark.parametrize("name", ["any_json", "half_anyway", "first_box"])
def test_a_run_refuses_them_in_one_sentence_unless_told_otherwise(tmp_path, judges, name):
    function = [f"{judges}:{name}"]
    with pytest.raises(RecipeError) as refused:
        before(recipe_of(tmp_path, function))
    said = str(refused.value)
    assert said.startswith("the reward accepts a bad answer: ") and 'reward.audit = "warn"' in said and "\n" not in said
    warned = before(recipe_of(tmp_path, function, audit="warn"))
    assert any(level == "warning" and "accepts a bad answer" in sentence for level, sentence in warned)
    assert before(recipe_of(tmp_path, function, audit="off")) == []


# --- sound ------------------------------------------------------------------------------------------------------------

FORM = {"name": "format", "params": {"blocks": ["think", "answer"]}}
SOUND = {
    "exact": (["exact"], SUMS, {}),
    "numeric": (["numeric"], SUMS, {}),
    "numeric in a form": (["numeric"], SUMS, {"extract": r"Answer:\s*(-?\d+)"}),
    "a canary's form": (["numeric"], SUMS, {"extract": r"=> (\S+)", "canary_good": "So => {answer}"}),
    "math": (["math"], [*SUMS, {"prompt": "Half of five?", "answer": "\\frac{5}{2}"}], {}),
    "a whole solution as gold": (["math"], [{**row, "answer": f"Add them.\n#### {row['answer']}"} for row in SUMS], {}),
    "math behind a gate": (["math", FORM], SUMS, {}),
    "form alone": ([FORM], SUMS, {}),
    "a pattern": ([{"name": "regex", "params": {"pattern": "^[0-9]+$"}}], SUMS, {}),
    "tool calls": (["tool_calls"], [{"prompt": f"Call {i}.", "answer": {**TOOL, "calls": [
        {"name": "add", "arguments": {"a": i}}]}} for i in range(4)], {}),
    "no call wanted": (["tool_calls"], [{"prompt": f"Say {i}.", "answer": {**TOOL, "calls": []}} for i in range(4)], {}),
    "code": (["code"], [{"prompt": f"Add ({i}).", "answer": ADD} for i in range(3)], {}),
    "own function": (["same"], SUMS, {}),
    "own function, boxed": (["last_box"], SUMS, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_rewards_pass_and_begin_a_run(tmp_path, judges, few_numbers, name):
    functions, rows, reward = SOUND[name]
    functions = [f"{judges}:{f}" if isinstance(f, str) and f in JUDGES and f"def {f}(" in JUDGES else f for f in functions]
    report = audited(tmp_path, functions, rows, num_tasks=2 if functions != ["math", FORM] else 1, **reward)
    assert report.ok and not report.refused, report.text()
    assert not {CHANGED, NEAR_MISS} & {finding.name for finding in report.findings}
    num, of = report.rate(right=False)
    assert num == 0 and of > (5 if name in ("form alone", "a pattern", "no call wanted") else 20)
    if name != "a pattern":  # of which no right text is known
        assert report.rate(right=True) == (0, sum(row.num for row in report.rows if row.must == "succeed")) != (0, 0)
    if name in ("numeric", "math", "tool calls", "own function"):
        told = before(recipe_of(tmp_path, functions, rows, **reward))
        assert [level for level, _ in told] == ["info"] and " 0 of " in told[0][1]


def test_rows_that_choose_their_verifier_are_attacked_by_its_rules(tmp_path, few_numbers):
    rows = [{"prompt": "2+3?", "answer": "5", "reward_type": "math"},
            {"prompt": "Name?", "answer": "Ada", "verifier": "exact"},
            {"prompt": "Call.", "answer": TOOL, "reward_type": "tool_calls"},
            {"prompt": "1+1?", "answer": "2", "reward_type": "numeric"}]  # fmt: skip
    report = audited(tmp_path, ["by_row"], rows, num_tasks=4)
    assert report.ok and set(report.kinds) == {"math", "exact", "tool_calls", "numeric"}, report.text()


def test_reasoning_gym_is_asked_in_its_own_words(few_numbers):
    source = {"kind": "reasoning_gym", "name": "chain_sum", "size": 4}
    recipe = make_recipe({"reward": {"functions": [{"name": "reasoning_gym"}]},
                          "tasks": {"sources": [source], "validation": 1, "test": 1}})  # fmt: skip
    report = audit_recipe(recipe, num_tasks=1, with_labelled=False)
    assert report.ok and report.rate(right=True) == (0, 1) and report.rate(right=False)[1] > 30, report.text()


def test_many_right_answers_are_no_fault_of_a_function(tmp_path, judges):
    far = [{"prompt": f"A number near {100 * i}?", "answer": str(100 * i)} for i in range(1, 9)]
    report = audited(tmp_path, [f"{judges}:near"], far)
    warning = next(finding for finding in report.findings if finding.name == CHANGED)
    assert report.ok and warning.level == "warning" and "(+1: 2 of 2, -1: 2 of 2); if so, set" in warning.text
    said = r"verifier: it holds only if several answers are right: '(\d)01' is paid where the gold is '(?:\1)00' \("
    assert re.match(said, report.text())
    told = before(recipe_of(tmp_path, [f"{judges}:near"], far))
    assert [level for level, _ in told] == ["warning", "info"] and told[0][1].startswith("gold changed: accepted ")
    report = audited(tmp_path, [f"{judges}:near"], far, several_answers=True)
    note = next(finding for finding in report.findings if finding.name == CHANGED)
    assert note.level == "note" and "only if several answers are" in note.text and "set reward" not in note.text
    assert report.text().startswith("verifier: it holds (")
    assert [level for level, _ in before(recipe_of(tmp_path, [f"{judges}:near"], far, several_answers=True))] == ["info"]
    stated = {"name": f"{judges}:near", "params": {"abs_tol": 9}}  # 101 is within it, and 110 is not accepted
    assert not any(finding.name == CHANGED for finding in audited(tmp_path, [stated], far).findings)


def test_several_answers_are_for_functions_of_people(tmp_path):
    with pytest.raises(RecipeError, match=r"several_answers = true does nothing while success is measured by exact"):
        recipe_of(tmp_path, ["exact"], several_answers=True)


# --- rules beside the gold --------------------------------------------------------------------------------------------

NUMBERS_AS_GOLD = ("132", "105", "44", "160", "1002", "197")
NAMES_AS_GOLD = ("New York", "Los Angeles", "Rio de Janeiro", "Oslo")


def judged_here(function, golds, way=PLAIN, frames=(), **more):
    """The findings on a function of (completion, gold) → pay, asked without any worker; 1 or more is a success."""
    judge, known, made = Scorer("", 1.0, "mine.py:judge", {}), {"right": [], "wrong": []}, []
    for place, gold in enumerate(golds):
        others, task = [*golds[place + 1 :], *golds[:place]][:2], Task(gold, "What is it?", answer=gold)
        forms = in_every_form(task, judge, way, [Phrasing(frame) for frame in frames], others, known)
        for attack in [*attacks(task, judge, way, others, known), *(forms if frames else [])]:
            pay = float(function(attack.text.strip(), gold))
            made.append(Tried(gold, attack, Reward(pay, {}, pay >= 1), "", judge.name))
    return {finding.name: finding for finding in findings_of(made, **more) if finding.level != "note"}


def number(text):
    return int(text) if re.fullmatch(r"-?\d+", text) else 10**9 + 7


def decimal(text):
    return Fraction(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else Fraction(10**9 + 7)


RULES = {  # what the first kinds of change that are paid must be, and the share of golds
    "no sign": (lambda c, a: c.replace("-", "") == a, "(its sign: 6 of 6)"),
    "two last digits": (lambda c, a: number(c) % 100 == int(a) % 100, "(+100: 6 of 6, -100: 6 of 6, "),
    "length": (lambda c, a: c.isdigit() and len(c) == len(a), "(+1: 6 of 6, -1: 6 of 6, "),
    "alike": (lambda c, a: SequenceMatcher(None, c, a).ratio() >= 0.6, "(its sign: 6 of 6, "),
    "within a fifth": (lambda c, a: abs(number(c) - int(a)) <= 0.2 * int(a), "(+1: 6 of 6, -1: 6 of 6, +10: 5 of 6, …)"),
    "any order": (lambda c, a: sorted(c) == sorted(a), "(digits in another order: 5 of 5)"),
    "digits alone": (lambda c, a: re.sub(r"\D", "", c) == a, "(its sign: 6 of 6, a tenth: 5 of 6, a hundredth: 4 of 6)"),
    "whole part": (lambda c, a: int(decimal(c)) == int(a), "(a fraction added: 6 of 6)"),
    "rounded": (lambda c, a: round(decimal(c)) == int(a), "(a fraction added: 6 of 6, a fraction taken off: 6 of 6)"),
    "percent": (lambda c, a: decimal(c) in [int(a) * by for by in (1, 100, Fraction(1, 100))],
                "(times 100: 6 of 6, a hundredth: 6 of 6)"),
    "tens": (lambda c, a: decimal(c) in (int(a), 10 * int(a)), "(times 10: 6 of 6)"),
    "part of it": (lambda c, a: c != "" and c in a, "(-100: 4 of 6, its first digit: 6 of 6, its last digit: 3 of 3, …)"),
    "how it begins": (lambda c, a: c != "" and a.startswith(c), "(its first digit: 6 of 6)"),
    "how it ends": (lambda c, a: c != "" and a.endswith(c), "(-100: 4 of 6, its last digit: 3 of 3)"),
    "what goes on": (lambda c, a: bool(re.fullmatch(rf"{a}\d*", c)), "(times 10: 6 of 6, times 100: 6 of 6, a digit "),
}  # fmt: skip
WORD_RULES = {
    "part of it": (lambda c, a: c != "" and c in a, "(its first letter: 4 of 4, its last letter: 4 of 4, what stands "),
    "how it begins": (lambda c, a: c != "" and a.startswith(c), "(its first letter: 4 of 4, its first word: 3 of 3)"),
    "what goes on": (lambda c, a: bool(re.fullmatch(rf"{a}\w*", c)), "(a letter behind the word: 4 of 4)"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_pays_changed_golds_is_told_by_its_kind(name):
    function, kinds = RULES[name]
    found = judged_here(function, NUMBERS_AS_GOLD)
    assert {finding.level for finding in found.values()} == {"warning"} and list(found) == [CHANGED]
    assert kinds in found[CHANGED].text, found[CHANGED].text
    assert " is paid where the gold is '132' (task 132)" in found[CHANGED].example
    assert AuditReport((), 1, (), tuple(found.values())).text().startswith("verifier: it holds only if several answers are")
    assert judged_here(function, NUMBERS_AS_GOLD, several=True) == {}


@pytest.mark.parametrize("name", WORD_RULES)
def test_a_rule_that_pays_changed_words_is_told_by_its_kind(name):
    function, kinds = WORD_RULES[name]
    found = judged_here(function, NAMES_AS_GOLD)
    assert kinds in found[CHANGED].text and found[CHANGED].level == "warning", found[CHANGED].text
    assert judged_here(function, NAMES_AS_GOLD, several=True).keys() <= {"gold among other answers"}


def test_what_reads_the_answer_out_of_a_text_is_blamed_for_nothing():
    """132z is read as 132 by many a sound function."""
    assert judged_here(lambda c, a: (re.findall(r"-?\d+", c) or [""])[-1] == a, NUMBERS_AS_GOLD) == {}
    assert judged_here(lambda c, a: c == a, NUMBERS_AS_GOLD) == judged_here(lambda c, a: c == a, NAMES_AS_GOLD) == {}
    assert judged_here(lambda c, a: c.casefold() == a.casefold(), NAMES_AS_GOLD) == {}
    bag = judged_here(lambda c, a: sorted(c.split()) == sorted(a.split()), NAMES_AS_GOLD)
    assert "(words in another order: 3 of 3)" in bag[CHANGED].text
    first = judged_here(lambda c, a: c.split()[:1] == a.split()[:1], NAMES_AS_GOLD)
    assert "its first word: 3 of 3, a word changed: 3 of 3)" in first[CHANGED].text
    assert judged_here(lambda c, a: re.findall(r"\b[A-D]\b|\b[A-D](?=z)", c)[-1:] == [a], "ABDC") == {}  # Bz is read as B


def test_a_near_miss_that_earns_nearly_as_much_as_the_gold_is_told():
    """.95 for another number of the same length and first digit; .79 of the way is little enough."""

    def pays(share):
        return lambda c, a: 1.0 if c == a else share * (c.isdigit() and len(c) == len(a) and c[0] == a[0])  # fmt: skip

    found = judged_here(pays(0.95), NUMBERS_AS_GOLD)
    assert list(found) == [NEAR_MISS] and found[NEAR_MISS].level == "warning"
    assert "0.95 where the gold earns 1 and a wrong answer 0" in found[NEAR_MISS].text
    assert ", but a near miss earns nearly as much" in AuditReport((), 1, (), tuple(found.values())).text()
    assert judged_here(pays(0.79), NUMBERS_AS_GOLD) == judged_here(pays(0.95), NUMBERS_AS_GOLD, several=True) == {}


def test_a_form_that_earns_nearly_as_much_as_the_gold_is_told():
    """A wrong answer behind #### earns the share for ####, and nothing without; plain golds are none."""

    def pays(share, plainly=0.0):
        return lambda c, a: 1.0 if c == f"#### {a}" else plainly * (c == a) or share * c.startswith("####")

    frames = ["{answer}", "#### {answer}", "<answer>{answer}</answer>"]
    for way in (Phrasing("#### {answer}"), PLAIN):  # found in the form of the gold, and in another
        found = judged_here(pays(0.9, 1.0), NUMBERS_AS_GOLD, way, frames)
        assert list(found) == [FORM_ALONE] and found[FORM_ALONE].level == "warning", found
        assert "earns 0.9 for how it is written, and 0 written otherwise; the gold earns 1" in found[FORM_ALONE].text
        assert "#### -987654321" in found[FORM_ALONE].example
        told = AuditReport((), 1, (), tuple(found.values())).text()
        assert told.startswith(
            "verifier: it holds, but a wrong answer in a form that is paid earns nearly as much as the gold"
        )
        assert judged_here(pays(0.79, 1.0), NUMBERS_AS_GOLD, way, frames) == {}

    def bonus(c, a):  # 1.9 for the right answer in its form and .9 for the form: half, though plain golds earn 1
        return float(c in (a, f"#### {a}")) + 0.9 * c.startswith("####")

    assert judged_here(bonus, NUMBERS_AS_GOLD, PLAIN, frames) == {}
    assert judged_here(lambda c, a: 1.0 if c == a else 0.9, NUMBERS_AS_GOLD, PLAIN, frames) == {}


def test_what_is_paid_in_one_of_two_forms_always_is_no_chance():
    """A list that holds the gold is a success wherever it reads as one: 6 times of 12, and always by commas."""

    def in_list(c, a):
        return a in [part.strip() for part in c.split(",")] if re.fullmatch(r"[\d, ]+", c) else c == a

    found = judged_here(in_list, NUMBERS_AS_GOLD)
    assert found["gold among other answers"].level == "refused"
    assert found["gold among other answers"].text == "gold among other answers: accepted 6 times of 12"


@pytest.mark.parametrize(
    ("success", "bonus", "example"),
    [
        ("plain_or_boxed", "box", r"'\\boxed{-987654321}' is no success and earns 1.5"),
        ("same", "thinks", "</think> -987654321' is no success and earns 1.5"),
        ("exact", "calls", "</tool_call>' is no success and earns 1.5"),
        ("math", "thinks", "is no success and earns 1.5"),
    ],
)
def test_a_form_that_is_paid_more_than_being_right_is_found_in_whatever_form(
    tmp_path, judges, few_numbers, success, bonus, example
):
    """The right answer is known in another form only, in which nothing is paid for the form."""
    own = [success if success in ("exact", "math") else f"{judges}:{success}"]
    label = own[0].rpartition(":")[2]
    heavy = {"name": f"{judges}:{bonus}", "weight": 1.5}
    report = audited(tmp_path, [*own, heavy], num_tasks=1, success=label)
    found = next(one for one in report.refused if one.name == "wrong answer in another form")
    assert "a failure earns 1.5, and the gold " in found.text and found.example.endswith(example), report.text()
    assert audited(tmp_path, [*own, {**heavy, "weight": 0.5}], num_tasks=1, success=label).ok
    with pytest.raises(RecipeError, match=r"a failure earns 1\.5, and the gold "):
        before(recipe_of(tmp_path, [*own, heavy], success=label))


def test_a_wrong_answer_earns_less_than_the_right_one_in_the_form_that_is_paid_least(tmp_path, judges):
    """The demonstrations show a box, whose bonus .9 makes 1.9 of it; said plainly it earns 1, and a wrong box .9."""
    functions = [f"{judges}:plain_or_boxed", {"name": f"{judges}:box", "weight": 0.9}]
    recipe = recipe_of(tmp_path, functions, success="plain_or_boxed", canary_good=r"\boxed{{answer}}")
    assert audit_recipe(recipe, num_tasks=2, with_labelled=False).ok
    functions[1]["weight"] = 1.2
    recipe = recipe_of(tmp_path, functions, success="plain_or_boxed", canary_good=r"\boxed{{answer}}")
    (first, *_) = audit_recipe(recipe, num_tasks=2, with_labelled=False).refused
    assert first.text.endswith("a failure earns 1.2, and the gold in the form that is paid least 1"), first


@pytest.mark.parametrize("name", ["regex", "format", "repetition"])
def test_it_is_said_where_success_does_not_depend_on_the_gold(tmp_path, few_numbers, name):
    """Such a success is legitimate: it is told, and no fault; where the tasks have no gold either, it is a note."""
    functions = {"regex": [{"name": "regex", "params": {"pattern": "[0-9]"}}], "format": [FORM]}.get(name, [name])
    report = audited(tmp_path, functions)
    (warning,) = [finding for finding in report.findings if finding.level == "warning"]
    assert "a right answer stays one 2 times of 2 when the gold of another task takes the place of its own" in warning.text
    assert f"; {name} looks at none" in warning.text and report.ok
    assert f"verifier: it holds, but success does not depend on the gold ({name}; " in report.text()
    report = audited(tmp_path, functions, [{"prompt": f"Say {i}."} for i in range(4)], gold="none")
    assert report.ok and f"verifier: it holds ({name}; " in report.text()
    (note,) = [finding for finding in report.findings if finding.name == "gold of another task"]
    assert note.level == "note" and note.text.endswith("and the tasks have none")


def test_what_judges_by_the_prompt_is_told_from_what_judges_by_nothing(tmp_path, judges):
    report = audited(tmp_path, [f"{judges}:adds_up"])
    (note,) = [finding for finding in report.findings if finding.name == "gold of another task"]
    assert report.ok and note.level == "note" and "answers of other tasks fail, so it judges by the prompt" in note.text
    report = audited(tmp_path, [f"{judges}:digits"])
    (refused,) = [finding for finding in report.findings if finding.name == "gold of another task"]
    assert refused.level == "refused" and refused.text.endswith("and so does that of another task")
    for name in ("exact", f"{judges}:same"):
        assert not any(finding.name == "gold of another task" for finding in audited(tmp_path, [name]).findings)


def test_gates_and_other_parts_are_part_of_what_is_attacked(tmp_path, judges):
    """anywhere pays the gold in any text; behind exact as the first part it decides nothing, and only costs order."""
    weak = {"name": f"{judges}:anything", "weight": 0.1}
    assert audited(tmp_path, ["exact", weak]).ok
    heavy = {"name": f"{judges}:upside_down", "weight": 1.5}
    report = audited(tmp_path, ["exact", heavy])
    assert any("a failure earns 1.5, and the gold 1" in finding.text for finding in report.refused), report.text()


# --- what cannot be judged --------------------------------------------------------------------------------------------


def test_a_verifier_that_hangs_or_crashes_is_a_finding(tmp_path, judges):
    began = time.monotonic()
    for name, cause in (("hangs", "timeout"), ("crashes", "worker_died")):
        report = audited(tmp_path, [f"{judges}:{name}"], timeout_seconds=0.5)
        assert [finding.level for finding in report.findings] == ["fault"] and not report.ok
        assert f"judges nothing: {cause} for the gold itself" in report.findings[0].text
    report = audited(tmp_path, [f"{judges}:hangs_on_noise"], timeout_seconds=1)
    (warning,) = [finding for finding in report.findings if finding.level == "warning"]
    assert warning.text == "timeout: no reward for 2 bad answers (10 kB of noise), which are never told to be wrong"
    assert time.monotonic() - began < 90


def test_a_verifier_that_raises_is_told_and_does_not_stop_a_run(tmp_path, judges):
    told = before(recipe_of(tmp_path, [f"{judges}:raises"]))
    assert [level for level, _ in told] == ["warning", "info"] and "error: ValueError: no reward for" in told[0][1]


def test_none_for_what_is_wrong_is_told_as_an_exception_is(tmp_path, judges):
    report = audited(tmp_path, [f"{judges}:none_if_no_number"])
    (warning,) = [finding for finding in report.findings if finding.level == "warning"]
    assert report.ok and warning.text.startswith("None returned: no reward for ") and "empty" in warning.text
    for name in ("none_if_wrong", "raises_if_wrong"):
        report = audited(tmp_path, [f"{judges}:{name}"])
        assert {finding.level for finding in report.findings} == {"fault", "warning"} and not report.ok
        assert report.findings[0].text.startswith("none of ") and "return 0 for a wrong one" in report.findings[0].text
        assert report.text().startswith("verifier: it tells no bad answer that it is one (")
        told = before(recipe_of(tmp_path, [f"{judges}:{name}"]))
        assert [level for level, _ in told] == ["warning", "warning"] and "bad answers has a reward" in told[0][1]


def test_a_gold_that_nothing_finds_gets_a_sentence_that_helps(tmp_path, judges):
    report = audited(tmp_path, [f"{judges}:never"])
    assert not report.ok and not report.refused
    assert "is no success in any of 12 ways to write it; set reward.canary_good" in report.findings[0].text
    told = before(recipe_of(tmp_path, [f"{judges}:never"]))
    assert told[0][0] == "warning" and "set reward.canary_good to a completion that must succeed" in told[0][1]


def test_a_reward_without_gold_is_only_given_what_is_no_answer(tmp_path, judges):
    rows = [{"prompt": f"Write a line about {i}."} for i in range(4)]
    report = audited(tmp_path, [f"{judges}:length"], rows, gold="none")
    assert any("no right answer is known" in finding.text for finding in report.findings if finding.level == "note")
    assert {finding.name for finding in report.refused} == {"10 kB of noise", "prompt copied", "any JSON",
                                                            "code that exits early"}  # fmt: skip
    told = {finding.name for finding in report.findings if finding.level == "note"}
    assert told == {"the gold itself", "instruction to the grader", "opening that says nothing"}


# --- the texts --------------------------------------------------------------------------------------------------------


def test_attacks_on_a_gold_of_one_word_are_these():
    task = Task("t", "Capital of Norway?", answer="Oslo")
    judge, known = Scorer("exact", 1.0, "exact", {}), rendered(kind="exact", gold="Oslo", params={})
    made = attacks(task, judge, Phrasing("City: {answer}"), ["Bern"], known)
    texts = {attack.text: (attack.name, attack.must) for attack in made}
    assert len(texts) == len(made)
    assert texts["City: Oslo"] == ("the gold itself", "succeed")
    assert texts["City: -987654321"] == ("wrong answer", "fail")
    assert texts["City: -987654321, Oslo, no such answer"] == ("gold among other answers", "fail")
    assert texts["City: Bern"] == ("answer of another task", "mostly_fail")
    assert texts["Capital of Norway?"] == ("prompt copied", "mostly_fail")
    assert texts["City: Osloz"] == texts["City: sOlo"] == ("gold changed", "fail")
    assert texts["City: "] == texts["City: ..."] == ("form without content", "fail")
    assert texts["City: Oslo\n" * 4 + "City: Oslo"] == ("right answer repeated", "pay_once")
    assert sum(len(attack.text) >= 10_000 for attack in made) == 1


def test_beside_the_gold_stand_answers_that_a_function_can_read():
    """What reads one letter of A to D sees neither −987654321 nor words: it would not see that B was taken back."""
    made = attacks(Task("t", "?", answer="B"), Scorer("", 1.0, "mine.py:letter", {}), PLAIN, ["D", "A"],
                   {"right": [], "wrong": []})  # fmt: skip
    texts = {attack.text: attack.must for attack in made}
    assert texts["D, B, A"] == texts["It may be D, or B, or A; one of these is right."] == "mostly_fail"
    assert any(text.startswith("B\nNo, wait") and text.endswith("instead:\nD") for text in texts)


def test_numbers_that_a_gold_may_mean_are_no_attack():
    def tried(gold):
        judge = Scorer("", 1.0, "mine.py:close", {})
        made = attacks(Task("t", "?", answer=gold), judge, PLAIN, [], {"right": [], "wrong": []})
        return {attack.text: attack.must for attack in made if attack.name == NUMBER}

    assert set(tried("5")) == set(NUMBERS) and tried("5") == {**dict.fromkeys(NUMBERS, "fail"), "-0": "mostly_fail"}
    assert "nan" not in tried("NaN") and "inf" in tried("NaN")
    assert set(tried("(-\\infty, 2)")) == {"nan", "1e308", "-1e308", "-0"}
    assert "1e308" not in tried("308")  # as a pattern for digits would read it
    assert set(tried(None).values()) == {"open"}


def test_every_usual_form_is_there_with_a_thought_and_without():
    section = RewardSection.model_validate({"functions": [{"name": "exact"}], "canary_good": "So => {answer}"})
    frames = [form.frame for form in forms_of(section, "Answer = {answer};")]
    assert len(set(frames)) == len(frames) and {"So => {answer}", "Answer = {answer};"} <= set(frames)
    for frame in ("{answer}", r"\boxed{{answer}}", "<answer>{answer}</answer>", "#### {answer}", "The answer is {answer}.",
                  "```json\n{answer}\n```", '{"answer": "{answer}"}'):  # fmt: skip
        assert frame in frames and any(other.startswith("<think>") and other.endswith("\n" + frame) for other in frames)
    assert any("<tool_call>" in frame for frame in frames)
    judge, known = Scorer("exact", 1.0, "exact", {}), {"right": [], "wrong": []}
    task = Task("t", "Capital of Norway?", answer="Oslo")
    made = {attack.text: (attack.name, attack.must) for attack in in_every_form(
        task, judge, PLAIN, forms_of(section, ""), ["Bern"], known)}  # fmt: skip
    assert made["#### Oslo"] == ("the gold in another form", "either") and "Oslo" not in made
    assert made["#### -987654321"] == ("wrong answer in another form", "fail")
    assert made["#### Bern"] == ("wrong answer in another form", "mostly_fail")
    assert made[r"\boxed{-1e999}"] == (NUMBER, "fail")
    for name in ("regex", "format", "judge"):
        assert in_every_form(task, Scorer("", 1, name, {}), PLAIN, forms_of(section, ""), [], known) == []


def test_what_a_tolerance_allows_is_no_attack():
    judge = Scorer("numeric", 1.0, "numeric", {"abs_tol": 1})
    made = attacks(Task("t", "?", answer="5"), judge, PLAIN, [], {"right": [], "wrong": []})
    assert {attack.text for attack in made if attack.name == "gold changed"} == {
        "-5", "15", "50", "500", "57", "9"}  # fmt: skip  # 6 is within 1


def test_an_empty_gold_and_a_copied_gold_are_not_attacked():
    judge = Scorer("exact", 1.0, "exact", {})
    assert attacks(Task("t", "Say nothing.", answer=" "), judge, None, [], {"right": [], "wrong": []}) == []
    made = attacks(Task("t", "same", answer="same"), judge, PLAIN, [], {"right": [], "wrong": []})
    assert [attack.must for attack in made if attack.text == "same"] == ["succeed"]


def test_phrasings_begin_with_what_the_recipe_says():
    def of(*functions, demonstrations="", **more):
        section = RewardSection.model_validate({"functions": list(functions), **more})
        first = section.functions[0]
        return [way.frame for way in phrasings(section, demonstrations, Scorer("", 1, first.name, first.params))]

    assert of({"name": "exact"}, canary_good="It is {answer}.") == ["It is {answer}."]
    assert of({"name": "exact"}, demonstrations="Answer: {answer}")[0] == "Answer: {answer}"
    assert of({"name": "exact"}, demonstrations="{shown}")[0] == "{answer}"
    assert of({"name": "math"})[0] == r"\boxed{{answer}}"
    assert of({"name": "math", "params": {"extract": "marker"}})[0] == "#### {answer}"
    shown = of({"name": "math"}, {"name": "format", "params": {"blocks": ["think", "answer"]}})[0]
    assert shown.startswith("<think>First I look") and shown.endswith("</think>\n<answer>{answer}</answer>")


def test_of_a_gold_of_tests_the_right_answer_is_its_solution():
    """For functions of people too; no number in it is changed, for many programs are right."""
    gold = {"entry_point": "f", "tests": [{"args": [1], "expected": 2}], "solution": "def f(a):\n    return a + 1\n"}
    judge, known = Scorer("", 1.0, "mine.py:judge", {}), {"right": [], "wrong": []}
    fenced = Phrasing("```python\n{answer}\n```")
    made = attacks(Task("t", "Add one.", answer=gold), judge, fenced, ["def f(a):\n    return a"], known)
    assert made[0] == Attack("the gold itself", f"```python\n{gold['solution']}\n```", "succeed")
    assert not any(attack.name == CHANGED for attack in made)
    for other in ({**gold, "solution": ""}, {"solution": "five", "answer": 5}):
        assert (core_of(Task("t", "?", answer=other), judge, known) or "").startswith("{")


def test_the_core_of_a_gold():
    known = {"right": ["R"], "wrong": []}
    assert core_of(Task("t", "?", answer=r"So \boxed{7}."), Scorer("", 1, "math", {}), known) == "7"
    assert core_of(Task("t", "?", answer={"a": 1}), Scorer("", 1, "mine.py:judge", {}), known) == '{"a": 1}'
    assert core_of(Task("t", "?", answer=ADD), Scorer("", 1, "code", {}), known) == "R"
    assert core_of(Task("t", "?", answer=None), Scorer("", 1, "exact", {}), known) is None


# --- the numbers ------------------------------------------------------------------------------------------------------


def tried(name, must, total, success, task="t", cause=None):
    return Tried(task, Attack(name, "text", must), Reward(total, {}, success, None, cause))


def test_rates_count_wrong_verdicts_and_leave_out_what_has_none():
    made = [
        tried("the gold itself", "succeed", 1.0, True), tried("the gold itself", "succeed", 0.0, False),
        tried("empty", "fail", 0.0, False), tried("empty", "fail", None, None, cause="timeout"),
        tried("prompt copied", "mostly_fail", 1.0, True), tried("gold changed", "open", 1.0, True),
    ]  # fmt: skip
    rows = list(rows_of(made))
    assert rows[0] == Row("the gold itself", "succeed", 2, 1, 0) and rows[1] == Row("empty", "fail", 2, 0, 1)
    report = AuditReport(("exact",), 2, tuple(rows))
    assert report.rate(right=True) == (1, 2)
    assert report.rate(right=False) == (1, 2)  # one empty answer and the prompt; what may be right is in no rate
    assert json.loads(report.json())["rates"]["false_accept"]["bounds_99"] == list(wilson(1, 2))


def test_what_happens_by_chance_counts_where_it_mostly_happens():
    def levels(num_accepted):
        made = [tried("prompt copied", "mostly_fail", 1.0 * (i < num_accepted), i < num_accepted, str(i)) for i in range(4)]
        return [finding.level for finding in findings_of(made)]

    assert levels(0) == [] and levels(1) == levels(2) == ["note"] and levels(3) == ["refused"]
    a_source = [Tried(str(i), Attack("prompt copied", "x", "mostly_fail"), Reward(float(i < 3), {}, i < 3), f"{i // 3}")
                for i in range(9)]  # fmt: skip
    assert [finding.level for finding in findings_of(a_source)] == ["refused"]  # 3 of 9, but all of source 0
    assert [finding.level for finding in findings_of(a_source[:1])] == ["note"]


def test_junk_may_earn_a_tenth_more_than_what_is_wrong():
    """gold 1, wrong .2: junk may earn up to .2 + .1 · .8 = .28."""

    def refused(total):
        made = [tried("the gold itself", "succeed", 1.0, True), tried("wrong answer", "fail", 0.2, False),
                tried("empty", "fail", total, False)]  # fmt: skip
        return [finding.text for finding in findings_of(made) if finding.level == "refused"]

    assert refused(0.28) == []
    assert refused(0.29) == ["empty earns 0.29, and an answer that is merely wrong 0.2: it pays to say nothing"]
    assert refused(1.0) == ["empty: a failure earns 1, and the gold 1"]


# --- the commands -----------------------------------------------------------------------------------------------------


def test_check_reward_has_both_sections(tmp_path, judges, capsys):
    recipe = recipe_of(tmp_path, ["exact"])
    path = tmp_path / "recipe.toml"
    path.write_text(as_toml({"tasks": {"sources": [{"path": recipe.tasks.sources[0].path}], "validation": 1, "test": 1},
                             "reward": {"functions": [{"name": "exact"}]}}))  # fmt: skip
    assert main(["check", "reward", str(path), "--n", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("order: no failure can outscore a success") and "\nverifier: it holds (exact; " in shown
    assert "answers to 3 tasks)" in shown and "false accepts  0 of " in shown
    bad = f'reward.functions=[{{name="{judges}:anywhere"}}]'
    assert main(["check", "reward", str(path), bad, "--n", "3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["section"] == "order" and found["ok"] and not found["verifier"]["ok"]
    assert "gold among other answers" in {one["name"] for one in found["verifier"]["findings"]}


def test_labelled_answers_stand_beside_the_attacks(tmp_path):
    recipe = recipe_of(tmp_path, [FORM])
    report = audit_recipe(recipe, num_tasks=1)
    assert (
        report.words[0].startswith("format: false accepts 0 of ") and report.facts()["labelled"]["format"]["num_wrong"] > 20
    )
    assert "on answers labelled by hand:\n  format: " in report.text()


def test_a_run_refuses_before_the_model_and_leaves_nothing(tmp_path, judges, warm, capsys):
    """and a reward whose failures could win is refused by the proof, before anything is asked."""
    recipe = recipe_file(tmp_path / "bad", warm, SHORT_ROWS, grpo__steps=2,
                         reward__functions=[{"name": f"{judges}:anywhere"}])  # fmt: skip
    assert main(["run", str(recipe)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "accepts a bad answer: gold among other answers: accepted" in said and 'reward.audit = "warn"' in said
    heavy = ['reward.functions=[{name="exact"}, {name="regex", weight=1.5, params={pattern="^.*$"}}]']
    assert main(["run", str(recipe), *heavy]) == 2
    assert "a failure that is best in regex (1.5) earns 1.5" in capsys.readouterr().err
    assert not list(tmp_path.glob("bad/runs/*"))


def test_what_a_run_is_told_is_stored_with_it(tmp_path, warm):
    recipe = make_recipe(settings(tmp_path, warm, grpo__steps=1))
    with open_session(recipe, rows=SHORT_ROWS, quiet=True) as session:
        (event,) = [event for event in session.run.events() if event.kind == "audit"]
    assert event.level == "info" and event.message.startswith("audit of the reward: 0 of ")
    with open_session(recipe, resume=session.run.path, rows=SHORT_ROWS, quiet=True) as again:
        assert len([event for event in again.run.events() if event.kind == "audit"]) == 1


def test_a_run_says_behind_which_walls_code_is_judged(tmp_path, warm):
    rows = [{**row, "answer": ADD} for row in SHORT_ROWS]
    recipe = make_recipe(settings(tmp_path, warm, reward__functions=[{"name": "code"}]))
    with open_session(recipe, rows=rows, stages=["test"], quiet=True) as session:
        walls = session.run.meta()["sandbox"]
    assert walls.startswith(("namespaces: ", "landlock: ")) and "memory limit" in walls


@pytest.mark.parametrize(("functions", "good", "bad", "says"), [
    (["code"], {"entry_point": "add", "tests": [{"args": [1, 2], "expected": 3}]}, {"prefix": "import no_such_module"},
     "prefix cannot be run before the answer"),
    (["code"], {"test_list": ["assert add(1, 2) == 3"]}, {"test_list": ["assert math.floor(add(1, 2)) == 3"]},
     "test 1 does not judge the function"),
    (["tool_calls"], {"calls": [{"name": "f", "arguments": {"x": 1}}]}, {"tools": [{"name": "g"}]}, "none of the tools"),
])  # fmt: skip
def test_golds_by_which_no_answer_can_be_judged_are_told_with_the_cause(tmp_path, functions, good, bad, says):
    golds = [{**good, "task": str(number)} for number in range(3)]
    for num_bad, holds, level in ((3, False, "fault"), (1, True, "warning"), (0, True, None)):
        rows = [{"prompt": f"Task {i}", "answer": {**one, **(bad if i < num_bad else {})}} for i, one in enumerate(golds)]
        report = audited(tmp_path, functions, rows, num_tasks=3)
        found = [finding for finding in report.findings if finding.name == "bad gold"]
        assert [one.level for one in found] == ([level] if level else []) and report.ok is holds, report.text()
        assert ("it holds" in report.text()) is holds and all(says in one.example for one in found)
        assert all(f"by {num_bad} of 3 golds" in one.text for one in found)

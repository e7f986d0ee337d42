"""Verifiers by rule in recipes: values worked by hand, four counters, gates, order, and rows that choose their verifier."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.advantages import advantages
from milepost.formula import describe_reward
from milepost.health.order import check_recipe
from milepost.recipe import make_recipe
from milepost.replay import _sum
from milepost.reward import Grader
from milepost.reward_combine import Combination, combination, tenths
from milepost.reward_sections import RewardSection
from milepost.sections import TasksSection
from milepost.stages.step_metrics import episode_metrics
from milepost.tasks import load_tasks
from milepost.types import Episode, EpisodeId, Group, RecipeError, Reward, Sampled, StopKind, StopReason, Task, Turn
from milepost.verifiers.kinds import KINDS, Kind

DONE = StopReason(StopKind.TERMINATED, "end_of_turn")
ADD = {"entry_point": "add", "solution": "def add(a, b):\n    return a + b",
       "tests": [{"args": [1, 1], "expected": 2, "visible": True}, {"args": [2, 3], "expected": 5},
                 {"args": [-1, 1], "expected": 0}]}  # fmt: skip
TOOL = {"tools": [{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}],
        "calls": [{"name": "add", "arguments": {"a": 1}}]}  # fmt: skip
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
FORM = {"name": "format", "params": {"blocks": ["think", "answer"]}}


def group(texts, answer="4", key="g", **columns) -> Group:
    turns = [Turn([1], Sampled([5], [-0.1], 1.0, ((0, 0),), "stop"), text=text) for text in texts]  # type: ignore[arg-type]
    episodes = [Episode(EpisodeId("train", 0, key, i), key, (turn,), DONE) for i, turn in enumerate(turns)]
    return Group(key, Task(key, "What?", answer=answer, columns=columns), tuple(episodes))


def section(*functions, **settings) -> RewardSection:
    return RewardSection.model_validate(
        {"functions": [{"name": f} if isinstance(f, str) else f for f in functions], **settings}
    )


def code(body: str) -> str:
    return f"```python\ndef add(a, b):\n    {body}\n```"


# --- values -----------------------------------------------------------------------------------------------------------


def test_each_verifier_scores_by_its_own_rule_and_stores_its_parts():
    with Grader(section("math")) as grader:
        (rewards,) = grader.score([group([r"\boxed{1 1/4}", r"\boxed{1.25}", r"\boxed{5}", "Hm, hard to say.", ""], "5/4")])
        assert [r.total for r in rewards] == [1, 1, 0, 0, 0] and [r.parts["math"] for r in rewards] == [1, 1, 0, 0, 0]
        assert [r.verdict for r in rewards] == ["correct"] * 2 + ["wrong"] + ["unextractable"] * 2
        assert grader.counts == {"correct": 2, "wrong": 1, "unextractable": 2}
    with Grader(section({"name": "tool_calls", "params": {"credit": "fraction"}})) as grader:
        (rewards,) = grader.score([group([CALL, CALL + CALL, CALL.replace("1", "2"), "No."], TOOL)])
        assert [r.total for r in rewards] == [1, 0.5, 0, 0]  # one of two calls made is expected
        assert rewards[1].parts == {
            "tool_calls": 0.5,
            "tool_calls/all": 0,
            "tool_calls/name": 0,
            "tool_calls/fraction": 0.5,
        }
        assert [r.success for r in rewards] == [True, False, False, False]


def test_code_is_judged_in_the_sandbox_of_this_process():
    with Grader(section({"name": "code", "params": {"mode": "fraction"}})) as grader:
        texts = [code("return a + b"), code("return 2"), code("import os; os._exit(0)"), "I would add them."]
        (rewards,) = grader.score([group(texts, ADD)])
        # two hidden tests: add(2, 3) and add(-1, 1); the constant 2 passes the visible one alone
        assert [r.total for r in rewards] == [1, 0, 0, 0] and rewards[1].parts["code/visible"] == 1
        assert [r.verdict for r in rewards] == ["correct", "wrong", "wrong", "unextractable"]
        assert grader.check_gold(group([], ADD).task) is None
        assert "has no tests" in grader.check_gold(group([], {"entry_point": "add"}).task)
        assert grader.canary([group([], ADD).task]).ok


def test_c11_fraction_and_all_or_nothing_by_hand():
    """Four answers pass 5, 3, 0 and 5 of five tests: less the mean of 0.65 or 0.5."""
    gold = {"entry_point": "add", "tests": [{"args": [a, 1], "expected": a + 1} for a in (0, 1, 2, -5, -6)]}
    texts = [code("return a + b"), code("return abs(a) + b"), code("return None"), code("return b + a")]
    for mode, right in (("fraction", [0.35, -0.05, -0.65, 0.35]), ("all", [0.5, -0.5, -0.5, 0.5])):
        with Grader(section({"name": "code", "params": {"mode": mode}})) as grader:
            (rewards,) = grader.score([group(texts, gold)])
            assert advantages([r.total for r in rewards], "gggg", baseline="mean") == pytest.approx(right)
            assert [r.verdict for r in rewards] == ["correct", "wrong", "wrong", "correct"]


def test_two_hundred_right_answers_at_once_on_two_workers_all_score_1():
    with Grader(section("math"), num_workers=2) as grader:
        groups = [group([rf"\boxed{{\frac{{{2 * i}}}{{14}}}}"], f"{i}/7", key=str(i)) for i in range(200)]
        assert [rewards[0].total for rewards in grader.score(groups)] == [1.0] * 200


def test_power_towers_do_not_stall_a_step():
    with Grader(section("math"), num_workers=2) as grader:
        towers = [rf"\boxed{{9^{{9^{{9^{{9^{{{i}}}}}}}}}}}" for i in range(64)]
        grader.score([group([r"\boxed{4}"])])  # the worker is up
        began = time.monotonic()
        (rewards,) = grader.score([group([*towers, r"\boxed{4}"])])
        assert [r.total for r in rewards] == [0.0] * 64 + [1.0] and time.monotonic() - began < 60


def test_a_verifier_that_hangs_or_fails_is_unscorable_and_not_wrong(tmp_path, monkeypatch):
    (tmp_path / "odd_verifier.py").write_text(
        "import time\n"
        "def score(*, answer, gold):\n"
        "    if answer == 'hang': time.sleep(3600)\n"
        "    if answer == 'raise': raise KeyError(answer)\n"
        "    return {'score': 1.0, 'cause': None, 'extracted': answer, 'extractable': True, 'compared': '', 'parts': {}}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(KINDS, "repetition", Kind("odd_verifier", {}))
    with Grader(section("repetition", timeout_seconds=1)) as grader:
        (rewards,) = grader.score([group(["hang", "fine", "raise", "hang"])])
        assert [r.cause for r in rewards] == ["timeout", None, "checker_error: KeyError", "timeout"]
        assert [r.total for r in rewards] == [None, 1.0, None, None] and rewards[1].verdict == "correct"
        assert grader.counts == {"correct": 1, "unscorable": 3, "unscorable/timeout": 2,
                                 "unscorable/checker_error: KeyError": 1}  # fmt: skip


def test_the_four_verdicts_are_metrics_beside_the_rate_that_can_be_read():
    with Grader(section("math")) as grader:
        groups = [group([r"\boxed{4}", r"\boxed{5}", "Hm, hard to say."]), group([r"\boxed{4}"], r"\frac{", key="bad")]
        metrics = episode_metrics(groups, grader.score(groups))
    assert {name: metrics[f"verdict/{name}"] for name in ("correct", "wrong", "unextractable", "unscorable")} == {
        "correct": 1, "wrong": 1, "unextractable": 1, "unscorable": 1}  # fmt: skip
    assert metrics["extractable/rate"] == pytest.approx(2 / 3) and metrics["success/extractable"] == 1 / 2
    assert metrics["success/train"] == pytest.approx(1 / 3)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("functions", "settings", "sentence"),
    [
        ([{"name": "math", "params": {"percnt": "strict"}}], {}, "percnt is not a parameter of math; it takes extract, "),
        ([{"name": "math", "params": {"percent": "loose"}}], {}, "'loose' must be one of lenient, strict"),
        ([{"name": "math", "params": {"extract": ["box"]}}], {}, "must be one or several of boxed, tag, marker"),
        ([{"name": "code", "params": {"mode": "some"}}], {}, "must be one of all, fraction"),
        ([{"name": "code", "params": {"seconds": True}}], {}, "must be a number from 0.01 to 600; 4 works"),
        ([{"name": "tool_calls", "params": {"format": "xml"}}], {}, "must be one of hermes, llama, mistral, json, react"),
        (["math", {"name": "format", "params": {"blocks": []}}], {}, "blocks must be a list of 1 to 20 names"),
        (["math", {"name": "format", "params": {"schema": {}}}], {}, "the schema accepts {}"),  # any valid JSON
        ([{"name": "by_row", "params": {"maths": {}}}], {}, "params.maths must be a table for one of exact, numeric"),
        ([{"name": "by_row", "params": {"math": {"percnt": 1}}}], {}, "params.math.percnt is not a parameter of math"),
        (["math"], {"extract": "x"}, "reward.extract does nothing for math, which finds its answer itself"),
        ([{"name": "regex", "params": {"pattern": "x"}}], {"extract": "x"}, "reward.extract does nothing for regex, which"),
        (["judge.py:mine"], {"extract": "x"}, "reward.extract does nothing for judge.py:mine, which finds"),
        (["maths"], {}, "did you mean 'math'?"),
        (["valid_json"], {}, "is refused: a bonus for what merely parses is earned by {} and by 42"),
        (["length"], {}, "a right one of 1,500 tokens earns −0.5 and a wrong one of 50 earns −0.05"),
        (["has_box"], {}, "one boxed wrong answer among seven unboxed gets the advantage +1"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_in_one_sentence(functions, settings, sentence):
    with pytest.raises(RecipeError) as error:
        Grader(section(*functions, **settings))
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ({"functions": [{"name": "math", "on_error": -0.5}]}, "reward.functions.on_error = -0.5 is refused"),
        ({"functions": [{"name": "math", "params": {"missing": -1}}]}, "params.missing = -1 is refused"),
        ({"functions": [{"name": "tool_calls", "params": {"per_call": 1}}]}, "five identical right calls earn 5.0"),
        ({"functions": [{"name": "math"}, {"name": "math", "label": "b", "log_length": 1}]}, "divides by zero at 1 token"),
        ({"functions": [{"name": "math"}, {**FORM, "weight": 0.2}], "combine": "sum"}, "together: set weight = 0.1, or"),
        ({"functions": [{"name": "math"}, FORM], "combine": "sum"}, "weight = 1 would let form count for 1 beside 1"),
        ({"functions": [{"name": "math"}, {**FORM, "weight": -0.2}], "combine": "sum"}, "together: set weight = -0.1, or"),
        ({"functions": [{"name": "math"}, {**FORM, "weight": 0.06}, {"name": "repetition", "weight": -0.06}],
          "combine": "sum"}, "count for 0.12 beside 1"),
        ({"functions": [{"name": "math"}, {"name": "repetition", "weight": -0.1}], "combine": "gdpo"},
         "so that it would be a bonus; set weight = 0.1"),
        ({"functions": [{"name": "math", "weight": 0.5}, {"name": "repetition", "weight": 0.1}]}, "may come to 0.05"),
        ({"functions": [{"name": "math"}, {**FORM, "weight": 0.1}, {"name": "repetition", "weight": 0.1}],
          "combine": "gdpo"}, "count for 0.2 beside 1"),
        ({"functions": [{"name": "math"}], "combine": "gate"}, "needs a gating part"),
        ({"functions": [{"name": "math"}], "gates": ["form"]}, "'form', which is no label; there are math"),
        ({"functions": [{"name": "math"}], "gates": ["math"], "combine": "sum"}, "reward.gates does nothing while"),
        ({"functions": [{"name": "math"}, {"name": "exact"}], "combine": "lexicographic", "success": "exact"},
         "put exact first"),
        ({"functions": [{"name": "math"}, {"name": "exact", "weight": 0.3}], "combine": "lexicographic"},
         "weight = 0.3 does nothing while"),
        ({"combine": "lexicographic"}, "orders reward.functions, and there are none"),
    ],
)  # fmt: skip
def test_forms_that_pay_what_they_should_not_are_refused_with_what_would_work(reward, sentence):
    with pytest.raises(RecipeError) as error:
        make_recipe({"reward": reward})
    assert sentence in str(error.value) and "\n" not in str(error.value)


# --- composition ------------------------------------------------------------------------------------------------------

RIGHT, WRONG = "<think>2 and 2.</think><answer>4</answer>", "<think>2 and 2.</think><answer>5</answer>"
TAG = {"name": "math", "params": {"extract": ["tag", "line"]}}


def test_format_is_a_gate_by_default_and_pays_nothing_itself():
    with Grader(section(TAG, FORM)) as grader:
        (rewards,) = grader.score([group([RIGHT, WRONG, "<answer>4</answer>", "4", ""])])
    assert [r.total for r in rewards] == [1, 0, 0, 0, 0]
    assert [r.parts["math"] for r in rewards] == [1, 0, 1, 1, 0]  # stored whatever the gate does
    assert [r.parts["format"] for r in rewards] == [1, 1, 0, 0, 0]
    assert [r.success for r in rewards] == [True, False, False, False, False]
    assert [r.verdict for r in rewards] == ["correct", "wrong", "wrong", "unextractable", "unextractable"]


def test_success_is_never_measured_by_form_where_something_judges_content():
    reward = section(FORM, TAG)
    assert (reward.resolved_success, reward.resolved_combine, reward.resolved_gates) == ("math", "gate", ("format",))
    alone = section(FORM)
    assert (alone.resolved_success, alone.resolved_combine) == ("format", "sum")
    report = check_recipe(make_recipe({"reward": {"functions": [FORM, TAG], "success": "format"}}))
    assert not report.ok and report.counter_examples[0].failure == report.counter_examples[0].success == 1


def test_as_a_bonus_it_is_at_most_a_tenth():
    with Grader(section(TAG, {**FORM, "weight": 0.1}, combine="sum")) as grader:
        (rewards,) = grader.score([group([RIGHT, WRONG, "<answer>4</answer>", ""])])
    assert [r.total for r in rewards] == pytest.approx([1.1, 0.1, 1, 0])
    assert [r.success for r in rewards] == [True, False, True, False]


def test_as_a_malus_what_form_lacks_costs_at_most_a_tenth():
    """Block C5 with n = 2: five fives repeat 3/4 of their pairs, 1 2 1 2 1 2 repeats 3/5; nothing is free."""
    with Grader(section(TAG, {**FORM, "weight": -0.1}, combine="sum")) as grader:
        (rewards,) = grader.score([group([RIGHT, WRONG, "<answer>4</answer>", ""])])
        assert [r.total for r in rewards] == pytest.approx([1, 0, 0.9, -0.1])
        assert [r.success for r in rewards] == [True, False, True, False]
        assert [r.parts["format"] for r in rewards] == [1, 1, 0, 0]  # stored as it was judged
    twice = {"name": "repetition", "weight": -0.1, "params": {"n": 2, "free": 0.0}}
    whole = {"name": "exact", "label": "right"}
    with Grader(section(whole, twice)) as grader:
        (rewards,) = grader.score([group(["5 5 5 5 5", "1 2 3 4 5", "1 2 1 2 1 2", "4"])])
    assert [r.total for r in rewards] == pytest.approx([-0.075, 0, -0.06, 1])
    recipe = make_recipe({"reward": {"functions": [whole, twice]}})
    assert _sum(rewards[0], recipe) == " = right 0 + (1 − repetition 0.25) × -0.1"
    assert "reward: what form lacks costs -0.1·(1 − repetition)" in describe_reward(recipe)


def test_behind_a_gate_that_is_shut_a_malus_still_costs():
    mixed = combination(section(TAG, FORM, {"name": "repetition", "weight": -0.1}))
    assert mixed.malus == {"repetition"} and mixed.gates == ("format",)
    assert mixed.total({"math": 1.0, "format": 1.0, "repetition": 0.5})[0] == pytest.approx(0.95)
    assert mixed.total({"math": 1.0, "format": 0.0, "repetition": 0.5})[0] == pytest.approx(-0.05)
    shut = combination(section(TAG, {**FORM, "weight": -0.1}))  # the gate itself costs while it is shut
    assert shut.total({"math": 1.0, "format": 0.0})[0] == pytest.approx(-0.1)
    assert shut.total({"math": 1.0, "format": 1.0})[0] == 1


@given(*[st.floats(-0.1, 0.1)] * 2, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_no_wrong_answer_outscores_a_right_one_whatever_its_form(one, other, values):
    share = min(1.0, 0.1 / (abs(one) + abs(other) or 1))  # all form together: a tenth
    forms = [{**FORM, "weight": one * share}, {"name": "repetition", "weight": other * share}]
    mixed = combination(section(TAG, *forms, combine="sum"))
    right, wrong = (mixed.total({"math": m, "format": f, "repetition": r})[0]
                    for m, f, r in ((1.0, *values[:2]), (0.0, *values[2:])))  # fmt: skip
    assert right > wrong + 0.89 and right >= 0.9 - 1e-9 and wrong <= 0.1 + 1e-9


def test_a_closed_gate_takes_what_is_paid_and_leaves_what_costs():
    gate = Combination("gate", {"right": 1.0, "form": 0.0, "bonus": 0.2, "cost": -0.3}, ("form",), "right", 1.0)
    parts = {"right": 1.0, "bonus": 0.5, "cost": 1.0}
    assert gate.total({**parts, "form": 1.0})[0] == pytest.approx(1 + 0.1 - 0.3)
    for shut in (0.0, 0.5, 0.999):
        assert gate.total({**parts, "form": shut})[0] == pytest.approx(-0.3)  # no better than behind an open one
        assert gate.succeeded({**parts, "form": shut}) is False
    assert gate.succeeded({"right": 1.0}) is None


def test_a_rule_may_gate_what_a_model_pays():
    mixed = combination(section("math", {"name": "exact", "label": "model"}, gates=["math"], success="math"))
    assert mixed.total({"math": 1.0, "model": 0.3}) == (1.3, None) and mixed.total({"math": 0.0, "model": 1.0}) == (
        0.0,
        None,
    )


def test_behind_a_shut_gate_a_part_that_failed_is_not_missed():
    """The judge cannot be reached. What the rule calls wrong earns nothing all the same; what is right cannot be told."""
    judge = {"name": "judge", "label": "style", "weight": 0.5,
             "params": {"url": "http://127.0.0.1:9/v1", "model": "m", "rubric": "Polite.", "retries": 0, "votes": 1,
                        "probe": False, "cache": ""}}  # fmt: skip
    with Grader(section("math", judge, gates=["math"], success="math")) as grader:
        (rewards,) = grader.score([group([RIGHT, WRONG])])
    assert [(r.total, r.success) for r in rewards] == [(None, True), (0.0, False)]
    assert rewards[0].cause == "endpoint_error: no connection" and rewards[1].cause is None
    # What a function of one's own would say is not known: it may be below 0, and a shut gate leaves what costs.
    own = Combination(
        "gate", {"right": 1.0, "form": 0.0, "own": 0.5}, ("form",), "right", 1.0, frozenset({"right", "form"})
    )
    assert own.lacking({"form": 0.0, "right": 1.0}) == "own" and own.lacking({"form": 0.0, "own": -1.0}) is None
    assert own.lacking({"form": 1.0, "own": 1.0}) == "right" and own.lacking({"right": 1.0, "own": 1.0}) == "form"
    assert own.total({"form": 0.0, "own": -1.0}) == (-0.5, None) and own.succeeded({"form": 0.0}) is False


def test_the_order_by_hand():
    mixed = combination(section("math", "exact", "numeric", combine="lexicographic"))
    assert mixed.weights == {"math": 1, "exact": 1 / 11, "numeric": 1 / 121}
    values = [(1, 0, 0), (0.9, 1, 1), (0.9, 0.9, 1), (0, 1, 0), (0, 0, 1), (0, 0, 0)]  # best first
    totals = [mixed.total(dict(zip(mixed.weights, v)))[0] for v in values]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == len(totals)
    assert totals[1] == pytest.approx(0.9 + 1 / 11 + 1 / 121) and totals[1] < 1
    assert mixed.total({"math": 1.5, "exact": 0.0, "numeric": 0.0}) == (None, "math is outside 0 to 1")


@given(*[st.lists(st.floats(0, 1), min_size=4, max_size=4)] * 2)
def test_the_order_of_totals_is_the_order_of_the_parts_in_tenths(one, other):
    mixed = combination(section(*({"name": "exact", "label": n} for n in "abcd"), combine="lexicographic"))
    first, second = (mixed.total(dict(zip("abcd", values)))[0] for values in (one, other))
    left, right = ([tenths(v) for v in values] for values in (one, other))
    assert (first > second) == (left > right) or abs(first - second) < 1e-12


@pytest.mark.parametrize("combine", ["auto", "lexicographic"])
def test_the_check_proves_that_form_never_outweighs_what_is_right(combine):
    for weight in (0.05, -0.1) if combine == "auto" else (1,):
        sums = [{**TAG}, {**FORM}, {"name": "repetition", "weight": weight}]
        report = check_recipe(make_recipe({"reward": {"functions": sums, "combine": combine}}))
        assert report.ok and not report.unproven, report.text()


def test_the_check_counts_a_malus_against_what_is_right():
    plain = [{**TAG}, {**FORM, "weight": -0.05}, {"name": "repetition", "weight": -0.05}]
    report = check_recipe(make_recipe({"reward": {"functions": plain, "combine": "sum"}}))
    assert report.ok and "earns 0.9 or more, a short failure at most 0" in report.text(), report.text()
    graded = [{"name": "code", "params": {"mode": "fraction"}}, {"name": "repetition", "weight": -0.1}]
    report = check_recipe(make_recipe({"reward": {"functions": graded}}))
    assert not report.ok  # all tests at the full malus: 0.9; nearly all without it: 1 − ε
    assert report.counter_examples[0].success == pytest.approx(0.9)
    std = make_recipe({"reward": {"functions": plain, "combine": "sum"}, "credit": {"scale": "group"}})
    assert check_recipe(std).counter_examples[0].where == "scale"  # case C2 with its sign turned


def test_the_check_finds_what_a_bonus_beside_graded_tests_does():
    tests = {"name": "code", "params": {"mode": "fraction"}}
    form = {"name": "repetition", "weight": 0.1}
    report = check_recipe(make_recipe({"reward": {"functions": [tests, form]}}))
    assert not report.ok  # nearly all tests and a bonus: 1.1 − ε; all tests without it: 1
    assert report.counter_examples[0].failure == pytest.approx(1.1, abs=1e-5) and report.counter_examples[0].success == 1
    gated = {"functions": [tests, {"name": "exact", "label": "gate"}], "gates": ["gate"]}
    assert check_recipe(make_recipe({"reward": {**gated, "functions": [tests, {**gated["functions"][1], "weight": 0}]}})).ok


def test_a_stored_episode_says_which_gate_was_closed():
    recipe = make_recipe({"reward": {"functions": [{"name": "math"}, FORM]}})
    reward = Reward(0.0, {"math": 1.0, "format": 0.0}, False)
    assert _sum(reward, recipe) == " = math 1, but gate format is closed: nothing is paid"


# --- rows that choose -------------------------------------------------------------------------------------------------


def test_a_mixed_batch_is_judged_by_what_each_row_names():
    by_row = {"name": "by_row", "label": "right", "params": {"tool_calls": {"credit": "fraction"}}}
    groups = [
        group([r"\boxed{0.5}", "5"], "1/2", key="a", reward_type="math"),
        group([code("return a + b"), code("return a - b")], ADD, key="b", verifier="code"),
        group([CALL, CALL + CALL], json.dumps(TOOL), key="c", reward_type="tool_calls"),
        group(["yes", "no"], "yes", key="d", reward_type="exact"),
        group(["1,000", "1e2"], "1000", key="e", reward_type="numeric"),
        group([r"\boxed{7}", "7"], {"boxes": 1}, key="f", reward_type="format"),
    ]
    with Grader(section(by_row)) as grader:
        grader.check_columns([g.task for g in groups])
        assert [grader.check_gold(g.task) for g in groups] == [None] * 6
        rewards = grader.score(groups)
        assert [[r.total for r in row] for row in rewards] == [[1, 0], [1, 0], [1, 0.5], [1, 0], [1, 0], [1, 0]]
        assert rewards[0][0].parts == {"right": 1, "right/math": 1} and rewards[1][0].parts["right/code"] == 1
        assert Counter(r.verdict for row in rewards for r in row) == {"correct": 6, "wrong": 5, "unextractable": 1}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [({"reward_type": "maths"}, "reward_type = 'maths', which is unknown; did you mean 'math'? known are exact, "
      "numeric, regex, reasoning_gym, math, code, tool_calls, countdown, format, repetition"),
     ({"level": 3}, "names no verifier, as reward function by_row needs; its columns are answer, expected_answer, level"),
     ({"verifier": "regex"}, "needs params.regex.pattern"),
     ({"verifier": "exact", "reward_type": "math"}, "reward_type and verifier, which name two verifiers, math and exact"),
     ({"verifier": "reasoning_gym"}, "needs the columns family and entry")],
)  # fmt: skip
def test_a_row_that_names_no_known_verifier_is_refused(columns, sentence):
    with Grader(section("by_row")) as grader, pytest.raises(RecipeError) as error:
        grader.check_columns([group([], "4", **columns).task])
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_golds_that_a_verifier_cannot_use_are_told_when_the_rows_are_read():
    golds = [("1/2", "math", None), (r"\frac{1}{", "math", "cannot be read"), (ADD, "code", None),
             ({"tests": []}, "code", "has no tests"), (TOOL, "tool_calls", None), ("[1]", "tool_calls", "names no tool"),
             ("9^(9^(9^9))", "math", None)]  # fmt: skip
    rows = [{"prompt": f"{i}?", "expected_answer": gold, "reward_type": kind} for i, (gold, kind, _) in enumerate(golds)]
    tasks = load_tasks(TasksSection(validation=0, test=0), 0, rows=rows).train
    with Grader(section("by_row")) as grader:
        for task, (_, _, sentence) in zip(sorted(tasks, key=lambda task: task.prompt), golds):
            problem = grader.check_gold(task)
            assert problem is None if sentence is None else sentence in problem


def test_a_whole_row_may_be_the_gold():
    row = {"prompt": 'def add(a, b):\n    """The sum."""\n', "entry_point": "add", "task_id": "HumanEval/0",
           "canonical_solution": "    return a + b\n",
           "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"}  # fmt: skip
    with Grader(section("code")) as grader:
        shape = TasksSection(validation=0, test=0, answer_column="row", template="Complete:\n{prompt}")
        (task,) = load_tasks(shape, 0, rows=[row]).train
        assert task.answer == row and grader.check_gold(task) is None
        right, wrong = grader.score_texts(task, [code("return a + b"), code("return 4")])
        assert (right.total, wrong.total) == (1, 0)


# --- reasoning that the prompt has opened -------------------------------------------------------------------------------


@pytest.mark.parametrize(("opened", "scores"), [("", [1, 1, 0]), ("<think>", [0, 1, 0])])
def test_what_stands_in_a_thought_that_the_prompt_opened_is_no_answer(opened, scores):
    """A thought that never closes has not answered; sampled text alone cannot tell that there is one."""
    texts = [r"Perhaps \boxed{4}, let me see", r"Perhaps \boxed{5}.</think> So \boxed{4}.", r"\boxed{4}</think> \boxed{5}"]
    with Grader(section("math")) as grader:
        grader.opened = opened
        (rewards,) = grader.score([group(texts)])
        assert [r.total for r in rewards] == scores
        assert grader.check_golds([Task("k", "What?", answer="4")]) == [None]  # a gold was not sampled behind any prompt


def test_a_form_with_thought_and_answer_counts_the_thought_that_the_prompt_opened():
    with Grader(section("math", FORM, combine="gate")) as grader:
        grader.opened = "<think>"
        (rewards,) = grader.score(
            [group([r"Two and two.</think><answer>\boxed{4}</answer>", r"<answer>\boxed{4}</answer>"])]
        )
        assert [r.success for r in rewards] == [True, False]


def test_the_processor_time_of_code_is_counted():
    """Four different answers burn at least 0.2 s each in the sandbox, none of it in this process."""
    burn = "import time\n    end = time.process_time() + 0.2\n    while time.process_time() < end: pass\n    return a + b"
    tests = [{"args": [1, 1], "expected": 2}]
    with Grader(section({"name": "code", "params": {"seconds": 20, "total_seconds": 60}})) as grader:
        before = grader.spent().get("scorer/cpu_seconds", 0.0)
        texts = [code(f"{burn} + 0 * {n}") for n in range(4)]
        (rewards,) = grader.score([group(texts, {**ADD, "tests": tests})])
        assert [reward.total for reward in rewards] == [1] * 4
        assert 0.8 <= grader.spent()["scorer/cpu_seconds"] - before < 20

"""The reward contract: values worked by hand, every way a function can misbehave, and typed absence."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost import scorers
from milepost.reward import Grader
from milepost.reward_sections import RewardFunctionSection, RewardSection
from milepost.types import Episode, EpisodeId, Group, RecipeError, Sampled, StopKind, StopReason, Task, Turn
from milepost.workers import WorkerPool

DONE = StopReason(StopKind.TERMINATED, "end_of_turn")


def episode(text: str, group: str = "g", member: int = 0, stop: StopReason = DONE, turns: int = 1) -> Episode:
    sampled = Sampled([5, 6, member], [-0.1] * 3, 1.0, ((0, 0),), "stop")  # type: ignore[arg-type]
    turn = Turn([1, 2], sampled, text=text)  # type: ignore[arg-type]
    return Episode(EpisodeId("train", 3, group, member), group, (turn,) * turns, stop)


def group(texts, answer="4", id="g", prompt="What is 2+2?", **columns) -> Group:
    task = Task(key=id, prompt=prompt, answer=answer, columns=columns, source=columns.pop("source", ""))
    return Group(id, task, tuple(episode(t, id, i) for i, t in enumerate(texts)))


def section(*functions, **settings) -> RewardSection:
    made = [RewardFunctionSection(**({"name": f} if isinstance(f, str) else f)) for f in functions]
    return RewardSection(functions=made, **settings)


def totals(rewards):
    return [[r.total for r in row] for row in rewards]


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """A file of reward functions; returns file(name) -> 'path:name'."""
    path = tmp_path_factory.mktemp("user") / "my_rewards.py"
    path.write_text(FUNCTIONS)
    return lambda name: f"{path}:{name}"


FUNCTIONS = '''
import os, time

def length(completions, **kwargs):
    """Written exactly as TRL documents it."""
    return [float(len(c)) for c in completions]

def chat(completions, answer, **kwargs):
    return [1.0 if c[0]["content"] == a else 0.0 for c, a in zip(completions, answer)]

def gold(completions, answer, expected_answer): return [float(a == e == "4") for a, e in zip(answer, expected_answer)]
def column(completions, difficulty): return difficulty
def names(completions, **kwargs): return [float(sorted(kwargs) == ["answer", "bonus", "completion_ids", "expected_answer",
    "level", "log_extra", "log_metric", "prompts"])] * len(completions)
def episodes(completions, episodes): return [float(len(e.turns) * 10 + int(e.turns[-1].sampled.ids[2])) for e in episodes]
def prompts(prompts, completions): return [float(p == [{"role": "user", "content": "hi"}]) for p in prompts]
def ids(completion_ids, completions): return [float(sum(i)) for i in completion_ids]
def bonus(completions, bonus, scale=1): return [bonus * scale] * len(completions)

def one_value(completions): return [1.0]
def four_values(completions): return [1.0] * 4
def scalar(completions): return 1.0
def boolean(completions): return True
def text(completions): return "1.0"
def texts(completions): return ["1.0"] * len(completions)
def generator(completions): return (1.0 for _ in completions)
def mapping(completions): return {c: 1.0 for c in completions}
def nothing(completions): pass
def nested(completions): import numpy as np; return np.ones((len(completions), 1))
def bools(completions): return [c == "4" for c in completions]
def a_tuple(completions): return tuple(range(len(completions)))
def array(completions): import numpy as np; return np.arange(len(completions), dtype=np.float32)
def array_items(completions): import numpy as np; return [np.float64(2), np.int64(3), np.array(4)][: len(completions)]
def absent(completions): return [1.0, None, 0.0]
def not_finite(completions): return [float("nan"), float("inf"), -float("inf"), 10**400, 2]

def raises_on_bad(completions): return [float(c) for c in completions]
def raises_always(completions): raise KeyError("no column")
def sleeps_on_zzz(completions):
    if "zzz" in completions: time.sleep(3600)
    return [1.0] * len(completions)
def spins_on_zzz(completions):
    import re
    return [float(bool(re.fullmatch("(a+)+b", "a" * 60))) if c == "zzz" else 1.0 for c in completions]
def exits_on_bye(completions):
    if "bye" in completions: os._exit(0)
    return [1.0] * len(completions)
async def waits(completions, **kwargs):
    import asyncio
    async def one(c):
        await asyncio.sleep(0.05)
        return float(len(c))
    return await asyncio.gather(*(one(c) for c in completions))
def logs(completions, log_metric, log_extra):
    log_metric("mean_length", sum(map(len, completions)) / len(completions))
    log_extra("first", [c[:1] for c in completions])
    print("a print does no harm")
    return [0.0] * len(completions)

def w1(completions): return [1.0] * len(completions)
def w10(completions): return [10.0] * len(completions)
def w100(completions): return [100.0] * len(completions)
def always_good(completions): return [1.0] * len(completions)
def asymmetric(completions, answer): return [float(c.startswith(a)) for c, a in zip(completions, answer)]
def no_completions(response, gold): return [0.0]
def positional(completions, /): return [0.0]
not_callable = 3
'''


# --- the built-ins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("42", 42), (" 42. ", 42), ("+7", 7), ("-3.50", Fraction(-7, 2)), (".5", Fraction(1, 2)), ("3/4", Fraction(3, 4)),
     ("-10 / 4", Fraction(-5, 2)), ("1e-3", Fraction(1, 1000)), ("1,234,567.5", Fraction(2469135, 2)), ("1\u202f234", 1234),
     ("３", 3), ("−3", -3), ("－１，２３４", -1234), (0.1, Fraction(1, 10)), (7, 7), (Fraction(1, 3), Fraction(1, 3)),
     ("1,5", None), ("1.234,50", None), ("1,234,56", None), ("(1,000)", None), ("1 1/4", None), ("50%", None),
     ("10²", None), ("½", None), ("4/0", None), ("nan", None), ("inf", None), (float("nan"), None), ("", None),
     ("--1", None), ("1_000", None),
     ("1e999999999", None), ("9**9**9**9", None), ("9" * 100_000, None), (True, None), (None, None), ("4 apples", None)],
)  # fmt: skip
def test_numbers_are_read_exactly_or_not_at_all(text, value):  # case D16
    assert scorers.parse_number(text) == value


@given(st.integers(), st.integers(min_value=1), st.booleans())
def test_any_ratio_equals_itself_and_no_other(top, bottom, minus_sign):
    text = f"{top}/{bottom}".replace("-", "−" if minus_sign else "-")
    if len(text) <= scorers.MAX_NUMBER_CHARACTERS:
        assert scorers.numeric(answer=text, gold=Fraction(top, bottom)) == 1.0
        assert scorers.numeric(answer=text, gold=Fraction(top, bottom) + Fraction(1, 10**30)) == 0.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_is_read_back_from_its_own_text(value):
    assert scorers.parse_number(value) == Fraction(repr(value))
    assert float(scorers.parse_number(str(value))) == value


@given(st.text())
def test_no_text_makes_the_number_reader_raise(text):
    value = scorers.parse_number(text)
    assert value is None or isinstance(value, Fraction)


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_thousands_separators_change_nothing(n):
    assert scorers.parse_number(f"{n:,}") == scorers.parse_number(f"{n:,}".replace(",", "\u202f")) == n


def test_tiny_numbers_differ():  # case D8
    grader = Grader(section("numeric"))
    assert totals(grader.score([group([f"1/{2**98}", f"1/{2**99}"], answer=f"1/{2**99}")])) == [[0.0, 1.0]]


def test_tolerances_are_asked_for():  # case D14
    third = group(["33.3", "33.4", "100/3"], answer="100/3")
    assert totals(Grader(section("numeric")).score([third])) == [[0.0, 0.0, 1.0]]
    # |33.3 − 33.333…| = .0333 ≤ .001·33.33 = .0333…; |33.4 − 33.333…| = .0667 > .0333
    loose = section({"name": "numeric", "params": {"rel_tol": 0.001}})
    assert totals(Grader(loose).score([third])) == [[1.0, 0.0, 1.0]]
    absolute = section({"name": "numeric", "params": {"abs_tol": 0.07}})
    assert totals(Grader(absolute).score([third])) == [[1.0, 1.0, 1.0]]


def test_exact_match_and_its_parameters():  # case D27: answer column int against str
    assert totals(Grader(section("exact")).score([group([" 4\n", "four", "4 "], answer=4)])) == [[1.0, 0.0, 1.0]]
    texts = group(["New  York", "new york", "New York"], answer="New York")
    assert totals(Grader(section("exact")).score([texts])) == [[0.0, 0.0, 1.0]]
    loose = {"name": "exact", "params": {"case_sensitive": False, "collapse_spaces": True}}
    assert totals(Grader(section(loose)).score([texts])) == [[1.0, 1.0, 1.0]]


def test_gold_and_answer_are_keyword_only():  # case D21
    with pytest.raises(TypeError):
        scorers.exact("a", "b")  # type: ignore[misc]
    with pytest.raises(TypeError):
        scorers.numeric("1", Fraction(1))  # type: ignore[misc]


def test_gold_and_completion_are_not_swapped(functions):  # case D21: one asymmetric pair in both orders
    with Grader(section(functions("asymmetric"))) as grader:
        assert totals(grader.score([group(["42 is it"], answer="42")])) == [[1.0]]
        assert totals(grader.score([group(["42"], answer="42 is it")])) == [[0.0]]


def test_regex_format_searches_or_covers():
    texts = group(["so <a>4</a> it is", "<a>4</a>", "4"])
    with Grader(section({"name": "regex", "params": {"pattern": "<a>.*</a>"}})) as grader:
        assert totals(grader.score([texts])) == [[1.0, 1.0, 0.0]]
    with Grader(section({"name": "regex", "params": {"pattern": "<a>.*</a>", "mode": "full"}})) as grader:
        assert totals(grader.score([texts])) == [[0.0, 1.0, 0.0]]


def test_only_the_completion_is_judged():  # case D6
    asked = group(["hi"], prompt="put it in \\boxed{}")
    with Grader(section({"name": "regex", "params": {"pattern": r"\\boxed\{"}})) as grader:
        assert totals(grader.score([asked])) == [[0.0]]


def test_a_pattern_that_backtracks_for_ever_costs_one_sample():  # cases D17, D20
    hang = section({"name": "regex", "params": {"pattern": "(a+)+b"}}, timeout_seconds=1.0)
    with Grader(hang) as grader:
        rewards = grader.score([group(["aab", "a" * 60, "c"])])[0]
    assert [r.total for r in rewards] == [1.0, None, 0.0]
    assert rewards[1].cause == "timeout"


def test_the_last_match_is_the_answer_and_what_follows_does_no_harm():  # cases D1, D3, D5, D16
    boxed = section("exact", extract=r"\\boxed\{([^{}]*)\}")
    with Grader(boxed) as grader:
        texts = [r"Answer: \boxed{5}", r"\boxed{3} then \boxed{5}", r"\boxed{5}, no, \boxed{3}", "5"]
        rewards = grader.score([group(texts, answer="5")])[0]
    assert [r.total for r in rewards] == [1.0, 1.0, 0.0, 0.0]
    assert [r.extractable for r in rewards] == [True, True, True, False]
    with Grader(section("numeric", extract=r"#### *(\S+)")) as grader:
        rewards = grader.score([group(["#### 42" + " and so on" * 48, "so #### 42", "#### many"], answer=42)])[0]
    assert [r.total for r in rewards] == [1.0, 1.0, 0.0]
    assert rewards[2].extractable is False  # something was found, but it is no number


def test_four_separate_classes_are_counted(functions):  # cases D2, K6
    graded = section(
        "numeric", {"name": functions("raises_on_bad"), "weight": 0.5}, extract=r"=(\S+)|^\d+$", timeout_seconds=5
    )
    with Grader(graded) as grader:
        grader.score([group(["=4", "=5", "4", "=4"], answer=4)])
        # "=4" is no float for raises_on_bad: all of those are unscorable, whatever numeric says
        assert grader.counts == Counter({"unscorable": 3, "unscorable/error: ValueError": 3, "unextractable": 1})
    with Grader(section("exact", extract=r"=(\S+)")) as grader:
        grader.score([group(["=4", "=5", "4", "=4"], answer=4)])
        assert grader.counts == Counter({"correct": 2, "wrong": 1, "unextractable": 1})
        grader.score_texts(Task("t", "p", 4), ["=4"])
        assert grader.counts.total() == 4  # canaries are not counted


def test_gold_that_is_no_number_is_absence_not_failure():
    reward = Grader(section("numeric")).score([group(["4"], answer="four")])[0][0]
    assert (reward.total, reward.cause) == (None, "bad_gold")


# --- the call of a user's function --------------------------------------------------------------------------------


def test_a_function_written_as_documented_runs(functions):  # case D35
    with Grader(section(functions("length"))) as grader:
        assert totals(grader.score([group(["a", "bbb"]), group(["cc"], id="h")])) == [[1.0, 3.0], [2.0]]
        assert grader.labels == ("length",)


def test_the_documentation_runs_as_it_stands(tmp_path, monkeypatch):  # case D35
    page = (Path(__file__).resolve().parent.parent / "docs" / "rewards.md").read_text()
    recipe, code = page.split("```toml\n")[1].split("```")[0], page.split("```python\n")[1].split("```")[0]
    (tmp_path / "my_rewards.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    with Grader(RewardSection(**tomllib.loads(recipe)["reward"])) as grader:
        texts = group([r"Please: \boxed{3}, \boxed{4}", r"\boxed{4}", "4, please"], answer="4")
        rewards = grader.score([texts])[0]
        assert grader.canary([texts.task]).ok
    # numeric + 0.1 · polite; the last one shows no box: 0 + 0.1
    assert [r.total for r in rewards] == pytest.approx([1.1, 1.0, 0.1])
    assert [(r.success, r.extractable) for r in rewards] == [(True, True), (True, True), (False, False)]
    assert [r.parts["polite"] for r in rewards] == [1.0, 0.0, 1.0]


def test_message_prompts_give_message_completions_text_prompts_text(functions):
    messages = ({"role": "user", "content": "hi"},)
    with Grader(section(functions("chat"))) as grader:
        assert totals(grader.score([group(["4", "5"], prompt=messages)])) == [[1.0, 0.0]]
    with Grader(section(functions("length"))) as grader:  # both kinds in one step, order kept
        mixed = [group(["aaaa"], prompt=messages), group(["bb"], id="h"), group(["cccc"], id="i", prompt=messages)]
        assert totals(grader.score(mixed)) == [[1.0], [2.0], [1.0]]  # a list of one message has length 1
    with Grader(section(functions("prompts"))) as grader:
        assert totals(grader.score([group(["x"], prompt=messages), group(["x"], id="h")])) == [[1.0], [0.0]]


def test_every_column_reaches_the_function_by_its_name(functions):  # case J6
    with Grader(section(functions("column"))) as grader:
        groups = [group(["a", "b"], difficulty=2), group(["c"], id="h", difficulty=7)]
        assert totals(grader.score(groups)) == [[2.0, 2.0], [7.0]]
    with Grader(section(functions("gold"))) as grader:
        assert totals(grader.score([group(["a"]), group(["a"], id="h", answer="5")])) == [[1.0], [0.0]]
    with Grader(section({"name": functions("names"), "params": {"bonus": 3}})) as grader:  # **kwargs: all but episodes
        assert totals(grader.score([group(["a", "b"], level=1)])) == [[1.0, 1.0]]
    with Grader(section({"name": functions("bonus"), "params": {"bonus": 3, "scale": 2}})) as grader:
        assert totals(grader.score([group(["a"])])) == [[6.0]]


def test_episodes_and_ids_for_those_who_ask(functions):
    with Grader(section(functions("episodes"))) as grader:
        assert totals(grader.score([group(["a", "b"])])) == [[10.0, 11.0]]  # one turn; third sampled id = member
        assert grader.score_texts(group(["a"]).task, [])[:] == []
    with Grader(section(functions("ids"))) as grader:
        assert totals(grader.score([group(["a", "b"])])) == [[11.0, 12.0]]  # 5 + 6 + member


@pytest.mark.parametrize(
    ("name", "values"),
    [("bools", [0.0, 1.0, 0.0]), ("a_tuple", [0.0, 1.0, 2.0]), ("array", [0.0, 1.0, 2.0]), ("array_items", [2.0, 3.0, 4.0]),
     ("absent", [1.0, None, 0.0]), ("waits", [1.0, 1.0, 2.0])],
)  # fmt: skip
def test_what_may_be_returned(functions, name, values):  # case D34
    with Grader(section(functions(name))) as grader:
        rewards = grader.score([group(["3", "4", "55"])])[0]
    assert [r.total for r in rewards] == values
    assert [r.cause for r in rewards] == [None if v is not None else "none" for v in values]


def test_torch_tensors_may_be_returned():
    torch = pytest.importorskip("torch")
    assert scorers.as_values(torch.arange(3) * 0.5, 3) == [0.0, 0.5, 1.0]
    assert scorers.as_values([torch.tensor(0.5), 1], 2) == [0.5, 1.0]
    assert scorers.as_values(torch.tensor(0.5), 1) == "expected a list of 1, got one single number"
    assert scorers.as_values([True, None, 2, Fraction(1, 2)], 4) == [1.0, None, 2.0, 0.5]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("one_value", "expected 3, got 1"), ("four_values", "expected 3, got 4"), ("scalar", "got one single number"),
     ("boolean", "got one single number"), ("text", "got a str"), ("texts", "got str '1.0' at position 0"),
     ("generator", "got a generator"), ("mapping", "got a dict"), ("nothing", "got nothing"), ("nested", "got list")],
)  # fmt: skip
def test_what_may_not_be_returned(functions, name, sentence):  # case D32
    with Grader(section(functions(name))) as grader, pytest.raises(RecipeError) as caught:
        grader.score([group(["3", "4", "5"])])
    assert sentence in str(caught.value)
    assert f"from my_rewards.py:{name}" in str(caught.value)


def test_not_finite_is_unscorable(functions):  # case D34
    with Grader(section(functions("not_finite"))) as grader:
        rewards = grader.score([group(list("abcde"))])[0]
    assert [r.total for r in rewards] == [None] * 4 + [2.0]
    assert {r.cause for r in rewards[:4]} == {"not finite"}
    assert grader.counts["unscorable/not finite"] == 4


def test_an_exception_costs_only_the_offending_sample(functions, caplog):  # cases D36, D18, E1
    with caplog.at_level(logging.WARNING, "milepost.reward"), Grader(section(functions("raises_on_bad"))) as grader:
        rewards = grader.score([group(["1", "two", "3"]), group(["four"], id="h")])
        grader.score([group(["five", "6"])])
    assert totals(rewards) == [[1.0, None, 3.0], [None]]
    assert rewards[0][1].cause == "error: ValueError"
    assert len(caplog.records) == 1  # once, not once per sample
    assert "train/3/g/1/0" in caplog.text  # the sample
    assert "could not convert string to float: 'two'" in caplog.text  # the traceback's last line
    assert grader.counts["unscorable/error: ValueError"] == 3


def test_all_unscorable_stays_unscorable(functions):
    with Grader(section(functions("raises_always"))) as grader:
        rewards = grader.score([group(["1", "2"])])[0]
    assert [(r.total, r.cause, r.success) for r in rewards] == [(None, "error: KeyError", None)] * 2


@pytest.mark.parametrize("name", ["sleeps_on_zzz", "spins_on_zzz"])
def test_a_scorer_that_sleeps_an_hour_costs_one_sample_and_two_deadlines(functions, name):  # case D20
    with Grader(section(functions(name), timeout_seconds=1.5)) as grader:
        begin = time.monotonic()
        rewards = grader.score([group(["a", "zzz", "b", "c"])])[0]
        took = time.monotonic() - begin
    assert [r.total for r in rewards] == [1.0, None, 1.0, 1.0]
    assert rewards[1].cause == "timeout"
    assert took < 12  # 2 · 1.5 s, and room for starting processes on a busy machine


def test_a_function_that_ends_its_process_costs_one_sample(functions):
    with Grader(section(functions("exits_on_bye"))) as grader:
        rewards = grader.score([group(["a", "bye", "b"])])[0]
    assert [r.total for r in rewards] == [1.0, None, 1.0]
    assert rewards[1].cause == "worker_died"


def test_trl_loggers_work(functions):
    with Grader(section(functions("logs"))) as grader:
        grader.score([group(["ab", "cdef"])])
    assert dict(grader.logged) == {"mean_length": [3.0]}
    assert dict(grader.extra) == {"first": ["a", "c"]}


# --- several functions --------------------------------------------------------------------------------------------


def test_all_functions_count_by_weight(functions):  # case D33
    with Grader(section(*(functions(f) for f in ("w1", "w10", "w100")))) as grader:
        reward = grader.score([group(["x"])])[0][0]
    assert reward.total == 111.0
    weighted = [{"name": functions("w10"), "weight": 0.5}, {"name": functions("w100"), "weight": -0.1, "label": "cost"}]
    with Grader(section(*weighted)) as grader:
        reward = grader.score([group(["x"])])[0][0]
    assert reward.total == pytest.approx(0.5 * 10 - 0.1 * 100)  # −5
    assert reward.parts == {"w10": 10.0, "cost": 100.0}  # raw, unweighted


def test_one_missing_part_makes_the_whole_unscorable_unless_its_weight_is_zero(functions):
    with Grader(section("numeric", functions("absent"))) as grader:
        rewards = grader.score([group(["4", "4", "5"])])[0]
    assert [r.total for r in rewards] == [2.0, None, 0.0]
    assert (rewards[1].cause, dict(rewards[1].parts), rewards[1].success) == ("none", {"numeric": 1.0}, True)
    with Grader(section("numeric", {"name": functions("absent"), "weight": 0})) as grader:
        rewards = grader.score([group(["4", "4", "5"])])[0]
    assert [r.total for r in rewards] == [1.0, 1.0, 0.0]
    assert "absent" not in rewards[1].parts


def test_success_is_judged_apart_from_weights_and_shaping(functions):  # cases K2, G11
    graded = section(functions("length"), {"name": "exact", "weight": 0}, success="exact")
    with Grader(graded) as grader:
        rewards = grader.score([group(["4", "a long wrong answer"])])[0]
    assert [r.total for r in rewards] == [1.0, 19.0]
    assert [r.success for r in rewards] == [True, False]
    shaped = section({"name": functions("bonus"), "params": {"bonus": 0.1}})
    with Grader(shaped) as grader:
        assert grader.score([group(["x"])])[0][0].success is False  # a shaped 0.1 is not "passed"
    slack = section({"name": functions("bonus"), "params": {"bonus": 0.1 + 0.2}}, success_at=0.3)
    with Grader(slack) as grader:
        assert grader.score([group(["x"])])[0][0].success is True
    almost = section({"name": functions("bonus"), "params": {"bonus": 0.999}})
    with Grader(almost) as grader:
        assert grader.score([group(["x"])])[0][0].success is False


def test_faults_and_empty_episodes_are_not_judged():  # cases E1, E10
    fault = StopReason(StopKind.FAULT, "engine")
    task = Task("g", "p", "4")
    episodes = (episode("4"), episode("4", member=1, stop=fault), episode("", member=2, turns=0))
    grader = Grader(section("exact"))
    rewards = grader.score([Group("g", task, episodes)])[0]
    assert [(r.total, r.cause) for r in rewards] == [(1.0, None), (None, "fault: engine"), (None, "no turns")]


def test_the_nesting_is_kept_for_uneven_and_empty_groups():
    grader = Grader(section("exact"))
    groups = [group(["4", "5", "4"]), Group("e", Task("e", "p", "4"), ()), group(["5"], id="h", answer=5)]
    assert totals(grader.score(groups)) == [[1.0, 0.0, 1.0], [], [1.0]]
    assert grader.score([]) == []


# --- refusals before anything is loaded ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("functions_", "settings", "sentence"),
    [
        ([], {}, "reward.functions is empty"),
        (["exact", "exact"], {}, "two parts are called 'exact'"),
        (["exact"], {"success": "exakt"}, "use 'exact'"),
        (["exakt"], {}, "did you mean 'exact'?"),
        (["exact"], {"extract": "(("}, "reward.extract = '((' is not a regular expression"),
        ([{"name": "regex"}], {}, "regex needs params.pattern"),
        ([{"name": "regex", "params": {"pattern": "["}}], {}, "params.pattern = '[' is not a regular expression"),
        ([{"name": "regex", "params": {"pattern": "a", "mode": "match"}}], {}, "must be 'search' or 'full'"),
        ([{"name": "numeric", "params": {"tolerance": 1}}], {}, "it takes rel_tol, abs_tol"),
        ([{"name": "numeric", "params": {"abs_tol": -1}}], {}, "must be a number ≥ 0"),
        ([{"name": "exact", "params": {"case_sensitive": "no"}}], {}, "must be true or false"),
        (["no/such/file.py:f"], {}, "there is no file"),
        (["no_such_module_x:f"], {}, "there is no module 'no_such_module_x'"),
        (["os:getpidd"], {}, "did you mean getpid"),
        (["math:pi"], {}, "is a float, not a function"),
    ],
)
def test_each_refusal_is_one_clear_sentence(functions_, settings, sentence):  # case I5
    with pytest.raises(RecipeError) as caught:
        Grader(section(*functions_, **settings))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [("lenght", {}, "did you mean length"), ("not_callable", {}, "is a int, not a function"),
     ("no_completions", {}, "takes (response, gold) but is given the keyword `completions`"),
     ("positional", {}, "positional-only"), ("w1", {"bonus": 1}, "has no parameter 'bonus'"),
     ("length", {"prompts": 1}, "fills in itself")],
)  # fmt: skip
def test_functions_that_cannot_be_called_are_refused(functions, name, params, sentence):  # case E12
    with pytest.raises(RecipeError) as caught:
        Grader(section({"name": functions(name), "params": params}))
    assert sentence in str(caught.value)


def test_a_file_that_does_not_import_is_refused_with_its_error(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_the_kind\ndef f(completions): return [0.0]\n")
    with pytest.raises(RecipeError, match="nothing_of_the_kind"):
        Grader(section(f"{tmp_path}/broken.py:f"))
    (tmp_path / "slash.py").write_text("def f(:\n")
    with pytest.raises(RecipeError, match="SyntaxError"):
        Grader(section(f"{tmp_path}/slash.py:f"))


def test_a_missing_column_is_named_at_the_start_with_those_present(functions):  # cases D35, J6
    tasks = [Task("a", "p", "1", {"difficulty": 1}), Task("b", "p", "1", {"level": 2})]
    with pytest.raises(RecipeError) as caught:
        Grader(section(functions("column")), tasks=tasks)
    assert "needs the column 'difficulty', but task b has none; its columns are answer, expected_answer, level" in str(
        caught.value
    )
    with Grader(section(functions("column"))) as grader:
        grader.check_columns(tasks[:1])
    with pytest.raises(RecipeError, match="needs the column 'answer'"):
        Grader(section(functions("chat")), tasks=[Task("a", "p", None)])
    with pytest.raises(RecipeError, match="needs a gold answer"):
        Grader(section("exact"), tasks=[Task("a", "p", None)])
    with pytest.raises(RecipeError, match=r"params\.bonus hides the task column"):
        Grader(section({"name": functions("bonus"), "params": {"bonus": 1}}), tasks=[Task("a", "p", "1", {"bonus": 2})])


# --- reasoning-gym ------------------------------------------------------------------------------------------------


def gym_task(family, key="t", index=0, **params):
    reasoning_gym = pytest.importorskip("reasoning_gym")
    entry = reasoning_gym.create_dataset(family, size=index + 1, seed=3, **params)[index]
    return Task(
        key, entry["question"], entry["answer"], {"family": family, "params": params, "entry": entry}, source=family
    )


def test_reasoning_gym_scores_with_its_own_scorer():
    first, second = gym_task("chain_sum", min_terms=2, max_terms=2), gym_task("leg_counting", key="u")
    with Grader(section("reasoning_gym", extract=r"Answer: (.*)"), tasks=[first, second]) as grader:
        groups = [
            Group(
                "t", first, tuple(episode(t, "t", i) for i, t in enumerate([f"Answer: {first.answer}", "Answer: -1", "42"]))
            ),
            Group("u", second, (episode(f"hm. Answer: {second.answer}", "u"),)),
        ]
        rewards = grader.score(groups)
        assert [r.success for r in rewards[0]] == [True, False, False]
        assert [r.extractable for r in rewards[0]] == [True, True, False]
        assert rewards[0][2].total == 0.0
        assert rewards[1][0].total == 1.0
        assert grader.network_blocked in (True, False)


def test_a_foreign_scorer_that_raises_is_unscorable():  # case D27
    broken = gym_task("chain_sum")
    task = Task("t", "q", "1", {**broken.columns, "entry": {"question": "q"}})  # no gold inside: KeyError in the scorer
    with Grader(section("reasoning_gym")) as grader:
        reward = grader.score([Group("t", task, (episode("1", "t"),))])[0][0]
    assert (reward.total, reward.cause) == (None, "error: KeyError")


@pytest.mark.parametrize(("family", "says"), [
    ("countdown", r"countdown is refused: its scorer evaluates the answer as Python.*or take it .* params\.accept_unsound"),
    ("game_of_life_halting", "is refused: its scorer pays 1 for junk; use another"),
    ("composite", "composite has not been audited; use one of docs/families.md"),
])  # fmt: skip
def test_families_whose_scorers_are_unsound_are_refused(family, says):  # cases D24, D27
    task = Task("t", "q", "1", {"family": family, "entry": {}})
    with pytest.raises(RecipeError, match=says):
        Grader(section("reasoning_gym"), tasks=[task])
    with Grader(section("reasoning_gym")) as grader, pytest.raises(RecipeError, match=says):
        grader.score([Group("t", task, (episode("1", "t"),))])
    with Grader(section("reasoning_gym")) as grader, pytest.raises(RecipeError, match=says):
        grader.check_golds([task])


def test_what_a_recipe_accepts_is_scored_in_the_sandbox(tmp_path):  # case D24
    task = gym_task("spiral_matrix")
    pwned = tmp_path / "pwned"
    tmp_path.chmod(0o777)
    texts = [f"__import__('os').system('touch {pwned}')", task.answer, "__import__('os')._exit(0)", "9**9**9**9", "1 2"]
    accepts = {"name": "reasoning_gym", "params": {"accept_unsound": ["spiral_matrix"]}}
    with Grader(section(accepts, timeout_seconds=8), tasks=[task]) as grader:
        group = Group("t", task, tuple(episode(text, "t", i) for i, text in enumerate(texts)))
        [rewards] = grader.score([group])
    assert [r.total for r in rewards[1:3]] == [1.0, None] and rewards[2].cause == "worker_died"
    assert rewards[4].total == 0.0 and not rewards[0].success and not rewards[3].success
    assert not pwned.exists()


@pytest.mark.parametrize(("accepted", "says"), [
    ("countdown", r"accept_unsound = 'countdown' must be a list of families"),
    (["chain_sum"], "chain_sum is sound and needs no acceptance; remove it"),
    (["chain_sums"], "chain_sums has not been audited"),
])  # fmt: skip
def test_what_cannot_be_accepted_is_refused(accepted, says):
    with pytest.raises(RecipeError, match=says):
        Grader(section({"name": "reasoning_gym", "params": {"accept_unsound": accepted}}))


def test_limits_alone_are_for_no_scorer_that_evaluates_answers():
    params = {"accept_unsound": ["countdown"], "allow_plain": True}
    with pytest.raises(RecipeError, match="without isolation; remove one of the two"):
        Grader(section({"name": "reasoning_gym", "params": params}))
    with pytest.raises(RecipeError, match="allow_plain = 'yes' must be true or false"):
        Grader(section({"name": "by_row", "params": {"reasoning_gym": {"allow_plain": "yes"}}}))


NO_WALLS = """
import errno, struct
from milepost.sandbox.filter import MACHINE, install_filter
# Neither this process nor its children may make namespaces or Landlock rules: load the number, refuse these two.
lines = ((0x20, 0, 0, 0), (0x15, 2, 0, (272, 97)[MACHINE]), (0x15, 1, 0, 444), (0x06, 0, 0, 0x7FFF0000),
         (0x06, 0, 0, 0x50000 | errno.EPERM))
install_filter(b"".join(struct.pack("=HBBI", *line) for line in lines))
import reasoning_gym
from milepost.reward import Grader
from milepost.reward_sections import RewardSection
from milepost.types import RecipeError, Task
entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=3)[0]
task = Task("t", entry["question"], entry["answer"], {"family": "chain_sum", "params": {}, "entry": entry})
for params in ({}, {"allow_plain": True}):
    section = RewardSection.model_validate({"functions": [{"name": "reasoning_gym", "params": params}]})
    try:
        with Grader(section) as grader:
            print(grader.check_golds([task]), [r.total for r in grader.score_texts(task, [task.answer, "-1"])])
    except RecipeError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="walls are Linux's")
def test_without_isolation_foreign_scorers_run_only_where_the_recipe_says_so():
    done = subprocess.run([sys.executable, "-c", NO_WALLS], capture_output=True, text=True, timeout=120)
    refused, *allowed = done.stdout.splitlines()
    assert refused.startswith("sandbox: no isolation for untrusted code works on this machine (namespaces: ")
    assert refused.endswith("or accept limits without isolation: allow_plain = true in params")
    if "plain: " in allowed[0]:  # a root whose Python lies in its own home cannot give it to another user
        pytest.skip(allowed[0])
    assert allowed == ["[None] [1.0, 0.0]"] and "NO ISOLATION" in done.stderr


def test_tasks_from_elsewhere_are_refused_for_reasoning_gym():
    with pytest.raises(RecipeError, match="needs the columns family and entry, but task t has answer, expected_answer"):
        Grader(section("reasoning_gym"), tasks=[Task("t", "q", "1")])


# --- canaries -----------------------------------------------------------------------------------------------------


def test_the_canary_sings_while_right_is_one_and_wrong_is_zero(functions):  # case D45
    tasks = [Task("a", "p", 4, source="x"), Task("b", "p", 5, source="x"), Task("c", "p", "1/3", source="y")]
    report = Grader(section("numeric")).canary(tasks)
    assert report.ok
    assert [(c.task_key, c.good.success, c.bad.success) for c in report.checks] == [("a", True, False), ("c", True, False)]
    with Grader(section("numeric", extract=r"\\boxed\{(.*?)\}", canary_good=r"So \boxed{{answer}}.")) as grader:
        assert grader.canary(tasks).ok
    with Grader(section("numeric", extract=r"\\boxed\{(.*?)\}", canary_good="So {answer}.")) as grader:
        report = grader.canary(tasks)  # the template does not fit the pattern: always 0
        assert not report.ok
        says = "reward.canary_good with the task's own answer, 'So 4.', scores {'numeric': 0.0}"
        assert next(iter(report)) == f"task a: {says}" and grader.check_gold(tasks[0]) == says
    literal = "; its braces are literal, so write each once: in sft.demonstrations alone they are doubled"
    for template, ends in ((r"So \box{{answer}}.", "{'numeric': 0.0}"), (r"So \boxed{{{answer}}}.", literal)):
        with Grader(section("numeric", extract=r"\\boxed\{(.*?)\}", canary_good=template)) as grader:
            assert str(grader.check_gold(tasks[0])).endswith(ends) and str(next(iter(grader.canary(tasks)))).endswith(ends)
    with Grader(section(functions("always_good"), canary_good="{answer}")) as grader:
        assert "a wrong answer is not scored as wrong" in grader.canary(tasks).problems[0]
    with Grader(section(functions("raises_always"), canary_good="{answer}")) as grader:
        assert "is unscorable (error: KeyError)" in grader.canary(tasks).problems[0]
    with Grader(section({"name": "regex", "params": {"pattern": "<a>"}}, canary_good="<a>{answer}</a>")) as grader:
        assert grader.canary(tasks).ok
    with Grader(section(functions("length"))) as grader:
        report = grader.canary(tasks)
        assert report.ok
        assert "set reward.canary_good" in str(report.skipped)


def test_gold_that_its_own_grader_rejects_is_named():
    grader = Grader(section("numeric"))
    assert grader.check_gold(Task("a", "p", "1,234")) is None
    assert grader.check_gold(Task("a", "p", "about 4")) == "the task's own answer 'about 4' is unscorable (bad_gold)"
    assert grader.counts == Counter()
    with Grader(section("numeric", extract="=(.*)")) as grader:
        assert grader.check_gold(Task("a", "p", "1,234")) is None  # no template: it cannot be told


# --- the rest -----------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.floats(), st.integers(), st.booleans())))
def test_any_list_of_numbers_is_taken_and_only_for_its_length(values):
    taken = scorers.as_values(values, len(values))
    assert isinstance(taken, list)
    assert [v is None for v in taken] == [v is None for v in values]
    assert scorers.as_values(values, len(values) + 1) == f"expected {len(values) + 1}, got {len(values)}"


def test_scoring_twice_gives_the_same_and_counts_twice(functions):
    with Grader(section("exact", functions("length"))) as grader:
        groups = [group(["4", "5"])]
        assert grader.score(groups) == grader.score(groups)
        assert grader.counts == Counter({"correct": 2, "wrong": 2})
        assert all(math.isfinite(r.total) for r in grader.score(groups)[0])


def test_closing_ends_every_process(functions):
    grader = Grader(section(functions("length"), {"name": "regex", "params": {"pattern": "a"}}))
    grader.score([group(["a"])])
    pids = [pid for pool in grader._pools if isinstance(pool, WorkerPool) for pid in pool.pids]
    assert len(pids) == 2
    grader.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_the_modules_are_free_of_torch():
    code = "import sys, milepost.reward; sys.exit(bool({'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=60).returncode == 0

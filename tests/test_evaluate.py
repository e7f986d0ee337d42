"""Held-out success by value: means over tasks, typed absence, pass@k, paired intervals, the standard bar."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.evaluate import (
    EvalReport,
    best_report,
    bootstrap,
    evaluate,
    paired,
    pass_at_k,
    report_pass_at_k,
    standard_bar,
    summarise,
    task_interval,
)
from milepost.types import Episode, EpisodeId, Group, RecipeError, Reward, Sampled, StopKind, StopReason, Task, Turn

DECODING = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 32}


def group(key: str, num: int, *, source: str = "", length: int = 3, truncated: bool = False) -> Group:
    stop = StopReason(StopKind.TRUNCATED, "tokens") if truncated else StopReason(StopKind.TERMINATED, "end_of_turn")
    turn = Turn([1], Sampled(range(length), np.zeros(length), 1.0, ((0, 0),), "stop"))
    episodes = tuple(Episode(EpisodeId("test", 0, key, m), key, (turn,), stop) for m in range(num))
    return Group(key, Task(key, "?", source=source), episodes)


def judged(*verdicts: bool | None) -> list[Reward]:
    return [Reward.unscorable("timeout") if v is None else Reward(float(v), {"exact": float(v)}, v, True) for v in verdicts]


def report_of(outcomes: dict[str, list[bool | None]], greedy: dict[str, bool] | None = None, **changes) -> EvalReport:
    groups = [group(key, len(verdicts)) for key, verdicts in outcomes.items()]
    best = ([group(k, 1) for k in greedy], [judged(v) for v in greedy.values()]) if greedy else ((), ())
    made = summarise(groups, [judged(*v) for v in outcomes.values()], split="test", step=0, settings=DECODING, greedy=best)
    return replace(made, **changes)


def test_success_is_the_mean_over_tasks() -> None:
    # case K5: a task with more samples does not count more: (1/2 + 0/1 + 3/3) / 3 = 0.5, not 4/6
    report = report_of({"a": [True, False], "b": [False], "c": [True, True, True]})
    assert report.success == pytest.approx(0.5)
    assert (report.num_tasks, report.num_scored) == (3, 6)


def test_the_unscorable_are_left_out_and_counted() -> None:
    # a: 1/1; b: nothing to judge; c: 0/2 → mean of two tasks, 0.5; as zeros it would be (0.5 + 0 + 0) / 3
    report = report_of({"a": [True, None], "b": [None, None], "c": [False, False]})
    assert report.success == pytest.approx(0.5)
    assert report.unscorable == {"timeout": 3}
    assert report.num_scored == 3


def test_nothing_scorable_is_absent_not_zero() -> None:
    report = report_of({"a": [None], "b": [None]})
    assert math.isnan(report.success)
    assert (report.reward, report.extractable, report.accuracy_extractable) == (None, None, None)
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["success"] is None
    assert math.isnan(EvalReport.from_json(report.to_json()).success)
    assert best_report([report]) is None


def test_success_is_not_the_shaped_reward() -> None:
    # case K2: a shaped reward of 0.1, or a total of 1.3 without success, is not "passed"
    rewards = [[Reward(0.1, {"format": 0.1}, False, True), Reward(1.3, {"exact": 1.0, "format": 0.3}, True, True)],
               [Reward(1.3, {}, False, False), Reward(2.0, {}, None)]]  # fmt: skip
    report = summarise([group("a", 2), group("b", 2)], rewards, split="test", step=0, settings={})
    assert report.outcomes == {"a": (False, True), "b": (False, None)}
    assert report.success == pytest.approx(0.25)
    assert report.unscorable == {"no success metric": 1}
    assert report.reward == pytest.approx((0.1 + 1.3 + 1.3 + 2.0) / 4)
    assert report.parts == {"format": pytest.approx(0.2), "exact": 1.0}
    assert report_pass_at_k(report, 1).mean == pytest.approx(0.25)


def test_extractable_rate_stands_beside_accuracy() -> None:
    # case K6, D2: 4 answers, 2 can be read, 1 of them is right: success .25, readable .5, accuracy among readable .5
    rewards = [[Reward(1.0, {}, True, True), Reward(0.0, {}, False, True), Reward(0.0, {}, False, False), *judged(None)],
               [Reward(0.0, {}, False, False)] * 4]  # fmt: skip
    report = summarise([group("a", 4), group("b", 4)], rewards, split="test", step=0, settings={})
    assert report.extractable == pytest.approx(2 / 7)
    assert report.accuracy_extractable == pytest.approx(1 / 2)


def test_slices_lengths_and_truncation() -> None:
    groups = [
        group("a", 2, source="x", length=2),
        group("b", 2, source="y", length=7, truncated=True),
        group("c", 2, source="x"),
    ]
    report = summarise(
        groups, [judged(True, True), judged(False, False), judged(False, True)], split="test", step=0, settings={}
    )
    assert {name: (s.mean, s.num) for name, s in report.sources.items()} == {"x": (0.75, 2), "y": (0.0, 1)}
    assert report.length == pytest.approx((2 + 7 + 3) / 3)
    assert report.truncated == pytest.approx(1 / 3)


# The whole way through `evaluate`


def coin_player(seed: int):
    """Plays from a keyed coin, so that playing twice gives the same."""

    def play(tasks, num_samples, greedy):
        return [group(task.key, num_samples) for task in tasks]

    def grade(groups):
        rng = [np.random.default_rng([seed, int(g.task.key)]) for g in groups]
        return [judged(*(bool(r.random() < 0.4) for _ in g.episodes)) for r, g in zip(rng, groups)]

    return play, grade


def run_eval(samples: int = 4, num_tasks: int = 30, **options) -> EvalReport:
    tasks = [Task(str(i), "?") for i in range(num_tasks)]
    return evaluate(tasks, *coin_player(1), split="validation", step=7, samples=samples, settings=DECODING, **options)


def test_twice_gives_identical_numbers_and_the_settings_stay_with_them() -> None:
    # case K4
    report = run_eval()
    assert report == run_eval()
    assert report.settings == DECODING
    assert (report.num_tasks, report.samples, report.split, report.step) == (30, 4, "validation", 7)
    assert report.success_low < report.success < report.success_high
    assert len(report.greedy_outcomes) == 30
    assert EvalReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_episodes_reach_the_store_and_greedy_can_be_left_out() -> None:
    seen = []
    report = run_eval(
        samples=3, collect=lambda groups, rewards, greedy: seen.append((greedy, len(groups), len(rewards[0])))
    )
    assert seen == [(False, 30, 3), (True, 30, 1)]
    assert report.greedy is not None
    assert run_eval(greedy=False).greedy is None


def test_wrong_players_are_caught() -> None:
    tasks = [Task("1", "?"), Task("2", "?")]
    play, grade = coin_player(1)
    with pytest.raises(ValueError, match="gave other groups"):
        evaluate(tasks, lambda t, n, g: play(t[:1], n, g), grade, split="test", step=0, samples=2)
    with pytest.raises(ValueError, match="judged other numbers"):
        evaluate(tasks, play, lambda groups: grade(groups)[:1], split="test", step=0, samples=2)
    with pytest.raises(RecipeError, match=r"tasks\.test = 0"):
        evaluate([], play, grade, split="test", step=0, samples=2)


# pass@k


def test_pass_at_k_by_value() -> None:
    # case K1, worked example C12; n=4, c=1, k=4 must be 1, where resampling with replacement says .684
    assert pass_at_k(16, 4, 8) == pytest.approx(0.9615384615384616, abs=1e-12)
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(8, 2, 4) == pytest.approx(0.785714, abs=1e-6)  # 1 − 15/70
    assert [pass_at_k(8, c, 1) for c in (0, 4, 8)] == [0.0, 0.5, 1.0]
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)  # no overflow


@given(st.integers(1, 7), st.data())
def test_pass_at_k_equals_counting_all_subsets(n: int, data) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([i < c for i in range(n)], k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2)])
def test_impossible_pass_at_k_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(RecipeError, match="pass@k"):
        pass_at_k(n, c, k)


def test_pass_at_k_over_tasks() -> None:
    # tasks: n=4, c=1 → pass@2 = 1 − 3/6 = .5; n=4, c=0 → 0; one sample judged: left out
    report = report_of({"a": [True, False, False, False], "b": [False] * 4, "c": [True, None, None, None]})
    assert report_pass_at_k(report, 2).mean == pytest.approx(0.25)
    assert report_pass_at_k(report, 2).num == 2
    with pytest.raises(
        RecipeError, match=r"pass@5 needs 5 samples a task and this evaluation has 4; set eval\.samples = 5"
    ):
        report_pass_at_k(report, 5)


# Intervals


def test_bootstrap_is_the_normal_interval_where_that_holds() -> None:
    # 400 tasks, half right: standard error .025; 95 %: .5 ± .049, 99 %: .5 ± .0644
    low95, high95, low99, high99 = bootstrap(np.repeat([0.0, 1.0], 200), 0.95, 0.99)
    assert (low95, high95) == (pytest.approx(0.451, abs=0.004), pytest.approx(0.549, abs=0.004))
    assert (low99, high99) == (pytest.approx(0.4356, abs=0.005), pytest.approx(0.5644, abs=0.005))


def test_all_or_none_is_not_certainty() -> None:
    # Clopper–Pearson: upper limit after 0 of 200 is 1 − .025^(1/200) = .01828
    none, every = task_interval([[False]] * 200), task_interval([[True, True]] * 200)
    assert (none.mean, none.low, none.high) == (0.0, 0.0, pytest.approx(0.018275, abs=1e-6))
    assert (every.low, every.high) == (pytest.approx(1 - 0.018275, abs=1e-6), 1.0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_intervals_hold_the_mean_and_nest(values: list[float]) -> None:
    low95, high95, low99, high99 = bootstrap(np.array(values), 0.95, 0.99)
    mean = float(np.mean(values))
    assert min(values) - 1e-9 <= low99 <= low95 <= mean + 1e-9
    assert mean - 1e-9 <= high95 <= high99 <= max(values) + 1e-9


def test_large_evaluations_do_not_need_large_memory() -> None:
    # 2,500 tasks are resampled in 13 chunks; .5 ± 1.96 · .5/√2500 = .5 ± .0196
    low, high = bootstrap(np.tile([0.0, 1.0], 1250), 0.95)
    assert (low, high) == (pytest.approx(0.4804, abs=0.001), pytest.approx(0.5196, abs=0.001))


# Paired comparison


def test_paired_sees_what_two_separate_intervals_hide() -> None:
    # hard and easy tasks spread widely; each of 12 gains one of four samples: difference exactly .25, no doubt at all
    before = {str(i): [True] * (i % 4) + [False] * (4 - i % 4) for i in range(12)}
    after = {key: [True] * (sum(v) + 1) + [False] * (3 - sum(v)) for key, v in before.items()}
    result = paired(report_of(before), report_of(after))
    assert result.difference == pytest.approx(0.25)
    assert (result.low95, result.high99) == (pytest.approx(0.25), pytest.approx(0.25))
    assert report_of(before).success_high > report_of(after).success_low  # the separate intervals overlap
    assert (result.num_tasks, result.left_out) == (12, 0)
    back = paired(report_of(after), report_of(before))
    assert back.difference == pytest.approx(-0.25)


def test_paired_ignores_the_order_of_tasks_and_leaves_out_the_unjudged() -> None:
    before = report_of({"a": [True, False], "b": [False, False], "c": [None, None]})
    after = report_of({"c": [True, True], "b": [True, True], "a": [True, True]})
    result = paired(before, after)
    assert result.difference == pytest.approx((0.5 + 1.0) / 2)
    assert (result.num_tasks, result.left_out) == (2, 1)


def test_paired_refuses_what_cannot_be_compared() -> None:
    one = report_of({"a": [True], "b": [False]})
    with pytest.raises(RecipeError, match=r"1 are only in the first and 0 only in the second \(such as b\)"):
        paired(one, report_of({"a": [True]}))
    with pytest.raises(RecipeError, match=r"temperature = 1\.0 in the first and 0\.7 in the second"):
        paired(one, replace(one, settings={**DECODING, "temperature": 0.7}))
    with pytest.raises(RecipeError, match="no greedy part"):
        paired(one, one, greedy=True)
    with pytest.raises(RecipeError, match="no task was judged on both sides"):
        paired(report_of({"a": [None]}), report_of({"a": [True]}))


# The bar


def many(rate: float, greedy: float, num: int = 200, samples: int = 4, seed: int = 0) -> EvalReport:
    """`num` tasks; each sample right with the given chance; exactly `greedy` of the greedy ones right."""
    rng = np.random.default_rng(seed)
    outcomes = {str(i): [bool(x) for x in rng.random(samples) < rate] for i in range(num)}
    return report_of(outcomes, {str(i): i < greedy * num for i in range(num)})


def failed(*arguments, **options) -> list[str]:
    return [clause.name for clause in standard_bar(*arguments, **options).clauses if clause.passed is False]


def test_a_clear_gain_meets_the_bar() -> None:
    verdict = standard_bar(many(0.2, 0.3), many(0.45, 0.5, seed=1), many(0.25, 0.3, seed=2))
    assert verdict.passed
    assert verdict.text.startswith("met: the standard bar")
    assert [clause.passed for clause in verdict.clauses] == [True] * 5
    assert f"{100 * verdict.paired.difference:+.1f} points" in verdict.text


def test_each_clause_can_fail_alone() -> None:
    before, after = many(0.2, 0.3), many(0.45, 0.5, seed=1)
    assert failed(before, after) == []
    assert failed(before, many(0.27, 0.5, seed=1)) == ["gain"]
    assert failed(before, replace(after, greedy_outcomes=many(0, 0.29).greedy_outcomes)) == ["greedy"]
    assert failed(before, replace(after, greedy_outcomes=before.greedy_outcomes)) == []  # equal is no fall
    assert failed(before, replace(after, greedy_outcomes={})) == ["greedy"]
    assert failed(before, after, many(0.44, 0.5, seed=3)) == ["control"]
    assert failed(many(0.2, 0.3, num=199), many(0.45, 0.5, num=199, seed=1)) == ["data"]
    assert failed(before, many(0.2, 0.3, seed=5)) == ["interval", "gain"]


def test_the_bar_says_what_is_too_small() -> None:
    small = standard_bar(many(0.0, 0.0, num=12, samples=2), many(1.0, 1.0, num=12, samples=2))
    assert not small.passed
    assert "12 tasks are too few, it takes 200" in small.text
    assert "2 samples a task are too few, it takes 4" in small.text
    assert failed(many(0.2, 0.3, samples=2), many(0.6, 0.6, samples=2), multi_turn=True) == []
    cold = {**DECODING, "temperature": 0.5}
    assert failed(*(replace(r, settings=cold) for r in (many(0.2, 0.3), many(0.6, 0.6)))) == ["data"]
    holes = {k: (None, *v[1:]) for k, v in many(0.6, 0.6).outcomes.items()}
    assert failed(many(0.2, 0.3), replace(many(0.6, 0.6), outcomes=holes)) == ["data"]


def test_ten_points_are_ten_points() -> None:
    # .3 − .2 is 0.0999… in floating point; the bar means the number people read
    rows = {str(i): [i % 10 < 2] * 4 for i in range(200)}
    verdict = standard_bar(report_of(rows), report_of({k: [int(k) % 10 < 3] * 4 for k in rows}))
    assert next(clause for clause in verdict.clauses if clause.name == "gain").passed


def test_the_best_checkpoint_is_by_success_and_the_earlier_of_equals() -> None:
    # case G11: success [0.2, 0.9, 0.4] while the shaped reward peaks elsewhere
    reports = [
        report_of({"a": [True]}, step=s, success=v, reward=r)
        for s, v, r in ((1, 0.2, 5), (2, 0.9, 1), (3, 0.4, 9), (4, 0.9, 2))
    ]
    assert best_report(reports).step == 2
    assert best_report(reports[::-1]).step == 2
    assert best_report([]) is None

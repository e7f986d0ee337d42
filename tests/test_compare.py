"""Comparing stored test reports, and evaluating one model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from milepost.evaluate import EvalReport, task_interval
from milepost.policy import new_policy
from milepost.recipe import make_recipe
from milepost.stages.compare import Evaluation, compare_run, evaluate_recipe, rates
from milepost.store import Run
from milepost.types import RecipeError

DECODING = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8}


def report(right: int, *, num: int = 200, samples: int = 4, greedy: int | None = None, prefix: str = "t") -> EvalReport:
    """The first `right` of `num` tasks succeed in all samples, the first `greedy` (default: as many) greedily."""
    greedy = right if greedy is None else greedy
    outcomes = {f"{prefix}{i}": (i < right,) * samples for i in range(num)}
    best = {f"{prefix}{i}": i < greedy for i in range(num)}
    interval = task_interval(outcomes.values())
    return EvalReport(
        "test", 1, num, samples, DECODING, interval.mean, interval.low, interval.high, outcomes,
        greedy=greedy / num, greedy_low=0.0, greedy_high=1.0, greedy_outcomes=best, extractable=0.8,
        accuracy_extractable=0.5,
    )  # fmt: skip


def make_run(
    root: Path, name: str = "run", *, meta: dict | None = None, reward: dict | None = None, **tests: EvalReport
) -> Path:  # fmt: skip
    with Run.create(root, make_recipe({"name": name, "reward": reward or {}}), meta=meta) as run:
        for stage, of in tests.items():
            run.add_eval(stage, 1, of)
        run.set_status("finished")
    return run.path


def test_the_warm_start_is_what_grpo_is_compared_with(tmp_path: Path) -> None:
    path = make_run(tmp_path, base=report(0), sft=report(60), grpo=report(100))
    found = compare_run(path)
    assert found.names == ("sft", "grpo", "")
    assert found.bar.paired.difference == pytest.approx(0.2)  # (100 − 60) / 200
    assert found.passed
    assert found.text.splitlines()[:2] == ["sft: " + rates(report(60)), "grpo: " + rates(report(100))]
    assert found.text.splitlines()[2].startswith("met:")
    assert compare_run(path, before="base", after="sft").bar.paired.difference == pytest.approx(0.3)


def test_without_a_warm_start_the_base_model_is(tmp_path: Path) -> None:
    found = compare_run(make_run(tmp_path, base=report(0), grpo=report(10)))
    assert found.names[0] == "base"
    assert not found.passed  # +5 points
    assert [c.name for c in found.bar.clauses if c.passed is False] == ["gain"]


def test_rates_say_everything_in_one_line() -> None:
    text = rates(report(50, greedy=60))
    assert text.startswith("25.0 % [")
    assert text.endswith("sampled, 30.0 % greedy, 80.0 % readable, 50.0 % right among readable (200 tasks × 4)")


def test_a_control_must_be_beaten(tmp_path: Path) -> None:
    path = make_run(tmp_path, sft=report(60), grpo=report(100))
    weak = make_run(tmp_path, "weak", base=report(0), sft=report(80))
    strong = make_run(tmp_path, "strong", control_sft=report(100))
    assert compare_run(path, control=str(weak)).passed
    assert compare_run(path, control=str(weak)).names[2] == f"{weak} (sft)"  # the last of its reports
    beaten = compare_run(path, control=str(strong))
    assert not beaten.passed
    assert [c.name for c in beaten.bar.clauses if c.passed is False] == ["control"]


def test_a_control_that_was_judged_by_something_else_is_refused(tmp_path: Path) -> None:  # case E11
    tests = {"sft": report(60), "grpo": report(100)}
    ours = make_run(tmp_path, meta={"environment": "desk 2"}, **tests)
    old = make_run(tmp_path, "old", meta={"environment": "desk 1"}, **tests)
    with pytest.raises(RecipeError) as error:
        compare_run(ours, control=str(old))
    assert str(error.value) == (f"--control {old} cannot be compared: environment there is desk 1, and here desk 2; use a "
                                "run that was tested by the same")  # fmt: skip
    assert compare_run(ours, control=str(make_run(tmp_path, "same", meta={"environment": "desk 2"}, **tests))).control


def test_a_control_is_judged_by_the_same_function_whatever_it_was_paid_for(tmp_path: Path) -> None:
    def reward(name: str, *functions: dict, **settings: object) -> str:
        given = {"functions": [{"label": "right", **function} for function in functions], "success": "right", **settings}
        return str(make_run(tmp_path, name, reward=given, sft=report(60), grpo=report(100)))

    ours = reward("ours", {"name": "numeric"})
    paid = reward("paid", {"name": "numeric", "weight": 0}, {"name": "mine.py:noise", "label": "noise"})
    assert compare_run(ours, control=paid).control
    for name, function, settings, says in (
        ("exact", {"name": "exact"}, {}, "what decides success there is exact, and here numeric"),
        ("loose", {"name": "numeric", "params": {"abs_tol": 1}}, {}, 'what numeric is given there is {"abs_tol": 1}'),
        ("half", {"name": "numeric"}, {"success_at": 0.5}, "reward.success_at there is 0.5, and here 1"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=re.escape(says)):
            compare_run(ours, control=reward(name, function, **settings))


def test_a_control_within_the_run_counts_and_the_strongest_one_does(tmp_path: Path) -> None:
    path = make_run(tmp_path, sft=report(60), grpo=report(100), control_random=report(40), control_sft=report(110))
    found = compare_run(path)
    assert found.names[2] == "control_sft"
    assert not found.passed


def test_json_has_stable_keys_and_plain_values(tmp_path: Path) -> None:
    path = make_run(tmp_path, sft=report(60), grpo=report(100))
    values = json.loads(compare_run(path).json())
    assert list(values) == ["passed", "before", "after", "control", "paired", "greedy", "clauses"]
    assert values["before"]["stage"] == "sft" and values["after"]["success"] == 0.5
    assert values["paired"]["difference"] == pytest.approx(0.2) and values["control"] is None
    assert "outcomes" not in values["after"]


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    empty = make_run(tmp_path, "empty")
    with pytest.raises(RecipeError, match=r"has no test report to compare; `milepost run RECIPE` tests at its end"):
        compare_run(empty)
    with Run.open(empty, write=True) as run:
        run.set_status("stopped")
    with pytest.raises(RecipeError, match=rf"`milepost resume {empty}` finishes it"):
        compare_run(empty)
    path = make_run(tmp_path, base=report(0), sft=report(60))
    with pytest.raises(RecipeError, match=r"--after grpo: .* has no test report of that stage; it has base, sft"):
        compare_run(path)
    with pytest.raises(RecipeError, match=r"--before and --after are both sft"):
        compare_run(path, before="sft", after="sft")
    with pytest.raises(RecipeError, match=r"--control .*: it has no test report"):
        compare_run(path, after="sft", control=str(empty))
    other = make_run(tmp_path, "other", base=report(0, prefix="u"))
    with pytest.raises(RecipeError, match=r"--control .*: none of its test reports is of the same tasks"):
        compare_run(path, after="sft", control=str(other))


def test_a_model_is_evaluated_sampled_and_greedily_and_stored(tmp_path: Path) -> None:
    new_policy(tmp_path / "tiny", charset="0123456789+= ", layers=1, width=32, heads=2)
    rows = [{"prompt": f"{i} =", "answer": str(i)} for i in range(40)]
    recipe = make_recipe({
        "name": "r", "out": str(tmp_path / "runs"), "model": {"path": str(tmp_path / "tiny")},
        "tasks": {"validation": 8, "test": 4}, "reward": {"functions": [{"name": "exact"}]},
        "rollout": {"max_new_tokens": 3}, "eval": {"samples": 4, "temperature": 0.7},
    })  # fmt: skip
    found = evaluate_recipe(recipe, "validation", rows=rows)
    assert found.run == tmp_path / "runs" / "r-eval"
    assert (found.report.num_tasks, found.report.samples) == (8, 4)
    assert found.report.greedy is not None
    assert list(found.pass_at()) == [1, 2, 4]
    assert found.pass_at()[1].mean == pytest.approx(found.report.success)
    with Run.open(found.run) as run:
        stored = run.evals("validation")
        assert [EvalReport.from_json(s.report) for s in stored] == [found.report]
        assert run.status == "finished"
        assert len(list(run.episodes(split="validation"))) == 32
    for part in ("8 validation tasks, 4 samples each", "greedy", "pass@4", "temperature 0.7, top_p 1.0, max_new_tokens 3"):
        assert part in found.text()
    assert json.loads(found.json())["pass_at"]["2"]["mean"] == found.pass_at()[2].mean
    with pytest.raises(RecipeError, match=r"tasks.test = 0 leaves nothing to evaluate"):
        evaluate_recipe(recipe.model_copy(update={"tasks": recipe.tasks.model_copy(update={"test": 0})}), "test", rows=rows)


def test_pass_at_k_of_two_samples_by_hand() -> None:
    # Two tasks, two samples: (1, 0) and (0, 0). pass@1 = (1/2 + 0)/2 = .25; pass@2 = (1 + 0)/2 = .5.
    of = EvalReport("validation", 0, 2, 2, DECODING, 0.25, 0.0, 0.5, {"a": (True, False), "b": (False, False)})
    found = Evaluation("m", Path("runs/x"), of)
    assert {k: i.mean for k, i in found.pass_at().items()} == {1: 0.25, 2: 0.5}

"""Controls of a finished run: the warm start goes on, or GRPO learns from coin tosses, at the cost of its own GRPO."""

from __future__ import annotations

import pytest
import torch
from small import killed_after, recipe_file, sorting_rows, write_policy

from milepost.cli import main
from milepost.stages import controls
from milepost.stages.compare import compare_run, cpu_of, stored_tests
from milepost.store import Run
from milepost.types import RecipeError

ROWS = sorting_rows(num=200)
SHORT = {"sft__steps": 6, "grpo__steps": 3, "tasks__test": 16}


def finished(folder, **changes):
    torch.set_num_threads(1)
    recipe = recipe_file(folder, write_policy(folder / "policy", ROWS), ROWS, **{**SHORT, **changes})
    assert main(["run", str(recipe)]) == 0
    return folder / "runs" / "run"


def test_a_control_starts_from_the_warm_start_costs_what_grpo_cost_and_is_judged_with_it(tmp_path, capsys):
    folder = finished(tmp_path)
    assert compare_run(folder).control is None
    with killed_after(1, of="control-sft"):
        controls.add_controls(folder, controls.CONTROLS)
    with Run.open(folder) as run:
        assert "control-sft" not in stored_tests(run)  # what was broken off is no control
    assert main(["control", str(folder), "--random"]) == 0
    assert "control-sft" in capsys.readouterr().out
    with Run.open(folder) as run:
        tests, budget = stored_tests(run), cpu_of(run, "grpo")
        assert {*tests} == {"base", "sft", "grpo", *controls.CONTROLS} and run.status == "finished"
        for stage in controls.CONTROLS:
            seconds = [value for _, value in run.metrics("cpu_seconds", stage)]
            assert sum(seconds) >= budget > sum(seconds[:-1])  # the step that used the budget up was the last
            assert tests[stage].outcomes.keys() == tests["grpo"].outcomes.keys()
        losses = {stage: [value for _, value in run.metrics("loss", stage)] for stage in ("sft", "control-sft")}
    assert losses["control-sft"][0] < losses["sft"][0]  # it goes on, and does not begin anew
    compared = compare_run(folder)
    assert compared.control is not None and compared.control.success == max(tests[s].success for s in controls.CONTROLS)


def test_what_is_tested_is_not_made_again(tmp_path, monkeypatch):
    folder = finished(tmp_path)
    controls.add_controls(folder, ["control-sft"])
    monkeypatch.setattr(controls, "open_session", lambda *_, **__: pytest.fail("there is nothing to do"))
    controls.add_controls(folder, ["control-sft"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"grpo__steps": 0}, "holds no test of GRPO"), ({"sft__steps": 0}, "has no warm start"),
     ({"tasks__test": 0}, "holds no test of GRPO")],
)  # fmt: skip
def test_without_a_warm_start_or_a_test_there_is_nothing_to_compare(tmp_path, changes, sentence):
    folder = finished(tmp_path, **changes)
    with pytest.raises(RecipeError, match=sentence):
        controls.add_controls(folder, controls.CONTROLS)

"""Sweeps: what is refused, what is shared, and that a finished run is never run again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from milepost.evaluate import EvalReport, task_interval
from milepost.launch import open_session
from milepost.policy import new_policy
from milepost.recipe import load_recipe
from milepost.stages.compare import stored_tests
from milepost.stages.pipeline import run_pipeline
from milepost.stages.sweep import merged, plan, read_over, sweep, table
from milepost.stages.trials import Trial, judgement, read_seeds, reports_of, warm_start
from milepost.store import Run
from milepost.types import RecipeError

RECIPE = """
name = "s"
out = "{root}/runs"
[model]
path = "{root}/tiny"
[tasks]
validation = 4
test = 8
[[tasks.sources]]
path = "{root}/tasks.jsonl"
[[reward.functions]]
name = "exact"
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 3
[sft]
steps = 3
batch_size = 8
demonstrations = "{{answer}}"
[grpo]
steps = 1
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    new_policy(tmp_path / "tiny", charset="0123456789+= ", layers=1, width=32, heads=2)
    rows = [{"prompt": f"{i} =", "answer": str(i)} for i in range(40)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(root=tmp_path))
    return path


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("optimizer.lr=5e-6,1e-5", ("optimizer.lr", ["5e-6", "1e-5"])),
        ("optimizer.betas=[0.9, 0.95],[0.9, 0.99]", ("optimizer.betas", ["[0.9, 0.95]", "[0.9, 0.99]"])),
        ('preset="grpo", "dapo"', ("preset", ['"grpo"', '"dapo"'])),
        ("grpo.steps = 5", ("grpo.steps", ["5"])),
    ],
)
def test_values_are_split_at_commas_of_their_own(over: str, expected: tuple) -> None:
    assert read_over(over) == expected


@pytest.mark.parametrize("over", ["optimizer.lr", "optimizer.lr=", "=1", "optimizer.lr=1,1", "seed=0,1"])
def test_a_sweep_over_nothing_is_refused(over: str) -> None:
    with pytest.raises(RecipeError, match="--over"):
        read_over(over)


def test_seeds_are_different_whole_numbers() -> None:
    assert read_seeds("0, 3") == [0, 3]
    assert read_seeds("0-2,7") == [0, 1, 2, 7]
    for wrong in ("", "a", "1,1", "-1", "0,", "0-", "3-1", "0-3,2", "1-2-3"):
        with pytest.raises(RecipeError, match="--seeds"):
            read_seeds(wrong)


def test_more_seeds_than_anybody_runs_are_refused_at_once() -> None:
    assert len(read_seeds("0-999")) == len(read_seeds("0,2-1000")) == 1000
    for many in ("0-1000", "0-99999999999", "0-998,2000,2001"):
        with pytest.raises(RecipeError, match=f"--seeds {many} names more than 1000 seeds; ten, 0-9, are usual"):
            read_seeds(many)
    for large in ("9" * 5000, f"0-{2**53 + 1}"):
        with pytest.raises(RecipeError, match=rf"--seeds {large[:18]}.*: a seed is at most {2**53}; 0-9 works"):
            read_seeds(large)
    with pytest.raises(RecipeError, match="must be different whole numbers"):
        read_seeds("²")


def test_a_seed_among_the_overrides_is_refused(recipe: Path) -> None:
    with pytest.raises(RecipeError, match=r"^seed = 4 does nothing, for --seeds says which seeds are run; use --seeds"):
        sweep(recipe, ["tasks.test=4", "seed = 4"], "optimizer.lr=1e-3", "0")


def test_every_recipe_is_checked_before_the_first_run(recipe: Path) -> None:
    trials = plan(recipe, [], "optimizer.lr", ["1e-3", "3e-3"], [0, 1])
    assert [trial.recipe.name for trial in trials] == ["s-1e-3-s0", "s-3e-3-s0", "s-1e-3-s1", "s-3e-3-s1"]
    assert [trial.recipe.optimizer.lr for trial in trials] == [1e-3, 3e-3, 1e-3, 3e-3]
    for overrides, over, wrong in (
        ([], "rollout.group_size=4,1", "rollout.group_size = 1"),
        (["tasks.test=0"], "optimizer.lr=1e-3", "tasks.test = 0"),
        ([], "grpo.steps=1,0", "grpo.steps = 0"),
        ([], "optimizer.rate=1", "not a setting"),
    ):
        with pytest.raises(RecipeError, match=re.escape(wrong)):
            sweep(recipe, overrides, over, "0")
    assert not (recipe.parent / "runs").exists()


def test_only_what_the_warm_start_depends_on_forbids_sharing_it(recipe: Path) -> None:
    plain = load_recipe(recipe)
    for same in (
        "optimizer.lr=1",
        "rollout.group_size=8",
        "grpo.steps=9",
        "loss.objective=gspo",
        "name=other",
        "kl.beta=.1",
    ):
        assert warm_start(load_recipe(recipe, [same])) == warm_start(plain), same
    for other in (
        "seed=1",
        "sft.steps=4",
        "sft.lr=1e-4",
        "optimizer.weight_decay=0.1",
        "tasks.test=9",
        "model.precision=bfloat16",
        "reward.success_at=0.5",
    ):
        assert warm_start(load_recipe(recipe, [other])) != warm_start(plain), other


def test_what_an_environment_judges_does_not_depend_on_what_is_paid_for_it(recipe: Path) -> None:
    played = ["env.name=calc", "reward.functions=[]"]
    plain = load_recipe(recipe, played)
    for same in ("reward.milestones={step=0.1}", "reward.milestones={result=0.2}"):
        other = load_recipe(recipe, [*played, same])
        assert (warm_start(other), judgement(other)) == (warm_start(plain), judgement(plain))
    for changes in ("env.max_turns=3", "rollout.max_new_tokens=5"):
        other = load_recipe(recipe, [*played, changes])
        assert warm_start(other) != warm_start(plain)
        assert judgement(other) != judgement(plain)
    # Without a warm start the base model is what GRPO is compared with, so that it is tested as thoroughly.
    assert judgement(load_recipe(recipe, ["sft.steps=0"])) != judgement(load_recipe(recipe))


def test_a_sweep_shares_the_warm_start_and_repeats_nothing(recipe: Path) -> None:
    text = sweep(recipe, [], "optimizer.lr=1e-3,3e-2", "0,1")
    runs = recipe.parent / "runs"
    assert sorted(path.name for path in runs.iterdir()) == ["s-1e-3-s0", "s-1e-3-s1", "s-3e-2-s0", "s-3e-2-s1"]
    for seed in (0, 1):
        first, second = runs / f"s-1e-3-s{seed}", runs / f"s-3e-2-s{seed}"
        masters = "checkpoints/sft/step-000003/masters.pt"
        assert (first / masters).read_bytes() == (second / masters).read_bytes()
        with Run.open(first) as one, Run.open(second) as two:
            assert one.phases() == ["sft", "grpo"]
            assert two.phases() == ["grpo"]  # its warm start was not trained again
            assert list(two.episodes(phase="sft", split="test")) == []  # nor tested again: only the report came over
            before, after = stored_tests(one), stored_tests(two)
        assert list(before) == list(after) == ["base", "sft", "grpo"]
        assert (before["base"], before["sft"]) == (after["base"], after["sft"])
    rows = [re.split(r"\s{2,}", line) for line in text.splitlines()]
    assert rows[0] == ["optimizer.lr", "seed", "before", "after", "gain", "greedy", "CPU-s"]
    for row, name in zip(rows[1:5], ("s-1e-3-s0", "s-1e-3-s1", "s-3e-2-s0", "s-3e-2-s1")):
        with Run.open(runs / name) as run:
            assert float(row[6]) == pytest.approx(
                sum(seconds for _, seconds in run.metrics("cpu_seconds", "grpo")), abs=0.5
            )
    assert [row[:2] for row in rows[1:7]] == [["1e-3", "0"], ["1e-3", "1"], ["3e-2", "0"], ["3e-2", "1"],
                                              ["1e-3", "all 2"], ["3e-2", "all 2"]]  # fmt: skip
    assert "did best; against it, on the same tasks and seeds:" in rows[7][0]

    stamps = {path: path.stat().st_mtime_ns for path in runs.glob("*/checkpoints/*/*/manifest.json")}
    assert sweep(recipe, [], "optimizer.lr=1e-3,3e-2", "0,1") == text
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/checkpoints/*/*/manifest.json")} == stamps


def test_sharing_changes_no_outcome_and_a_broken_sweep_goes_on(recipe: Path) -> None:
    trials = plan(recipe, [], "optimizer.lr", ["1e-3", "3e-2"], [0])
    expected = []
    for trial in trials:
        with open_session(trial.recipe.model_copy(update={"out": str(recipe.parent / "alone")}), quiet=True) as session:
            expected.append(run_pipeline(session))
    with open_session(
        trials[1].recipe, quiet=True
    ) as session:  # broken off after its warm start, which the other one links
        run_pipeline(session, stages=("sft",))
    sweep(recipe, [], "optimizer.lr=1e-3,3e-2", "0")
    for trial, alone in zip(trials, expected):
        with Run.open(trial.path) as run:
            assert stored_tests(run) == alone
            assert run.status == "finished"
    with Run.open(trials[0].path) as run:
        assert run.phases() == ["grpo"]


def test_a_run_of_another_recipe_is_not_taken_for_its_own(recipe: Path) -> None:
    (trial,) = plan(recipe, [], "optimizer.lr", ["1e-3"], [0])
    Run.create(trial.recipe.out, trial.recipe.model_copy(update={"seed": 5})).close()
    with pytest.raises(RecipeError, match=r"s-1e-3-s0 was made by another recipe; delete it"):
        sweep(recipe, [], "optimizer.lr=1e-3", "0")


def report(right: int, num: int = 10) -> EvalReport:
    outcomes = {f"t{i}": (i < right,) for i in range(num)}
    interval = task_interval(outcomes.values())
    return EvalReport("test", 1, num, 1, {}, interval.mean, interval.low, interval.high, outcomes,
                      greedy=right / num, greedy_outcomes={k: v[0] for k, v in outcomes.items()})  # fmt: skip


def test_runs_in_another_version_of_the_environment_are_not_taken_up(recipe: Path) -> None:  # case E11
    """Finished ones are only read: nobody else would compare the version they were played in."""
    made = load_recipe(recipe, ["env.name=calc", "reward.functions=[]", "name=s-x-s0"])
    with Run.create(made.out, made, meta={"environment": "calc 0"}) as run:
        run.add_eval("grpo", 1, EvalReport("test", 1, 1, 1, {}, 1.0, 1.0, 1.0, {"t": (True,)}))
        run.set_status("finished")
    trial = Trial("x", 0, made)
    with pytest.raises(RecipeError, match=r"was played in calc 0, but env\.name now gives calc 1"):
        reports_of(trial, [trial], "", "x")
    with Run.open(trial.path, write=True) as run:
        run.set_meta(environment="calc 1")
    assert list(reports_of(trial, [trial], "", "x")) == ["grpo"]


def test_tasks_of_all_seeds_are_pooled() -> None:
    both = merged({0: report(2), 1: report(6, 30)})
    assert both.num_tasks == 40
    assert both.success == pytest.approx(8 / 40)  # 2 of 10 and 6 of 30, each task counts once
    assert merged({0: report(10), 1: report(0, 30)}).success == pytest.approx(10 / 40)
    assert both.greedy == pytest.approx(8 / 40)


def test_the_table_compares_values_on_common_seeds_and_names_what_stopped(recipe: Path) -> None:
    trials = plan(recipe, [], "optimizer.lr", ["1e-3", "3e-3"], [0, 1])
    results = {
        ("1e-3", 0): {"base": report(0), "grpo": report(3)},
        ("1e-3", 1): {"base": report(0), "grpo": report(9)},
        ("3e-3", 0): {"base": report(0), "grpo": report(5)},
    }
    lines = table("optimizer.lr", trials, results, {("3e-3", 1): "step 2: no signal"}).splitlines()
    assert [re.split(r"\s{2,}", line)[:3] for line in lines[1:5]] == [
        ["1e-3", "0", "0.0 % [0.0, 30.8]"],
        ["1e-3", "1", "0.0 % [0.0, 30.8]"],
        ["3e-3", "0", "0.0 % [0.0, 30.8]"],
        ["3e-3", "1", "stopped"],
    ]  # 30.8 % = 1 − .025^(1/10)
    assert "3e-3, seed 1 stopped: step 2: no signal" in lines
    assert "optimizer.lr = 1e-3 did best; against it, on the same tasks and seeds:" in lines  # 12 of 20 against 5 of 10
    gap = next(line for line in lines if line.startswith("  3e-3: "))
    assert gap.startswith("  3e-3: +20.0 points")  # on seed 0 alone: 5 of 10 against 3 of 10


def test_a_trial_knows_its_folder(recipe: Path) -> None:
    assert Trial("1", 0, load_recipe(recipe)).path == recipe.parent / "runs" / "s"

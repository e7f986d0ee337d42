"""Ablations: both arms over paired seeds share what they can, go on after a kill, and say what they show."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import small_env
from small import Killed, as_toml, killed_after

from milepost import cli
from milepost.ablation_report import cost_lines, text, write_page
from milepost.arms import arms
from milepost.evaluate import EvalReport, paired, task_interval
from milepost.pairs import compare_seeds
from milepost.recipe import read_toml
from milepost.stages.ablate import SIDES, Ablation, ArmRun, ablate, facts, notes, plan
from milepost.stages.compare import stored_tests
from milepost.store import Run
from milepost.types import RecipeError

SETTINGS: dict[str, Any] = {
    "name": "next",
    "tasks": {"format": "text", "validation": 4, "test": 12, "sources": [{"kind": "environment", "size": 200}]},
    "env": {"name": "small_env:SPEC", "max_turns": 4, "max_invalid": 3},
    "rollout": {"max_new_tokens": 2, "prompts_per_step": 4, "group_size": 4},
    "reward": {"milestones": {"first": 0.1}, "milestone_cap": 0.2},
    "sft": {"demonstrations": "small_env:hasty", "steps": 6, "batch_size": 16, "lr": 1e-2},
    "grpo": {"steps": 3},
    "optimizer": {"lr": 3e-3},
    "eval": {"every": 2, "samples": 2, "test_samples": 2},
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_env.write_policy(tmp_path_factory.mktemp("small") / "policy", layers=1, width=32, heads=2)


def recipe_in(folder: Path, policy: Path, **sections: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = {**SETTINGS, "out": str(folder / "runs"), "model": {"path": str(policy)}, **sections}
    path = folder / "recipe.toml"
    path.write_text(as_toml(values), encoding="utf-8")
    return path


def outcomes(folder: Path) -> dict[str, Any]:
    """Every run's test verdicts and training figures, whatever its folder and clock."""
    found = {}
    for path in sorted(folder.glob("*-s*")):
        with Run.open(path) as run:
            tests = {stage: (report.outcomes, report.greedy_outcomes) for stage, report in stored_tests(run).items()}
            found[path.name] = (tests, run.metrics("reward/mean", "grpo"), run.metrics("loss", "grpo"))
    return found


def test_an_ablation_goes_on_where_it_was_killed_and_shares_the_warm_start(tmp_path: Path, policy: Path, capsys) -> None:
    whole = ablate(recipe_in(tmp_path / "whole", policy), without=["milestones"], seeds="0,1")
    said = capsys.readouterr().err
    assert "ablation 4/4: " in said
    assert re.search(r"pair 1 of 2, seed 0: .* with, .* without, [+-][\d.]+ points; about \d:\d\d left", said)

    path = recipe_in(tmp_path / "killed", policy)
    folder = tmp_path / "killed/runs/next-without-reward.milestones"
    with killed_after(2):
        ablate(path, without=["milestones"], seeds="0,1")  # in the first arm, after its second step of GRPO
    with _killed_in("without-s0"):
        ablate(path, without=["milestones"], seeds="0,1")
    assert not (folder / "ablation.json").exists()
    capsys.readouterr()
    again = ablate(path, without=["milestones"], seeds="0,1")
    said = capsys.readouterr().err
    assert said.count("is finished already") == 1
    assert outcomes(folder) == outcomes(whole.folder)
    assert len(outcomes(folder)) == 4
    assert [pair.difference for pair in again.effect().pairs] == [pair.difference for pair in whole.effect().pairs]

    for seed in (0, 1):
        with Run.open(folder / f"with-s{seed}") as one, Run.open(folder / f"without-s{seed}") as other:
            assert one.phases() == ["sft", "grpo"]
            assert other.phases() == ["grpo"]  # its warm start is linked
            assert one.recipe.reward.milestones == {"first": 0.1} and other.recipe.reward.milestones == {}
            assert other.recipe.reward.milestone_cap == 0.5  # went with the milestones
            paid, unpaid = stored_tests(one)["sft"], stored_tests(other)["sft"]
            assert unpaid.outcomes == paid.outcomes and "milestones" in paid.parts
            assert (unpaid.reward, unpaid.parts) == (None, {})  # what it would be paid there, nobody asked
            assert list(other.episodes(phase="sft", split="test")) == []
            assert other.metrics("reward/milestones", "grpo") == []
    assert again.shared_start
    first = again.runs[0, "without"]
    assert first.cpu_warm_start == again.runs[0, "with"].cpu_warm_start is not None
    _finished_ones_are_only_read(path, again, capsys)


@contextmanager
def _killed_in(name: str) -> Iterator[None]:
    """As `killed_after`, but in the run of this name, after its first step of GRPO."""
    commit = Run.commit_step

    def dies(run: Run, step: int, stage: str, *args: Any, **kwargs: Any) -> None:
        commit(run, step, stage, *args, **kwargs)
        if (run.name, stage) == (name, "grpo"):
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "commit_step", dies)
        with pytest.raises(Killed):
            yield


def _finished_ones_are_only_read(path: Path, result: Ablation, capsys) -> None:
    stamps = {file: file.stat().st_mtime_ns for file in result.folder.glob("*/checkpoints/*/*/manifest.json")}
    argv = ["ablate", str(path), "--without", "milestones", "--seeds", "0-1"]
    assert cli.main(argv) == 0
    shown = capsys.readouterr()
    assert {file: file.stat().st_mtime_ns for file in result.folder.glob("*/checkpoints/*/*/manifest.json")} == stamps
    assert shown.err.count("is finished already") == 4
    lines = shown.out.splitlines()
    assert lines[1:3] == ["  reward.milestones.first: with 0.1, without nothing",
                          "  reward.milestone_cap: with 0.2, without 0.5"]  # fmt: skip
    assert "reward.milestone_cap would do nothing without it and went with it" in lines[3]
    assert "2 pairs of runs can show nothing: even if all point one way, chance does that with p = .500" in shown.out
    assert "budget: equal steps of GRPO, 6 in each arm; tokens sampled in training: " in shown.out
    assert "made once per seed for both arms" in shown.out
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    for part in (
        "2 of 2 pairs of runs",
        "Held-out success during GRPO",
        "reward.milestones.first: with 0.1",
        "<svg",
        "<style>",
    ):
        assert part in page
    with (result.folder / "ablation.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["arm"], row["steps"]) for row in rows] == [
        ("0", "with", "3"), ("0", "without", "3"), ("1", "with", "3"), ("1", "without", "3"),
    ]  # fmt: skip
    assert cli.main([*argv, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values == json.loads((result.folder / "ablation.json").read_text(encoding="utf-8"))
    for row, run in zip(rows, values["runs"]):
        with Run.open(run["run"]) as stored:
            assert float(row["success"]) == run["success"] == stored_tests(stored)["grpo"].success
            assert run["tokens"] == sum(episode.episode.num_sampled for episode in stored.episodes(phase="grpo"))
    assert values["sampled"]["low"] is None and values["sampled"]["shown"] is False


def test_a_run_that_stops_itself_is_tested_all_the_same(tmp_path: Path, policy: Path) -> None:
    """Leaving it out would compare only the seeds that an arm got along with."""
    # Actions are cut before they end, so that nothing is ever earned.
    path = recipe_in(tmp_path, policy, grpo={"steps": 3, "no_signal": "stop", "truncated_batch": "stop"}, sft={"steps": 0})
    result = ablate(path, ["rollout.max_new_tokens=1", "env.max_turns=1"], without=["milestones"], seeds="0,1")
    assert result.paired_seeds == [0, 1]
    assert all(run.stopped and run.steps == 1 and run.after.success == 0 for run in result.runs.values())
    stops = [note for note in notes(result) if "stopped itself" in note]
    assert len(stops) == 4
    assert re.match(r"seed 0 with stopped itself at step 1 \(.+\); its best checkpoint until there was tested", stops[0])
    for run in result.runs.values():  # without a warm start the base model is what GRPO is compared with: once per seed
        with Run.open(run.path) as stored:
            assert stored_tests(stored)["base"].greedy == 0
            played = list(stored.episodes(phase="base", split="test"))
            assert (len(played) == 24) == (run.arm == "with")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--without", "milestone"], "neither a key of this recipe nor a part of its reward; did you mean milestones? "),
        (["--without", "kl.beta"], "--without kl.beta: the recipe does not set kl.beta, which is at its default"),
        ([], "name what the other arm lacks (--without milestones) or has (--with kl.beta=0.02), one of the two"),
        (["--without", "sft", "--with", "kl.beta=1"], "kl.beta=0.02), not both"),
        (["--without", "grpo"], "the arm without grpo: grpo.steps = 0, but an ablation compares tests after GRPO"),
        (["--without", "sft.demonstrations"], "the arm without sft.demonstrations: sft.demonstrations is empty"),
        (["--with", "reward.milestones.second=0.1"], "the environment next has no 'second'; it has first"),
        (["--with", "reward.milestones.first=1.5", "--with", "reward.milestone_cap=2"],
         "the reward lets a failure outscore a success"),
        (["--without", "first", "--seeds", "7"], "--seeds 7 names a single seed, and one pair shows nothing; the default "
         "is 0-9; for 7 of them write 0-6"),
        (["--without", "first", "--seeds", "0-99999999999"], "--seeds 0-99999999999 names more than 1000 seeds; ten, 0-9"),
        (["seed=4", "--without", "first"], "seed=4 does nothing, for --seeds says which seeds are run; use --seeds"),
        (["--without", "first", "--seeds", "a"], "--seeds 'a' must be different whole numbers, for example 0,1 or 0-9"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_before_the_first_run(
    tmp_path: Path, policy: Path, argv: list[str], sentence: str, capsys
) -> None:
    assert cli.main(["ablate", str(recipe_in(tmp_path, policy)), *argv]) == 2
    said = capsys.readouterr().err
    assert sentence in said, said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_of_another_recipe_is_not_taken_for_its_own(tmp_path: Path, policy: Path) -> None:
    path = recipe_in(tmp_path, policy)
    trial = plan(arms(read_toml(path)[0], without=["milestones"]), [0, 1])[0]
    Run.create(trial.recipe.out, trial.recipe.model_copy(update={"seed": 5})).close()
    with pytest.raises(RecipeError, match=r"with-s0 was made by another recipe; delete it, or give these another `name`"):
        ablate(path, without=["milestones"], seeds="0,1")


# --- what is told, with numbers made by hand --------------------------------------------------------------------------


def report(right: int, num: int = 10) -> EvalReport:
    verdicts = {f"t{i}": (i < right,) for i in range(num)}
    interval = task_interval(verdicts.values())
    return EvalReport("test", 1, num, 1, {}, interval.mean, interval.low, interval.high, verdicts,
                      greedy=right / num, greedy_outcomes={k: v[0] for k, v in verdicts.items()})  # fmt: skip


def made(with_: list[int], without: list[int], **changes: Any) -> Ablation:
    """Finished runs with so many right of ten, 1,200 tokens and 60 CPU-seconds with it, 1,000 and 50 without."""
    values = {"env": {"name": "small_env:SPEC"}, "reward": {"milestones": {"first": 0.1}}, **changes}
    runs = {}
    for seed, rights in enumerate(zip(with_, without)):
        for arm, right, tokens, cpu in zip(SIDES, rights, (1200, 1000), (60.0, 50.0)):
            runs[seed, arm] = ArmRun(seed, arm, Path(f"runs/{arm}-s{seed}"), report(0), report(right), 3, tokens, cpu, 7.0,
                                     ((0, 0.1), (3, right / 10)))  # fmt: skip
    return Ablation("r.toml", Path("runs/x"), arms(values, without=["milestones"]), tuple(range(len(with_))), runs, True)


def test_the_table_and_the_costs_by_hand() -> None:
    result = made([6, 8, 7, 9, 5, 8], [5, 5, 5, 5, 4, 6])
    lines = text(result).splitlines()
    assert lines[0] == "reward.milestones: r.toml with it and without it, 6 pairs of runs"
    header = next(i for i, line in enumerate(lines) if line.startswith("seed"))
    one = paired(report(5), report(6))
    first = re.split(r"\s{2,}", lines[header + 1])
    assert first == ["0", "60.0 %", "50.0 %", "+10.0", f"[{100 * one.low95:+.1f}, {100 * one.high95:+.1f}]", "60.0 %",
                     "50.0 %", "1,200", "1,000", "60", "50"]  # fmt: skip
    assert re.split(r"\s{2,}", lines[header + 7]) == ["mean", "71.7 %", "50.0 %", "+21.7", "71.7 %", "50.0 %", "1,200",
                                                      "1,000", "60", "50"]  # fmt: skip
    assert (
        "final success, sampled: 71.7 % with, 50.0 % without, +21.7 points, 95 % [+10.0, +40.0], p = .031, 6 pairs" in lines
    )
    assert cost_lines(result) == [
        "budget: equal steps of GRPO, 18 in each arm; tokens sampled in training: 7,200 with, 6,000 without (1.20 times as "
        "many)",
        "CPU-seconds of GRPO, processes that score included: 360 with, 300 without",
        "CPU-seconds of the warm start: 42, made once per seed for both arms",
    ]
    assert lines[-1].startswith("reward.milestones helps here: +21.7 points")
    assert notes(result) == ["50 test tasks stand in the tests of several seeds: the interval speaks of seeds, and of "
                             "tasks only as far as these go"]  # fmt: skip
    assert (
        facts(result)["sampled"]["difference"]
        == compare_seeds(
            {seed: (report(a), report(b)) for seed, (a, b) in enumerate(zip([6, 8, 7, 9, 5, 8], [5, 5, 5, 5, 4, 6]))}
        ).difference
    )


def test_unfinished_pairs_are_counted() -> None:
    result = made([6, 8], [5, 5])
    runs = {key: run for key, run in result.runs.items() if key != (1, "without")}
    part = Ablation(result.recipe, result.folder, result.arms, result.seeds, runs, True)
    assert part.paired_seeds == [0]
    assert part.verdict.endswith("(1 of 2 pairs are not finished)")
    none = Ablation(result.recipe, result.folder, result.arms, result.seeds, {}, True)
    assert none.verdict == "no pair is finished (2 of 2 pairs are not finished)"
    assert none.effect() is None and "seed" not in text(none)


def test_the_page_holds_what_the_terminal_says(tmp_path: Path) -> None:
    shown = made([6, 8, 7, 9, 5, 8], [5, 5, 5, 5, 4, 6])
    result = Ablation(shown.recipe, tmp_path, shown.arms, shown.seeds, shown.runs, True)
    page = write_page(result).read_text(encoding="utf-8")
    assert 'class="card verdict met"' in page
    for line in (*cost_lines(result), "71.7 %", "[+10.0, +40.0]", "exact, with the seed as the unit"):
        assert line in page
    assert "http" not in page.replace("http://www.w3.org", "")  # nothing is fetched

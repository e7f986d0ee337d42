"""Is a part of a recipe worth anything? Both arms, with it and without it, over paired seeds: `milepost ablate`.

Each seed gives two runs that share all they have in common before GRPO (`trials`), are tested on the same unseen tasks
under the same noise, and so make one pair; `pairs` says what all of them show. Everything is read back from the runs'
own folders: a stopped ablation goes on when the same command is given once more, and a finished one is only told again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from milepost.arms import Arms, arms
from milepost.disk import write_whole
from milepost.envs.find import find_env
from milepost.evaluate import EvalReport
from milepost.health.order import check_functions, prove
from milepost.pairs import Effect, compare_seeds, verdict
from milepost.progress import clock, say
from milepost.recipe import Recipe, apply_override, read_toml
from milepost.reward_spec import make_reward
from milepost.stages.compare import cpu_of
from milepost.stages.trials import Trial, check_no_seed, check_trial, read_seeds, reports_of, warm_start, warm_start_cpu
from milepost.store import Run
from milepost.types import RecipeError
from milepost.world import check_world

SIDES = ("with", "without")


@dataclass(frozen=True)
class ArmRun:
    """One finished run, as its store tells it."""

    seed: int
    arm: str
    path: Path
    before: EvalReport
    """Test before GRPO: of the warm start, else of the base model."""
    after: EvalReport
    steps: int
    """Of GRPO, as far as it came."""
    tokens: int
    """Sampled in training; validation and test not counted."""
    cpu_grpo: float | None
    cpu_warm_start: float | None
    curve: tuple[tuple[int, float], ...]
    """(step, validation success) during GRPO."""
    stopped: str = ""
    """Why GRPO stopped itself, if it did; then its best checkpoint until there was tested."""


@dataclass(frozen=True)
class Ablation:
    """What is finished of an ablation, and what it shows."""

    recipe: str
    folder: Path
    arms: Arms
    seeds: tuple[int, ...]
    """All that are planned."""
    runs: Mapping[tuple[int, str], ArmRun]
    shared_start: bool
    """Whether both arms of a seed begin GRPO from the very same weights."""

    @property
    def paired_seeds(self) -> list[int]:
        return [seed for seed in self.seeds if all((seed, arm) in self.runs for arm in SIDES)]

    def effect(self, *, greedy: bool = False) -> Effect | None:
        """None while there is no pair, or none with a greedy part."""
        pairs = {seed: (self.runs[seed, "with"].after, self.runs[seed, "without"].after) for seed in self.paired_seeds}
        if greedy and not all(report.greedy_outcomes for pair in pairs.values() for report in pair):
            return None
        return compare_seeds(pairs, greedy=greedy) if pairs else None

    def of(self, arm: str) -> list[ArmRun]:
        """The arm's runs of all whole pairs, by seed."""
        return [self.runs[seed, arm] for seed in self.paired_seeds]

    @property
    def verdict(self) -> str:
        effect = self.effect()
        left = len(self.seeds) - len(self.paired_seeds)
        unfinished = f" ({left} of {len(self.seeds)} pairs are not finished)" if left else ""
        return (verdict(effect, self.arms.what) if effect else "no pair is finished") + unfinished


def ablate(
    recipe_path: str | Path, overrides: Sequence[str] = (), *, without: Sequence[str] = (), with_: Sequence[str] = (),
    seeds: str = "0-9",
) -> Ablation:  # fmt: skip
    """Makes what is missing of both arms over all seeds and compares them; `ablation.json` and `ablation.csv` are written
    into the folder after every pair.

    Everything is checked before the first run. Raises RecipeError, DataError or StoreError.
    """
    check_no_seed(overrides)
    found = _arms(recipe_path, overrides, without, with_)
    trials = plan(found, _seeds(seeds))
    toml = Path(recipe_path).read_text(encoding="utf-8")
    began, made = time.monotonic(), 0
    for number, trial in enumerate(trials, 1):
        known = _is_finished(trial)
        reports_of(trial, trials, toml, f"ablation {number}/{len(trials)}", test_stopped=True)
        made += not known
        if trial.value == SIDES[-1]:
            result = read(recipe_path, found, trials)
            write(result)
            left = (
                (time.monotonic() - began) / made * sum(not _is_finished(one) for one in trials[number:]) if made else 0.0
            )
            say(_pair_line(result, trial.seed, left))
    return result


def _arms(recipe_path: str | Path, overrides: Sequence[str], without: Sequence[str], with_: Sequence[str]) -> Arms:
    values, _ = read_toml(recipe_path)
    for override in overrides:
        apply_override(values, override)
    return arms(values, without=without, with_=with_)


def _seeds(seeds: str) -> list[int]:
    found = read_seeds(seeds)
    if len(found) == 1:
        few = f"; for {found[0]} of them write 0-{found[0] - 1}" if found[0] > 1 else ""
        raise RecipeError(f"--seeds {seeds} names a single seed, and one pair shows nothing; the default is 0-9{few}")
    return found


def plan(found: Arms, seeds: Sequence[int]) -> list[Trial]:
    """Both arms of the first seed, then of the next. Raises RecipeError for an arm that could not be trained or tested."""
    for arm, recipe in zip(SIDES, (found.with_, found.without)):
        try:
            check_trial(recipe, "an ablation")
            _check_reward(recipe)
        except RecipeError as error:
            raise RecipeError(f"the arm {arm} {found.what}: {error}") from None
    folder = folder_of(found)
    return [
        Trial(arm, seed, recipe.model_copy(update={"name": f"{arm}-s{seed}", "seed": seed, "out": str(folder)}))
        for seed in seeds
        for arm, recipe in zip(SIDES, (found.with_, found.without))
    ]


def folder_of(found: Arms) -> Path:
    """The ablation's folder, which holds its runs: runs/calc-without-reward.milestones."""
    return Path(found.with_.out) / f"{found.with_.name}-{found.slug}"


def _check_reward(recipe: Recipe) -> None:
    """What a run would refuse: found now, and not when the other arm has been trained for an hour."""
    if recipe.env.name:
        spec = find_env(recipe.env.name, "env.name")
        check_world(recipe, spec)
        order = prove(make_reward(recipe, spec), spec, recipe)
    else:
        order = check_functions(recipe)
    if order.counter_examples and recipe.reward.audit == "refuse" and not recipe.grpo.random_reward:
        raise RecipeError(f"the reward lets a failure outscore a success: {order.counter_examples[0].text}; mend [reward], "
                          'or train with it all the same by reward.audit = "warn"')  # fmt: skip


# --- reading back -----------------------------------------------------------------------------------------------------


def _is_finished(trial: Trial) -> bool:
    return read_run(trial, [trial]) is not None


def read(recipe_path: str | Path, found: Arms, trials: Sequence[Trial]) -> Ablation:
    """The ablation as far as its runs are finished."""
    runs = {(trial.seed, trial.value): run for trial in trials if (run := read_run(trial, trials))}
    seeds = tuple(dict.fromkeys(trial.seed for trial in trials))
    shared = bool(found.with_.sft.steps) and warm_start(found.with_) == warm_start(found.without)
    return Ablation(str(recipe_path), folder_of(found), found, seeds, runs, shared)


def read_run(trial: Trial, trials: Sequence[Trial]) -> ArmRun | None:
    """What a run's store says; None until it was tested."""
    if not (trial.path / "store.sqlite").is_file():
        return None
    with Run.open(trial.path) as run:
        tests = {stored.phase: EvalReport.from_json(stored.report) for stored in run.evals("test")}
        if "grpo" not in tests:
            return None
        stops = [event.message for event in run.events("stop") if event.phase == "grpo"]
        return ArmRun(
            trial.seed, trial.value, trial.path, tests.get("sft", tests["base"]), tests["grpo"],
            run.last_step("grpo") or 0, int(sum(num for _, num in run.metrics("tokens/sampled", "grpo"))),
            cpu_of(run, "grpo"), warm_start_cpu(trial, trials),
            tuple((stored.step, EvalReport.from_json(stored.report).success) for stored in run.evals("validation", "grpo")),
            stops[-1] if stops else "",
        )  # fmt: skip


# --- telling ----------------------------------------------------------------------------------------------------------

METHOD = (
    "Each seed is one pair: both arms from this seed, tested on the same unseen tasks under the same sampling noise; its "
    "difference is the mean over tasks of success with − success without. The interval comes from the means of all subsets "
    "of the pairs' differences, p from all changes of their signs: exact, with the seed as the unit, since a seed decides "
    "tasks, training and noise. A pair's own interval comes from resampling its tasks and says nothing about other seeds."
)


def notes(result: Ablation) -> list[str]:
    """What a reader has to know before he believes the numbers."""
    found = []
    effect = result.effect()
    if effect and effect.num_recurring:
        found.append(f"{effect.num_recurring} test tasks stand in the tests of several seeds: the interval speaks of "
                     "seeds, and of tasks only as far as these go")  # fmt: skip
    if result.arms.played_apart:
        found.append(
            f"each arm is tested as it was trained: {', '.join(result.arms.played_apart)} differs in the tests too"
        )
    found += [f"seed {run.seed} {run.arm} stopped itself at step {run.steps} ({run.stopped}); its best checkpoint until "
              "there was tested" for run in result.runs.values() if run.stopped]  # fmt: skip
    left_out = sum(pair.over_tasks.left_out for pair in effect.pairs) if effect else 0
    if left_out:
        found.append(f"{left_out} tasks could not be judged in one of the arms and are left out of their pair")
    return found


def _pair_line(result: Ablation, seed: int, left: float) -> str:
    effect = result.effect()
    assert effect is not None
    pair = next(pair for pair in effect.pairs if pair.seed == seed)
    ahead = f"; about {clock(left)} left" if left else ""
    return (f"pair {len(effect.pairs)} of {len(result.seeds)}, seed {seed}: {percent(pair.with_)} with, "
            f"{percent(pair.without)} without, {100 * pair.difference:+.1f} points{ahead}")  # fmt: skip


def percent(rate: float | None) -> str:
    return "–" if rate is None or math.isnan(rate) else f"{100 * rate:.1f} %"


# --- files ------------------------------------------------------------------------------------------------------------


def facts(result: Ablation) -> dict[str, Any]:
    """Plain values of everything that is told: the content of ablation.json."""
    return {
        "what": result.arms.what, "form": result.arms.form, "recipe": result.recipe, "seeds": list(result.seeds),
        "paired_seeds": result.paired_seeds, "verdict": result.verdict,
        "changes": [asdict(change) for change in result.arms.changes], "went_along": list(result.arms.went_along),
        "sampled": _effect(result.effect()), "greedy": _effect(result.effect(greedy=True)),
        "shared_warm_start": result.shared_start, "notes": notes(result), "method": METHOD,
        "runs": [_run(run) for run in result.runs.values()],
    }  # fmt: skip


def _effect(effect: Effect | None) -> dict[str, Any] | None:
    if effect is None:
        return None
    pairs = [{"seed": pair.seed, "with": pair.with_, "without": pair.without, "difference": pair.difference,
              "low": pair.over_tasks.low95, "high": pair.over_tasks.high95, "num_tasks": pair.over_tasks.num_tasks}
             for pair in effect.pairs]  # fmt: skip
    return {"with": effect.with_, "without": effect.without, "difference": effect.difference, "low": effect.low,
            "high": effect.high, "p": effect.p, "shown": effect.shown, "pairs": pairs}  # fmt: skip


def _run(run: ArmRun) -> dict[str, Any]:
    after, before = run.after, run.before
    return {
        "seed": run.seed, "arm": run.arm, "success": after.success, "success_low": after.success_low,
        "success_high": after.success_high, "greedy": after.greedy,
        "before": None if math.isnan(before.success) else before.success, "num_tasks": after.num_tasks,
        "samples": after.samples, "steps": run.steps, "tokens": run.tokens, "cpu_seconds_grpo": run.cpu_grpo,
        "cpu_seconds_warm_start": run.cpu_warm_start, "stopped": run.stopped, "run": str(run.path),
    }  # fmt: skip


def write(result: Ablation) -> None:
    """`ablation.json`, and `ablation.csv` with a row per run, each replaced in one move. Raises StoreError."""
    rows = [_run(run) for run in result.runs.values()]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(result.folder / "ablation.json", json.dumps(facts(result), indent=2, ensure_ascii=False) + "\n")
    write_whole(result.folder / "ablation.csv", out.getvalue())

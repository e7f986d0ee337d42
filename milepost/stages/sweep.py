"""A small paired sweep: one setting's values × seeds, each a run of its own, compared on the same unseen tasks.

What the values share is done once per seed, and a finished run is never run again (`trials`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from milepost.evaluate import EvalReport, Interval, Paired, paired, task_interval
from milepost.progress import say
from milepost.recipe import load_recipe
from milepost.stages.compare import cpu_of
from milepost.stages.session import RunStopped
from milepost.stages.trials import Trial, check_no_seed, check_trial, read_seeds, reports_of
from milepost.store import Run
from milepost.types import RecipeError


def sweep(recipe_path: str | Path, overrides: Sequence[str], over: str, seeds: str) -> str:
    """Runs every value of `over` ("optimizer.lr=5e-6,1e-5") with every seed of `seeds` ("0,1") and returns the table.

    Every recipe is read and checked before the first run begins. Raises RecipeError, DataError or StoreError.
    """
    key, values = read_over(over)
    check_no_seed(overrides)
    trials = plan(recipe_path, overrides, key, values, read_seeds(seeds))
    toml = Path(recipe_path).read_text(encoding="utf-8")
    results: dict[tuple[str, int], dict[str, EvalReport]] = {}
    used: dict[tuple[str, int], float | None] = {}
    stopped: dict[tuple[str, int], str] = {}
    for number, trial in enumerate(trials, 1):
        try:
            results[trial.value, trial.seed] = reports_of(trial, trials, toml, f"sweep {number}/{len(trials)}")
            with Run.open(trial.path) as run:
                used[trial.value, trial.seed] = cpu_of(run, "grpo")
        except RunStopped as error:
            stopped[trial.value, trial.seed] = str(error)
            say(f"{trial.path} stopped: {error}")
    return table(key, trials, results, stopped, used)


def read_over(over: str) -> tuple[str, list[str]]:
    """("optimizer.lr", ["5e-6", "1e-5"]) of "optimizer.lr=5e-6,1e-5". Commas inside [] and "" belong to a value."""
    key, found, text = over.partition("=")
    values = [value.strip() for value in re.findall(r'(?:\[[^\]]*\]|"[^"]*"|[^,\["])+', text)]
    if not found or not key.strip() or not values or not all(values):
        raise RecipeError(f"--over {over!r} must look like KEY=V1,V2, for example optimizer.lr=5e-6,1e-5,2e-5")
    if key.strip() in ("seed", "name", "out"):
        raise RecipeError(f"--over {key.strip()} is set by the sweep itself; use --seeds for seeds")
    if len(set(values)) != len(values):
        raise RecipeError(f"--over {over!r} names a value twice; name each once")
    return key.strip(), values


def plan(
    recipe_path: str | Path, overrides: Sequence[str], key: str, values: Sequence[str], seeds: Sequence[int]
) -> list[Trial]:
    """All trials, seed by seed, each recipe read and checked."""
    trials = []
    for seed in seeds:
        for value in values:
            recipe = load_recipe(recipe_path, [*overrides, f"{key}={value}", f"seed={seed}"])
            label = re.sub(r"[^\w.+-]+", "-", value).strip("-")
            recipe = recipe.model_copy(update={"name": f"{recipe.name}-{label}-s{seed}"})
            check_trial(recipe, "a sweep")
            trials.append(Trial(value, seed, recipe))
    if len({trial.path for trial in trials}) != len(trials):
        raise RecipeError(f"--over {key}: two values give runs of the same name; write them so that their letters differ")
    return trials


# --- the table ------------------------------------------------------------------------------------------------------

NOT_MEASURED: Mapping[tuple[str, int], float | None] = {}
Results = Mapping[tuple[str, int], Mapping[str, EvalReport]]


def table(
    key: str, trials: Sequence[Trial], results: Results, stopped: Mapping[tuple[str, int], str],
    used: Mapping[tuple[str, int], float | None] = NOT_MEASURED,
) -> str:  # fmt: skip
    """Every run, then every value over all its seeds, then each value against the best one. `used`: CPU-seconds of GRPO."""
    values = list(dict.fromkeys(trial.value for trial in trials))
    rows: list[Sequence[object]] = [(key, "seed", "before", "after", "gain", "greedy", "CPU-s")]
    for trial in sorted(trials, key=lambda t: (values.index(t.value), t.seed)):
        tests = results.get((trial.value, trial.seed))
        cells = ("stopped", "", "", "") if tests is None else _cells(_before(tests), tests["grpo"])
        rows.append((trial.value, trial.seed, *cells, _seconds([used.get((trial.value, trial.seed))])))
    pooled = {value: _pooled(results, value) for value in values if any(v == value for v, _ in results)}
    for value, (before, after, num) in pooled.items():
        rows.append(
            (value, f"all {num}", *_cells(before, after), _seconds([s for (v, _), s in used.items() if v == value]))
        )
    lines = _aligned(rows)
    lines += [f"{value}, seed {seed} stopped: {why}" for (value, seed), why in stopped.items()]
    if len(pooled) > 1:
        lines += _between(key, results, pooled)
    lines.append("sampled success with 95 % intervals over tasks, gains paired by task; greedy success before → after; "
                 "CPU-seconds of GRPO, processes that score included")  # fmt: skip
    return "\n".join(lines)


def _before(tests: Mapping[str, EvalReport]) -> EvalReport:
    return tests["sft"] if "sft" in tests else tests["base"]


def _cells(before: EvalReport, after: EvalReport) -> tuple[str, str, str, str]:
    return _rate(before), _rate(after), _gain(paired(before, after)), _greedy(before, after)


def _seconds(used: Sequence[float | None]) -> str:
    known = [seconds for seconds in used if seconds is not None]
    return f"{sum(known):.0f}" if known else ""


def _rate(report: EvalReport) -> str:
    return str(Interval(report.success, report.success_low, report.success_high, report.num_tasks))


def _gain(gain: Paired) -> str:
    return f"{100 * gain.difference:+.1f} points [{100 * gain.low95:+.1f}, {100 * gain.high95:+.1f}]"


def _greedy(before: EvalReport, after: EvalReport) -> str:
    return (
        "–" if before.greedy is None or after.greedy is None else f"{100 * before.greedy:.1f} → {100 * after.greedy:.1f} %"
    )


def _pooled(results: Results, value: str, seeds: Sequence[int] | None = None) -> tuple[EvalReport, EvalReport, int]:
    """(before, after) with the tasks of all seeds, and the number of seeds. A task counts once per seed."""
    chosen = {seed: tests for (v, seed), tests in results.items() if v == value and (seeds is None or seed in seeds)}
    before = merged({seed: _before(tests) for seed, tests in chosen.items()})
    return before, merged({seed: tests["grpo"] for seed, tests in chosen.items()}), len(chosen)


def merged(reports: Mapping[int, EvalReport]) -> EvalReport:
    """One report over the tasks of several seeds; keys say which seed a task belongs to."""
    outcomes: dict[str, Any] = {f"{seed}/{k}": v for seed, r in reports.items() for k, v in r.outcomes.items()}
    greedy: dict[str, Any] = {f"{seed}/{k}": v for seed, r in reports.items() for k, v in r.greedy_outcomes.items()}
    sampled = task_interval(outcomes.values())
    best_guess = task_interval((verdict,) for verdict in greedy.values()) if greedy else None
    return replace(
        next(iter(reports.values())), num_tasks=len(outcomes), outcomes=outcomes, greedy_outcomes=greedy,
        success=sampled.mean, success_low=sampled.low, success_high=sampled.high,
        greedy=best_guess.mean if best_guess else None,
    )  # fmt: skip


def _between(key: str, results: Results, pooled: Mapping[str, tuple[EvalReport, EvalReport, int]]) -> list[str]:
    best = max(pooled, key=lambda value: pooled[value][1].success)
    lines = [f"{key} = {best} did best; against it, on the same tasks and seeds:"]
    for value in pooled:
        if value == best:
            continue
        both = [seed for v, seed in results if v == value and (best, seed) in results]
        if not both:
            lines.append(f"  {value}: no seed in common")
            continue
        try:
            gap = paired(_pooled(results, best, both)[1], _pooled(results, value, both)[1])
        except RecipeError as error:
            lines.append(f"  {value}: {error}")
            continue
        clear = "" if gap.high95 < 0 else "; not told apart"
        lines.append(f"  {value}: {_gain(gap)}{clear}")
    return lines


def _aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]

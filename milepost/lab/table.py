"""The laboratory's figures as rows: of its table, of the raw CSV with one row per run, of `lab.json`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from milepost.charts import Series
from milepost.disk import write_whole
from milepost.lab.arms import BASE, MIN_SEEDS, RULES, TUNED_UP_TO
from milepost.lab.credit import Cell, Lab, holm, sentence
from milepost.lab.runs import LabRun
from milepost.pairs import Effect, written

TITLES = ("rule", "rate", "success", "points", "95 %", "p", "Holm", "seeds", "tokens", "steps", "CPU-s", "values", "wall s",
          "GB")  # fmt: skip
BINS = 10
"""Points of a learning curve: the budget in so many parts."""
METHOD = (
    "All arms of a seed share its pinned tasks, their order and the warm start, and are tested on the same tasks, which "
    "training did not meet, under the same sampling noise. Mazes of the test are other mazes; corridors of the test differ "
    "from those of the training in a number that means nothing, for all show one of 8 signs: there the test asks what was "
    "learned of the signs. Training ends with the step that uses up the budget of sampled tokens, continuations included, "
    "and the weights it ends with are tested. What judges states without sampling (values, critics) takes no tokens and "
    "stands in the CPU-seconds: budgets are equal in tokens, not in these. Rules with values follow episode in the first "
    "fifteenth of the steps, while the values are learned. Learning rates were chosen for each rule on other seeds, which "
    "have tasks of their own. A pair's difference is the mean over its tasks of success by the rule − success by episode; "
    "interval and p come from all subsets and all changes of sign of the pairs' differences: exact, with the seed as the "
    "unit. Holm: p corrected for the number of comparisons."
)


# ---- the table -------------------------------------------------------------------------------------------------------


def rows_of(cell: Cell, corrected: dict[tuple[str, int, str], float]) -> list[tuple[str, ...]]:
    """One row per rule, cells as TITLES says."""
    rows: list[tuple[str, ...]] = []
    for rule in cell.rules:
        runs = cell.of(rule)
        effect = cell.effect(rule)
        rows.append((
            rule, f"{cell.choices[rule].rate:g}", _mean(runs, lambda run: 100 * run.success, "{:.1f} %"),
            *_compared(effect),
            _p(corrected.get((cell.world, cell.horizon, rule))), f"{len(runs)}/{len(cell.seeds)}",
            _mean(runs, lambda run: run.tokens, "{:,.0f}"), _mean(runs, lambda run: run.steps, "{:.1f}"),
            _mean(runs, lambda run: run.cpu, "{:.1f}"),
            _mean(runs, lambda run: run.cpu_value, "{:.1f}") if rule in ("value", "critic") else "–",
            _mean(runs, lambda run: run.wall, "{:.1f}"), _mean(runs, lambda run: run.memory, "{:.2f}"),
        ))  # fmt: skip
    return rows


def _compared(effect: Effect | None) -> tuple[str, str, str]:
    if effect is None:
        return "–", "–", "–"
    points = f"{100 * effect.difference:+.1f}"
    if effect.low is None or effect.high is None:
        return points, "–", "–"
    return points, f"[{100 * effect.low:+.1f}, {100 * effect.high:+.1f}]", _p(effect.p)


def _p(value: float | None) -> str:
    return "–" if value is None else written(value).replace("p = ", "").removeprefix("p ")


def _mean(runs: Sequence[LabRun], of: Callable[[LabRun], float], form: str) -> str:
    return form.format(math.fsum(map(of, runs)) / len(runs)) if runs else "–"


def heading(cell: Cell) -> str:
    what = "described only" if cell.describes_only else f"{len(cell.seeds)} paired seeds"
    return f"{cell.world}, horizon {cell.horizon}: {what}, {cell.budget:,} tokens each; warm start {warm(cell)}"


def warm(cell: Cell) -> str:
    """Mean success before GRPO over the seeds that there are."""
    before = {run.seed: run.before for run in cell.runs.values()}
    return f"{100 * math.fsum(before.values()) / len(before):.1f} %" if before else "–"


def sentences(lab: Lab, cell: Cell) -> list[str]:
    corrected = holm(lab)
    return [sentence(cell, rule, corrected.get((cell.world, cell.horizon, rule))) for rule in cell.rules if rule != BASE]


def notes(lab: Lab) -> list[str]:
    """What a reader has to know before he believes the numbers."""
    found = []
    if num := len(holm(lab)):
        found.append(f"{num} {'comparison has' if num == 1 else 'comparisons have'} an interval of 95 %; of twenty that "
                     "change nothing one is expected to leave out 0, so look at Holm's p")  # fmt: skip
    for cell in lab.cells:
        where = f"{cell.world} {cell.horizon}"
        if cell.describes_only:
            found.append(
                f"{where} has {len(cell.seeds)} seeds, fewer than the {MIN_SEEDS} that can show anything: it describes"
            )
        if cell.tuned_at != cell.horizon:
            found.append(
                f"{where}: rates are those chosen at horizon {cell.tuned_at}; beyond {TUNED_UP_TO} none are chosen"
            )
        if lab.plan.rules is None and (left_out := [rule for rule in RULES if rule not in cell.rules]):
            found.append(f"{where}: not compared with {', '.join(left_out)}; --rules {','.join([BASE, *left_out])} does it")
        if most := max((effect.num_recurring for rule in cell.rules if (effect := cell.effect(rule))), default=0):
            found.append(f"{where}: {most} of the test tasks stand in the tests of several seeds, which all draw from the "
                         "same pinned rows: the interval speaks of these rows")  # fmt: skip
        if edges := [rule for rule, choice in cell.choices.items() if choice.at_edge]:
            found.append(f"{where}: the best of the rates tried lies at their edge for {', '.join(edges)}; one beyond it "
                         "may be better")  # fmt: skip
        if stopped := [f"{run.rule} seed {run.seed} ({run.stopped})" for run in cell.runs.values() if run.stopped]:
            found.append(f"{where}: training stopped itself: {'; '.join(stopped)}; what it left was tested")
    return found


# ---- learning curves -------------------------------------------------------------------------------------------------


def curve_of(runs: Sequence[LabRun], budget: int, label: str) -> Series:
    """Success in training by tokens sampled: mean over seeds, with the lowest and highest seed as its band.

    A point is the mean over the steps that began within its tenth of the budget, on tasks that were not met before.
    """
    places = [(at + 0.5) * budget / BINS for at in range(BINS)]
    by_run = [_binned(run, budget) for run in runs]
    found = [(x, [row[at] for row in by_run if row[at] is not None]) for at, x in enumerate(places)]
    whole = [(x, [float(v) for v in values if v is not None]) for x, values in found if len(values) == len(runs) > 0]
    return Series(label, [(x, math.fsum(values) / len(values)) for x, values in whole],
                  [(x, min(values), max(values)) for x, values in whole])  # fmt: skip


def _binned(run: LabRun, budget: int) -> list[float | None]:
    found: list[list[float]] = [[] for _ in range(BINS)]
    for tokens, success in run.curve:
        if tokens < budget:
            found[tokens * BINS // budget].append(success)
    return [math.fsum(values) / len(values) if values else None for values in found]


# ---- files -----------------------------------------------------------------------------------------------------------


def raw_rows(lab: Lab) -> list[dict[str, Any]]:
    """One row per reported run."""
    return [
        {"world": run.world, "horizon": run.horizon, "rule": run.rule, "rate": run.rate, "seed": run.seed,
         "before": run.before, "success": run.success, "num_tasks": run.after.num_tasks, "samples": run.after.samples,
         "steps": run.steps, "tokens": run.tokens, "cpu_seconds": round(run.cpu, 2),
         "cpu_seconds_values": round(run.cpu_value, 2), "wall_seconds": round(run.wall, 2),
         "memory_gb": round(run.memory, 3), "stopped": run.stopped}
        for cell in lab.cells for rule in cell.rules for run in cell.of(rule)
    ]  # fmt: skip


def curve_rows(lab: Lab) -> list[dict[str, Any]]:
    """One row per step of a reported run: success in training of the tasks it played, none of them tested, by the tokens
    sampled before it."""
    return [
        {"world": run.world, "horizon": run.horizon, "rule": run.rule, "rate": run.rate, "seed": run.seed,
         "tokens": tokens, "success": success}
        for cell in lab.cells for rule in cell.rules for run in cell.of(rule) for tokens, success in run.curve
    ]  # fmt: skip


def facts(lab: Lab, command: str) -> dict[str, Any]:
    """Plain values of everything that is told: the content of lab.json."""
    corrected = holm(lab)
    return {
        "command": command, "method": METHOD, "notes": notes(lab), "unfinished_runs": lab.num_left,
        "cells": [
            {"world": cell.world, "horizon": cell.horizon, "budget": cell.budget, "seeds": list(cell.seeds),
             "describes_only": cell.describes_only, "rates_chosen_at": cell.tuned_at,
             "rates": {rule: {"chosen": choice.rate, "means": {f"{rate:g}": mean for rate, mean in choice.means.items()}}
                       for rule, choice in cell.choices.items()},
             "effects": {rule: _effect(effect, corrected.get((cell.world, cell.horizon, rule)))
                         for rule in cell.rules if (effect := cell.effect(rule))},
             "sentences": sentences(lab, cell)}
            for cell in lab.cells
        ],
        "runs": raw_rows(lab),
    }  # fmt: skip


def _effect(effect: Effect, corrected: float | None) -> dict[str, Any]:
    pairs = [{"seed": pair.seed, "rule": pair.with_, "episode": pair.without} for pair in effect.pairs]
    return {"difference": effect.difference, "low": effect.low, "high": effect.high, "p": effect.p, "holm": corrected,
            "pairs": pairs}  # fmt: skip


def write_files(lab: Lab, command: str) -> Path:
    """`lab.json`, `lab.csv` with a row per reported run, `lab-curves.csv` with one per step of it; → the folder. Raises
    StoreError."""
    write_whole(lab.plan.out / "lab.csv", _csv(raw_rows(lab)))
    write_whole(lab.plan.out / "lab-curves.csv", _csv(curve_rows(lab)))
    write_whole(lab.plan.out / "lab.json", json.dumps(facts(lab, command), indent=2, ensure_ascii=False) + "\n")
    return lab.plan.out


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()

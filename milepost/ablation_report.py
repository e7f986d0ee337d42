"""What an ablation shows to people: a text for the terminal and one self-contained HTML page. Reads no store by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from milepost.charts import Series, line_chart
from milepost.disk import write_whole
from milepost.report import page
from milepost.stages.ablate import METHOD, SIDES, Ablation, ArmRun, notes, percent
from milepost.terminal import table

TITLES = ("seed", "with", "without", "points", "over its tasks", "greedy with", "without", "tokens with", "without",
          "CPU-s with", "without")  # fmt: skip
FILES = (("ablation.json", "everything on this page as values"), ("ablation.csv", "one row per run"),
         ("with-s…/, without-s…/", "the runs: `milepost show`, `milepost report`"))  # fmt: skip


def text(result: Ablation) -> str:
    """For a terminal: what differs, every pair, both arms' means, the effect, what both cost, the verdict."""
    num = len(result.paired_seeds)
    lines = [f"{result.arms.what}: {result.recipe} with it and without it, {num} {'pair' if num == 1 else 'pairs'} of runs"]
    lines += [f"  {line}" for line in difference_lines(result)]
    if rows := pair_rows(result):
        lines += ["", *table([TITLES, *rows])]
    lines += ["", *effect_lines(result), *cost_lines(result), *notes(result), result.verdict]
    return "\n".join(lines)


def difference_lines(result: Ablation) -> list[str]:
    lines = [str(change) for change in result.arms.changes]
    if result.arms.went_along:
        lines.append(f"{', '.join(result.arms.went_along)} would do nothing without it and went with it")
    return lines


def pair_rows(result: Ablation) -> list[tuple[str, ...]]:
    """One row per pair, cells as TITLES says, and the means below them."""
    sampled, greedy = result.effect(), result.effect(greedy=True)
    if sampled is None:
        return []
    greedy_rates = [(pair.with_, pair.without) for pair in greedy.pairs] if greedy else [(None, None)] * len(sampled.pairs)
    rows: list[tuple[str, ...]] = []
    for pair, best in zip(sampled.pairs, greedy_rates):
        over = f"[{100 * pair.over_tasks.low95:+.1f}, {100 * pair.over_tasks.high95:+.1f}]"
        runs = [result.runs[pair.seed, arm] for arm in SIDES]
        rows.append((str(pair.seed), percent(pair.with_), percent(pair.without), f"{100 * pair.difference:+.1f}", over,
                     *map(percent, best), *(f"{run.tokens:,}" for run in runs),
                     *(_seconds(run.cpu_grpo) for run in runs)))  # fmt: skip
    arms = [result.of(arm) for arm in SIDES]
    tokens = [f"{round(sum(run.tokens for run in some) / len(some)):,}" for some in arms]
    used = [_total(run.cpu_grpo for run in some) for some in arms]
    cost = [_seconds(None if total is None else total / len(some)) for total, some in zip(used, arms)]
    best = (greedy.with_, greedy.without) if greedy else (None, None)
    rows.append(("mean", percent(sampled.with_), percent(sampled.without), f"{100 * sampled.difference:+.1f}", "",
                 *map(percent, best), *tokens, *cost))  # fmt: skip
    return rows


def effect_lines(result: Ablation) -> list[str]:
    named = (("sampled", result.effect()), ("greedy", result.effect(greedy=True)))
    return [f"final success, {name}: {percent(effect.with_)} with, {percent(effect.without)} without, {effect}"
            for name, effect in named if effect]  # fmt: skip


def cost_lines(result: Ablation) -> list[str]:
    """Whether both arms had equal budgets, and what they used, over all whole pairs."""
    arms = [result.of(arm) for arm in SIDES]
    if not arms[0]:
        return []
    steps, tokens = [sum(run.steps for run in some) for some in arms], [sum(run.tokens for run in some) for some in arms]
    budget = f"equal steps of GRPO, {steps[0]} in each arm" if steps[0] == steps[1] else (
        f"{steps[0]} steps of GRPO with, {steps[1]} without")  # fmt: skip
    ratio = f" ({tokens[0] / tokens[1]:.2f} times as many)" if tokens[1] else ""
    lines = [f"budget: {budget}; tokens sampled in training: {tokens[0]:,} with, {tokens[1]:,} without{ratio}"]
    grpo = [_total(run.cpu_grpo for run in some) for some in arms]
    if None not in grpo:
        lines.append(f"CPU-seconds of GRPO, processes that score included: {_seconds(grpo[0])} with, {_seconds(grpo[1])} "
                     "without")  # fmt: skip
    start = [_total(run.cpu_warm_start for run in some) for some in arms]
    if result.shared_start and start[0] is not None:
        lines.append(f"CPU-seconds of the warm start: {_seconds(start[0])}, made once per seed for both arms")
    elif start != [None, None]:
        lines.append(f"CPU-seconds of the warm start: {_seconds(start[0])} with, {_seconds(start[1])} without")
    return lines


def _seconds(used: float | None) -> str:
    return "–" if used is None else f"{used:,.0f}"


def _total(used: Iterable[float | None]) -> float | None:
    known = [seconds for seconds in used if seconds is not None]
    return math.fsum(known) if known else None


# --- the page ---------------------------------------------------------------------------------------------------------


def write_page(result: Ablation) -> Path:
    """Writes `report.html` into the ablation's folder and returns its path. Needs no network. Raises StoreError."""
    effect = result.effect()
    state = "open" if effect is None or effect.low is None else "met" if effect.shown else "unmet"
    content = page(
        "ablation.html.j2", result=result, state=state, effects=effect_lines(result), differences=difference_lines(result),
        titles=TITLES, rows=pair_rows(result), costs=cost_lines(result), notes=notes(result), method=METHOD,
        charts=[chart for chart in (_courses(result), _ends(result)) if chart["svg"]], files=FILES,
        path=str(result.folder.resolve()),
    )  # fmt: skip
    return write_whole(result.folder / "report.html", content)


def _courses(result: Ablation) -> dict[str, Any]:
    """Mean held-out success over seeds by step, with the range of the seeds."""
    lines = [_course(arm, result.of(arm)) for arm in SIDES]
    return _chart("Held-out success during GRPO", "validation; mean over seeds, band: the lowest and highest seed", lines)


def _course(arm: str, runs: list[ArmRun]) -> Series:
    at: dict[int, list[float]] = {}
    for run in runs:
        for step, success in run.curve:
            at.setdefault(step, []).append(success)
    whole = {step: values for step, values in sorted(at.items()) if len(values) == len(runs)}
    means = [(float(step), math.fsum(values) / len(values)) for step, values in whole.items()]
    return Series(arm, means, [(float(step), min(values), max(values)) for step, values in whole.items()])


def _ends(result: Ablation) -> dict[str, Any]:
    effect = result.effect()
    pairs = effect.pairs if effect else ()
    lines = [Series("with", [(float(pair.seed), pair.with_) for pair in pairs]),
             Series("without", [(float(pair.seed), pair.without) for pair in pairs])]  # fmt: skip
    return _chart("Final success by seed", "test tasks, sampled", lines)


def _chart(title: str, note: str, lines: list[Series]) -> dict[str, Any]:
    legend = [{"index": i, "label": line.label} for i, line in enumerate(lines) if line.points]
    return {"title": title, "note": note, "legend": legend, "svg": Markup(line_chart(lines, percent=True, floor=0.0))}

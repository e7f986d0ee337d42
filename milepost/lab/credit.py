"""The laboratory `milepost lab credit`: which rule of credit is worth its cost, over paired seeds at equal sampled tokens.

For each world and horizon: warm starts, then every rule at every learning rate on seeds of their own, then every rule at
its chosen rate on the reported seeds. Everything is read back from files, so that a stopped laboratory goes on where it
was, night after night, and a finished one is only told again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from milepost.lab.arms import BASE, MIN_SEEDS, LabTrial, Plan, reported_trials, start_of, tuned_at, tuning_trials
from milepost.lab.runs import LabRun, make_all, num_cores, read_result, start_is_made
from milepost.pairs import Effect, compare_seeds, verdict, written
from milepost.types import RecipeError

Runs = Mapping[tuple[str, int], LabRun]
"""(rule, seed) → what the run showed."""


@dataclass(frozen=True)
class Choice:
    """The learning rate that a rule takes at a horizon, and the mean success on the seeds for choosing, by rate."""

    rate: float
    means: Mapping[float, float]

    @property
    def at_edge(self) -> bool:
        """Whether a rate beyond those tried might have been better."""
        return len(self.means) > 1 and self.rate in (min(self.means), max(self.means))


@dataclass(frozen=True)
class Cell:
    """One world at one horizon, as far as it is finished."""

    world: str
    horizon: int
    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    """All that are planned."""
    budget: int
    choices: Mapping[str, Choice]
    tuned_at: int
    runs: Runs

    @property
    def describes_only(self) -> bool:
        return len(self.seeds) < MIN_SEEDS

    def paired_seeds(self, rule: str) -> list[int]:
        """Those whose runs of the rule and of the base are both finished."""
        return [seed for seed in self.seeds if (rule, seed) in self.runs and (BASE, seed) in self.runs]

    def of(self, rule: str) -> list[LabRun]:
        return [self.runs[rule, seed] for seed in self.seeds if (rule, seed) in self.runs]

    def effect(self, rule: str) -> Effect | None:
        """rule − episode in final success; None while there is no pair, and for the base itself."""
        pairs = {seed: (self.runs[rule, seed].after, self.runs[BASE, seed].after) for seed in self.paired_seeds(rule)}
        return compare_seeds(pairs) if pairs and rule != BASE else None


@dataclass(frozen=True)
class Lab:
    """What is finished of the laboratory."""

    plan: Plan
    cells: tuple[Cell, ...]

    @property
    def num_left(self) -> int:
        """Reported runs that are not finished."""
        return sum(len(cell.seeds) * len(cell.rules) - len(cell.runs) for cell in self.cells)


def run_lab(plan: Plan, *, jobs: int | None = None, keep: bool = False) -> Lab:
    """Makes what is missing of the plan. `jobs`: runs at a time, each in a process of its own; None: one for each core, 0:
    one, in this process. Raises MilepostError.
    """
    jobs = num_cores() if jobs is None else jobs
    if jobs < 0:
        raise RecipeError(f"--jobs {jobs}: give the number of runs at a time, or 0 for one for each core")
    for world, horizon in plan.cells:
        where = f"{world} {horizon}"
        at = tuned_at(horizon)
        _make_missing(plan, list(tuning_trials(plan, world, at)), jobs, keep, f"{world} {at}, choosing rates:")
        choices = choices_of(plan, world, at)
        rates = {rule: choice.rate for rule, choice in choices.items()}
        _make_missing(plan, list(reported_trials(plan, world, horizon, rates)), jobs, keep, f"{where}:")
    return read_lab(plan)


def _make_missing(plan: Plan, trials: list[LabTrial], jobs: int, keep: bool, label: str) -> None:
    left = [trial for trial in trials if read_result(trial) is None]
    places = dict.fromkeys((trial.world, trial.horizon, trial.seed) for trial in left)
    starts = [start for place in places if not start_is_made(start := start_of(plan, *place))]
    for some, what in ((starts, "warm start"), (left, "run")):
        if some:
            make_all(some, jobs, keep=keep, label=f"{label} {what}")


# ---- reading back ----------------------------------------------------------------------------------------------------


def choices_of(plan: Plan, world: str, horizon: int) -> dict[str, Choice]:
    """The best rate of each rule by mean success over the seeds for choosing; of equals the smaller. Raises RecipeError."""
    found: dict[str, dict[float, list[float]]] = {}
    for trial in tuning_trials(plan, world, horizon):
        run = read_result(trial)
        if run is None:
            raise RecipeError(f"{trial} is not finished, so no rate is chosen yet; the command without --tell makes it")
        found.setdefault(trial.rule, {}).setdefault(trial.rate, []).append(run.success)
    return {rule: chosen(by_rate) for rule, by_rate in found.items()}


def chosen(by_rate: Mapping[float, list[float]]) -> Choice:
    means = {rate: math.fsum(values) / len(values) for rate, values in by_rate.items()}
    return Choice(min(means, key=lambda rate: (-means[rate], rate)), means)


def read_lab(plan: Plan) -> Lab:
    """All cells whose rates are chosen. Raises RecipeError if there is none."""
    cells, missing = [], None
    for world, horizon in plan.cells:
        try:
            choices = choices_of(plan, world, tuned_at(horizon))
        except RecipeError as error:
            missing = missing or error
            continue
        rates = {rule: choice.rate for rule, choice in choices.items()}
        trials = list(reported_trials(plan, world, horizon, rates))
        runs = {(trial.rule, trial.seed): run for trial in trials if (run := read_result(trial))}
        cells.append(Cell(world, horizon, plan.rules_of(horizon), plan.seeds_of(horizon), plan.budget(horizon), choices,
                          tuned_at(horizon), runs))  # fmt: skip
    if not cells and missing:
        raise missing
    return Lab(plan, tuple(cells))


# ---- what may be said ------------------------------------------------------------------------------------------------


def holm(lab: Lab) -> dict[tuple[str, int, str], float]:
    """p of every comparison that could show something, corrected for how many there are (Holm 1979).

    The k-th smallest of m is multiplied by m − k + 1, and none is below the one before it.
    """
    raw = {
        (cell.world, cell.horizon, rule): effect.p
        for cell in lab.cells
        for rule in cell.rules
        if (effect := cell.effect(rule)) and len(effect.pairs) >= MIN_SEEDS
    }
    found, least = {}, 0.0
    for rank, key in enumerate(sorted(raw, key=raw.__getitem__)):
        least = max(least, min(1.0, raw[key] * (len(raw) - rank)))
        found[key] = least
    return found


def sentence(cell: Cell, rule: str, corrected: float | None) -> str:
    """What one comparison shows, or that it shows nothing."""
    effect = cell.effect(rule)
    if effect is None:
        return f"{rule}: no pair is finished"
    left = len(cell.seeds) - len(effect.pairs)
    unfinished = f" ({left} of {len(cell.seeds)} pairs are not finished)" if left else ""
    if len(effect.pairs) < MIN_SEEDS:
        num = "1 pair" if len(effect.pairs) == 1 else f"{len(effect.pairs)} pairs"
        return (
            f"{rule}: {100 * effect.difference:+.1f} points over {num}: a description, too few to show anything{unfinished}"
        )
    said = verdict(effect, f"{rule} instead of {BASE}")
    if effect.shown and corrected is not None and corrected > 0.05:
        said += f"; among all comparisons of this laboratory chance may do that ({written(corrected)} by Holm)"
    return said + unfinished

"""Held-out success with intervals, paired comparison, and the one bar for "it got better".

The unit is the task: a task's success is the mean over its own samples, an evaluation's the mean over tasks, and every
interval comes from resampling tasks. Success is judged apart from the shaped reward. Episodes that could not be judged
are left out and counted, never zeros.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from milepost.types import VERDICTS, Group, RecipeError, Reward, StopKind, Task

NUM_RESAMPLES = 10_000
BAR_TASKS, BAR_SAMPLES, BAR_SAMPLES_MULTI_TURN, BAR_GAIN = 200, 4, 2, 0.10
BAR_UNSCORABLE = 0.05
"""Share of samples that may lack a verdict before the bar says nothing."""


@dataclass(frozen=True)
class Interval:
    """A mean over tasks with its 95 % interval. `num` counts the tasks that took part."""

    mean: float
    low: float
    high: float
    num: int

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True)
class EvalReport:
    """One evaluation. Rates are in [0, 1]; None where nothing could be measured (never 0 in its place).

    `outcomes[task]` lists each sample's success, in order of the group's members, None where it could not be judged.
    `settings` says how the samples were decoded.
    """

    split: str
    step: int
    num_tasks: int
    samples: int
    settings: Mapping[str, Any]
    success: float
    success_low: float
    success_high: float
    outcomes: Mapping[str, tuple[bool | None, ...]]
    greedy: float | None = None
    greedy_low: float | None = None
    greedy_high: float | None = None
    greedy_outcomes: Mapping[str, bool | None] = field(default_factory=dict)
    extractable: float | None = None
    accuracy_extractable: float | None = None
    """Success among the samples whose answer could be read: shows what format alone cannot explain."""
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, Interval] = field(default_factory=dict)
    truncated: float = 0.0
    length: float = 0.0
    """Mean sampled tokens of one episode; what a fault broke off is left out."""
    unscorable: Mapping[str, int] = field(default_factory=dict)
    """Samples left out, by cause; greedy ones under "greedy: cause"."""
    verdicts: Mapping[str, int] = field(default_factory=dict)
    """Samples that are correct, wrong, unextractable and unscorable; empty in reports from before they were counted."""

    @property
    def num_scored(self) -> int:
        return sum(verdict is not None for verdicts in self.outcomes.values() for verdict in verdicts)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not a number becomes None."""
        return _without_nan(asdict(self))

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> EvalReport:
        values = dict(values)
        for name in ("success", "success_low", "success_high"):
            values[name] = math.nan if values[name] is None else values[name]
        values["outcomes"] = {key: tuple(verdicts) for key, verdicts in values["outcomes"].items()}
        values["sources"] = {name: _interval(interval) for name, interval in values["sources"].items()}
        return EvalReport(**values)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _interval(values: Mapping[str, Any]) -> Interval:
    mean, low, high = (math.nan if values[name] is None else values[name] for name in ("mean", "low", "high"))
    return Interval(mean, low, high, values["num"])


Play = Callable[[Sequence[Task], int, bool], list[Group]]
"""play(tasks, num_samples, greedy): one group per task, in order, of num_samples episodes (1 if greedy)."""
Grade = Callable[[Sequence[Group]], list[list[Reward]]]


def evaluate(
    tasks: Sequence[Task],
    play: Play,
    grade: Grade,
    *,
    split: str,
    step: int,
    samples: int,
    greedy: bool = True,
    settings: Mapping[str, Any] | None = None,
    collect: Callable[[list[Group], list[list[Reward]], bool], None] | None = None,
) -> EvalReport:
    """Plays every task `samples` times, and once greedily, and reports success over tasks.

    `samples` has nothing to do with the training group size. `collect(groups, rewards, greedy)` receives the episodes
    for the store. Raises RecipeError if there is nothing to evaluate.
    """
    if not tasks:
        raise RecipeError(f"tasks.{split} = 0 leaves nothing to evaluate; set it to 64 or more")
    groups, rewards = _play_and_grade(tasks, play, grade, samples, False)
    if collect:
        collect(groups, rewards, False)
    best_guess: tuple[list[Group], list[list[Reward]]] = ([], [])
    if greedy:
        best_guess = _play_and_grade(tasks, play, grade, 1, True)
        if collect:
            collect(*best_guess, True)
    return summarise(groups, rewards, split=split, step=step, settings=settings or {}, greedy=best_guess)


def _play_and_grade(
    tasks: Sequence[Task], play: Play, grade: Grade, num: int, greedy: bool
) -> tuple[list[Group], list[list[Reward]]]:
    groups = play(tasks, num, greedy)
    given = [(group.task.key, len(group.episodes)) for group in groups]
    if given != [(task.key, num) for task in tasks]:
        raise ValueError(f"play was asked for {num} episodes of each of {len(tasks)} tasks and gave other groups")
    rewards = grade(groups)
    if [len(some) for some in rewards] != [num] * len(tasks):
        raise ValueError(f"grade was given {len(tasks)} groups of {num} episodes and judged other numbers")
    return groups, rewards


def summarise(
    groups: Sequence[Group],
    rewards: Sequence[Sequence[Reward]],
    *,
    split: str,
    step: int,
    settings: Mapping[str, Any],
    greedy: tuple[Sequence[Group], Sequence[Sequence[Reward]]] = ((), ()),
) -> EvalReport:
    """The report of episodes that were already played and judged: also for scoring stored ones again."""
    if len({group.task.key for group in groups}) != len(groups):
        raise ValueError("two groups of one evaluation belong to the same task")
    outcomes = {g.task.key: tuple(_verdict(r) for r in rs) for g, rs in zip(groups, rewards)}
    best_guess = {g.task.key: _verdict(rs[0]) for g, rs in zip(*greedy)}
    flat = [reward for some in rewards for reward in some]
    episodes = [episode for group in groups for episode in group.episodes]
    success = task_interval(outcomes.values())
    greedy_success = task_interval((verdict,) for verdict in best_guess.values()) if best_guess else None
    readable = [r for r in flat if r.extractable is not None and r.success is not None]
    causes = Counter(_cause(r) for r in flat if _verdict(r) is None)
    causes.update(f"greedy: {_cause(rs[0])}" for rs in greedy[1] if _verdict(rs[0]) is None)
    return EvalReport(
        split=split,
        step=step,
        num_tasks=len(groups),
        samples=max((len(g.episodes) for g in groups), default=0),
        settings=dict(settings),
        success=success.mean,
        success_low=success.low,
        success_high=success.high,
        outcomes=outcomes,
        greedy=greedy_success.mean if greedy_success else None,
        greedy_low=greedy_success.low if greedy_success else None,
        greedy_high=greedy_success.high if greedy_success else None,
        greedy_outcomes=best_guess,
        extractable=_mean(r.extractable for r in readable),
        accuracy_extractable=_mean(r.success for r in readable if r.extractable),
        reward=_mean(r.total for r in flat),
        parts={name: float(np.mean([r.parts[name] for r in flat if name in r.parts])) for name in _part_names(flat)},
        sources=_slices(groups, outcomes),
        truncated=float(np.mean([e.stop.kind == StopKind.TRUNCATED for e in episodes])),
        length=_mean(e.num_sampled for e in episodes if e.stop.kind is not StopKind.FAULT) or 0.0,
        unscorable=dict(causes),
        verdicts=dict.fromkeys(VERDICTS, 0) | Counter(r.verdict for r in flat),
    )


def _verdict(reward: Reward) -> bool | None:
    return bool(reward.success) if reward.scorable and reward.success is not None else None


def _cause(reward: Reward) -> str:
    return reward.cause or "no success metric"


def _mean(values: Iterable[float | None]) -> float | None:
    present = [float(value) for value in values if value is not None]
    return float(np.mean(present)) if present else None


def _part_names(rewards: Sequence[Reward]) -> list[str]:
    return list(dict.fromkeys(name for reward in rewards for name in reward.parts))


def _slices(groups: Sequence[Group], outcomes: Mapping[str, tuple[bool | None, ...]]) -> dict[str, Interval]:
    names = dict.fromkeys(group.task.source for group in groups)
    keys = {name: [g.task.key for g in groups if g.task.source == name] for name in names}
    return {name: task_interval([outcomes[key] for key in keys[name]]) for name in names}


# Intervals


def task_means(outcomes: Iterable[Sequence[bool | None]]) -> np.ndarray:
    """float64 [n]: success of each task over its judged samples; nan for a task without any."""
    judged = [[float(v) for v in verdicts if v is not None] for verdicts in outcomes]
    return np.array([np.mean(some) if some else math.nan for some in judged], np.float64)


def task_interval(outcomes: Iterable[Sequence[bool | None]]) -> Interval:
    """Mean over tasks with its 95 % interval; nan if no task could be judged."""
    means = task_means(outcomes)
    means = means[~np.isnan(means)]
    if not len(means):
        return Interval(math.nan, math.nan, math.nan, 0)
    low, high = bootstrap(means, 0.95)
    # Resampling equal values says "certain". All or none of n tasks leaves 1 − (α/2)^(1/n) of doubt (Clopper–Pearson).
    doubt = 1 - 0.025 ** (1 / len(means))
    if (means == 0).all():
        high = doubt
    if (means == 1).all():
        low = 1 - doubt
    return Interval(float(means.mean()), low, high, len(means))


def bootstrap(values: np.ndarray, *levels: float, seed: int = 0) -> list[float]:
    """[low, high] of the mean for each level, by the percentile method over `NUM_RESAMPLES` resamples of `values` [n]."""
    rng, n = np.random.default_rng(seed), len(values)
    chunk = max(1, 2_000_000 // n)  # bounds memory: 16 MB of indices at a time
    sizes = [min(chunk, NUM_RESAMPLES - start) for start in range(0, NUM_RESAMPLES, chunk)]
    means = np.concatenate([values[rng.integers(0, n, (size, n))].mean(axis=1) for size in sizes])
    edges = [edge for level in levels for edge in ((1 - level) / 2, (1 + level) / 2)]
    return [float(edge) for edge in np.quantile(means, edges)]


@dataclass(frozen=True)
class Paired:
    """after − before over the same tasks, in success rate; intervals by resampling tasks."""

    difference: float
    low95: float
    high95: float
    low99: float
    high99: float
    num_tasks: int
    left_out: int
    """Tasks that could not be judged on one side."""

    def __str__(self) -> str:
        return (f"{100 * self.difference:+.1f} points, 95 % [{100 * self.low95:+.1f}, {100 * self.high95:+.1f}], "
                f"99 % [{100 * self.low99:+.1f}, {100 * self.high99:+.1f}], {self.num_tasks} tasks")  # fmt: skip


def paired(before: EvalReport, after: EvalReport, *, greedy: bool = False, seed: int = 0) -> Paired:
    """Paired task bootstrap. Raises RecipeError, naming what differs, unless tasks and decoding are the same."""
    _comparable(before, after)
    pair = []
    for report in (before, after):
        if greedy and not report.greedy_outcomes:
            raise RecipeError(
                f"the {report.split} evaluation at step {report.step} has no greedy part; evaluate it again with one"
            )
        by_key: Mapping[str, Sequence[bool | None]] = report.outcomes
        if greedy:
            by_key = {key: (verdict,) for key, verdict in report.greedy_outcomes.items()}
        pair.append(task_means(by_key.get(key, ()) for key in before.outcomes))
    gains = pair[1] - pair[0]
    judged = gains[~np.isnan(gains)]
    if not len(judged):
        raise RecipeError("paired comparison: no task was judged on both sides; see the evaluations' unscorable causes")
    low95, high95, low99, high99 = bootstrap(judged, 0.95, 0.99, seed=seed)
    left_out = len(gains) - len(judged)
    return Paired(float(judged.mean()), low95, high95, low99, high99, len(judged), left_out)


def _comparable(before: EvalReport, after: EvalReport) -> None:
    missing, extra = (sorted(set(a.outcomes) - set(b.outcomes)) for a, b in ((before, after), (after, before)))
    if missing or extra:
        first = (missing or extra)[0]
        raise RecipeError(
            f"paired comparison needs the same tasks: {len(missing)} are only in the first and {len(extra)} only in the "
            f"second (such as {first}); evaluate both on the same split and seed"
        )
    keys = sorted((set(before.settings) | set(after.settings)) - {"seed"})
    for key in keys:
        one, other = before.settings.get(key), after.settings.get(key)
        if one != other:
            raise RecipeError(
                f"paired comparison needs the same decoding: {key} = {one} in the first and {other} in the second; "
                "evaluate both under the same [eval] settings"
            )


# Choosing and judging


def best_report(reports: Sequence[EvalReport]) -> EvalReport | None:
    """The highest success, never the lowest loss or highest reward; of equals the earliest step. None without any."""
    judged = [report for report in reports if not math.isnan(report.success)]
    return min(judged, key=lambda report: (-report.success, report.step), default=None)


@dataclass(frozen=True)
class Clause:
    """One condition of the bar. `passed` is None where it was not asked."""

    name: str
    passed: bool | None
    text: str


@dataclass(frozen=True)
class BarVerdict:
    """Whether it got better, with every condition and its numbers."""

    clauses: tuple[Clause, ...]
    paired: Paired
    greedy: Paired | None

    @property
    def passed(self) -> bool:
        return all(clause.passed is not False for clause in self.clauses)

    @property
    def text(self) -> str:
        marks = {True: "yes", False: "NO ", None: " – "}
        lines = [f"  {marks[clause.passed]}  {clause.text}" for clause in self.clauses]
        return "\n".join([f"{'met' if self.passed else 'not met'}: the standard bar for “it got better”", *lines])


def standard_bar(
    before: EvalReport, after: EvalReport, control: EvalReport | None = None, *, multi_turn: bool = False
) -> BarVerdict:
    """The project's one bar: enough unseen tasks and samples at temperature 1; the 99 % interval of the paired gain
    excludes 0; the gain is at least 10 points; greedy success does not fall; a control is beaten (95 % interval).
    """
    gain = paired(before, after)
    has_greedy = bool(before.greedy_outcomes and after.greedy_outcomes)
    greedy = paired(before, after, greedy=True) if has_greedy else None
    clauses = [
        _enough(before, after, BAR_SAMPLES_MULTI_TURN if multi_turn else BAR_SAMPLES),
        Clause("interval", gain.low99 > 0, f"the 99 % interval of the gain lies above 0: {gain}"),
        Clause(
            "gain",
            gain.difference >= BAR_GAIN - 1e-9,
            f"the gain is at least +{100 * BAR_GAIN:.0f} points: {100 * before.success:.1f} % → "
            f"{100 * after.success:.1f} % ({100 * gain.difference:+.1f})",
        ),
        _greedy_clause(before, after, greedy),
        _control_clause(after, control),
    ]
    return BarVerdict(tuple(clauses), gain, greedy)


def _enough(before: EvalReport, after: EvalReport, samples: int) -> Clause:
    wrong = []
    for name, report in (("before", before), ("after", after)):
        asked = report.num_tasks * report.samples
        if report.num_tasks < BAR_TASKS:
            wrong.append(f"{name}: {report.num_tasks} tasks are too few, it takes {BAR_TASKS}")
        if report.samples < samples:
            wrong.append(f"{name}: {report.samples} samples a task are too few, it takes {samples}")
        if report.settings.get("temperature", 1.0) != 1.0:
            wrong.append(f"{name}: sampled at temperature {report.settings['temperature']}, it takes 1")
        if report.num_scored < (1 - BAR_UNSCORABLE) * asked:
            wrong.append(f"{name}: {asked - report.num_scored} of {asked} samples could not be judged")
    text = "; ".join(wrong) or f"{after.num_tasks} held-out tasks × {after.samples} samples at temperature 1"
    return Clause("data", not wrong, f"there is enough data: {text}")


def _greedy_clause(before: EvalReport, after: EvalReport, greedy: Paired | None) -> Clause:
    if greedy is None:
        return Clause("greedy", False, "greedy success does not fall: it was not measured on both sides")
    return Clause(
        "greedy",
        greedy.difference >= -1e-9,
        f"greedy success does not fall: {100 * (before.greedy or 0):.1f} % → {100 * (after.greedy or 0):.1f} % "
        f"({100 * greedy.difference:+.1f}, 95 % [{100 * greedy.low95:+.1f}, {100 * greedy.high95:+.1f}])",
    )


def _control_clause(after: EvalReport, control: EvalReport | None) -> Clause:
    if control is None:
        return Clause("control", None, "a control at equal cost is beaten: no control was given")
    lead = paired(control, after)
    return Clause("control", lead.low95 > 0, f"the control ({100 * control.success:.1f} %) is beaten: {lead}")


# pass@k


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k of the n samples, c of them successful, succeeds: 1 − C(n−c, k)/C(n, k), unbiased.

    Drawn without replacement. Raises RecipeError if k > n, where the samples cannot say.
    """
    if not 0 <= c <= n:
        raise RecipeError(f"pass@k: c = {c} successes of n = {n} samples is impossible; c lies between 0 and n")
    if not 1 <= k <= n:
        raise RecipeError(f"pass@k: k = {k} must lie between 1 and the n = {n} samples of a task; sample at least k times")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def report_pass_at_k(report: EvalReport, k: int) -> Interval:
    """pass@k over the tasks of a report. Tasks with fewer than k judged samples are left out (see `num`)."""
    if k > report.samples:
        raise RecipeError(
            f"pass@{k} needs {k} samples a task and this evaluation has {report.samples}; set eval.samples = {k}"
        )
    counts = [[v for v in verdicts if v is not None] for verdicts in report.outcomes.values()]
    chances = np.array([pass_at_k(len(judged), sum(judged), k) for judged in counts if len(judged) >= k])
    if not len(chances):
        return Interval(math.nan, math.nan, math.nan, 0)
    low, high = bootstrap(chances, 0.95)
    return Interval(float(chances.mean()), low, high, len(chances))

"""Held-out success of one model, and the paired comparison of two: `milepost eval`.

`compare_run` reads what a run stored and needs no model; `evaluate_recipe` plays the held-out tasks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from milepost.evaluate import BarVerdict, EvalReport, Interval, report_pass_at_k, standard_bar
from milepost.recipe import Recipe
from milepost.store import Run
from milepost.types import RecipeError

PASS_AT = (1, 2, 4, 8, 16, 32, 64)
"""pass@k is shown for those k that the samples of a task allow."""


@dataclass(frozen=True)
class Comparison:
    """Two test reports of one run, a control if there is one, and what the standard bar says of them."""

    names: tuple[str, str, str]
    """Stages of before and after, and where the control comes from ("" without one)."""
    before: EvalReport
    after: EvalReport
    control: EvalReport | None
    bar: BarVerdict
    cpu_seconds: tuple[float | None, float | None, float | None] = (None, None, None)
    """What training each of them took, `cpu_of`; None where nothing was trained or measured."""

    @property
    def passed(self) -> bool:
        return self.bar.passed

    @property
    def text(self) -> str:
        reports = [(n, r) for n, r in zip(self.names, (self.before, self.after, self.control)) if r is not None]
        cost = [f"{name} {used:.0f}" for name, used in zip(self.names, self.cpu_seconds) if used is not None]
        lines = [f"CPU-seconds of training, processes that score included: {', '.join(cost)}"] if cost else []
        return "\n".join([*(f"{name}: {rates(report)}" for name, report in reports), *lines, self.bar.text])

    def json(self) -> str:
        """Keys: passed, before, after, control, paired, greedy, clauses."""
        return json.dumps(
            {
                "passed": self.passed,
                "before": {"stage": self.names[0], "cpu_seconds": self.cpu_seconds[0], **_numbers(self.before)},
                "after": {"stage": self.names[1], "cpu_seconds": self.cpu_seconds[1], **_numbers(self.after)},
                "control": None
                if self.control is None
                else {"from": self.names[2], "cpu_seconds": self.cpu_seconds[2], **_numbers(self.control)},
                "paired": asdict(self.bar.paired),
                "greedy": self.bar.greedy and asdict(self.bar.greedy),
                "clauses": [asdict(clause) for clause in self.bar.clauses],
            },
            indent=2,
        )


def compare_run(target: str | Path, *, before: str = "", after: str = "grpo", control: str = "") -> Comparison:
    """Judges two stages of the run directory `target` by the standard bar, on the test reports that the run stored.

    `before` defaults to the warm start where it was tested, else to the base model. `control` is another run directory:
    its last test report on the same tasks is the control; without one, a control tested within the run counts. Raises
    RecipeError, naming how to get what is missing, and where the two did not play in the same version of the environment or
    did not call the same answers right.
    """
    with Run.open(target) as run:
        tests, many_turns, status = stored_tests(run), run.has_many_turns, run.status
        used = {stage: cpu_of(run, stage) for stage in tests}
        judged = judge_of(run) if control else {}
    if not tests:
        how = (f"`milepost resume {target}` finishes it and tests at the end" if status != "finished" else
               "`milepost run RECIPE` tests at its end where tasks.test is not 0")  # fmt: skip
        raise RecipeError(f"{target} has no test report to compare; {how}")
    before = before or ("sft" if "sft" in tests and after != "sft" else "base")
    for flag, stage in (("--before", before), ("--after", after)):
        if stage not in tests:
            raise RecipeError(f"{flag} {stage}: {target} has no test report of that stage; it has {', '.join(tests)}")
    if before == after:
        raise RecipeError(f"--before and --after are both {after}; {target} has test reports of {', '.join(tests)}")
    name, rival = _own_control(tests)
    cost = used.get(name)
    if control:
        name, rival, cost = _other_run(control, tests[after], judged)
    bar = standard_bar(tests[before], tests[after], rival, multi_turn=many_turns)
    return Comparison((before, after, name), tests[before], tests[after], rival, bar, (used[before], used[after], cost))


def cpu_of(run: Run, stage: str) -> float | None:
    """CPU-seconds that a stage used in all its steps, worker processes that score included; None if it was not measured."""
    found = run.metrics("cpu_seconds", stage)
    return math.fsum(seconds for _, seconds in found) if found else None


def stored_tests(run: Run) -> dict[str, EvalReport]:
    """A run's test reports by stage; of several of one stage the one written last."""
    return {stored.phase: EvalReport.from_json(stored.report) for stored in run.evals("test")}


def _own_control(tests: Mapping[str, EvalReport]) -> tuple[str, EvalReport | None]:
    """The strongest control that was tested within the run itself: beating it is beating them all."""
    found = {stage: report for stage, report in tests.items() if stage.startswith("control")}
    best = max(found, key=lambda stage: found[stage].success, default="")
    return best, found.get(best)


def judge_of(run: Run) -> dict[str, str]:
    """What said which answers and episodes were right: the environment and its version, or the functions, in words."""
    reward = run.recipe.reward
    if world := run.meta().get("environment"):
        return {"environment": world}
    decide = {reward.resolved_success, *reward.resolved_gates}
    functions = [f for f in reward.functions if f.resolved_label in decide]
    told = {f"what {f.name} is given": json.dumps(f.params, sort_keys=True) for f in functions}
    return {"what decides success": " and ".join(f.name for f in functions) or "nothing", **told,
            "reward.success_at": f"{reward.success_at:g}", "reward.extract": repr(reward.extract)}  # fmt: skip


def _other_run(control: str, after: EvalReport, judged: Mapping[str, str]) -> tuple[str, EvalReport, float | None]:
    with Run.open(control) as run:
        theirs = judge_of(run)
        for what in dict.fromkeys((*judged, *theirs)):
            one, other = judged.get(what, "none"), theirs.get(what, "none")
            if one != other:
                raise RecipeError(f"--control {control} cannot be compared: {what} there is {other}, and here {one}; use a "
                                  "run that was tested by the same")  # fmt: skip
        tests = stored_tests(run)
        used = {stage: cpu_of(run, stage) for stage in tests}
    same = {stage: report for stage, report in tests.items() if set(report.outcomes) == set(after.outcomes)}
    if not same:
        why = "none of its test reports is of the same tasks; use the same tasks and seed" if tests else (
            "it has no test report; test it with `milepost run`")  # fmt: skip
        raise RecipeError(f"--control {control} cannot be compared: {why}")
    stage = list(same)[-1]
    return f"{control} ({stage})", same[stage], used[stage]


def rates(report: EvalReport) -> str:
    """One line: sampled and greedy success, readable answers, accuracy among those, how many."""
    parts = [f"{Interval(report.success, report.success_low, report.success_high, report.num_tasks)} sampled"]
    if report.greedy is not None:
        parts.append(f"{100 * report.greedy:.1f} % greedy")
    if report.extractable is not None:
        parts.append(f"{100 * report.extractable:.1f} % readable")
    if report.accuracy_extractable is not None:
        parts.append(f"{100 * report.accuracy_extractable:.1f} % right among readable")
    return ", ".join(parts) + f" ({report.num_tasks} tasks × {report.samples})"


def _numbers(report: EvalReport) -> dict[str, Any]:
    """A report without its thousand outcomes."""
    return {k: v for k, v in report.to_json().items() if k not in ("outcomes", "greedy_outcomes")}


# --- one model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """What one model can do on held-out tasks, and where the episodes are."""

    model: str
    run: Path
    report: EvalReport

    def text(self) -> str:
        r = self.report
        sampled = Interval(r.success, r.success_low, r.success_high, r.num_tasks)
        lines = [f"{self.model} on {r.num_tasks} {r.split} tasks, {r.samples} samples each and one greedy",
                 f"  success          {sampled} sampled (95 % interval over tasks)"]  # fmt: skip
        if r.greedy is not None and r.greedy_low is not None and r.greedy_high is not None:
            lines.append(f"  greedy           {Interval(r.greedy, r.greedy_low, r.greedy_high, r.num_tasks)}")
        for name, value in (
            ("readable", r.extractable),
            ("of those right", r.accuracy_extractable),
            ("cut short", r.truncated),
        ):
            if value is not None:
                lines.append(f"  {name:<16} {100 * value:.1f} %")
        lines += [f"  {f'pass@{k}':<16} {value}" for k, value in self.pass_at().items()]
        if len(r.sources) > 1:
            lines += [f"  {name:<16} {interval} ({interval.num} tasks)" for name, interval in r.sources.items()]
        lines.append(f"  tokens           {r.length:.1f} on average")
        lines.append("  decoding         " + ", ".join(f"{key} {value}" for key, value in r.settings.items()))
        if r.verdicts:
            lines.append("  answers          " + ", ".join(f"{num} {name}" for name, num in r.verdicts.items()))
        if r.unscorable:
            lines.append("  unscorable       " + ", ".join(f"{cause} {num}" for cause, num in r.unscorable.items()))
        return "\n".join([*lines, f"  stored in        {self.run}"])

    def pass_at(self) -> dict[int, Interval]:
        return {k: report_pass_at_k(self.report, k) for k in PASS_AT if k <= self.report.samples}

    def json(self) -> str:
        """Keys: model, run, pass_at, and those of EvalReport without the single outcomes."""
        chances = {str(k): {"mean": _value(i.mean), "low": _value(i.low), "high": _value(i.high)}
                   for k, i in self.pass_at().items()}  # fmt: skip
        return json.dumps(
            {"model": self.model, "run": str(self.run), "pass_at": chances, **_numbers(self.report)}, indent=2
        )


def _value(number: float) -> float | None:
    return None if math.isnan(number) else number


def evaluate_recipe(recipe: Recipe, split: str = "validation", *, rows: Sequence | None = None) -> Evaluation:
    """Held-out success of the recipe's model as it is, sampled and greedy, stored in a run of its own (NAME-eval).

    `rows` replaces the recipe's sources. Raises RecipeError, DataError or StoreError.
    """
    if not getattr(recipe.tasks, split):
        raise RecipeError(f"tasks.{split} = 0 leaves nothing to evaluate; set it to 64 or more")
    from milepost.launch import open_session  # torch: `eval --paired` does without

    named = recipe.model_copy(update={"name": f"{recipe.name}-eval"})
    with open_session(named, rows=rows, quiet=True, stages=()) as session:
        report = session.evaluate(split, 0, stage="base", greedy=True)
        model = session.policy.name if recipe.model.new.size else recipe.model.path
        return Evaluation(model, session.run.path, report)

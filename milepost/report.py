"""What a run shows to people: one self-contained HTML page, and a summary for the terminal. Reads the store only."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from milepost.charts import Series, line_chart, short, sparkline
from milepost.disk import write_whole
from milepost.evaluate import BarVerdict, EvalReport, Interval, standard_bar
from milepost.store import Run, StoredEpisode
from milepost.types import VERDICTS, RecipeError, Task


@dataclass(frozen=True)
class Panel:
    """One chart: (metric, label) of its lines, and how to read it. "a|b" takes the first metric that was recorded."""

    title: str
    lines: tuple[tuple[str, str], ...]
    note: str = ""
    percent: bool = False
    floor: float | None = 0.0
    smooth: bool = True


# In the order in which a person asks: does it learn, can it, what does it write, is the update sound, what does it cost?
PANELS = (
    Panel("Reward", (("reward/mean", "mean"),), "mean over the batch of each step", floor=None),
    Panel("Success in training", (("success/train", "success"),), "on training tasks, whatever the shaping", percent=True),
    Panel(
        "Groups",
        (
            ("groups/constant|groups/constant_share", "constant"),
            ("groups/with_signal", "with signal"),
        ),
        "constant: equal rewards, nothing to compare",
        percent=True,
    ),
    Panel(
        "Spread of rewards",
        (("reward/std_within_group", "within groups"), ("reward/std_batch", "over the batch")),
        "the first one is what is learned from",
    ),
    Panel("Length", (("length/mean", "mean tokens"),), "sampled tokens of one episode"),
    Panel("Turns", (("turns/mean", "turns"), ("calls/mean", "tool calls")), "of one episode in its environment"),
    Panel(
        "Answers",
        (
            ("extractable/rate", "readable"),
            ("episodes/truncated|truncated/share", "cut short"),
            ("episodes/unscorable|unscorable/share", "unscorable"),
        ),
        "unscorable ones never count as zero",
        percent=True,
    ),
    Panel("Verdicts", tuple((f"verdict/{name}", name) for name in VERDICTS), "answers of one step; four different things"),
    Panel("Entropy", (("entropy/mean", "nats per token"),), "falling to 0 means that exploring has ended"),
    Panel(
        "Drift", (("drift/nats_per_token", "from the first policy"),), "nats per token, fixed panel of texts", smooth=False
    ),
    Panel("Size of an update", (("update_kl", "old to new policy"),), "nats per token, fixed panel of texts"),
    Panel("KL to the reference", (("kl/k3", "k3"), ("kl/k1", "k1")), "nats per token", floor=None),
    Panel(
        "Sampler and learner",
        (("mismatch/mean_abs", "mean |Δ log p|"), ("mismatch/p99", "99th percentile")),
        "the same tokens, scored by both",
    ),
    Panel("Effective samples", (("mismatch/ess", "share"),), "100 %: sampler and learner agree", percent=True),
    Panel("Clipping", (("clip_low", "low"), ("clip_high", "high")), "share of tokens held back by the clip", percent=True),
    Panel("Gradient norm", (("grad_norm", "before clipping"),), "progress shows here and in reward, not in the loss"),
    Panel("Learning rate", (("lr", "lr"),), smooth=False),
    Panel(
        "Seconds per step",
        (
            ("seconds/sample", "sample"),
            ("seconds/score", "score"),
            ("seconds/update", "update"),
            ("seconds/eval", "evaluate"),
        ),
    ),
    Panel(
        "CPU-seconds per step",
        (("cpu_seconds", "all"), ("scorer/cpu_seconds", "of these, processes that score")),
        "what a control of equal cost is given",
    ),
    Panel(
        "Length weight",
        (("length/weight", "weight"),),
        "raised while the mean length exceeds reward.length.max_mean",
        smooth=False,
    ),
    Panel("Memory", (("peak_memory_gb", "peak, GB"),), smooth=False),
)
SFT_PANELS = (
    Panel("Warm start: loss", (("sft/loss", "cross-entropy"),), "nats per token of the demonstrations"),
    Panel("Warm start: gradient norm", (("sft/grad_norm", "before clipping"),)),
)
SPARK_METRICS = ("reward/mean", "success/train", "groups/constant|groups/constant_share", "length/mean",
                 "episodes/truncated|truncated/share",
                 "extractable/rate", "entropy/mean", "drift/nats_per_token", "kl/k3", "mismatch/mean_abs", "grad_norm",
                 "sft/loss")  # fmt: skip
NO_FACTS = ("status", "created", "preflight")
"""What of a run's description the page says elsewhere, or `milepost preflight` better."""
STAGE_NAMES = {"base": "Base model", "sft": "After SFT", "grpo": "After GRPO", "train": "After GRPO", "test": "At the end"}
FILES = (("store.sqlite", "metrics, every episode (ids, log-probs, rewards by part), evaluations, events"),
         ("recipe.toml", "the recipe as given"), ("recipe.json", "the resolved recipe"),
         ("formula.txt", "the resolved formula of loss and advantage"), ("report.html", "this page"))  # fmt: skip


def write_report(run_path: str | Path) -> Path:
    """Writes `report.html` into the run's folder and returns its path. Needs no network, then or when it is read."""
    with Run.open(run_path) as run:
        return write_whole(run.path / "report.html", page("report.html.j2", path=str(run.path.resolve()), **_page(run)))


def page(template: str, **values: Any) -> str:
    """A page of one of the templates beside this file."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(written=time.strftime("%Y-%m-%d %H:%M"), **values)


def show(run_path: str | Path, *, width: int = 100, color: bool = False) -> str:
    """The run on one terminal screen: verdict, held-out table, metrics with sparklines, warnings."""
    from rich.console import Console
    from rich.table import Table

    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, color_system="auto" if color else None, highlight=False)
    with Run.open(run_path) as run:
        verdict = judge(run)
        console.print(f"[bold]{run.name}[/bold]  {_progress_text(run)}", soft_wrap=True)
        console.print(verdict.headline, markup=False, soft_wrap=True)
        for clause in verdict.bar.clauses if verdict.bar else ():
            console.print(f"  {_mark(clause.passed)} {clause.text}", markup=False, soft_wrap=True)
        rows = table_rows(run)
        if rows:
            table = Table(*("", "sampled", "greedy", "readable", "of readable", "tokens", "n"), box=None, pad_edge=False)
            for row in rows:
                table.add_row(
                    row["name"], row["sampled"], row["greedy"], row["readable"], row["accuracy"], row["length"], row["n"]
                )
            console.print(table)
            for row in rows:
                if row["answers"]:
                    console.print(f"{row['name']}: {row['answers']}", markup=False, soft_wrap=True)
        phase = main_phase(run)
        metrics = Table(*("metric", "first", "last", ""), box=None, pad_edge=False)
        for names in SPARK_METRICS:
            name, points = _metric(run, names, "sft" if names.startswith("sft/") else phase)
            if points:
                values = [value for _, value in points]
                metrics.add_row(name, short(values[0]), short(values[-1]), sparkline(values))
        if metrics.row_count:
            console.print(metrics)
        for warning in _warnings(run)[-5:]:
            console.print(f"! {warning['kind']} ×{warning['count']}: {warning['message']}", markup=False, soft_wrap=True)
        console.print(f"files: {run.path}   report: milepost report {run.path}", markup=False, soft_wrap=True)
    return out.getvalue()


# The verdict


@dataclass(frozen=True)
class Verdict:
    """What was learned. `state` is "met", "unmet" or "open"."""

    state: str
    headline: str
    bar: BarVerdict | None = None
    before: str = ""
    after: str = ""


def judge(run: Run) -> Verdict:
    """By the standard bar on the test split where that was measured; otherwise what can honestly be said."""
    tests = {e.phase: EvalReport.from_json(e.report) for e in run.evals("test")}
    trained = [phase for phase in tests if not _is_control(phase)]
    if len(trained) >= 2:
        after = next((phase for phase in reversed(trained) if phase in ("grpo", "train")), trained[-1])
        earlier = trained[: trained.index(after)]
        if earlier:
            before = "sft" if "sft" in earlier else earlier[-1]
            control = max((tests[p] for p in tests if _is_control(p)), key=lambda r: r.success, default=None)
            names = stage_name(before), stage_name(after)
            return _by_the_bar(tests[before], tests[after], control, names, multi_turn=run.has_many_turns)
    reports = _validation(run)
    if len(reports) >= 2:
        best = max(reports, key=lambda r: (r.success, -r.step))
        change = f"{_percent(reports[0].success)} to {_percent(best.success)} at step {best.step}"
        doubt = "it also picks the checkpoint, so the test decides"
        return Verdict("open", f"No test comparison yet. Held-out validation went from {change}; {doubt}.")
    return Verdict("open", "No verdict yet: nothing was evaluated before and after training.")


def _by_the_bar(
    before: EvalReport, after: EvalReport, control: EvalReport | None, names: tuple[str, str], *, multi_turn: bool
) -> Verdict:
    try:
        bar = standard_bar(before, after, control, multi_turn=multi_turn)
    except RecipeError as error:
        return Verdict("open", f"No verdict: {error}.")
    rates = f"{_percent(before.success)} → {_percent(after.success)}"
    change = f"{rates} on held-out tasks ({100 * bar.paired.difference:+.1f} points)"
    if bar.passed:
        return Verdict("met", f"It got better: {change}.", bar, *names)
    return Verdict("unmet", f"Not shown to be better by the standard bar: {change}.", bar, *names)


def _is_control(phase: str) -> bool:
    return phase.startswith("control")


def stage_name(phase: str) -> str:
    if _is_control(phase):
        return f"Control: {phase.removeprefix('control').strip('_-:/ ').replace('_', ' ') or 'warm start goes on'}"
    return STAGE_NAMES.get(phase, phase.replace("_", " "))


def main_phase(run: Run) -> str | None:
    """The phase whose curves matter most: the one with rewards, else the last."""
    phases = run.phases()
    return next((p for p in phases if run.metrics("reward/mean", p)), phases[-1] if phases else None)


def _validation(run: Run) -> list[EvalReport]:
    """Validation reports of the phase that has most of them, by step."""
    by_phase: dict[str, list[EvalReport]] = {}
    for stored in run.evals("validation"):
        by_phase.setdefault(stored.phase, []).append(EvalReport.from_json(stored.report))
    reports = max(by_phase.values(), key=len, default=[])
    return sorted((r for r in reports if not math.isnan(r.success)), key=lambda r: r.step)


# Rows, charts, samples


def table_rows(run: Run) -> list[dict[str, str]]:
    """One row per test evaluation; of validation, the first and the best while there is no test."""
    as_began = lambda e: " (step 0, as it began)" if e.phase == "grpo" and e.step == 0 else ""  # noqa: E731
    named = [(stage_name(e.phase) + as_began(e), EvalReport.from_json(e.report)) for e in run.evals("test")]
    if not named:
        reports = _validation(run)
        best = max(reports, key=lambda r: (r.success, -r.step), default=None)
        chosen = reports[:1] + ([best] if best is not None and best is not reports[0] else [])
        named = [(f"Validation, step {report.step}", report) for report in chosen]
    rows = []
    for name, r in named:
        rows.append({
            "name": name,
            "sampled": str(Interval(r.success, r.success_low, r.success_high, r.num_tasks)),
            "greedy": _percent(r.greedy),
            "readable": _percent(r.extractable),
            "accuracy": _percent(r.accuracy_extractable),
            "answers": ", ".join(f"{num} {name}" for name, num in r.verdicts.items()),
            "length": f"{r.length:.1f}",
            "truncated": _percent(r.truncated),
            "n": f"{r.num_tasks} × {r.samples}",
            "decoding": ", ".join(f"{key} {value}" for key, value in r.settings.items()),
            "unscorable": ", ".join(f"{cause} {num}" for cause, num in r.unscorable.items()) or "none",
        })  # fmt: skip
    return rows


def _charts(run: Run) -> list[dict[str, Any]]:
    charts = []
    held_out = _held_out_chart(_validation(run))
    phase = main_phase(run)
    for panel in PANELS:
        charts.append(_chart(run, panel, phase))
    charts.insert(1, held_out)
    if phase != "sft" and "sft" in run.phases():
        charts += [_chart(run, panel, "sft") for panel in SFT_PANELS]
    elif phase == "sft":
        charts = [_chart(run, panel, "sft") for panel in SFT_PANELS] + charts
    return [chart for chart in charts if chart["svg"]]


def _chart(run: Run, panel: Panel, phase: str | None) -> dict[str, Any]:
    found = [Series(label, _metric(run, names, phase)[1]) for names, label in panel.lines]
    svg = line_chart(found, percent=panel.percent, floor=panel.floor, smooth=panel.smooth)
    return _framed(panel.title, panel.note, found, svg, panel.percent)


def _metric(run: Run, names: str, phase: str | None) -> tuple[str, list[tuple[int, float]]]:
    """(name, points) of the first of the names that has any."""
    found = [(name, run.metrics(name, phase)) for name in names.split("|")]
    return next((pair for pair in found if pair[1]), found[0])


def _held_out_chart(reports: Sequence[EvalReport]) -> dict[str, Any]:
    band = [(float(r.step), r.success_low, r.success_high) for r in reports]
    found = [Series("sampled", [(r.step, r.success) for r in reports], band),
             Series("greedy", [(r.step, r.greedy) for r in reports if r.greedy is not None])]  # fmt: skip
    svg = line_chart(found, percent=True, floor=0.0)
    note = f"{reports[0].num_tasks} validation tasks × {reports[0].samples}; band: 95 %" if reports else ""
    return _framed("Held-out success", note, found, svg, True)


def _framed(title: str, note: str, series: Sequence[Series], svg: str, percent: bool) -> dict[str, Any]:
    legend = [
        {"index": i, "label": s.label, "last": short(s.points[-1][1], percent)} for i, s in enumerate(series) if s.points
    ]
    return {"title": title, "note": note, "legend": legend, "svg": Markup(svg)}


def _samples(run: Run, num: int = 3) -> list[dict[str, Any]]:
    """Best and worst episodes of the last step, from different groups where possible."""
    phase = main_phase(run)
    last = run.last_step(phase)
    chosen = []
    for kind, order in (("best", "best"), ("worst", "worst")):
        seen: dict[str, StoredEpisode] = {}
        for stored in run.episodes(phase, last, order=order):
            seen.setdefault(stored.episode.group_id, stored)
            if len(seen) == num:
                break
        chosen += [_sample(run, kind, stored) for stored in seen.values()]
    return chosen


def _sample(run: Run, kind: str, stored: StoredEpisode) -> dict[str, Any]:
    episode, reward = stored.episode, stored.reward
    assert reward is not None and reward.total is not None
    credit = stored.credit
    advantage = credit.advantages[0] if credit is not None and len(credit.advantages) else None
    return {
        "kind": kind,
        "task": episode.id.task_key,
        "step": stored.step,
        "reward": short(reward.total),
        "parts": [(name, short(value)) for name, value in reward.parts.items()],
        "success": {True: "success", False: "no success", None: "success not judged"}[reward.success],
        "advantage": None if advantage is None else f"{advantage:+.3g}",
        "stop": f"{episode.stop.kind}: {episode.stop.reason}",
        "tokens": episode.num_sampled,
        "prompt": _prompt(run.task(episode.id.task_key)),
        "turns": [_visible(turn.text) for turn in episode.turns],
    }


def _prompt(task: Task) -> list[tuple[str, str]]:
    if isinstance(task.prompt, str):
        return [("prompt", _visible(task.prompt))]
    return [(str(m.get("role", "")), _visible(str(m.get("content", "")))) for m in task.prompt]


def _visible(text: str) -> str:
    """Control characters as their pictures: a page must show what the policy wrote, and a terminal must not obey it."""
    return "".join(
        c if c in "\n\t" or (c >= " " and c != "\x7f") else chr(0x2400 + ord(c)) if c < " " else "␡" for c in text
    )


def _warnings(run: Run) -> list[dict[str, Any]]:
    """Warnings and stops, one row per kind, with the latest message."""
    found: dict[str, dict[str, Any]] = {}
    for event in run.events():
        if event.level == "info":
            continue
        row = found.setdefault(event.kind, {"kind": event.kind, "count": 0, "steps": []})
        row |= {"level": event.level, "message": _visible(event.message), "count": row["count"] + 1}
        if event.step is not None:
            row["steps"].append(event.step)
    for row in found.values():
        steps = row.pop("steps")
        row["where"] = "" if not steps else f"step {steps[0]}" if len(steps) == 1 else f"steps {min(steps)} to {max(steps)}"
    return list(found.values())


def _page(run: Run) -> dict[str, Any]:
    verdict = judge(run)
    folders = sorted(path for path in run.checkpoints.rglob("step-*") if path.is_dir())
    files = [(name, what) for name, what in FILES if (run.path / name).exists() or name == "report.html"]
    files += [
        (f"{path.relative_to(run.path).as_posix()}/", "checkpoint; model/ is a plain Hugging Face folder")
        for path in folders
    ]
    recipe = json.loads((run.path / "recipe.json").read_text(encoding="utf-8"))
    return {
        "name": run.name,
        "progress": _progress_text(run),
        "verdict": verdict,
        "clauses": [(_mark(c.passed), c.passed, c.text) for c in verdict.bar.clauses] if verdict.bar else [],
        "rows": table_rows(run),
        "charts": _charts(run),
        "samples": _samples(run),
        "warnings": _warnings(run),
        "formula": run.formula.strip(),
        "toml": run.toml.strip(),
        "recipe": json.dumps(recipe, indent=2, ensure_ascii=False),
        "facts": [(key, _fact(value)) for key, value in run.meta().items() if key not in NO_FACTS and value],
        "files": files,
    }


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _progress_text(run: Run) -> str:
    parts = [run.status]
    for phase in run.phases():
        times = run.commit_times(phase)
        parts.append(
            f"{phase}: {len(times)} steps in {_duration(times[-1] - times[0])}" if len(times) > 1 else f"{phase}: 1 step"
        )
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def _percent(rate: float | None) -> str:
    return "–" if rate is None or math.isnan(rate) else f"{100 * rate:.1f} %"


def _mark(passed: bool | None) -> str:
    return {True: "✓", False: "✗", None: "–"}[passed]

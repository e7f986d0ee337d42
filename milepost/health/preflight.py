"""Before training: is there anything to learn from? Samples as training would, trains nothing, names what to change first.

`preflight` plays and stores; `examine` computes every number from episodes and rewards alone, so that stored ones can
be examined again. Torch-free.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from milepost.batch_signal import more_room, signal_report
from milepost.credit import assign
from milepost.engines.base import SamplingSettings
from milepost.evaluate import task_interval
from milepost.progress import Progress
from milepost.recipe import Recipe
from milepost.sections import OWN_BUDGETS
from milepost.tasks import TaskOrder
from milepost.types import Credit, Group, RecipeError, Reward, StopKind, Task

if TYPE_CHECKING:
    from milepost.stages.session import Session

PHASE = "preflight"
GROUP_SIZES = (4, 8, 16)
"""For which the share of groups without signal is predicted."""
ROWS_AT_ONCE = 64
"""Episodes between two commits: what an interruption can lose."""

LEAST_SUCCESS, LEAST_EXTRACTABLE = 0.10, 0.95
"""Below either, a warm start comes first: GRPO can only sharpen what the policy already does sometimes."""
MOST_TRUNCATED, MOST_UNSCORABLE, MOST_SUCCESS, MOST_DEAD = 0.10, 0.05, 0.90, 0.80


@dataclass(frozen=True)
class Distribution:
    """Of one number over episodes."""

    num: int
    mean: float
    quantiles: Mapping[str, float]
    """p0, p10, p25, p50, p75, p90, p100."""


@dataclass(frozen=True)
class Preflight:
    """What a sample of training episodes shows. Rates are shares of 1; what has no data is None or empty."""

    num_tasks: int
    group_size: int
    num_episodes: int
    max_new_tokens: int
    max_turns: int
    """Actions of one episode, each of which may use `max_new_tokens`; 1 for single answers."""
    reward: Distribution | None
    parts: Mapping[str, Distribution]
    success: float | None
    success_low: float | None
    success_high: float | None
    """95 % interval over tasks."""
    pass_histogram: tuple[int, ...]
    """[k]: groups of which k of `group_size` episodes succeeded (rounded where some could not be judged)."""
    dead_groups: float
    """Share of groups without any learning signal, by the recipe's own rewards and credit."""
    dead_predicted: Mapping[int, float]
    """The same by success alone, at other group sizes."""
    truncated: Mapping[str, int]
    faults: Mapping[str, int]
    """Episodes by reason."""
    length_mean: float
    length_p95: float
    length_max: int
    """Sampled tokens of an episode; what a fault broke off is left out."""
    extractable: float | None
    distinct_completions: float
    """Mean number of different completions in a group."""
    identical_groups: float
    """Share of groups whose completions are all the same."""
    unscorable: Mapping[str, int]
    """Episodes the verifier gave no value for, by cause."""
    go: bool = True
    verdict: str = ""

    def to_json(self) -> dict[str, Any]:
        """Stable keys, plain values."""
        return json.loads(json.dumps(asdict(self)))

    def json(self) -> str:
        return json.dumps(self.to_json(), indent=1)

    def text(self) -> str:
        return _text(self)


def preflight(session: Session, num_tasks: int = 64) -> Preflight:
    """Samples the first `num_tasks` training tasks, in training's own order and settings, and stores every episode.

    Fewer if there are fewer. The verdict becomes an event of the run, the numbers its meta value "preflight". Raises
    RecipeError for num_tasks < 1, DataError if the tasks cannot fill a training step.
    """
    if num_tasks < 1:
        raise RecipeError(f"preflight: --tasks {num_tasks} must be at least 1; 64 is a good start")
    recipe, run = session.recipe, session.run
    tasks = first_tasks(session, num_tasks)
    size = max(1, ROWS_AT_ONCE // recipe.rollout.group_size)
    chunks = [tasks[i : i + size] for i in range(0, len(tasks), size)]
    groups: list[Group] = []
    rewards: list[list[Reward]] = []
    credits: list[list[Credit]] = []
    for step, chunk in enumerate(Progress(chunks, "preflight"), start=1):
        settings = SamplingSettings(recipe.rollout.temperature)
        new = session.roll(chunk, phase=PHASE, step=step, num_samples=recipe.rollout.group_size, settings=settings)
        judged = session.grader.score(new)
        credited = assign(new, judged, recipe.credit, recipe.rollout, **session.per_turn(new, judged))
        run.commit_step(step, PHASE, new, judged, credited)
        groups, rewards, credits = groups + new, rewards + judged, credits + credited
    found = examine(groups, rewards, credits, recipe)
    run.set_meta(preflight=found.to_json())
    run.add_event("info" if found.go else "warning", PHASE, found.verdict, phase=PHASE)
    return found


def first_tasks(session: Session, num_tasks: int) -> list[Task]:
    """The first different tasks that training would deal out, mixture weights included."""
    recipe, tasks = session.recipe, session.tasks
    order = TaskOrder(tasks.train, recipe.tasks.order, recipe.seed, tasks.sources)
    chosen: dict[str, Task] = {}
    while len(chosen) < num_tasks:
        before = len(chosen)
        for task in order.take(recipe.rollout.prompts_per_step):
            chosen.setdefault(task.key, task)
        if len(chosen) == before:
            break
    return list(chosen.values())[:num_tasks]


def examine(
    groups: Sequence[Group], rewards: Sequence[Sequence[Reward]], credits: Sequence[Sequence[Credit]], recipe: Recipe
) -> Preflight:
    """Every number and the verdict, from episodes that were played, judged and credited. All arguments run parallel."""
    episodes = [e for g in groups for e in g.episodes]
    flat = [r for rs in rewards for r in rs]
    verdicts = [[r.success if r.scorable else None for r in rs] for rs in rewards]
    interval = task_interval(verdicts)
    judged = [[bool(v) for v in vs if v is not None] for vs in verdicts]
    judged = [vs for vs in judged if vs]
    size = recipe.rollout.group_size
    histogram = np.bincount([round(sum(vs) / len(vs) * size) for vs in judged], minlength=size + 1)
    pairs = [(sum(vs), len(vs)) for vs in judged if len(vs) > 1]
    signal = signal_report(groups, rewards, credits)
    lengths = [e.num_sampled for e in episodes if e.stop.kind is not StopKind.FAULT] or [0]
    readable = [r.extractable for r in flat if r.extractable is not None]
    distinct = [len({b"".join(t.sampled.ids.tobytes() for t in e.turns) for e in g.episodes}) for g in groups]
    found = Preflight(
        num_tasks=len(groups),
        group_size=size,
        num_episodes=len(episodes),
        max_new_tokens=recipe.rollout.max_new_tokens,
        max_turns=recipe.env.max_turns if recipe.env.name else 1,
        reward=distribution([r.total for r in flat if r.total is not None]),
        parts=_parts(flat),
        success=interval.mean if judged else None,
        success_low=interval.low if judged else None,
        success_high=interval.high if judged else None,
        pass_histogram=tuple(int(n) for n in histogram),
        dead_groups=1.0 - signal.num_with_signal / len(groups),
        dead_predicted={g: dead_share(pairs, g) for g in GROUP_SIZES} if pairs else {},
        truncated=_reasons(groups, StopKind.TRUNCATED),
        faults=_reasons(groups, StopKind.FAULT),
        length_mean=float(np.mean(lengths)),
        length_p95=float(np.quantile(lengths, 0.95)),
        length_max=max(lengths),
        extractable=float(np.mean(readable)) if readable else None,
        distinct_completions=float(np.mean(distinct)),
        identical_groups=float(np.mean([n == 1 for n in distinct])),
        unscorable=dict(Counter(r.cause for r in flat if r.cause is not None).most_common()),
    )
    go, verdict = judge(found, recipe)
    return replace(found, go=go, verdict=verdict)


def distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    points = (0, 10, 25, 50, 75, 90, 100)
    quantiles = {f"p{p}": float(v) for p, v in zip(points, np.percentile(values, points))}
    return Distribution(len(values), float(np.mean(values)), quantiles)


def _parts(rewards: Sequence[Reward]) -> dict[str, Distribution]:
    names = dict.fromkeys(name for r in rewards for name in r.parts)
    found = {name: distribution([r.parts[name] for r in rewards if name in r.parts]) for name in names}
    return {name: spread for name, spread in found.items() if spread is not None}


def _reasons(groups: Sequence[Group], kind: StopKind) -> dict[str, int]:
    return dict(Counter(e.stop.reason for g in groups for e in g.episodes if e.stop.kind is kind).most_common())


def dead_share(counts: Sequence[tuple[int, int]], group_size: int) -> float:
    """Expected share of groups of `group_size` whose episodes all succeed or all fail: mean of p^G + (1−p)^G over tasks.

    `counts`: (successes, episodes ≥ 2) of each sampled group. Where every group has at least G episodes the estimate
    is unbiased: the chance that G of its n, drawn without replacement, agree. Beyond that the pass rates of tasks are
    taken as Beta-distributed, with the mean and spread that the counts have (by factorial moments).
    """
    if all(n >= group_size for _, n in counts):
        agree = [(comb(c, group_size) + comb(n - c, group_size)) / comb(n, group_size) for c, n in counts]
        return float(np.mean(agree))
    first = float(np.mean([c / n for c, n in counts]))
    second = float(np.mean([c * (c - 1) / (n * (n - 1)) for c, n in counts]))
    spread, mixed = second - first**2, first - second
    if mixed <= 0:
        return 1.0
    if spread <= 1e-12:
        return first**group_size + (1 - first) ** group_size
    # p ~ Beta(a, b): E p = first, E p² = second  ⇒  a + b = (E p − E p²) / Var p
    total = mixed / spread
    return _beta_power(first * total, total, group_size) + _beta_power((1 - first) * total, total, group_size)


def _beta_power(a: float, total: float, power: int) -> float:
    """E p^power for p ~ Beta(a, total − a)."""
    return float(np.prod([(a + i) / (total + i) for i in range(power)]))


# --- the verdict -----------------------------------------------------------------------------------------------------

Rule = Callable[[Preflight, Recipe], str | None]
"""What to change first and the rule behind it, or None where the rule is kept."""


def judge(found: Preflight, recipe: Recipe) -> tuple[bool, str]:
    """(go, one line). The first broken rule decides; they stand in the order in which fixing them makes sense."""
    if broken := _unscorable(found, recipe):
        return False, f"change this first: {broken}"
    if (cold := _cold(found)) and recipe.sft.steps:
        return True, f"go: {cold}, and the recipe warm-starts for sft.steps = {recipe.sft.steps}; preflight again after it"
    for rule in (_nothing_finishes, _needs_warm_start, _truncated, _too_easy, _no_variety, _dead):
        if broken := rule(found, recipe):
            return False, f"change this first: {broken}"
    return True, f"go: {1 - found.dead_groups:.0%} of the groups carry signal, and no rule is broken"


def _unscorable(found: Preflight, recipe: Recipe) -> str | None:
    bad = sum(found.unscorable.values())
    if bad <= MOST_UNSCORABLE * found.num_episodes:
        return None
    cause = next(iter(found.unscorable))
    return (f"the reward gives no value for {bad / found.num_episodes:.0%} of the episodes, mostly “{cause}”; run the "
            f"reward function on one completion by hand (rule: at most {MOST_UNSCORABLE:.0%} unscorable)")  # fmt: skip


def _cold(found: Preflight) -> str | None:
    """Why a warm start is needed, if it is."""
    if found.success is not None and found.success < LEAST_SUCCESS:
        return f"success is {found.success:.1%}, below {LEAST_SUCCESS:.0%}"
    if found.extractable is not None and found.extractable < LEAST_EXTRACTABLE:
        return f"{found.extractable:.1%} of the answers can be read, below {LEAST_EXTRACTABLE:.0%}"
    return None


def _cut_short(found: Preflight, recipe: Recipe) -> tuple[float, str, str]:
    """(share of episodes, the reasons, what to do). Who uses up its own budget and is scored failed like any other."""
    cut = {reason: count for reason, count in found.truncated.items()
           if reason not in OWN_BUDGETS or recipe.rollout.stop_rule(reason) != "score"}  # fmt: skip
    most = max(cut, key=lambda reason: cut[reason], default="")
    tokens = f"raise rollout.max_new_tokens = {found.max_new_tokens}"
    return sum(cut.values()) / found.num_episodes, _counts(cut), more_room(most, tokens)


def _nothing_finishes(found: Preflight, recipe: Recipe) -> str | None:
    share, reasons, room = _cut_short(found, recipe)
    if share <= 0.5:
        return None
    return (f"{share:.0%} of the episodes are cut short ({reasons}), so their reward cannot be earned; {room}, or "
            f"warm-start with sft.steps so that the policy learns to stop (rule: at most {MOST_TRUNCATED:.0%} "
            "truncated)")  # fmt: skip


def _needs_warm_start(found: Preflight, recipe: Recipe) -> str | None:
    cold = _cold(found)
    return cold and (f"{cold}; warm-start with sft.steps, or make the tasks easier (rule: at least {LEAST_SUCCESS:.0%} "
                     f"success and {LEAST_EXTRACTABLE:.0%} readable answers before GRPO)")  # fmt: skip


def _truncated(found: Preflight, recipe: Recipe) -> str | None:
    share, reasons, room = _cut_short(found, recipe)
    if share <= MOST_TRUNCATED:
        return None
    return f"{share:.0%} of the episodes are cut short ({reasons}); {room} (rule: at most {MOST_TRUNCATED:.0%} truncated)"


def _too_easy(found: Preflight, recipe: Recipe) -> str | None:
    if found.success is None or found.success <= MOST_SUCCESS:
        return None
    return (f"success is already {found.success:.0%}, so most groups only succeed; make the tasks harder "
            f"(rule: at most {MOST_SUCCESS:.0%} success)")  # fmt: skip


def _no_variety(found: Preflight, recipe: Recipe) -> str | None:
    if found.identical_groups <= 0.5:
        return None
    return (f"{found.identical_groups:.0%} of the groups hold one completion {found.group_size} times; raise "
            f"rollout.temperature = {recipe.rollout.temperature:g} (rule: at most half identical)")  # fmt: skip


def _dead(found: Preflight, recipe: Recipe) -> str | None:
    if found.dead_groups <= MOST_DEAD:
        return None
    larger = found.dead_predicted.get(16)
    hope = (
        f"; with rollout.group_size = 16 it would be {larger:.0%}" if larger is not None and found.group_size < 16 else ""
    )
    return (f"{found.dead_groups:.0%} of the groups carry no signal{hope}; change the group size or the difficulty of the "
            f"tasks (rule: at most {MOST_DEAD:.0%} without signal)")  # fmt: skip


# --- for people ------------------------------------------------------------------------------------------------------


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _text(p: Preflight) -> str:
    rows = [("reward", _spread(p.reward))] + [(f"· {name}", _spread(spread)) for name, spread in p.parts.items()]
    if p.success is None:
        rows.append(("success", "not measured: the reward names no success"))
    else:
        rows.append(("success", f"{p.success:.1%}, 95 % [{p.success_low:.1%}, {p.success_high:.1%}]"))
        rows.append(("solved of " + str(p.group_size), _histogram(p.pass_histogram)))
    predicted = ", ".join(f"{share:.0%} at {size}" for size, share in p.dead_predicted.items())
    rows.append(
        ("no signal", f"{p.dead_groups:.0%} of the groups" + (f"; by success alone: {predicted}" if predicted else ""))
    )
    share = sum(p.truncated.values()) / p.num_episodes
    rows.append(("truncated", f"{share:.1%}" + (f" ({_counts(p.truncated)})" if p.truncated else "")))
    if p.faults:
        rows.append(("faults", _counts(p.faults)))
    allowed = f"{p.max_turns} × {p.max_new_tokens}" if p.max_turns > 1 else str(p.max_new_tokens)
    rows.append(("length", f"{p.length_mean:.0f} tokens, p95 {p.length_p95:.0f}, max {p.length_max} of {allowed} allowed"))
    if p.extractable is not None:
        rows.append(("readable", f"{p.extractable:.1%} of the answers"))
    rows.append(("variety", f"{p.distinct_completions:.1f} different completions in a group of {p.group_size}"))
    rows.append(("unscorable", _counts(p.unscorable) or "none"))
    width = max(len(name) for name, _ in rows)
    head = f"preflight: {p.num_tasks} training tasks × {p.group_size}, nothing trained"
    return "\n".join([head, *(f"  {name:{width}s}  {text}" for name, text in rows), p.verdict])


def _spread(found: Distribution | None) -> str:
    if found is None:
        return "no value at all"
    points = " ".join(f"{name} {value:g}" for name, value in found.quantiles.items())
    return f"mean {found.mean:.3f} ({points})"


def _histogram(counts: Sequence[int]) -> str:
    return "  ".join(f"{k}: {n}" for k, n in enumerate(counts) if n) + "  (successes: groups)"

"""What a batch can teach, in counts, and one sentence when it is nothing. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from milepost.advantages import is_constant, standard_deviation
from milepost.credit import cut_short, has_total
from milepost.types import Credit, Group, Reward, StopKind


@dataclass(frozen=True)
class SignalReport:
    """What a batch can teach, in counts, and one sentence when it is nothing."""

    num_groups: int
    num_with_signal: int
    """Groups with at least one trained token whose advantage is not 0."""
    num_constant: int
    """Groups of two or more counted episodes whose equal rewards make every advantage exactly 0."""
    num_single: int
    """Groups with exactly one counted episode."""
    num_empty: int
    """Groups with no counted episode."""
    num_episodes: int
    num_truncated: int
    """By tokens, context, time or a limit of the environment's own."""
    num_faults: int
    unscorable: Mapping[str, int] = field(default_factory=dict)
    """Cause → count; faults are counted apart."""
    cause: str | None = None
    """Why there is no learning signal at all, and what to do; None if there is some."""
    truncation: str | None = None
    """Set when every completion was cut short."""

    def metrics(self) -> dict[str, float]:
        """Shares of groups and episodes under stable names; absent without data."""
        result: dict[str, float] = {}
        if self.num_groups:
            for name in ("with_signal", "constant", "single", "empty"):
                result[f"groups/{name}"] = getattr(self, f"num_{name}") / self.num_groups
        if self.num_episodes:
            result["episodes/truncated"] = self.num_truncated / self.num_episodes
            result["episodes/fault"] = self.num_faults / self.num_episodes
            result["episodes/unscorable"] = sum(self.unscorable.values()) / self.num_episodes
            result |= {f"unscorable/{cause}": float(count) for cause, count in sorted(self.unscorable.items())}
        return result


def signal_report(
    groups: Sequence[Group], rewards: Sequence[Sequence[Reward]], credits: Sequence[Sequence[Credit]]
) -> SignalReport:
    """Counts what carries signal after `assign`. All three arguments have the same shape."""
    rows = [(e, r, c) for group, rs, cs in zip(groups, rewards, credits) for e, r, c in zip(group.episodes, rs, cs)]
    counted = Counter(e.group_id for e, _, c in rows if c.in_baseline)
    silent = {e.group_id for e, _, c in rows if c.constant_group}
    alive = {e.group_id for e, _, c in rows if c.trained and np.any(c.advantages)}
    names = list(dict.fromkeys(e.group_id for e, _, _ in rows))
    facts: dict[str, Any] = {
        "num_groups": len(names),
        "num_with_signal": len(alive),
        "num_constant": sum(counted[name] > 1 and name in silent for name in names),
        "num_single": sum(counted[name] == 1 for name in names),
        "num_empty": sum(counted[name] == 0 for name in names),
        "num_episodes": len(rows),
        "num_truncated": sum(cut_short(e.stop) for e, _, _ in rows),
        "num_faults": sum(e.stop.kind is StopKind.FAULT for e, _, _ in rows),
        "unscorable": dict(Counter(
            r.cause or "not finite" for e, r, _ in rows if e.stop.kind is not StopKind.FAULT and not has_total(r)
        )),
    }  # fmt: skip
    report = SignalReport(**facts)
    totals = [r.total for _, r, c in rows if c.in_baseline and r.total is not None]
    cut = Counter(e.stop.reason for e, _, _ in rows if cut_short(e.stop))
    truncation = _all_cut(report, cut) if report.num_episodes and report.num_truncated == report.num_episodes else None
    left_out = Counter(e.stop.reason for e, _, c in rows if e.stop.kind is StopKind.TRUNCATED and not c.trained)
    cause = None if alive else f"no learning signal: {truncation or _why_silent(report, totals, left_out)}"
    return SignalReport(**facts, cause=cause, truncation=truncation)


_ROOM = {
    "context": "raise env.max_context_tokens, or let episodes go on past it with env.context_rule",
    "time": "raise env.max_seconds, or look at what makes steps slow",
    "environment": "look at why the environment itself cuts episodes short",
    "turns": "raise env.max_turns",
    "tool_calls": "raise env.max_tool_calls",
    "invalid_actions": "look at what makes actions invalid",
}


def more_room(reason: str, tokens: str = "raise rollout.max_new_tokens") -> str:
    """What to do about a reason that cuts episodes short; `tokens`: about running out of them."""
    return _ROOM.get(reason, tokens)


def _all_cut(report: SignalReport, cut: Counter[str]) -> str:
    """`cut`: how often each stop reason cut an episode short; the most frequent one says what to do."""
    return (
        f"100% truncated ({_counted(cut)}), 0 of {report.num_episodes} episodes finished, so the reward cannot be earned; "
        + more_room(cut.most_common(1)[0][0], "raise rollout.max_new_tokens or ask for shorter answers")
    )


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} ×{count}" for reason, count in reasons.most_common()) or "none"


def _why_silent(report: SignalReport, totals: list[float], left_out: Counter[str]) -> str:
    """The most telling cause, as the rest of a sentence. `left_out`: what cut the episodes that are not trained on."""
    n = report.num_episodes
    if n == 0:
        return "the batch holds no episodes; check that the task source is not empty"
    if report.num_faults == n:
        return f"all {n} episodes ended in infrastructure faults; look at the engine's or environment's log"
    if report.num_empty == report.num_groups:
        causes = ", ".join(f"{cause} ×{count}" for cause, count in sorted(report.unscorable.items(), key=lambda x: -x[1]))
        return (
            f"no episode of {n} can be compared (unscorable: {causes or 'none'}; faults: {report.num_faults}; cut short "
            f"and dropped: {_counted(left_out)}); "
            + ("run the reward function on one completion by hand" if causes or not left_out else _score_or_room(left_out))
        )
    if report.num_single and not report.num_constant:
        return (
            f"{report.num_single} of {report.num_groups} groups have a single scorable episode and the others none, so "
            "nothing can be compared; look at the causes of faults and unscorable rewards, or raise rollout.group_size"
        )
    if totals and report.num_constant + report.num_single + report.num_empty == report.num_groups:
        return f"rewards are equal within each of {report.num_groups} groups ({_what_is_equal(totals)}"
    return (
        f"only episodes outside the loss differ ({sum(left_out.values())} of {n} were cut short: {_counted(left_out)}); "
        + _score_or_room(left_out)
    )


def _score_or_room(left_out: Counter[str]) -> str:
    most = left_out.most_common(1)[0][0] if left_out else "tokens"
    return f'{more_room(most)}, or set rollout.stop_rules.{most} = "score"'


def _what_is_equal(totals: list[float]) -> str:
    low, high = min(totals), max(totals)
    if not is_constant(np.array(totals)):
        return f"{low:g} to {high:g}, differing only between groups); raise rollout.group_size or rollout.temperature"
    if high <= 0:
        return f"always {low:g}); check the reward by hand, then make tasks easier or warm-start with sft"
    return f"always {low:g}); make tasks harder, or check that the reward can fail"


def reward_metrics(groups: Sequence[Group], rewards: Sequence[Sequence[Reward]]) -> dict[str, float]:
    """reward/mean, reward/std_batch (over all rewards), reward/std_within_group (mean over groups), share of constants.

    The two standard deviations answer different questions: only the one within groups is signal. Both divide by n − 1.
    A metric without data is absent.
    """
    by_group: dict[str, list[float]] = {}
    for group, row in zip(groups, rewards):
        judged = [r for e, r in zip(group.episodes, row) if e.branch_of is None]  # what continues another is no sample
        by_group.setdefault(group.id, []).extend(float(r.total) for r in judged if r.total is not None and has_total(r))
    values = [np.array(v, np.float64) for v in by_group.values() if v]
    several = [v for v in values if len(v) > 1]
    result: dict[str, float] = {}
    if values:
        every = np.concatenate(values)
        result["reward/mean"] = float(every.mean())
        if len(every) > 1:
            result["reward/std_batch"] = standard_deviation(every, "sample")
    if several:
        result["reward/std_within_group"] = float(np.mean([standard_deviation(v, "sample") for v in several]))
        result["reward/constant_groups"] = float(np.mean([is_constant(v) for v in several]))
    return result

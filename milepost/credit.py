"""Rewards become advantages: baseline, scale, and what a truncated or unscorable episode counts for.

Two independent choices make the episode-level advantage of reward r_i in a group of n:

    baseline  loo   r_i − mean of the others     scale  none   as it is
              mean  r_i − mean of the group             group  ÷ (std of the group + δ)
              none  r_i                                 batch  ÷ (std of all rewards of the batch + δ)

Groups are formed by id, never by position. A group of one and a constant group give exactly 0 (unless the baseline is
none: then nothing is compared). GDPO compares part by part instead. Three rules (`credit.rule`) spread the result over
the turns of an episode. docs/algorithms.md has the sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from milepost.sections import CreditSection, RolloutSection
from milepost.types import Credit, Episode, EpisodeId, Group, RecipeError, Reward, StopKind

CONSTANT_TOLERANCE = 1e-9
"""A group is constant when max − min ≤ this · max(1, largest |r|). Decided from rewards: a std is never exactly 0."""

BUDGETS_OF_THE_POLICY = frozenset({"turns", "tool_calls", "invalid_actions"})
"""Truncation reasons that the policy brought about by its own choices: always scored."""


def advantages(
    rewards: Sequence[float | None] | np.ndarray,
    group_ids: Sequence[Hashable],
    *,
    baseline: str = "loo",
    scale: str = "none",
    std: str = "population",
    delta: float = 1e-6,
    in_baseline: Sequence[bool] | None = None,
) -> np.ndarray:
    """One advantage per distinct episode; float64 [n], in the order given.

    A reward of None or NaN is unscorable: advantage 0, outside all statistics, as is every episode whose
    `in_baseline` is False. Standard deviations are two-pass in float64. With a mean baseline and group scale
    |A| ≤ √(n−1) (population) or (n−1)/√n (sample). Raises RecipeError on unknown names and on loo with group scale.
    """
    _check_names(baseline, scale, std)
    reward = np.array([np.nan if r is None else r for r in rewards], np.float64)
    if len(group_ids) != len(reward):
        raise RecipeError(f"{len(reward)} rewards but {len(group_ids)} group ids; give one group id per reward")
    counted = np.isfinite(reward)
    if in_baseline is not None:
        counted &= np.asarray(in_baseline, bool)
    batch_std = standard_deviation(reward[counted], std)
    result = np.zeros(len(reward))
    for members in _members(group_ids).values():
        index = members[counted[members]]
        result[index] = _within_group(reward[index], baseline, scale, std, delta, batch_std)
    return result


def _within_group(r: np.ndarray, baseline: str, scale: str, std: str, delta: float, batch_std: float) -> np.ndarray:
    if baseline == "none" and scale == "none":
        return r
    if is_constant(r) and (baseline != "none" or scale == "group"):
        return np.zeros(len(r))
    centred = r if baseline == "none" else r - r.mean()
    if baseline == "loo":
        centred = centred * (len(r) / (len(r) - 1))
    if scale == "none":
        return centred
    divisor = standard_deviation(r, std) if scale == "group" else batch_std
    return centred / (divisor + delta) if divisor > 0 else np.zeros(len(r))


def gdpo(
    parts: Sequence[Sequence[float]] | np.ndarray,
    weights: Sequence[float],
    group_ids: Sequence[Hashable],
    *,
    std: str = "population",
    delta: float = 1e-6,
    whiten: bool = True,
    in_baseline: Sequence[bool] | None = None,
) -> np.ndarray:
    """GDPO (2601.05242): each part z-scored within its group, weighted after that, divided by the std of the batch.

    `parts` is [n, K], `weights` [K]; float64 [n]. A part that is constant within a group says nothing there: exactly 0,
    not noise over δ. Each group's scores add up to 0, so the batch needs no mean taken off. Episodes outside the baseline
    get 0.
    """
    table, counted = np.asarray(parts, np.float64), np.ones(len(group_ids), bool)
    if in_baseline is not None:
        counted &= np.asarray(in_baseline, bool)
    result = np.zeros(len(group_ids))
    for members in _members(group_ids).values():
        index = members[counted[members]]
        for values, weight in zip(table[index].T, weights):
            if not is_constant(values):
                result[index] += weight * (values - values.mean()) / (standard_deviation(values, std) + delta)
    spread = standard_deviation(result[counted], std)
    return result / (spread + delta) if whiten and spread > 0 else result


def is_constant(rewards: np.ndarray) -> bool:
    """True for fewer than two rewards, or when they differ by no more than rounding."""
    if len(rewards) < 2:
        return True
    return bool(np.ptp(rewards) <= CONSTANT_TOLERANCE * max(1.0, np.abs(rewards).max()))


def standard_deviation(rewards: np.ndarray, std: str) -> float:
    """Two-pass, float64; population divides by n, sample by n − 1. 0 for fewer than two rewards."""
    if len(rewards) < 2:
        return 0.0
    deviation = rewards - rewards.mean()
    return float(np.sqrt(np.square(deviation).sum() / (len(rewards) - (std == "sample"))))


def _members(group_ids: Sequence[Hashable]) -> dict[Hashable, np.ndarray]:
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(group_ids):
        members.setdefault(group, []).append(index)
    return {group: np.array(indices) for group, indices in members.items()}


def _check_names(baseline: str, scale: str, std: str) -> None:
    choices = {"baseline": ("loo", "mean", "none"), "scale": ("none", "group", "batch"), "std": ("population", "sample")}
    for name, value in (("baseline", baseline), ("scale", scale), ("std", std)):
        if value not in choices[name]:
            raise RecipeError(f"credit.{name} = {value!r} is unknown; choose one of {', '.join(choices[name])}")
    if baseline == "loo" and scale == "group":
        raise RecipeError(
            'credit.baseline = "loo" with credit.scale = "group" divides by a std that can be zero; '
            'use baseline = "mean" with scale = "group", or scale = "none"'
        )


def overlong_penalty(length: int, cap: int, buffer: int) -> float:
    """DAPO's soft penalty (2503.14476): 0 up to cap − buffer tokens, then linear, −1 from the cap on."""
    if not 0 < buffer <= cap:
        raise RecipeError(
            f"rollout.soft_buffer = {buffer} must lie between 1 and max_new_tokens = {cap}; a fifth of it works"
        )
    return float(-np.clip((length - (cap - buffer)) / buffer, 0.0, 1.0))


def discounted_returns(rewards: Sequence[float] | np.ndarray, gamma: float) -> np.ndarray:
    """G_t = r_t + γ·G_{t+1}; float64, same length. Discounting per step is not length normalisation."""
    result = np.array(rewards, np.float64)
    for t in range(len(result) - 2, -1, -1):
        result[t] += gamma * result[t + 1]
    return result


def assign(
    groups: Sequence[Group],
    rewards: Sequence[Sequence[Reward]],
    section: CreditSection,
    rollout: RolloutSection,
    kl_penalty: Mapping[EpisodeId, float] | None = None,
    *,
    part_weights: Mapping[str, float] | None = None,
    turn_rewards: Mapping[EpisodeId, Sequence[float] | np.ndarray] | None = None,
) -> list[list[Credit]]:
    """What each sampled token is told: the episode's advantage, spread over its turns as `section.rule` says.

        episode     A                                             for every token
        discounted  γ^(T−t)·A                                     for the tokens of turn t of T
        turn        Σ_{k≥t} γ^(k−t)·r_k − baseline                baseline: returns of whole episodes, from their first turn

    The baseline of `turn` is the group's (`section.baseline`), the same for every turn: one indexed by turn number would
    depend on when the policy chose to stop. `turn_rewards` gives r per turn; an episode without has its total in the last.
    `part_weights` (part → weight) asks for GDPO over these parts instead of baseline and scale over totals.

    `rewards[i][j]` judges `groups[i].episodes[j]`; the result has the same shape. Faults and unscorable episodes are
    in neither baseline nor loss; truncated ones follow `rollout.truncated`, except for budgets that the policy itself
    used up (turns, tool calls, invalid actions), which are scored. Untrained episodes carry advantage 0.
    `kl_penalty` (β·Σ_t k1 of each episode, nats) is subtracted first: that is KL in the reward.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    judged = [reward for row in rewards for reward in row]
    if [len(row) for row in rewards] != [len(group.episodes) for group in groups]:
        raise ValueError(f"{len(judged)} rewards do not match {len(episodes)} episodes group by group")
    twice = [str(key) for key, count in Counter(e.id for e in episodes).items() if count > 1]
    if twice:
        raise ValueError(f"episode {twice[0]} appears twice: statistics count every episode once")
    rules = [_rule(episode, reward, rollout) for episode, reward in zip(episodes, judged)]
    totals = [_total(episode, reward, rollout, kl_penalty or {}) for episode, reward in zip(episodes, judged)]
    counted = [in_baseline for in_baseline, _ in rules]
    names = [episode.group_id for episode in episodes]
    if section.rule == "turn":
        earned = [_earned(e, r, total, turn_rewards or {}) for e, r, total in zip(episodes, judged, totals)]
        per_turn = _turn_advantages(earned, names, counted, section)
    else:
        advantage = _episode_advantages(judged, totals, names, counted, section, part_weights)
        per_turn = [a * _discounts(len(e.turns), section) for e, a in zip(episodes, advantage)]
    if section.rule == "turn" or part_weights is not None:
        telling: set[Hashable] = {name for name, values, there in zip(names, per_turn, counted) if there and np.any(values)}
        silent = set[Hashable](names) - telling
    else:
        silent = _silent_groups(names, totals, counted, section.resolved_baseline)
    flat = [
        Credit(e.id, _per_token(e, a) if trained else np.zeros(e.num_sampled), trained, in_baseline, e.group_id in silent)
        for e, a, (in_baseline, trained) in zip(episodes, per_turn, rules)
    ]
    cut = iter(flat)
    return [[next(cut) for _ in group.episodes] for group in groups]


def _episode_advantages(
    judged: Sequence[Reward], totals: Sequence[float], names: Sequence[Hashable], counted: Sequence[bool],
    section: CreditSection, part_weights: Mapping[str, float] | None,
) -> np.ndarray:  # fmt: skip
    """One per episode: GDPO over parts if weights are given, else baseline and scale over totals."""
    if part_weights is None:
        return advantages(
            totals, names, baseline=section.resolved_baseline, scale=section.scale, std=section.std, delta=section.delta,
            in_baseline=counted,
        )  # fmt: skip
    table = [[r.parts[name] if there else 0.0 for name in part_weights] for r, there in zip(judged, counted)]
    weights = list(part_weights.values())
    return gdpo(table, weights, names, std=section.std, delta=section.delta, in_baseline=counted)


def _discounts(num_turns: int, section: CreditSection) -> np.ndarray:
    """γ^(T−t) for t = 1 … T; ones for the rule `episode`."""
    gamma = section.gamma if section.rule == "discounted" else 1.0
    return gamma ** np.arange(num_turns - 1, -1, -1, dtype=np.float64)


def _per_token(episode: Episode, per_turn: np.ndarray) -> np.ndarray:
    return np.repeat(per_turn, [len(turn.sampled.ids) for turn in episode.turns])


def _earned(
    episode: Episode, reward: Reward, total: float, turn_rewards: Mapping[EpisodeId, Sequence[float] | np.ndarray]
) -> np.ndarray:  # fmt: skip
    """Rewards of the turns. What the total holds beyond the reward's own (KL, soft penalty) comes with the last turn."""
    if not episode.turns or reward.total is None:
        return np.zeros(len(episode.turns))
    earned = np.zeros(len(episode.turns))
    given = turn_rewards.get(episode.id)
    if given is None:
        earned[-1] = total
        return earned
    if len(given) != len(episode.turns):
        raise ValueError(f"episode {episode.id} has {len(episode.turns)} turns but {len(given)} turn rewards")
    earned += given
    earned[-1] += total - reward.total
    return earned


def _turn_advantages(
    earned: Sequence[np.ndarray], names: Sequence[Hashable], counted: Sequence[bool], section: CreditSection
) -> list[np.ndarray]:  # fmt: skip
    """Returns of each turn minus the group's baseline over the returns of whole episodes; 0 where nothing is compared."""
    returns = [discounted_returns(rewards, section.gamma) for rewards in earned]
    whole = np.array([r[0] if len(r) else 0.0 for r in returns])
    result = [np.zeros(len(r)) for r in returns]
    mask = np.asarray(counted, bool)
    for members in _members(names).values():
        index = members[mask[members]]
        if len(index) < 2 and section.resolved_baseline != "none":
            continue
        for i in index:
            others = whole[index[index != i]] if section.resolved_baseline == "loo" else whole[index]
            result[i] = returns[i] - (0.0 if section.resolved_baseline == "none" else others.mean())
    return result


def _rule(episode: Episode, reward: Reward, rollout: RolloutSection) -> tuple[bool, bool]:
    """(in the baseline, in the loss) of one episode."""
    if episode.stop.kind is StopKind.FAULT or not _has_total(reward) or not episode.num_sampled:
        return False, False  # where the policy sampled nothing, the reward says nothing about it
    if cut_short(episode):
        return {"keep_baseline": (True, False), "drop": (False, False)}.get(rollout.truncated, (True, True))
    return True, True


def cut_short(episode: Episode) -> bool:
    """Whether a budget outside the policy's choices (tokens, context, time) ended the episode."""
    return episode.stop.kind is StopKind.TRUNCATED and episode.stop.reason not in BUDGETS_OF_THE_POLICY


def _has_total(reward: Reward) -> bool:
    return reward.total is not None and bool(np.isfinite(reward.total))


def _total(episode: Episode, reward: Reward, rollout: RolloutSection, kl_penalty: Mapping[EpisodeId, float]) -> float:
    if reward.total is None:
        return float("nan")
    total = reward.total - kl_penalty.get(episode.id, 0.0)
    if rollout.truncated == "soft":
        # The cap is per completion, so the longest turn is the one that can come near it.
        longest = max((len(turn.sampled.ids) for turn in episode.turns), default=0)
        total += overlong_penalty(longest, rollout.max_new_tokens, rollout.soft_buffer)
    return total


def _silent_groups(names: list[str], totals: list[float], counted: list[bool], baseline: str) -> set[Hashable]:
    """Groups whose advantages are exactly 0 because their rewards do not differ; none without a baseline."""
    if baseline == "none":
        return set()
    total, mask = np.array(totals, np.float64), np.array(counted, bool)
    return {name for name, index in _members(names).items() if is_constant(total[index[mask[index]]])}


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
    """By tokens, context or time."""
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
        "num_truncated": sum(cut_short(e) for e, _, _ in rows),
        "num_faults": sum(e.stop.kind is StopKind.FAULT for e, _, _ in rows),
        "unscorable": dict(Counter(
            r.cause or "not finite" for e, r, _ in rows if e.stop.kind is not StopKind.FAULT and not _has_total(r)
        )),
    }  # fmt: skip
    report = SignalReport(**facts)
    totals = [r.total for _, r, c in rows if c.in_baseline and r.total is not None]
    cut = Counter(e.stop.reason for e, _, _ in rows if cut_short(e))
    truncation = _all_cut(report, cut) if report.num_episodes and report.num_truncated == report.num_episodes else None
    cause = None if alive else f"no learning signal: {truncation or _why_silent(report, totals)}"
    return SignalReport(**facts, cause=cause, truncation=truncation)


_ROOM = {"context": "raise env.max_context_tokens, or let episodes go on past it with env.context_rule",
         "time": "raise env.max_seconds, or look at what makes steps slow",
         "environment": "look at why the environment itself cuts episodes short"}  # fmt: skip


def _all_cut(report: SignalReport, cut: Counter[str]) -> str:
    """`cut`: how often each stop reason cut an episode short; the most frequent one says what to do."""
    by, most = ", ".join(f"{reason} ×{count}" for reason, count in cut.most_common()), cut.most_common(1)[0][0]
    return (
        f"100% truncated ({by}), 0 of {report.num_episodes} episodes finished, so the reward cannot be earned; "
        f"{_ROOM.get(most, 'raise rollout.max_new_tokens or ask for shorter answers')}"
    )


def _why_silent(report: SignalReport, totals: list[float]) -> str:
    """The most telling cause, as the rest of a sentence."""
    n = report.num_episodes
    if n == 0:
        return "the batch holds no episodes; check that the task source is not empty"
    if report.num_faults == n:
        return f"all {n} episodes ended in infrastructure faults; look at the engine's or environment's log"
    if report.num_empty == report.num_groups:
        causes = ", ".join(f"{cause} ×{count}" for cause, count in sorted(report.unscorable.items(), key=lambda x: -x[1]))
        return (
            f"no episode of {n} can be compared (unscorable: {causes or 'none'}; faults: {report.num_faults}; truncated: "
            f"{report.num_truncated}); run the reward function on one completion by hand"
        )
    if report.num_single and not report.num_constant:
        return (
            f"{report.num_single} of {report.num_groups} groups have a single scorable episode and the others none, so "
            "nothing can be compared; look at the causes of faults and unscorable rewards, or raise rollout.group_size"
        )
    if totals and report.num_constant + report.num_single + report.num_empty == report.num_groups:
        return f"rewards are equal within each of {report.num_groups} groups ({_what_is_equal(totals)}"
    return (
        f"only episodes outside the loss differ ({report.num_truncated} of {n} were cut short and are kept in the "
        'baseline only); raise rollout.max_new_tokens or set rollout.truncated = "score"'
    )


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
        by_group.setdefault(group.id, []).extend(float(r.total) for r in row if r.total is not None and _has_total(r))
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

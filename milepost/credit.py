"""What each sampled token is told: advantages of episodes and turns, and what a truncated or unscorable one counts for.

One number per episode (advantages.py) is spread over its turns by a rule (`credit.rule`). docs/credit.md says which to
use when, and docs/algorithms.md has the sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from milepost.advantages import advantages, discounted_returns, gdpo, is_constant, members_of, overlong_penalty
from milepost.sections import CreditSection, RolloutSection
from milepost.types import Credit, Episode, EpisodeId, Group, Reward, StopKind

BUDGETS_OF_THE_POLICY = frozenset({"turns", "tool_calls", "invalid_actions"})
"""Truncation reasons that the policy brought about by its own choices: always scored."""


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
    for members in members_of(names).values():
        index = members[mask[members]]
        if len(index) < 2 and section.resolved_baseline != "none":
            continue
        for i in index:
            others = whole[index[index != i]] if section.resolved_baseline == "loo" else whole[index]
            result[i] = returns[i] - (0.0 if section.resolved_baseline == "none" else others.mean())
    return result


def _rule(episode: Episode, reward: Reward, rollout: RolloutSection) -> tuple[bool, bool]:
    """(in the baseline, in the loss) of one episode."""
    if episode.stop.kind is StopKind.FAULT or not has_total(reward) or not episode.num_sampled:
        return False, False  # where the policy sampled nothing, the reward says nothing about it
    if cut_short(episode):
        return {"keep_baseline": (True, False), "drop": (False, False)}.get(rollout.truncated, (True, True))
    return True, True


def cut_short(episode: Episode) -> bool:
    """Whether a budget outside the policy's choices (tokens, context, time) ended the episode."""
    return episode.stop.kind is StopKind.TRUNCATED and episode.stop.reason not in BUDGETS_OF_THE_POLICY


def has_total(reward: Reward) -> bool:
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
    return {name for name, index in members_of(names).items() if is_constant(total[index[mask[index]]])}

"""What each sampled token is told: advantages of episodes and turns, and what a truncated or unscorable one counts for.

One number per episode (advantages.py) is spread over its turns by a rule (`credit.rule`); anchor.py and tree.py hold the
rules that compare states. docs/credit.md says which to use when, and docs/algorithms.md has the sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from milepost.advantages import (
    adaptive_lambda,
    advantages,
    discounted_returns,
    gae,
    gdpo,
    is_constant,
    members_of,
    minus,
    overlong_penalty,
    relative_lambda,
    standard_deviation,
)
from milepost.anchor import Steps, anchor_advantages
from milepost.credit_sections import CreditSection
from milepost.sections import OWN_BUDGETS, RolloutSection
from milepost.tree import Path, tree_credit
from milepost.types import Credit, Episode, EpisodeId, Group, Reward, StopKind, StopReason

PerEpisode = Mapping[EpisodeId, Sequence[float] | np.ndarray]


def assign(
    groups: Sequence[Group],
    rewards: Sequence[Sequence[Reward]],
    section: CreditSection,
    rollout: RolloutSection,
    kl_penalty: Mapping[EpisodeId, float] | None = None,
    *,
    part_weights: Mapping[str, float] | None = None,
    turn_rewards: PerEpisode | None = None,
    turn_values: PerEpisode | None = None,
    teacher_gaps: PerEpisode | None = None,
) -> list[list[Credit]]:
    """What each sampled token is told: the episode's advantage A, spread over its turns as `section.rule` says.

        episode     A                                      for every token
        discounted  γ^(T−t)·A                              for the tokens of turn t of T
        turn        Σ_{k≥t} γ^(k−t)·r_k − baseline         baseline: returns of whole episodes, from their first turn
        anchor      A + ω·S_t                              S_t: against other episodes' steps from the same state
        branch      as the tree of continuations says      trunks and continuations, each token once, by its weight
        value       Σ_{k≥t} (γλ)^(k−t)·δ_k                 δ_k = r_k + γ·V_{k+1} − V_k
        distill     log π_teacher − log π, + w·A           per token

    The baseline of `turn` is the group's (`section.baseline`), the same for every turn: one indexed by turn number would
    depend on when the policy chose to stop. `turn_rewards` gives r per turn; an episode without has its total in the last.
    `part_weights` (part → weight) asks for GDPO over these parts instead of baseline and scale over totals. `turn_values`
    gives V per turn, `teacher_gaps` the difference per sampled token; without them (while the value learns, or where no
    teacher is asked) these rules tell A.

    `rewards[i][j]` judges `groups[i].episodes[j]`; the result has the same shape. Faults and unscorable episodes are
    in neither baseline nor loss; truncated ones follow `rollout.stop_rule`. Untrained episodes carry advantage 0.
    `kl_penalty` (β·Σ_t k1 of each episode, nats) is subtracted first: that is KL in the reward.
    """
    batch = _judged(groups, rewards, rollout, kl_penalty or {}, part_weights)
    weights: list[np.ndarray] | None = None
    if section.rule == "distill" and teacher_gaps is not None:
        told = _distilled(batch, section, teacher_gaps)
    elif section.rule == "branch":
        per_turn, turn_weights = _branch(batch, section)
        weights = _per_token(batch, turn_weights)
        told = [np.where(w > 0, a, 0.0) for a, w in zip(_per_token(batch, per_turn), weights)]
    else:
        told = _per_token(batch, _per_turn(batch, section, turn_rewards or {}, turn_values))
    compared = part_weights is None and section.rule in ("episode", "discounted")
    heard = batch.counted if weights is None else [bool(w.any()) for w in weights]
    silent = _silent_groups(batch, section.resolved_baseline) if compared else _quiet_groups(batch, told, heard)
    flat = iter(
        Credit(
            e.id,
            told[i] if trained or weights is not None else np.zeros(e.num_sampled),
            trained if weights is None else heard[i],
            in_baseline,
            e.group_id in silent,
            None if weights is None else weights[i],
        )
        for i, (e, (in_baseline, trained)) in enumerate(zip(batch.episodes, batch.rules))
    )
    return [[next(flat) for _ in group.episodes] for group in groups]


def returns_of_turns(
    groups: Sequence[Group], rewards: Sequence[Sequence[Reward]], section: CreditSection, rollout: RolloutSection,
    kl_penalty: Mapping[EpisodeId, float] | None = None, *, turn_rewards: PerEpisode | None = None,
    part_weights: Mapping[str, float] | None = None,
) -> dict[EpisodeId, np.ndarray]:  # fmt: skip
    """Σ_{k≥t} γ^(k−t)·r_k of each turn, of the episodes in the baseline: what a value is to learn."""
    batch = _judged(groups, rewards, rollout, kl_penalty or {}, part_weights)
    return {
        e.id: discounted_returns(_earned(e, r, total, turn_rewards or {}), section.gamma)
        for e, r, total, there in zip(batch.episodes, batch.rewards, batch.totals, batch.counted)
        if there
    }


@dataclass(frozen=True)
class _Judged:
    """A batch's episodes in one row, with what their rewards say."""

    episodes: list[Episode]
    rewards: list[Reward]
    totals: list[float]
    rules: list[tuple[bool, bool]]
    """(in the baseline, in the loss) of each."""
    sources: list[str]
    """Of each one's task."""
    part_weights: Mapping[str, float] | None

    @property
    def names(self) -> list[str]:
        return [e.group_id for e in self.episodes]

    @property
    def counted(self) -> list[bool]:
        return [in_baseline for in_baseline, _ in self.rules]


def _judged(
    groups: Sequence[Group], rewards: Sequence[Sequence[Reward]], rollout: RolloutSection,
    penalty: Mapping[EpisodeId, float], part_weights: Mapping[str, float] | None,
) -> _Judged:  # fmt: skip
    episodes = [episode for group in groups for episode in group.episodes]
    judged = [reward for row in rewards for reward in row]
    if [len(row) for row in rewards] != [len(group.episodes) for group in groups]:
        raise ValueError(f"{len(judged)} rewards do not match {len(episodes)} episodes group by group")
    twice = [str(key) for key, count in Counter(e.id for e in episodes).items() if count > 1]
    if twice:
        raise ValueError(f"episode {twice[0]} appears twice: statistics count every episode once")
    rules = [_rule(episode, reward, rollout) for episode, reward in zip(episodes, judged)]
    totals = [_total(episode, reward, rollout, penalty) for episode, reward in zip(episodes, judged)]
    sources = [group.task.source for group in groups for _ in group.episodes]
    return _Judged(episodes, judged, totals, rules, sources, part_weights)


def _per_turn(
    batch: _Judged, section: CreditSection, turn_rewards: PerEpisode, turn_values: PerEpisode | None
) -> list[np.ndarray]:
    """The rules that need nothing but rewards, states and values."""
    if section.rule in ("episode", "discounted", "distill") or (section.rule == "value" and turn_values is None):
        return [a * _discounts(len(e.turns), section) for e, a in zip(batch.episodes, _of_episodes(batch, section))]
    earned = [_earned(e, r, total, turn_rewards) for e, r, total in zip(batch.episodes, batch.rewards, batch.totals)]
    if section.rule == "value":
        assert turn_values is not None
        return [_gae(r, turn_values.get(e.id), section) for e, r in zip(batch.episodes, earned)]
    if section.rule == "anchor":
        return _anchor(batch, earned, section)
    if section.turns == "first":
        return _first_turn(batch, earned, section)
    if section.turns == "process":
        return _process(batch, earned, section)
    return _turn_returns(batch, earned, section)


def _of_episodes(batch: _Judged, section: CreditSection, totals: Sequence[float] | None = None) -> np.ndarray:
    """A of each episode: GDPO over parts if weights are given, else baseline and scale over totals."""
    if batch.part_weights is None:
        return advantages(
            batch.totals if totals is None else totals, batch.names, baseline=section.resolved_baseline,
            scale=section.scale, std=section.std, delta=section.delta, in_baseline=batch.counted, sources=batch.sources,
        )  # fmt: skip
    parts = batch.part_weights
    table = [[r.parts[name] if there else 0.0 for name in parts] for r, there in zip(batch.rewards, batch.counted)]
    return gdpo(table, list(parts.values()), batch.names, std=section.std, delta=section.delta, in_baseline=batch.counted)


def _discounts(num_turns: int, section: CreditSection) -> np.ndarray:
    """γ^(T−t) for t = 1 … T; ones for the rule `episode`."""
    gamma = section.gamma if section.rule == "discounted" else 1.0
    return gamma ** np.arange(num_turns - 1, -1, -1, dtype=np.float64)


def _per_token(batch: _Judged, per_turn: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.repeat(values, [len(turn.sampled.ids) for turn in e.turns]) for e, values in zip(batch.episodes, per_turn)]


def _earned(episode: Episode, reward: Reward, total: float, turn_rewards: PerEpisode) -> np.ndarray:
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


# --- the rules of turns -----------------------------------------------------------------------------------------------


def _turn_returns(batch: _Judged, earned: Sequence[np.ndarray], section: CreditSection) -> list[np.ndarray]:
    """Returns of each turn minus the group's baseline over the returns of whole episodes; 0 where nothing is compared."""
    returns = [discounted_returns(rewards, section.gamma) for rewards in earned]
    whole = np.array([r[0] if len(r) else 0.0 for r in returns])
    result = [np.zeros(len(r)) for r in returns]
    mask = np.asarray(batch.counted, bool)
    for members in members_of(batch.names).values():
        index = members[mask[members]]
        if len(index) < 2 and section.resolved_baseline != "none":
            continue
        for i in index:
            others = whole[index[index != i]] if section.resolved_baseline == "loo" else whole[index]
            result[i] = returns[i] if section.resolved_baseline == "none" else minus(returns[i], others.mean())
    return result


def _first_turn(batch: _Judged, earned: Sequence[np.ndarray], section: CreditSection) -> list[np.ndarray]:
    """MT-GRPO (2505.11821): A of the outcome for all, and A of the first turn's reward on top of it for its own tokens.

    An episode of a single turn called nothing first: its whole total is an outcome, its first turn's reward is 0, and it
    is itself told A of its total among all totals, as its authors' code does without a tool call.
    """
    first = [float(r[0]) if len(r) > 1 else 0.0 for r in earned]
    outcome = _of_episodes(batch, section, [total - one for total, one in zip(batch.totals, first)])
    turn, combined = _of_episodes(batch, section, first), _of_episodes(batch, section)
    result = [np.full(len(r), a if len(r) > 1 else both) for r, a, both in zip(earned, outcome, combined)]
    for told, a in zip(result, turn):
        if len(told) > 1:
            told[0] = minus(told[0], -a)
    return result


def _process(batch: _Judged, earned: Sequence[np.ndarray], section: CreditSection) -> list[np.ndarray]:
    """DeepSeekMath 2402.03300, 4.1.3: rewards z-scored over all steps of the group, then summed from each step on.

    The one statistic here that is over steps, as published: whoever makes more steps counts more.
    """
    result = [np.zeros(len(r)) for r in earned]
    mask = np.asarray(batch.counted, bool)
    for members in members_of(batch.names).values():
        index = [i for i in members[mask[members]] if len(earned[i])]
        steps = np.concatenate([earned[i] for i in index]) if index else np.zeros(0)
        for i in index if not is_constant(steps) else ():
            z = (earned[i] - steps.mean()) / (standard_deviation(steps, section.std) + section.delta)
            result[i] = minus(discounted_returns(z, section.gamma), 0.0)
    return result


def _anchor(batch: _Judged, earned: Sequence[np.ndarray], section: CreditSection) -> list[np.ndarray]:
    """A + ω·S_t; whoever is not in the baseline is compared with nobody."""
    whole = _of_episodes(batch, section)
    inside = [i for i, there in enumerate(batch.counted) if there]
    steps = [
        Steps(e.group_id, tuple(t.state_key for t in e.turns), tuple(t.text.strip() for t in e.turns),
              discounted_returns(earned[i], section.gamma), batch.totals[i])
        for i, e in ((i, batch.episodes[i]) for i in inside)
    ]  # fmt: skip
    result = [np.full(len(e.turns), a) for e, a in zip(batch.episodes, whole)]
    for i, told in zip(inside, anchor_advantages(steps, section)):
        result[i] = minus(result[i], -section.anchor_weight * told)
    return result


def _gae(earned: np.ndarray, values: Sequence[float] | np.ndarray | None, section: CreditSection) -> np.ndarray:
    """Generalised advantages over turns; 0 for an episode that no value was read for."""
    if values is None or not len(earned):
        return np.zeros(len(earned))
    lam = section.lam
    if section.lam_alpha:
        lam = adaptive_lambda(section.lam_alpha, len(earned))
    elif section.lam_end:
        lam = relative_lambda(section.lam_end, len(earned))
    return gae(earned, values, section.gamma, lam)


def _branch(batch: _Judged, section: CreditSection) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(advantage, weight) of each turn; a group without continuations is told what `episode` tells."""
    told = [np.zeros(len(e.turns)) for e in batch.episodes]
    weights = [np.ones(len(e.turns)) for e in batch.episodes]
    for members in members_of(batch.names).values():
        place = {batch.episodes[i].id: at for at, i in enumerate(members)}
        paths = []
        for i in members:
            parent, turn = batch.episodes[i].branch_of or (None, 0)
            in_baseline, trained = batch.rules[i]
            total = batch.totals[i] if in_baseline else 0.0
            paths.append(Path(total, len(batch.episodes[i].turns), in_baseline,
                              -1 if parent is None else place[parent], turn, trained))  # fmt: skip
        for i, advantage, weight in zip(members, *tree_credit(paths, section)):
            told[i], weights[i] = advantage, weight
    return told, weights


def _distilled(batch: _Judged, section: CreditSection, gaps: PerEpisode) -> list[np.ndarray]:
    """What the teacher thinks of each token, and of the outcome as much as is asked; 0 where no teacher was asked."""
    outcome = section.outcome_weight * _of_episodes(batch, section)
    return [
        np.asarray(gaps[e.id], np.float64) + a if e.id in gaps else np.zeros(e.num_sampled)
        for e, a in zip(batch.episodes, outcome)
    ]


# --- who is in, and what it is worth ----------------------------------------------------------------------------------


def _rule(episode: Episode, reward: Reward, rollout: RolloutSection) -> tuple[bool, bool]:
    """(in the baseline, in the loss) of one episode."""
    if not has_total(reward) or not episode.num_sampled:
        return False, False  # where the policy sampled nothing, the reward says nothing about it
    return place_of(episode.stop, rollout)


def place_of(stop: StopReason, rollout: RolloutSection) -> tuple[bool, bool]:
    """(in the baseline, in the loss) of episodes that ended so."""
    if stop.kind is StopKind.FAULT:
        return False, False
    if stop.kind is StopKind.TERMINATED:
        return True, True
    return {"score": (True, True), "keep_baseline": (True, False), "drop": (False, False)}[rollout.stop_rule(stop.reason)]


def cut_short(stop: StopReason) -> bool:
    """Whether a limit outside the policy's choices (tokens, context, time, the environment's own) ended the episode."""
    return stop.kind is StopKind.TRUNCATED and stop.reason not in OWN_BUDGETS


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


def _silent_groups(batch: _Judged, baseline: str) -> set[Hashable]:
    """Groups whose advantages are exactly 0 because their rewards do not differ; none without a baseline."""
    if baseline == "none":
        return set()
    total, mask = np.array(batch.totals, np.float64), np.array(batch.counted, bool)
    return {name for name, index in members_of(batch.names).items() if is_constant(total[index[mask[index]]])}


def _quiet_groups(batch: _Judged, told: Sequence[np.ndarray], heard: Sequence[bool]) -> set[Hashable]:
    """Groups in which nobody is told anything."""
    telling = {name for name, values, there in zip(batch.names, told, heard) if there and np.any(values)}
    return set[Hashable](batch.names) - telling

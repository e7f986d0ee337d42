"""Levers on the batch: which tasks are played, how often and how long, which episodes count, and what joins them.

Functions of one step come first. What has a memory follows; `Levers` holds it, and its `state()` is all of it that the
future depends on. Statistics are always over distinct episodes: who is repeated is repeated in weight, and who was
sampled by an older policy is in nobody's baseline. Formulas, sources and evidence: docs/levers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from milepost.credit import place_of
from milepost.lever_sections import LeversSection
from milepost.recipe import Recipe
from milepost.tasks import TaskOrder
from milepost.types import Credit, DataError, Episode, EpisodeId, Group, Reward, StopKind, Task, Turn

Rewards = Sequence[Sequence[Reward]]
Assign = Callable[[Sequence[Group], Rewards], list[list[Credit]]]
"""Credit of the episodes of groups; the result is nested as they are."""


def verdicts(group: Group, rewards: Sequence[Reward]) -> list[bool]:
    """Success of the group's judged members; what continues another episode is no sample of its own."""
    return [r.success for e, r in zip(group.episodes, rewards) if e.branch_of is None and r.success is not None]


# ---- group sizes -----------------------------------------------------------------------------------------------------


def scheduled_size(step: int, num_steps: int, first: int, last: int) -> int:
    """The group size of step 1 … num_steps on the line from `first` to `last`, rounded."""
    return int(first + (last - first) * (step - 1) / max(1, num_steps - 1) + 0.5)


def mixed_chance(p: float, size: int) -> float:
    """1 − p^G − (1−p)^G: the chance that a group of independent tries holds both successes and failures."""
    return 1 - p**size - (1 - p) ** size


def smallest_group(p: float, chance: float, least: int, most: int) -> int:
    """The smallest size of least … most with `mixed_chance` ≥ `chance`; `most` where none is large enough."""
    return next((size for size in range(least, most) if mixed_chance(p, size) >= chance), most)


# ---- which episodes count --------------------------------------------------------------------------------------------


def repair(valid: Sequence[bool]) -> list[int]:
    """How often each member counts after faults (GLM-5): valid ones are repeated in turn until the group is whole again if
    they are more than half of it; else nobody counts.
    """
    num = sum(valid)
    if 2 * num <= len(valid):
        return [0] * len(valid)
    base, extra = divmod(len(valid), num)
    repeats = iter([base + 1] * extra + [base] * (num - extra))
    return [next(repeats) if there else 0 for there in valid]


def most_varied(rewards: Sequence[float] | np.ndarray, num: int) -> list[int]:
    """Indices, ascending, of the `num` rewards of largest variance: always some of the lowest and the rest of the highest
    (PODS 2504.13818). Equal rewards go by position.
    """
    reward = np.asarray(rewards, np.float64)
    order = np.argsort(reward, kind="stable")
    if num >= len(reward):
        return list(range(len(reward)))
    splits = [np.concatenate([order[:low], order[len(order) - (num - low) :]]) for low in range(num + 1)]
    return sorted(max(splits, key=lambda some: float(reward[some].var())).tolist())


def counts(group: Group, rewards: Sequence[Reward], section: LeversSection) -> list[int]:
    """How often each member of the group counts: 1, unless group repair or down-sampling says otherwise."""
    times = [1] * len(group.episodes)
    if section.repair_groups:
        times = repair([e.stop.kind is not StopKind.FAULT for e in group.episodes])
    if section.keep_of_group:
        there = [i for i, r in enumerate(rewards) if times[i] and r.total is not None and np.isfinite(r.total)]
        kept = {there[k] for k in most_varied([float(rewards[i].total or 0.0) for i in there], section.keep_of_group)}
        times = [n if i in kept else 0 for i, n in enumerate(times)]
    return times


def counted(group: Group, rewards: Sequence[Reward], section: LeversSection) -> tuple[Group, list[Reward]]:
    """The group of those members that count, and their rewards; it may be empty."""
    some = [(e, r) for e, r, n in zip(group.episodes, rewards, counts(group, rewards, section)) if n]
    return replace(group, episodes=tuple(e for e, _ in some)), [r for _, r in some]


def assign_counted(groups: Sequence[Group], rewards: Rewards, section: LeversSection, tell: Assign) -> list[list[Credit]]:
    """Credit as the levers leave it: of the members that count, without those that are to be skipped for void turns."""
    parts = [counted(group, row, section) for group, row in zip(groups, rewards)]
    some = [(group, row) for group, row in parts if group.episodes]
    told = tell([group for group, _ in some], [row for _, row in some])
    known = {credit.episode: credit for row in told for credit in row}
    credits = [[known.get(e.id) or absent(e) for e in group.episodes] for group in groups]
    if section.skip_void_turns:
        credits = [[untrained(c) if has_void_turn(e) else c for e, c in zip(g.episodes, row)]
                   for g, row in zip(groups, credits)]  # fmt: skip
    return credits


def repeats(groups: Sequence[Group], rewards: Rewards, section: LeversSection) -> dict[EpisodeId, int]:
    """How often episodes are repeated in weight, where more than once."""
    times = {
        e.id: n for g, row in zip(groups, rewards) for e, n in zip(g.episodes, counts(g, row, section))
    } if section.repair_groups else {}  # fmt: skip
    return {name: n for name, n in times.items() if n > 1}


def absent(episode: Episode) -> Credit:
    """In neither baseline nor loss."""
    return Credit(episode.id, np.zeros(episode.num_sampled), False, False)


def untrained(credit: Credit) -> Credit:
    """Out of the loss; in the baseline if it was."""
    return replace(credit, advantages=np.zeros_like(credit.advantages), trained=False)


def is_void(turn: Turn) -> bool:
    """Whether a turn did nothing: it was cut, or it was invalid without any call that could be carried out (SimpleTIR)."""
    well_formed = turn.facts.get("num_calls", 0) - turn.facts.get("num_malformed", 0)
    return bool(turn.facts.get("cut")) or (turn.facts.get("num_invalid", 0) > 0 and well_formed <= 0)


def has_void_turn(episode: Episode) -> bool:
    return any(map(is_void, episode.turns))


# ---- signal and replay -----------------------------------------------------------------------------------------------


def has_signal(credits: Sequence[Credit]) -> bool:
    """Whether a group teaches anything: some token in the loss has an advantage."""
    return any(c.trained and np.any(c.advantages) for c in credits)


def all_fail(rewards: Sequence[Reward]) -> bool:
    """Whether some member of a group was judged a failure and none a success."""
    judged = [r.success for r in rewards if r.success is not None]
    return bool(judged) and not any(judged)


@dataclass(frozen=True)
class Filled:
    """What a step trains on after dynamic sampling, and what that cost."""

    groups: list[Group]
    rewards: list[list[Reward]]
    metrics: dict[str, float]


def refill(
    groups: Sequence[Group], rewards: Rewards, rounds: int, alive: Callable[[Group, Sequence[Reward]], bool],
    more: Callable[[int, Sequence[Group]], tuple[Sequence[Group], Rewards]],
) -> Filled:  # fmt: skip
    """Dynamic sampling (DAPO 2503.14476), bounded: up to `rounds` times, as many further groups are sampled as have no
    signal, and those of them that have some take their places. What is still without signal then stays.

    `more(num, seen)` samples and scores up to `num` groups of other tasks than those of `seen`.
    """
    kept = [(group, [*row]) for group, row in zip(groups, rewards)]
    seen = list(kept)
    num_rounds = 0
    while num_rounds < rounds and (dead := [i for i, pair in enumerate(kept) if not alive(*pair)]):
        new = [(group, [*row]) for group, row in zip(*more(len(dead), [group for group, _ in seen]))]
        if not new:
            break
        num_rounds, seen = num_rounds + 1, seen + new
        for i, pair in zip(dead, [pair for pair in new if alive(*pair)]):
            kept[i] = pair
    return Filled([g for g, _ in kept], [row for _, row in kept], _cost(kept, seen, num_rounds) if rounds else {})


def _cost(kept: Sequence[tuple[Group, list[Reward]]], seen: Sequence[tuple[Group, list[Reward]]], rounds: int) -> dict:
    """Of a step's rollouts, all that were made and those beyond the batch; success over all, the batch's is no estimate."""
    tokens, used = (sum(e.num_own for g, _ in some for e in g.episodes) for some in (seen, kept))
    rollouts, of_batch = (sum(len(g.episodes) for g, _ in some) for some in (seen, kept))
    success = [right for pair in seen for right in verdicts(*pair)]
    found = {"refill/rounds": rounds, "refill/groups": len(seen) - len(kept), "refill/rollouts": rollouts - of_batch,
             "refill/tokens": tokens - used, "tokens/sampled": tokens}  # fmt: skip
    return {name: float(n) for name, n in found.items()} | ({"success/sampled": float(np.mean(success))} if success else {})


@dataclass(frozen=True)
class Replayed:
    """A stored success that joins a group, with the credit that it gets there."""

    group: str
    episode: Episode
    credit: Credit


def replayed(group: Group, rewards: Sequence[Reward], old: Episode, reward: Reward, tell: Assign) -> Replayed | None:
    """`old`, a success of the group's task, as it joins the group; None where it has nothing to be compared with.

    Its advantage is its reward less the mean of the group's own episodes: what leave-one-out credit over both gives
    it. Theirs stay what they were: no sample of another policy may stand in their baseline. Its log-probs are those it was
    sampled with, so that the ratio to them is the importance weight of the policy over the one that played it.
    """
    if not group.episodes or old.start_fingerprint != group.episodes[0].start_fingerprint:
        return None
    old = replace(old, group_id=group.id)
    ((*_, credit),) = tell([replace(group, episodes=(*group.episodes, old))], [[*rewards, reward]])
    return Replayed(group.id, old, credit) if has_signal([credit]) else None


def joined(
    groups: Sequence[Group], credits: Sequence[Sequence[Credit]], some: Sequence[Replayed]
) -> tuple[list[Group], list[list[Credit]]]:
    """Groups and credits with those that join them, last in their groups."""
    by_group = {one.group: one for one in some}
    pairs = [(group, [*row], by_group.get(group.id)) for group, row in zip(groups, credits)]
    return (
        [replace(g, episodes=(*g.episodes, one.episode)) if one else g for g, _, one in pairs],
        [[*row, one.credit] if one else row for _, row, one in pairs],
    )


# ---- what has a memory -----------------------------------------------------------------------------------------------


@dataclass
class Ladder:
    """A number that rises by `step` up to `top` whenever success over the last `window` steps reaches `success`."""

    level: int
    top: int
    step: int
    success: float
    window: int
    seen: list[list[int]] = field(default_factory=list)
    """[successes, judged episodes] of each step since the last rise, the latest `window` of them."""
    now: list[int] = field(default_factory=lambda: [0, 0])

    def observe(self, judged: Sequence[bool]) -> None:
        """Takes in successes and failures of the step."""
        self.now = [self.now[0] + sum(judged), self.now[1] + len(judged)]

    def end_step(self) -> bool:
        """Closes a step; whether the number rose. A step without a judged episode counts for nothing."""
        if self.now[1]:
            self.seen = [*self.seen, self.now][-self.window :]
        self.now = [0, 0]
        right, judged = (sum(row[k] for row in self.seen) for k in (0, 1))
        if self.level >= self.top or len(self.seen) < self.window or not self._reached(right, judged):
            return False
        self.level, self.seen = min(self.top, self.level + self.step), []
        return True

    def _reached(self, right: int, judged: int) -> bool:
        """7 of 25 are .28, though .28 · 25 is more than 7 in floats: the tolerance is far below one episode."""
        return right >= (self.success - 1e-9) * judged

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "seen": [list(row) for row in self.seen]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.level, self.seen, self.now = state["level"], [list(row) for row in state["seen"]], [0, 0]


def levels_of(tasks: Sequence[Task], column: str, num: int) -> list[int]:
    """The level, from 1, of each task: by its number in `column`, in up to `num` parts of about equal size.

    Tasks of equal number share a level. Raises DataError where a task has no number there, or all have the same.
    """
    values = []
    for task in tasks:
        value = task.columns.get(column)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
            has = ", ".join(k for k, v in task.columns.items() if isinstance(v, (int, float)) and not isinstance(v, bool))
            raise DataError(
                f"levers.difficulty_column = {column!r}: task {task.key} has {value!r} there, and a number is needed; its "
                f"columns of numbers are {has or 'none'}"
            )
        values.append(float(value))
    ranks = np.searchsorted(np.sort(values), values)  # how many are easier
    parts, level = np.unique(ranks * num // max(1, len(values)), return_inverse=True)
    if len(parts) < 2:
        raise DataError(
            f"levers.difficulty_column = {column!r} is much the same for all {len(values)} training tasks, so that there "
            "is no order to take them in; name another column or remove it"
        )
    return [int(k) + 1 for k in level]


class StagedOrder:
    """A TaskOrder over the tasks of the open levels; where a level opens, a new one begins."""

    def __init__(self, tasks: Sequence[Task], levels: Sequence[int], ladder: Ladder,
                 make: Callable[[Sequence[Task]], TaskOrder]) -> None:  # fmt: skip
        self.tasks, self.levels, self.ladder, self.make = tasks, levels, ladder, make
        self._open(ladder.level)

    def _open(self, level: int) -> None:
        self.level = level
        self.order = self.make([task for task, own in zip(self.tasks, self.levels) if own <= level])

    def take(self, n: int, beside: Sequence[Task] = ()) -> list[Task]:
        if self.level != self.ladder.level:
            self._open(self.ladder.level)
        return self.order.take(n, beside)

    def __len__(self) -> int:
        return len(self.order)

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "order": self.order.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._open(state["level"])
        self.order.load_state(state["order"])


class Levers:
    """Everything of [levers] with a memory. Steps are observed as they are scored and closed by `end_step`."""

    def __init__(self, recipe: Recipe, tasks: Sequence[Task]) -> None:
        self.recipe, self.section, self.tasks = recipe, recipe.levers, tasks
        section = self.section
        self.horizon = Ladder(
            section.horizon_start, recipe.env.max_turns, section.horizon_step, section.horizon_success, section.window
        ) if section.horizon_start else None  # fmt: skip
        self.stages: Ladder | None = None
        self.levels: dict[str, int] = {}
        if section.difficulty_column:
            levels = levels_of(tasks, section.difficulty_column, section.difficulty_levels)
            self.levels = {task.key: level for task, level in zip(tasks, levels)}
            self.stages = Ladder(1, max(levels), 1, section.difficulty_success, section.window)
        self.tries: dict[str, list[float]] = {}
        """Task key → [successes, judged episodes]; the past counts half at each new visit."""
        self.successes: dict[str, list[Any]] = {}
        """Task key → [step, fields of the episode's id behind the task key]: the latest success, as stored."""

    def order(self, weights: Mapping[str, float] | None) -> TaskOrder | StagedOrder:
        """The order of training tasks. Raises DataError where there are too few (of the first level)."""

        def make(some: Sequence[Task]) -> TaskOrder:
            return TaskOrder(some, self.recipe.tasks.order, self.recipe.seed, weights)

        if self.stages is None:
            return make(self.tasks)
        return StagedOrder(self.tasks, [self.levels[task.key] for task in self.tasks], self.stages, make)

    def sizes(self, step: int, tasks: Sequence[Task]) -> int | list[int]:
        """Members of each task's group in this step; one number where it is the same for all."""
        section, usual = self.section, self.recipe.rollout.group_size
        if section.group_size_end:
            return scheduled_size(step, self.recipe.grpo.steps, usual, section.group_size_end)
        if not section.mixed_chance:
            return usual
        return [self._size(self.tries.get(task.key), usual) for task in tasks]

    def _size(self, tries: Sequence[float] | None, usual: int) -> int:
        """Success is estimated as (s + 1)/(n + 2): no finite number of tries proves that a task is always solved."""
        if tries is None:
            return usual
        p = (tries[0] + 1) / (tries[1] + 2)
        section = self.section
        return smallest_group(p, section.mixed_chance, section.group_size_min, section.group_size_max)

    @property
    def max_turns(self) -> int:
        """Turns that a training episode may have; 0: as the environment's section says."""
        return self.horizon.level if self.horizon else 0

    def observe(self, groups: Sequence[Group], rewards: Rewards) -> None:
        """Takes in what was sampled and scored, replaced groups included."""
        for group, row in zip(groups, rewards):
            judged = verdicts(group, row)
            if self.horizon:
                self.horizon.observe(judged)
            if self.stages and self.levels[group.task.key] == self.stages.level:
                self.stages.observe(judged)
            if self.section.mixed_chance and judged:
                right, num = self.tries.get(group.task.key, (0.0, 0.0))
                self.tries[group.task.key] = [right / 2 + sum(judged), num / 2 + len(judged)]

    def end_step(self, step: int, groups: Sequence[Group], rewards: Rewards) -> list[str]:
        """Closes a step whose `groups` were stored. What changed, in sentences."""
        told = []
        if self.horizon and self.horizon.end_step():
            told.append(f"the horizon rises to {self.horizon.level} turns")
        if self.stages and self.stages.end_step():
            told.append(f"difficulty level {self.stages.level} of {self.stages.top} comes in")
        if self.section.success_replay:
            for group, row in zip(groups, rewards):
                right = next((e.id for e, r in zip(group.episodes, row) if r.success and self._is_whole(e)), None)
                if right is not None:
                    self.successes[group.task.key] = [step, right.phase, right.step, right.member, right.attempt]
        return told

    def _is_whole(self, episode: Episode) -> bool:
        """Whether an episode of this kind is trained on."""
        _, in_loss = place_of(episode.stop, self.recipe.rollout)
        return in_loss and not (self.section.skip_void_turns and has_void_turn(episode))

    def success_of(self, key: str) -> tuple[int, EpisodeId] | None:
        """(the step it is stored under, its id) of the latest success of a task."""
        if key not in self.successes:
            return None
        step, phase, own_step, member, attempt = self.successes[key]
        return step, EpisodeId(phase, own_step, key, member, attempt)

    def alive(self, group: Group, rewards: Sequence[Reward], tell: Assign) -> bool:
        """Whether a group is worth training on: the rule of credit tells it something, or a success is there to join it."""
        (credits,) = assign_counted([group], [rewards], self.section, tell)
        return has_signal(credits) or (group.task.key in self.successes and all_fail(rewards))

    def metrics(self, groups: Sequence[Group], rewards: Rewards, num_replayed: int) -> dict[str, float]:
        """What the levers did in this step; a lever that is off has no metric."""
        section, found = self.section, {}
        episodes = [e for group in groups for e in group.episodes]
        times = [counts(group, row, section) for group, row in zip(groups, rewards)]
        if section.group_size_end or section.mixed_chance:
            found["groups/size"] = sum(e.branch_of is None for e in episodes) / len(groups)
        if self.horizon:
            found["curriculum/turns"] = float(self.horizon.level)
        if self.stages:
            found["curriculum/level"] = float(self.stages.level)
        if section.skip_void_turns:
            found["void/episodes"] = sum(map(has_void_turn, episodes)) / len(episodes)
        if section.repair_groups:
            found["repair/groups_dropped"] = float(sum(not any(row) for row in times))
            found["repair/episodes_repeated"] = float(sum(n - 1 for row in times for n in row if n))
        if section.keep_of_group:
            found["groups/left_out"] = sum(n == 0 for row in times for n in row) / len(episodes)
        if section.success_replay:
            found["replay/episodes"] = float(num_replayed)
            found["replay/tasks_known"] = float(len(self.successes))
        return found

    def state(self) -> dict[str, Any]:
        return {
            "horizon": self.horizon.state() if self.horizon else None,
            "stages": self.stages.state() if self.stages else None,
            "tries": {key: list(tries) for key, tries in self.tries.items()},
            "successes": {key: list(found) for key, found in self.successes.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        for ladder, name in ((self.horizon, "horizon"), (self.stages, "stages")):
            if ladder:
                ladder.load_state(state[name])
        self.tries = {key: list(tries) for key, tries in state["tries"].items()}
        self.successes = {key: list(found) for key, found in state["successes"].items()}


def check_tasks(recipe: Recipe, tasks: Sequence[Task], weights: Mapping[str, float] | None) -> None:
    """Refuses a recipe whose first step these tasks cannot fill. Raises DataError."""
    levers = Levers(recipe, tasks)
    order = levers.order(weights)
    if levers.stages and len(order) < recipe.rollout.prompts_per_step:
        raise DataError(
            f"rollout.prompts_per_step = {recipe.rollout.prompts_per_step} needs as many tasks in the first of "
            f"levers.difficulty_levels = {recipe.levers.difficulty_levels}, which has {len(order)}; lower one of them"
        )
    order.take(recipe.rollout.prompts_per_step)

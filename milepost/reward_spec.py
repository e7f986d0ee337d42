"""Rewards of long trajectories: outcome, milestones, costs, scores of turns, a length term; from stored facts. Torch-free.

    total = outcome·success + min(cap, Σ weight·milestone) − Σ min(cap, weight·(units − free)) + length
            + Σ min(cap, weight·Σ over turns of what a turn scorer says)

An episode of an environment stores the state at its start (`episode.facts["start"]`), after each turn
(`turn.facts["state"]`) and at its end (`episode.facts["final"]`), so that it can be judged again with another reward.

    spec = make_reward(recipe, env_spec)                # RecipeError, one sentence
    judge(spec, env_spec, task, episode)                # Reward: parts "outcome", "milestones", "cost/NAME", "length", …
    turn_rewards(spec, env_spec, task, episode)         # float64 [turns], what each turn earned
    EnvGrader(spec, env_spec).score(groups)             # with counts and the bounds asserted, as `reward.Grader` does
"""

from __future__ import annotations

import difflib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from milepost.env import EnvSpec, Milestone, Script, State
from milepost.hosts import Hosts
from milepost.length_terms import LengthController, LengthTerm, length_bounds, length_part, length_term
from milepost.lever_sections import largest_group
from milepost.recipe import Recipe
from milepost.reward_sections import TurnScorerSection
from milepost.scripted import Played, Texts, episode_of, play_script, problems
from milepost.sections import EnvSection
from milepost.tools import permitted
from milepost.turn_scorers import Scores, TurnScorers
from milepost.types import Episode, EpisodeId, Group, RecipeError, Reward, StopKind, Task

log = logging.getLogger("milepost.reward")

SLACK = 1e-9
"""How far rounding may carry a part beyond its declared bounds."""

_MEASURES = ("progress/", "used/", "scored/", "unscored/", "potential/")


def is_measure(part: str) -> bool:
    """Whether a part of an environment's reward is only measured; all others are paid, and add up to the total."""
    return part.startswith(_MEASURES)


class OutOfBounds(ValueError):
    """(name, sentence): what the proof of the reward takes for granted does not hold for an episode."""


@dataclass(frozen=True)
class CostTerm:
    """min(cap, weight · max(0, units − free)), taken from the reward."""

    name: str
    unit: str
    free: float
    weight: float
    cap: float

    def paid(self, units: float) -> float:
        return min(self.cap, self.weight * max(0.0, units - self.free))


@dataclass(frozen=True)
class TurnTerm:
    """min(cap, weight · Σ over turns of the score), added to the reward. A turn without a score adds nothing."""

    label: str
    weight: float
    cap: float

    def running(self, scores: Sequence[float | None]) -> np.ndarray:
        """What is paid up to each turn; float64 [turns + 1], 0 first."""
        total = np.cumsum([0.0, *(score or 0.0 for score in scores)])
        return np.minimum(self.cap, self.weight * total)


@dataclass(frozen=True)
class RewardSpec:
    """All that a recipe says about the reward of an environment's episodes, resolved and with its bounds."""

    outcome: float = 1.0
    milestones: Mapping[str, float] = field(default_factory=dict)
    """name → weight"""
    milestone_cap: float = 0.5
    form: str = "bonus"
    """bonus: part of the total. potential: γΦ′ − Φ per turn, Φ = 0 at every end; no part of the total."""
    potential: float = 0.0
    """Weight of the environment's own potential, which shapes turns as milestones of the form potential do."""
    costs: tuple[CostTerm, ...] = ()
    scorers: tuple[TurnTerm, ...] = ()
    length: LengthTerm | None = None
    gamma: float = 1.0
    """Of the potential: the credit rule's own discount."""
    max_turns: int = 0
    """The longest episode for which the reward was checked; 0: not known."""
    max_tokens: int = 0
    """Most sampled tokens of an episode; 0: not known."""
    group_size: int = 8
    combine: str = "sum"
    soft: bool = False
    """Whether the soft overlong penalty, of up to 1, is taken from totals."""

    @property
    def most_progress(self) -> float:
        """The most that milestones hold at one time."""
        return min(self.milestone_cap, math.fsum(self.milestones.values()))

    @property
    def most_scored(self) -> float:
        """The most that all turn scorers pay together."""
        return math.fsum(map(self.most_by, self.scorers))

    def most_by(self, term: TurnTerm) -> float:
        """In the longest episode; by the cap alone where that is not known."""
        known = self.max_turns or not term.weight
        return min(term.cap, term.weight * self.max_turns) if known else term.cap

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each part, success and failure together."""
        progress = {"milestones": (0.0, self.most_progress)} if self.milestones and self.form == "bonus" else {}
        costs = {f"cost/{cost.name}": (-cost.cap, 0.0) for cost in self.costs}
        scored = {f"scorer/{term.label}": (0.0, self.most_by(term)) for term in self.scorers}
        length = {}
        if self.length:
            low, high, low_failure = length_bounds(self.length, self.outcome, self.group_size, self.max_tokens)
            length = {"length": (min(low, low_failure), max(high, 0.0))}
        return {"outcome": (0.0, self.outcome), **progress, **costs, **scored, **length}

    @property
    def part_weights(self) -> dict[str, float] | None:
        """For GDPO: what each z-scored part counts, the widest range it can pay over; None for a plain sum."""
        return {name: high - low for name, (low, high) in self.bounds().items()} if self.combine == "gdpo" else None


_UNITS: dict[str, tuple[str, Callable[[Episode], float]]] = {
    "turns": ("turns", lambda episode: len(episode.turns)),
    "calls": ("calls", lambda episode: sum(turn.facts["num_calls"] for turn in episode.turns)),
    "invalid": ("invalid actions", lambda episode: sum(turn.facts["num_invalid"] for turn in episode.turns)),
    "tokens": ("sampled tokens", lambda episode: episode.num_sampled),
    "seconds": ("seconds", lambda episode: math.fsum(turn.seconds for turn in episode.turns)),
}
"""Costs that every environment has. One of the environment's own of the same name takes precedence."""


def make_reward(recipe: Recipe, env_spec: EnvSpec) -> RewardSpec:
    """The recipe's reward for this environment. Raises RecipeError for milestones and costs that it does not have."""
    section, limits = recipe.reward, recipe.env
    check_milestones(env_spec)
    _known("reward.milestones", section.milestones, [m.name for m in env_spec.milestones], env_spec)
    units = {name: unit for name, (unit, _) in _UNITS.items()} | {cost.name: cost.unit for cost in env_spec.costs}
    _known("reward.costs", [cost.name for cost in section.costs], list(units), env_spec)
    if section.potential and env_spec.potential is None:
        raise RecipeError(
            f"reward.potential = {section.potential:g}, but the environment {env_spec.name} has no potential; give its "
            'EnvSpec one, or shape by milestones: reward.milestone_form = "potential"'
        )
    return RewardSpec(
        outcome=section.outcome,
        milestones=dict(section.milestones),
        milestone_cap=section.milestone_cap,
        form=section.milestone_form,
        potential=section.potential,
        scorers=tuple(map(_turn_term, section.turn_scorers)),
        costs=tuple(CostTerm(c.name, units[c.name], c.free, c.weight, c.cap) for c in section.costs),
        length=length_term(section.length),
        gamma=recipe.credit.gamma,
        max_turns=limits.max_turns,
        max_tokens=limits.max_episode_tokens or limits.max_turns * recipe.rollout.max_new_tokens,
        group_size=largest_group(recipe),
        combine=section.combine,
        soft=recipe.rollout.truncated == "soft",
    )


def _turn_term(section: TurnScorerSection) -> TurnTerm:
    return TurnTerm(section.resolved_label, section.weight, section.cap)


def check_milestones(env_spec: EnvSpec) -> None:
    """Raises RecipeError unless names are unique and `after` names milestones without going in circles."""
    names = [milestone.name for milestone in env_spec.milestones]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise RecipeError(f"environment {env_spec.name}: two milestones are called {twice[0]!r}; give each its own name")
    for milestone in env_spec.milestones:
        _known(f"environment {env_spec.name}, milestone {milestone.name!r}, after", milestone.after, names, env_spec)
    _in_order(env_spec)


def _known(where: str, given: Any, known: Sequence[str], env_spec: EnvSpec) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            works = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"
            raise RecipeError(f"{where}: the environment {env_spec.name} has no {name!r}; {works}")


def _in_order(env_spec: EnvSpec) -> list[Milestone]:
    """Milestones, each behind those that it must come after. Raises RecipeError for a circle."""
    ordered: list[Milestone] = []
    waiting = list(env_spec.milestones)
    while waiting:
        done = {milestone.name for milestone in ordered}
        ready = [milestone for milestone in waiting if done.issuperset(milestone.after)]
        if not ready:
            raise RecipeError(
                f"environment {env_spec.name}: the milestones {', '.join(m.name for m in waiting)} wait for each other in "
                "`after`; remove one of the names there"
            )
        ordered += ready
        waiting = [milestone for milestone in waiting if milestone not in ready]
    return ordered


# ---- facts of an episode ---------------------------------------------------------------------------------------------


def states_of(episode: Episode) -> list[State]:
    """The states at the start and after each turn: turns + 1 of them. Raises KeyError for an episode without states."""
    return [episode.facts["start"], *(turn.facts["state"] for turn in episode.turns)]


def progress(spec: RewardSpec, env_spec: EnvSpec, task: Task, states: Sequence[State]) -> dict[str, list[bool]]:
    """For each milestone of the recipe, whether it counts at the start and after each turn.

    event: from the first step on for which `reached(before, after)`, once the milestones it comes `after` are reached (in
    the same step is soon enough). state: while `reached(start, now)` and they are; what holds at the start already is
    nobody's progress and never counts.
    """
    held: dict[str, list[bool]] = {}
    ordered = _in_order(env_spec)
    needed = set(spec.milestones)
    for milestone in reversed(ordered):
        needed |= set(milestone.after) if milestone.name in needed else set()
    for milestone in ordered:
        if milestone.name not in needed:
            continue
        row, latched = [False], False
        idle = milestone.kind == "state" and bool(milestone.reached(task, states[0], states[0]))
        for t in range(1, len(states)):
            ready = all(any(held[name][: t + 1]) for name in milestone.after)
            before = states[t - 1] if milestone.kind == "event" else states[0]
            true = ready and not idle and not latched and bool(milestone.reached(task, before, states[t]))
            latched = latched or (true and milestone.kind == "event")
            row.append(true or latched)
        held[milestone.name] = row
    return {name: held[name] for name in spec.milestones}


def units_used(name: str, env_spec: EnvSpec, task: Task, episode: Episode) -> float:
    """Units of a cost that the episode used. Raises ValueError for what is no amount."""
    cost = next((cost for cost in env_spec.costs if cost.name == name), None)
    amount = _UNITS[name][1](episode) if cost is None else cost.amount(task, states_of(episode))
    if isinstance(amount, bool) or not isinstance(amount, (int, float, np.number)) or not 0 <= amount < math.inf:
        raise ValueError(f"cost {name} used {amount!r} units; an amount is a finite number and not below 0")
    return float(amount)


def potentials(env_spec: EnvSpec, task: Task, states: Sequence[State]) -> np.ndarray:
    """The environment's own potential at the start and after each turn; float64 [turns + 1]. Raises OutOfBounds."""
    assert env_spec.potential is not None
    found = [env_spec.potential(task, states[0], state) for state in states]
    for turn, value in enumerate(found):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
            where = f"after turn {turn}" if turn else "at the start"
            raise OutOfBounds("potential", f"its potential is {value!r} {where}; it must be a number from 0 to 1")
    return np.array(found, np.float64)


# ---- judgement -------------------------------------------------------------------------------------------------------


NO_SCORES: Scores = {}


def judge(
    spec: RewardSpec, env_spec: EnvSpec, task: Task, episode: Episode, lengths: Sequence[int] = (),
    scores: Scores = NO_SCORES,
) -> Reward:  # fmt: skip
    """The verdict on one episode, from its facts. Whatever the stop reason, success is read from the final state.

    Parts: "outcome", "milestones", "cost/NAME", "scorer/LABEL" and "length" as paid, which add up to the total;
    "progress/NAME" (0 or 1), "used/NAME" (units), "scored/LABEL" (sum of the scores), "unscored/LABEL" (turns without one)
    and "potential/final" are only measured. `lengths`: sampled tokens of all members of its group, for length terms that
    compare. `scores`: what each turn scorer of the spec said. Faults, episodes without states or scores, and parts outside
    their declared bounds are unscorable, with the cause.
    """
    if cause := _absent(episode):
        return Reward.unscorable(cause)
    return _judge(spec, env_spec, task, episode, lengths, scores)[0]


def _judge(
    spec: RewardSpec, env_spec: EnvSpec, task: Task, episode: Episode, lengths: Sequence[int], scores: Scores
) -> tuple[Reward, str]:  # fmt: skip
    """The verdict, and the sentence behind a cause of the reward's own: a bound that broke, a predicate that raised."""
    if any(len(scores.get(term.label, ())) != len(episode.turns) for term in spec.scorers):
        return Reward.unscorable("no scores"), ""
    try:
        reward = _verdict(spec, env_spec, task, episode, lengths or (episode.num_sampled,), scores)
    except OutOfBounds as error:
        return Reward.unscorable(f"out of bounds: {error.args[0]}"), error.args[1]
    except (Exception, SystemExit) as error:  # an author's predicate: what it cannot judge is not a zero
        return Reward.unscorable(f"error: {type(error).__name__}"), f"the reward raised {type(error).__name__}: {error}"
    name, sentence = _out_of_bounds(spec, episode, reward)
    return (Reward.unscorable(f"out of bounds: {name}"), sentence) if name else (reward, "")


def _absent(episode: Episode) -> str | None:
    if episode.stop.kind is StopKind.FAULT:
        return f"fault: {episode.stop.reason}"
    if not episode.turns:
        return "no turns"
    complete = (
        "start" in episode.facts and "final" in episode.facts and all("state" in turn.facts for turn in episode.turns)
    )
    return None if complete else "no states"


def _verdict(
    spec: RewardSpec, env_spec: EnvSpec, task: Task, episode: Episode, lengths: Sequence[int], scores: Scores
) -> Reward:  # fmt: skip
    success = bool(env_spec.goal.holds(task, episode.facts["start"], episode.facts["final"]))
    held = {name: row[-1] for name, row in progress(spec, env_spec, task, states_of(episode)).items()}
    used = {cost.name: units_used(cost.name, env_spec, task, episode) for cost in spec.costs}
    paid = {"outcome": spec.outcome * success}
    if spec.milestones and spec.form == "bonus":
        paid["milestones"] = _worth(spec, held)
    paid |= {f"cost/{cost.name}": -cost.paid(used[cost.name]) for cost in spec.costs}
    paid |= {f"scorer/{term.label}": float(term.running(scores[term.label])[-1]) for term in spec.scorers}
    if spec.length:
        paid["length"] = length_part(spec.length, success, spec.outcome, episode.num_sampled, lengths)
    measured = {f"progress/{name}": float(there) for name, there in held.items()} | {
        f"used/{k}": v for k, v in used.items()
    }
    told = {term.label: tuple(scores[term.label]) for term in spec.scorers}
    for label, row in told.items():
        measured[f"scored/{label}"] = math.fsum(score for score in row if score is not None)
        measured[f"unscored/{label}"] = float(row.count(None))
    if spec.potential:
        measured["potential/final"] = float(potentials(env_spec, task, states_of(episode))[-1])
    return Reward(math.fsum(paid.values()), {**paid, **measured}, success, turn_scores=told)


def _worth(spec: RewardSpec, held: Mapping[str, bool]) -> float:
    return min(spec.milestone_cap, math.fsum(weight for name, weight in spec.milestones.items() if held[name]))


def _out_of_bounds(spec: RewardSpec, episode: Episode, reward: Reward) -> tuple[str, str]:
    """(name, sentence) of a declared bound that this episode breaks, so that no proof holds for it; else blank."""
    for name, (low, high) in spec.bounds().items():
        if not low - SLACK <= reward.parts[name] <= high + SLACK:
            return name, f"its part {name} = {reward.parts[name]:g} is outside the declared [{low:g}, {high:g}]"
    for label, scores in reward.turn_scores.items():
        for turn, score in enumerate(scores, 1):
            if score is not None and not -SLACK <= score <= 1 + SLACK:
                return (
                    f"scorer/{label}",
                    f"the turn scorer {label} said {score:g} of turn {turn}, and not a number from 0 to 1",
                )
    for what, count, most in (
        ("turns", len(episode.turns), spec.max_turns),
        ("tokens", episode.num_sampled, spec.max_tokens),
    ):
        if most and count > most:
            return what, f"it has {count} {what} where at most {most} are declared"
    return "", ""


def turn_rewards(
    spec: RewardSpec, env_spec: EnvSpec, task: Task, episode: Episode, lengths: Sequence[int] = (),
    scores: Scores = NO_SCORES,
) -> np.ndarray:  # fmt: skip
    """What each turn earned; float64 [turns]. Their sum is the total, but for potential shaping.

    A milestone pays in the turn that reaches it and costs as much in the turn that undoes it; a cost is paid in the turn
    that runs it up, a score in the turn that it is of; outcome and length come with the last turn. As a potential, and by
    the environment's own, turn t gets γ·Φ(t) − Φ(t − 1) with Φ = 0 at the end, whatever ended the episode (Ng et al. 1999);
    discounted by γ per turn, that adds up to −Φ(start). Raises ValueError for an unscorable episode.
    """
    reward = judge(spec, env_spec, task, episode, lengths, scores)
    if reward.total is None:
        raise ValueError(f"episode {episode.id} has no turn rewards: {reward.cause}")
    states, last = states_of(episode), len(episode.turns)
    held = progress(spec, env_spec, task, states)
    worth = np.array([_worth(spec, {name: row[t] for name, row in held.items()}) for t in range(last + 1)])
    earned = shaping(worth, spec.gamma) if spec.form == "potential" else np.diff(worth)
    if spec.potential:
        earned += shaping(spec.potential * potentials(env_spec, task, states), spec.gamma)
    for term in spec.scorers:
        earned += np.diff(term.running(scores[term.label]))
    for cost in spec.costs:
        running = [cost.paid(units_used(cost.name, env_spec, task, _until(episode, t))) for t in range(last + 1)]
        paid = np.minimum(np.maximum.accumulate(running), running[-1])  # never handed back on the way
        earned -= np.diff(paid)
        earned[0] -= paid[0]
    earned[-1] += reward.parts["outcome"] + reward.parts.get("length", 0.0)
    return earned


def shaping(potential: np.ndarray, gamma: float) -> np.ndarray:
    """γ·Φ(t) − Φ(t − 1) of each turn, float64 [turns], from Φ at the start and after each turn; the last counts as 0."""
    potential = np.asarray(potential, np.float64)
    return gamma * np.append(potential[1:-1], 0.0) - potential[:-1]


def _until(episode: Episode, num_turns: int) -> Episode:
    return replace(episode, turns=episode.turns[:num_turns])


# ---- groups ----------------------------------------------------------------------------------------------------------


class EnvGrader:
    """Scores groups of an environment's episodes; the counterpart of `reward.Grader`.

    `counts`: correct, wrong, unscorable and unscorable/<cause>. A broken bound is an error in the log, the first of each
    kind in full: what was proven of this reward does not hold. `state()` is what the future depends on.
    """

    def __init__(
        self, spec: RewardSpec, env_spec: EnvSpec, controller: LengthController | None = None,
        scorers: TurnScorers | None = None, limits: EnvSection | None = None,
    ) -> None:  # fmt: skip
        """`limits`: how the environment is called and what time it has. Then scripts are played in a process of their own,
        which they may end; else in this one, as an environment without a name has to be."""
        self.spec, self.env_spec, self.controller, self.scorers = spec, env_spec, controller, scorers
        self.limits = limits or EnvSection()
        self.counts: Counter[str] = Counter()
        self._hosts: Hosts | None = None
        self._reported: set[str] = set()

    @classmethod
    def of(cls, recipe: Recipe, env_spec: EnvSpec) -> EnvGrader:
        """As the recipe says, its length controller included. Raises RecipeError."""
        controller = LengthController(recipe.reward.length) if recipe.reward.length.max_mean else None
        spec = make_reward(recipe, env_spec)
        return cls(spec, env_spec, controller, TurnScorers(recipe.reward) if spec.scorers else None, recipe.env)

    def close(self) -> None:
        if self._hosts:
            self._hosts.close()
            self._hosts = None
        if self.scorers:
            self.scorers.close()

    def __enter__(self) -> EnvGrader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def length_weight(self) -> float | None:
        """As the controller has it now; None without one."""
        return self.controller.weight if self.controller else None

    def spent(self) -> dict[str, float]:
        """What its turn scorers did so far: scorer/calls, scorer/cpu_seconds. Empty without any."""
        return self.scorers.spent() if self.scorers else {}

    @property
    def part_weights(self) -> dict[str, float] | None:
        """For `credit.assign`: None unless reward.combine = "gdpo"."""
        return self.spec.part_weights

    def check_columns(self, tasks: Sequence[Task]) -> None:
        """Refuses tasks whose permissions cannot be read. Raises DataError."""
        for task in tasks:
            permitted(self.env_spec.tools, task.columns)

    def try_out(self, task: Task) -> None:
        """Plays the gold script, if there is one. Raises RecipeError if the goal does not hold after it, or a turn scorer
        breaks its contract."""
        for problem in self.canary([task]):
            raise RecipeError(problem)
        if self.scorers:
            played = self.play(task, self.env_spec.gold or Texts(("",)))
            self.scorers.score([(task, episode_of(played, task))])

    def canary(self, tasks: Sequence[Task]) -> list[str]:
        """What is wrong with the judge: the gold script fails at the first task, or doing nothing succeeds."""
        return list(problems(self.env_spec, tasks[:1], self.hosts))

    def play(self, task: Task, script: Script, seed: int = 0, *, max_turns: int | None = None) -> Played:
        """One scripted episode, by default of as many turns as the recipe allows. Raises RecipeError."""
        most = max_turns or self.spec.max_turns or 1000
        return play_script(self.env_spec, task, script, seed, max_turns=most, hosts=self.hosts)

    @property
    def hosts(self) -> Hosts:
        """Where scripts are played; started when it is first needed."""
        if self._hosts is None:
            name = self.limits.name
            self._hosts = Hosts(
                name or self.env_spec, 1, isolated=bool(name), step_seconds=self.limits.step_seconds,
                reset_seconds=self.limits.reset_seconds, num_retries=0,
            )  # fmt: skip
        return self._hosts

    def score(self, groups: Sequence[Group]) -> list[list[Reward]]:
        """One reward per episode, nested as the episodes are. Raises RecipeError if a turn scorer breaks its contract."""
        there = [(group.task, episode) for group in groups for episode in group.episodes if not _absent(episode)]
        told = iter(self.scorers.score(there, self.counts) if self.scorers else [NO_SCORES] * len(there))
        return [self._score_group(group, told) for group in groups]

    def _score_group(self, group: Group, told: Iterator[Scores]) -> list[Reward]:
        """`told`: of the episodes that can be judged, here and in the groups to come, what the turn scorers said."""
        lengths, rewards = _lengths(group), []
        for episode in group.episodes:
            cause = _absent(episode)
            reward, sentence = (Reward.unscorable(cause), "") if cause else _judge(
                self.spec, self.env_spec, group.task, episode, lengths, next(told))  # fmt: skip
            self._count(episode, reward, sentence)
            rewards.append(reward)
        return rewards

    def _count(self, episode: Episode, reward: Reward, sentence: str) -> None:
        if reward.cause is None:
            self.counts["correct" if reward.success else "wrong"] += 1
            return
        self.counts.update(("unscorable", f"unscorable/{reward.cause}"))
        if sentence and reward.cause not in self._reported:
            self._reported.add(reward.cause)
            log.error("episode %s cannot be scored: %s (further ones are only counted)", episode.id, sentence)

    def turn_rewards(
        self, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]]
    ) -> dict[EpisodeId, np.ndarray]:  # fmt: skip
        """What `turn_rewards` gives for each episode that was scored; `rewards` are those that `score` gave."""
        found = {}
        for group, row in zip(groups, rewards):
            lengths = _lengths(group)
            for episode, reward in zip(group.episodes, row):
                if reward.scorable:
                    found[episode.id] = turn_rewards(
                        self.spec, self.env_spec, group.task, episode, lengths, reward.turn_scores
                    )
        return found

    def observe(self, groups: Sequence[Group]) -> str | None:
        """After a training step: the length controller's turn. The sentence to log if it changed the reward."""
        if self.controller is None or self.spec.length is None:
            return None
        changed = self.controller.observe([length for group in groups for length in _lengths(group)])
        self.spec = replace(self.spec, length=replace(self.spec.length, weight=self.controller.weight))
        return changed

    def state(self) -> dict[str, Any]:
        return {"controller": self.controller.state()} if self.controller else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if self.controller and self.spec.length:
            self.controller.load_state(state["controller"])
            self.spec = replace(self.spec, length=replace(self.spec.length, weight=self.controller.weight))


def _lengths(group: Group) -> list[int]:
    return [episode.num_sampled for episode in group.episodes if episode.stop.kind is not StopKind.FAULT]

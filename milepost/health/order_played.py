"""What scripts would earn in the real environment: the gold, the gold cut short, and every known-bad one. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from milepost.credit import assign
from milepost.env import EnvSpec, Script
from milepost.recipe import Recipe
from milepost.reward_spec import EnvGrader, RewardSpec, is_measure
from milepost.scripted import Texts, Unplayable, episode_of
from milepost.sections import EnvSection
from milepost.turn_scorers import TurnScorers
from milepost.types import Episode, Group, Task

GOLD, NOTHING, CLAIMS = "gold", "does nothing", "claims that it is done"
LOOPS, EARLY = "first turn again and again", "gold, ended after"
CLAIM = "Step 1 done. Step 2 done. The task is complete and everything was saved: success!"
PATIENCE = 3
"""Turns of a script that does nothing or only claims."""


@dataclass(frozen=True)
class Earned:
    """One scripted episode as the recipe would reward and credit it, in the group of all scripts for its task."""

    task: str
    script: str
    num_turns: int
    stop: str
    success: bool | None
    total: float | None
    parts: dict[str, float]
    credit: float
    """What a token of the first turn is told."""
    cause: str | None = None

    def line(self) -> str:
        if self.total is None:
            return f"{self.task:<10.10} {self.script:<28.28} unscorable: {self.cause}"
        parts = ", ".join(f"{name} {value:.3g}" for name, value in self.parts.items() if value and not is_measure(name))
        verdict = "success" if self.success else "failure"
        return (f"{self.task:<10.10} {self.script:<28.28} {self.num_turns:>3} turns  {verdict}  "
                f"reward {self.total:>7.3f}  credit {self.credit:>7.3f}  {parts or 'nothing'}")  # fmt: skip


def play_known(
    spec: RewardSpec, env_spec: EnvSpec, recipe: Recipe, tasks: Sequence[Task], limits: EnvSection | None = None
) -> list[Earned]:
    """Every script on every task. One that raises is told as unscorable: an environment must answer whatever is written.

    `limits`: as of `EnvGrader`; with them scripts are played in a process of their own.
    """
    with EnvGrader(spec, env_spec, scorers=TurnScorers(recipe.reward) if spec.scorers else None, limits=limits) as grader:
        return _play_known(grader, recipe, tasks)


def _play_known(grader: EnvGrader, recipe: Recipe, tasks: Sequence[Task]) -> list[Earned]:
    earned: list[Earned] = []
    for task in tasks:
        names: list[str] = []
        episodes: list[Episode] = []
        for name, script, most in _scripts_of(grader, task, recipe.seed):
            try:
                played = grader.play(task, script, recipe.seed, max_turns=most)
            except Unplayable as error:
                cause = f"error: {error.detail}"
                earned.append(Earned(task.key, name, 0, "fault", None, None, {}, 0.0, cause))
                continue
            names.append(name)
            episodes.append(episode_of(played, task, member=len(episodes)))
        earned += _credited(grader, recipe, task, names, episodes)
    return earned


def _scripts_of(grader: EnvGrader, task: Task, seed: int) -> Iterator[tuple[str, Script, int | None]]:
    """The gold, the known-bad ones, two that every world knows, and the gold ended early after each of its turns; and
    after how many turns each ends, if not when it wants to."""
    gold, known_bad = grader.env_spec.gold, grader.env_spec.known_bad
    if gold:
        yield GOLD, gold, None
    for name, script in known_bad.items():
        yield name, script, None
    yield NOTHING, Texts(("",) * PATIENCE), None
    yield CLAIMS, Texts((CLAIM,) * PATIENCE), None
    if gold:
        with suppress(Unplayable):  # one that fails is told when it is played as itself
            texts = [step.text for step in grader.play(task, gold, seed).steps]
            yield LOOPS, Texts((*texts[:1] * max(PATIENCE, 2 * len(texts)),)), None
            for num_turns in range(1, len(texts)):
                yield f"{EARLY} {num_turns}", gold, num_turns


def shown(earned: Sequence[Earned]) -> list[Earned]:
    """All but the golds that ended early, of which the failure that earns most stands for each task."""
    early = [one for one in earned if one.script.startswith(EARLY)]
    best = [max((one for one in early if one.task == key), key=lambda one: (not one.success, one.total or 0.0))
            for key in dict.fromkeys(one.task for one in early)]  # fmt: skip
    return [one for one in earned if one not in early or one in best]


def _credited(
    grader: EnvGrader, recipe: Recipe, task: Task, names: Sequence[str], episodes: Sequence[Episode]
) -> list[Earned]:  # fmt: skip
    """One group of all scripts, through the recipe's own reward and credit."""
    if not episodes:
        return []
    group = Group(episodes[0].group_id, task, tuple(episodes))
    (rewards,) = grader.score([group])
    turn_rewards: Any = grader.turn_rewards([group], [rewards]) if recipe.credit.by_turn else None
    (credits,) = assign([group], [rewards], recipe.credit, recipe.rollout, part_weights=grader.part_weights,
                        turn_rewards=turn_rewards)  # fmt: skip
    return [
        Earned(
            task.key, name, len(episode.turns), episode.stop.reason, reward.success, reward.total, dict(reward.parts),
            float(credit.advantages[0]) if len(credit.advantages) else 0.0, reward.cause,
        )
        for name, episode, reward, credit in zip(names, episodes, rewards, credits)
    ]  # fmt: skip


def played_counter_examples(env_spec: EnvSpec, earned: Sequence[Earned]) -> Iterator[tuple[float, float, str]]:
    """(failure, success, sentence) of each script that was played and shows the wrong order."""
    bad = {*env_spec.known_bad, NOTHING, CLAIMS}
    for key in dict.fromkeys(one.task for one in earned):
        mine = [one for one in earned if one.task == key]
        for one in mine:
            said = f"task {key}: the script {one.script!r}"
            if one.stop == "fault":
                yield 0.0, 0.0, f"{said} ended in {one.cause}; an environment must answer whatever is written"
            elif one.script in bad and one.success:
                yield one.total or 0.0, one.total or 0.0, f"{said} is a success by the goal, which it must not be"
        gold = next((one for one in mine if one.script == GOLD and one.total is not None), None)
        if gold and not gold.success:
            yield (
                gold.total or 0.0,
                0.0,
                f"task {key}: the gold script does not reach the goal within {gold.num_turns} turns",
            )
        elif gold:
            yield from _above(key, gold, [one for one in mine if one.success is False])


def _above(key: str, gold: Earned, failures: Sequence[Earned]) -> Iterator[tuple[float, float, str]]:
    highest = gold.total or 0.0
    for one in failures:
        total = one.total or 0.0
        said = f"task {key}: {one.script!r}, a failure,"
        if total >= highest:
            yield total, highest, f"{said} earns {total:.4g}, and the gold script {highest:.4g}"
        elif one.credit >= gold.credit and gold.credit != 0:
            yield (
                one.credit,
                gold.credit,
                f"{said} is told {one.credit:.4g} at its first turn, the gold script {gold.credit:.4g}",
            )

"""At which turns of an episode others are to continue from, and what they need for it. Torch-free.

The choice is made while the episode is played, before each action is carried out, and depends on nothing but the episode
itself: the same weights give the same branch points, whoever was quicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from milepost import streams
from milepost.credit_sections import BranchSection, CreditSection
from milepost.env import EnvSpec, State
from milepost.types import EpisodeId, RecipeError, Sampled, Task, Turn

if TYPE_CHECKING:
    from milepost.history import History


def check_branches(section: CreditSection, spec: EnvSpec) -> None:
    """Raises RecipeError where branch points are to follow milestones that the environment does not have."""
    if section.rule == "branch" and section.branches.at == "milestones" and not spec.milestones:
        raise RecipeError(
            f'credit.branches.at = "milestones" needs an environment with milestones, and {spec.name} has none; use '
            '"every" or "uncertain"'
        )


@dataclass(frozen=True)
class Saved:
    """An episode before its turn `len(turns)`: all that another one needs to go on from there."""

    world: bytes
    """The environment's own snapshot."""
    history: History
    state: State
    turns: tuple[Turn, ...]
    num_calls: int
    num_invalid: int
    invalid_in_a_row: int


def branches_here(
    section: BranchSection, spec: EnvSpec, task: Task, name: EpisodeId, turns: Sequence[Turn], states: Sequence[State],
    sampled: Sampled, seed: int,
) -> bool:  # fmt: skip
    """Whether to continue from the state in which `sampled` is about to act.

    `turns` are those before it, `states` the start and the states after each of them, `seed` the run's. The start itself
    is no branch point: the members of a group continue from there.
    """
    turn = len(turns)
    if not turn:
        return False
    if section.at == "every":
        return turn % section.every == 0
    if section.at == "uncertain":
        draw = float(streams.generator(seed, f"branch/{name}/{turn}").random())
        return is_uncertain(draw, surprise(sampled) - surprise(turns[0].sampled), section.uncertainty, section.chance)
    return any(_was_reached(spec, task, kind, states) for kind in range(len(spec.milestones)))


def is_uncertain(draw: float, rise: float, weight: float, chance: float) -> bool:
    """ARPO (2507.19849): U − w·ΔH ≤ p. It measures ΔH over the logits; here it is what the sampled tokens show."""
    return draw - weight * rise <= chance


def surprise(sampled: Sampled) -> float:
    """Mean −log p of a turn's tokens: an estimate of their entropy, in nats."""
    return float(-np.mean(sampled.logprobs)) if len(sampled.logprobs) else 0.0


def _was_reached(spec: EnvSpec, task: Task, kind: int, states: Sequence[State]) -> bool:
    """Whether the last step reached this milestone."""
    milestone, start, before, now = spec.milestones[kind], states[0], states[-2], states[-1]
    if milestone.kind == "event":
        return bool(milestone.reached(task, before, now))
    return bool(milestone.reached(task, start, now)) and not milestone.reached(task, start, before)

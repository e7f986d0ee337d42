"""The settings of [levers]: what the field adds to plain GRPO, each off by default, with the evidence for and against.

Masks and penalties of single tokens are settings of [loss], where they act. docs/levers.md lists all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import model_validator

from milepost.sections import Section, setting

if TYPE_CHECKING:
    from milepost.recipe import Recipe


class LeversSection(Section):
    refills: int = setting(
        0,
        "dynamic sampling: rounds per step in which groups without signal are replaced by newly sampled ones; 0: off. "
        "For: 42 to 50 on AIME24 in DAPO's ladder. Against: +2 in verl's replication, nothing in a Countdown study; each "
        "round costs rollouts, which are logged",
        ge=0,
    )
    group_size_end: int = setting(
        0,
        "schedule: group size in the last step, linear from rollout.group_size; 0: constant. For: larger groups helped in "
        "a Countdown study. Against: 2 was as good as 16 at equal samples (2510.00977). Smaller groups late are the wrong "
        "way round: at p = .9 the mixed share falls from .57 (8) to .34 (4)",
        ge=0,
    )
    mixed_chance: float = setting(
        0.0,
        "group size by task: the smallest whose chance of a mixed group, at the task's success so far, reaches this; 0: "
        "off. For: 2 to 3 times less compute (Reinforce-Ada, sGPO, Pilot-Commit; single runs). Against: not replicated; "
        "tasks near 0 and 1 get the largest groups",
        ge=0,
        lt=1,
    )
    group_size_min: int = setting(0, "mixed_chance: smallest group", ge=0)
    group_size_max: int = setting(0, "mixed_chance: largest group", ge=0)
    horizon_start: int = setting(
        0,
        "horizon curriculum: turns that a training episode may have at first, up to env.max_turns; 0: off. For: 5, 8, 10 "
        "turns in ScalingInter-RL. Against: not replicated; what needs more turns than allowed cannot succeed yet",
        ge=0,
    )
    horizon_step: int = setting(1, "horizon_start: turns that each rise adds", ge=1)
    horizon_success: float = setting(0.5, "horizon_start: success from which on turns are added", gt=0, le=1)
    difficulty_column: str = setting(
        "",
        "difficulty curriculum: column of numbers, low is easy; harder tasks come in when the hardest so far succeed; "
        "empty: off. For: it pays where the hardest tier earns nearly nothing (h1: 5.1 to 10.5). Against: no selection "
        "method beat uniform over 12 seeds (2609.06107); ScaleRL: speed only",
    )
    difficulty_levels: int = setting(4, "difficulty_column: parts of about equal size", ge=2)
    difficulty_success: float = setting(0.7, "difficulty_column: success from which on the next level comes in", gt=0, le=1)
    window: int = setting(5, "steps a curriculum looks back on at least before it goes on", ge=1)
    skip_void_turns: bool = setting(
        False,
        "an episode with a void turn (cut, or without any call that could be carried out) is left out of the loss and kept "
        "in the baseline. For: 50.5 against 20.8 on AIME24 in SimpleTIR. Against: one paper; nothing then teaches the "
        "policy not to do it",
    )
    success_replay: bool = setting(
        False,
        "a stored success of the task joins a group in which all fail. For: 26.0 to 29.9 in ARPO (GUI), success pools in "
        "MobileRL and DART. Against: single runs; old samples, which the clip of the ratio soon takes out",
    )
    repair_groups: bool = setting(
        False,
        "after faults: a group with more than half of its episodes counts in full (they are repeated in weight), another "
        "is dropped. For: done in GLM-5. Against: no ablation; uneven groups are right without it",
    )
    keep_of_group: int = setting(
        0,
        "down-sampling (PODS): of each group, the members whose rewards vary most, half lowest and half highest, are all "
        "that counts; 0: all. For: the same score 1.7 times sooner in its paper. Against: withdrawn once, single runs; "
        "biased; it saves learning, not sampling",
        ge=0,
    )

    @model_validator(mode="after")
    def _check(self) -> LeversSection:
        for key, switch, off, example in _IDLE:
            if getattr(self, key) != type(self).model_fields[key].default and getattr(self, switch) == off:
                raise ValueError(
                    f"levers.{key} does nothing without levers.{switch}; set levers.{switch} = {example} or remove it"
                )
        if self.window != type(self).model_fields["window"].default and not (self.horizon_start or self.difficulty_column):
            raise ValueError("levers.window does nothing without a curriculum; set levers.horizon_start or remove it")
        if self.mixed_chance and not 2 <= self.group_size_min < self.group_size_max:
            raise ValueError(
                f"levers.mixed_chance = {self.mixed_chance:g} needs 2 <= levers.group_size_min < levers.group_size_max, "
                f"not {self.group_size_min} and {self.group_size_max}; 4 and 16 work"
            )
        if self.mixed_chance and self.group_size_end:
            raise ValueError(
                "levers.mixed_chance and levers.group_size_end both set the size of groups; remove one of them"
            )
        if self.group_size_end == 1 or self.keep_of_group == 1:
            key = "group_size_end" if self.group_size_end == 1 else "keep_of_group"
            raise ValueError(
                f"levers.{key} = 1: a group needs at least 2 members to be compared; use 2 or more, or 0 for off"
            )
        return self


_IDLE = (
    ("group_size_min", "mixed_chance", 0, "0.8"),
    ("group_size_max", "mixed_chance", 0, "0.8"),
    ("horizon_step", "horizon_start", 0, "4"),
    ("horizon_success", "horizon_start", 0, "4"),
    ("difficulty_levels", "difficulty_column", "", '"level"'),
    ("difficulty_success", "difficulty_column", "", '"level"'),
)
"""(setting, the switch without which it does nothing, the switch's off, a value that works)."""


def largest_group(recipe: Recipe) -> int:
    """Most members that a training group of this recipe can have."""
    levers = recipe.levers
    return max(recipe.rollout.group_size, levers.group_size_end, levers.group_size_max)


def check_levers(recipe: Recipe) -> None:
    """Refuses levers that the rest of the recipe leaves without effect or contradicts. Raises ValueError."""
    for check in (_check_groups, _check_replay, _check_curricula, _check_tokens):
        check(recipe)


def _check_groups(recipe: Recipe) -> None:
    levers, size = recipe.levers, recipe.rollout.group_size
    for key in ("refills", "mixed_chance"):
        if (value := getattr(levers, key)) and (why := recipe.credit.uncompared):
            raise ValueError(
                f"levers.{key} = {value:g} is for groups whose members must differ, but with {why} nothing is compared and "
                'every group has a signal; remove it, or set credit.rule = "episode" and credit.baseline = "loo"'
            )
    if levers.group_size_end == size:
        raise ValueError(
            f"levers.group_size_end = {size} is rollout.group_size: the size never changes; remove it or use another number"
        )
    if levers.mixed_chance and not levers.group_size_min <= size <= levers.group_size_max:
        raise ValueError(
            f"rollout.group_size = {size} is what tasks begin with and must lie between levers.group_size_min = "
            f"{levers.group_size_min} and levers.group_size_max = {levers.group_size_max}"
        )
    if levers.keep_of_group >= largest_group(recipe):
        raise ValueError(
            f"levers.keep_of_group = {levers.keep_of_group} keeps all of a group of {largest_group(recipe)}; use at most "
            f"{largest_group(recipe) - 1}, or raise rollout.group_size"
        )
    if recipe.credit.rule == "branch":
        for key in ("keep_of_group", "repair_groups", "skip_void_turns"):
            if getattr(levers, key):
                raise ValueError(
                    f'levers.{key} cannot go with credit.rule = "branch": an episode that is left out may be the trunk of '
                    "others; remove one of them"
                )
    if levers.skip_void_turns and not recipe.env.name:
        raise ValueError(
            "levers.skip_void_turns does nothing while env.name is empty: a single answer has no turn that calls nothing; "
            'remove it, or name an environment, for example env.name = "calc"'
        )


def _check_replay(recipe: Recipe) -> None:
    if not recipe.levers.success_replay:
        return
    others = (
        ("credit.rule", recipe.credit.rule, ("episode", "discounted"), "an old episode's turns have no siblings here"),
        ("credit.scale", recipe.credit.scale, ("none",), "an old success is no draw from which a std could be taken"),
        ("kl.place", recipe.kl.place, ("loss",), "the KL of an old sample is not that of the policy"),
    )
    for key, value, allowed, why in others:
        if value not in allowed:
            raise ValueError(
                f'levers.success_replay cannot go with {key} = "{value}": {why}; set {key} = "{allowed[0]}" or remove it'
            )
    if recipe.reward.combine == "gdpo":
        raise ValueError(
            'levers.success_replay cannot go with reward.combine = "gdpo": the parts of an old success are no draws from '
            'which a std could be taken; set reward.combine = "sum" or remove it'
        )


def _check_curricula(recipe: Recipe) -> None:
    levers = recipe.levers
    if levers.horizon_start and not recipe.env.name:
        raise ValueError(
            f"levers.horizon_start = {levers.horizon_start} does nothing while env.name is empty: single answers have one "
            'turn; remove it, or name an environment, for example env.name = "maze"'
        )
    if levers.horizon_start and levers.horizon_start >= recipe.env.max_turns:
        raise ValueError(
            f"levers.horizon_start = {levers.horizon_start} leaves no room to rise to env.max_turns = "
            f"{recipe.env.max_turns}; use at most {recipe.env.max_turns - 1}, or raise env.max_turns"
        )
    if levers.difficulty_column and recipe.tasks.order == "as_given":
        raise ValueError(
            f'levers.difficulty_column = "{levers.difficulty_column}" and tasks.order = "as_given" both say what comes '
            'first; set tasks.order = "shuffled" or remove the column'
        )


def _check_tokens(recipe: Recipe) -> None:
    """Levers of [loss] that compare the policy with the one that sampled need a second update to do anything."""
    loss, update = recipe.loss, recipe.update
    if update.num_iterations * update.minibatches == 1:
        for key in ("negative_mask", "kl_cov_share"):
            if getattr(loss, key):
                raise ValueError(
                    f"loss.{key} = {getattr(loss, key):g} does nothing with one update per batch, in which the policy is "
                    "still the one that sampled; set update.num_iterations = 2 or update.minibatches = 2, or remove it"
                )

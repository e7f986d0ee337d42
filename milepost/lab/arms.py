"""The laboratory's arms: a rule of credit, at a learning rate, in a world at a horizon, from a seed.

All arms of a seed share its tasks, their order and its warm start, and end when the same number of tokens has been sampled
for training. What differs is [credit], and what the rule is nothing without: `turn` is paid by potential, `branch` plays
half as many episodes from the start, since each gets continuations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.lab.panels import CORRIDOR, HORIZONS, LAB_WORLDS, MAZE, NUM_ROWS, NUM_TEST, REPORTED, TUNING
from milepost.recipe import Recipe, make_recipe
from milepost.stages.trials import Trial, read_seeds
from milepost.types import RecipeError

BASE = "episode"
"""The rule that the others are compared with."""
RULES = ("episode", "discounted", "turn", "anchor", "branch", "value", "critic")
"""`critic`: `value` with a second model of equal size, as PPO has it."""
SHORT_ONLY = {"critic": 10}
"""Compared up to this horizon unless asked for by name: the second model is trained on every token, as the policy is."""
POLICY = {"size": "tiny", "layers": 3, "width": 64, "heads": 4}
"""0.16 M weights."""
PROMPTS, GROUP = 8, 8
RATES = {CORRIDOR: (3e-4, 1e-3, 3e-3), MAZE: (1e-4, 3e-4, 1e-3)}
"""Learning rates that are tried for every rule; in mazes 3e-3 destroyed what warm starts had learned."""
STEPS = {10: 30, 30: 48, 100: 48}
TOKENS_PER_TURN = 2
"""One for the action, one that ends it."""
TUNED_UP_TO = 30
"""Longer horizons take the rates that were chosen at this one: their runs are too long to choose on."""
MIN_SEEDS = 6
"""Fewer cannot show anything (pairs.py): they describe."""


@dataclass(frozen=True)
class Plan:
    """What is to be made. Everything in it is part of the results' identity."""

    out: Path
    worlds: tuple[str, ...] = tuple(LAB_WORLDS)
    horizons: tuple[int, ...] = HORIZONS
    rules: tuple[str, ...] | None = None
    """At every horizon; None: all that are compared there."""
    seeds: Mapping[int, tuple[int, ...]] | None = None
    """Horizon → reported seeds; None: ten, from horizon 100 on five."""
    tuning: tuple[int, ...] = TUNING[:2]
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: RATES)
    steps: Mapping[int, int] = field(default_factory=lambda: STEPS)
    """The budget by horizon: as many tokens as so many steps take whose episodes use it up."""
    sft_steps: int = 300
    test: int = NUM_TEST
    samples: int = 2

    def seeds_of(self, horizon: int) -> tuple[int, ...]:
        if self.seeds is not None:
            return self.seeds[horizon]
        return REPORTED if horizon < 100 else REPORTED[:5]

    def rules_of(self, horizon: int) -> tuple[str, ...]:
        if self.rules is not None:
            return self.rules
        return tuple(rule for rule in RULES if horizon <= SHORT_ONLY.get(rule, horizon))

    def value_warmup(self, horizon: int) -> int:
        """Steps in which rules with values only learn them: one of fifteen, so that nearly all of the budget is theirs."""
        return max(1, self.steps[horizon] // 15)

    def budget(self, horizon: int) -> int:
        """Tokens sampled for training in each run."""
        return self.steps[horizon] * PROMPTS * GROUP * TOKENS_PER_TURN * horizon

    @property
    def cells(self) -> list[tuple[str, int]]:
        """World and horizon, short ones first."""
        return [(world, horizon) for horizon in sorted(self.horizons) for world in self.worlds]


SMALL: dict[str, Any] = {
    "horizons": (10,), "seeds": {10: (0, 1)}, "tuning": TUNING[:1], "rates": {CORRIDOR: (1e-3, 3e-3), MAZE: (3e-4, 1e-3)},
    "steps": dict.fromkeys(HORIZONS, 4), "sft_steps": 120, "test": 32, "samples": 1,
}  # fmt: skip
"""What the nightly tests make: every rule in both worlds, too little of it to show anything."""


def plan_of(
    out: str | Path, *, small: bool = False, horizons: str = "", rules: str = "", seeds: str = "", worlds: str = ""
) -> Plan:
    """The plan that the command's words ask for. Raises RecipeError."""
    given: dict[str, Any] = dict(SMALL) if small else {}
    if horizons:
        given["horizons"] = tuple(sorted(int(h) for h in _of(horizons, list(map(str, HORIZONS)), "--horizons")))
    if rules:
        given["rules"] = _of(rules, list(RULES), "--rules")
        if BASE not in given["rules"]:
            given["rules"] = (BASE, *given["rules"])
    if worlds:
        given["worlds"] = _of(worlds, list(LAB_WORLDS), "--worlds")
    if seeds or (small and horizons):
        numbers = tuple(read_seeds(seeds)) if seeds else SMALL["seeds"][10]
        if strange := [seed for seed in numbers if seed not in REPORTED]:
            raise RecipeError(f"--seeds {seeds}: seed {strange[0]} has no pinned panel; there are 0 to {REPORTED[-1]}")
        given["seeds"] = dict.fromkeys(given.get("horizons", HORIZONS), numbers)
    return Plan(Path(out), **given)


def _of(text: str, known: list[str], flag: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if strange := [name for name in names if name not in known]:
        raise RecipeError(f"{flag} {text}: there is no {strange[0]!r}; there are {', '.join(known)}")
    if not names:
        raise RecipeError(f"{flag} is empty; name some of {', '.join(known)}")
    return names


# ---- recipes ---------------------------------------------------------------------------------------------------------


def settings_of(rule: str, plan: Plan, horizon: int) -> dict[str, Any]:
    """What of the recipe is the rule's own."""
    third = max(1, horizon // 3)
    valued = {"rule": "value", "lam": 0.95, "value_warmup": plan.value_warmup(horizon)}
    own: dict[str, dict[str, Any]] = {
        "episode": {},
        "discounted": {"credit": {"rule": "discounted", "gamma": 1 - 1 / horizon}},  # 1/e is left at the first turn
        "turn": {"credit": {"rule": "turn"}, "reward": {"potential": 1.0}},
        "anchor": {"credit": {"rule": "anchor"}},
        # Placed without knowing which turn decides; with two continuations from each of two points a trunk costs three.
        "branch": {"credit": {"rule": "branch", "branches": {"every": third} if third != 4 else {}},
                   "rollout": {"group_size": GROUP // 2}},
        "value": {"credit": valued},
        "critic": {"credit": {**valued, "critic": "model"}},
    }  # fmt: skip
    return own[rule]


def recipe_of(plan: Plan, world: str, horizon: int, rule: str, rate: float, seed: int, name: str = "") -> Recipe:
    """The recipe of one run; the run of the seed's warm start alone has no steps of GRPO."""
    played = LAB_WORLDS[world]
    own = settings_of(rule, plan, horizon)
    return make_recipe({
        "name": name or f"{rule}-lr{rate:g}-s{seed}", "seed": seed, "out": str(plan.out / f"{world}-{horizon}"),
        "model": {"precision": "float32", "device": "cpu",
                  "new": {**POLICY, "texts": played.texts, "tokens": "pairs", "seed": seed}},
        "tasks": {"format": "text", "order": "as_given", "validation": 0, "test": plan.test,
                  "sources": [{"kind": "environment", "name": world, "size": NUM_ROWS,
                               "params": {"horizon": horizon, "panel": seed}}]},
        "env": {"name": f"milepost.lab.panels:{world.upper()}_SPEC", "max_turns": horizon},
        "reward": own.get("reward", {}),
        "rollout": {"prompts_per_step": PROMPTS, "group_size": GROUP, "max_new_tokens": TOKENS_PER_TURN,
                    **own.get("rollout", {})},
        "credit": own.get("credit", {}),
        "optimizer": {"lr": rate, "warmup_steps": 3},
        "sft": {"demonstrations": played.slips, "steps": plan.sft_steps, "batch_size": 32, "lr": 3e-3,
                "lessons": [_lesson(plan, horizon)] if world == CORRIDOR else []},
        "grpo": {} if name else {"steps": 64 * plan.steps[horizon], "tokens": plan.budget(horizon)},
        "eval": {"test_samples": plan.samples},
        "save": {} if name else {"every": 10},
    })  # fmt: skip


def _lesson(plan: Plan, horizon: int) -> dict[str, Any]:
    """Of a corridor of a hundred doors one action in a hundred shows what the sign means: that is shown by itself first."""
    return {"steps": plan.sft_steps // 3, "size": NUM_ROWS, "batch_size": 64,
            "params": {"horizon": horizon, "panel": REPORTED[0], "lesson": True}}  # fmt: skip


@dataclass(frozen=True)
class LabTrial:
    """One run of the laboratory, and the one whose warm start it goes on from."""

    world: str
    horizon: int
    rule: str
    rate: float
    run: Trial
    start: Trial

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def result(self) -> Path:
        """The file that says that it is finished, and what it showed."""
        return self.run.path.with_name(f"{self.run.path.name}.json")

    def __str__(self) -> str:
        return f"{self.world} {self.horizon}, {self.rule}, rate {self.rate:g}, seed {self.seed}"


def start_of(plan: Plan, world: str, horizon: int, seed: int) -> Trial:
    """The run that makes the warm start of a seed, and tests it and the policy that it began with."""
    return Trial("start", seed, recipe_of(plan, world, horizon, BASE, 1e-3, seed, name=f"start-s{seed}"))


def trial_of(plan: Plan, world: str, horizon: int, rule: str, rate: float, seed: int) -> LabTrial:
    recipe = recipe_of(plan, world, horizon, rule, rate, seed)
    return LabTrial(world, horizon, rule, rate, Trial(rule, seed, recipe), start_of(plan, world, horizon, seed))


def tuned_at(horizon: int) -> int:
    """The horizon whose rates a horizon takes: its own, or the longest that is chosen at."""
    return horizon if horizon <= TUNED_UP_TO else max(h for h in HORIZONS if h <= TUNED_UP_TO)


def tuning_trials(plan: Plan, world: str, horizon: int) -> Iterator[LabTrial]:
    """Every rule at every rate, over the seeds for choosing."""
    for rule in plan.rules_of(horizon):
        for rate in plan.rates[world]:
            for seed in plan.tuning:
                yield trial_of(plan, world, horizon, rule, rate, seed)


def reported_trials(plan: Plan, world: str, horizon: int, rates: Mapping[str, float]) -> Iterator[LabTrial]:
    """Every seed by every rule at its chosen rate: whoever is stopped has whole pairs."""
    for seed in plan.seeds_of(horizon):
        for rule in plan.rules_of(horizon):
            yield trial_of(plan, world, horizon, rule, rates[rule], seed)

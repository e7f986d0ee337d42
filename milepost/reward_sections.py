"""The settings of the reward: functions, costs, judges of turns, length, and how their parts make one number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from milepost.sections import Section, as_toml, setting
from milepost.unsafe_rewards import SAFE_LENGTHS, refuse_unsafe_keys, refuse_unsafe_length

BOUNDED = ("format", "repetition")
"""Verifiers of how something is said: a gate, or a bonus or malus of at most MAX_BONUS of success, all of them together."""
MAX_BONUS = 0.1


class RewardFunctionSection(Section):
    name: str = setting(
        ...,
        "exact | numeric | regex | math | countdown | code | tool_calls | reasoning_gym | format | repetition | "
        "reward_model | judge | by_row (each row names one of these in reward_type or verifier; "
        "reasoning_gym if it has the columns family and entry), or module:function, or "
        "file.py:function",
    )
    weight: float = setting(
        1.0,
        "correctness 1, format 0.1; below 0, what format or repetition lacks of 1 costs that much",
        seeds="correctness 1, format .1",
    )
    params: dict[str, Any] = setting({}, "passed to the function; of by_row: one table per verifier")
    label: str = setting("", "name of the part in metrics; empty: the function's name")

    @model_validator(mode="before")
    @classmethod
    def _is_safe(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            refuse_unsafe_keys(values, "reward.functions")
            if isinstance(values.get("params"), Mapping) and ":" not in str(values.get("name")):
                refuse_unsafe_keys(values["params"], f"reward.functions {values.get('name')}: params")
        return values

    @property
    def resolved_label(self) -> str:
        return self.label or self.name.rpartition(":")[2]


class CostSection(Section):
    name: str = setting(..., "turns, calls, invalid, tokens, seconds, or a cost that the environment declares")
    free: float = setting(0.0, "units that cost nothing", ge=0)
    weight: float = setting(0.01, "what each further unit costs")
    cap: float = setting(0.1, "the most that all units together cost")

    @model_validator(mode="after")
    def _check(self) -> CostSection:
        if self.weight <= 0:
            raise ValueError(
                f"reward.costs {self.name}: weight = {self.weight:g} would pay for every unit: at −0.1, ten calls earn "
                "1.0, as much as success; use a weight above 0 such as 0.01"
            )
        if self.cap <= 0:
            raise ValueError(
                f"reward.costs {self.name}: cap = {self.cap:g} is no cap, and a cost without one outweighs success: at "
                "0.01, 150 units cost 1.5; use a cap above 0 such as 0.1"
            )
        return self


class TurnScorerSection(Section):
    name: str = setting(..., "module:function or file.py:function; it sees one turn and says 0 to 1, or None: cannot tell")
    weight: float = setting(0.05, "what a turn that is scored 1 earns; 0: only measured", ge=0)
    cap: float = setting(0.2, "the most that all turns of an episode earn by it", gt=0)
    params: dict[str, Any] = setting({}, "passed to the function")
    label: str = setting("", "name of the part in metrics; empty: the function's name")

    @model_validator(mode="after")
    def _check(self) -> TurnScorerSection:
        if not self.weight and self.cap != type(self).model_fields["cap"].default:
            raise ValueError(
                f"reward.turn_scorers {self.resolved_label}: cap = {self.cap:g} does nothing while weight = 0, which pays "
                "nothing; remove it, or use a weight above 0 such as 0.05"
            )
        return self

    @property
    def resolved_label(self) -> str:
        return self.label or self.name.rpartition(":")[2]


class LengthSection(Section):
    form: Literal["none", "kimi", "gr3", "l1_max", "overlong"] = setting(
        "none",
        "of the sampled tokens of an episode; only forms that never pay a wrong answer",
        symptom="output longer and worse",
    )
    weight: float = setting(0.0, "0: by form: kimi 0.1, gr3 0.1, l1_max 0.0003 per token, overlong 0.5", ge=0)
    target: int = setting(0, "l1_max: the length that pays half; overlong: where the whole penalty is reached", ge=0)
    buffer: int = setting(0, "overlong: tokens before target over which the penalty ramps up", ge=0)
    floor: float = setting(0.1, "l1_max: share of the outcome that the longest success keeps", ge=0, lt=1)
    max_mean: int = setting(0, "0: off; tokens above which a step's mean length raises the weight for the next one", ge=0)
    max_weight: float = setting(0.0, "max_mean: the weight rises no further", ge=0)
    rate: float = setting(0.1, "max_mean: how much the weight rises or falls per step, as a share", gt=0, le=1)

    @field_validator("form", mode="before")
    @classmethod
    def _is_safe(cls, form: Any) -> Any:
        refuse_unsafe_length(form)
        return form

    @model_validator(mode="after")
    def _check(self) -> LengthSection:
        uses = {"weight": SAFE_LENGTHS, "target": ("l1_max", "overlong"), "buffer": ("overlong",), "floor": ("l1_max",),
                "max_mean": SAFE_LENGTHS, "max_weight": SAFE_LENGTHS, "rate": SAFE_LENGTHS}  # fmt: skip
        for key, forms in uses.items():
            idle = self.form not in forms or (key in ("max_weight", "rate") and not self.max_mean)
            if idle and getattr(self, key) != type(self).model_fields[key].default:
                works = "reward.length.max_mean" if self.form in forms else f'reward.length.form = "{forms[0]}"'
                raise ValueError(
                    f"reward.length.{key} = {getattr(self, key)} does nothing while reward.length.form = "
                    f'"{self.form}"{" and max_mean = 0" if self.form in forms else ""}; remove it, or set {works}'
                )
        if self.form in ("l1_max", "overlong") and not self.target:
            raise ValueError(
                f'reward.length.form = "{self.form}" needs reward.length.target, in sampled tokens of an episode'
            )
        if self.form == "overlong" and not 0 < self.buffer <= self.target:
            raise ValueError(
                f"reward.length.buffer = {self.buffer} must lie between 1 and reward.length.target = {self.target}; a "
                "fifth of it works"
            )
        if self.max_mean and self.max_weight <= self.resolved_weight:
            raise ValueError(
                f"reward.length.max_weight = {self.max_weight:g} must exceed the weight, {self.resolved_weight:g}, that "
                f"max_mean is to raise; {2 * self.resolved_weight:g} works"
            )
        return self

    @property
    def resolved_weight(self) -> float:
        return self.weight or {"none": 0.0, "kimi": 0.1, "gr3": 0.1, "l1_max": 0.0003, "overlong": 0.5}[self.form]


class RewardSection(Section):
    functions: list[RewardFunctionSection] = setting([], "summed by weight", symptom="success flat while reward rises")
    success: str = setting("", "label of the part that is success from success_at on; empty: the first that judges content")
    success_at: float = setting(1.0, "a shaped 0.1 is not success")
    extract: str = setting("", "regex whose last match's first group is the answer; empty: the whole completion")
    timeout_seconds: float = setting(10.0, "per completion; slower is unscorable, not zero", gt=0)
    canary_good: str = setting("", "a completion template that must score as success ({answer} is filled in)")
    several_answers: bool = setting(
        False,
        "success is judged by a function of your own, and answers beside the gold are right too: the audit does not warn "
        "where it pays changed golds",
    )
    outcome: float = setting(1.0, "environments: what success is worth", gt=0)
    milestones: dict[str, float] = setting(
        {}, "environments: name = weight; progress that the environment sees, paid once each"
    )
    milestone_cap: float = setting(0.5, "the most that all milestones together pay", gt=0)
    milestone_form: Literal["bonus", "potential"] = setting(
        "bonus",
        'added to the reward, or γΦ′ − Φ per turn, which leaves the optimum as it is and needs credit.rule = "turn"',
    )
    potential: float = setting(
        0.0,
        "environments: weight of the environment's own potential Φ, 0 to 1; each turn also gets weight · (γΦ′ − Φ), which "
        'leaves the optimum as it is and needs credit.rule = "turn"',
        ge=0,
    )
    costs: list[CostSection] = setting(
        [], 'environments: what an episode uses up, such as {name = "calls", free = 4, weight = 0.01, cap = 0.1}'
    )
    turn_scorers: list[TurnScorerSection] = setting(
        [], 'environments: what judges each turn, such as {name = "my_judge.py:judge", weight = 0.05, cap = 0.2}'
    )
    combine: Literal["auto", "sum", "gate", "lexicographic", "gdpo"] = setting(
        "auto",
        "auto: gate beside a format function, else sum. sum: by weight. gate: a sum that pays nothing unless every gating "
        "part is 1. lexicographic: the first function decides, the next among equals. gdpo: each part z-scored within its "
        "group, then weighted, then scaled over the batch",
    )
    gates: list[str] = setting([], "gate: labels of the gating parts; empty: those called format")
    audit: Literal["refuse", "warn", "off"] = setting(
        "refuse",
        "answers known to be bad are tried before the model is loaded; one that is accepted, or a failure that could "
        "outscore a success, stops the run, or is only told",
    )
    length: LengthSection = Field(default_factory=LengthSection)

    @model_validator(mode="before")
    @classmethod
    def _is_safe(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            refuse_unsafe_keys(values)
        return values

    @model_validator(mode="after")
    def _check(self) -> RewardSection:
        for name, weight in self.milestones.items():
            if not weight > 0:
                raise ValueError(
                    f"reward.milestones.{name} = {weight:g}: a milestone is progress and pays more than 0; what should "
                    "cost something belongs under [[reward.costs]]"
                )
        for key in ("milestone_cap", "milestone_form"):
            if not self.milestones and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"reward.{key} = {as_toml(getattr(self, key))} does nothing without reward.milestones; "
                                 "remove it, or name milestones of the environment")  # fmt: skip
        if twice := [name for name, count in Counter(cost.name for cost in self.costs).items() if count > 1]:
            raise ValueError(f"reward.costs: two of them are called {twice[0]!r}; one each")
        labels = Counter(scorer.resolved_label for scorer in self.turn_scorers)
        if twice := [label for label, count in labels.items() if count > 1]:
            raise ValueError(f"reward.turn_scorers: two of them are called {twice[0]!r}; give one of them another `label`")
        self._check_combine()
        self._check_several()
        return self

    @property
    def resolved_success(self) -> str:
        """The label of the function that success is measured by: the first, but no judge of form beside one of content."""
        content = [f for f in self.functions if f.name not in BOUNDED] or self.functions
        return self.success or (content[0].resolved_label if content else "")

    @property
    def resolved_combine(self) -> str:
        return self.combine if self.combine != "auto" else "gate" if self.gates or self._formats() else "sum"

    @property
    def resolved_gates(self) -> tuple[str, ...]:
        return (tuple(self.gates) or self._formats()) if self.resolved_combine == "gate" else ()

    def _formats(self) -> tuple[str, ...]:
        """Functions that judge the form alone, beside one that judges the content."""
        labels = tuple(f.resolved_label for f in self.functions if f.name == "format")
        return tuple(label for label in labels if label != self.resolved_success)

    def _check_several(self) -> None:
        judge = next((f.name for f in self.functions if f.resolved_label == self.resolved_success), "")
        if self.several_answers and judge and ":" not in judge:
            raise ValueError(
                f"reward.several_answers = true does nothing while success is measured by {judge}, whose rules say what is "
                "right; remove it (it is for functions of your own)"
            )

    def _check_combine(self) -> None:
        labels = [f.resolved_label for f in self.functions]
        if self.gates and self.combine not in ("auto", "gate"):
            raise ValueError(f'reward.gates does nothing while reward.combine = "{self.combine}"; remove it, or set '
                             'reward.combine = "gate"')  # fmt: skip
        if unknown := [gate for gate in self.gates if gate not in labels]:
            raise ValueError(
                f"reward.gates names {unknown[0]!r}, which is no label; there are {', '.join(labels) or 'none'}"
            )
        if self.combine == "gate" and not self.resolved_gates:
            raise ValueError('reward.combine = "gate" needs a gating part: set reward.gates = ["LABEL"], or add a format '
                             "function beside the one that judges the content")  # fmt: skip
        if self.combine == "lexicographic":
            self._check_lexicographic(labels)
        self._check_bonus()

    def _check_lexicographic(self, labels: list[str]) -> None:
        if not labels:
            raise ValueError('reward.combine = "lexicographic" orders reward.functions, and there are none; remove it')
        if self.resolved_success != labels[0]:
            raise ValueError(
                f'reward.combine = "lexicographic" lets {labels[0]} decide before {self.resolved_success}, by which '
                f"success is measured: a failure would outscore a success; put {self.resolved_success} first"
            )
        weighted = [f for f in self.functions if f.weight not in (0, 1)]
        if weighted:
            raise ValueError(
                f"reward.functions {weighted[0].resolved_label}: weight = {weighted[0].weight:g} does nothing while "
                'reward.combine = "lexicographic", where the order of functions decides; remove it (0 only measures)'
            )

    def _check_bonus(self) -> None:
        """Form and repetition must never outweigh what is right."""
        if self.resolved_combine == "lexicographic":
            return
        gates = self.resolved_gates
        worth = next((f.weight for f in self.functions if f.resolved_label == self.resolved_success), 1.0)
        bonus = 0.0
        for f in self.functions:
            free = f.resolved_label in gates and f.weight == 1  # a gate pays nothing by itself
            if f.name not in BOUNDED or f.resolved_label == self.resolved_success or free:
                continue
            bonus += abs(f.weight)
            if not bonus <= MAX_BONUS * worth + 1e-12:
                instead = ', or reward.combine = "gate", which pays nothing outside the form' if f.name == "format" else ""
                raise ValueError(
                    f"reward.functions {f.resolved_label}: weight = {f.weight:g} would let form count for {bonus:g} beside "
                    f"{worth:g} for being right; bonus and malus of all form may come to {MAX_BONUS * worth:g} together: "
                    f"set weight = {math.copysign(MAX_BONUS * worth, f.weight):g}{instead}"
                )
            if f.weight < 0 and self.combine == "gdpo":
                raise ValueError(
                    f'reward.functions {f.resolved_label}: weight = {f.weight:g} is a malus, and reward.combine = "gdpo" '
                    f"centres every part, so that it would be a bonus; set weight = {-f.weight:g}"
                )

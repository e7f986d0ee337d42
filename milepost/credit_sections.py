"""What each token of an episode is told: the settings of `[credit]` and `[credit.branches]`. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from milepost.sections import Section, setting

Rule = Literal["episode", "discounted", "turn", "anchor", "branch", "value", "distill"]
# Settings that only some rules read, and which: set beside another rule they are refused.
READ_BY = {
    "gamma": ("discounted", "turn", "anchor", "value"),
    "turns": ("turn",),
    "answer": ("turn",),
    "gain_weight": ("turn",),
    "anchor": ("anchor",),
    "anchor_weight": ("anchor",),
    "history": ("anchor",),
    "history_weights": ("anchor",),
    "shrinkage": ("anchor",),
    "lam": ("value",),
    "lam_alpha": ("value",),
    "lam_end": ("value",),
    "critic": ("value",),
    "value_lr": ("value",),
    "value_warmup": ("value",),
    "teacher": ("distill",),
    "outcome_weight": ("distill",),
    "branches": ("branch",),
}


class BranchSection(Section):
    """Continuations from saved states of an episode (`credit.rule = "branch"`)."""

    form: Literal["differences", "vine", "tree", "treerl"] = setting(
        "differences",
        "differences: the trunk is told how the mean of the continuations moved, continuations how they compare with each "
        "other; vine: the same, and continuations are not trained (VinePPO); tree: compared with all of the task, and with "
        "those of the same tree (Tree-GRPO); treerl: values of branch points against parent and root",
    )
    sqrt: bool = setting(
        False, "form = treerl: values divided by the root of the number of leaves below, as it can be set to"
    )
    num: int = setting(2, "continuations from each branch point; each is played to its end and costs tokens", ge=1)
    at: Literal["every", "uncertain", "milestones"] = setting(
        "every",
        "every: each `every` turns; uncertain: where the action surprised its policy; milestones: after one was reached",
    )
    every: int = setting(4, "at = every: turns between branch points", ge=1)
    most: int = setting(2, "branch points of one episode at most", ge=1)
    trunks: int = setting(0, "members of each group that branch; 0: all", ge=0)
    uncertainty: float = setting(
        0.5, "at = uncertain: w of U − w·ΔH ≤ p, with U from [0, 1] and ΔH how many nats more than at the first turn", ge=0
    )
    chance: float = setting(0.5, "at = uncertain: p of the same", ge=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> BranchSection:
        if self.sqrt and self.form != "treerl":
            raise ValueError(f'credit.branches.sqrt does nothing while credit.branches.form = "{self.form}"; remove it')
        if self.at != "every" and self.every != 4:
            raise ValueError(
                f'credit.branches.every = {self.every} does nothing while credit.branches.at = "{self.at}"; remove it, or '
                'set at = "every"'
            )
        if self.at == "uncertain" and not (self.uncertainty or self.chance):
            raise ValueError(
                "credit.branches.uncertainty = 0 and chance = 0 never branch; set chance above 0, its default 0.5 works"
            )
        if self.at != "uncertain" and (self.uncertainty, self.chance) != (0.5, 0.5):
            raise ValueError(
                f'credit.branches.uncertainty and chance do nothing while credit.branches.at = "{self.at}"; remove them, '
                'or set at = "uncertain"'
            )
        return self


class CreditSection(Section):
    baseline: Literal["auto", "loo", "mean", "none"] = setting(
        "auto", "loo is unbiased; auto: loo unscaled, mean scaled or with shrinkage"
    )
    scale: Literal["none", "group", "batch", "source"] = setting(
        "none",
        "group std can flip the gradient's sign in stochastic groups, and inflates small bonuses; batch: one std for all "
        "rewards of the step; source: one for each source of tasks, where they pay on different scales",
    )
    std: Literal["population", "sample"] = setting("population", "differ by √(G/(G−1)): 1.07 at 8, 1.41 at 2")
    delta: float = setting(1e-6, "added to the std", ge=0)
    rule: Rule = setting(
        "episode",
        "episode: all tokens share the advantage; discounted: γ^(turns left) of it; turn: returns of the turns' rewards; "
        "anchor: besides, steps from one state are compared; branch: continuations from saved states; value: a value head "
        "and GAE; distill: a teacher's log-probs",
    )
    gamma: float = setting(
        1.0, "discount per turn; .99 leaves .904 after 10 turns and .366 after 100. Not a length normalisation", gt=0, le=1
    )
    turns: Literal["returns", "first", "process", "information"] = setting(
        "returns",
        "turn: returns minus the group's baseline; first: the first turn's reward on top of the episode's advantage, for "
        "its own tokens (MT-GRPO); process: rewards normalised over all steps of the group (DeepSeekMath), which favours "
        "long episodes: to compare with, only; information: returns, and what each turn added to the policy's own "
        "probability of the right answer (IGPO)",
    )
    answer: str = setting(
        "", "turns = information: what the right answer says, such as 'answer({gold})', from a task's columns"
    )
    gain_weight: float = setting(0.25, "turns = information: reward of going from probability 0 to 1", gt=0)
    anchor: Literal["returns", "graph"] = setting(
        "returns",
        "returns: a step's return against those of the other episodes from the same state (GiGPO); graph: values spread "
        "over the graph of states that the group saw (RewardFlow)",
    )
    anchor_weight: float = setting(1.0, "ω: weight of the steps' advantage beside the episode's", gt=0)
    history: int = setting(0, "K: states before the step that must be the same as well, for 0 … K of them (HGPO)", ge=0)
    history_weights: Literal["k+1", "k+2"] = setting(
        "k+1", "weight of the groups that share k earlier states: as its authors have it, or as verl-agent does"
    )
    shrinkage: float = setting(
        0.0,
        "0: off; c: steps are told the mean of those who did the same there, times n/(n + c) for n episodes (ECPO)",
        ge=0,
    )
    lam: float = setting(1.0, "value: λ of GAE over turns", ge=0, le=1)
    lam_alpha: float = setting(0.0, "value: 0: off; λ = 1 − 1/(α·turns) instead, at least 0 (VAPO)", ge=0)
    lam_end: float = setting(
        0.0, "value: 0: off; q: λ = q^(1/(turns − 1)) instead, so that q is left at the first turn", ge=0, lt=1
    )
    critic: Literal["head", "model"] = setting(
        "head", "value: read from the policy's hidden state, or from a second model of equal size"
    )
    value_lr: float = setting(0.0, "value: 0: 1e-3 for a head, five times the policy's for a model", ge=0)
    value_warmup: int = setting(
        5, "value: steps at first in which only the value learns, and the policy follows episode credit", ge=0
    )
    teacher: str = setting("", "distill: model whose log-probs are the credit; it reads the same tokens")
    outcome_weight: float = setting(0.0, "distill: weight of the episode's advantage beside it", ge=0)
    branches: BranchSection = setting(BranchSection(), "where branch continues from")

    @model_validator(mode="after")
    def _check(self) -> CreditSection:
        for name, rules in READ_BY.items():
            if self.rule not in rules and getattr(self, name) != type(self).model_fields[name].default:
                value = getattr(self, name)
                told = f"credit.{name}" + (
                    "" if name == "branches" else f" = {value:g}" if type(value) is float else f" = {value}"
                )
                raise ValueError(
                    f'{told} does nothing while credit.rule = "{self.rule}"; remove it, or set credit.rule = "{rules[0]}"'
                )
        for check in (_check_turns, _check_anchor, _check_statistics):
            check(self)
        if self.gamma == 1 and self.rule == "discounted":
            raise ValueError(
                'credit.rule = "discounted" with credit.gamma = 1 is the rule "episode"; set credit.gamma below 1, say 0.99'
            )
        if self.rule == "distill" and not self.teacher:
            raise ValueError('credit.rule = "distill" needs credit.teacher, the name or folder of a model')
        if sum((self.lam != 1, self.lam_alpha > 0, self.lam_end > 0)) > 1:
            raise ValueError("credit.lam, lam_alpha and lam_end are three ways to set one λ; keep one of them")
        return self

    @property
    def by_turn(self) -> bool:
        """Whether the rule asks what single turns earned."""
        return self.rule in ("turn", "anchor", "value") and self.anchor != "graph"

    @property
    def resolved_baseline(self) -> str:
        if self.baseline != "auto":
            return self.baseline
        return "loo" if self.scale == "none" and not self.shrinkage else "mean"

    @property
    def uncompared(self) -> str:
        """The setting by which a group is told something although its members do not differ; empty: there is none."""
        if self.rule in ("value", "distill"):
            return f'credit.rule = "{self.rule}"'
        if self.turns == "information":
            return 'credit.turns = "information"'
        return 'credit.baseline = "none"' if self.resolved_baseline == "none" else ""


def _check_turns(credit: CreditSection) -> None:
    if credit.turns == "information" and not credit.answer:
        raise ValueError(
            "credit.turns = \"information\" needs credit.answer, what the right answer says, such as 'answer({gold})'"
        )
    if credit.turns != "information" and (credit.answer or credit.gain_weight != 0.25):
        raise ValueError(
            'credit.answer and gain_weight do nothing while credit.turns is not "information"; remove them, or set that'
        )
    if credit.turns == "first" and credit.gamma != 1:
        raise ValueError(
            f'credit.gamma = {credit.gamma:g} does nothing while credit.turns = "first", which sums nothing over turns; '
            'remove it, or set credit.turns = "returns"'
        )


def _check_anchor(credit: CreditSection) -> None:
    if credit.anchor == "graph" and (credit.history or credit.shrinkage):
        raise ValueError('credit.history and credit.shrinkage belong to credit.anchor = "returns"; remove them')
    if credit.history_weights != "k+1" and not credit.history:
        raise ValueError(
            f'credit.history_weights = "{credit.history_weights}" does nothing while credit.history = 0, where all groups '
            "weigh the same; remove it, or set credit.history = 2"
        )
    if credit.shrinkage and credit.baseline == "loo":
        raise ValueError(
            f'credit.baseline = "loo" cannot go with credit.shrinkage = {credit.shrinkage:g}, which compares those who did '
            'the same, one\'s own episode among them, with the mean of all; set credit.baseline = "mean"'
        )


def _check_statistics(credit: CreditSection) -> None:
    """Refuses a baseline or a scale that the rule would not use, or use for a part of its sum only."""
    where, why, scales, baselines = _statistics(credit)
    if credit.scale not in scales:
        raise ValueError(f'{where} {why}; set credit.scale = "{scales[0]}" instead of "{credit.scale}"')
    if credit.baseline not in baselines:
        raise ValueError(f'{where} {why}; set credit.baseline = "{baselines[0]}" instead of "{credit.baseline}"')
    if credit.baseline == "loo" and credit.scale == "group":
        raise ValueError(
            'credit.baseline = "loo" with credit.scale = "group" divides by a std that can be zero; '
            'use baseline = "mean" with scale = "group", or scale = "none"'
        )


def _statistics(credit: CreditSection) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    """(settings, why, scales, baselines): those that the rule is defined with, the usual one first."""
    rule, form, every = f'credit.rule = "{credit.rule}"', credit.branches.form, ("auto", "loo", "mean", "none")
    if credit.rule == "turn" and credit.turns == "process":
        where = 'credit.turns = "process"'
        return where, "takes mean and std of all steps of the group", ("group",), ("auto", "mean")
    if credit.rule == "turn" and credit.turns != "first":
        return rule, "is defined without a std", ("none",), every
    if credit.rule == "anchor" and credit.anchor == "graph":
        return 'credit.anchor = "graph"', "adds values of states, in the units of the total, to A", ("none",), every
    if credit.rule == "anchor":
        return rule, "compares within groups and within states, and must divide both alike", ("none", "group"), every
    if credit.rule == "branch" and form == "tree":
        return 'credit.branches.form = "tree"', "compares within the task and within the tree", ("none", "group"), every
    if credit.rule == "branch":
        where, why = f'credit.branches.form = "{form}"', "is told in the units of the total"
        if form == "treerl":
            return where, f"{why}, less the mean of the other leaves", ("none",), ("auto", "loo")
        return where, why, ("none",), every
    if credit.rule == "value":
        return rule, "has the value as its baseline", ("none",), ("auto",)
    if credit.rule == "distill" and not credit.outcome_weight:
        return rule, "without credit.outcome_weight does not look at rewards", ("none",), ("auto",)
    return rule, "", ("none", "group", "batch", "source"), every

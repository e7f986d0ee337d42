"""Can a failure outscore a success? Proven from declared bounds through the resolved credit, then played. Torch-free.

    report = check_order(make_reward(recipe, env_spec), env_spec, recipe)
    report.ok, report.text()

Whatever an environment does, the parts of a reward stay within the bounds that the recipe declares: that is asserted on
every episode. The proof compares the best failure with the worst success that they allow; where it fails, these two are
the counter-example. Then the gold and the known-bad scripts are played, to see what each would earn.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from milepost.advantages import advantages, gdpo
from milepost.env import EnvSpec
from milepost.envs.find import find_env
from milepost.health.order_played import Earned, play_known, played_counter_examples, shown
from milepost.length_terms import length_bounds, length_term
from milepost.lever_sections import largest_group
from milepost.recipe import Recipe
from milepost.reward_checks import BUILT_IN, check_section, label_of
from milepost.reward_combine import Combination, combination, tenths
from milepost.reward_spec import RewardSpec, make_reward
from milepost.sections import OWN_BUDGETS, EnvSection
from milepost.sources import generated
from milepost.tasks import load_tasks
from milepost.types import Task
from milepost.verifiers.kinds import is_graded

AS_STRONG = 0.5
"""With a std per group, a failure may be pushed up by less than this share of what a success in its place would be."""
SLACK = 1e-9
_NEARLY = 1e-6
"""How near a graded failure may come to what counts as success, as a share."""
_MOST_VALUES = 12
"""Values of a part that are tried for the worst group."""


@dataclass(frozen=True)
class CounterExample:
    """Two episodes in the wrong order: `failure` ≥ `success` in the quantity that `where` names."""

    where: str
    failure: float
    success: float
    text: str


@dataclass(frozen=True)
class Extremes:
    """(lowest, highest) total of a success and of a failure, and the two that come nearest, in words."""

    success: tuple[float, float]
    failure: tuple[float, float]
    worst_success: str
    best_failure: str


@dataclass(frozen=True)
class OrderReport:
    """A reward is refused if there is a counter-example. All other entries are sentences."""

    proven: tuple[str, ...] = ()
    counter_examples: tuple[CounterExample, ...] = ()
    unproven: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    earned: tuple[Earned, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.counter_examples

    def text(self) -> str:
        verdict = (
            "no failure can outscore a success" if not self.unproven else "nothing speaks against it, but it is not proven"
        )
        lines = ["order: " + (verdict if self.ok else "REFUSED, a failure can outscore a success")]
        lines += [f"  proven    {text}" for text in self.proven]
        lines += [f"  refused   {example.text}" for example in self.counter_examples]
        lines += [f"  unproven  {text}" for text in self.unproven]
        lines += [f"  note      {text}" for text in self.notes]
        if self.earned:
            lines += ["", "what scripts would earn:", *(f"  {earned.line()}" for earned in shown(self.earned))]
        return "\n".join(lines)

    def json(self, *, verifier: Mapping[str, Any] | None = None) -> str:
        """`verifier`: the facts of the section about the verifier, which stand beside these."""
        told = {"section": "order", "ok": self.ok, **asdict(self)}
        return json.dumps(told | ({"verifier": verifier} if verifier else {}), ensure_ascii=False)


Entries = Iterator[str | CounterExample]


def check_recipe(recipe: Recipe, *, num_tasks: int = 2) -> OrderReport:
    """`check_order` on the recipe's own training tasks, or `check_functions` for single answers. Raises RecipeError."""
    if not recipe.env.name:
        return check_functions(recipe)
    env_spec = find_env(recipe.env.name, "env.name")
    spec = make_reward(recipe, env_spec)
    tasks = load_tasks(recipe.tasks, recipe.seed, generate=env_spec.generate).train
    return check_order(spec, env_spec, recipe, tasks[:num_tasks], limits=recipe.env)


def check_order(
    spec: RewardSpec, env_spec: EnvSpec, recipe: Recipe, tasks: Sequence[Task] = (), *, num_tasks: int = 2,
    limits: EnvSection | None = None,
) -> OrderReport:  # fmt: skip
    """The proof, then the scripts played on `tasks` (by default the first `num_tasks` that the environment generates).

    `limits`: of an environment that another process can import by its name there, in which scripts are then played.
    """
    proof = prove(spec, env_spec, recipe)
    earned = play_known(spec, env_spec, recipe, tasks or _generated(env_spec, recipe, num_tasks), limits)
    found = tuple(CounterExample("played", *example) for example in played_counter_examples(env_spec, earned))
    return OrderReport(proof.proven, proof.counter_examples + found, proof.unproven, proof.notes, tuple(earned))


def prove(spec: RewardSpec, env_spec: EnvSpec, recipe: Recipe) -> OrderReport:
    """The proof alone, in well under a second."""
    return prove_order(spec, recipe, undone=_undone(spec, env_spec))


def prove_order(spec: RewardSpec, recipe: Recipe, *, undone: float = 0.0) -> OrderReport:
    """From bounds alone. `undone`: the most that milestones of kind state hold, and so can take back in later turns."""
    extremes = _extremes(spec)
    values: dict[str, Sequence[float]] = {name: (a, (a + b) / 2, b) for name, (a, b) in spec.bounds().items()}
    values |= {"milestones": _attainable(spec)} if spec.milestones else {}
    back = undone if spec.form == "bonus" else 0.0
    return _report(
        _totals(extremes),
        _scale(extremes, recipe),
        _rule(extremes, recipe, spec.max_turns, math.fsum(cost.cap for cost in spec.costs), back),
        _parts("outcome", spec.part_weights, values, recipe),
        notes=_notes(recipe),
    )


def check_functions(recipe: Recipe) -> OrderReport:
    """The same for reward functions of single answers: built-in ones give 0 to 1; others are not known to be bounded."""
    section = recipe.reward
    if not section.functions:
        return OrderReport(unproven=("no functions",), notes=tuple(_notes(recipe)))
    check_section(section)
    mixed = combination(section)
    foreign = [label_of(f) for f in section.functions if f.name not in BUILT_IN and label_of(f) in mixed.needed]
    if foreign and mixed.mode != "lexicographic":  # which takes no value outside 0 to 1
        why = f"nothing bounds the values of {', '.join(foreign)}; what it returns decides"
        return OrderReport(unproven=(why,), notes=tuple(_notes(recipe)))
    main, weights = mixed.success, mixed.weights
    graded = any(label_of(f) == main and (label_of(f) in foreign or is_graded(f.name, f.params)) for f in section.functions)
    nearly = (1 - _NEARLY) * section.success_at if graded else 0.0
    if mixed.mode == "lexicographic":
        nearly = tenths(nearly)
    steps = {f: (0.0, 0.5, 1.0) if f == main and graded else (0.0, 1.0) for f in weights}
    return _report(
        _totals(extremes := _extremes_of_functions(recipe, mixed, section.success_at if graded else 1.0, nearly)),
        _scale(extremes, recipe),
        _rule(extremes, recipe, 1, 0.0, 0.0),
        _parts(main, weights if section.combine == "gdpo" else None, steps, recipe),
        notes=_notes(recipe),
    )


def _report(*checks: Entries, notes: Iterator[str]) -> OrderReport:
    found = list(itertools.chain.from_iterable(checks))
    return OrderReport(
        tuple(entry for entry in found if isinstance(entry, str)),
        tuple(entry for entry in found if isinstance(entry, CounterExample)),
        notes=tuple(notes),
    )


# ---- totals ----------------------------------------------------------------------------------------------------------


def _extremes(spec: RewardSpec) -> Extremes:
    progress = spec.most_progress if spec.form == "bonus" else 0.0
    scored = spec.most_scored
    costs = math.fsum(cost.cap for cost in spec.costs)
    low, high, low_failure = (0.0, 0.0, 0.0)
    if spec.length:
        low, high, low_failure = length_bounds(spec.length, spec.outcome, spec.group_size, spec.max_tokens)
    soft = 1.0 if spec.soft else 0.0
    taken = {"every cost at its cap": costs, "the length term at its worst": -low, "the whole soft overlong penalty": soft}
    words = "".join(f", {name} (−{value:g})" for name, value in taken.items() if value > 0)
    best = [f"milestones up to their cap ({progress:g})"] if progress else []
    best += [f"turns that {term.label} likes ({most:g})" for term in spec.scorers if (most := spec.most_by(term))]
    return Extremes(
        (spec.outcome + low - costs - soft, spec.outcome + high + progress + scored),
        (low_failure - costs - soft, progress + scored),
        f"a success ({spec.outcome:g}){' without a milestone' if progress else ''}"
        f"{' that no turn scorer likes' if scored else ''}{words}",
        f"a failure with {' and '.join(best)}" if best else "a failure at no cost (0)",
    )


def _extremes_of_functions(
    recipe: Recipe, mixed: Combination, least_right: float, most_wrong: float
) -> Extremes:  # fmt: skip
    """`least_right`, `most_wrong`: the raw value of the success part in the worst success and the best failure."""
    weights, main = mixed.weights, mixed.success
    worth, term = weights[main], length_term(recipe.reward.length)
    others = [weight for label, weight in weights.items() if label != main]
    least, most = sum(min(0.0, weight) for weight in others), sum(max(0.0, weight) for weight in others)
    paid = 0.0 if main in mixed.gates else most  # behind a closed gate, a failure is paid for nothing
    low, high, low_failure = (0.0, 0.0, 0.0)
    if term:
        low, high, low_failure = length_bounds(term, worth, largest_group(recipe), recipe.rollout.max_new_tokens)
    soft = 1.0 if recipe.rollout.truncated == "soft" else 0.0
    named = ", ".join(f"{label} ({weight:.3g})" for label, weight in weights.items() if label != main and weight)
    return Extremes(
        (worth * least_right + least + low - soft, worth + most + high),
        (least + low_failure - soft, 0.0 if main in mixed.gates else worth * most_wrong + paid),
        f"a success in {main} ({worth:g})" + f", worst in {named}" * bool(named) + ", at the soft cap (−1)" * bool(soft),
        f"a failure that is best in {named}" if paid else "a short failure",
    )


def _totals(extremes: Extremes) -> Entries:
    success, failure = extremes.success[0], extremes.failure[1]
    if success > failure + SLACK:
        yield f"totals: {extremes.worst_success} earns {success:.4g} or more, {extremes.best_failure} at most {failure:.4g}"
        return
    text = f"{extremes.best_failure} earns {failure:.4g}, and {extremes.worst_success} earns {success:.4g}; "
    text += "lower the caps and weights of what is not success, or raise that of success"
    yield CounterExample("total", failure, success, text)


# ---- the resolved credit ---------------------------------------------------------------------------------------------


def _advantages(rewards: Sequence[float], recipe: Recipe) -> list[float]:
    credit = recipe.credit
    told = advantages(rewards, ["g"] * len(rewards), baseline=credit.resolved_baseline, scale=credit.scale, std=credit.std,
                      delta=credit.delta)  # fmt: skip
    return [float(advantage) for advantage in told]


def _scale(extremes: Extremes, recipe: Recipe) -> Entries:
    """A std per group makes the smallest difference between failures as strong as success."""
    low, high = extremes.failure
    credit, size = recipe.credit, largest_group(recipe)
    if credit.scale != "group":
        return
    if high - low <= SLACK:
        yield "scale: failures all earn the same, so that the group's std has no difference between them to amplify"
        return
    others, shown = (0.0, high) if high > SLACK else (low, high)
    pushed, wanted = (_advantages([value] + [others] * (size - 1), recipe)[0] for value in (shown, extremes.success[1]))
    if pushed < AS_STRONG * wanted:
        yield f"scale: the best failure among failures gets {pushed:.3g}, a success in its place {wanted:.3g}"
        return
    text = (
        f'credit.scale = "group" gives a failure of {shown:.4g} among failures of {others:.4g} an advantage of '
        f'{pushed:.3f}, and a success in its place {wanted:.3f}: as strong a push; use credit.scale = "none"'
    )
    yield CounterExample("scale", pushed, wanted, text)


def _rule(extremes: Extremes, recipe: Recipe, max_turns: int, costs: float, back: float) -> Entries:
    factor = recipe.credit.gamma ** (max(max_turns, 1) - 1)
    if recipe.credit.rule == "discounted":
        yield from _discounted(extremes, recipe, max_turns, factor)
    elif recipe.credit.by_turn:
        yield from _turn(extremes, recipe, max_turns, factor, costs, back)
    elif recipe.credit.rule == "branch":
        yield "credit: continuations of one state are compared by their totals, and a trunk is told how their means move"
    elif recipe.credit.rule == "distill":
        yield (f"credit: a teacher's log-probs, and {recipe.credit.outcome_weight:g} times the episode's advantage: what "
               "is proven holds for that share alone")  # fmt: skip
    elif recipe.reward.combine != "gdpo":
        yield "credit: all tokens of an episode share its advantage, which baseline and scale leave in the order of totals"


def _discounted(extremes: Extremes, recipe: Recipe, max_turns: int, factor: float) -> Entries:
    """γ^(T−t)·A in the worst groups there can be: linear in the others' rewards, so that extremes suffice."""
    success, failure = extremes.success[0], extremes.failure[1]
    what = f"credit.gamma = {recipe.credit.gamma:g} over {max_turns} turns leaves {factor:.3g} of an advantage at the first"
    for size in range(2, largest_group(recipe) + 1):
        for others in (extremes.failure[0], extremes.success[1]):
            ours, theirs, *_ = _advantages([success, failure] + [others] * (size - 2), recipe)
            ours, theirs = ours * (factor if ours > 0 else 1.0), theirs * (1.0 if theirs > 0 else factor)
            if ours <= theirs + SLACK * max(abs(ours), abs(theirs)):
                text = (
                    f"{what}: in a group of {size} whose others earn {others:.4g}, a turn of a success of {success:.4g} "
                    f"gets {ours:.3g} and a turn of a failure of {failure:.4g} gets {theirs:.3g}; raise credit.gamma, or "
                    "lower env.max_turns or the caps"
                )
                yield CounterExample("discounted", theirs, ours, text)
                return
    yield f"credit: {what}; every turn of a success still gets more than any turn of a failure in its group"


def _turn(extremes: Extremes, recipe: Recipe, max_turns: int, factor: float, costs: float, back: float) -> Entries:
    """Returns: the outcome discounted over the longest episode; costs and undone milestones before it at full price."""
    last = extremes.success[0] + costs
    gain = recipe.credit.gain_weight if recipe.credit.turns == "information" else 0.0  # won on the way, or lost
    success, failure = min(last, factor * last) - costs - back - gain, extremes.failure[1] + gain
    undone = f", and undoes milestones worth {back:g}" if back else ""
    undone += f", and loses information worth {gain:g}" if gain else ""
    what = f"with {max_turns} turns at credit.gamma = {recipe.credit.gamma:g}, "
    what += f"the first turn of {extremes.worst_success}{undone},"
    if success > failure + SLACK:
        yield f"credit: {what} returns {success:.4g} or more, a turn of {extremes.best_failure} at most {failure:.4g}"
        return
    text = f"{what} returns {success:.4g}, and {extremes.best_failure} in one turn {failure:.4g}; "
    yield CounterExample("turn", failure, success, text + "raise credit.gamma, or lower env.max_turns or the caps")


def _parts(
    main: str, weights: Mapping[str, float] | None, values: Mapping[str, Sequence[float]], recipe: Recipe
) -> Entries:  # fmt: skip
    """GDPO: the worst group of each size, built and put through the formula itself."""
    if weights is None:
        return
    credit, margin, worst = recipe.credit, math.inf, (0.0, 0.0, 0)
    for size in range(2, largest_group(recipe) + 1):
        columns = [
            _half(size) if name == main else _worst_column(values[name], weight, size) for name, weight in weights.items()
        ]
        table = np.stack(columns, axis=1)
        scores = gdpo(table, list(weights.values()), ["g"] * size, std=credit.std, delta=credit.delta, whiten=False)
        if scores[0] - scores[1] < margin:
            margin, worst = float(scores[0] - scores[1]), (float(scores[0]), float(scores[1]), size)
    success, failure, size = worst
    shown = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    if margin > SLACK:
        yield f"gdpo ({shown}): the worst success scores {success:.3f} and the best failure of its group {failure:.3f}"
        return
    text = (
        f"gdpo ({shown}): in a group of {size}, half of it successes, a failure that is ahead in every other part scores "
        f'{failure:.3f}, and a success that is behind in them {success:.3f}; lower the caps, or use reward.combine = "sum"'
    )
    yield CounterExample("gdpo", failure, success, text)


def _half(size: int) -> np.ndarray:
    """Outcomes, a success first and a failure second: their z-gap is smallest when half of the group succeeds."""
    num = max(1, size // 2)
    return np.array([1.0, 0.0] + [1.0] * (num - 1) + [0.0] * (size - num - 1))


def _worst_column(values: Sequence[float], weight: float, size: int) -> np.ndarray:
    """A part's values in a group, with the second member as far ahead of the first, in std of the group, as they allow."""
    best, widest = np.zeros(size), 0.0
    for low, high, rest in itertools.product(values, repeat=3):
        column = np.array([low, high] + [rest] * (size - 2))
        spread = float(column.std())
        if spread > 0 and (high - low) / spread > widest:
            best, widest = column, (high - low) / spread
    return best if weight >= 0 else best[[1, 0, *range(2, size)]]


def _attainable(spec: RewardSpec) -> list[float]:
    """Sums that milestones can hold; of many, a dozen that span them."""
    sums = {0.0}
    for weight in spec.milestones.values():
        sums |= {round(min(spec.milestone_cap, total + weight), 12) for total in sums}
        if len(sums) > 1000:
            break
    ordered = sorted(sums)
    picked = np.unique(np.linspace(0, len(ordered) - 1, _MOST_VALUES).astype(int))
    return [ordered[i] for i in picked]


# ---- the rest --------------------------------------------------------------------------------------------------------


def _undone(spec: RewardSpec, env_spec: EnvSpec) -> float:
    kinds = {milestone.name: milestone.kind for milestone in env_spec.milestones}
    return min(spec.milestone_cap, math.fsum(w for name, w in spec.milestones.items() if kinds.get(name) == "state"))


def _notes(recipe: Recipe) -> Iterator[str]:
    reward = recipe.reward
    if recipe.kl.beta and recipe.kl.place == "reward":
        yield ('kl.place = "reward" takes β·Σ log(π/ref) off every total, which has no bound: what is proven holds for the '
               'reward without it; kl.place = "loss" keeps the two apart')  # fmt: skip
    if recipe.credit.scale in ("batch", "source") or reward.combine == "gdpo":
        yield ("one divisor for the whole batch keeps every order within it; in a batch without any success it makes "
               "differences between failures as strong as success is otherwise")  # fmt: skip
    if reward.milestone_form == "potential" or reward.potential:
        start = "−Φ(start), the same for all members of a group," if reward.potential else "−Φ(start) = 0"
        yield f"potential shaping adds {start} to the return of every episode: which is best stays as it is without"
    if reward.turn_scorers:
        yield ("turn scorers pay by the turn, up to their caps: one that likes every turn also pays for more turns; let it "
               "give 0 to a turn that repeats what was done")  # fmt: skip
    if recipe.env.name and (free := [r for r in OWN_BUDGETS if recipe.rollout.stop_rule(r) != "score"]):
        yield (f"rollout.stop_rules keeps episodes that end by {', '.join(free)} out of the loss: nothing pushes a policy "
               "away from running into that")  # fmt: skip
    if reward.length.max_mean:
        yield f"length: what is proven holds up to the largest weight the controller may set, {reward.length.max_weight:g}"


def _generated(env_spec: EnvSpec, recipe: Recipe, num_tasks: int) -> list[Task]:
    rows = generated(env_spec.generate, num_tasks, recipe.seed, {}, f"environment {env_spec.name!r}")
    return [
        Task(str(i), row["prompt"], columns={k: v for k, v in row.items() if k != "prompt"}) for i, row in enumerate(rows)
    ]

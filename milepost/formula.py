"""The resolved formulas of a recipe, in words and symbols: printed when a run starts, stored with it, and by `explain`."""

from __future__ import annotations

from milepost.credit_sections import CreditSection
from milepost.recipe import Recipe
from milepost.reward_sections import BOUNDED
from milepost.sections import OTHER_LIMITS, OWN_BUDGETS


def describe(recipe: Recipe) -> list[str]:
    """What this recipe computes, one sentence per line: reward, advantage, loss, correction, truncation, sampling."""
    correction = recipe.correction
    weights = {
        "auto": f"min(π_old/μ, {correction.cap:g}) when sampler and learner differ in precision or are below float32",
        "none": "none",
        "tis": f"min(π_old/μ, {correction.cap:g}) per token",
        "mis": f"π_old/μ per token, 0 outside [{correction.low:g}, {correction.high:g}]",
        "geometric_mask": "0 for episodes whose mean π_old/μ leaves "
        f"[{correction.sequence_low:g}, {correction.sequence_high:g}], else 1",
    }[correction.kind]
    return [
        *describe_reward(recipe),
        describe_advantage(recipe),
        describe_loss(recipe),
        f"sampler–learner correction of the surrogate: {weights}",
        describe_stops(recipe),
        describe_sampling(recipe),
        *describe_levers(recipe),
    ]


def describe_stops(recipe: Recipe) -> str:
    """What becomes of episodes that something cut short, one line."""
    rollout, told = recipe.rollout, []
    reasons = OTHER_LIMITS + OWN_BUDGETS if recipe.env.name else OTHER_LIMITS[:2]
    words = {"keep_baseline": "kept in the baseline, out of the loss", "score": "scored as they are",
             "drop": "in neither baseline nor loss"}  # fmt: skip
    for rule, what in words.items():
        if cut := [reason for reason in reasons if rollout.stop_rule(reason) == rule]:
            told.append(f"{', '.join(cut)}: {what}")
    soft = rollout.soft_buffer and f"the last {rollout.soft_buffer} tokens before the cap cost up to 1 (every episode)"
    return f"episodes cut short by {'; '.join([*told, *([soft] if soft else [])])}; by a fault: in neither"


def describe_levers(recipe: Recipe) -> list[str]:
    """The levers that are on, one line each; nothing for plain GRPO."""
    levers, loss, size = recipe.levers, recipe.loss, recipe.rollout.group_size
    told = {
        f"groups without signal are replaced by newly sampled ones, up to {levers.refills} times a step": levers.refills,
        f"group size {size} → {levers.group_size_end} over the run": levers.group_size_end,
        f"group size by task: {levers.group_size_min} to {levers.group_size_max}, the smallest with a chance of "
        f"{levers.mixed_chance:g} to be mixed": levers.mixed_chance,
        f"at most {levers.horizon_start} turns at first; {levers.horizon_step} more, up to {recipe.env.max_turns}, "
        f"whenever success over {levers.window} steps reaches {levers.horizon_success:g}": levers.horizon_start,
        f"tasks by {levers.difficulty_column}, easiest of {levers.difficulty_levels} levels first; the next whenever "
        f"success on the last over {levers.window} steps reaches {levers.difficulty_success:g}": levers.difficulty_column,
        "episodes with a void turn: kept in the baseline, out of the loss": levers.skip_void_turns,
        "a stored success joins a group in which all fail, with its own log-probs as old ones; it is in no other's "
        "baseline": levers.success_replay,
        "groups after faults: counted in full if more than half is valid, else dropped": levers.repair_groups,
        f"of each group, the {levers.keep_of_group} members of most varied reward count": levers.keep_of_group,
        f"no surrogate where A < 0 in an episode with mean log(μ/π) > {loss.negative_mask:g}": loss.negative_mask,
        f"surrogate for the {loss.top_entropy:g} of tokens with the highest entropy alone": loss.top_entropy < 1,
        f"+ {loss.kl_cov_beta:g}·|log ρ| for the {loss.kl_cov_share:g} of tokens with the largest covariance of A and "
        "log π": loss.kl_cov_share,
    }
    return [f"lever: {text}" for text, on in told.items() if on]


def describe_sampling(recipe: Recipe) -> str:
    """The settings completions are really drawn with, one line."""
    rollout, held_out = recipe.rollout, recipe.eval
    cut = f", top-p {held_out.top_p:g}" if held_out.top_p < 1 else ""
    return (
        f"sampling: temperature {rollout.temperature:g} from the whole distribution, at most {rollout.max_new_tokens} "
        f"tokens; held-out: temperature {held_out.temperature:g}{cut}; the model's own generation settings are not used"
    )


def describe_reward(recipe: Recipe) -> list[str]:
    """The resolved reward of an environment, of functions that are no mere sum, and a length term, one line each."""
    reward, lines = recipe.reward, []
    order = ", then ".join(f.resolved_label for f in reward.functions if f.weight)
    if reward.functions and reward.resolved_combine == "lexicographic":
        lines.append(f"reward: {order}; each in tenths, a later one only among equals of those before")
    if gates := reward.resolved_gates:
        needs = f"{' and '.join(gates)} = 1"
        lines.append(f"reward = Σ weight·part if {needs}, else nothing is paid; success needs {needs} too")
    if costs := [f"{f.weight:g}·(1 − {f.resolved_label})" for f in reward.functions if f.weight < 0 and f.name in BOUNDED]:
        lines.append(f"reward: what form lacks costs {' and '.join(costs)}")
    if recipe.env.name:
        terms = [f"{reward.outcome:g}·success"]
        if reward.milestones and reward.milestone_form == "bonus":
            held = " + ".join(f"{weight:g}·{name}" for name, weight in reward.milestones.items())
            terms.append(f"+ min({reward.milestone_cap:g}, {held})")
        terms += [f"− min({c.cap:g}, {c.weight:g}·max(0, {c.name} − {c.free:g}))" for c in reward.costs]
        terms += [
            f"+ min({s.cap:g}, {s.weight:g}·Σ over turns of {s.resolved_label})" for s in reward.turn_scorers if s.weight
        ]
        lines.append(f"reward = {' '.join(terms)}, success read from the final state whatever the stop reason")
        if reward.milestone_form == "potential":
            held = " + ".join(f"{weight:g}·{name}" for name, weight in reward.milestones.items())
            lines.append(f"each turn also gets γΦ′ − Φ, Φ = min({reward.milestone_cap:g}, {held}), 0 at every end")
        if reward.potential:
            lines.append(f"each turn also gets {reward.potential:g}·(γΦ′ − Φ), Φ of the environment, 0 at every end")
    if reward.length.form != "none":
        length = reward.length
        value = {
            "kimi": f"{length.resolved_weight:g}·λ for a success, min(0, that) else; λ = ½ (shortest of the group) to −½",
            "gr3": f"a success is divided by 1 + {length.resolved_weight:g}·tokens/group mean",
            "l1_max": f"success · clip({length.resolved_weight:g}·({length.target} − tokens) + ½, {length.floor:g}, 1)",
            "overlong": f"−{length.resolved_weight:g} from {length.target} tokens on, rising over {length.buffer} tokens",
        }[length.form]
        lines.append(f"length: {value}")
        if length.max_mean:
            bounds = f"{length.resolved_weight:g} up to {length.max_weight:g}"
            lines.append(f"length: the weight rises from {bounds}, by {100 * length.rate:g} % a step, while a step's mean "
                         f"exceeds {length.max_mean} tokens, and falls again below")  # fmt: skip
    return lines


def describe_advantage(recipe: Recipe) -> str:
    """The resolved advantage formula in words and symbols, one line."""
    section = recipe.credit
    if recipe.reward.combine == "gdpo":
        return (f"A = Σ over parts of weight · (part − group mean) / ({section.std} std of the group + {section.delta:g}), "
                f"then ÷ (std of the batch + {section.delta:g})")  # fmt: skip
    told = {"turn": _describe_turn, "anchor": _describe_anchor, "branch": _describe_branch, "value": _describe_value}
    if section.rule in told:
        return told[section.rule](section)
    if section.rule == "distill":
        outcome = (
            f" + {section.outcome_weight:g}·A of the episode, {_of_episode(section)}" if section.outcome_weight else ""
        )
        return f"A of a token = log π_teacher − log π{outcome}"
    fade = f", times {section.gamma:g}^(turns left)" if section.rule == "discounted" else ""
    return f"A = {_of_episode(section)}{fade}"


def _of_episode(section: CreditSection, others: str = "the other members", all_: str = "group mean") -> str:
    """Baseline and scale over totals."""
    centre = {"loo": f"r − mean of {others}", "mean": f"r − {all_}", "none": "r"}[section.resolved_baseline]
    if section.scale == "none":
        return centre
    over = {"group": "group", "source": "source"}.get(section.scale, "whole batch")
    return f"({centre}) / ({section.std} std of the {over} + {section.delta:g})"


def _returns(section: CreditSection, of: str = "r_k") -> str:
    return f"Σ from turn t on of {section.gamma:g}^(k−t)·{of}"


def _describe_turn(section: CreditSection) -> str:
    if section.turns == "first":
        return ("A of a token = A of all but the first turn's reward, + A of the first turn's reward for its own tokens"
                f"; in an episode of one turn A of its total; A = {_of_episode(section)}")  # fmt: skip
    if section.turns == "process":
        return (f"A of turn t = {_returns(section, 'z_k')}, z = (r − mean) / ({section.std} std + {section.delta:g}) over "
                "all steps of the group")  # fmt: skip
    base = {"loo": "mean of the other members' returns", "mean": "mean return of the group", "none": "0"}
    gain = ""
    if section.turns == "information":
        gain = (f", r_k with {section.gain_weight:g}·(p after turn k − p before it) on top for each turn but the last, p "
                f"the probability of '{section.answer}'")  # fmt: skip
    return f"A of turn t = {_returns(section)} − {base[section.resolved_baseline]}{gain}"


def _describe_anchor(section: CreditSection) -> str:
    whole = f"A of turn t = {_of_episode(section)} + {section.anchor_weight:g}·S; S = "
    if section.anchor == "graph":
        return (f"{whole}{section.gamma:g}·V of the next state − V of this, V = max over the transitions seen of "
                f"{section.gamma:g}·V of the next, an end being worth r (less the group's lowest if that is "
                "below 0)")  # fmt: skip
    mine = "mean G of those who did the same there" if section.shrinkage else "G"
    those = "the other episodes" if section.resolved_baseline == "loo" else "all episodes"
    step = f"{mine} − mean G of {those} from the same state"
    if section.scale == "group":
        step = f"({step}) / ({section.std} std of these + {section.delta:g})"
    if section.shrinkage:
        step = f"n/(n + {section.shrinkage:g}) · ({step}), n the number of those who did the same"
    same = ""
    if section.history:
        same = (f"; the mean of that over k = 0 … {section.history}, among those with the same k states before too, "
                f"weights {section.history_weights}, groups without a difference left out")  # fmt: skip
    return f"{whole}{step}; G = {_returns(section)}{same}"


def _describe_branch(section: CreditSection) -> str:
    branches = section.branches
    if branches.form == "tree":
        leaf = _of_episode(section, "the other leaves", "mean of the leaves")
        return (f"A of a leaf = {leaf}, among all leaves of the group, + the same among those of its tree; a step that "
                "leaves share is told their weighted mean")  # fmt: skip
    if branches.form == "treerl":
        step = "(V − V of the parent) + (V − V of the root)"
        step = f"({step}) / √(leaves below)" if branches.sqrt else step
        return f"A of a step of the tree = {step}, V the mean over the leaves below of r − mean of the other leaves"
    start = {"loo": "the mean of the other trees", "mean": "the mean of all trees", "none": "0"}[section.resolved_baseline]
    own = "r − mean of its rivals and the trunk" if branches.form == "differences" else "not trained"
    return (f"A of a step of the trunk = V of the next branch point − V of this, V the mean over {branches.num} "
            f"continuations, at the start {start}, at the end r; continuations: {own}")  # fmt: skip


def _describe_value(section: CreditSection) -> str:
    lam, where = f"{section.lam:g}", ""
    if section.lam_alpha:
        lam, where = "λ", f", λ = max(0, 1 − 1/({section.lam_alpha:g}·turns))"
    elif section.lam_end:
        lam, where = "λ", f", λ = {section.lam_end:g}^(1/(turns − 1))"
    delta = f"δ = r + {section.gamma:g}·V′ − V"
    return f"A of turn t = Σ from turn t on of ({section.gamma:g}·{lam})^(k−t)·δ_k, {delta}{where}"


def describe_loss(recipe: Recipe) -> str:
    """The resolved loss formula in words and symbols, one line."""
    loss, kl = recipe.loss, recipe.kl
    bounds = f"{1 - loss.clip_low:g}, {1 + loss.clip_high:g}"
    dual = f", at least {loss.dual_clip:g}·A where A < 0" if loss.dual_clip else ""
    surrogate = {
        "clip": f"min(ρA, clip(ρ, {bounds})·A){dual}, ρ = π/π_old per token",
        "gspo": f"min(sA, clip(s, {bounds})·A){dual}, s = exp(mean over the episode of log ρ)",
        "gspo_token": f"min(sA, clip(s, {bounds})·A){dual}, s = sg[exp(mean log ρ)]·π/sg[π]",
        "cispo_cap": f"sg[min(ρ, {loss.cispo_cap:g})]·A·log π",
        "cispo_clip": f"sg[clip(ρ, {bounds})]·A·log π",
        "sapo": f"σ(τ(ρ−1))·4/τ·A, τ = {loss.sapo_tau_positive:g} for A > 0, else {loss.sapo_tau_negative:g}",
        "gmpo": f"A·exp(mean over the episode of log ρ, clipped at ±{loss.gmpo_clip:g} on the side that helps)",
        "dppo_tv": f"(π/μ)·A unless π moved more than {loss.dppo_delta:g} away from the sampler's μ along A",
        "cross_entropy": "log π",
    }[loss.objective]
    weight = {
        "sequence_mean": "1/(episodes · tokens of the episode)",
        "token_mean": "1/(all trained tokens of the update)",
        "constant": f"1/(episodes · {loss.constant or 'rollout.max_new_tokens'})",
        "prompt_mean": "1/(groups · tokens of the group)",
    }[loss.aggregate]
    beta = f"{kl.beta:g}" if kl.beta_end is None else f"({kl.beta:g} → {kl.beta_end:g} over the run)"
    penalty = f" + {beta}·KL ({kl.estimator})" if kl.beta and kl.place == "loss" else ""
    if kl.beta and kl.place == "reward":
        penalty = f"; {beta}·Σ log(π/ref) is taken from each reward"
    return f"loss = Σ over tokens of weight · (−surrogate{penalty}); surrogate = {surrogate}; weight = {weight}"

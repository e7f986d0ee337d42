"""The resolved formulas of a recipe, in words and symbols: printed when a run starts, stored with it, and by `explain`."""

from __future__ import annotations

from milepost.recipe import Recipe


def describe(recipe: Recipe) -> list[str]:
    """What this recipe computes, one sentence per line: advantage, loss, correction, truncation, sampling."""
    correction, rule = recipe.correction, recipe.rollout.truncated
    weights = {
        "auto": f"min(π_old/μ, {correction.cap:g}) when sampler and learner differ in precision or are below float32",
        "none": "none",
        "tis": f"min(π_old/μ, {correction.cap:g}) per token",
        "mis": f"π_old/μ per token, 0 outside [{correction.low:g}, {correction.high:g}]",
        "geometric_mask": "0 for episodes whose mean π_old/μ leaves "
        f"[{correction.sequence_low:g}, {correction.sequence_high:g}], else 1",
    }[correction.kind]
    cut = {
        "keep_baseline": "kept in the baseline, out of the loss",
        "score": "scored as they are",
        "drop": "in neither baseline nor loss",
        "soft": f"scored; the last {recipe.rollout.soft_buffer} tokens before the cap cost up to 1 (every episode)",
    }[rule]
    return [
        describe_advantage(recipe),
        describe_loss(recipe),
        f"sampler–learner correction of the surrogate: {weights}",
        f"completions cut by the token budget: {cut}",
        describe_sampling(recipe),
    ]


def describe_sampling(recipe: Recipe) -> str:
    """The settings completions are really drawn with, one line."""
    rollout, held_out = recipe.rollout, recipe.eval
    cut = f", top-p {held_out.top_p:g}" if held_out.top_p < 1 else ""
    return (
        f"sampling: temperature {rollout.temperature:g} from the whole distribution, at most {rollout.max_new_tokens} "
        f"tokens; held-out: temperature {held_out.temperature:g}{cut}; the model's own generation settings are not used"
    )


def describe_advantage(recipe: Recipe) -> str:
    """The resolved advantage formula in words and symbols, one line."""
    section = recipe.credit
    centre = {"loo": "r − mean of the other members", "mean": "r − group mean", "none": "r"}[section.resolved_baseline]
    if section.scale == "none":
        return f"A = {centre}"
    over = "group" if section.scale == "group" else "whole batch"
    return f"A = ({centre}) / ({section.std} std of the {over} + {section.delta:g})"


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

"""Log-probs at flat events become one scalar: ratio objectives, KL to a reference, sampler–learner correction.

    loss = Σ_e weight_e · (−mask_e · surrogate_e · correction_e + β · kl_e + β_cov · restrained_e · |log ρ_e|)

`weight_e` already holds the denominator of the whole update batch (forest.aggregation_weights), so the losses of
micro-batches add up. Everything here is a pure function of event vectors; the tree is unknown to it. The value of the
loss is no measure of progress: at ratio 1 it is minus a weighted mean of advantages. Formulas, sources and the gradient
of each form stand in docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from milepost.sections import CorrectionSection, KlSection, LossSection

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before exp, so no ratio overflows and no gradient becomes 0·inf = NaN."""


@dataclass(frozen=True, eq=False)
class Events:
    """One micro-batch of E sampled tokens; all events of an episode are in the same one where the loss `needs_episodes`.

    Events of weight 0 take part in nothing: their other values may be anything at all.
    """

    advantages: Tensor
    """[E]"""
    weights: Tensor
    """[E]; the batch denominator included."""
    episode: Tensor
    """long [E], values 0 … num_episodes − 1."""
    num_episodes: int
    sampler_logprobs: Tensor | None = None
    """[E] as recorded at sampling (μ); None where nothing was sampled (SFT)."""
    old_logprobs: Tensor | None = None
    """[E] of the learner before the first update on these episodes; None on the only update: old = current."""
    ref_logprobs: Tensor | None = None
    """[E] of the reference policy; needed when β > 0."""
    masked: Tensor | None = None
    """bool [E]: chosen over the whole update batch to have no surrogate (`loss.top_entropy`)."""
    restrained: Tensor | None = None
    """bool [E]: chosen over the whole update batch to be held near the old policy (`loss.kl_cov_share`)."""
    turn: Tensor | None = None
    """long [E]: events of one turn of one episode have one number, from 0 on; needed when `loss.ratio` is "turn"."""

    def select(self, keep: Tensor) -> Events:
        """The events where `keep` (bool [E]) is True; episode numbers stay as they are."""
        pick = lambda t: None if t is None else t[keep]  # noqa: E731
        return Events(
            self.advantages[keep], self.weights[keep], self.episode[keep], self.num_episodes,
            pick(self.sampler_logprobs), pick(self.old_logprobs), pick(self.ref_logprobs),
            pick(self.masked), pick(self.restrained), pick(self.turn),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Surrogate:
    """What one objective maximises, per event, and which events its clipping took out of the gradient."""

    value: Tensor
    clipped_low: Tensor | None = None
    """bool [E]: A < 0 and the ratio too low (or masked); None if the objective does not clip."""
    clipped_high: Tensor | None = None


@dataclass(frozen=True, eq=False)
class EventStats:
    """Detached per-event vectors of one micro-batch (events of weight ≠ 0), for `summarize`."""

    log_ratio: Tensor
    mismatch: Tensor | None
    """old − sampler log-prob."""
    correction: Tensor | None
    clipped_low: Tensor | None
    clipped_high: Tensor | None
    kl_k1: Tensor | None
    kl_k3: Tensor | None
    masked_negative: Tensor | None = None
    """bool: without a surrogate for one reason, for the other, for any."""
    masked_entropy: Tensor | None = None
    masked_any: Tensor | None = None
    restrained: Tensor | None = None


# ---- ratio objectives: f(logprobs, old, events, settings) → Surrogate; to be maximised -----------------------------


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp, with the log-ratio clamped to ±MAX_LOG_RATIO (gradient 0 beyond)."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def episode_mean(values: Tensor, events: Events) -> Tensor:
    """The mean over each episode's own events, given back at every event; [E]."""
    total = values.new_zeros(events.num_episodes).index_add(0, events.episode, values)
    count = values.new_zeros(events.num_episodes).index_add(0, events.episode, torch.ones_like(values))
    return (total / count.clamp(min=1))[events.episode]


def span_log_ratio(log_ratio: Tensor, events: Events, ratio: str) -> Tensor:
    """log of the product of token ratios over each event's turn or episode (LOOP 2502.01600); [E]."""
    if ratio == "token":
        return log_ratio
    span = events.episode if ratio == "episode" else events.turn
    if span is None:
        raise ValueError('loss.ratio = "turn" needs the turn of each event')
    total = log_ratio.new_zeros(int(span.max()) + 1 if len(span) else 0).index_add(0, span, log_ratio)
    return total[span]


def _clipped(ratio: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """min(ρA, clip(ρ, 1−ε_low, 1+ε_high)A); with dual_clip c also ≥ c·A where A < 0."""
    advantage = events.advantages
    value = torch.minimum(ratio * advantage, ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high) * advantage)
    if loss.dual_clip:
        value = torch.where(advantage < 0, torch.maximum(value, loss.dual_clip * advantage), value)
    low = (ratio < 1 - loss.clip_low) & (advantage < 0)
    high = (ratio > 1 + loss.clip_high) & (advantage > 0)
    return Surrogate(value, low, high)


def clip(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """PPO/GRPO token ratios (1707.06347, 2402.03300); asymmetric: DAPO's clip-higher; dual: 1912.09729."""
    return _clipped(ratio_of(span_log_ratio(logprobs - old, events, loss.ratio)), events, loss)


def gspo(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """One length-normalised ratio per episode, s = exp(mean_t log ρ_t), clipped like a token's (2507.18071)."""
    return _clipped(ratio_of(episode_mean(logprobs - old, events)), events, loss)


def gspo_token(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """sg[s]·π/sg[π]: GSPO's value and clipping with a gradient per token, so advantages may differ within an episode."""
    sequence = episode_mean((logprobs - old).detach(), events)
    return _clipped(ratio_of(sequence + logprobs - logprobs.detach()), events, loss)


def cispo_cap(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """sg[min(ρ, cap)]·A·log π: no token loses its gradient (2506.13585 in the form of TRL and ScaleRL)."""
    ratio = ratio_of(logprobs - old).detach()
    weight = ratio.clamp(max=loss.cispo_cap)
    return Surrogate(weight * events.advantages * logprobs, torch.zeros_like(ratio, dtype=torch.bool), ratio > weight)


def cispo_clip(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """sg[clip(ρ, 1−ε_low, 1+ε_high)]·A·log π: the form of verl and NeMo-RL."""
    ratio = ratio_of(logprobs - old).detach()
    weight = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    return Surrogate(weight * events.advantages * logprobs, ratio < weight, ratio > weight)


def sapo(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """σ(τ(ρ−1))·4/τ·A, a soft gate whose weight is 1 at ρ = 1 (2511.20347); τ by the sign of A."""
    advantage = events.advantages
    positive, negative = logprobs.new_tensor(loss.sapo_tau_positive), logprobs.new_tensor(loss.sapo_tau_negative)
    tau = torch.where(advantage > 0, positive, negative)
    return Surrogate(torch.sigmoid(tau * (ratio_of(logprobs - old) - 1)) * 4 / tau * advantage)


def gmpo(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """A·exp(mean_t z_t), z the log-ratio clipped in log space on the side where it would help A (2507.20673)."""
    log_ratio, sign = logprobs - old, events.advantages.sign()
    bounded = log_ratio.clamp(-loss.gmpo_clip, loss.gmpo_clip)
    z = sign * torch.minimum(sign * log_ratio, sign * bounded)
    low = (log_ratio < -loss.gmpo_clip) & (sign < 0)
    high = (log_ratio > loss.gmpo_clip) & (sign > 0)
    return Surrogate(events.advantages * ratio_of(episode_mean(z, events)), low, high)


def dppo_tv(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """mask·(π/μ)·A: drops a token once π moved δ in probability away from the sampler along A (2602.04879).

    The ratio is to the sampler, so it corrects the mismatch by itself: no further correction is applied.
    """
    if events.sampler_logprobs is None:
        raise ValueError("dppo_tv needs the sampler's log-probs")
    moved = logprobs.detach().exp() - events.sampler_logprobs.exp()
    high = (events.advantages > 0) & (moved > loss.dppo_delta)
    low = (events.advantages < 0) & (moved < -loss.dppo_delta)
    ratio = ratio_of(logprobs - events.sampler_logprobs)
    return Surrogate(torch.where(high | low, 0.0, ratio * events.advantages), low, high)


def cross_entropy(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> Surrogate:
    """log π: supervised learning. Advantages and ratios play no part."""
    return Surrogate(logprobs)


OBJECTIVES: dict[str, Callable[[Tensor, Tensor, Events, LossSection], Surrogate]] = {
    "clip": clip, "gspo": gspo, "gspo_token": gspo_token, "cispo_cap": cispo_cap, "cispo_clip": cispo_clip,
    "sapo": sapo, "gmpo": gmpo, "dppo_tv": dppo_tv, "cross_entropy": cross_entropy,
}  # fmt: skip

SEQUENCE_LEVEL = frozenset({"gspo", "gspo_token", "gmpo"})
"""Objectives whose ratio is of a whole episode."""

UNCORRECTED = frozenset({"dppo_tv", "cross_entropy"})
"""Objectives that take no mismatch correction: one contains it, the other has no sampler."""


# ---- KL to the reference, correction of the sampler–learner mismatch ------------------------------------------------


def kl_terms(logprobs: Tensor, ref: Tensor, old: Tensor, estimator: str) -> Tensor:
    """One KL term per event, samples from π; [E], in nats. The gradients differ:

    k1        log(π/ref)                  as a loss: 0 in expectation (belongs in the reward)
    k2        ½ log²(π/ref)               ∇KL(π‖ref)
    k3        ref/π − log(ref/π) − 1      ∇KL(ref‖π), the forward direction
    k3_ratio  (π/old)·k3                  ∇KL(π‖ref), also after earlier updates
    """
    gap = logprobs - ref
    if estimator == "k1":
        return gap
    if estimator == "k2":
        return gap.square() / 2
    k3 = ratio_of(-gap) + gap - 1
    if estimator == "k3":
        return k3
    if estimator == "k3_ratio":
        return ratio_of(logprobs - old) * k3
    raise ValueError(f"unknown KL estimator {estimator!r}")


def correction_weights(old: Tensor, events: Events, correction: CorrectionSection) -> Tensor:
    """Detached importance weights π_old/μ, [E]: truncated (tis), banded (mis), or 0/1 by episode (geometric_mask)."""
    if events.sampler_logprobs is None:
        raise ValueError(f"correction.kind = {correction.kind!r} needs the sampler's log-probs")
    mismatch = (old - events.sampler_logprobs).detach()
    if correction.kind == "geometric_mask":
        mean_ratio = ratio_of(episode_mean(mismatch, events))
        return ((mean_ratio >= correction.sequence_low) & (mean_ratio <= correction.sequence_high)).to(old.dtype)
    weight = ratio_of(mismatch)
    if correction.kind == "mis":
        return torch.where((weight >= correction.low) & (weight <= correction.high), weight, 0.0)
    return weight.clamp(max=correction.cap)


# ---- masks and penalties of single tokens ----------------------------------------------------------------------------


def top_entropy(entropy: np.ndarray, among: np.ndarray, share: float) -> np.ndarray:
    """bool [E]: the events whose entropy reaches the 1 − `share` quantile of those in `among` (2506.01939)."""
    if not among.any():
        return np.zeros(len(entropy), bool)
    return among & (entropy >= np.quantile(entropy[among], 1 - share))


def top_covariance(advantage: np.ndarray, logprobs: np.ndarray, among: np.ndarray, share: float) -> np.ndarray:
    """bool [E]: the `share` of `among`, at least one, with the largest (A − mean A)(log π − mean log π): where rewarding
    what is likely already costs most entropy (2505.22617). Equal ones go by position.
    """
    chosen, there = np.zeros(len(advantage), bool), np.flatnonzero(among)
    if len(there):
        a, logp = advantage[there], logprobs[there]
        covariance = (a - a.mean()) * (logp - logp.mean())
        most = np.argsort(-covariance, kind="stable")[: max(1, int(len(there) * share))]
        chosen[there[most]] = True
    return chosen


def negative_sequences(logprobs: Tensor, old: Tensor, events: Events, delta: float) -> Tensor:
    """bool [E], detached: A < 0 in an episode whose mean log(μ/π) exceeds δ (DeepSeek-V3.2, 2512.02556).

    μ is the policy that sampled, so that staleness and a mismatch of engines both count; π_old stands in without it.
    """
    behind = old if events.sampler_logprobs is None else events.sampler_logprobs
    return (events.advantages < 0) & (episode_mean(behind - logprobs.detach(), events) > delta)


def token_masks(logprobs: Tensor, old: Tensor, events: Events, loss: LossSection) -> dict[str, Tensor]:
    """The events that have no surrogate, by reason: bool [E] each, under the names of `EventStats`."""
    found = {}
    if loss.negative_mask:
        found["masked_negative"] = negative_sequences(logprobs, old, events, loss.negative_mask)
    if events.masked is not None:
        found["masked_entropy"] = events.masked
    if found:
        found["masked_any"] = torch.stack(list(found.values())).any(0)
    return found


def needs_episodes(loss: LossSection, correction: CorrectionSection, *, correct: bool) -> bool:
    """Whether an episode's events have to be in one micro-batch: some ratio is of the whole episode."""
    masks = correct and correction.kind == "geometric_mask" and loss.objective not in UNCORRECTED
    whole = loss.objective in SEQUENCE_LEVEL or (loss.objective == "clip" and loss.ratio == "episode")
    return whole or masks or loss.negative_mask > 0


# ---- the loss --------------------------------------------------------------------------------------------------------


def policy_loss(
    logprobs: Tensor,
    events: Events,
    loss: LossSection,
    kl: KlSection,
    correction: CorrectionSection,
    *,
    beta: float,
    correct: bool,
) -> tuple[Tensor, EventStats]:
    """The loss of one micro-batch (a scalar with gradient) and its detached statistics.

    `logprobs` [E] are the learner's, with gradient. `beta` is the KL coefficient of this step (it may follow a schedule);
    it acts only when `kl.place` is "loss". `correct` applies the mismatch correction ("auto" then means tis). With no
    event of weight ≠ 0 the loss is exactly 0 and its gradient too. Half precision is computed in float32.
    """
    keep = events.weights != 0
    logprobs, events = logprobs[keep], events.select(keep)
    if logprobs.dtype in (torch.float16, torch.bfloat16):
        logprobs = logprobs.float()
    # A constant "old" makes every ratio exactly 1 with a gradient: one update per batch needs no second forward.
    old = logprobs.detach() if events.old_logprobs is None else events.old_logprobs
    surrogate = OBJECTIVES[loss.objective](logprobs, old, events, loss)
    per_event = -surrogate.value
    weight = None
    if correct and correction.kind != "none" and loss.objective not in UNCORRECTED:
        weight = correction_weights(old, events, correction).to(per_event.dtype)
        per_event = per_event * weight
    masks = token_masks(logprobs, old, events, loss)
    if masks:
        per_event = torch.where(masks["masked_any"], 0.0, per_event)
    if events.restrained is not None:
        per_event = per_event + loss.kl_cov_beta * torch.where(events.restrained, (logprobs - old).abs(), 0.0)
    if beta and kl.place == "loss":
        if events.ref_logprobs is None:
            raise ValueError("beta > 0 needs the reference's log-probs")
        per_event = per_event + beta * kl_terms(logprobs, events.ref_logprobs, old, kl.estimator)
    return (events.weights * per_event).sum(), _stats(logprobs.detach(), old, events, surrogate, weight, masks)


def _stats(
    logprobs: Tensor, old: Tensor, events: Events, surrogate: Surrogate, weight: Tensor | None, masks: dict[str, Tensor]
) -> EventStats:  # fmt: skip
    sampler, ref = events.sampler_logprobs, events.ref_logprobs
    return EventStats(
        log_ratio=logprobs - old,
        mismatch=None if sampler is None else old - sampler,
        correction=weight,
        clipped_low=surrogate.clipped_low,
        clipped_high=surrogate.clipped_high,
        kl_k1=None if ref is None else kl_terms(logprobs, ref, old, "k1"),
        kl_k3=None if ref is None else kl_terms(logprobs, ref, old, "k3"),
        restrained=events.restrained,
        **masks,
    )


def summarize(stats: Sequence[EventStats]) -> dict[str, float]:
    """Means over all events of the micro-batches given (one event, one vote). A metric without data is absent.

    KL figures are nats per token. `mismatch/ess` is the effective share of samples under weights π_old/μ, `mismatch/chi2`
    is E[w²] − 1, both before any truncation.
    """
    column = {f.name: _concatenate([getattr(s, f.name) for s in stats]) for f in fields(EventStats)}
    result: dict[str, float] = {}
    log_ratio = column["log_ratio"]
    if len(log_ratio):
        off = np.expm1(_bounded(log_ratio))
        result |= {"ratio/mean": 1 + off.mean(), "ratio/max_abs_deviation": np.abs(off).max(),
                   "ratio/mean_abs_deviation": np.abs(off).mean(), "ratio/k3": (off - log_ratio).mean()}  # fmt: skip
    for name in ("clipped_low", "clipped_high"):
        if len(column[name]):
            result[name.replace("clipped_", "clip_")] = column[name].mean()
    mismatch = column["mismatch"]
    if len(mismatch):
        w, size = np.exp(_bounded(mismatch)), np.abs(mismatch)
        result |= {"mismatch/mean_abs": size.mean(), "mismatch/p99": np.quantile(size, 0.99), "mismatch/max": size.max(),
                   "mismatch/k1": -mismatch.mean(), "mismatch/k3": (np.expm1(_bounded(mismatch)) - mismatch).mean(),
                   "mismatch/ess": effective_sample_share(w), "mismatch/chi2": np.square(w).mean() - 1}  # fmt: skip
    weight = column["correction"]
    if len(weight):
        result |= {"correction/mean": weight.mean(), "correction/masked": (weight == 0).mean(),
                   "correction/ess": effective_sample_share(weight)}  # fmt: skip
    for name in ("kl_k1", "kl_k3"):
        if len(column[name]):
            result[name.replace("_", "/")] = column[name].mean()
    for name in ("masked_negative", "masked_entropy", "masked_any", "restrained"):
        if len(column[name]):
            result[f"tokens/{name}"] = column[name].mean()
    return {name: float(value) for name, value in result.items()}


def effective_sample_share(weights: np.ndarray) -> float:
    """(Σw)²/(n·Σw²): 1 for equal weights, 1/n when one outweighs all, 0 when all are masked."""
    square = float(np.square(weights).sum())
    return float(weights.sum() ** 2 / square / len(weights)) if square else 0.0


def _bounded(log_ratio: np.ndarray) -> np.ndarray:
    return np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def _concatenate(parts: Sequence[Tensor | None]) -> np.ndarray:
    arrays = [part.detach().double().cpu().numpy() for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else np.empty(0)

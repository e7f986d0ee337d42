"""Small checks that run with every training: is what we think happens what happens?

Each returns Findings instead of raising, so that the loop decides; none needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

# Mean |sampler − learner| log-prob that is still rounding, and not a wrong distribution (performance.md, section 5).
MISMATCH_BOUND = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}


@dataclass(frozen=True)
class Finding:
    """One thing a person should know: what was seen, why, and what to try."""

    level: Literal["info", "warning", "stop"]
    name: str
    message: str


def one_policy(metrics: Mapping[str, float], precision: str) -> list[Finding]:
    """Until a step's first update, what sampled its episodes and what learns from them are one policy, within rounding.

    `metrics` are those of the step's first update: its old log-probs are the learner's from before it.
    """
    bound, gap = MISMATCH_BOUND[precision], metrics.get("mismatch/mean_abs", 0.0)
    if gap <= bound:
        return []
    text = (
        f"before any update on this batch the sampler's log-probs differ from the learner's by {gap:.3g} nats on average "
        f"(bound {bound:g} in {precision}): they are not the same policy; check temperature, chat template and weights"
    )
    return [Finding("stop", "sampler_is_learner", text)]


def first_update(metrics: Mapping[str, float]) -> list[Finding]:
    """A run's first update is on-policy: every ratio is 1 and nothing is clipped."""
    clipped = metrics.get("clip_low", 0.0) + metrics.get("clip_high", 0.0)
    if metrics.get("ratio/max_abs_deviation", 0.0) <= 1e-6 and not clipped:
        return []
    return [Finding("warning", "ratio_is_one", "the first update already has ratios other than 1")]


def weights_arrived(sampled: np.ndarray, scored: np.ndarray, precision: str) -> list[Finding]:
    """After an update, the log-probs a fixed prompt was sampled with equal the learner's: the new weights arrived."""
    gap = float(np.abs(np.asarray(sampled, float) - np.asarray(scored, float)).mean())
    bound = MISMATCH_BOUND[precision]
    if gap <= bound:
        return []
    text = f"after the update the sampler's log-probs are {gap:.3g} nats from the learner's, beyond {bound:g}: old weights"
    return [Finding("stop", "weights_arrived", text)]


def drift(first: np.ndarray, now: np.ndarray) -> float:
    """KL(first ‖ now) in nats per token over texts that the first policy sampled.

    The mean of q/p − 1 − log(q/p) over tokens drawn from p: never negative, low variance (Schulman's k3).
    """
    log_ratio = np.asarray(now, float) - np.asarray(first, float)
    return float(np.mean(np.expm1(log_ratio) - log_ratio))

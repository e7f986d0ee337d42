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


def first_update(metrics: Mapping[str, float], precision: str) -> list[Finding]:
    """At step 0 the sampler and the learner are one policy: ratio 1, KL 0, no clipping, within the precision."""
    found = []
    bound = MISMATCH_BOUND[precision]
    gap = metrics.get("mismatch/mean_abs", 0.0)
    if gap > bound:
        found.append(
            Finding(
                "stop", "sampler_is_learner",
                f"before any update the sampler's log-probs differ from the learner's by {gap:.3g} nats on average (bound "
                f"{bound:g} in {precision}): they are not the same policy; check temperature, chat template and weights",
            )
        )  # fmt: skip
    clipped = metrics.get("clip_low", 0.0) + metrics.get("clip_high", 0.0)
    if metrics.get("ratio/max_abs_deviation", 0.0) > 1e-6 or clipped > 0:
        found.append(Finding("warning", "ratio_is_one", "the first update already has ratios other than 1"))
    return found


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

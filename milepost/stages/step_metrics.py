"""What one step of training looked like, in numbers with stable names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from milepost.learner import UpdateReport
from milepost.types import VERDICTS, Group, Reward, StopKind


def episode_metrics(groups: Sequence[Group], rewards: Sequence[Sequence[Reward]]) -> dict[str, float]:
    """Lengths, success and parts over the step's episodes; a metric without data is absent.

    Every episode counts once, however many turns or segments it has; those that continue another one count in tokens and
    costs alone, since they start where it had come to. What a fault broke off is in no mean of lengths.
    """
    played = [e for g in groups for e in g.episodes]
    rows = [(g, e, r) for g, rs in zip(groups, rewards) for e, r in zip(g.episodes, rs) if e.branch_of is None]
    episodes, flat = [e for _, e, _ in rows], [r for _, _, r in rows]
    metrics = {"tokens/sampled": float(sum(e.num_own for e in played))}
    if len(played) > len(episodes):
        own = sum(e.num_own for e in played if e.branch_of)
        metrics |= {"branch/episodes": float(len(played) - len(episodes)),
                    "branch/tokens": own / max(1.0, metrics["tokens/sampled"])}  # fmt: skip
    whole = [e for e in episodes if e.stop.kind is not StopKind.FAULT]
    if whole:
        lengths = [e.num_sampled for e in whole]
        metrics |= {"length/mean": float(np.mean(lengths)), "length/max": float(max(lengths))}
    for reason, count in Counter(e.stop.reason for e in episodes).items():
        metrics[f"stop/{reason}"] = count / len(episodes)
    if any("num_calls" in e.facts for e in whole):  # played in an environment
        metrics["turns/mean"] = float(np.mean([len(e.turns) for e in whole]))
        metrics["calls/mean"] = float(np.mean([e.facts.get("num_calls", 0) for e in whole]))
        invalid = [e.facts.get("num_invalid", 0) / len(e.turns) for e in whole if e.turns]
        if invalid:
            metrics["calls/invalid"] = float(np.mean(invalid))
        if any(surplus := [sum(turn.facts.get("num_surplus", 0) for turn in e.turns) for e in whole]):
            metrics["calls/surplus"] = float(np.mean(surplus))
    success = [r.success for r in flat if r.success is not None]
    extractable = [r.extractable for r in flat if r.extractable is not None]
    if success:
        metrics["success/train"] = float(np.mean(success))
    if extractable:
        metrics["extractable/rate"] = float(np.mean(extractable))
        right = [r.success for r in flat if r.extractable and r.success is not None]
        metrics |= {"success/extractable": float(np.mean(right))} if right else {}
    verdicts = Counter(r.verdict for r in flat)
    metrics |= {f"verdict/{name}": float(verdicts[name]) for name in VERDICTS}
    sources = sorted({g.task.source for g in groups})
    for source in sources if len(sources) > 1 else ():
        mine = [r.success for g, _, r in rows if g.task.source == source and r.success is not None]
        if mine:
            metrics[f"success/train/{source}"] = float(np.mean(mine))
    for name in sorted({name for r in flat for name in r.parts}):
        metrics[f"reward/{name}"] = float(np.mean([r.parts[name] for r in flat if name in r.parts]))
    return metrics


def update_metrics(reports: Sequence[UpdateReport]) -> dict[str, float]:
    """Means over the step's optimizer updates; counts of updates and of empty ones."""
    stepped = [r for r in reports if r.stepped]
    metrics = {"updates/stepped": float(len(stepped)), "updates/empty": float(len(reports) - len(stepped))}
    if not stepped:
        return metrics
    for name in sorted({name for r in stepped for name in r.metrics}):
        metrics[name] = float(np.mean([r.metrics[name] for r in stepped if name in r.metrics]))
    metrics |= {
        "loss": float(np.mean([r.loss for r in stepped])),
        "grad_norm": float(np.mean([r.grad_norm for r in stepped])),
    }
    return metrics | {"lr": stepped[-1].lr, "tokens/trained": float(sum(r.num_events for r in stepped))}

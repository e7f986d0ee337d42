"""What each turn told the policy about the right answer (IGPO 2510.14967): a reward of turns that needs no judge.

    r_t = p(answer | before turn t + 1) − p(answer | before turn t),  p = exp(mean log-prob of the answer's tokens)

The last turn has none: the outcome is its reward. The gains of an episode add up to what it learned from its first state to
its last. A policy that is told nothing gains nothing; one that becomes surer of the right answer before it says it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from milepost.forest import Batch
from milepost.types import Episode, EpisodeId, Group, Sampled, StopKind, StopReason, Task, Turn

_DONE = StopReason(StopKind.TERMINATED, "end_of_turn")


def gains(probabilities: Sequence[float] | np.ndarray) -> np.ndarray:
    """float64 [n − 1]: the differences; they add up to the last minus the first."""
    return np.diff(np.asarray(probabilities, np.float64))


def probes(groups: Sequence[Group], answer: Callable[[Task], np.ndarray]) -> list[Episode]:
    """The right answer's ids behind what stood before each turn; one per turn, of all episodes of several turns."""
    made: list[Episode] = []
    for group in groups:
        ids = answer(group.task)
        sampled = Sampled(ids, np.zeros(len(ids)), 1.0, ((0, 0),), "stop")
        for episode in group.episodes if len(ids) else ():
            seen = np.zeros(0, np.int32)
            for turn in episode.turns if len(episode.turns) > 1 else ():
                seen = turn.context_ids if turn.new_segment else np.concatenate([seen, turn.context_ids])
                name = EpisodeId(f"probe/{episode.id}", 0, group.task.key, len(made))
                made.append(Episode(name, group.id, (Turn(seen, sampled),), _DONE))
                seen = np.concatenate([seen, turn.sampled.ids])
    return made


def gains_of(groups: Sequence[Group], batch: Batch | None, logprobs: np.ndarray) -> dict[EpisodeId, np.ndarray]:
    """What each turn added, 0 for the last, of the episodes that were probed; `logprobs` [E]: of the probes' batch."""
    found: dict[str, list[float]] = {}
    for index, name in enumerate(batch.episodes if batch is not None else ()):
        assert batch is not None
        found.setdefault(name.phase, []).append(float(np.exp(logprobs[batch.episode_E == index].mean())))
    return {
        e.id: np.append(gains(found[f"probe/{e.id}"]), 0.0)
        for group in groups
        for e in group.episodes
        if f"probe/{e.id}" in found
    }


def added(
    given: Mapping[EpisodeId, Sequence[float] | np.ndarray] | None, totals: Mapping[EpisodeId, float],
    gained: Mapping[EpisodeId, np.ndarray], weight: float,
) -> dict[EpisodeId, Sequence[float] | np.ndarray]:  # fmt: skip
    """Turn rewards with the gains on top: `given`, or an episode's total in its last turn."""
    result: dict[EpisodeId, Sequence[float] | np.ndarray] = dict(given or {})
    for name, gain in gained.items():
        if name not in totals:
            continue
        base = np.zeros(len(gain))
        if given is not None and name in given:
            base += given[name]
        else:
            base[-1] = totals[name]
        result[name] = base + weight * gain
    return result

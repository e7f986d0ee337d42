"""Counter-based random streams: every draw is a pure function of a key, so nothing depends on batch order or on resume.

Sampling noise is keyed by (run seed, episode, turn) and indexed by token; other draws are keyed by (run seed, label).
The generator is Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with a 128-bit
BLAKE2b digest of the key, so there is no generator state that a checkpoint would have to carry.
"""

from __future__ import annotations

import hashlib

import numpy as np

from milepost.types import EpisodeId

_TURN_SHIFT = 128


def uniforms(seed: int, episode: EpisodeId, turn: int, n: int) -> np.ndarray:
    """The float64 [n] uniforms in [0, 1) of one turn of one episode; value t belongs to sampled token t.

    A longer request only appends: `uniforms(…, 8)[:5]` equals `uniforms(…, 5)`.
    """
    if turn < 0:
        raise ValueError(f"turn = {turn}: turns count from 0")
    fields = ("episode", seed, episode.phase, episode.step, episode.task_key, episode.member, episode.attempt)
    # The turn sits above the 2^128 blocks that token positions count through, so turns never overlap.
    return np.random.Generator(np.random.Philox(key=_key(fields), counter=turn << _TURN_SHIFT)).random(n)


def generator(seed: int, label: str) -> np.random.Generator:
    """A fresh generator that depends on (seed, label) alone. Labels name the purpose, e.g. "tasks/epoch/3"."""
    return np.random.Generator(np.random.Philox(key=_key(("label", seed, label))))


def shuffled(seed: int, label: str, n: int) -> np.ndarray:
    """A uniform permutation of 0 … n−1, int64 [n], that depends on (seed, label, n) alone."""
    # Sorting keyed uniforms pins the permutation to Philox itself; Generator.permutation may change between versions.
    return np.argsort(generator(seed, label).random(n), kind="stable")


def coin(seed: int, label: str, probability: float = 0.5) -> bool:
    """True with `probability`, depending on (seed, label) alone."""
    return bool(generator(seed, label).random() < probability)


def _key(fields: tuple[str | int, ...]) -> int:
    """A 128-bit key. Lengths stand before values, so that no two different tuples are written alike."""
    text = "".join(f"{len(part)}:{part}" for part in (f"{type(f).__name__}={f}" for f in map(_plain, fields)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def _plain(field: str | int) -> str | int:
    # numpy integers and string subclasses must give the same key as the plain values they equal.
    return str(field) if isinstance(field, str) else int(field)

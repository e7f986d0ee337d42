"""What a sampler is: requests in, `Sampled` out, in request order. Torch-free, so that any engine can implement it.

A sampler promises: ids in, ids out (no text, no padding, no template); the noise of a token depends on (run seed,
episode, turn, token) alone; recorded log-probs are those of the distribution drawn from; a model's own generation
settings never matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from milepost.types import EpisodeId, Sampled, frozen_array


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """One model call: continue `ids` by at most `max_new_tokens`, with the noise of (episode, turn)."""

    episode: EpisodeId
    turn: int
    ids: np.ndarray
    """int32 [n], n ≥ 1: the whole context."""
    max_new_tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", frozen_array(self.ids, np.int32))
        if not len(self.ids):
            raise ValueError(f"episode {self.episode}: the prompt is empty; a model needs at least one token to continue")
        if self.max_new_tokens < 1:
            raise ValueError(f"episode {self.episode}: max_new_tokens = {self.max_new_tokens} must be at least 1")


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn. Order of application: temperature, top-k, top-p, min-p, renormalised.

    Greedy decoding (`greedy`, or temperature 0) draws from a point mass, so its recorded log-probs are 0 and its
    recorded temperature is 0. Any other restriction of the support is included in the recorded log-probs.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature = {self.temperature} must be 0 (greedy) or positive; 1.0 samples the model itself"
            )
        if not 0 < self.top_p <= 1 or not 0 <= self.min_p < 1 or self.top_k < 0:
            raise ValueError(f"top_p = {self.top_p}, top_k = {self.top_k}, min_p = {self.min_p}: needed are 0 < top_p ≤ 1, "
                             "top_k ≥ 0 and 0 ≤ min_p < 1; 1.0, 0 and 0.0 leave the support whole")  # fmt: skip

    @property
    def is_greedy(self) -> bool:
        return self.greedy or self.temperature == 0

    @property
    def restricts_support(self) -> bool:
        return self.is_greedy or self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass
class WorkCounters:
    """Work actually executed, padding and recomputation included: what `work_ratio` divides by the ideal. No clock
    but the `seconds`. FLOPs = λ·linear_tokens + α·attention_pairs + η·head_positions, with λ, α, η the forward FLOPs per
    token, per (query, key) pair over all heads and layers, and per head position. Everything is in units of a forward:
    a backward pass adds twice its forward to the same counters."""

    linear_tokens: int = 0
    """Rows × padded length that went through the blocks."""
    attention_pairs: int = 0
    """(query, key) pairs computed, per head and layer; pairs that a mask then hides count too."""
    head_positions: int = 0
    """Positions whose logits were computed."""
    prefill_tokens: int = 0
    """Part of linear_tokens: prompt tokens run by the sampler."""
    shared_tokens: int = 0
    """Prompt tokens that were not run because another row with the same prompt had run them."""
    decode_tokens: int = 0
    """Part of linear_tokens: one-token steps of the sampler."""
    score_tokens: int = 0
    """Part of linear_tokens: full forwards without gradient."""
    sampled_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    score_seconds: float = 0.0

    def copy(self) -> WorkCounters:
        return WorkCounters(**{f.name: getattr(self, f.name) for f in fields(self)})

    def __add__(self, other: WorkCounters) -> WorkCounters:
        return WorkCounters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, other: WorkCounters) -> WorkCounters:
        return WorkCounters(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds + self.score_seconds

    def flops(self, per_token: float, per_pair: float, per_head_position: float) -> float:
        """Executed FLOPs from the three forward costs λ, α, η."""
        return per_token * self.linear_tokens + per_pair * self.attention_pairs + per_head_position * self.head_positions


class Talk(Protocol):
    """Turns of many episodes that are sampled together, with memory between turns where the engine can keep it."""

    @property
    def num_active(self) -> int:
        """Requests that are not finished."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...

    def submit(self, request: SampleRequest) -> None:
        """`request.ids` is the whole context again; what is known of it is not computed again."""
        ...

    def step(self) -> list[tuple[SampleRequest, Sampled]]:
        """Some progress for all active requests. → those that are finished now."""
        ...

    def release(self, episode: EpisodeId) -> None:
        """The episode is over."""
        ...


class Sampler(Protocol):
    """Where tokens come from. Two phases: after `sample` returns, nothing but weights is held."""

    version: int
    """Number of optimizer updates behind the weights; stamped on every sampled token."""
    counters: WorkCounters

    def sample(self, requests: Sequence[SampleRequest], settings: SamplingSettings) -> list[Sampled]:
        """One `Sampled` per request, in request order."""
        ...

    def converse(self, settings: SamplingSettings, first: np.ndarray) -> Talk:
        """For episodes of many turns. `first`: the ids of some prompt."""
        ...

    def score(self, sequences: Sequence[tuple[np.ndarray, int, float]]) -> list[np.ndarray]:
        """For each (ids int [n], start, temperature): log-probs float32 [n − start] of ids[start:], 1 ≤ start ≤ n."""
        ...

    def load(self, version: int) -> None:
        """The weights are now those of `version`; everything derived from older weights is dropped."""
        ...

    def release(self) -> None:
        """Drops every buffer that is not a weight."""
        ...

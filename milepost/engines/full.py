"""A transformers model as the engine sees it: what it can do, and its plain full forward, the oracle of all decoding."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from milepost.engines.base import WorkCounters
from milepost.models import Head, cache_name_of, head_of

_TOKENS = 4096
"""Padded tokens in one scoring forward."""
_LOGITS = 1 << 24
"""Logits held at once while scoring."""
_UNBOUNDED = 1 << 40


@dataclass(frozen=True)
class ModelFacts:
    """What the engine needs to know about a model; weights play no part, so it is found once."""

    context: int
    """Most tokens a sequence may have."""
    window: int
    """Smallest attention window; longer sequences are decoded the plain way."""
    forkable: bool
    """Every layer keeps ordinary keys and values."""
    kv_bytes_per_token: int
    cache_name: str
    takes_positions: bool
    keeps_last: bool
    vocab: int
    head: Head | None
    """None: the logits are more than a linear head, so that they are taken from the model itself."""


def model_facts(model: Any, device: torch.device) -> ModelFacts:
    """Looks at signatures, config and the cache after one token. Raises ValueError for a model without such a cache."""
    config = model.config.get_text_config()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = inspect.signature(inner.forward).parameters
    cache_name = cache_name_of(inner)
    if cache_name is None:
        raise ValueError(
            f"{type(inner).__name__} takes no key/value cache, so it cannot be sampled from; use an attention model"
        )
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=True, **{cache_name: cache})
    tensors = [x for layer in cache.layers for x in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    windows = [layer.sliding_window for layer in cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]
    return ModelFacts(
        context=getattr(config, "max_position_embeddings", None) or _UNBOUNDED,
        window=min(windows, default=_UNBOUNDED),
        forkable=all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers),
        kv_bytes_per_token=sum(x.numel() * x.element_size() for x in tensors if x is not None),
        cache_name=cache_name,
        takes_positions="position_ids" in names,
        keeps_last="logits_to_keep" in names,
        vocab=config.vocab_size,
        head=head_of(model),
    )


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """No gradients, every module in eval mode (so no dropout); each module's own flag is put back afterwards."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


Scored = tuple[np.ndarray, int, float]
"""(ids [n], start, temperature): score ids[start:]."""


def score_rows(model: Any, facts: ModelFacts, sequences: Sequence[Scored], counters: WorkCounters) -> list[np.ndarray]:
    """Float32 log-probs of ids[start:] per sequence, in order: one full forward per row, head at scored positions only."""
    began = time.perf_counter()
    device = next(model.parameters()).device
    out: list[np.ndarray] = [np.zeros(0, np.float32) for _ in sequences]
    for batch in _batches([len(ids) for ids, _, _ in sequences], facts):
        for index, logprobs in zip(batch, _score(model, facts, [sequences[i] for i in batch], counters, device)):
            out[index] = logprobs
    counters.score_seconds += time.perf_counter() - began
    return out


def _batches(lengths: list[int], facts: ModelFacts) -> Iterator[list[int]]:
    """Indices of rows of like length: at most a quarter of a batch is padding."""
    most = _TOKENS if facts.head is not None else max(1, min(_TOKENS, _LOGITS // facts.vocab))
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[batch[0]] if batch else 0
        if batch and ((len(batch) + 1) * longest > most or lengths[index] < 0.75 * longest):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _score(model: Any, facts: ModelFacts, sequences: list[Scored], counters: WorkCounters,
           device: torch.device) -> list[np.ndarray]:  # fmt: skip
    width = max(1, max(len(ids) for ids, _, _ in sequences) - 1)
    padded = np.zeros((len(sequences), width), np.int64)
    for row, (ids, _, _) in enumerate(sequences):
        padded[row, : min(width, len(ids))] = ids[:width]
    # Token i is predicted at position i − 1. Right padding comes after every real token, so it is never attended to.
    where = np.concatenate([row * width + np.arange(s - 1, len(ids) - 1) for row, (ids, s, _) in enumerate(sequences)])
    targets = np.concatenate([ids[start:] for ids, start, _ in sequences]).astype(np.int64)
    counts = [len(ids) - start for ids, start, _ in sequences]
    temperatures = np.repeat([t for _, _, t in sequences], counts)
    counters.linear_tokens += padded.size
    counters.score_tokens += padded.size
    counters.attention_pairs += len(sequences) * width * (width + 1) // 2
    counters.head_positions += len(where) if facts.head is not None else padded.size
    inputs = torch.from_numpy(padded).to(device)
    if facts.head is None:
        rows = model(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
    else:
        rows = facts.head.body(input_ids=inputs, use_cache=False).last_hidden_state.flatten(0, 1)
    flat = _logprobs(rows, facts, *(torch.from_numpy(x).to(device) for x in (where, targets, temperatures)))
    return np.split(flat, np.cumsum(counts)[:-1])


def _logprobs(rows: torch.Tensor, facts: ModelFacts, where: torch.Tensor, targets: torch.Tensor,
              temperatures: torch.Tensor) -> np.ndarray:  # fmt: skip
    """log softmax(logits/T)[target], tile by tile. `rows` are hidden states, or logits where there is no linear head."""
    parts = [np.zeros(0, np.float32)]
    tile = max(1, _LOGITS // facts.vocab)
    for i in range(0, len(where), tile):
        logits = rows[where[i : i + tile]]
        if facts.head is not None:
            logits = F.linear(logits, facts.head.weight, facts.head.bias)
        logits = logits.float() / temperatures[i : i + tile, None].float()
        picked = logits.gather(-1, targets[i : i + tile, None])[:, 0]
        parts.append((picked - torch.logsumexp(logits, -1)).cpu().numpy())
    return np.concatenate(parts)

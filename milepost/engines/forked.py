"""Key/value memory for decoding groups: each distinct prompt's keys and values once, each row's own suffix beside it.

A row attends to [its prompt | its suffix]. The two parts are computed apart and merged through their log-sum-exps
(as in Hydragen, arXiv 2402.05099): o = o_suffix + σ(lse_prompt − lse_suffix)·(o_prompt − o_suffix), which is exact. The
queries of all rows of a prompt, and of all heads that share a key head, form one matrix, so a prompt's keys are
read once per step. `forked_attention` puts this under any model that calls the attention interface of transformers.

Shapes: B rows, N prompts, S slots per prompt (the most rows any prompt has), H query heads, K key heads,
R = H/K, P longest prompt, T suffix capacity, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

ATTENTION = "milepost_forked"
"""Name under which the attention function is registered with transformers."""

_FIRST_CAPACITY = 32
_REBUILD_BELOW = 0.75
"""Prompt keys are copied together once fewer than this share of them has living rows."""
_HARMLESS = {"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "sliding_window", "cache_position"}
"""Attention keywords that cannot change a one-token step without padding (windows are checked by the engine)."""


class Unsupported(RuntimeError):
    """The model asks its attention for something that this path does not compute."""


class _LayerMemory:
    """One layer's tensors: prompt keys/values [N, K, P, D], suffix keys/values [≥B, K, T, D]."""

    __slots__ = ("prompt_k", "prompt_v", "suffix_k", "suffix_v")

    def __init__(self, prompt_k: torch.Tensor, prompt_v: torch.Tensor):
        self.prompt_k, self.prompt_v = prompt_k, prompt_v
        self.suffix_k: torch.Tensor | None = None
        self.suffix_v: torch.Tensor | None = None


class ForkedMemory:
    """Keys and values of B rows that share N prompts. All rows have the same suffix length."""

    def __init__(self, lengths_N: Sequence[int], prompt_of_row: np.ndarray, device: torch.device):
        """`lengths_N`: prompt lengths. `prompt_of_row[b]`: which prompt row b continues."""
        self.lengths_N = np.array(lengths_N, np.int64)
        self.prompt_of_row = np.array(prompt_of_row, np.int64)
        self.device = device
        self.layers: list[_LayerMemory] = []
        self.num_suffix = 0
        """Suffix tokens already stored; the step in progress writes at this index."""
        self._ragged: torch.Tensor | None = None
        """−inf [B, 1, 1, T] over suffix places that a row does not have; None: all rows are equally long."""
        self._assign_slots()

    @property
    def num_rows(self) -> int:
        return len(self.prompt_of_row)

    @property
    def pairs_per_step(self) -> int:
        """(query, key) pairs one step computes, dead slots and prompt padding included."""
        return self.num_slots * int(self.lengths_N.max()) + self.num_rows * (self.num_suffix + 1)

    @property
    def num_slots(self) -> int:
        return len(self.lengths_N) * self.slots_per_prompt

    def store_prompts(self, where: slice, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Puts per-layer prompt keys/values [n, K, p, D] of the prompts in `where` into the padded block."""
        if not self.layers:
            count, longest = len(self.lengths_N), int(self.lengths_N.max())
            for k, v in zip(keys, values):
                blocks = [x.new_zeros(count, x.shape[1], longest, x.shape[3]) for x in (k, v)]
                self.layers.append(_LayerMemory(*blocks))
        for layer, k, v in zip(self.layers, keys, values, strict=True):
            layer.prompt_k[where, :, : k.shape[2]] = k
            layer.prompt_v[where, :, : v.shape[2]] = v

    def positions(self) -> torch.Tensor:
        """int64 [B]: position of the token that the step in progress feeds."""
        return self._row_lengths + self.num_suffix

    def keep(self, index: np.ndarray) -> None:
        """Rows become index[0], index[1], …; only rows that move are copied."""
        moved = np.flatnonzero(index != np.arange(len(index)))
        if len(moved):
            to, source = (torch.from_numpy(x).to(self.device) for x in (moved, index[moved]))
            for layer in self.layers:
                for tensor in (layer.suffix_k, layer.suffix_v):
                    if tensor is not None:
                        tensor[to, :, : self.num_suffix] = tensor[source, :, : self.num_suffix]
        self.prompt_of_row = self.prompt_of_row[index]
        alive = np.unique(self.prompt_of_row)
        if len(alive) < _REBUILD_BELOW * len(self.lengths_N):
            self._drop_prompts(alive)
        self._assign_slots()

    def _drop_prompts(self, alive: np.ndarray) -> None:
        longest = int(self.lengths_N[alive].max())
        which = torch.from_numpy(alive).to(self.device)
        for layer in self.layers:
            layer.prompt_k = layer.prompt_k[:, :, :longest].index_select(0, which)
            layer.prompt_v = layer.prompt_v[:, :, :longest].index_select(0, which)
        self.lengths_N = self.lengths_N[alive]
        self.prompt_of_row = np.searchsorted(alive, self.prompt_of_row)

    def _assign_slots(self) -> None:
        """Rows of prompt n get slots n·S, n·S+1, … Slots without a row repeat row 0; their result is not read."""
        order = np.argsort(self.prompt_of_row, kind="stable")
        counts = np.bincount(self.prompt_of_row, minlength=len(self.lengths_N))
        self.slots_per_prompt = int(counts.max())
        rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        slot_of_row = np.empty(len(order), np.int64)
        slot_of_row[order] = self.prompt_of_row[order] * self.slots_per_prompt + rank
        row_of_slot = np.zeros(len(self.lengths_N) * self.slots_per_prompt, np.int64)
        row_of_slot[slot_of_row] = np.arange(len(order))
        in_order = len(row_of_slot) == len(order) and bool((slot_of_row == np.arange(len(order))).all())
        self._slot_of_row = None if in_order else torch.from_numpy(slot_of_row).to(self.device)
        self._row_of_slot = None if in_order else torch.from_numpy(row_of_slot).to(self.device)
        self._row_lengths = torch.from_numpy(self.lengths_N[self.prompt_of_row]).to(self.device)
        longest = self.layers[0].prompt_k.shape[2] if self.layers else int(self.lengths_N.max())
        self._padding = None
        if (self.lengths_N < longest).any():
            padded = torch.from_numpy(np.arange(longest) >= self.lengths_N[:, None]).to(self.device)
            self._padding = torch.zeros(padded.shape, device=self.device).masked_fill_(padded, -torch.inf)[:, None, None]

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float,
               softcap: float | None = None) -> torch.Tensor:  # fmt: skip
        """One step of one layer. query [B, H, 1, D], key/value of the new token [B, K, 1, D] → [B, 1, H, D]."""
        memory = self.layers[layer]
        rows, heads, _, size = query.shape
        key_heads = key.shape[1]
        ratio, slots = heads // key_heads, self.slots_per_prompt
        suffix_k, suffix_v = self._append(memory, key, value)
        q = query.reshape(rows, key_heads, ratio, size)
        own, own_lse = _partial(q, suffix_k, suffix_v, scale, softcap, self._ragged)
        if self._row_of_slot is not None:
            q = q.index_select(0, self._row_of_slot)
        q = q.view(-1, slots, key_heads, ratio, size).transpose(1, 2).reshape(-1, key_heads, slots * ratio, size)
        shared, shared_lse = _partial(q, memory.prompt_k, memory.prompt_v, scale, softcap, self._padding)
        shared = self._to_rows(shared.unflatten(2, (slots, ratio)))
        shared_lse = self._to_rows(shared_lse.unflatten(2, (slots, ratio)).unsqueeze(-1))
        share = torch.sigmoid(shared_lse - own_lse.unsqueeze(-1))
        own = own.float()
        return own.add_((shared.float() - own).mul_(share)).to(query.dtype).view(rows, 1, heads, -1)

    def _to_rows(self, x: torch.Tensor) -> torch.Tensor:
        """[N, K, S, R, …] → [B, K, R, …]"""
        x = x.transpose(1, 2).flatten(0, 1)
        return x if self._slot_of_row is None else x.index_select(0, self._slot_of_row)

    def _append(self, memory: _LayerMemory, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at, rows = self.num_suffix, len(key)
        if memory.suffix_k is None or at == memory.suffix_k.shape[2]:
            memory.suffix_k = _grown(memory.suffix_k, key, at)
            memory.suffix_v = _grown(memory.suffix_v, value, at)
        suffix_k, suffix_v = memory.suffix_k[:rows, :, : at + 1], memory.suffix_v[:rows, :, : at + 1]  # type: ignore[index]
        suffix_k[:, :, at] = key[:, :, 0]
        suffix_v[:, :, at] = value[:, :, 0]
        return suffix_k, suffix_v


def _grown(old: torch.Tensor | None, like: torch.Tensor, used: int) -> torch.Tensor:
    """Doubling keeps the memory of short answers small, and copies each token at most once on average."""
    rows, heads, _, size = like.shape
    new = like.new_empty(rows, heads, max(_FIRST_CAPACITY, 2 * used), size)
    if old is not None:
        new[:, :, :used] = old[:rows, :, :used]
    return new


def _partial(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None,
             bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention over one part: q [n, K, m, D], k/v [n, K, t, D], bias [n, 1, 1, t] → output [n, K, m, D], lse [n, K, m]."""
    if softcap is None and q.device.type == "cpu" and q.dtype != torch.float32 and v.shape[-1] == k.shape[-1]:
        # Fused, and its scores stay float32; plain products would round them to bfloat16.
        mask = None if bias is None else bias.to(q.dtype)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
    scores = torch.matmul(q, k.transpose(2, 3)).float().mul_(scale)
    if softcap is not None:
        scores = torch.tanh(scores.div_(softcap)).mul_(softcap)
    if bias is not None:
        scores.add_(bias)
    top = scores.amax(-1, keepdim=True)
    exp = scores.sub_(top).exp_()
    total = exp.sum(-1, keepdim=True)
    return torch.matmul(exp.div_(total).to(v.dtype), v), (top + total.log())[..., 0]


class _HandThrough(DynamicLayer):
    """A cache layer that stores nothing: the attention function stores the new token where it belongs."""

    def __init__(self, memory: ForkedMemory, longest: int):
        super().__init__()
        self.memory, self.longest = memory, longest
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.longest + self.memory.num_suffix

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


class ForkedCache(Cache):
    """What a transformers model is given as its cache while ForkedMemory does the remembering."""

    def __init__(self, memory: ForkedMemory):
        longest = int(memory.lengths_N.max())
        super().__init__(layers=[_HandThrough(memory, longest) for _ in memory.layers])


_active: list[ForkedMemory] = []


def forked_attention(module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                     attention_mask: Any, scaling: float | None = None, softcap: float | None = None,
                     **kwargs: Any) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention function for transformers' interface: one new token per row against the active memory."""
    strange = [name for name, value in kwargs.items() if value is not None and value is not False and name not in _HARMLESS]
    if attention_mask is not None or strange or query.shape[2] != 1 or not _active:
        raise Unsupported(f"attention is called with {', '.join(strange) or 'a mask or several queries'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _active[-1].attend(module.layer_idx, query, key, value, scale, softcap), None  # type: ignore[arg-type]


@contextmanager
def attending(model: nn.Module, memory: ForkedMemory) -> Iterator[None]:
    """Within the block, the model's attention is `forked_attention` over `memory`."""
    configs: Any = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()
    before = [(config, config._attn_implementation) for config in configs]
    _active.append(memory)
    try:
        for config, _ in before:
            config._attn_implementation = ATTENTION
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        _active.pop()


def register() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, forked_attention)

"""Draws tokens from logits by inverse CDF, and records the log-prob of what was drawn.

A draw is a pure function of (logits row, uniform, settings). The CDF is searched in two levels: block sums first, then
inside one block; that costs one pass over the exponentials and keeps float64 where rounding would matter.
"""

from __future__ import annotations

import torch

from milepost.engines.base import SamplingSettings

_BLOCK = 256
_TILE_ELEMENTS = 1 << 19
"""Logits handled at a time on CPU: 2 MiB of float32 stay in the second-level cache."""


def draw(
    logits_BV: torch.Tensor, uniforms_B: torch.Tensor, settings: SamplingSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws one token per row. → (ids int64 [B], logprobs float32 [B]).

    `uniforms_B` float64 in [0, 1). Log-probs are of the distribution drawn from, computed in float32. Raises
    FloatingPointError when a row has no finite distribution.
    """
    if settings.is_greedy:
        best, ids = logits_BV.float().max(dim=-1)
        _require_finite(best)
        return ids, torch.zeros_like(best)
    rows, vocab = logits_BV.shape
    tile = max(1, _TILE_ELEMENTS // vocab) if logits_BV.device.type == "cpu" else rows
    parts = [
        _draw_tile(restricted(logits_BV[i : i + tile], settings), uniforms_B[i : i + tile]) for i in range(0, rows, tile)
    ]
    return torch.cat([ids for ids, _ in parts]), torch.cat([logprobs for _, logprobs in parts])


def restricted(logits_BV: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Float32 logits at the sampling temperature, −inf outside the support. Ties with the k-th largest stay in."""
    x_BV = logits_BV.float()
    if settings.temperature != 1:
        x_BV = x_BV / settings.temperature
    if 0 < settings.top_k < x_BV.shape[-1]:
        kth = x_BV.topk(settings.top_k, dim=-1).values[:, -1:]
        x_BV = x_BV.masked_fill(x_BV < kth, -torch.inf)
    if settings.top_p < 1:
        ordered, order = x_BV.sort(dim=-1, descending=True, stable=True)
        probs = ordered.double().softmax(-1)
        # A token stays while the mass before it is short of top_p: the smallest set that reaches top_p.
        outside = probs.cumsum(-1) - probs >= settings.top_p
        x_BV = x_BV.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf)
    if settings.min_p > 0:
        floor = x_BV.amax(-1, keepdim=True) + torch.log(torch.tensor(settings.min_p, dtype=torch.float32))
        x_BV = x_BV.masked_fill(x_BV < floor, -torch.inf)
    return x_BV


def _draw_tile(x_BV: torch.Tensor, uniforms_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, vocab = x_BV.shape
    blocks = -(-vocab // _BLOCK)
    top = x_BV.amax(-1, keepdim=True)
    exp = x_BV.new_empty(rows, blocks * _BLOCK)
    exp[:, vocab:] = 0
    torch.sub(x_BV, top, out=exp[:, :vocab]).exp_()
    exp = exp.view(rows, blocks, _BLOCK)
    cdf = exp.sum(-1).double().cumsum(-1)
    total = cdf[:, -1:]
    _require_finite(total)
    target = uniforms_B[:, None] * total
    block = _first_above(cdf, target)
    before = torch.where(block > 0, cdf.gather(-1, (block - 1).clamp(min=0)), torch.zeros_like(total))
    inner = exp[torch.arange(rows, device=exp.device), block[:, 0]].double().cumsum(-1)
    ids = block * _BLOCK + _first_above(inner, target - before)
    logprobs = (x_BV.gather(-1, ids) - top)[:, 0].double() - total[:, 0].log()
    return ids[:, 0], logprobs.float()


def _first_above(cdf_BN: torch.Tensor, target_B1: torch.Tensor) -> torch.Tensor:
    """Index of the first entry above the target [B, 1]. Never an entry of zero mass: rounding at the top is cut off."""
    top = cdf_BN[:, -1:] * (1 - 1e-15)
    return torch.searchsorted(cdf_BN, torch.minimum(target_B1, top), right=True)


def _require_finite(values: torch.Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise FloatingPointError(
            "the model's logits are not finite: a weight or activation overflowed; lower the learning rate or use float32"
        )

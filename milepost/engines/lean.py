"""One decoding step of the Llama family without module overhead: Llama, Mistral, Qwen2, Qwen3, SmolLM2.

Reads the modules' own parameters on every call, so there is no second copy that could go stale after an update.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from milepost.engines.forked import ForkedMemory

_FAMILY = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip


def is_lean(model: nn.Module) -> bool:
    """Whether `step` computes this model: right class, SiLU, and no projection replaced (by an adapter, say)."""
    config: Any = getattr(model, "config", None)
    if type(model).__name__ not in _FAMILY or getattr(config, "hidden_act", "") != "silu":
        return False
    layers = model.model.layers  # type: ignore[union-attr]
    linears = (layer.get_submodule(name) for layer in layers for name in _LINEARS)  # type: ignore[union-attr]
    return all(type(linear) is nn.Linear and not linear._forward_hooks for linear in linears)


def step(model: Any, tokens_B: torch.Tensor, positions_B: torch.Tensor, memory: ForkedMemory) -> torch.Tensor:
    """Feeds one token per row. → logits [B, V]; the new keys and values are in `memory`."""
    body = model.model
    h = body.embed_tokens(tokens_B)
    cos, sin = body.rotary_emb(h[:, None], positions_B[:, None])
    half = cos.shape[-1] // 2
    # rotate_half(x)·sin = roll(x)·(−sin_low, sin_high): one multiplication less per half, same products.
    signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
    for index, layer in enumerate(body.layers):
        h = h + _attention(layer.self_attn, index, _rms(layer.input_layernorm, h), cos, signed, memory)
        x = _rms(layer.post_attention_layernorm, h)
        mlp = layer.mlp
        h = h + _linear(mlp.down_proj, F.silu(_linear(mlp.gate_proj, x)).mul_(_linear(mlp.up_proj, x)))
    return _linear(model.lm_head, _rms(body.norm, h))


def _attention(attention: Any, index: int, x: torch.Tensor, cos: torch.Tensor, signed: torch.Tensor,
               memory: ForkedMemory) -> torch.Tensor:  # fmt: skip
    size = attention.head_dim
    q, k, v = (_linear(p, x).unflatten(-1, (-1, size)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):
        q, k = _rms(attention.q_norm, q), _rms(attention.k_norm, k)
    qk = torch.cat((q, k), 1)
    qk = torch.addcmul(qk * cos, qk.roll(size // 2, -1), signed)
    q, k = qk[:, : q.shape[1]], qk[:, q.shape[1] :]
    out = memory.attend(index, q[:, :, None], k[:, :, None], v[:, :, None], attention.scaling)
    return _linear(attention.o_proj, out.flatten(1))


def _linear(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, linear.weight, linear.bias)


def _rms(norm: Any, x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return norm.weight * wide.to(x.dtype)

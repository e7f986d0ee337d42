"""What a training step must cost, and what it did cost, in FLOPs. No clock, no torch.

One FLOP is one multiplication or one addition. A dense decoder with L layers, width d, n_h query heads and n_kv key
heads of size h, inner width f and vocabulary V costs, forward:

    λ  per token                          2 · L · (2·d·n_h·h + 2·d·n_kv·h + 3·d·f)    (2·d·f if the MLP is not gated)
    α  per (query, visible key) pair      4 · L · n_h · h
    η  per position whose logits are read 2 · V · d

A backward pass costs twice its forward. Norms, activations, softmax and the optimizer are left out: together they are
under a hundredth. Attention counts visible keys only; a sliding window shorter than the sequence is not subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from milepost.engines.base import WorkCounters
from milepost.forest import Batch
from milepost.types import Episode, RecipeError

_UNGATED = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "phi", "falcon", "starcoder2", "codegen", "mpt",
     "nemotron", "xglm", "biogpt", "stablelm_epoch"}
)  # fmt: skip
"""Model types whose MLP has two matrices instead of three."""


@dataclass(frozen=True)
class ModelCost:
    """Forward costs λ, α, η in FLOPs, and the memory of one cached token."""

    per_token: float
    per_pair: float
    per_head_position: float
    kv_bytes_per_token: int

    def flops(self, work: WorkCounters) -> float:
        return work.flops(self.per_token, self.per_pair, self.per_head_position)


def model_cost(config: Any, *, value_bytes: int = 2) -> ModelCost:
    """Costs from a Hugging Face config, as an object or as the mapping in config.json. `value_bytes`: of a cached value.

    Raises RecipeError for mixtures of experts and for layers without ordinary attention, whose work is another formula.
    """
    get = _reader(config)
    _refuse_other_architectures(get)
    layers, width = get("num_hidden_layers", "n_layer", "num_layers"), get("hidden_size", "n_embd", "d_model")
    heads = get("num_attention_heads", "n_head", "num_heads")
    key_heads = get("num_key_value_heads", default=heads)
    size = get("head_dim", default=width // heads)
    inner = get("intermediate_size", "n_inner", "ffn_dim", default=4 * width)
    gated = get("model_type", default="") not in _UNGATED
    matrices = 2 * width * heads * size + 2 * width * key_heads * size + (3 if gated else 2) * width * inner
    return ModelCost(
        per_token=2.0 * layers * matrices,
        per_pair=4.0 * layers * heads * size,
        per_head_position=2.0 * get("vocab_size") * width,
        kv_bytes_per_token=2 * layers * key_heads * size * value_bytes,
    )


def _reader(config: Any) -> Any:
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()

    def get(*names: str, default: Any = None) -> Any:
        for name in names:
            value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if value is not None:
                return value
        if default is None:
            raise RecipeError(f"the model's config names no {names[0]}, so the work of a step cannot be counted; use a "
                              "model with a config like Llama's")  # fmt: skip
        return default

    return get


def _refuse_other_architectures(get: Any) -> None:
    experts = max(get(name, default=0) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    other = set(get("layer_types", default=())) - {"full_attention", "sliding_attention", "chunked_attention"}
    what = f"{experts} experts" if experts > 1 else f"{sorted(other)[0]} layers" if other else ""
    if what:
        raise RecipeError(f"the model has {what}, whose work this cost model does not count; use a dense attention model")


@dataclass(frozen=True)
class StepWork:
    """The work of one GRPO step by part, in units of a forward pass; a backward pass counts as two forwards.

    `prefill` and `decode` include their head positions; `blocks` and `head` are forward and backward of the update.
    """

    prefill: WorkCounters
    decode: WorkCounters
    blocks: WorkCounters
    head: WorkCounters

    def by_part(self, cost: ModelCost) -> dict[str, float]:
        """FLOPs of each part, in order."""
        return {f.name: cost.flops(getattr(self, f.name)) for f in fields(self)}

    def flops(self, cost: ModelCost) -> float:
        return sum(self.by_part(cost).values())

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


def no_work() -> StepWork:
    return StepWork(WorkCounters(), WorkCounters(), WorkCounters(), WorkCounters())


def span(start: int, num: int) -> int:
    """Visible keys, summed over `num` tokens that follow `start` others; each token sees itself."""
    return num * start + num * (num + 1) // 2


def ideal_step(episodes: Sequence[Episode], batch: Batch | None) -> StepWork:
    """The least work that samples these episodes and makes one update on `batch` (None: nothing to learn).

    Sampling: one prefill per distinct prompt; every sampled token but the last goes through the model once; keys and
    values stay from turn to turn. Update: each node of the batch's prefix forest once, forward and backward; the head
    once per sampled token that is scored. On-policy, so that no log-prob is computed twice, and without a reference.
    """
    prefill, decode = _ideal_sampling(episodes)
    if batch is None:
        return StepWork(prefill, decode, WorkCounters(), WorkCounters())
    pairs = int(np.sum(batch.forest.position_U + 1))
    blocks = WorkCounters(linear_tokens=3 * len(batch.forest), attention_pairs=3 * pairs)
    return StepWork(prefill, decode, blocks, WorkCounters(head_positions=3 * batch.num_events))


def _ideal_sampling(episodes: Sequence[Episode]) -> tuple[WorkCounters, WorkCounters]:
    prefill, decode = WorkCounters(), WorkCounters()
    known: set[bytes] = set()
    for episode in episodes:
        history = 0
        for turn in episode.turns:
            # The last sampled token of the turn before has not been through the model yet: it goes with the new context.
            begin = 0 if turn.new_segment or not history else history - 1
            end = (0 if turn.new_segment else history) + len(turn.context_ids)
            prompt = turn.context_ids.tobytes() if begin == 0 else None
            if prompt is None or prompt not in known:
                _count(prefill, begin, end - begin, 1)
            if prompt is not None:
                known.add(prompt)
            num = max(0, len(turn.sampled.ids) - 1)
            _count(decode, end, num, num)
            history = end + len(turn.sampled.ids)
    return prefill, decode


def _count(work: WorkCounters, begin: int, num: int, num_head: int) -> None:
    work.linear_tokens += num
    work.attention_pairs += span(begin, num)
    work.head_positions += num_head


def executed_step(prefill: WorkCounters, sampler: WorkCounters, learner: WorkCounters) -> StepWork:
    """The executed counterpart, from what the sampler (of it `prefill`) and the learner counted during one step."""
    head = WorkCounters(head_positions=learner.head_positions)
    return StepWork(prefill, sampler - prefill, learner - head, head)


def work_ratio(executed: StepWork, ideal: StepWork, cost: ModelCost) -> float:
    """Executed over ideal FLOPs: 1 is the floor, padding and repeated work raise it. The same on every machine."""
    return executed.flops(cost) / ideal.flops(cost)

"""From a batch to the log-probs of its events, differentiably.

Two executors behind one function: `plain` runs one row per episode and is the oracle; `packed` runs one row per group in
which every shared prefix stands once, under a tree mask. Both score the head at event positions only. The packed path
proves itself against plain on first use (`Executor.prove`) and is switched off, loudly, where it disagrees.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from milepost.engines.base import WorkCounters
from milepost.forest import Batch, Call, plan, tree_mask
from milepost.models import Head, cache_name_of, head_of
from milepost.pieces import Pieces

log = logging.getLogger("milepost")

# Largest disagreement in log-prob between packed and plain that counts as the same function.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.5, torch.float16: 0.1}
HEAD_TILE = 256
"""Positions whose logits exist at one time."""
_LEAST_PIECE = 16
"""Columns of a piece, however many rows a call has."""
FILLER = 0
"""The id in padded slots. Any id would do: nothing attends to them and nothing is read from them."""


@dataclass(frozen=True)
class Readout:
    """What the learner reads from the model for some events [e]: log-probs with gradient, entropies without."""

    logprobs: Tensor
    entropy: Tensor


@dataclass
class Executor:
    """Runs calls on a model. `kind` is "packed" or "plain"; packed may be demoted by `prove`."""

    model: nn.Module
    kind: str = "packed"
    tokens_per_call: int = 4096
    counters: WorkCounters = field(default_factory=WorkCounters)
    proven: bool = False
    in_pieces: bool | None = None
    """Whether calls beyond the budget are run in pieces: proved, refuted, not tried yet."""

    def __post_init__(self) -> None:
        self.head: Head | None = head_of(self.model)
        # A model without a cache refuses any name: `_prove_pieces` then runs its calls whole.
        self.cache_name = cache_name_of(self.model if self.head is None else self.head.body) or "past_key_values"
        if self.head is None and self.kind == "packed":
            log.warning("the model's head does more than one matrix product (soft-cap or scale): plain executor")
            self.kind = "plain"

    def calls(self, batch: Batch, *, together: bool = True) -> list[Call]:
        """`together`: no episode straddles two calls, as sequence-level ratios need it."""
        return plan(batch, shared=self.kind == "packed", tokens_per_call=self.tokens_per_call, together=together)

    def run(self, batch: Batch, call: Call, *, backward: bool = True) -> Readout:
        """Log-probs and entropies of the call's events, [len(call.event)] each, in float32 or wider.

        A call that exceeds the budget, because its rows cannot be split, is run in pieces where gradients are wanted.
        """
        if backward and torch.is_grad_enabled() and call.padded_tokens > self.tokens_per_call:
            self._prove_pieces(batch, call)
            if self.in_pieces:
                return _run_in_pieces(self, batch, call)
        return _run(self, batch, call, self.kind, backward)

    def _prove_pieces(self, batch: Batch, call: Call) -> None:
        """Compares a call in pieces with the whole on first use."""
        if self.in_pieces is not None:
            return
        counted, self.counters = self.counters, WorkCounters()
        try:
            with torch.no_grad():
                whole = _run(self, batch, call, self.kind, False).logprobs
                gap = float((_run_in_pieces(self, batch, call).logprobs - whole).abs().max())
            why = f"they disagree by {gap:.2g} nats"
            self.in_pieces = gap <= TOLERANCE[next(self.model.parameters()).dtype]
        except Exception as error:  # whatever an architecture raises that takes no such cache
            self.in_pieces, why = False, f"{type(error).__name__}: {error}"
        finally:
            self.counters = counted
        if not self.in_pieces:
            log.warning(f"rows longer than update.tokens_per_call cannot be run in pieces ({why}): whole from now on")

    def hidden(self, batch: Batch, call: Call) -> Tensor:
        """The last hidden states that the call's events are read from, [len(call.event), width]."""
        laid = _Laid(self, batch, call, self.kind)
        _count(self.counters, call, 0, torch.is_grad_enabled())
        return laid.hidden()[laid.where][laid.which]

    def readouts(self, batch: Batch) -> Iterator[tuple[Call, Readout]]:
        """Every call without gradient."""
        with torch.no_grad():
            for call in self.calls(batch, together=False):
                yield call, self.run(batch, call, backward=False)

    def score(self, batch: Batch) -> np.ndarray:
        """Log-probs of all events, float64 [E], without gradient."""
        return self.read(batch)[0]

    def read(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Log-probs and entropies of all events, float64 [E] each, without gradient."""
        self.prove(batch, together=False)
        logprobs, entropy = np.empty(batch.num_events), np.empty(batch.num_events)
        for call, readout in self.readouts(batch):
            logprobs[call.event] = readout.logprobs.double().cpu().numpy()
            entropy[call.event] = readout.entropy.double().cpu().numpy()
        return logprobs, entropy

    def prove(self, batch: Batch, *, together: bool = True) -> None:
        """Compares packed with plain on the smallest tree of the first batch that has one; demotes packed on a mismatch."""
        if self.proven or self.kind != "packed":
            return
        trees = [call for call in self.calls(batch, together=together) if _is_tree(call)]
        if not trees:
            return
        self.proven = True
        first = min(trees, key=lambda call: call.padded_tokens)
        counted, self.counters = self.counters, WorkCounters()
        with torch.no_grad():
            packed = self.run(batch, first, backward=False).logprobs
            plain = torch.empty_like(packed)
            wanted = {int(e): i for i, e in enumerate(first.event)}
            for call in plan(batch, shared=False, tokens_per_call=self.tokens_per_call, together=False):
                mine = [i for i, e in enumerate(call.event) if int(e) in wanted]
                if mine:
                    values = _run(self, batch, call, "plain", False).logprobs
                    plain[[wanted[int(call.event[i])] for i in mine]] = values[mine]
        self.counters = counted
        gap = (packed - plain).abs()
        dtype = next(self.model.parameters()).dtype
        if not bool(gap.max() <= TOLERANCE[dtype]):
            log.warning(f"packed executor disagrees with plain (largest gap {gap.max():.2g} nats): plain from now on")
            self.kind = "plain"


def _run(executor: Executor, batch: Batch, call: Call, kind: str, backward: bool) -> Readout:
    laid = _Laid(executor, batch, call, kind)
    _count(executor.counters, call, len(laid.where), backward)
    states = laid.states(0, call.width, {"use_cache": False})[laid.where]
    return laid.read(states, laid.which, slice(None))


def _run_in_pieces(executor: Executor, batch: Batch, call: Call) -> Readout:
    laid = _Laid(executor, batch, call, executor.kind)
    width = max(_LEAST_PIECE, executor.tokens_per_call // len(call.rows))
    spans = [(first, min(first + width, call.width)) for first in range(0, call.width, width)]
    _count_pieces(executor.counters, call, spans, len(laid.where))
    config: Any = executor.model.config
    num_layers = len(DynamicCache(config=config).layers)
    pieces = Pieces(laid.piece, spans, len(call.event), num_layers)
    return Readout(*(pieces.readout() if torch.is_grad_enabled() else pieces.forward()))


class _Laid:
    """A call as tensors, and how its events are read. `where` [n]: the distinct flat positions with events, ascending;
    `which` [e] maps events to them."""

    def __init__(self, executor: Executor, batch: Batch, call: Call, kind: str) -> None:
        self.executor, self.batch, self.call = executor, batch, call
        self.device = next(executor.model.parameters()).device
        self.masked = kind == "packed" and _is_tree(call)
        self.ids, self.positions = (np.full((len(call.rows), call.width), filler, np.int64) for filler in (FILLER, 0))
        for r, nodes in enumerate(call.rows):
            self.ids[r, : len(nodes)] = batch.forest.ids_U[nodes]
            self.positions[r, : len(nodes)] = batch.forest.position_U[nodes]
        position, of_event = np.unique(call.row_e * call.width + call.slot_e, return_inverse=True)
        self.where, self.which = self._tensor(position), self._tensor(of_event)
        self.target = self._tensor(batch.token_E[call.event])
        self.temperature = self._tensor(batch.temperature_E[call.event])

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def states(self, first: int, last: int, more: Mapping[str, Any]) -> Tensor:
        """Hidden states, or logits without a linear head, of columns first … last − 1 of all rows; [R · columns, d]."""
        head, inputs = self.executor.head, self._inputs(first, last, more)
        whole = self.executor.model(**inputs).logits if head is None else head.body(**inputs).last_hidden_state
        return whole.flatten(0, 1)

    def hidden(self) -> Tensor:
        """Hidden states of all rows, whether or not the head is linear; [R · L, d]."""
        head, inputs = self.executor.head, self._inputs(0, self.call.width, {"use_cache": False})
        if head is not None:
            return head.body(**inputs).last_hidden_state.flatten(0, 1)
        return self.executor.model(**inputs, output_hidden_states=True).hidden_states[-1].flatten(0, 1)

    def _inputs(self, first: int, last: int, more: Mapping[str, Any]) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": self._tensor(self.ids[:, first:last]),
                                  "position_ids": self._tensor(self.positions[:, first:last]), **more}  # fmt: skip
        if self.masked:
            inputs["attention_mask"] = self._tensor(tree_mask(self.batch, self.call, first, last))[:, None]
        return inputs

    def read(self, states: Tensor, which: Tensor, events: Any) -> Readout:
        """Of some events, at the states that they are read from."""
        head, target, temperature = self.executor.head, self.target[events], self.temperature[events]
        if head is None:
            return _dense_readout(states, which, target, temperature)
        return Readout(*HeadLogprobs.apply(states, head.weight, head.bias, which, target, temperature))

    def piece(self, first: int, last: int, cache: Any) -> tuple[Tensor, Tensor, Tensor]:
        """As `Pieces` asks for it."""
        row, column = self.where // self.call.width, self.where % self.call.width
        mine = (column >= first) & (column < last)
        events = mine[self.which].nonzero()[:, 0]
        at = row[mine] * (last - first) + column[mine] - first
        states = self.states(first, last, {"use_cache": True, self.executor.cache_name: cache})[at]
        read = self.read(states, (mine.cumsum(0) - 1)[self.which[events]], events)
        return events, read.logprobs, read.entropy


def _is_tree(call: Call) -> bool:
    """Whether some row needs a mask of its own; single paths are causal as they are."""
    return any(len(segments) > 1 for segments in call.segments)


def _count(counters: WorkCounters, call: Call, num_positions: int, backward: bool) -> None:
    """Executed work, padding included; a backward pass costs twice its forward, the head's tiles are computed again."""
    counters.linear_tokens += call.padded_tokens * (3 if backward else 1)
    counters.attention_pairs += call.padded_tokens * call.width * (3 if backward else 1)
    counters.head_positions += num_positions * (4 if backward else 1)


def _count_pieces(counters: WorkCounters, call: Call, spans: Sequence[tuple[int, int]], num_positions: int) -> None:
    """A forward more than a call that is run whole."""
    counters.linear_tokens += call.padded_tokens * 4
    counters.attention_pairs += sum((last - first) * last for first, last in spans) * len(call.rows) * 4
    counters.head_positions += num_positions * 5


def _dense_readout(logits: Tensor, which: Tensor, target: Tensor, temperature: Tensor) -> Readout:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    logp = torch.log_softmax(wide[which] / temperature[:, None].to(wide.dtype), -1)
    entropy = -(logp.exp() * logp).sum(-1).detach()
    return Readout(logp.gather(-1, target[:, None])[:, 0], entropy)


class HeadLogprobs(torch.autograd.Function):
    """log softmax(h·Wᵀ/T)[target] at events, tile by tile: the logits of a whole batch never exist at once.

    hidden [n, d] at n distinct positions; which [e] maps events to positions; target, temperature [e]. The backward pass
    computes each tile's logits again; d logp/d logits = (onehot − softmax)/T. Weight gradients are summed in float32.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, which, target, temperature):  # type: ignore[override]
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs = torch.empty(len(which), dtype=wide, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        for rows, events, local in _tiles(which, len(hidden)):
            logits = _logits(hidden[rows], weight, bias, wide)
            logp = _tempered(logits, local, temperature[events])
            logprobs[events] = logp.gather(1, target[events][:, None])[:, 0]
            entropy[events] = -(logp.exp() * logp).sum(1)
        ctx.save_for_backward(hidden, weight, bias, which, target, temperature)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad_logprobs, _grad_entropy):  # type: ignore[override]
        hidden, weight, bias, which, target, temperature = ctx.saved_tensors
        wide = grad_logprobs.dtype
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros(bias.shape, dtype=wide, device=bias.device) if bias is not None else None
        for rows, events, local in _tiles(which, len(hidden)):
            logits = _logits(hidden[rows], weight, bias, wide)
            scale = (grad_logprobs[events] / temperature[events].to(wide))[:, None]
            by_event = _tempered(logits, local, temperature[events]).exp_().mul_(-scale)
            by_event.scatter_add_(1, target[events][:, None], scale)
            by_row = torch.zeros_like(logits).index_add_(0, local, by_event)
            narrow = by_row.to(hidden.dtype)
            grad_hidden[rows] = narrow @ weight
            if grad_weight is not None:
                grad_weight += narrow.T @ hidden[rows]
            if grad_bias is not None:
                grad_bias += by_row.sum(0)
        as_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        as_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, as_weight, as_bias, None, None, None


def _tiles(which: Tensor, num_positions: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(positions, events at those positions, the events' positions counted from the tile's start)."""
    for start in range(0, num_positions, HEAD_TILE):
        events = ((which >= start) & (which < start + HEAD_TILE)).nonzero()[:, 0]
        yield slice(start, min(start + HEAD_TILE, num_positions)), events, which[events] - start


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, wide: torch.dtype) -> Tensor:
    logits = hidden @ weight.T
    return (logits if bias is None else logits + bias).to(wide)


def _tempered(logits: Tensor, local: Tensor, temperature: Tensor) -> Tensor:
    return torch.log_softmax(logits[local] / temperature[:, None].to(logits.dtype), dim=1)

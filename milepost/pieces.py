"""Long rows in pieces: exact gradients with the activations of one piece at a time.

A row longer than the budget of a call cannot be split into calls, because every token reads all before it. So it is run
from left to right without gradients, keeping keys and values; and when the loss asks for gradients, from right to left
again, each piece against the keys and values before it, whose gradients it leaves to the pieces that made them:

    forward    piece 1 → k v → piece 2 → k v → piece 3          no graph is kept
    backward   piece 3 again, its log-probs' gradient in → parameters; gradients of the k v of pieces 1 and 2
               piece 2 again, also the gradient of its own k v in → parameters; more gradients of the k v of piece 1
               piece 1 again, also the gradient of its own k v in → parameters

That is the whole row's gradient by the chain rule, up to rounding, for one forward more. Memory: the activations of one
piece; keys and values of the row with their gradients (float32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

Piece = Callable[[int, int, Cache], tuple[Tensor, Tensor, Tensor]]
"""piece(first, last, cache) runs columns first … last − 1 → (events [e] read from them, log-probs [e], entropies [e])."""


class Pieces:
    """One call, R rows of L columns, cut into `spans` (first, last) of columns; `num_events` are read from it."""

    def __init__(self, run: Piece, spans: Sequence[tuple[int, int]], num_events: int, num_layers: int) -> None:
        self.run, self.spans, self.num_events, self.num_layers = run, spans, num_events, num_layers
        self.stored: list[tuple[Tensor, Tensor]] = []
        """Per layer, keys and values [R, K, L, D]."""

    def readout(self) -> tuple[Tensor, Tensor]:
        """(log-probs with gradient, entropies without), [num_events] each."""
        return _InPieces.apply(torch.zeros((), requires_grad=True), self)

    @torch.no_grad()
    def forward(self) -> tuple[Tensor, Tensor]:
        logprobs = entropy = torch.empty(0)
        for first, last in self.spans:
            layers = self._layers(first)
            events, *read = self.run(first, last, Cache(layers=list(layers)))
            if first == 0:
                logprobs, entropy = (values.new_empty(self.num_events) for values in read)
                self.stored = [(self._room(k), self._room(v)) for k, v in (layer.new for layer in layers)]
            logprobs[events], entropy[events] = read
            for kept, layer in zip(self.stored, layers):
                for whole, new in zip(kept, layer.new):
                    whole[:, :, first:last] = new
        return logprobs, entropy

    def backward(self, gradient: Tensor) -> None:
        """Adds the parameters' gradients, given that of the log-probs."""
        width = self.spans[-1][1]
        left = [tuple(torch.zeros_like(x, dtype=torch.float32) for x in kept) for kept in self.stored]
        for first, last in reversed(self.spans):
            layers = self._layers(first)
            with torch.enable_grad():
                events, logprobs, _ = self.run(first, last, Cache(layers=list(layers)))
            given = [(logprobs, gradient[events])] if len(events) else []
            if last < width:
                given += [(new, own[:, :, first:last].to(new.dtype))
                          for layer, owed in zip(layers, left) for new, own in zip(layer.new, owed)]  # fmt: skip
            given = [(output, seed) for output, seed in given if output.requires_grad]
            if given:
                torch.autograd.backward(*map(list, zip(*given)))  # type: ignore[arg-type]
            for layer, owed in zip(layers, left):
                for past, own in zip(layer.past, owed):
                    if past.grad is not None:
                        own[:, :, :first] += past.grad

    def _layers(self, first: int) -> list[_PieceLayer]:
        if not first:
            return [_PieceLayer(()) for _ in range(self.num_layers)]
        return [_PieceLayer(tuple(x[:, :, :first].detach().requires_grad_() for x in kept)) for kept in self.stored]

    def _room(self, like: Tensor) -> Tensor:
        rows, heads, _, size = like.shape
        return like.new_empty(rows, heads, self.spans[-1][1], size)


class _PieceLayer(DynamicLayer):
    """One layer's past keys and values, () at the start; `new` are the piece's own."""

    def __init__(self, past: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.past, self.length = past, past[0].shape[2] if past else 0
        self.new: tuple[Tensor, ...] = ()
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.new = key_states, value_states
        if not self.past:
            return key_states, value_states
        return torch.cat((self.past[0], key_states), 2), torch.cat((self.past[1], value_states), 2)

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class _InPieces(torch.autograd.Function):
    """The log-probs of `Pieces`; parameters get their gradients on the way. `anchor` only makes autograd call back."""

    @staticmethod
    def forward(ctx, anchor, pieces):  # type: ignore[override]
        ctx.pieces = pieces
        logprobs, entropy = pieces.forward()
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, gradient, _entropy):  # type: ignore[override]
        ctx.pieces.backward(gradient)
        return torch.zeros(()), None

"""Many turns with one memory: rows join and leave a running batch, and an episode's keys and values stay between turns.

A turn feeds only what is new since the last one (the last sampled token and the observation), so the tokens that are
prefilled grow linearly in turns. Members of a group share the keys and values of their first prompt. Rows that wait for
their environment keep their memory and cost nothing.

    talk.submit(request)      the row joins at one of the next steps
    talk.step()               one token for every row; → the requests that are finished
    talk.release(episode)     its memory may be reused

Shapes as in forked.py; A active rows come first, parked ones after them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from milepost.engines import forked, lean
from milepost.engines.base import SampleRequest, SamplingSettings
from milepost.engines.draw import draw
from milepost.engines.forked import ForkedCache, ForkedMemory, _LayerMemory
from milepost.engines.full import inference
from milepost.streams import uniforms
from milepost.types import EpisodeId, Sampled

if TYPE_CHECKING:
    from milepost.engines.local import LocalEngine

log = logging.getLogger(__name__)

_FIRST_SUFFIX = 64
_PAST_TOKENS = 8192
"""Padded tokens of history that one extending forward may copy together."""
_WASTE = 32
"""Tokens of padding that are cheaper than one forward more."""
_PROOF_CONTEXT = 24


class RaggedMemory(ForkedMemory):
    """A `ForkedMemory` whose rows differ in suffix length, come and go, and may be parked."""

    def __init__(self, device: torch.device) -> None:
        super().__init__([1], np.zeros(1, np.int64), device)
        self.lengths_N = np.zeros(0, np.int64)
        self.prompt_of_row = np.zeros(0, np.int64)
        self.prompt_B = np.zeros(0, np.int64)
        """Of every row, parked ones included."""
        self.suffix_B = np.zeros(0, np.int64)
        self._stale = True
        """Prompts changed since rows were last given their slots."""

    @property
    def pairs_per_step(self) -> int:
        longest = int(self.suffix_B[: self.num_rows].max()) + 1
        return self.num_slots * int(self.lengths_N.max()) + self.num_rows * longest

    def add_prompt(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], free: Sequence[int] = ()) -> int:
        """Stores per-layer keys/values [1, K, p, D] in a free place or a new one; returns its index."""
        length, longest = keys[0].shape[2], int(self.lengths_N.max(initial=0))
        index = next(iter(free), len(self.lengths_N))
        if not self.layers:
            self.layers = [_LayerMemory(k.clone(), v.clone()) for k, v in zip(keys, values)]
        else:
            for layer, k, v in zip(self.layers, keys, values, strict=True):
                layer.prompt_k = _placed(layer.prompt_k, k, index, max(length, longest))
                layer.prompt_v = _placed(layer.prompt_v, v, index, max(length, longest))
        lengths = np.zeros(max(index + 1, len(self.lengths_N)), np.int64)
        lengths[: len(self.lengths_N)] = self.lengths_N
        lengths[index] = length
        self.lengths_N, self._stale = lengths, True
        return index

    def drop_prompt(self, index: int) -> None:
        """Nobody continues it any more. One token of it is still computed with the others until its place is taken."""
        self.lengths_N[index], self._stale = 1, True

    def add_row(self, prompt: int) -> int:
        """A new parked row that continues a prompt; returns its index."""
        self.prompt_B = np.append(self.prompt_B, prompt)
        self.suffix_B = np.append(self.suffix_B, 0)
        return len(self.prompt_B) - 1

    def lengths_of(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Of each row, the tokens it shares and its own."""
        return self.lengths_N[self.prompt_B[list(rows)]], self.suffix_B[list(rows)]

    def extended(
        self, index: int, rows: Sequence[int], count: np.ndarray, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer's keys and values [n, K, P + S + m, D]: what the rows share, padded to the longest, then their own,
        padded as well, then the new ones [n, K, m, D]. Of these the last count[i] are kept as row i's own; `grow` counts
        them.

        A past is copied here alone, and one layer at a time.
        """
        layer, width = self.layers[index], key.shape[2]
        shared, own = self.lengths_of(rows)
        self._reserve(layer, key, len(self.prompt_B), int((own + count).max()))
        prompt, row = (torch.from_numpy(which).to(self.device) for which in (self.prompt_B[list(rows)], np.array(rows)))
        # One entry per new token: its place among the n rows, in `new`, and behind its row's own tokens.
        place = np.repeat(np.arange(len(rows)), count)
        nth = np.concatenate([np.arange(m) for m in count])
        where = place, nth + (width - count)[place], nth + own[place]
        at, column, to = (torch.from_numpy(x).to(self.device) for x in where)
        result = []
        for prompts, suffixes, new in ((layer.prompt_k, layer.suffix_k, key), (layer.prompt_v, layer.suffix_v, value)):
            assert suffixes is not None, "_reserve has made it"
            parts = prompts[prompt, :, : int(shared.max())], suffixes[row, :, : int(own.max())], new
            result.append(torch.cat(parts, 2))
            suffixes[row[at], :, to] = new[at, :, column]
        return result[0], result[1]

    def grow(self, rows: Sequence[int], count: np.ndarray) -> None:
        """The rows are longer by what every layer was given."""
        self.suffix_B[list(rows)] += count

    def swap(self, a: int, b: int) -> None:
        """Two rows change places."""
        if a == b:
            return
        used = int(max(self.suffix_B[a], self.suffix_B[b]))
        for layer in self.layers if used else ():
            assert layer.suffix_k is not None, "a row with a suffix has memory for it"
            self._reserve(layer, layer.suffix_k, len(self.prompt_B), used)  # a new row may have none yet
            for tensor in (layer.suffix_k, layer.suffix_v):
                kept = tensor[a, :, :used].clone()  # type: ignore[index]
                tensor[a, :, :used] = tensor[b, :, :used]  # type: ignore[index]
                tensor[b, :, :used] = kept  # type: ignore[index]
        for values in (self.prompt_B, self.suffix_B):
            values[a], values[b] = values[b], values[a]

    def begin_step(self, num_active: int) -> None:
        """The next step feeds one token to each of the first `num_active` rows."""
        if self._stale or not np.array_equal(self.prompt_B[:num_active], self.prompt_of_row):
            self._stale = False
            self.prompt_of_row = self.prompt_B[:num_active].copy()
            self._assign_slots()
        lengths = self.suffix_B[:num_active]
        self._top = int(lengths.max()) + 1
        self._rows = torch.arange(num_active, device=self.device)
        self._at = torch.from_numpy(lengths.copy()).to(self.device)
        self._ragged = None
        if (lengths + 1 < self._top).any():
            absent = torch.arange(self._top, device=self.device) > self._at[:, None]
            self._ragged = torch.zeros(absent.shape, device=self.device).masked_fill_(absent, -torch.inf)[:, None, None]

    def end_step(self) -> None:
        self.suffix_B[: len(self.prompt_of_row)] += 1

    def positions(self) -> torch.Tensor:
        return self._row_lengths + self._at

    def _append(self, memory: _LayerMemory, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._reserve(memory, key, len(self.prompt_B), self._top)
        memory.suffix_k[self._rows, :, self._at] = key[:, :, 0]  # type: ignore[index]
        memory.suffix_v[self._rows, :, self._at] = value[:, :, 0]  # type: ignore[index]
        rows = len(key)
        return memory.suffix_k[:rows, :, : self._top], memory.suffix_v[:rows, :, : self._top]  # type: ignore[index]

    def _reserve(self, layer: _LayerMemory, like: torch.Tensor, rows: int, length: int) -> None:
        """Room for `rows` rows of `length` suffix tokens. Doubling copies each token at most once on average; only what is
        short of room is doubled."""
        have_rows, have = (0, 0) if layer.suffix_k is None else (layer.suffix_k.shape[0], layer.suffix_k.shape[2])
        if rows <= have_rows and length <= have:
            return
        if length > have:
            length = max(_FIRST_SUFFIX, 2 * have, length)
        else:
            rows, length = max(2 * have_rows, rows), have
        for name in ("suffix_k", "suffix_v"):
            # Zeros, not just any memory: masked places are multiplied by 0, which garbage such as NaN would survive.
            new = like.new_zeros(rows, like.shape[1], length, like.shape[3])
            if (old := getattr(layer, name)) is not None:
                new[:have_rows, :, :have] = old[:rows]
            setattr(layer, name, new)


class _PastLayer(DynamicLayer):
    """A cache layer that keeps what is new in a `RaggedMemory`, and shows the past from there."""

    def __init__(self, memory: RaggedMemory, index: int, rows: Sequence[int], past: int, count: np.ndarray):
        super().__init__()
        self.memory, self.index, self.rows, self.count, self.past = memory, index, rows, count, past
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.memory.extended(self.index, self.rows, self.count, key_states, value_states)

    def get_seq_length(self) -> int:
        return self.past

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.past + query_length, 0


def _placed(block: torch.Tensor, x: torch.Tensor, index: int, longest: int) -> torch.Tensor:
    """The block [N, K, P, D] with x [1, K, p, D] at `index`; grown where it must be."""
    count, _, have, _ = block.shape
    if index >= count or longest > have:
        new = block.new_zeros(max(count, index + 1), block.shape[1], max(have, longest), block.shape[3])
        new[:count, :, :have] = block
        block = new
    block[index, :, : x.shape[2]] = x[0]
    return block


@dataclass
class _Episode:
    """One episode's place in the memory."""

    row: int
    prompt: int
    ids: np.ndarray
    """All ids whose keys and values are stored, prompt and suffix, up to the end of the last turn."""


@dataclass
class _Running:
    """A request that is being sampled, in the order of the active rows."""

    request: SampleRequest
    noise: np.ndarray
    ids: list[int]
    logprobs: list[float]


class Conversation:
    """Turns of many episodes over one `RaggedMemory`. A context manager: the model is in inference mode inside."""

    def __init__(self, engine: LocalEngine, settings: SamplingSettings, way: str, *, together: bool = True) -> None:
        """`together`: what is new of several rows is run in one padded forward, which not every model takes."""
        self.engine, self.settings, self.way, self.together = engine, settings, way, together
        self.memory = RaggedMemory(engine._device)
        self.eos = np.array(sorted(engine.eos_ids), np.int64)
        self.episodes: dict[EpisodeId, _Episode] = {}
        self.owners: list[EpisodeId | None] = []
        """Of every row; None: the row is free."""
        self.running: list[_Running] = []
        self.waiting: list[SampleRequest] = []
        """Turns whose histories are still to be extended."""
        self.waited = 0.0
        """Steps by which waiting has delayed the whole so far."""
        self.logits: torch.Tensor | None = None
        """[A, V]: of the next token of every active row."""
        self.prompts: dict[bytes, int] = {}
        self.first_logits: dict[int, torch.Tensor] = {}
        self.users: dict[int, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Conversation:
        self._stack.enter_context(inference(self.engine.model))
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()
        self.memory = RaggedMemory(self.engine._device)
        self.logits = None
        self.first_logits.clear()
        self.engine.release()

    @property
    def num_active(self) -> int:
        return len(self.running) + len(self.waiting)

    def _is_sampled(self, episode: EpisodeId) -> bool:
        row = self.episodes[episode].row
        return row < len(self.running) or any(request.episode == episode for request in self.waiting)

    # --- joining ------------------------------------------------------------------------------------------------

    def submit(self, request: SampleRequest) -> None:
        """The row joins at one of the next steps. What the memory already holds of `request.ids` is not computed again."""
        self.engine._limit(request, self.engine._facts())
        known = self.episodes.get(request.episode)
        if known is not None and self._is_sampled(request.episode):
            raise ValueError(f"episode {request.episode} is being sampled already")
        if known is not None and _continues(known.ids, request.ids):
            self.waiting.append(request)
            return
        if known is not None:
            self.release(request.episode)  # its history was rewritten: a new segment
        self._run(request, self._begin(request))

    def _run(self, request: SampleRequest, logits: torch.Tensor) -> None:
        self._swap(self.episodes[request.episode].row, len(self.running))
        limit = self.engine._limit(request, self.engine._facts())
        noise = np.zeros(limit) if self.settings.is_greedy else uniforms(
            self.engine.seed, request.episode, request.turn, limit)  # fmt: skip
        self.running.append(_Running(request, noise, [], []))
        self.logits = logits if self.logits is None else torch.cat((self.logits, logits))

    def _begin(self, request: SampleRequest) -> torch.Tensor:
        counters, key = self.engine.counters, request.ids.tobytes()
        if key in self.prompts:
            prompt = self.prompts[key]
            counters.shared_tokens += len(request.ids)
        else:
            logits, cache = self.engine.prefill([request.ids])
            taken = set(self.prompts.values())
            free = [n for n in range(len(self.memory.lengths_N)) if n not in taken]
            prompt = self.memory.add_prompt(*_layers(cache), free=free)
            self.prompts[key], self.first_logits[prompt], self.users[prompt] = prompt, logits, 0
        self.users[prompt] += 1
        row = next((r for r, owner in enumerate(self.owners) if owner is None), None)
        if row is None:
            row = self.memory.add_row(prompt)
            self.owners.append(None)
        self.memory.prompt_B[row], self.memory.suffix_B[row] = prompt, 0
        self.owners[row] = request.episode
        self.episodes[request.episode] = _Episode(row, prompt, request.ids)
        return self.first_logits[prompt]

    def _join(self) -> None:
        """Extends the histories that wait, once that their waiting has cost as much as the forward it saved.

        A forward costs about as much as a decoding step that feeds nothing; a row that waits for one step delays the
        whole by its share of the rows.
        """
        self.waited += len(self.waiting) / len(self.episodes)
        if not self.waiting or (self.running and self.waited < 1):
            return
        requests, self.waiting, self.waited = self.waiting, [], 0.0
        logits: dict[EpisodeId, torch.Tensor] = {}
        for batch in self._batches(requests):
            for request, row in zip(batch, self._extend(batch)):
                logits[request.episode] = row[None]
        for request in sorted(requests, key=lambda r: self.episodes[r.episode].row):  # few of them have to move
            self._run(request, logits[request.episode])

    def _batches(self, requests: Sequence[SampleRequest]) -> Iterator[list[SampleRequest]]:
        """Histories with about as many new tokens each."""
        new = {r.episode: len(r.ids) - len(self.episodes[r.episode].ids) for r in requests}
        batch: list[SampleRequest] = []
        waste = 0
        for request in sorted(requests, key=lambda r: new[r.episode]):
            more = (new[request.episode] - new[batch[-1].episode]) * len(batch) if batch else 0
            past = (len(batch) + 1) * max(len(r.ids) for r in [*batch, request])
            if batch and (waste + more > _WASTE or past > _PAST_TOKENS or not self.together):
                yield batch
                batch, more, waste = [], 0, 0
            batch.append(request)
            waste += more
        yield batch

    def _extend(self, requests: Sequence[SampleRequest]) -> torch.Tensor:
        """Runs what is new of these histories. → logits [n, V] after the last token of each.

        New tokens stand at the right end of their row, so that the last ones are in one column.
        """
        began, device = time.perf_counter(), self.engine._device
        known = [self.episodes[request.episode] for request in requests]
        start, whole = (np.array([len(x.ids) for x in items]) for items in (known, requests))
        count, width = whole - start, int((whole - start).max())
        rows = [episode.row for episode in known]
        shared, own = self.memory.lengths_of(rows)
        past = int(shared.max() + own.max())
        layers: list[Any] = [_PastLayer(self.memory, index, rows, past, count) for index in range(len(self.memory.layers))]
        tokens = np.zeros((len(known), width), np.int64)
        for row, request in enumerate(requests):
            tokens[row, width - count[row] :] = request.ids[start[row] :]
        positions = np.maximum(0, whole[:, None] - width + np.arange(width))
        mask = _extension_mask(shared, own, count, self.engine.model.dtype) if len(known) > 1 else None
        logits = self.engine.forward(
            torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device), Cache(layers=layers),
            None if mask is None else mask.to(device),
        )  # fmt: skip
        self.memory.grow(rows, count)
        for episode, request in zip(known, requests):
            episode.ids = request.ids
        self._count_extension(past, count, time.perf_counter() - began)
        return logits

    def _count_extension(self, past: int, count: np.ndarray, seconds: float) -> None:
        """Padding is executed work; what is prefilled is what is new."""
        counters, width = self.engine.counters, int(count.max())
        padded = len(count) * width
        counters.linear_tokens += padded
        counters.prefill_tokens += int(count.sum())
        counters.attention_pairs += padded * past + len(count) * width * (width + 1) // 2
        counters.head_positions += len(count) if self.engine._facts().keeps_last else padded
        counters.prefill_seconds += seconds

    def _swap(self, a: int, b: int) -> None:
        self.memory.swap(a, b)
        self.owners[a], self.owners[b] = self.owners[b], self.owners[a]
        for row in {a, b}:
            if (owner := self.owners[row]) is not None:
                self.episodes[owner].row = row

    # --- decoding -----------------------------------------------------------------------------------------------

    def step(self) -> list[tuple[SampleRequest, Sampled]]:
        """Draws one token for every active row, and feeds those that go on. → what is finished, in row order."""
        self._join()
        if self.logits is None or not self.running:
            return []
        began = time.perf_counter()
        noise = torch.tensor([r.noise[len(r.ids)] for r in self.running], dtype=torch.float64, device=self.logits.device)
        tokens, logprobs = draw(self.logits, noise, self.settings)
        for running, token, logprob in zip(self.running, tokens.tolist(), logprobs.tolist()):
            running.ids.append(token)
            running.logprobs.append(logprob)
        going = np.array([r.ids[-1] not in self.engine.eos_ids and len(r.ids) < len(r.noise) for r in self.running])
        finished = [r for r, goes in zip(self.running, going) if not goes]
        for running in finished:  # its last token was not fed
            episode = self.episodes[running.request.episode]
            episode.ids = np.append(running.request.ids, np.array(running.ids[:-1], np.int32))
        self._park(going)
        keep = torch.from_numpy(np.array([r.ids[-1] for r in self.running], np.int64)).to(tokens.device)
        self.logits = self._feed(keep) if len(keep) else None
        self.engine.counters.sampled_tokens += len(going)
        self.engine.counters.decode_seconds += time.perf_counter() - began
        return [(r.request, self._sampled(r)) for r in finished]

    def _park(self, going: np.ndarray) -> None:
        """Rows that are finished change places with the last ones that go on."""
        rows = list(range(len(going)))
        for row in np.flatnonzero(~going)[::-1]:
            last = len(rows) - 1
            self._swap(int(row), last)
            self.running[row], self.running[last] = self.running[last], self.running[row]
            rows.pop()
            self.running.pop()

    def _feed(self, tokens_A: torch.Tensor) -> torch.Tensor:
        counters, memory, count = self.engine.counters, self.memory, len(tokens_A)
        memory.begin_step(count)
        counters.linear_tokens += count
        counters.decode_tokens += count
        counters.head_positions += count
        counters.attention_pairs += memory.pairs_per_step
        if self.way == "lean":
            logits = lean.step(self.engine.model, tokens_A, memory.positions(), memory)
        else:
            memory.num_suffix = memory._top - 1
            with forked.attending(self.engine.model, memory):
                logits = self.engine.forward(tokens_A[:, None], memory.positions()[:, None], ForkedCache(memory))
        memory.end_step()
        return logits

    def _sampled(self, running: _Running) -> Sampled:
        finish = "stop" if running.ids[-1] in self.engine.eos_ids else "length"
        temperature = 0.0 if self.settings.is_greedy else float(self.settings.temperature)
        return Sampled(np.array(running.ids), np.array(running.logprobs), temperature, ((0, self.engine.version),), finish)

    def release(self, episode: EpisodeId) -> None:
        """The episode is over, or begins anew; its row and, after its last user, its prompt may be reused."""
        known = self.episodes.get(episode)
        if known is None:
            return
        if self._is_sampled(episode):
            raise ValueError(f"episode {episode} is being sampled")
        del self.episodes[episode]
        self.owners[known.row] = None
        self.users[known.prompt] -= 1
        if not self.users[known.prompt]:
            self.prompts = {key: n for key, n in self.prompts.items() if n != known.prompt}
            del self.first_logits[known.prompt], self.users[known.prompt]
            self.memory.drop_prompt(known.prompt)


def prove(engine: LocalEngine, way: str, ids: np.ndarray, *, together: bool) -> float:
    """Largest gap in nats between what a small conversation records and a full forward: three turns, ragged rows of which
    two share a prompt, and one that waits for a turn."""
    ids = ids[-_PROOF_CONTEXT:]
    prompts = (ids, ids, ids[: max(1, 2 * len(ids) // 3)])
    histories = {EpisodeId("proof", 0, way, member): prompt for member, prompt in enumerate(prompts)}
    gaps: list[float] = []
    with Conversation(engine, SamplingSettings(), way, together=together) as talk:
        for turn in range(3):
            for place, (episode, history) in enumerate(histories.items()):
                if (turn, place) != (1, 0):  # the first one sits out the second turn
                    talk.submit(SampleRequest(episode, turn, history, 2 + place))
            while talk.num_active:
                for request, sampled in talk.step():
                    whole = np.concatenate([request.ids, sampled.ids])
                    (scored,) = engine.score([(whole, len(request.ids), 1.0)])
                    gaps.append(float(np.abs(scored - sampled.logprobs).max()))
                    histories[request.episode] = np.concatenate([whole, ids[: 1 + turn]])
    return max(gaps)


class PlainConversation:
    """The same for models whose memory cannot be kept this way: every turn is run from its beginning."""

    def __init__(self, engine: Any, settings: SamplingSettings) -> None:
        self.engine, self.settings = engine, settings
        self.waiting: list[SampleRequest] = []

    def __enter__(self) -> PlainConversation:
        return self

    def __exit__(self, *_: Any) -> None:
        self.engine.release()

    @property
    def num_active(self) -> int:
        return len(self.waiting)

    def submit(self, request: SampleRequest) -> None:
        self.waiting.append(request)

    def step(self) -> list[tuple[SampleRequest, Sampled]]:
        """Samples all that was submitted, to the end."""
        requests, self.waiting = self.waiting, []
        return list(zip(requests, self.engine.sample(requests, self.settings)))

    def release(self, episode: EpisodeId) -> None:
        """Nothing is kept between turns."""


def _extension_mask(shared: np.ndarray, own: np.ndarray, count: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """[n, 1, m, P + S + m]: 0 where a new token sees a past or a new one, the least number elsewhere. shared, own, count:
    of each row, the tokens of its prompt, its own, and its new ones. A padding token sees itself, so that no row of scores
    is empty."""
    width = int(count.max())
    at = np.arange(width)
    real = at >= width - count[:, None]
    past = [real[:, :, None] & (np.arange(int(lengths.max())) < lengths[:, None, None]) for lengths in (shared, own)]
    new = (at[:, None] >= at) & real[:, None, :] & real[:, :, None] | np.eye(width, dtype=bool)
    seen = torch.from_numpy(np.concatenate([*past, new], 2))[:, None]
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)


def _continues(before: np.ndarray, ids: np.ndarray) -> bool:
    return len(ids) > len(before) and bool((ids[: len(before)] == before).all())


def _layers(cache: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]

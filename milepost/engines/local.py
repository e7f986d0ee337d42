"""Samples from a causal language model held in this process, on CPU or one GPU.

One prefill per distinct prompt, members fork its keys and values, finished rows leave at once, and nothing but the
weights outlives a call. The engine reads the very module it is given: updating its parameters in place updates the
sampler. Three ways to decode, the first that proves itself on this model is taken: `lean` (Llama family, no module
overhead), `forked` (any model whose attention goes through the transformers interface) and `plain` (the model's own
cache). The proof compares with a plain full forward; a failure is logged and switches that way off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache

from milepost.engines import forked, lean, talk
from milepost.engines.base import SampleRequest, SamplingSettings, WorkCounters
from milepost.engines.draw import draw
from milepost.engines.forked import ForkedCache, ForkedMemory
from milepost.engines.full import ModelFacts, inference, model_facts, score_rows
from milepost.engines.talk import Conversation, PlainConversation
from milepost.streams import uniforms
from milepost.types import EpisodeId, Sampled

log = logging.getLogger(__name__)

_PREFILL_TOKENS = {"cpu": 1024, "cuda": 16384}
_PROOF_TOKENS = 4
_PROOF_CONTEXT = 48
_PROOF_GAP = 1e-4
"""float32: largest |Δ log-prob| against a full forward."""
_PROOF_GAP_HALF = 0.1
"""bfloat16, float16: mean |Δ log-prob|; two correct ways differ by 0.03 to 0.04 there."""
_PROOF_GAP_TALK_HALF = 0.5
"""The same for a conversation's largest gap, which also has the attention over a padded memory in it."""


@dataclass
class _Rows:
    """The requests that share one prompt."""

    ids: np.ndarray
    members: list[int]
    """Indices into the request list."""


@dataclass(frozen=True)
class _Job:
    """Everything a chunk needs, by request index."""

    limits: np.ndarray
    """int64: most tokens each request may still get, its budget and the model's context considered."""
    uniforms: list[np.ndarray]
    eos_ids: np.ndarray
    settings: SamplingSettings


class LocalEngine:
    """A `Sampler` over an in-process model. `eos_ids`: every id that ends a turn.

    `max_rows` and `kv_bytes` bound how many rows decode together; they are fixed numbers rather than what the machine
    has free, because the shape of a batch decides its last bits, and a resumed run must see the same bits.
    """

    def __init__(self, model: nn.Module, eos_ids: Sequence[int] | frozenset[int], *, seed: int, max_rows: int = 512,
                 kv_bytes: int = 2 << 30, ways: Sequence[str] = ("lean", "forked"), version: int = 0):  # fmt: skip
        self.model: Any = model
        self.eos_ids = frozenset(int(i) for i in eos_ids)
        self.seed, self.max_rows, self.kv_bytes, self.version = seed, max_rows, kv_bytes, version
        self.counters = WorkCounters()
        self._ways: dict[str, bool | None] = dict.fromkeys(ways)
        """Way → proved (True), refuted (False), not tried yet (None)."""
        self._model_facts: ModelFacts | None = None
        self._talks: str | None = None
        """Whether conversations keep their memory between turns: proved, refuted, not tried yet."""

    # --- the Sampler protocol -----------------------------------------------------------------------------------

    def sample(self, requests: Sequence[SampleRequest], settings: SamplingSettings) -> list[Sampled]:
        """One `Sampled` per request, in request order; a draw depends on nothing but weights, context and its key.

        Raises ValueError when a prompt fills the model's context, FloatingPointError when logits are not finite.
        """
        if not requests:
            return []
        with inference(self.model):
            facts = self._facts()
            limits = np.array([self._limit(request, facts) for request in requests])
            noise = [
                np.zeros(n) if settings.is_greedy else uniforms(self.seed, r.episode, r.turn, n)
                for r, n in zip(requests, limits)
            ]
            job = _Job(limits, noise, np.array(sorted(self.eos_ids), np.int64), settings)
            way = self._way(requests, facts)
            found: dict[int, tuple[np.ndarray, np.ndarray, str]] = {}
            for chunk_way, chunk in self._chunks(requests, limits, way, facts):
                found.update(self._decode(chunk, job, chunk_way))
        self.release()
        temperature = 0.0 if settings.is_greedy else float(settings.temperature)
        versions = ((0, self.version),)
        results = [found[i] for i in range(len(requests))]
        return [Sampled(ids, logprobs, temperature, versions, finish) for ids, logprobs, finish in results]

    def score(self, sequences: Sequence[tuple[np.ndarray, int, float]]) -> list[np.ndarray]:
        """For each (ids [n], start, temperature): float32 log-probs [n − start] of ids[start:], 1 ≤ start ≤ n.

        One full forward per row; the head runs at scored positions only. The oracle of every way to decode.
        """
        for ids, start, temperature in sequences:
            if not 1 <= start <= len(ids) or not temperature > 0:
                raise ValueError(f"cannot score ids[{start}:] of {len(ids)} at temperature {temperature}; "
                                 "1 ≤ start ≤ length and a positive temperature are needed")  # fmt: skip
        with inference(self.model):
            return score_rows(self.model, self._facts(), sequences, self.counters)

    def converse(self, settings: SamplingSettings, first: np.ndarray) -> Conversation | PlainConversation:
        """A conversation of many turns, as a context manager. Fast ways are proved on `first`, the ids of some prompt."""
        with inference(self.model):
            facts = self._facts()
            way = self._way([SampleRequest(EpisodeId("proof", 0, "", 0), 0, first, 1)], facts)
            if way == "plain" or facts.window < facts.context:
                return PlainConversation(self, settings)
            if self._talks is None:
                self._talks = self._prove_talk(way, first)
        if not self._talks:
            return PlainConversation(self, settings)
        return Conversation(self, settings, way, together=self._talks == "together")

    def _prove_talk(self, way: str, first: np.ndarray) -> Literal["together", "alone", ""]:
        """How histories are extended: several at once, each by itself, or not at all ("")."""
        exact = self.model.dtype in (torch.float32, torch.float64)
        limit = _PROOF_GAP if exact else _PROOF_GAP_TALK_HALF
        counters, self.counters = self.counters, WorkCounters()
        try:
            try:
                if self._facts().takes_positions and talk.prove(self, way, first, together=True) <= limit:
                    return "together"
            except Exception as error:  # whatever an architecture raises that does not take a mask of its own
                log.info("engine: %s extends histories one by one: %s", type(self.model).__name__, error)
            gap = talk.prove(self, way, first, together=False)
        finally:
            self.counters = counters
        if gap > limit:
            log.warning(
                "engine: memory between turns is switched off for %s: its log-probs are off by %.2g nats, more than %g",
                type(self.model).__name__, gap, limit,
            )  # fmt: skip
        return "alone" if gap <= limit else ""

    def load(self, version: int) -> None:
        """The module's parameters are now those of `version`. Nothing derived from weights is kept between calls."""
        self.version = version

    def release(self) -> None:
        """Buffers live inside `sample` only; on a GPU their blocks go back to the driver for the update phase."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # --- facts and planning -------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def way(self) -> str:
        """The way decoding takes now: lean, forked or plain; "unproved" before the first call."""
        if None in self._ways.values() and True not in self._ways.values():
            return "unproved"
        return next((name for name, proved in self._ways.items() if proved), "plain")

    def _facts(self) -> ModelFacts:
        if self._model_facts is None:
            self._model_facts = model_facts(self.model, self._device)
        return self._model_facts

    def _limit(self, request: SampleRequest, facts: ModelFacts) -> int:
        room = facts.context - len(request.ids)
        if room < 1:
            raise ValueError(f"episode {request.episode}: its {len(request.ids)} prompt tokens leave no room in "
                             f"the context of {facts.context}; at most {facts.context - 1} can be continued")  # fmt: skip
        return min(request.max_new_tokens, room)

    def _way(self, requests: Sequence[SampleRequest], facts: ModelFacts) -> str:
        if not facts.forkable and self._ways:
            log.warning(
                "engine: %s keeps other state than keys and values; its own cache is used", type(self.model).__name__
            )
            self._ways = {}
        for name in self._ways:
            if self._ways[name] is None:
                self._ways[name] = self._prove(name, requests)
            if self._ways[name]:
                return name
        return "plain"

    def _prove(self, way: str, requests: Sequence[SampleRequest]) -> bool:
        """Samples a few tokens after the ends of real prompts, ragged and grouped, and scores them by a full forward."""
        if way == "lean" and not lean.is_lean(self.model):
            return False
        counters, self.counters = self.counters, WorkCounters()
        context = min(_PROOF_CONTEXT, self._facts().window - _PROOF_TOKENS)
        first = requests[0].ids[-context:]
        other = requests[-1].ids[-max(1, len(first) * 2 // 3) :]
        chunk = [_Rows(first, [0, 1]), _Rows(other, [2])]
        noise = [uniforms(self.seed, EpisodeId("proof", 0, way, member), 0, _PROOF_TOKENS) for member in range(3)]
        job = _Job(np.full(3, _PROOF_TOKENS), noise, np.zeros(0, np.int64), SamplingSettings())
        try:
            found = self._decode(chunk, job, way)
            prompts = (first, first, other)
            scored = self.score([(np.concatenate([p, found[i][0]]), len(p), 1.0) for i, p in enumerate(prompts)])
            gap = np.abs(np.concatenate([found[i][1] - scored[i] for i in range(3)]))
            exact = self.model.dtype in (torch.float32, torch.float64)
            off, limit = (gap.max(), _PROOF_GAP) if exact else (gap.mean(), _PROOF_GAP_HALF)
            reason = "" if off <= limit else f"its log-probs are off by {off:.2g} nats, more than {limit:g}"
        except FloatingPointError:
            raise
        except Exception as error:  # whatever an unknown architecture raises when its attention is replaced
            reason = f"{type(error).__name__}: {error}"
        finally:
            self.counters = counters
        if reason:
            log.warning("engine: fast decoding (%s) is switched off for %s: %s", way, type(self.model).__name__, reason)
        return not reason

    def _chunks(self, requests: Sequence[SampleRequest], limits: np.ndarray, way: str,
                facts: ModelFacts) -> Iterator[tuple[str, list[_Rows]]]:  # fmt: skip
        """Splits the requests into batches that decode together: groups of like size, bounded rows and memory."""
        by_prompt: dict[bytes, list[int]] = {}
        for index, request in enumerate(requests):
            by_prompt.setdefault(request.ids.tobytes(), []).append(index)
        pieces: dict[str, list[_Rows]] = {}
        for members in by_prompt.values():
            ids = requests[members[0]].ids
            fits = way != "plain" and len(ids) + int(limits[members].max()) <= facts.window
            row_bytes = facts.kv_bytes_per_token * (int(limits[members].max()) + (0 if fits else 2 * len(ids)))
            cap = int(min(self.max_rows, max(1, self.kv_bytes // max(1, row_bytes))))
            for i in range(0, len(members), cap):
                pieces.setdefault(way if fits else "plain", []).append(_Rows(ids, members[i : i + cap]))
        for piece_way, groups in pieces.items():
            chunk: list[_Rows] = []
            # Same size first: slots are as many as the largest group has; then by length: prompts pad to the longest.
            for rows in sorted(groups, key=lambda g: (-len(g.members), -len(g.ids))):
                if chunk and not self._joins(chunk, rows, limits, piece_way, facts):
                    yield piece_way, chunk
                    chunk = []
                chunk.append(rows)
            yield piece_way, chunk

    def _joins(self, chunk: list[_Rows], rows: _Rows, limits: np.ndarray, way: str, facts: ModelFacts) -> bool:
        together = [*chunk, rows]
        members = [i for g in together for i in g.members]
        longest = max(len(g.ids) for g in together)
        copies = len(together) if way != "plain" else 2 * len(members)
        tokens = copies * longest + len(members) * int(limits[members].max())
        if len(members) > self.max_rows or tokens * facts.kv_bytes_per_token > self.kv_bytes:
            return False
        if way == "plain":
            return len(rows.ids) == len(chunk[0].ids)
        return len(chunk[0].members) <= 2 * len(rows.members)

    # --- decoding -----------------------------------------------------------------------------------------------

    def _decode(self, chunk: list[_Rows], job: _Job, way: str) -> dict[int, tuple[np.ndarray, np.ndarray, str]]:
        """Decodes one chunk to the end. → request index → (ids, logprobs, finish)."""
        chunk = sorted(chunk, key=lambda g: len(g.ids))
        members = np.array([i for g in chunk for i in g.members])
        limits = job.limits[members]
        noise = np.zeros((len(members), int(limits.max())))
        for row, index in enumerate(members):
            noise[row, : limits[row]] = job.uniforms[index][: limits[row]]
        noise_BT = torch.from_numpy(noise).to(self._device)
        ids_BT = np.zeros(noise.shape, np.int32)
        logprobs_BT = np.zeros(noise.shape, np.float32)
        length, stopped = np.zeros(len(members), np.int64), np.zeros(len(members), bool)
        batch = (_PlainBatch if way == "plain" else _ForkedBatch)(self, chunk, way)
        began = time.perf_counter()
        logits, alive, t = batch.first_logits, np.arange(len(members)), 0
        while True:
            tokens, logprobs = draw(logits, noise_BT[torch.from_numpy(alive).to(self._device), t], job.settings)
            ids_BT[alive, t], logprobs_BT[alive, t] = tokens.cpu().numpy(), logprobs.cpu().numpy()
            ended = np.isin(ids_BT[alive, t], job.eos_ids)
            t += 1
            length[alive] = t
            stopped[alive] = ended
            index = _closed_ranks(~ended & (limits[alive] > t))
            if not len(index):
                break
            if len(index) < len(alive):
                batch.keep(index)
                alive, tokens = alive[index], tokens[torch.from_numpy(index).to(self._device)]
            logits = batch.step(tokens)
        self.counters.sampled_tokens += int(length.sum())
        self.counters.decode_seconds += time.perf_counter() - began
        return {
            int(m): (ids_BT[b, :n], logprobs_BT[b, :n], "stop" if stopped[b] else "length")
            for b, (m, n) in enumerate(zip(members, length))
        }

    def prefill(self, prompts: list[np.ndarray]) -> tuple[torch.Tensor, Any]:
        """Runs prompts of equal length, without padding. → (logits after the last token [n, V], the model's cache)."""
        began = time.perf_counter()
        ids = torch.from_numpy(np.stack(prompts).astype(np.int64)).to(self._device)
        cache = DynamicCache(config=self.model.config)
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        logits = self.forward(ids, positions, cache)
        count, length = ids.shape
        self.counters.linear_tokens += count * length
        self.counters.prefill_tokens += count * length
        self.counters.attention_pairs += count * length * (length + 1) // 2
        self.counters.head_positions += count * (1 if self._facts().keeps_last else length)
        self.counters.prefill_seconds += time.perf_counter() - began
        return logits, cache

    def forward(
        self, ids_BT: torch.Tensor, positions_BT: torch.Tensor, cache: Any, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [B, V] after the last of the given tokens. `mask` [B, 1, T, all]: added to the scores."""
        facts = self._facts()
        arguments: dict[str, Any] = {"input_ids": ids_BT, facts.cache_name: cache, "use_cache": True}
        if facts.takes_positions:
            arguments["position_ids"] = positions_BT
        if facts.keeps_last:
            arguments["logits_to_keep"] = 1
        if mask is not None:
            arguments["attention_mask"] = mask
        return self.model(**arguments).logits[:, -1]


class _ForkedBatch:
    """Rows over a `ForkedMemory`; decoded by the lean step or by the model under `forked_attention`."""

    def __init__(self, engine: LocalEngine, chunk: list[_Rows], way: str):
        self.engine, self.way = engine, way
        prompt_of_row = np.repeat(np.arange(len(chunk)), [len(g.members) for g in chunk])
        self.memory = ForkedMemory([len(g.ids) for g in chunk], prompt_of_row, engine._device)
        logits_N = []
        for where in _equal_lengths(chunk, _PREFILL_TOKENS.get(engine._device.type, 1024)):
            logits, cache = engine.prefill([g.ids for g in chunk[where]])
            logits_N.append(logits)
            self.memory.store_prompts(where, [x.keys for x in cache.layers], [x.values for x in cache.layers])
        engine.counters.shared_tokens += sum(len(g.ids) * (len(g.members) - 1) for g in chunk)
        self.first_logits = torch.cat(logits_N)[torch.from_numpy(prompt_of_row).to(engine._device)]
        self.cache = ForkedCache(self.memory)

    def step(self, tokens_B: torch.Tensor) -> torch.Tensor:
        counters, memory = self.engine.counters, self.memory
        counters.linear_tokens += len(tokens_B)
        counters.decode_tokens += len(tokens_B)
        counters.head_positions += len(tokens_B)
        counters.attention_pairs += memory.pairs_per_step
        if self.way == "lean":
            logits = lean.step(self.engine.model, tokens_B, memory.positions(), memory)
        else:
            with forked.attending(self.engine.model, memory):
                logits = self.engine.forward(tokens_B[:, None], memory.positions()[:, None], self.cache)
        memory.num_suffix += 1
        return logits

    def keep(self, index: np.ndarray) -> None:
        self.memory.keep(index)


class _PlainBatch:
    """Rows of one prompt length over the model's own cache: sliding windows, linear attention, anything."""

    def __init__(self, engine: LocalEngine, chunk: list[_Rows], way: str):
        self.engine, self.length = engine, len(chunk[0].ids)
        logits, self.cache = engine.prefill([g.ids for g in chunk])
        repeat = torch.from_numpy(np.repeat(np.arange(len(chunk)), [len(g.members) for g in chunk])).to(engine._device)
        self.cache.reorder_cache(repeat)
        engine.counters.shared_tokens += self.length * (len(repeat) - len(chunk))
        self.first_logits = logits[repeat]

    def step(self, tokens_B: torch.Tensor) -> torch.Tensor:
        counters = self.engine.counters
        self.length += 1
        counters.linear_tokens += len(tokens_B)
        counters.decode_tokens += len(tokens_B)
        counters.head_positions += len(tokens_B)
        counters.attention_pairs += len(tokens_B) * self.length
        positions = torch.full_like(tokens_B, self.length - 1)
        return self.engine.forward(tokens_B[:, None], positions[:, None], self.cache)

    def keep(self, index: np.ndarray) -> None:
        self.cache.reorder_cache(torch.from_numpy(index).to(self.engine._device))


def _closed_ranks(going: np.ndarray) -> np.ndarray:
    """Which row moves to place 0, 1, …: survivors stay where they are, the last ones fill the gaps of those that left.

    [1, 0, 1, 1] → [0, 3, 2]
    """
    count = int(going.sum())
    index = np.arange(count)
    index[~going[:count]] = count + np.flatnonzero(going[count:])
    return index


def _equal_lengths(chunk: list[_Rows], max_tokens: int) -> Iterator[slice]:
    """Runs of prompts of equal length, at most `max_tokens` together, of a chunk sorted by length."""
    start = 0
    for end in range(1, len(chunk) + 1):
        length = len(chunk[start].ids)
        if end == len(chunk) or len(chunk[end].ids) != length or (end - start + 1) * length > max_tokens:
            yield slice(start, end)
            start = end


forked.register()

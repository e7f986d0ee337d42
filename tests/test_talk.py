"""Conversations: what is recorded over many turns is what full forwards say, and prefill is linear in turns."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import CONFIGS, engine, full_forward, prompt, tiny

from milepost.engines.base import SampleRequest, SamplingSettings
from milepost.engines.local import LocalEngine
from milepost.engines.talk import Conversation, PlainConversation
from milepost.types import EpisodeId

KEPT = ["llama", "qwen3", "gemma", "gpt2"]
"""Models whose keys and values can stay; those with sliding windows run every turn from its beginning."""


def name_of(member: int) -> EpisodeId:
    return EpisodeId("train", 0, "k", member)


def converse(sampler, turns, *, glue=3, max_new=4, prompts=None, temperature=1.0, order=None):
    """Plays len(turns) turns; turns[t] lists the members that act in turn t. → {(member, turn): (context, Sampled)}"""
    prompts = prompts or [prompt(9), prompt(9), prompt(14), prompt(5)]
    histories = dict(enumerate(prompts))
    counts = dict.fromkeys(histories, 0)
    seen = {}
    with sampler.converse(SamplingSettings(temperature=temperature), prompts[0]) as talk:
        for acting in turns:
            for member in acting:
                talk.submit(SampleRequest(name_of(member), counts[member], histories[member], max_new + member))
            while talk.num_active:
                for request, sampled in talk.step():
                    member = request.episode.member
                    seen[member, request.turn] = (request.ids, sampled)
                    histories[member] = np.concatenate([request.ids, sampled.ids, prompt(glue, seed=request.turn)])
                    counts[member] += 1
    return seen


TURNS = [[0, 1, 2, 3], [3, 1], [0, 2, 1], [1], [2, 0, 3]]


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_recorded_over_turns_is_what_a_full_forward_says(name):
    seen = converse(engine(name), TURNS, temperature=0.7)
    assert len(seen) == sum(map(len, TURNS))
    for context, sampled in seen.values():
        ids = np.concatenate([context, sampled.ids])
        np.testing.assert_allclose(sampled.logprobs, full_forward(tiny(name), ids, len(context), 0.7), rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_memory_is_kept_where_the_model_allows_it(name):
    with engine(name).converse(SamplingSettings(), prompt(9)) as talk:
        assert type(talk) is (Conversation if name in [*KEPT, "mistral", "qwen2"] else PlainConversation)


def test_a_turn_samples_what_single_calls_would():
    seen = converse(engine(), TURNS)
    alone = engine()
    for (member, turn), (context, sampled) in seen.items():
        (again,) = alone.sample([SampleRequest(name_of(member), turn, context, 4 + member)], SamplingSettings())
        assert again.ids.tolist() == sampled.ids.tolist()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), unique=True, min_size=1), min_size=1, max_size=5), st.integers(1, 9))
def test_who_else_is_there_changes_no_token(turns, glue):
    together = converse(engine(), turns, glue=glue)
    for member in range(4):
        own = [[member] for acting in turns if member in acting]
        for key, (context, sampled) in converse(engine(), own, glue=glue).items():
            assert together[key][0].tolist() == context.tolist()
            assert together[key][1].ids.tolist() == sampled.ids.tolist()


def test_rows_that_join_late_leave_the_histories_of_others_as_they_were():
    """A new row takes the place of a parked one, whose keys and values move to where there was no memory yet."""
    turns = [list(range(t, -1, -1)) for t in range(6)]
    seen = converse(engine(), turns, prompts=[prompt(5 + m % 3) for m in range(6)], glue=1, max_new=1)
    assert len(seen) == 6 * 7 / 2
    for context, sampled in seen.values():
        ids = np.concatenate([context, sampled.ids])
        np.testing.assert_allclose(sampled.logprobs, full_forward(tiny("llama"), ids, len(context), 1.0), rtol=0, atol=2e-4)


def test_prefill_is_linear_in_turns():
    """For every T from 2 to 50: the prompt once, for both siblings; then per turn and sibling the observation and the last
    token of the turn before, which was never fed. A conversation that keeps nothing reads all of the history each turn."""
    model = copy.deepcopy(tiny("llama"))
    model.config.max_position_embeddings = 512  # turning angles are not bound to a length
    keeps, forgets = (LocalEngine(model, (), seed=7) for _ in range(2))
    linear = prefilled(keeps, keeps.converse(SamplingSettings(), prompt(9)))
    assert linear == [9 + 2 * turn * (3 + 1) for turn in range(50)]
    assert (keeps.counters.shared_tokens, keeps.counters.decode_tokens) == (9, 2 * 50)
    assert keeps.counters.linear_tokens == linear[-1] + 2 * 50
    quadratic = prefilled(forgets, PlainConversation(forgets, SamplingSettings()))
    # 9 + 5 t tokens at turn t, of both; the first turn's prompt is one.
    assert quadratic == [9 + 2 * sum(9 + 5 * t for t in range(1, turn + 1)) for turn in range(50)]


def prefilled(sampler, conversation):
    """Tokens prefilled up to each of 50 turns: 2 tokens sampled by each of two siblings, then 3 of an observation."""
    contexts, counts = [prompt(9), prompt(9)], []
    with conversation as talk:
        for turn in range(50):
            for member in range(2):
                talk.submit(SampleRequest(name_of(member), turn, contexts[member], 2))
            while talk.num_active:
                for request, sampled in talk.step():
                    contexts[request.episode.member] = np.concatenate([request.ids, sampled.ids, prompt(3, seed=turn)])
            counts.append(sampler.counters.prefill_tokens)
    return counts


def test_siblings_share_their_prompt():
    sampler = engine()
    converse(sampler, [[0, 1]], prompts=[prompt(9), prompt(9)])
    assert (sampler.counters.prefill_tokens, sampler.counters.shared_tokens) == (9, 9)


def test_a_rewritten_history_begins_anew():
    sampler, ids = engine(), prompt(12)
    with sampler.converse(SamplingSettings(), ids) as talk:
        for turn, context in enumerate((ids, prompt(7, seed=3), np.concatenate([prompt(7, seed=3), ids]))):
            talk.submit(SampleRequest(name_of(0), turn, context, 3))
            while talk.num_active:
                done = talk.step()
            ((request, sampled),) = done
            whole = np.concatenate([request.ids, sampled.ids])
            np.testing.assert_allclose(
                sampled.logprobs, full_forward(tiny("llama"), whole, len(context), 1.0), rtol=0, atol=2e-4
            )


def test_released_places_are_used_again():
    sampler = engine()
    with sampler.converse(SamplingSettings(), prompt(9)) as talk:
        for k in range(12):
            ids = prompt(5 + 3 * (k % 4), seed=k)
            for member in range(3):
                talk.submit(SampleRequest(EpisodeId("train", 0, f"k{k}", member), 0, ids, 3))
            while talk.num_active:
                for request, sampled in talk.step():
                    whole = np.concatenate([ids, sampled.ids])
                    expected = full_forward(tiny("llama"), whole, len(ids), 1.0)
                    np.testing.assert_allclose(sampled.logprobs, expected, rtol=0, atol=2e-4)
                    talk.release(request.episode)
        assert len(talk.owners) == 3
        assert len(talk.memory.lengths_N) == 1
        assert not talk.episodes and not talk.prompts


def test_a_row_that_is_being_sampled_is_not_released_or_asked_again():
    with engine().converse(SamplingSettings(), prompt(9)) as talk:
        talk.submit(SampleRequest(name_of(0), 0, prompt(9), 3))
        with pytest.raises(ValueError, match="is being sampled already"):
            talk.submit(SampleRequest(name_of(0), 1, prompt(9), 3))
        with pytest.raises(ValueError, match="is being sampled"):
            talk.release(name_of(0))


def test_rows_join_while_others_decode():
    sampler = engine()
    with sampler.converse(SamplingSettings(), prompt(9)) as talk:
        talk.submit(SampleRequest(name_of(0), 0, prompt(9), 6))
        found = {}
        for k in range(12):
            if k == 2:
                talk.submit(SampleRequest(name_of(1), 0, prompt(14), 6))
            found |= {request.episode.member: k for request, _ in talk.step()}
    assert found == {0: 5, 1: 7}
    assert sampler.counters.decode_tokens == 10


def test_an_end_of_turn_id_ends_the_turn():
    with engine().converse(SamplingSettings(greedy=True), prompt(9)) as talk:
        talk.submit(SampleRequest(name_of(0), 0, prompt(9), 3))
        while talk.num_active:
            done = talk.step()
    best = done[0][1].ids
    with engine(eos=[int(best[1])]).converse(SamplingSettings(greedy=True), prompt(9)) as talk:
        talk.submit(SampleRequest(name_of(0), 0, prompt(9), 3))
        while talk.num_active:
            done = talk.step()
    expected = best[:2] if best[0] != best[1] else best[:1]
    assert done[0][1].ids.tolist() == expected.tolist()
    assert done[0][1].finish == "stop" and done[0][1].logprobs.tolist() == [0.0] * len(expected)

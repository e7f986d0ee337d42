"""The local engine against plain full forwards, on tiny random models of several families."""

from __future__ import annotations

import gc
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from milepost.engines import forked
from milepost.engines.base import SampleRequest, SamplingSettings, WorkCounters
from milepost.engines.draw import draw, restricted
from milepost.engines.local import LocalEngine, _closed_ranks
from milepost.streams import uniforms
from milepost.types import EpisodeId

VOCAB = 300
_SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**_SHAPE),
    "mistral": MistralConfig(**_SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**_SHAPE),
    "qwen3": Qwen3Config(**_SHAPE),
    "gemma": GemmaConfig(**_SHAPE),
    "gemma2": Gemma2Config(**_SHAPE, sliding_window=24),
    "gemma3": Gemma3TextConfig(**_SHAPE, sliding_window=24),
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=0),
}
WAYS = {"llama": "lean", "mistral": "lean", "qwen2": "lean", "qwen3": "lean", "gemma": "forked", "gemma2": "forked",
        "gemma3": "forked", "gpt2": "forked"}  # fmt: skip
_models: dict[str, torch.nn.Module] = {}


def tiny(name: str) -> torch.nn.Module:
    """A random model whose distributions are far from uniform; shared between tests, which must not change it."""
    if name not in _models:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.15 if name == "gpt2" else 0.25)
        _models[name] = model
    return _models[name]


def prompt(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, length]).integers(10, VOCAB, length)


def request(ids: np.ndarray, member: int = 0, max_new: int = 12, key: str = "") -> SampleRequest:
    return SampleRequest(EpisodeId("train", 0, key or f"p{len(ids)}", member), 0, ids, max_new)


def ragged(members: int = 3, max_new: int = 12) -> list[SampleRequest]:
    """Groups over prompts of 5, 55, 17 and 17 tokens, interleaved, plus a lone row."""
    prompts = [prompt(5), prompt(55), prompt(17), prompt(17, 1)]
    rows = [request(ids, m, max_new - m, f"k{k}") for m in range(members) for k, ids in enumerate(prompts)]
    return [*rows, request(prompt(9), 0, max_new)]


def engine(name: str = "llama", eos=(), **options) -> LocalEngine:
    return LocalEngine(tiny(name), eos, seed=7, **options)


def full_forward(model, ids: np.ndarray, start: int, temperature: float) -> np.ndarray:
    """The plainest scoring there is: one row, no padding, all logits."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(ids[None], dtype=torch.int64), use_cache=False).logits[0].float()
    logp = torch.log_softmax(logits / temperature, -1)
    return logp[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:], dtype=torch.int64)].numpy()


# --- recorded log-probs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_recorded_logprobs_are_those_of_a_plain_forward(name):
    # cases B24, B25 (gpt2: learned positions), B26, F1: ragged prompts in one batch, T = 0.5
    sampler = engine(name, eos={3, 4, 5, 6, 7, 8})
    requests = ragged()
    for r, s in zip(requests, sampler.sample(requests, SamplingSettings(temperature=0.5))):
        assert s.temperature == 0.5
        assert 1 <= len(s.ids) <= r.max_new_tokens
        expected = full_forward(tiny(name), np.concatenate([r.ids, s.ids]), len(r.ids), 0.5)
        np.testing.assert_allclose(s.logprobs, expected, atol=1e-4)
    assert sampler.way == WAYS[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_score_equals_single_rows(name):
    rows = [
        (prompt(n, 2).astype(np.int32), start, t)
        for n, start, t in [(40, 7, 1.0), (6, 1, 0.5), (38, 38, 1.0), (33, 32, 2.0)]
    ]
    for (ids, start, t), got in zip(rows, engine(name).score(rows)):
        assert got.dtype == np.float32
        assert got.shape == (len(ids) - start,)
        np.testing.assert_allclose(got, full_forward(tiny(name), ids, start, t), atol=1e-4)


def test_score_refuses_what_has_no_context():
    with pytest.raises(ValueError, match=r"ids\[0:\]"):
        engine().score([(prompt(4), 0, 1.0)])


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_a_row_samples_the_same_alone_and_in_any_batch(name):
    # case B24: with a prompt 50 tokens longer beside it
    requests = ragged()
    sampler = engine(name, eos=range(10, 40))
    together = sampler.sample(requests, SamplingSettings())
    assert len({len(s.ids) for s in together}) > 2  # rows really left at different times
    small = engine(name, eos=range(10, 40), max_rows=2)
    for one, many, reordered in zip(
        [sampler.sample([r], SamplingSettings())[0] for r in requests],
        together,
        reversed(small.sample(requests[::-1], SamplingSettings())),
    ):
        assert np.array_equal(one.ids, many.ids)
        assert np.array_equal(one.ids, reordered.ids)
        np.testing.assert_allclose(one.logprobs, many.logprobs, atol=1e-4)
        assert one.finish == many.finish


def test_all_ways_sample_the_same_ids():
    requests = ragged()
    results = []
    for ways, expected in ((("lean",), "lean"), (("forked",), "forked"), ((), "plain")):
        sampler = engine("qwen3", eos=range(10, 30), ways=ways)
        results.append(sampler.sample(requests, SamplingSettings()))
        assert sampler.way == expected
    for lean, fork, plain in zip(*results):
        assert np.array_equal(lean.ids, plain.ids)
        assert np.array_equal(fork.ids, plain.ids)
        np.testing.assert_allclose(lean.logprobs, plain.logprobs, atol=1e-4)


def test_the_noise_of_a_token_is_its_uniform():
    """A uniform vocabulary makes the drawn id readable: id = ⌊u·V⌋."""
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    with torch.no_grad():
        model.lm_head.weight.zero_()
    r = request(prompt(4), 2, 9)
    (sampled,) = LocalEngine(model, (), seed=11).sample([r], SamplingSettings())
    assert sampled.ids.tolist() == [math.floor(u * VOCAB) for u in uniforms(11, r.episode, 0, 9)]
    np.testing.assert_allclose(sampled.logprobs, -math.log(VOCAB), rtol=1e-6)


def test_same_calls_give_the_same_bits():
    first, second = ([e.sample(ragged(), SamplingSettings()) for _ in range(2)] for e in (engine(), engine()))
    assert first == second
    assert first[0] == first[1]


def test_bfloat16_fused_attention_proves_itself():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]).to(torch.bfloat16)
    sampler = LocalEngine(model, (), seed=0)
    requests = ragged()
    sampled = sampler.sample(requests, SamplingSettings())
    assert sampler.way == "lean"
    scored = sampler.score([(np.concatenate([r.ids, s.ids]), len(r.ids), 1.0) for r, s in zip(requests, sampled)])
    gaps = np.abs(np.concatenate([s.logprobs - x for s, x in zip(sampled, scored)]))
    assert gaps.mean() < 0.02


# --- ends, budgets, limits -------------------------------------------------------------------------------------------


def test_every_end_id_ends_a_row_and_is_kept():
    requests = [request(prompt(6), m, 40) for m in range(12)]
    free = engine().sample(requests, SamplingSettings())
    assert all(s.finish == "length" and len(s.ids) == 40 for s in free)
    ends = {int(free[0].ids[5]), int(free[1].ids[9])}
    for whole, cut in zip(free, engine(eos=ends).sample(requests, SamplingSettings())):
        hits = np.flatnonzero(np.isin(whole.ids, list(ends)))
        expected = whole.ids[: hits[0] + 1] if len(hits) else whole.ids
        assert np.array_equal(cut.ids, expected)
        assert cut.finish == ("stop" if len(hits) else "length")
        np.testing.assert_allclose(cut.logprobs, whole.logprobs[: len(expected)], atol=1e-4)


def test_pad_and_generation_config_are_not_looked_at():
    # cases B14, F4: pad == eos, and the model's own sampling settings never apply
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    requests = [request(np.array([5, 0, 6, 0]), m) for m in range(4)]
    before = LocalEngine(model, {0}, seed=0).sample(requests, SamplingSettings())
    model.config.pad_token_id = 0
    model.generation_config.update(top_k=1, temperature=0.1, eos_token_id=list(range(VOCAB)), pad_token_id=0, max_length=5)
    assert LocalEngine(model, {0}, seed=0).sample(requests, SamplingSettings()) == before


def test_budgets_are_per_request_and_end_at_the_context():
    requests = [request(prompt(5), m, n) for m, n in enumerate((1, 2, 30))]
    requests.append(request(prompt(125), 0, 30))
    sampled = engine().sample(requests, SamplingSettings())
    assert [len(s.ids) for s in sampled] == [1, 2, 30, 3]
    assert {s.finish for s in sampled} == {"length"}
    with pytest.raises(ValueError, match="context of 128"):
        engine().sample([request(prompt(128))], SamplingSettings())
    with pytest.raises(ValueError, match="prompt is empty"):
        request(np.zeros(0))
    assert engine().sample([], SamplingSettings()) == []


def test_sliding_windows_are_exact_beyond_the_window():
    """gemma3 with window 24: prompts of 5 (+12) fit and fork; 40 does not and takes the model's own cache."""
    sampler = engine("gemma3")
    requests = [request(ids, m) for ids in (prompt(5), prompt(40)) for m in range(2)]
    for r, s in zip(requests, sampler.sample(requests, SamplingSettings())):
        expected = full_forward(tiny("gemma3"), np.concatenate([r.ids, s.ids]), len(r.ids), 1.0)
        np.testing.assert_allclose(s.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_greedy_is_the_argmax_of_generate(name):
    ids = prompt(11)
    with torch.no_grad():
        whole = tiny(name).generate(
            torch.tensor(ids[None]), attention_mask=torch.ones(1, 11), max_new_tokens=10, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    for choice in (SamplingSettings(greedy=True), SamplingSettings(temperature=0)):
        (sampled,) = engine(name).sample([request(ids, max_new=10)], choice)
        assert sampled.ids.tolist() == whole[0, 11:].tolist()
        assert sampled.temperature == 0
        assert not sampled.logprobs.any()


# --- the module it shares with the learner ---------------------------------------------------------------------------


def test_dropout_is_off_and_training_flags_come_back():
    # case F7
    model = AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0,
                   resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    ).train()  # fmt: skip
    model.transformer.h[1].eval()
    flags = [m.training for m in model.modules()]
    sampler = LocalEngine(model, (), seed=0)
    (sampled,) = sampler.sample([request(prompt(6))], SamplingSettings())
    rows = [(np.concatenate([prompt(6), sampled.ids]), 6, 1.0)]
    first, second = sampler.score(rows)[0], sampler.score(rows)[0]
    assert np.array_equal(first, second)
    np.testing.assert_allclose(sampled.logprobs, first, atol=1e-4)
    assert [m.training for m in model.modules()] == flags
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("ways", [("lean",), ("forked",), ()])
def test_an_update_in_place_reaches_the_sampler(ways):
    # cases F8, F11: scale the head by 0.5
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.5)
    sampler = LocalEngine(model, (), seed=0, ways=ways)
    (before,) = sampler.sample([request(prompt(6))], SamplingSettings())
    assert before.versions == ((0, 0),)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
        model.model.layers[0].mlp.up_proj.weight.data = model.model.layers[0].mlp.up_proj.weight.data * 3
    sampler.load(1)
    (after,) = sampler.sample([request(prompt(6))], SamplingSettings())
    assert after.versions == ((0, 1),)
    expected = full_forward(model, np.concatenate([prompt(6), after.ids]), 6, 1.0)
    np.testing.assert_allclose(after.logprobs, expected, atol=1e-4)
    assert np.abs(after.logprobs - before.logprobs).max() > 0.01


def _live_tensors() -> int:
    return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())


@pytest.mark.parametrize("ways", [("lean",), ("forked",), ()])
def test_nothing_but_weights_outlives_sampling(ways):
    sampler = engine("llama", ways=ways)
    sampler.sample(ragged(), SamplingSettings())
    gc.collect()
    before = _live_tensors()
    gc.disable()  # a reference cycle would keep the memory until some later collection: that counts as a leak
    try:
        sampler.sample(ragged(), SamplingSettings())
        assert _live_tensors() <= before
    finally:
        gc.enable()
    sampler.release()


def test_attention_setting_is_restored():
    sampler = engine("gemma")
    before = tiny("gemma").config._attn_implementation
    sampler.sample(ragged(), SamplingSettings())
    assert sampler.way == "forked"
    assert tiny("gemma").config._attn_implementation == before


# --- fast ways prove themselves --------------------------------------------------------------------------------------


def test_a_wrong_fast_way_is_switched_off_loudly(monkeypatch, caplog):
    right = forked._partial

    def wrong(q, k, v, scale, softcap, bias):
        return right(q, k, v, scale * 1.05, softcap, bias)

    monkeypatch.setattr(forked, "_partial", wrong)
    sampler = engine()
    with caplog.at_level(logging.WARNING):
        (sampled,) = sampler.sample([request(prompt(20))], SamplingSettings())
    assert sampler.way == "plain"
    assert [("(lean)" in r.message, "(forked)" in r.message) for r in caplog.records] == [(True, False), (False, True)]
    expected = full_forward(tiny("llama"), np.concatenate([prompt(20), sampled.ids]), 20, 1.0)
    np.testing.assert_allclose(sampled.logprobs, expected, atol=1e-4)


def test_an_unsupported_attention_is_switched_off_loudly(monkeypatch, caplog):
    monkeypatch.setattr(forked, "_HARMLESS", {"dropout"})
    sampler = engine("gemma")
    with caplog.at_level(logging.WARNING):
        sampler.sample([request(prompt(5))], SamplingSettings())
    assert sampler.way == "plain"
    assert "Unsupported" in caplog.text


# --- work and memory -------------------------------------------------------------------------------------------------


def test_counters_count_executed_work():
    """Prompts of 5 and 7, three members each, four tokens: by hand."""
    sampler = engine()
    requests = [request(ids, m, 4) for ids in (prompt(5), prompt(7)) for m in range(3)]
    sampler.sample(requests, SamplingSettings())
    c = sampler.counters
    assert (c.prefill_tokens, c.shared_tokens, c.decode_tokens, c.sampled_tokens) == (12, 24, 6 * 3, 24)
    assert c.linear_tokens == 12 + 18
    assert c.head_positions == 2 + 18
    # causal prefill 15 + 28; steps: six slots over 7 padded prompt keys, and 1, 2, 3 suffix keys per row
    assert c.attention_pairs == 15 + 28 + 3 * 6 * 7 + 6 * (1 + 2 + 3)
    assert c.flops(10, 1, 100) == 10 * 30 + c.attention_pairs + 100 * 20
    before = c.copy()
    sampler.score([(prompt(9), 4, 1.0)])
    spent = sampler.counters - before
    assert (spent.score_tokens, spent.head_positions, spent.attention_pairs) == (8, 5, 36)
    assert (before + spent) == sampler.counters
    assert WorkCounters().seconds == 0


def test_finished_rows_stop_costing():
    requests = [request(prompt(6), m, 2 if m else 20) for m in range(8)]
    sampler = engine()
    sampler.sample(requests, SamplingSettings())
    assert sampler.counters.decode_tokens == 8 + 18  # one step of eight rows, then one row for 18 more


def test_many_requests_under_a_small_memory_bound():
    requests = [request(prompt(4 + k % 7, k), m, 6, f"k{k}") for k in range(24) for m in range(4)]
    row = 2 * 2 * 2 * 16 * 4  # bytes per token: keys and values, layers, key heads, head size, float32
    tight = engine(kv_bytes=row * 100)
    for a, b in zip(tight.sample(requests, SamplingSettings()), engine().sample(requests, SamplingSettings())):
        assert np.array_equal(a.ids, b.ids)
    assert tight.counters.prefill_tokens == sum(4 + k % 7 for k in range(24))  # groups were not split


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_survivors_close_ranks(going):
    going = np.array(going)
    index = _closed_ranks(going)
    assert sorted(index) == np.flatnonzero(going).tolist()
    stays = index[index < len(index)]
    assert (index[stays] == stays).all()


def test_closed_ranks_example():
    assert _closed_ranks(np.array([1, 0, 1, 1], bool)).tolist() == [0, 3, 2]


# --- drawing ---------------------------------------------------------------------------------------------------------


def test_tempered_logprobs_of_two_logits():
    # case F1: logits [2, 0] at T = 0.5 → p = .982, .018
    ids, logprobs = draw(
        torch.tensor([[2.0, 0.0]] * 2), torch.tensor([0.98, 0.99]).double(), SamplingSettings(temperature=0.5)
    )
    assert ids.tolist() == [0, 1]
    np.testing.assert_allclose(logprobs.exp(), [0.98201, 0.01799], atol=1e-5)


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_draw_is_the_inverse_cdf(vocab, seed, u):
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    ids, logprobs = draw(logits, torch.tensor([u], dtype=torch.float64), SamplingSettings())
    p = torch.softmax(logits[0].double(), -1).numpy()
    cdf = np.cumsum(p)
    i = int(ids[0])
    assert cdf[i] - p[i] - 1e-6 <= u <= cdf[i] + 1e-6
    assert float(logprobs[0]) == pytest.approx(math.log(p[i]), abs=1e-5)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(u):
    logits = torch.full((1, 600), -torch.inf)
    logits[0, [270, 300]] = 0.0
    ids, logprobs = draw(logits, torch.tensor([u], dtype=torch.float64), SamplingSettings())
    assert ids.tolist() == [270 if u == 0 else 300]
    assert float(logprobs[0]) == pytest.approx(-math.log(2))


def test_frequencies_follow_the_softmax():
    """Chi-square of 2,000 one-token episodes of one prompt against the model's own distribution."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**_SHAPE, "vocab_size": 12}))
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.15)
    ids = np.array([1, 5, 3])
    with torch.no_grad():
        p = torch.softmax(model(input_ids=torch.tensor(ids[None])).logits[0, -1] / 0.7, -1).numpy()
    sampled = LocalEngine(model, (), seed=0).sample(
        [request(ids, m, 1) for m in range(2000)], SamplingSettings(temperature=0.7)
    )  # fmt: skip
    counts = np.bincount([int(s.ids[0]) for s in sampled], minlength=12)
    chi2 = ((counts - 2000 * p) ** 2 / (2000 * p)).sum()
    assert chi2 < 31.26  # 99.9 % point of χ² with 11 degrees of freedom
    assert p.max() > 2 * p.min()


def test_restricted_support_by_hand():
    """p = .5, .25, .15, .1: top-k 2 → 2/3, 1/3; top-p .7 → two tokens; top-p .75 → two; min-p .3 → p ≥ .15."""
    logits = torch.log(torch.tensor([[0.15, 0.5, 0.1, 0.25]]))

    def kept(**options) -> list[float]:
        return torch.softmax(restricted(logits, SamplingSettings(**options)), -1)[0].tolist()

    assert kept(top_k=2) == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert kept(top_p=0.7) == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert kept(top_p=0.8) == pytest.approx([0.15 / 0.9, 0.5 / 0.9, 0, 0.25 / 0.9])
    assert kept(top_p=0.01) == pytest.approx([0, 1, 0, 0])
    assert kept(min_p=0.29) == pytest.approx([0.15 / 0.9, 0.5 / 0.9, 0, 0.25 / 0.9])
    assert kept(top_k=3, min_p=0.4) == pytest.approx([0, 2 / 3, 0, 1 / 3])
    ids, logprobs = draw(logits, torch.tensor([0.9], dtype=torch.float64), SamplingSettings(top_k=2))
    assert ids.tolist() == [3]
    assert float(logprobs[0]) == pytest.approx(math.log(1 / 3))


def test_tiny_temperatures_stay_finite_and_bad_logits_raise():
    # case F6
    ids, logprobs = draw(torch.tensor([[1.0, 2.0, 0.5]]), torch.tensor([0.5]).double(), SamplingSettings(temperature=1e-6))
    assert ids.tolist() == [1]
    assert float(logprobs[0]) == 0.0
    for bad in (math.nan, math.inf):
        for how in (SamplingSettings(), SamplingSettings(greedy=True)):
            with pytest.raises(FloatingPointError, match="not finite"):
                draw(torch.tensor([[0.0, bad]]), torch.tensor([0.5]).double(), how)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"temperature": math.inf}, {"top_p": 0}, {"top_k": -1}, {"min_p": 1}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(SamplingSettings(), **wrong)


def test_linear_attention_takes_the_models_own_cache(caplog):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        Qwen3NextConfig(**_SHAPE, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32,
                        shared_expert_intermediate_size=32, layer_types=["linear_attention", "full_attention"],
                        linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)
    )  # fmt: skip
    sampler = LocalEngine(model, range(10, 40), seed=0)
    requests = ragged(members=2, max_new=6)
    with caplog.at_level(logging.WARNING):
        sampler.sample(requests, SamplingSettings())
        sampled = sampler.sample(requests, SamplingSettings())
    assert sampler.way == "plain"
    assert sum("own cache" in r.message for r in caplog.records) == 1
    for r, s in zip(requests, sampled):
        expected = full_forward(model, np.concatenate([r.ids, s.ids]), len(r.ids), 1.0)
        np.testing.assert_allclose(s.logprobs, expected, atol=1e-4)

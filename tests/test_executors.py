"""packed equals plain: log-probs, gradients, every objective, aggregation, split, order; masked junk changes nothing."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GemmaConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from milepost.engines.base import SampleRequest, SamplingSettings
from milepost.engines.local import LocalEngine
from milepost.executors import HEAD_TILE, Executor, HeadLogprobs
from milepost.forest import build_batch
from milepost.learner import events_of
from milepost.loss import OBJECTIVES, policy_loss
from milepost.sections import CorrectionSection, KlSection, LossSection
from milepost.types import Credit, Episode, EpisodeId, Sampled, StopKind, StopReason, Turn

VOCAB = 41
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
CONFIGS = {
    "llama": lambda: LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "qwen3": lambda: Qwen3Config(**SMALL),
    "gemma": lambda: GemmaConfig(**SMALL),
    "gpt2": lambda: GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128),
}
DONE = StopReason(StopKind.TERMINATED, "end_of_turn")


def tiny(name="llama", dtype=torch.float32):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return model


def episodes(seed=0, groups=3, size=3, turns=(1, 2)):
    """Groups with a shared prompt, ragged completions, some of several turns; sampler log-probs at random."""
    rng = np.random.default_rng(seed)
    made = []
    for g in range(groups):
        prompt = rng.integers(0, VOCAB, rng.integers(3, 9))
        for m in range(size):
            parts, context = [], prompt
            for _ in range(rng.integers(turns[0], turns[1] + 1)):
                n = int(rng.integers(1, 7))
                sampled = Sampled(
                    rng.integers(0, VOCAB, n), -rng.random(n) * 3, float(rng.choice([0.7, 1.0])), ((0, 0),), "stop"
                )
                parts.append(Turn(context, sampled))
                context = rng.integers(0, VOCAB, 3)
            e = Episode(EpisodeId("train", 0, f"t{g}", m), f"g{g}", tuple(parts), DONE)
            made.append((e, Credit(e.id, rng.normal(size=e.num_sampled).round(2), True, True)))
    return made


def batch_of(pairs, **options):
    return build_batch([e for e, _ in pairs], [c for _, c in pairs], **options)


def gradient(model, batch, kind, loss, *, tokens=10_000, beta=0.0, correct=False, kl=None):
    """(loss, flat gradient, log-probs by event) of the whole batch."""
    model.zero_grad(set_to_none=True)
    executor = Executor(model, kind, tokens)
    assert executor.kind == kind
    total, logprobs = 0.0, torch.zeros(batch.num_events, dtype=torch.float64)
    for call in executor.calls(batch):
        readout = executor.run(batch, call)
        events = events_of(batch, call.event, readout.logprobs)
        value, _ = policy_loss(
            readout.logprobs, events, loss, kl or KlSection(), CorrectionSection(), beta=beta, correct=correct
        )
        value.backward()
        total += float(value.detach())
        logprobs[torch.from_numpy(call.event)] = readout.logprobs.detach().double()
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
    return total, flat, logprobs


def relative(a, b):
    return float((a - b).norm() / b.norm())


def off_policy(batch, seed=1):
    """Old log-probs that differ by σ = .3 even between episodes that share their trunk."""
    rng = np.random.default_rng(seed)
    return batch.with_logprobs(old=batch.sampler_E + 0.3 * rng.normal(size=batch.num_events), ref=batch.sampler_E - 0.1)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_log_probs_equal_one_row_at_a_time(name, kind):
    """cases B24–B26: ragged rows, padding, learned positions; each row alone through the model's own forward."""
    model, batch = tiny(name), batch_of(episodes())
    _, _, got = gradient(model, batch, kind, LossSection())
    for s, path in enumerate(batch.paths):
        ids = torch.from_numpy(batch.forest.ids_U[path])[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0].double()
        for e in np.flatnonzero(batch.segment_E == s):
            at = int(np.flatnonzero(path == batch.node_E[e])[0])
            expected = torch.log_softmax(logits[at] / batch.temperature_E[e], -1)[batch.token_E[e]]
            assert got[e] == pytest.approx(float(expected), abs=2e-5)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_packed_gradient_equals_plain_for_every_objective(objective, dtype, bound):
    model = tiny(dtype=dtype)
    for aggregate in ("sequence_mean", "token_mean", "constant", "prompt_mean"):
        batch = off_policy(batch_of(episodes(), aggregate=aggregate, constant=16))
        # Old log-probs near the model's own, so that ratios straddle the clip range.
        _, _, now = gradient(model, batch, "plain", LossSection())
        batch = batch.with_logprobs(old=now.numpy() + (batch.old_E - batch.sampler_E))
        loss = LossSection(objective=objective)
        value, expected, _ = gradient(model, batch, "plain", loss, correct=True)
        packed, got, _ = gradient(model, batch, "packed", loss, correct=True)
        assert packed == pytest.approx(value, rel=1e-5, abs=1e-7)
        if expected.norm() > 0:
            assert relative(got, expected) <= bound


@pytest.mark.parametrize("objective", ["clip", "gspo", "gmpo"])
@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_micro_batches_and_row_order_change_nothing(objective, kind):
    """cases A14–A16, A32: one denominator; splits and permutations of whole groups give the same gradient."""
    model, pairs = tiny(dtype=torch.float64), episodes(groups=4)
    loss = LossSection(objective=objective)
    whole = batch_of(pairs, aggregate="sequence_mean")
    _, expected, _ = gradient(model, whole, kind, loss)
    for tokens in (1, 40, 90):
        _, got, _ = gradient(model, whole, kind, loss, tokens=tokens)
        assert relative(got, expected) <= 1e-6  # the models compute norms in float32
    shuffled = [pairs[i] for i in np.random.default_rng(3).permutation(len(pairs))]
    _, got, _ = gradient(model, batch_of(shuffled, aggregate="sequence_mean"), kind, loss)
    assert relative(got, expected) <= 1e-6  # the models compute norms in float32


@pytest.mark.parametrize("num_groups", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 90, 10_000])
def test_the_gradient_of_several_groups_is_the_average_of_their_own(num_groups, tokens):
    """case A32: for any number of groups and calls, finite and the mean over prompts of what each alone would give."""
    model, pairs = tiny(dtype=torch.float64), episodes(groups=num_groups)
    alone = [
        gradient(model, batch_of([p for p in pairs if p[0].group_id == f"g{g}"]), "plain", LossSection())[1]
        for g in range(num_groups)
    ]
    _, got, _ = gradient(model, batch_of(pairs, aggregate="prompt_mean"), "packed", LossSection(), tokens=tokens)
    assert torch.isfinite(got).all()
    assert relative(got, sum(alone) / num_groups) <= 1e-6


def test_an_observation_is_read_but_not_trained():
    """cases B9, B10: another tool output changes what follows it, and adds no term of its own."""
    model, (first, second) = tiny(dtype=torch.float64), (np.array([5, 7, 3]), np.array([5, 9, 3]))
    rows = []
    for observation in (first, second):
        turns = tuple(
            Turn(context, Sampled(ids, -np.ones(2), 1.0, ((0, 0),), "stop"))
            for context, ids in ((np.array([1, 2]), [11, 12]), (observation, [13, 14]))
        )
        e = Episode(EpisodeId("train", 0, "t", 0), "g", turns, DONE)
        rows.append(batch_of([(e, Credit(e.id, np.ones(4), True, True))]))
    for kind in ("packed", "plain"):
        (_, _, seven), (_, _, nine) = (gradient(model, batch, kind, LossSection()) for batch in rows)
        assert [batch.token_E.tolist() for batch in rows] == [[11, 12, 13, 14]] * 2
        assert torch.equal(seven[:2], nine[:2])
        assert (seven[2:] - nine[2:]).abs().min() > 1e-4


def test_kl_terms_survive_packing_and_pull_with_zero_advantage():
    """cases A18, A36: all A = 0 and β = 1 still have a gradient, the same in both executors."""
    model = tiny(dtype=torch.float64)
    pairs = [(e, Credit(e.id, np.zeros(e.num_sampled), True, True, True)) for e, _ in episodes()]
    batch = off_policy(batch_of(pairs, drop_constant_groups=False))
    for estimator in ("k2", "k3", "k3_ratio"):
        kl = KlSection(beta=1.0, estimator=estimator)
        _, expected, _ = gradient(model, batch, "plain", LossSection(), beta=1.0, kl=kl)
        _, got, _ = gradient(model, batch, "packed", LossSection(), beta=1.0, kl=kl)
        assert expected.norm() > 1e-3
        assert relative(got, expected) <= 1e-6


def test_padding_is_never_seen():
    """Invariant 1, case A33: other rows' lengths, and so the padding, change nothing beyond rounding."""
    model, pairs = tiny(dtype=torch.float64), episodes(groups=1)
    alone = batch_of(pairs, aggregate="constant", constant=10)
    long = [
        (e, Credit(c.episode, np.zeros(e.num_sampled), True, True)) for e, c in episodes(seed=9, groups=1, turns=(6, 6))
    ]
    long = [(Episode(EpisodeId("train", 0, "zz", i), "zz", e.turns, DONE), c) for i, (e, c) in enumerate(long)]
    both = batch_of(pairs + long, aggregate="constant", constant=5)
    for kind in ("packed", "plain"):
        _, expected, logprobs = gradient(model, alone, kind, LossSection())
        _, got, padded = gradient(model, both, kind, LossSection())
        assert relative(got, expected) <= 1e-6  # the models compute norms in float32
        assert torch.allclose(padded[: alone.num_events], logprobs, atol=1e-6)


@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_junk_in_padded_slots_changes_no_bit(kind, monkeypatch):
    """case A33: other ids in the padding, and NaN in the columns of untrained episodes."""
    model, pairs = tiny(), episodes(groups=3)
    value, expected, logprobs = gradient(model, batch_of(pairs), kind, LossSection())
    monkeypatch.setattr("milepost.executors.FILLER", 17)
    junk = [(e, Credit(e.id, np.full(e.num_sampled, np.nan), False, True)) for e, _ in episodes(seed=5, groups=1)]
    junk = [(Episode(EpisodeId("train", 0, "junk", i), "junk", e.turns, DONE), c) for i, (e, c) in enumerate(junk)]
    again, got, other = gradient(model, batch_of(pairs + junk), kind, LossSection())
    assert (again, torch.equal(got, expected), torch.equal(other, logprobs)) == (value, True, True)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_sampled_at_half_temperature_the_learner_reads_the_same_log_probs(name):
    """case F1: temperature .5, fp32: ratio 1 to rounding at every token; untempered scoring would be off by far."""
    model = tiny(name)
    engine = LocalEngine(model, frozenset({1}), seed=3)
    requests = [
        SampleRequest(EpisodeId("train", 1, f"t{g}", m), 0, np.arange(2, 6 + g), 9) for g in range(3) for m in range(3)
    ]
    sampled = engine.sample(requests, SamplingSettings(temperature=0.5))
    made = []
    for r, s in zip(requests, sampled):
        e = Episode(r.episode, r.episode.task_key, (Turn(r.ids, s),), DONE)
        made.append((e, Credit(e.id, np.ones(e.num_sampled), True, True)))
    batch = batch_of(made)
    assert [int(t) for t in batch.token_E] == [int(t) for s in sampled for t in s.ids]
    for kind in ("packed", "plain"):
        scored = Executor(model, kind).score(batch)
        assert np.abs(np.exp(scored - batch.sampler_E) - 1).max() < 1e-3
    untempered = batch_of([(_at_temperature_one(e), c) for e, c in made])
    assert np.abs(Executor(model, "plain").score(untempered) - untempered.sampler_E).mean() > 0.05


def _at_temperature_one(e):
    t = e.turns[0]
    return Episode(
        e.id, e.group_id, (Turn(t.context_ids, Sampled(t.sampled.ids, t.sampled.logprobs, 1.0, ((0, 0),), "stop")),), DONE
    )


def test_prove_demotes_a_model_whose_attention_ignores_the_tree_mask():
    model = tiny()
    forward = model.model.forward
    model.model.forward = lambda **kw: forward(**{**kw, "attention_mask": None})
    executor = Executor(model, "packed")
    executor.prove(batch_of(episodes()))
    assert executor.kind == "plain"


def test_prove_keeps_packed_where_it_is_exact():
    executor = Executor(tiny(), "packed")
    executor.prove(batch_of(episodes()))
    assert executor.kind == "packed" and executor.counters.linear_tokens == 0


def test_head_in_tiles_equals_autograd():
    """More positions than a tile, shared positions, mixed temperatures, bias: values and gradients of the formula."""
    torch.manual_seed(1)
    n, d, events = HEAD_TILE + 37, 5, HEAD_TILE + 90
    hidden = torch.randn(n, d, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, d, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(VOCAB, dtype=torch.float64, requires_grad=True)
    which, target = torch.randint(n, (events,)), torch.randint(VOCAB, (events,))
    temperature = torch.where(torch.rand(events) < 0.5, 0.5, 1.3).double()
    coefficient = torch.randn(events, dtype=torch.float64)
    logp = torch.log_softmax((hidden @ weight.T + bias)[which] / temperature[:, None], -1)
    expected = logp.gather(1, target[:, None])[:, 0]
    wanted = torch.autograd.grad((expected * coefficient).sum(), (hidden, weight, bias))
    got, entropy = HeadLogprobs.apply(hidden, weight, bias, which, target, temperature)
    grads = torch.autograd.grad((got * coefficient).sum(), (hidden, weight, bias))
    assert torch.allclose(got, expected, atol=1e-12)
    assert torch.allclose(entropy, -(logp.exp() * logp).sum(-1), atol=1e-12)
    for a, b in zip(grads, wanted):
        assert torch.allclose(a, b, atol=1e-6)
    assert (entropy >= 0).all()  # case L4


def test_work_counters_count_padding_and_backward():
    model, pairs = tiny(), episodes(groups=1, size=2, turns=(1, 1))
    batch = batch_of(pairs)
    executor = Executor(model, "packed")
    (call,) = executor.calls(batch)
    executor.run(batch, call)
    assert executor.counters.linear_tokens == 3 * len(batch.forest)
    assert executor.counters.head_positions == 4 * len(set(batch.node_E.tolist()))

"""The cost model against hand-worked values, real weight matrices, and enumerated forests."""

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from milepost.cost import StepWork, executed_step, ideal_step, model_cost, no_work, span, work_ratio
from milepost.engines.base import WorkCounters
from milepost.forest import build_batch
from milepost.types import Credit, Episode, EpisodeId, RecipeError, Sampled, StopKind, StopReason, Turn

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
}  # fmt: skip


def episode(group, member, turns, *, new_segments=()):
    """`turns`: (context ids, sampled ids) each."""
    made = [
        Turn(np.array(c), Sampled(np.array(s), np.zeros(len(s)), 1.0, ((0, 0),), "length"), new_segment=k in new_segments)
        for k, (c, s) in enumerate(turns)
    ]
    name = f"g{group}"
    return Episode(EpisodeId("train", 1, name, member), name, tuple(made), StopReason(StopKind.TRUNCATED, "tokens"))


def batch_of(episodes):
    return build_batch(episodes, [Credit(e.id, np.ones(e.num_sampled), True, True) for e in episodes])


def distinct_groups(num_groups, group_size, prompt_tokens, turn_lengths):
    """Groups whose members share the first prompt and nothing after; turn_lengths: (later context, sampled) per turn."""
    fresh = iter(range(10**9))
    take = lambda n: [next(fresh) for _ in range(n)]  # noqa: E731
    found = []
    for g in range(num_groups):
        prompt = take(prompt_tokens)
        for m in range(group_size):
            turns = [(prompt if k == 0 else take(o), take(a)) for k, (o, a) in enumerate(turn_lengths)]
            found.append(episode(g, m, turns))
    return found


def gigaflops(work: StepWork, cost):
    return {part: round(flops / 1e9) for part, flops in work.by_part(cost).items()}


def test_smollm2_costs():
    # λ = 2·30·(2·576·576 + 2·576·192 + 3·576·1536) = 60·3 538 944; α = 4·30·576; η = 2·49152·576; κ = 2·30·192·2 bytes
    cost = model_cost(SMOLLM2)
    assert cost.per_token == 212_336_640
    assert cost.per_pair == 69_120
    assert cost.per_head_position == 56_623_104
    assert cost.kv_bytes_per_token == 23_040
    assert model_cost(SMOLLM2, value_bytes=4).kv_bytes_per_token == 46_080


def test_worked_step():
    """N = 8, G = 8, P = 256, C = 64: the table of the reference, in GFLOP."""
    episodes = distinct_groups(8, 8, 256, [(0, 64)])
    cost, work = model_cost(SMOLLM2), ideal_step(episodes, batch_of(episodes))
    # prefill 8·(256λ + 32 896α + η), decode 64·(63(λ + η) + 18 144α), blocks 3·8·((256 + 8·63)λ + (32 896 + 8·18 144)α)
    assert gigaflops(work, cost) == {"prefill": 454, "decode": 1165, "blocks": 4168, "head": 696}
    assert round(work.flops(cost) / 1e9) == 6482


def test_worked_agent_step():
    """One group of 8, ten turns of 100 observation and 20 action tokens, keys and values kept between turns."""
    episodes = distinct_groups(1, 8, 100, [(100, 20)] * 10)
    cost, work = model_cost(SMOLLM2), ideal_step(episodes, batch_of(episodes))
    assert gigaflops(work, cost) == {"prefill": 1897, "decode": 477, "blocks": 6850, "head": 272}
    assert round(work.flops(cost) / 1e9) == 9496


def test_counts_by_hand():
    # Two members of prompt [1 2 3]: sampled [4 5] and [4 6]. Forest without last tokens: 1 2 3 4, all shared.
    episodes = [episode(0, 0, [([1, 2, 3], [4, 5])]), episode(0, 1, [([1, 2, 3], [4, 6])])]
    work = ideal_step(episodes, batch_of(episodes))
    assert (work.prefill.linear_tokens, work.prefill.attention_pairs, work.prefill.head_positions) == (3, 6, 1)
    assert (work.decode.linear_tokens, work.decode.attention_pairs, work.decode.head_positions) == (2, 8, 2)
    assert (work.blocks.linear_tokens, work.blocks.attention_pairs) == (3 * 4, 3 * 10)
    assert work.head.head_positions == 3 * 4


def test_a_rewritten_history_is_prefilled_whole():
    whole = ideal_step([episode(0, 0, [([1, 2], [3, 4]), ([9, 8, 7], [6])], new_segments=(1,))], None)
    # Turn 1: 2 tokens, 3 pairs. Turn 2 starts anew: 3 tokens, 6 pairs. Decode: token 3 sees 3 keys.
    assert (whole.prefill.linear_tokens, whole.prefill.attention_pairs) == (5, 9)
    assert (whole.decode.linear_tokens, whole.decode.attention_pairs) == (1, 3)
    kept = ideal_step([episode(0, 0, [([1, 2], [3, 4]), ([9, 8, 7], [6])])], None)
    # Turn 2 continues: the pending token 4 and 3 new ones after 3 others: 4 + 5 + 6 + 7 pairs.
    assert (kept.prefill.linear_tokens, kept.prefill.attention_pairs) == (2 + 4, 3 + 22)


def test_without_a_batch_only_sampling_counts():
    work = ideal_step([episode(0, 0, [([1], [2])])], None)
    assert (work.blocks, work.head, work.decode) == (WorkCounters(), WorkCounters(), WorkCounters())
    assert ideal_step([], None) == no_work()


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=5)), min_size=1, max_size=8))
def test_the_update_counts_every_distinct_prefix_once(rows):
    episodes = [episode(g, m, [([7, g], completion)]) for m, (g, completion) in enumerate(rows)]
    work = ideal_step(episodes, batch_of(episodes))
    sequences = [[7, g, *completion[:-1]] for g, completion in rows]
    prefixes = {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}
    assert work.blocks.linear_tokens == 3 * len(prefixes)
    assert work.blocks.attention_pairs == 3 * sum(len(p) for p in prefixes)
    assert work.prefill.linear_tokens == 2 * len({g for g, _ in rows})
    assert work.decode.attention_pairs == sum(len(s[: i + 1]) for s in sequences for i in range(2, len(s)))


@given(st.integers(0, 50), st.integers(0, 50))
def test_span_sums_the_visible_keys(start, num):
    assert span(start, num) == sum(start + i for i in range(1, num + 1))


def test_executed_work_is_split_without_loss():
    prefill = WorkCounters(linear_tokens=10, attention_pairs=20, head_positions=1)
    sampler = WorkCounters(linear_tokens=15, attention_pairs=50, head_positions=6)
    learner = WorkCounters(linear_tokens=30, attention_pairs=90, head_positions=8)
    work, cost = executed_step(prefill, sampler, learner), model_cost(SMOLLM2)
    assert work.flops(cost) == pytest.approx(cost.flops(sampler + learner), rel=1e-12)
    assert (work.decode.linear_tokens, work.decode.attention_pairs, work.decode.head_positions) == (5, 30, 5)
    assert (work.blocks.head_positions, work.head.head_positions) == (0, 8)
    assert work_ratio(work + work, work, cost) == 2.0


SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
CONFIGS = [
    transformers.LlamaConfig(**SMALL, num_key_value_heads=2),
    transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8),
    transformers.Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=8),
    transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4),
    transformers.GPTNeoXConfig(**SMALL),
    transformers.PhiConfig(**SMALL),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_costs_equal_the_real_matrices(config):
    model = transformers.AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, kinds) and m is not head)
    cost = model_cost(config)
    assert cost.per_token == 2 * weights
    assert cost.per_head_position == 2 * head.weight.numel()
    assert model_cost(config.to_dict()) == cost


def test_other_architectures_are_refused_by_name():
    with pytest.raises(RecipeError, match="8 experts"):
        model_cost(transformers.MixtralConfig(num_local_experts=8))
    with pytest.raises(RecipeError, match="linear_attention"):
        model_cost({**SMALL, "layer_types": ["linear_attention", "full_attention"]})
    with pytest.raises(RecipeError, match="num_hidden_layers"):
        model_cost({"hidden_size": 8})

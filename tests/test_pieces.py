"""Rows longer than a call's budget, run piece by piece: the same log-probs and gradients, in the memory of a piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_executors import CONFIGS, VOCAB, batch_of, episodes, gradient, off_policy, relative, tiny
from test_forest import episode

from milepost.executors import Executor
from milepost.forest import plan, tree_mask
from milepost.loss import OBJECTIVES
from milepost.sections import LossSection


def long_batch(length=150, members=1, seed=0):
    """One group; each member: a shared prompt of 20, then turns of 5 sampled and 5 read."""
    rng = np.random.default_rng(seed)
    prompt, pairs = rng.integers(0, VOCAB, 20), []
    for member in range(members):
        read = [prompt, *(rng.integers(0, VOCAB, 5) for _ in range((length - 25) // 10))]
        turns = [(ids, rng.integers(0, VOCAB, 5)) for ids in read]
        pairs.append(episode(member, turns, advantage=1.0 - 2 * member))
    return batch_of(pairs)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("members", [1, 3])
def test_gradients_in_pieces_are_those_of_whole_rows(name, members):
    """A single path, and a tree of three whose mask is cut too; pieces of 16, of 40 and of 64 of about 100 columns."""
    model, batch = tiny(name, torch.float64), long_batch(100, members)
    value, expected, logprobs = gradient(model, batch, "packed", LossSection())
    for tokens in (16, 40, 64):
        got = gradient(model, batch, "packed", LossSection(), tokens=tokens)
        assert got[0] == pytest.approx(value, rel=1e-6)
        assert relative(got[1], expected) <= 1e-6  # the models compute norms in float32
        assert torch.allclose(got[2], logprobs, atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_and_ragged_rows(objective):
    """One group of three ragged episodes, each row padded to the longest, several rows to a call."""
    model = tiny()
    batch = off_policy(batch_of(episodes(groups=1, turns=(5, 9))))
    _, _, now = gradient(model, batch, "plain", LossSection())
    batch = batch.with_logprobs(old=now.numpy() + (batch.old_E - batch.sampler_E))
    loss = LossSection(objective=objective)
    value, expected, _ = gradient(model, batch, "plain", loss, correct=True)
    for kind in ("plain", "packed"):
        got = gradient(model, batch, kind, loss, tokens=20, correct=True)
        assert got[0] == pytest.approx(value, rel=1e-5, abs=1e-7)
        assert expected.norm() == 0 or relative(got[1], expected) <= 1e-5


def test_a_mask_of_some_columns_is_that_part_of_the_whole():
    batch = long_batch(60, 3)
    (call,) = plan(batch, shared=True, tokens_per_call=10_000)
    whole = tree_mask(batch, call)
    for first, last in ((0, 7), (7, 30), (30, call.width)):
        assert np.array_equal(tree_mask(batch, call, first, last), whole[:, first:last, :last])
        assert not whole[:, first:last, last:].any()


class Saved:
    """Bytes that autograd holds for a backward pass, and the most of them at one time."""

    def __init__(self):
        self.now = self.most = 0

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: Held(self, tensor), lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


class Held:
    def __init__(self, saved, tensor):
        self.saved, self.tensor, self.size = saved, tensor, tensor.numel() * tensor.element_size()
        saved.now += self.size
        saved.most = max(saved.most, saved.now)

    def __del__(self):
        self.saved.now -= self.size


def held(length, tokens):
    batch, model = long_batch(length), tiny()
    executor = Executor(model, "packed", tokens)
    (call,) = executor.calls(batch)
    with Saved() as saved:
        executor.run(batch, call).logprobs.sum().backward()
    assert saved.now == 0
    return saved.most


def test_what_is_held_for_a_long_row_is_that_of_a_piece_and_of_keys_and_values():
    whole, pieces = [[held(length, tokens) for length in (200, 400)] for tokens in (10_000, 50)]
    assert pieces[1] < whole[1] / 3
    assert pieces[1] - pieces[0] < (whole[1] - whole[0]) / 4  # what still grows are keys and values


def test_the_work_of_pieces_is_counted_with_its_forward_more():
    batch = long_batch(80)
    executor = Executor(tiny(), "packed", 40)
    (call,) = executor.calls(batch)
    length = len(batch.forest)
    assert 64 < length < 80
    executor.run(batch, call)
    counters = executor.counters
    assert counters.linear_tokens == 4 * length
    assert counters.attention_pairs == 4 * (40 * 40 + (length - 40) * length)
    assert counters.head_positions == 5 * len(set(batch.node_E.tolist()))


def test_a_model_that_keeps_no_such_cache_is_run_whole_and_told(caplog):
    model = tiny()
    forward = model.model.forward
    model.model.forward = lambda **kw: forward(**{k: v for k, v in kw.items() if k != "past_key_values"})
    executor = Executor(model, "plain", 40)
    batch = long_batch(80)
    value, expected, _ = gradient(model, batch, "plain", LossSection())
    (call,) = executor.calls(batch)
    assert torch.isfinite(executor.run(batch, call).logprobs).all()
    assert executor.in_pieces is False and "cannot be run in pieces" in caplog.text
    got = gradient(model, batch, "plain", LossSection(), tokens=40)
    assert got[0] == value and torch.equal(got[1], expected)


def test_scores_need_no_pieces():
    batch = long_batch(80)
    executor = Executor(tiny(), "packed", 40)
    scores = executor.score(batch)
    assert executor.in_pieces is None
    assert np.allclose(scores, Executor(tiny(), "plain").score(batch), atol=1e-5)

"""Keyed random streams: prefix property, independence of keys, pinned values."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.streams import coin, generator, shuffled, uniforms
from milepost.types import EpisodeId

EPISODE = EpisodeId("train", 3, "chain_sum/17", 2)


def test_first_values_are_philox_of_the_blake2b_digest():
    """Spelled out by hand, so that a change of key layout (which would change every run) is noticed."""
    text = "11:str=episode5:int=79:str=train5:int=316:str=chain_sum/175:int=25:int=0"
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
    expected = np.random.Generator(np.random.Philox(key=key, counter=4 << 128)).random(5)
    assert np.array_equal(uniforms(7, EPISODE, 4, 5), expected)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 3))
def test_token_t_has_the_same_draw_whatever_the_length(short, more, turn):
    long = uniforms(0, EPISODE, turn, short + more)
    assert long.dtype == np.float64
    assert long.shape == (short + more,)
    assert np.array_equal(long[:short], uniforms(0, EPISODE, turn, short))
    assert ((long >= 0) & (long < 1)).all()


@pytest.mark.parametrize(
    "other",
    [
        replace(EPISODE, phase="test"),
        replace(EPISODE, step=4),
        replace(EPISODE, task_key="chain_sum/18"),
        replace(EPISODE, member=1),
        replace(EPISODE, attempt=1),
    ],
)
def test_every_field_of_the_key_matters(other):
    base = uniforms(0, EPISODE, 0, 8)
    assert not np.isin(uniforms(0, other, 0, 8), base).any()
    assert not np.isin(uniforms(1, EPISODE, 0, 8), base).any()
    assert not np.isin(uniforms(0, EPISODE, 1, 8), base).any()


def test_fields_cannot_run_into_each_other():
    assert not np.array_equal(
        uniforms(0, EpisodeId("train", 1, "a5:int=2", 3), 0, 4), uniforms(0, EpisodeId("train", 1, "a", 2, 3), 0, 4)
    )
    assert not np.array_equal(generator(1, "12").random(4), generator(11, "2").random(4))


def test_numpy_integers_name_the_same_stream():
    same = replace(EPISODE, step=np.int64(3), member=np.int32(2))
    assert np.array_equal(uniforms(np.int64(7), same, 0, 4), uniforms(7, EPISODE, 0, 4))


def test_members_are_uncorrelated_and_uniform():
    draws = np.stack([uniforms(0, replace(EPISODE, member=m), 0, 2000) for m in range(8)])
    assert abs(draws.mean() - 0.5) < 5 * np.sqrt(1 / 12 / draws.size)
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)


@given(st.integers(0, 200), st.integers(0, 5))
def test_shuffled_is_a_permutation_fixed_by_its_key(n, seed):
    order = shuffled(seed, "epoch/0", n)
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(order, shuffled(seed, "epoch/0", n))


def test_shuffled_depends_on_seed_and_label():
    base = shuffled(0, "epoch/0", 50)
    assert not np.array_equal(base, shuffled(0, "epoch/1", 50))
    assert not np.array_equal(base, shuffled(1, "epoch/0", 50))


def test_coin_has_its_probability():
    heads = sum(coin(0, f"c/{i}", 0.3) for i in range(2000))
    assert abs(heads - 600) < 5 * np.sqrt(2000 * 0.3 * 0.7)
    assert coin(0, "x", 1.0)
    assert not coin(0, "x", 0.0)


def test_negative_turns_are_refused():
    with pytest.raises(ValueError, match="turn = -1"):
        uniforms(0, EPISODE, -1, 1)


def test_no_torch_and_no_dependence_on_hash_seed():
    code = (
        "import sys; from milepost.streams import uniforms; from milepost.types import EpisodeId;"
        "print(uniforms(7, EpisodeId('train', 3, 'k', 2), 0, 3).tolist(), 'torch' in sys.modules)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": h}, capture_output=True, text=True, check=True
        ).stdout
        for h in ("0", "1")
    }
    assert outputs == {f"{uniforms(7, EpisodeId('train', 3, 'k', 2), 0, 3).tolist()} False\n"}

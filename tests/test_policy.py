"""The small policy: sizes, vocabulary, determinism, and that it loads like any other model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.models import load_model
from milepost.policy import CHARSET, SIZES, made_policy, make_tokenizer, new_policy, vocabulary
from milepost.recipe import make_recipe
from milepost.render import completion_ids, decode, prompt_ids
from milepost.sections import ModelSection, TasksSection
from milepost.types import DataError, RecipeError

SECTION = TasksSection()


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.5), ("small", 1.0), ("medium", 4.0)])
def test_sizes_are_what_the_table_says(tmp_path, size, millions):
    num = new_policy(tmp_path / "p", size=size)
    shape = SIZES[size]
    # By hand: attention 4·d², gated MLP 3·d·f, two norms of d per layer, one norm at the end, 99 tied embedding rows.
    layer = 4 * shape.width**2 + 3 * shape.width * shape.inner + 2 * shape.width
    assert num == shape.layers * layer + shape.width + 99 * shape.width
    assert num == pytest.approx(millions * 1e6, rel=0.05)


def test_the_largest_size_stays_within_15_million():
    shape = SIZES["large"]
    assert (
        shape.layers * (4 * shape.width**2 + 3 * shape.width * shape.inner) + 99 * shape.width == 14_925_120
    )  # 6 · 2,480,128 + 44,352


def test_it_loads_like_any_other_model(tmp_path):
    num = new_policy(tmp_path / "p", charset="0123456789+=", layers=1, width=16, heads=2)
    policy = load_model(ModelSection(path=str(tmp_path / "p")))
    assert policy.num_parameters == num
    assert (policy.precision, policy.eos_ids) == ("float32", frozenset({1}))
    assert policy.tokenizer.pad_token_id == 0  # never the end of a turn
    # Sorted by code point: + is 43, digits are 48 to 57, = is 61; ids 0, 1, 2 are special.
    assert prompt_ids("3+4=", policy.tokenizer, SECTION).tolist() == [7, 3, 8, 14]
    assert completion_ids("7", policy.tokenizer, SECTION).tolist() == [11, 1]
    assert decode([11, 1], policy.tokenizer) == "7"


def test_same_seed_same_bytes_and_the_callers_random_state_is_untouched(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        new_policy(tmp_path / name, charset="ab", layers=1, width=16, heads=2, seed=seed)
    assert torch.equal(torch.rand(3), expected)
    files = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert files["a"] == files["b"] != files["c"]
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()


def test_weights_start_at_half_of_one_over_root_width(tmp_path):
    new_policy(tmp_path / "p", layers=1, width=64, heads=2)
    weight = dict(load_model(ModelSection(path=str(tmp_path / "p"))).masters)["model.layers.0.mlp.up_proj.weight"]
    assert weight.std().item() == pytest.approx(0.5 / 8, rel=0.03)


def test_words_are_taken_from_the_texts_and_numbers_are_spelled(tmp_path):
    pieces = vocabulary(["add 12 to x_1.", "then stop"], None, "words")
    assert pieces == ["\n", " ", ".", *"0123456789", "add", "stop", "then", "to", "x_"]
    tokenizer = make_tokenizer(pieces, "words", 64)
    ids = prompt_ids("then add 907 to 3.", tokenizer, SECTION)
    assert len(ids) == 12  # then · add · 9 0 7 · to · 3 .   with five words or numbers and four blanks
    assert decode(ids, tokenizer) == "then add 907 to 3."
    with pytest.raises(DataError, match="'subtract'"):
        prompt_ids("then subtract 3", tokenizer, SECTION)


@given(st.text(alphabet=CHARSET.replace("<", ""), min_size=1, max_size=40))
def test_characters_survive_encoding_and_decoding(text):
    assert len(prompt_ids(text, DEFAULT, SECTION)) == len(text)
    assert decode(prompt_ids(text, DEFAULT, SECTION), DEFAULT) == text


DEFAULT = make_tokenizer(vocabulary(None, None, "characters"), "characters", 64)


def test_texts_bring_their_own_characters():
    assert vocabulary(["ba", "ac"], None, "characters") == ["a", "b", "c"]
    tokenizer = make_tokenizer(["a", "b", "c"], "characters", 64)
    np.testing.assert_array_equal(prompt_ids("cab", tokenizer, SECTION), [5, 3, 4])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"size": "huge"}, "tiny, small, medium, large"),
        ({"width": 30, "heads": 4}, "32 works"),
        ({"layers": 0}, "at least 1"),
        ({"tokens": "words"}, "needs texts"),
        ({"tokens": "syllables"}, "characters, words"),
        ({"texts": ["a"], "charset": "a"}, "not both"),
        ({"charset": ""}, "empty"),
        ({"texts": []}, "empty"),
        ({"seed": -1}, "seed = -1 .* 0 works"),
        ({"seed": 10**30}, "seed = 1000000000000000000000000000000 .* 0 works"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(tmp_path, arguments, says):
    with pytest.raises(RecipeError, match=says) as error:
        new_policy(tmp_path / "p", **arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "p").exists()


def test_an_existing_folder_is_never_overwritten(tmp_path):
    (tmp_path / "p").mkdir()
    with pytest.raises(RecipeError, match="exists already"):
        new_policy(tmp_path / "p")


def test_digits_in_pairs_make_an_id_one_token():
    pieces = vocabulary(["order 17 late"], None, "pairs")
    assert {f"{pair:02}" for pair in range(100)} | {*"0123456789", "order", "late", " ", "\n"} == set(pieces)
    tokenizer = make_tokenizer(pieces, "pairs", 64)
    ids = tokenizer.encode("order 17 late 305")
    assert [tokenizer.decode([i]) for i in ids] == ["order", " ", "17", " ", "late", " ", "30", "5"]
    assert tokenizer.decode(ids) == "order 17 late 305"


def test_a_recipe_names_its_own_new_policy(tmp_path, monkeypatch):
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path))
    new = {"size": "tiny", "layers": 1, "width": 16, "heads": 2, "texts": "milepost.envs.desk:WORDS", "tokens": "words"}
    section = make_recipe({"model": {"new": new}}).model.new
    folder = made_policy(section)
    assert folder.parent == tmp_path
    tokenizer = load_model(ModelSection(path=str(folder))).tokenizer
    assert len(tokenizer.encode("refund(17)")) == 5  # refund ( 1 7 )
    assert tokenizer.unk_token_id not in tokenizer.encode("refund(17)")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert made_policy(section) == folder  # found again, not made again
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert made_policy(section.model_copy(update={"seed": 1})) != folder


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"new": {"layers": 2}}, "model.new.layers does nothing without model.new.size"),
        ({"new": {"size": "tiny"}, "path": "mine"}, "model.path = 'mine' and model.new.size = 'tiny' name two models"),
        ({"new": {"size": "tiny", "tokens": "words"}}, 'model.new.tokens = "words" needs model.new.texts'),
    ],
)
def test_a_new_policy_beside_other_settings_is_told(model, sentence):
    with pytest.raises(RecipeError) as error:
        make_recipe({"model": model})
    assert sentence in str(error.value)


def test_texts_that_are_none_are_told():
    section = make_recipe({"model": {"new": {"size": "tiny", "texts": "milepost.envs.desk:NOWHERE"}}}).model.new
    with pytest.raises(RecipeError, match=r"model\.new\.texts = .* has no text 'NOWHERE'"):
        made_policy(section)

"""A reward model scores texts in a process of its own: within its range, alike each time, and deaf to control tokens."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from milepost.types import RecipeError
from milepost.verifiers import reward_model, reward_model_child
from milepost.verifiers.judge import Question
from milepost.verifiers.reward_model import ModelSettings, RewardModel, read_settings, squash

SPECIAL = ["<pad>", "<unk>", "<|end|>", "<|user|>", "<|system|>", "<|assistant|>"]
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
# As templates of models that reason do, it looks into the answer: what stands before </think> is left out.
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}<|end|>"
    "{% endfor %}"
)


def write_model(folder: Path, kind: str = "llama", num_labels: int = 1, *, template: str | None = TEMPLATE,
                pad: bool = True, seed: int = 0, inner: int = 64) -> Path:  # fmt: skip
    """A tiny model of random weights that knows characters. kind: llama, bert, or causal: without a head that scores."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    padding = {"pad_token": "<pad>"} if pad else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<|end|>",
                                        additional_special_tokens=SPECIAL[3:], **padding)  # fmt: skip
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    shape = {"vocab_size": len(vocabulary), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": inner, "max_position_embeddings": 4096, "num_labels": num_labels,
             "pad_token_id": 0 if pad else None}  # fmt: skip
    if kind == "bert":
        model = BertForSequenceClassification(BertConfig(**shape))
    else:
        made = LlamaForCausalLM if kind == "causal" else LlamaForSequenceClassification
        model = made(LlamaConfig(**shape, eos_token_id=2, bos_token_id=None))
    with torch.no_grad():  # larger than they are made: outputs should differ by more than rounding
        for parameter in model.parameters():
            parameter.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "scorer", inner=16_384)


@pytest.fixture(scope="module")
def scorer(folder):
    with RewardModel(read_settings({"model": str(folder), "memory_mb": 640, "batch_tokens": 512})) as made:
        yield made


def held(folder: Path, **changes) -> dict:
    """Loads it here, in this process, without a limit of memory."""
    how = {"model": str(folder), "form": "chat", "text": "{prompt}\n{answer}", "output": "sigmoid", "label": None,
           "max_tokens": 4096, "batch_tokens": 512, "device": "cpu", "dtype": "float32", **changes}  # fmt: skip
    return reward_model_child.hold(**how)


def alone(folder: Path, rendered: str) -> float:
    """The sigmoid of what the model says of a text, without any of our code."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        ids = torch.tensor([tokenizer(rendered, add_special_tokens=False)["input_ids"]])
        return float(torch.sigmoid(model(input_ids=ids).logits[0, 0].double()))


QUESTIONS = [
    Question(text, "Say thanks.") for text in ("Thanks!", "No.", "Thank you very much indeed, my dear friend.", "x" * 90)
]


def test_scores_are_the_models_own(scorer, folder):
    results = scorer.score_many(QUESTIONS)
    for question, result in zip(QUESTIONS, results):
        expected = alone(folder, f"<|user|>Say thanks.<|end|><|assistant|>{question.answer}<|end|>")
        assert result["score"] == pytest.approx(expected, abs=1e-5)
        assert (result["cause"], result["extracted"], result["extractable"]) == (None, question.answer, True)
        assert 1 / (1 + math.exp(-result["parts"]["raw"])) == pytest.approx(result["score"], abs=1e-9)
    assert len({round(result["score"], 4) for result in results}) == 4
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    [result] = scorer.score_many([Question("Hello", messages)])
    expected = alone(folder, "<|system|>Be kind.<|end|><|user|>Hi<|end|><|assistant|>Hello<|end|>")
    assert result["score"] == pytest.approx(expected, abs=1e-5)


def test_order_company_and_repetition_change_nothing(scorer):
    first = scorer.score_many(QUESTIONS)
    assert scorer.score_many(QUESTIONS) == first
    assert scorer.score_many(QUESTIONS[::-1]) == first[::-1]
    assert scorer.score_many([q for q in QUESTIONS for _ in range(3)]) == [result for result in first for _ in range(3)]
    many = scorer.score_many([*QUESTIONS, *(Question("y" * n, "q") for n in range(1, 70))])
    assert [r["score"] for r in many[:4]] == pytest.approx([r["score"] for r in first], abs=1e-5)


def test_what_is_not_said_or_too_long_scores_0_unread(scorer):
    texts = ("", " \n", "<think>never ends", "x" * 5000, "x" * 400_000)
    results = scorer.score_many([Question(text, "q") for text in texts])
    assert [(r["score"], r["cause"], r["extractable"]) for r in results] == [(0.0, None, False)] * 5
    assert "too long" in results[3]["compared"] and "never ends" in results[2]["compared"]
    [whole, thought] = scorer.score_many([Question("Yes", "q"), Question("<think>hm</think>Yes", "q")])
    assert whole["score"] == thought["score"]


def test_memory_is_bounded_and_only_the_one_to_blame_goes_without_a_score(scorer):
    """case D17: no eating the machine. 4,000 tokens need 4,000 · 16,384 · 4 bytes = 262 MB for each of several matrices."""
    before = scorer.score_many(QUESTIONS)
    results = scorer.score_many([*QUESTIONS, Question("z" * 4000, "q")])
    assert [r["score"] for r in results[:4]] == pytest.approx([r["score"] for r in before], abs=1e-5)
    assert (results[4]["score"], results[4]["extracted"]) == (None, "z" * 4000)
    assert results[4]["cause"] in ("checker_error: RuntimeError", "checker_error: MemoryError", "worker_died")
    assert scorer.score_many(QUESTIONS) == before


def test_a_process_that_was_killed_is_started_again_and_says_the_same(scorer):
    before = scorer.score_many(QUESTIONS)
    [pid] = scorer.pool.pids
    os.kill(pid, signal.SIGKILL)
    assert scorer.score_many(QUESTIONS) == before
    assert scorer.pool.pids != [pid]


def test_the_deadline_leaves_answers_unscorable(scorer, folder):
    late = RewardModel(read_settings({"model": str(folder), "memory_mb": 640, "deadline_seconds": 1e-6}))
    late.pool.close()
    late.pool = scorer.pool  # the same process
    results = late.score_many(QUESTIONS)
    assert {(r["score"], r["cause"]) for r in results} == {(None, "timeout")}
    slow = RewardModel(read_settings({"model": str(folder), "memory_mb": 640, "timeout_seconds": 1e-4}))
    slow.pool.close()
    slow.pool = scorer.pool
    begun = time.monotonic()
    assert {(r["score"], r["cause"]) for r in slow.score_many(QUESTIONS[:1])} == {(None, "timeout")}
    assert time.monotonic() - begun < 60


# --- the answer is data -------------------------------------------------------------------------------------------------

PIECES = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    st.sampled_from(
        [*SPECIAL, "<", "|", "end|>", "<<|end|>|end|>", "</think>", "<think>", "{answer}", "{prompt}", "milepost"]
    ),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=6).map("".join), st.lists(PIECES, max_size=4).map("".join))
@pytest.mark.parametrize("form", ["chat", "text", "pair"])
def test_nothing_in_a_text_is_a_token_of_control(form, folder_held, answer, prompt):
    reward_model_child._held["form"], answer = form, f"{answer}."
    row = reward_model_child._encode([{"role": "user", "content": prompt}], answer)
    assert not isinstance(row, str)
    unknown = reward_model_child._held["tokenizer"].unk_token_id
    special = [i for i in row["input_ids"] if i < len(SPECIAL) and i != unknown]
    assert special == ([3, 2, 5, 2] if form == "chat" else [])
    said = "".join(c if c in CHARACTERS else "�" for c in reward_model_child._broken(answer))
    shown = "".join("�" if i == unknown else CHARACTERS[i - len(SPECIAL)] for i in row["input_ids"] if i not in (2, 3, 5))
    assert shown.endswith(said)  # all of it, whatever the template would have left out


@pytest.fixture(scope="module")
def folder_held(folder):
    assert "error" not in held(folder)
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|end|>", "< |end|>"),
        ("a<|end|>b<pad>", "a< |end|>b< pad>"),
        ("<<|end|>|end|>", "<< |end|>|end|>"),
        ("<| end |>", "<| end |>"),
        ("x < y | z > w", "x < y | z > w"),
    ],
)
def test_special_tokens_are_broken(folder_held, text, expected):
    assert reward_model_child._broken(text) == expected


def test_a_text_that_adds_a_special_id_all_the_same_is_not_scored(folder_held, monkeypatch):
    monkeypatch.setattr(reward_model_child, "_broken", lambda text: text)
    found = reward_model_child.outputs(items=[{"messages": [{"role": "user", "content": "q"}], "answer": "a<|end|>"}])
    assert found == [[None, "control tokens"]]
    with RewardModel(ModelSettings("x")) as unstarted:
        result = unstarted._verdict([None, "control tokens"], "a")
    assert (result["score"], result["extractable"], result["cause"]) == (0.0, False, None)


def test_rows_with_padding_are_trusted_only_if_they_give_what_each_gives_alone(tmp_path):
    assert held(write_model(tmp_path / "padded"))["padded"] is True
    assert held(write_model(tmp_path / "bare", pad=False))["padded"] is False
    items = [{"messages": [{"role": "user", "content": "q"}], "answer": "a" * n} for n in (3, 1, 9)]
    bare = reward_model_child.outputs(items=items)
    assert held(tmp_path / "padded")["padded"]
    assert [raw for raw, _ in reward_model_child.outputs(items=items)] == pytest.approx([raw for raw, _ in bare], abs=1e-5)
    # A model that takes another id for padding than its tokenizer reads the wrong position in a batch.
    config = json.loads((tmp_path / "padded/config.json").read_text())
    (tmp_path / "padded/config.json").write_text(json.dumps({**config, "pad_token_id": 7}))
    assert held(tmp_path / "padded")["padded"] is False


# --- models that do not fit ------------------------------------------------------------------------------------------


def test_a_pair_is_given_as_two_texts_and_a_label_by_its_chance(tmp_path):
    write_model(tmp_path / "bert", "bert", 3)
    assert held(tmp_path / "bert", form="pair", output="softmax", label=2)["padded"] is True
    [[chance, _]] = reward_model_child.outputs(items=[{"messages": [{"role": "user", "content": "q?"}], "answer": "a"}])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "bert")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "bert").eval()
    with torch.inference_mode():
        logits = model(**tokenizer("q?", "a", return_tensors="pt")).logits[0].double()
    assert chance == pytest.approx(float(logits.softmax(0)[2]), abs=1e-6)
    assert held(tmp_path / "bert", form="pair", output="softmax", label="LABEL_1").get("error") is None
    assert "has no label 'good'; it has 0 (LABEL_0)" in held(tmp_path / "bert", output="softmax", label="good")["error"]
    assert "has 3 outputs" in held(tmp_path / "bert", output="clip")["error"]


def test_models_that_cannot_score_are_refused(tmp_path, folder):
    assert "score.weight" in held(write_model(tmp_path / "causal", "causal"))["error"]  # its head would be random
    assert "no chat template" in held(write_model(tmp_path / "plain", template=None))["error"]
    assert held(tmp_path / "plain", form="text").get("error") is None
    assert "has one output" in held(folder, output="softmax", label=0)["error"]
    assert "cannot be read" in held(tmp_path)["error"]
    (tmp_path / "causal/model.safetensors").rename(tmp_path / "causal/pytorch_model.bin")
    assert "cannot be read" in held(tmp_path / "causal")["error"]  # what may hold code is not opened
    with RewardModel(read_settings({"model": str(tmp_path / "nothing")})) as nothing, pytest.raises(RecipeError) as error:
        nothing.score_many(QUESTIONS)
    assert "the reward model '" in str(error.value) and "cannot be read" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": ""}, "needs model"),
        ({"path": "x"}, "no setting 'path'; it has model, form"),
        ({"form": "prose"}, "form = 'prose' must be one of chat, text, pair"),
        ({"output": "raw"}, "output = 'raw' must be one of sigmoid, clip, softmax"),
        ({"output": "clip"}, "needs low and high"),
        ({"output": "clip", "low": 1, "high": 1}, "needs low and high"),
        ({"output": "clip", "low": 0, "high": math.inf}, "needs low and high"),
        ({"low": 0}, 'low does nothing with output = "sigmoid"; remove it, or use "clip"'),
        ({"output": "softmax"}, "needs label"),
        ({"output": "softmax", "label": True}, "needs label"),
        ({"label": 1}, "label does nothing"),
        ({"scale": 0}, "scale = 0 must be a number above 0"),
        ({"center": "x"}, "center = 'x' must be a number"),
        ({"text": "{prompt}{answer}"}, 'text does nothing without form = "text"'),
        ({"form": "text", "text": "{answer}"}, "text must hold {prompt} and {answer} once each"),
        ({"form": "text", "text": "{prompt}{answer}{answer}"}, "text must hold"),
        ({"memory_mb": 1}, "memory_mb = 1 must be a whole number from 512 on"),
        ({"timeout_seconds": -1}, "timeout_seconds = -1 must be a number above 0"),
        ({"tag": ""}, "tag = '' must be a name"),
        ({"device": 3}, "device = 3 must be cpu or cuda"),
        ({"extract": []}, "extract must name places"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_sentence(change, told):
    with pytest.raises(RecipeError) as error:
        read_settings({"model": "m", **change})
    assert told in str(error.value) and "\n" not in str(error.value)


# --- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "raw", "expected"),
    [
        ({}, 0.0, 0.5),
        ({}, math.log(3), 0.75),
        ({}, -math.log(3), 0.25),
        ({"center": 2, "scale": 2}, 2 + 2 * math.log(3), 0.75),
        ({}, 1e9, 1.0),
        ({}, -1e9, 0.0),
        ({"output": "clip", "low": -4, "high": 4}, -4, 0.0),
        ({"output": "clip", "low": -4, "high": 4}, -2, 0.25),
        ({"output": "clip", "low": -4, "high": 4}, 3, 0.875),
        ({"output": "clip", "low": -4, "high": 4}, 99, 1.0),
        ({"output": "clip", "low": -4, "high": 4}, -99, 0.0),
        ({"output": "softmax", "label": 0}, 0.3, 0.3),
    ],
)
def test_squash(params, raw, expected):
    assert squash(raw, read_settings({"model": "m", **params})) == pytest.approx(expected, abs=1e-12)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_squash_stays_in_its_range_and_rises(a, b):
    for made in (ModelSettings("m", center=1, scale=0.5), ModelSettings("m", output="clip", low=-1.5, high=7)):
        low, high = squash(min(a, b), made), squash(max(a, b), made)
        assert 0 <= low <= high <= 1


def test_an_output_that_is_not_finite_is_no_score():
    reward_model_child._held.update(output="sigmoid", label=None)
    assert reward_model_child._one([math.nan]) is None and reward_model_child._one([math.inf]) is None
    with RewardModel(ModelSettings("x")) as unstarted:
        assert unstarted._verdict([None, None], "a")["cause"] == "not finite"


def test_the_four_functions_of_a_verifier():
    assert reward_model.check_gold(None) is None and reward_model.right() == []
    assert all(not text.strip() for text in reward_model.wrong())

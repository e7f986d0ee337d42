"""Runs the command line in a process of its own and ends that process from within at a chosen call.

Processes fork from a clean server that has imported the heavy modules and computed nothing, so that a test can afford
many of them.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from milepost.store import Run

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["milepost.launch", "milepost.stages.pipeline", "transformers.models.llama", "small"])

NOT_COMPARED = ("seconds/", "cpu_seconds", "scorer/cpu_seconds", "value/cpu_seconds", "peak_memory")


class At(NamedTuple):
    """Just before the `number`-th call of `where` ("module:attribute.attribute") in a process, it gets `signum`."""

    where: str
    number: int
    signum: int = signal.SIGKILL


def command(argv: Sequence[str], log: Path, at: At | None = None, *, file_bytes: int = 0) -> int:
    """`milepost` with these arguments; its exit code, negative for the signal that ended it.

    `file_bytes`: no file may grow beyond it, as on a disk that is full.
    """
    process = _context.Process(target=_command, args=(list(argv), str(log), at, file_bytes))
    process.start()
    process.join(timeout=300)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"milepost {' '.join(argv)} did not end: {log.read_text()[-2000:]}")
    return process.exitcode


def _command(argv: list[str], log: str, at: At | None, file_bytes: int) -> None:
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell inherit it as ignored
    if at:
        _arm(*at)
    from milepost.cli import main

    raise SystemExit(main(argv))


def _arm(where: str, number: int, signum: int) -> None:
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    genuine, calls = getattr(owner, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signum)
        return genuine(*args, **kwargs)

    setattr(owner, name, counted)


def contents(folder: Path) -> dict[str, Any]:
    """All that a run stored and that a clock or the memory has no part in: what two equal runs must agree on."""
    with Run.open(folder) as run:
        phases = run.phases()
        found: dict[str, Any] = {
            "steps": {phase: [step for step, _ in run.metrics("loss", phase)] for phase in phases},
            "metrics": {
                (phase, name): run.metrics(name, phase)
                for phase in phases
                for name in run.metric_names(phase)
                if not name.startswith(NOT_COMPARED)
            },
            "episodes": [
                (s.phase, s.step, s.split, str(e.id), [t.context_ids.tolist() for t in e.turns],
                 [(t.sampled.ids.tolist(), t.sampled.logprobs.tolist(), t.sampled.versions, t.text) for t in e.turns],
                 e.stop, s.reward, None if s.credit is None else s.credit.advantages.tolist())
                for s in run.episodes(split=None)
                for e in (s.episode,)
            ],
            "evals": [(e.phase, e.step, e.split, e.report) for e in run.evals()],
            "events": [(e.phase, e.step, e.level, e.kind, e.message) for e in run.events() if e.step is not None],
        }  # fmt: skip
    found["episodes"].sort(key=lambda row: row[:4])
    found["evals"].sort(key=lambda row: row[:3])
    for file in sorted((folder / "checkpoints").rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix == ".safetensors":
            found[name] = file.read_bytes()
        elif file.suffix == ".pt":
            found[name] = torch.load(file, weights_only=True)
    return found


def same(one: Any, other: Any) -> bool:
    """Bit for bit, tensors included."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return bool(one == other)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Which parts of two runs' contents differ, with the first differing value of each."""
    found = []
    for key in sorted({*one, *other}, key=str):
        a, b = one.get(key), other.get(key)
        if not same(a, b):
            found.append(f"{key}: {_first(a, b)}")
    return found


def _first(a: Any, b: Any) -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}, key=str):
            if not same(a.get(key), b.get(key)):
                return f"{key}: {_first(a.get(key), b.get(key))}"
    if isinstance(a, list) and isinstance(b, list):
        for i, (x, y) in enumerate(zip(a, b)):
            if not same(x, y):
                return f"[{i}] {str(x)[:300]} != {str(y)[:300]}"
        return f"{len(a)} != {len(b)} entries"
    return f"{str(a)[:200]} != {str(b)[:200]}"

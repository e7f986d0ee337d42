"""A trace of what the process really does, for https://ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from milepost.progress import say
from milepost.types import RecipeError

PROFILED_STEPS = 2
"""Steps of a loop that are traced: one step of a 135 M model is already some 100,000 events."""

_active: list[Any] = []


@contextmanager
def profiled(path: str | Path | None, *, num_steps: int = PROFILED_STEPS) -> Iterator[None]:
    """Traces the block's torch operations into `path` (.json or .json.gz); does nothing for None.

    A loop that calls `mark_step` is traced for its first `num_steps` steps and then runs on at full speed; a block
    without marks is traced whole. The file is also written when the block raises. Raises RecipeError if it cannot be.
    """
    if path is None:
        yield
        return
    target = Path(path)
    _check(target)
    from torch.profiler import ProfilerAction, profile

    def action(step: int) -> ProfilerAction:
        if step >= num_steps:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < num_steps - 1 else ProfilerAction.RECORD_AND_SAVE

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises a warm-up, which would cost the step that is asked about
        with profile(schedule=action, on_trace_ready=lambda done: _write(done, target)) as profiler:
            _active.append(profiler)
            try:
                yield
            finally:
                _active.remove(profiler)


def mark_step() -> None:
    """A loop's step has ended. Free when nothing is traced."""
    if _active:
        _active[-1].step()


@contextmanager
def span(name: str) -> Iterator[None]:
    """Names a stretch of time in the trace. Free when nothing is traced."""
    if not _active:
        yield
        return
    from torch.profiler import record_function

    with record_function(name):
        yield


def _check(target: Path) -> None:
    """Finds out before training, not after it."""
    try:
        with open(target, "a"):
            pass
    except OSError as error:
        raise RecipeError(
            f"--profile {target}: cannot be written ({error.strerror}); name a file in a folder that exists"
        ) from error


def _write(profiler: Any, target: Path) -> None:
    began = time.monotonic()
    logging.getLogger("torch.profiler").setLevel(logging.ERROR)
    profiler.export_chrome_trace(str(target))
    size = target.stat().st_size / 1e6
    say(f"trace: {target} ({size:.1f} MB, {time.monotonic() - began:.0f} s to write); open it at https://ui.perfetto.dev")

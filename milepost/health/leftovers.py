"""What an environment leaves behind when its episodes are broken off: processes, threads, descriptors, temporary files."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from milepost.env import EnvSpec
from milepost.health.tapes import Limits, Tape, Watch, act, watched
from milepost.host_main import Instance
from milepost.kept import descendants

NUM_BROKEN_OFF = 10
PATIENCE_SECONDS = 2.0
"""For threads and processes that are on their way out."""


def leftovers(spec: EnvSpec, tapes: Sequence[Tape], limits: Limits) -> tuple[str, str]:
    """(what went wrong with close itself, what was left), both empty if all is well.

    Every third episode is of a task without its columns, at which reset may raise half way. The instances are kept until
    the end: what only the garbage collector frees counts as left.
    """
    kept: list[Any] = []
    with _own_folder() as folder:
        problem = _break_off(spec, tapes[:1], limits, kept)  # what is made once and for all is made now
        before = resources(folder)
        problem = problem or _break_off(spec, [tapes[i % len(tapes)] for i in range(NUM_BROKEN_OFF)], limits, kept)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (more := _more(before, resources(folder))) and time.monotonic() < deadline:
            time.sleep(0.02)
    kept.clear()
    return problem, more


def _break_off(spec: EnvSpec, tapes: Sequence[Tape], limits: Limits, kept: list[Any]) -> str:
    for i, tape in enumerate(tapes):
        found: list[str] = []
        fault = watched(_episode(spec, tape, i % 3 == 2, kept, found), limits)
        if fault or found:
            return found[0] if found else f"{tape.where(0)}: {fault.detail if fault else ''}"
    return ""


def _episode(spec: EnvSpec, tape: Tape, broken: bool, kept: list[Any], found: list[str]) -> Callable[[Watch], None]:
    def work(watch: Watch) -> None:
        instance = Instance(spec.make)
        task = replace(tape.task, columns={}) if broken else tape.task
        reply = watch.ask(instance, "open", task, tape.seed, None)
        env: Any = instance.env
        kept.append(env)
        for text in tape.texts[: (len(tape.turns) + 1) // 2] if not reply.fault else ():
            watch.ask(instance, "step", act(text, spec))
        for when in ("close()", "a second close()"):
            instance.env = env
            reply = watch.ask(instance, "close")
            if reply.fault:
                how = "a reset without the task's columns" if broken else f"{(len(tape.turns) + 1) // 2} turns"
                found.append(f"{when} after {how} raised {reply.detail.splitlines()[0].removeprefix('close: ')}")
                break
        instance.shut()

    return work


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder where temporary files go meanwhile, so that they can be told from those of others."""
    folder, before, variable = tempfile.mkdtemp(prefix="milepost-check-"), tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield Path(folder)
    finally:
        tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable
        shutil.rmtree(folder, ignore_errors=True)


def resources(folder: Path) -> dict[str, list[str]]:
    """Names of what there is now, by kind. Descriptors and processes only where /proc tells."""
    gc.collect()
    return {
        "process": [str(pid) for pid in descendants(os.getpid())],
        "thread": [f"{thread.name} ({thread.ident})" for thread in threading.enumerate()],
        "descriptor": list(_descriptors()),
        "temporary file": [str(path) for path in folder.rglob("*")],
    }


def _more(before: dict[str, list[str]], now: dict[str, list[str]]) -> str:
    """What is new, as far as there is more of it than before."""
    parts = []
    for kind, names in now.items():
        extra = len(names) - len(before[kind])
        if extra > 0:
            new = [name for name in names if name not in before[kind]]
            ending = "" if extra == 1 else "es" if kind == "process" else "s"
            parts.append(f"{extra} {kind}{ending} ({new[0] if new else names[-1]})")
    return ", ".join(parts)


def _descriptors() -> Iterator[str]:
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):  # the one that listed the others
            yield f"{number} → {os.readlink(f'/proc/self/fd/{number}')}"

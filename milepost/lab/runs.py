"""Makes the laboratory's runs, each once: resumed where it was killed, several at a time, each in a process of its own.

A process of its own makes peak memory the run's. Each computes on one thread, so that neither the number of cores nor that
of runs beside it changes a bit. What a finished run showed stands in a file beside its folder; the folder then goes, unless
it is to be kept. Whoever is stopped gives the same command again.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import multiprocessing
import os
import select
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from multiprocessing import connection
from typing import Any

from milepost.disk import write_whole
from milepost.evaluate import EvalReport
from milepost.lab.arms import LabTrial
from milepost.launch import open_session
from milepost.progress import clock, say
from milepost.shape import digest
from milepost.stages.compare import cpu_of, stored_tests
from milepost.stages.pipeline import run_pipeline
from milepost.stages.trials import Trial, reports_of
from milepost.store import Run
from milepost.tune import tune_process
from milepost.types import MilepostError, RecipeError


@dataclass(frozen=True)
class LabRun:
    """What one finished run showed."""

    world: str
    horizon: int
    rule: str
    rate: float
    seed: int
    after: EvalReport
    before: float
    """Success of the warm start on the same tasks."""
    steps: int
    tokens: int
    """Sampled for training, those of continuations included."""
    cpu: float
    """Seconds of GRPO, the critic's included; tests not."""
    cpu_value: float
    """Of them, what reading and teaching values took."""
    wall: float
    memory: float
    """Largest resident size of its process, in GB; 0.4 of them are the libraries'."""
    curve: tuple[tuple[int, float], ...]
    """(tokens sampled before a step, success in training in it)."""
    stopped: str = ""

    @property
    def success(self) -> float:
        return self.after.success


# ---- results ---------------------------------------------------------------------------------------------------------


def read_result(trial: LabTrial) -> LabRun | None:
    """What a finished run showed; None if it is not finished. Raises RecipeError where another recipe made it."""
    if not trial.result.is_file():
        return None
    values = json.loads(trial.result.read_text(encoding="utf-8"))
    if values.pop("recipe") != identity(trial.run):
        raise RecipeError(f"{trial.result} was made by other settings; delete it, or give --out another folder")
    values["after"] = EvalReport.from_json(values["after"])
    values["curve"] = tuple((int(tokens), float(success)) for tokens, success in values["curve"])
    return LabRun(**values)


def identity(trial: Trial) -> str:
    """Of all settings that decide a result: the recipe without its place."""
    return digest(trial.recipe.model_dump(mode="json", exclude={"out"}))


def write_result(trial: LabTrial) -> None:
    found = _read_store(trial)
    values = {**asdict(found), "after": found.after.to_json(), "recipe": identity(trial.run)}
    write_whole(trial.result, json.dumps(values, ensure_ascii=False) + "\n")


def _read_store(trial: LabTrial) -> LabRun:
    with Run.open(trial.run.path) as run:
        tests = stored_tests(run)
        steps, success = run.metrics("tokens/sampled", "grpo"), dict(run.metrics("success/train", "grpo"))
        before = list(accumulate((int(number) for _, number in steps), initial=0))
        values = math.fsum(seconds for _, seconds in run.metrics("value/cpu_seconds", "grpo"))
        wall = [value for name in ("sample", "score", "update") for _, value in run.metrics(f"seconds/{name}", "grpo")]
        stops = [event.message for event in run.events("stop") if event.phase == "grpo"]
        return LabRun(
            trial.world, trial.horizon, trial.rule, trial.rate, trial.seed, tests["grpo"], tests["sft"].success,
            len(steps), before[-1], cpu_of(run, "grpo") or 0.0, values, math.fsum(wall),
            max((value for _, value in run.metrics("peak_memory_gb", "grpo")), default=0.0),
            tuple((at, success[step]) for at, (step, _) in zip(before, steps) if step in success),
            stops[-1] if stops else "",
        )  # fmt: skip


# ---- one run ---------------------------------------------------------------------------------------------------------


def make_start(trial: Trial) -> None:
    """The warm start of a seed, and the tests of it and of the policy it began with; nothing if they are there."""
    existing = trial.path.exists()
    with open_session(trial.recipe, resume=trial.path if existing else None, quiet=True, stages=("sft", "test")) as session:
        run_pipeline(session, stages=("sft", "test"))


def start_is_made(trial: Trial) -> bool:
    if not (trial.path / "store.sqlite").is_file():
        return False
    with Run.open(trial.path) as run:
        if run.recipe != trial.recipe:
            raise RecipeError(f"{trial.path} was made by other settings; delete it, or give --out another folder")
        return run.status == "finished"


def make(one: LabTrial | Trial, keep: bool) -> None:
    """One run on one thread, silently; its result is written when it is finished. Raises what stopped it."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            if isinstance(one, Trial):
                make_start(one)
                return
            reports_of(one.run, [one.start, one.run], "", str(one), test_stopped=True)
    finally:
        torch.set_num_threads(threads)
    write_result(one)
    if not keep:
        shutil.rmtree(one.run.path)


# ---- many runs -------------------------------------------------------------------------------------------------------


def make_all(todo: Sequence[LabTrial | Trial], jobs: int, *, keep: bool, label: str) -> None:
    """Makes them all, and says what each showed and how long the rest takes. One that fails does not keep the others.

    `jobs`: runs at a time; 0: one, in this process. Raises MilepostError with the first failure when all are through.
    """
    began, failed = time.monotonic(), list[str]()
    for number, (one, failure) in enumerate(_through(todo, jobs, keep), 1):
        left = (time.monotonic() - began) / number * (len(todo) - number)
        ahead = f"; about {clock(left)} left of these" if left else ""
        if failure:
            failed.append(f"{_name(one)}: {failure}")
        say(f"{label} {number}/{len(todo)}: {_name(one)}{f' FAILED: {failure}' if failure else _showed(one)}{ahead}")
    if failed:
        raise MilepostError(f"{len(failed)} of {len(todo)} runs failed, the first is {failed[0]}; the same command makes "
                            "them again")  # fmt: skip


def _name(one: LabTrial | Trial) -> str:
    return str(one.path) if isinstance(one, Trial) else str(one)


def _showed(one: LabTrial | Trial) -> str:
    found = None if isinstance(one, Trial) else read_result(one)
    return f": {100 * found.before:.1f} % → {100 * found.success:.1f} %, {found.cpu:.0f} CPU-s" if found else ""


def _through(todo: Sequence[LabTrial | Trial], jobs: int, keep: bool) -> Iterator[tuple[LabTrial | Trial, str]]:
    """Each one as it is finished, with what went wrong or ""."""
    if jobs:
        yield from _in_processes(todo, jobs, keep)
        return
    for one in todo:
        make(one, keep)
        yield one, ""


def _in_processes(todo: Sequence[LabTrial | Trial], jobs: int, keep: bool) -> Iterator[tuple[LabTrial | Trial, str]]:
    # Forked from a process that has imported everything, but runs nothing: a start costs no imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["milepost.lab.runs", "milepost.report"])
    waiting = deque(todo)
    running: dict[Any, tuple[Any, LabTrial | Trial, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                one = waiting.popleft()
                hears, tells = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(one, keep, tells, os.getpid()), daemon=True)
                process.start()
                tells.close()
                running[process.sentinel] = (process, one, hears)
            for sentinel in connection.wait(list(running)):
                process, one, hears = running.pop(sentinel)
                process.join()
                yield one, _failure(process.exitcode, hears)
    finally:
        for process, _, _ in running.values():
            process.terminate()
        for process, _, _ in running.values():
            process.join()


def _failure(code: int | None, hears: Any) -> str:
    said = ""
    with contextlib.suppress(EOFError):
        said = hears.recv() if hears.poll() else ""
    hears.close()
    return said or (f"its process ended with {code}" if code else "")


def _end_with(laboratory: int) -> None:
    """With the process that asked for it a run ends as well; the server between them, its parent, would live on."""
    try:
        ended = os.pidfd_open(laboratory)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):  # no Linux, or an old one
        return

    def watch() -> None:
        select.select([ended], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _child(one: LabTrial | Trial, keep: bool, tells: Any, laboratory: int) -> None:
    _end_with(laboratory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who waits for it decides
    tune_process()
    try:
        make(one, keep)
    except MilepostError as error:
        tells.send(str(error))
        os._exit(1)
    except Exception as error:
        tells.send(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        os._exit(1)


def num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

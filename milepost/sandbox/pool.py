"""Runs untrusted Python behind walls, and brings back what it wrote and returned, as plain data.

    with Sandbox(2) as sandbox:                                   # the strongest isolation that works here, tested first
        print(sandbox.isolation)                                  # in words
        [ran] = sandbox.run([program("print(input()[::-1])", "abc")])
        ran.out                                                   # "cba\n"

A program has no network, no file but a read-only Python and a folder of its own that vanishes with it, and limits on time,
memory, processes, file size and output. Nothing of it is left when its run is over. Where no isolation works, `Sandbox`
raises: limits alone (`allow_plain=True`) must be asked for and warn. docs/sandbox.md tells what each wall is for.

Each of the pool's cells is a fork server behind its own walls (`main.py`): a run costs two forks, not an
interpreter's start. Cells that fail are replaced; a run that takes its cell with it is tried once more in a fresh one.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from milepost.sandbox.cell import Cell, CellError
from milepost.sandbox.probe import probe
from milepost.sandbox.runs import WARDEN_KILLED, Limits, Ran, Run, program
from milepost.sandbox.runtime import runtime
from milepost.types import RecipeError

LEVELS = ("namespaces", "landlock", "plain")
"""From the strongest to the weakest. The last one is no isolation and never chosen unasked."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Isolation:
    """What the walls are made of on this machine, after they were tested."""

    level: str
    facts: dict[str, Any] = field(default_factory=dict, compare=False)
    refused: tuple[str, ...] = ()
    """Stronger levels, and why they do not work here."""

    def __str__(self) -> str:
        groups = self.facts.get("groups", {})
        if self.level == "namespaces":
            first = (
                "own user, process, mount, network, IPC, host name and control group namespaces with a read-only runtime"
            )
        elif self.level == "landlock":
            first = "Landlock: reads the Python runtime alone, writes no file"
        else:
            first = "NO ISOLATION, limits only: programs can do to this machine's files what their user can"
        parts = [first]
        if self.facts.get("filter"):
            parts.append(
                "system call filter (no sockets" + ("" if self.facts["may_fork"] else ", no processes, threads only") + ")"
            )
        if self.facts.get("may_fork"):
            parts.append("process limit by " + ("control group" if "pids" in groups else "user"))
        parts.append("memory limit by control group" if "memory" in groups else "memory limit per process")
        if self.facts.get("uid") is not None:
            parts.append("an unprivileged user of its own")
        return f"{self.level}: {'; '.join(parts)}"


class Sandbox:
    """A pool of at most `size` cells. Safe to use from any thread; `close` it, or use it as a context.

    packages: importable packages that programs may use beside the standard library, such as ("numpy",); what these need is
    there too, and imported once for all. hash_seed: PYTHONHASHSEED of the programs.
    limits: the largest that a run may ask for; its memory and process limits also hold for a cell as a whole.
    allow_plain: accept limits without isolation where nothing better works. levels: what to try, strongest first.
    Raises RecipeError where none of them works.
    """

    def __init__(
        self, size: int = 2, *, limits: Limits | None = None, packages: Sequence[str] = (), allow_plain: bool = False,
        levels: Sequence[str] = LEVELS[:2], hash_seed: int = 0,
    ) -> None:  # fmt: skip
        if size < 1:
            raise ValueError(f"a sandbox needs at least one cell, not {size}")
        self.size, self.limits, self.packages = size, limits or Limits(), tuple(packages)
        self._config = {**runtime(self.packages), "limits": asdict(self.limits), "hash_seed": hash_seed}
        self._cells: list[Cell] = []
        self._lock = threading.Lock()
        self.num_calls, self.cpu_seconds = 0, 0.0
        """Runs so far, and what their programs used of the processor."""
        # Runs at close(), at garbage collection and at interpreter exit, whichever comes first.
        self._finalizer = weakref.finalize(self, _close_cells, self._cells, os.getpid())
        try:
            self.isolation = self._choose([*levels, *(["plain"] if allow_plain and "plain" not in levels else [])])
        except BaseException:
            self.close()
            raise

    def _choose(self, levels: list[str]) -> Isolation:
        """The first level whose walls stand and hold. Tested once per process and kind of sandbox."""
        key = (tuple(levels), self.limits, self.packages, self._config["hash_seed"], os.getpid())
        if key not in _CHOSEN:
            refused: list[str] = []
            for level, apart, words in (option for name in levels for option in _OPTIONS[name]):
                self._config |= {"level": level, "apart": apart}
                if (problem := self._try()) is None:
                    _CHOSEN[key] = Isolation(level, self._cells[0].facts, tuple(refused)), dict(self._config)
                    break
                refused.append(f"{words}: {problem}")
            else:
                raise RecipeError(
                    f"sandbox: no isolation for untrusted code works on this machine ({'; '.join(refused)}); run where user"
                    " namespaces or Landlock are allowed, or accept limits without isolation: allow_plain = true in params"
                )
        isolation, self._config = _CHOSEN[key]
        if isolation.level == "plain":
            _log.warning("sandbox: %s", isolation)
        return isolation

    def _try(self) -> str | None:
        """Builds a cell and attacks it; None if the walls hold, else what did not."""
        try:
            cell = Cell(self._config)
        except (CellError, OSError) as error:
            return str(error)
        limits = replace(self.limits, seconds=20.0)
        problem = probe(lambda code: cell.play(program(code, limits=limits)), facts=cell.facts, config=self._config,
                        pid=cell.process.pid)  # fmt: skip
        if problem is None:
            self._cells.append(cell)
        else:
            cell.close()
        return problem

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all cells and what runs in them. Needs no hurry: leaving the interpreter does the same."""
        self._finalizer()

    @property
    def pids(self) -> list[int]:
        """The outermost process of each cell."""
        return [cell.process.pid for cell in self._cells]

    def run(self, runs: Sequence[Run]) -> list[Ran]:
        """Plays all runs, as many at once as there are cells; results in their order. Never raises for a program."""
        if not self._finalizer.alive:
            raise RuntimeError("this sandbox is closed")
        with self._lock:
            results: dict[int, Ran] = {}
            pending = deque((index, run, 0) for index, run in enumerate(runs))
            try:
                while len(results) < len(runs):
                    self._dispatch(pending, results)
                    self._collect(pending, results)
            except BaseException:  # Ctrl-C: half-played runs must not answer the next caller
                _close_cells(self._cells, os.getpid())
                raise
            self.num_calls += len(runs)
            self.cpu_seconds += sum(ran.cpu_seconds for ran in results.values())
            return [results[index] for index in range(len(runs))]

    def _dispatch(self, pending: deque, results: dict[int, Ran]) -> None:
        while pending:
            cell = next((cell for cell in self._cells if cell.item is None), None)
            if cell is None and len(self._cells) < self.size:
                try:
                    self._cells.append(Cell(self._config))
                except (CellError, OSError) as error:
                    if not self._cells:
                        results |= {index: Ran("broken", detail=str(error)) for index, _, _ in pending}
                        pending.clear()
                    return
                continue
            if cell is None:
                return
            index, run, tries = pending.popleft()
            cell.item = (index, run, tries)
            try:
                cell.send(self._within(run))
            except OSError:  # it died idle; the run was never begun
                self._drop(cell)
                pending.appendleft((index, run, tries))

    def _within(self, run: Run) -> Run:
        most, asked = self.limits, run.limits
        least = {
            name: min(getattr(most, name), getattr(asked, name)) for name in ("memory_mb", "processes", "tmp_mb", "file_mb")
        }
        return replace(run, limits=replace(asked, **least))

    def _collect(self, pending: deque, results: dict[int, Ran]) -> None:
        """Waits until a cell has answered, died or missed its deadline."""
        busy = [cell for cell in self._cells if cell.item is not None]
        if not busy:
            return
        with selectors.DefaultSelector() as selector:
            for cell in busy:
                cell.register(selector)
            wait = min(cell.deadline for cell in busy) - time.monotonic()
            selector.select(max(0.0, min(wait, 1.0)))
        for cell in busy:
            ran = cell.advance()
            if ran is None:
                continue
            (index, run, tries), cell.item = cell.item, None
            if ran.ended == "broken":
                self._drop(cell)
                if tries == 0:
                    pending.appendleft((index, run, 1))
                    continue
                if cell.gone or ran.detail == WARDEN_KILLED:
                    ran = replace(ran, ended="crash")
            results[index] = ran

    def _drop(self, cell: Cell) -> None:
        cell.close()
        self._cells.remove(cell)


_CHOSEN: dict[tuple, tuple[Isolation, dict[str, Any]]] = {}
# (level, apart, in words). Namespaces without apart: no processes, for where their number cannot be limited. Landlock
# without apart: a root caller's programs stay root, without capabilities, for where the Python is root's alone.
_OPTIONS = {
    "namespaces": (("namespaces", True, "namespaces"), ("namespaces", False, "namespaces with threads only")),
    "landlock": (("landlock", True, "Landlock"), ("landlock", False, "Landlock under the caller's user")),
    "plain": (("plain", True, "plain"),),
}


def _close_cells(cells: list[Cell], owner: int) -> None:
    if os.getpid() == owner:  # a forked copy of the trainer must not end the cells of the original
        while cells:
            cells.pop().close()

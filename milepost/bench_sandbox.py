"""How many short tests of code the sandbox judges per second, against a bare interpreter per test.

Both judge the same function on the same three calls, as many at once as there are cores, in alternating portions, so that
whatever else the machine does disturbs both alike. The bare interpreter has no walls, no limits and no site packages, and
its judge believes what it prints: it is the cheapest thing that could be done, not something to use.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from milepost.sandbox.pool import Sandbox
from milepost.types import RecipeError
from milepost.verifiers.code import score_many

CODE = """
def primes(n):
    found = []
    for k in range(2, n):
        if all(k % p for p in found if p * p <= k):
            found.append(k)
    return found
"""
GOLD = {"entry_point": "primes", "tests": [
    {"args": [10], "expected": [2, 3, 5, 7]}, {"args": [3], "expected": [2]}, {"args": [0], "expected": []},
]}  # fmt: skip
BARE = CODE + "print(primes(10) == [2, 3, 5, 7] and primes(3) == [2] and primes(0) == [])"


@dataclass(frozen=True)
class SandboxBench:
    """Runs per second of wall clock, medians over portions; CPU seconds are those of all processes together."""

    isolation: str
    num_runs: int
    num_cells: int
    runs_per_second: float
    bare_runs_per_second: float
    start_seconds: float
    """From nothing to the first verdict: walls built, attacked and found to hold."""
    load: float
    """Processes that wanted to run before the measurement: above 1, others share the cores."""

    @property
    def ratio(self) -> float:
        """Sandboxed over bare: above 1 the sandbox is the faster one."""
        return self.runs_per_second / self.bare_runs_per_second

    def json(self) -> str:
        return json.dumps({**asdict(self), "ratio": self.ratio}, indent=2)

    def text(self) -> str:
        return "\n".join((
            f"isolation        {self.isolation}",
            f"sandbox          {self.runs_per_second:7.1f} test runs a second, {self.num_cells} at once",
            f"bare interpreter {self.bare_runs_per_second:7.1f} test runs a second, {self.num_cells} at once",
            f"ratio            {self.ratio:7.2f}",
            f"start            {self.start_seconds:7.2f} s until the first verdict, walls built and tested",
            f"load             {self.load:7.1f} processes wanted to run before",
        ))  # fmt: skip


def bench_sandbox(num_runs: int = 200, num_cells: int = 0, *, allow_plain: bool = False) -> SandboxBench:
    """Measures `num_runs` of each; num_cells 0: one per core. Raises RecipeError where no isolation works."""
    cells = num_cells or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if num_runs < 10 or cells < 1:
        raise RecipeError("bench sandbox: --runs must be at least 10 and --cells at least 0")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    began = time.monotonic()
    with Sandbox(cells, allow_plain=allow_plain) as sandbox, ThreadPoolExecutor(cells) as threads:
        item = (f"```python\n{CODE}\n```", GOLD)

        def sandboxed(count: int) -> Sequence[bool]:
            return [verdict["score"] == 1.0 for verdict in score_many([item] * count, sandbox=sandbox)]

        def bare(count: int) -> Sequence[bool]:
            return list(threads.map(lambda _: _bare(), range(count)))

        sandboxed(cells)
        start = time.monotonic() - began
        bare(cells)
        portion = max(5, num_runs // 10)
        pairs = [(_rate(sandboxed, portion), _rate(bare, portion)) for _ in range(max(1, num_runs // portion))]
        rates = [statistics.median(column) for column in zip(*pairs)]
        return SandboxBench(str(sandbox.isolation), portion * len(pairs), cells, rates[0], rates[1], start, load)


def _bare() -> bool:
    command = [sys.executable, "-I", "-S", "-c", BARE]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "True\n"


def _rate(judge: Callable[[int], Sequence[bool]], count: int) -> float:
    began = time.monotonic()
    right = judge(count)
    if not all(right):
        raise RecipeError(f"bench sandbox: {right.count(False)} of {count} right answers were not judged right")
    return count / (time.monotonic() - began)

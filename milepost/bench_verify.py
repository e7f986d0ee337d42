"""The mathematics verifier against bare math-verify: verdicts and answers per second on the labelled set, in one run.

Both judge the same pairs in the same killable workers, in alternating portions, so that whatever else the machine does
disturbs both alike. Bare math-verify is used as its documentation shows: gold and answer parsed by its defaults, then
compared. It is given the gold as LaTeX between dollar signs, and as text where it finds nothing in that. Pairs that are
judged by settings of ours are left out.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from milepost.types import RecipeError
from milepost.verifiers.labelled import WARM, Pair, Rates, judged, labelled_pairs, scores_of
from milepost.workers import Call, WorkerPool

SECONDS = 30.0
"""Limit of one answer, for both; math-verify has its own of 5."""
PORTION = 40
"""Pairs judged at once."""


@dataclass(frozen=True)
class VerifyBench:
    """Answers per second of wall clock, medians over portions."""

    ours: Rates
    theirs: Rates
    ours_per_second: float
    theirs_per_second: float
    num_workers: int
    load: float
    """Processes that wanted to run before the measurement: above 1, others share the cores."""

    @property
    def ratio(self) -> float:
        """Ours over theirs: above 1 ours is the faster one."""
        return self.ours_per_second / self.theirs_per_second

    @property
    def ok(self) -> bool:
        """At least as fast, strictly fewer wrong verdicts."""
        return self.ratio >= 1 and self.ours.num_misjudged < self.theirs.num_misjudged

    def json(self) -> str:
        speeds = {key: value for key, value in asdict(self).items() if key not in ("ours", "theirs")}
        verdicts = {"milepost": self.ours.facts(), "math-verify": self.theirs.facts()}
        return json.dumps(
            {"ok": self.ok, "ratio": self.ratio, **speeds, "verdicts": verdicts}, indent=2, ensure_ascii=False
        )

    def text(self) -> str:
        lines = []
        for name, rates, speed in (("milepost", self.ours, self.ours_per_second),
                                   ("math-verify", self.theirs, self.theirs_per_second)):  # fmt: skip
            lines.append(
                f"{name:<12}{rates.num_misjudged:3d} of {rates.num_pairs} verdicts wrong  {speed:8.1f} answers a second"
            )
            lines.append(f"            {rates.words()}")
        return "\n".join((
            *lines,
            f"ratio       {self.ratio:.2f}",
            f"workers     {self.num_workers} at once, killable",
            f"load        {self.load:.1f} processes wanted to run before",
            "fewer wrong verdicts, and at least as fast" if self.ok else "NOT better: more wrong verdicts, or slower",
        ))  # fmt: skip


def bench_verify(num_workers: int = 0, *, pairs: Sequence[Pair] | None = None) -> VerifyBench:
    """Judges the labelled set once with each; num_workers 0: one per core."""
    workers = num_workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if workers < 1:
        raise RecipeError("bench verify: --workers must be at least 0")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    pairs = labelled_pairs("math") if pairs is None else pairs
    pairs = [pair for pair in pairs if not pair.params]
    judges: tuple[Callable[[Sequence[Pair], WorkerPool], list[float | None]], ...] = (_ours, _theirs)
    scores: tuple[list[float | None], ...] = ([], [])
    speeds: tuple[list[float], ...] = ([], [])
    with WorkerPool(workers, setup=Call(WARM, {"kinds": ["math"]})) as pool:
        for judge in judges:  # workers are started and warm before any clock runs
            judge(pairs[: 2 * workers], pool)
        for at in range(0, len(pairs), PORTION):
            portion = pairs[at : at + PORTION]
            for judge, found, rates in zip(judges, scores, speeds):
                began = time.monotonic()
                found += judge(portion, pool)
                rates.append(len(portion) / (time.monotonic() - began))
    ours, theirs = (judged(pairs, found) for found in scores)
    return VerifyBench(ours, theirs, statistics.median(speeds[0]), statistics.median(speeds[1]), workers, load)


def _ours(pairs: Sequence[Pair], pool: WorkerPool) -> list[float | None]:
    return scores_of(pairs, pool, SECONDS)


def _theirs(pairs: Sequence[Pair], pool: WorkerPool) -> list[float | None]:
    calls = [Call("milepost.bench_verify:bare", {"gold": pair.gold, "answer": pair.answer}, SECONDS) for pair in pairs]
    return [answer.value for answer in pool.map(calls)]


def bare(*, gold: str, answer: str) -> float:
    """math-verify by itself, in a worker."""
    import math_verify

    wanted = math_verify.parse(f"${gold}$") or math_verify.parse(gold)
    return float(math_verify.verify(wanted, math_verify.parse(answer)))

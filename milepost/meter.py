"""Clocks and memory gauges: CPU seconds, wall seconds and peak memory by stage, and the machine's best GEMM rate."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class StageCost:
    """One stage of one step: seconds of CPU (all threads) and of wall clock, and the most memory held in it."""

    cpu_seconds: float
    wall_seconds: float
    peak_mb: float
    """Resident memory of the process; on a GPU the memory allocated there."""


class StageClock:
    """Seconds and peak memory by stage. Stages nest: time counts for the innermost one only."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.costs: dict[str, StageCost] = {}
        self._open: list[str] = []
        self._mark = self._now()

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self._switch()
        self._open.append(stage)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def _now(self) -> tuple[float, float]:
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.process_time(), time.perf_counter()

    def _switch(self) -> None:
        """Charges what has passed to the innermost open stage."""
        now, peak = self._now(), take_peak_mb(self.on_gpu)
        if self._open:
            old = self.costs.get(self._open[-1], StageCost(0.0, 0.0, 0.0))
            cpu, wall = (old.cpu_seconds + now[0] - self._mark[0], old.wall_seconds + now[1] - self._mark[1])
            self.costs[self._open[-1]] = StageCost(cpu, wall, max(old.peak_mb, peak))
        self._mark = self._now()


def take_peak_mb(on_gpu: bool) -> float:
    """The most memory held since the last call. Where Linux refuses to start the count anew: since the process began."""
    if on_gpu:
        peak = torch.cuda.max_memory_allocated() / 1e6
        torch.cuda.reset_peak_memory_stats()
        return peak
    peak = resident_mb("VmHWM")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak


def resident_mb(name: str = "VmRSS") -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux: the peak is all there is
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Within the block the garbage collector, and so `tensor_mb`, looks only at objects made there: seconds become
    milliseconds in a process that has imported the whole of transformers."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def tensor_mb() -> float:
    """Memory of all tensors that Python can reach; each storage once. What malloc keeps for later does not count."""
    gc.collect()
    every = gc.get_objects()
    kinds = {kind for kind in set(map(type, every)) if issubclass(kind, Tensor)}
    tensors = (x for x in every if type(x) in kinds)
    storages = {s.data_ptr(): s.nbytes() for s in (x.untyped_storage() for x in tensors if x.layout is torch.strided)}
    return sum(storages.values()) / 1e6


@dataclass(frozen=True)
class GemmPeak:
    """The best rate of a large square matrix product, FLOP per second of CPU time and of wall clock."""

    per_cpu_second: float
    per_wall_second: float


def gemm_peak(dtype: torch.dtype, device: torch.device, *, seconds: float = 0.3) -> GemmPeak:
    """Measured in this process, with its threads. Other work on the machine lowers the wall rate."""
    on_gpu = device.type == "cuda"
    size = 8192 if on_gpu else 1024
    generator_ = torch.Generator(device=device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator_, device=device).to(dtype) for _ in range(2))
    best_cpu = best_wall = float("inf")
    began = time.perf_counter()
    with torch.no_grad():
        while time.perf_counter() - began < seconds or best_wall == float("inf"):
            cpu, wall = time.process_time(), time.perf_counter()
            a @ b.T
            if on_gpu:
                torch.cuda.synchronize()
            best_cpu = min(best_cpu, max(1e-9, time.process_time() - cpu))
            best_wall = min(best_wall, time.perf_counter() - wall)
    return GemmPeak(2 * size**3 / best_cpu, 2 * size**3 / best_wall)

"""What this process and those below it hold of the machine."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from milepost.kept import descendants

PAGE = os.sysconf("SC_PAGESIZE")


def counts() -> tuple[int, int, int]:
    """Descriptors and threads of this process, processes below it."""
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(descendants(os.getpid()))


def resident_mb() -> float:
    """Memory of this process and all below it, shared pages counted once for each."""
    pids, pages = [os.getpid()], 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:  # it has just ended
            continue
    return pages * PAGE / 1e6

"""Does work in a process of its own, which may die of it: then it is known where. Torch-free.

    box = BlackBox()
    for message in elsewhere(work, box):    # what work(tell) tells, as it does; it notes in the box what it is about to do
        ...                                 # Died(where, how) if its process ended before the work was over

Nothing that the work starts is left behind, temporary files included.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from milepost.kept import keep

GRACE_SECONDS = 10.0
"""Beyond a deadline that the work itself watches: who misses it by so much does not even let the watching thread run."""
_HEAD = struct.Struct("dI")

Tell = Callable[[dict[str, Any]], None]


class Died(Exception):
    """The process did not get to the end of its work."""

    def __init__(self, where: str, how: str | None) -> None:
        super().__init__(where, how)
        self.where, self.how = where, how
        """In which call; "exit status 0" or "signal 11, SIGSEGV", and None: it stood still far beyond a deadline."""


class BlackBox:
    """What was about to be done, in memory that outlives who wrote it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1 << 12)

    def note(self, what: str, seconds: float = 0.0) -> None:
        """`seconds`: the deadline from now on; 0: none."""
        text = what.encode(errors="replace")[: (1 << 12) - _HEAD.size]
        until = time.monotonic() + seconds if seconds else 0.0
        self._memory[: _HEAD.size + len(text)] = _HEAD.pack(until, len(text)) + text

    def read(self) -> tuple[str, float]:
        """→ (what, until when by `time.monotonic`, 0 for no deadline)."""
        until, size = _HEAD.unpack_from(self._memory)
        return self._memory[_HEAD.size : _HEAD.size + size].decode(errors="ignore"), until


def elsewhere(work: Callable[[Tell], None], box: BlackBox) -> Iterator[dict[str, Any]]:
    """Yields what `work(tell)` tells, plain JSON, from a fork of this process. Raises Died."""
    folder = tempfile.mkdtemp(prefix="milepost-check-")
    reading, writing = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    me = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: ours only run Python between fork and work
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        keep(lambda: _work(work, writing, folder), me)
    os.close(writing)
    how: str | None = None
    try:
        for message in _messages(reading, box):
            if "over" in message:
                return
            yield message
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        how = _how(os.waitpid(pid, 0)[1])
        os.close(reading)
        shutil.rmtree(folder, ignore_errors=True)
    raise Died(box.read()[0], how)


def _work(work: Callable[[Tell], None], writing: int, folder: str) -> None:
    me = os.getpid()

    def tell(message: dict[str, Any]) -> None:
        if os.getpid() != me:  # the work forked and came back twice
            os._exit(1)
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(writing, data) :]

    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    try:
        work(tell)
        tell({"over": True})
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


def _messages(reading: int, box: BlackBox) -> Iterator[dict[str, Any]]:
    """Until the other end is closed. Raises Died if nobody answers there any more."""
    rest = b""
    while True:
        if select.select([reading], [], [], 0.5)[0]:
            chunk = os.read(reading, 1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(json.loads, lines)
        where, until = box.read()
        if until and time.monotonic() > until + GRACE_SECONDS:
            raise Died(where, None)


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code}, {signal.Signals(-code).name}"
    return f"signal {-code}"

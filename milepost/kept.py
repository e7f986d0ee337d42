"""A process together with all that it starts: its keeper ends what is left, however it ended; and how a process is not
ended by what it calls. Standard library only.

    caller → keeper → work → whatever that starts

The kernel hands the keeper every process below it whose parent has ended, so that none gets away: not by a session of its
own, nor by forking twice. (On Linux; elsewhere only the group of the work's own process is ended with it.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE_SECONDS = 5.0
"""For killed processes to be gone: one that waits for a disk may take longer."""


def keep(work: Callable[[], None], parent: int) -> NoReturn:
    """In a fresh fork of `parent`: does `work` in a process of its own, waits for it, kills all that is left of it.

    Ends as the work's process did, by the same exit status or signal. SIGTERM, or the end of `parent`, ends it at once.
    """
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT})
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        die_with(parent, signal.SIGTERM)
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            work()
            os._exit(0)
        status = None
        while status is None and signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGCHLD:
            status = _buried(pid)
        status = _end_all(pid, status)
        _end_as(status)
    finally:
        os._exit(1)


class EndedProcess(RuntimeError):
    """Somebody's function wanted to end the process that called it."""


@contextlib.contextmanager
def refused_exits() -> Iterator[None]:
    """Meanwhile `os._exit` raises EndedProcess in this process, though not in its forks: an environment or predicate that
    runs here would end the training without a word, and nothing could say which it was."""
    me, leave = os.getpid(), os._exit

    def exit_or_raise(status: int) -> NoReturn:
        if os.getpid() != me:
            leave(status)
        raise EndedProcess(f"os._exit({status}) was called, which would have ended Milepost itself")

    os._exit = exit_or_raise
    try:
        yield
    finally:
        os._exit = leave


def die_with(parent: int, how: int) -> None:
    """Asks the kernel for the signal `how` when the parent ends; if it has ended already, this process does so now."""
    _prctl(PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:
        os._exit(1)


def descendants(of: int) -> set[int]:
    """Ids of all processes below one, as far as /proc tells."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in found or parent == of} - found:
        found |= more
    return found


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _buried(first: int) -> int | None:
    """Waits for all that have ended; the status of `first` if it is among them. ChildProcessError: none is left."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if status is None:
                raise
            return status
        if pid == 0:
            return status
        status = code if pid == first else status


def _end_all(first: int, status: int | None) -> int | None:
    """Kills until nothing is left below: what was being started while it was looked for is found the next time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    if status is None:  # its group, where there is no /proc
        _kill(os.killpg, first)
        _kill(os.kill, first)
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for pid in descendants(os.getpid()):
                _kill(os.kill, pid)
            found = _buried(first)
            status = found if status is None else status
            time.sleep(0.001)
    return status


def _kill(kill: Callable[[int, int], None], target: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(target, signal.SIGKILL)


def _end_as(status: int | None) -> None:
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has dumped already, if it is to
    with contextlib.suppress(OSError, ValueError):  # SIGKILL needs no default
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)

"""What a run directory needs from the disk: one writer at a time, and a full disk told in a sentence."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from pathlib import Path
from typing import ClassVar

from milepost.types import MilepostError


class StoreError(MilepostError):
    """The run directory cannot be read or written. The message is one sentence. Exit code 2."""


def disk_problem(error: BaseException) -> str | None:
    """What a full, failing or read-only disk said, in words; None if neither `error` nor its causes are of that kind."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the high bits say where it happened
        return str(error) if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY) else None
    if isinstance(error, OSError):
        known = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)
        return (error.strerror or str(error)).lower() if error.errno in known else None
    # torch and safetensors write through their own code: only their words are left of what the system said.
    if "PytorchStreamWriter" in str(error) or "inline_container" in str(error):
        return "the disk did not take a file of tensors"
    if "os error" in str(error):
        return str(error).splitlines()[0]
    return disk_problem(error.__cause__) if error.__cause__ else None


def write_whole(path: Path, text: str) -> Path:
    """Writes a file in one move, so that readers find the old one or the new one. Raises StoreError."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        draft.write_bytes(text.encode("utf-8", "replace"))
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {disk_problem(error) or error}; free some space there") from error
    return path


class WriteLock:
    """Keeps two processes from writing one run. The kernel drops it when its holder dies, so it cannot go stale.

    The file names the holder's pid for people. Forked workers close their copy at once, or an orphan would keep the lock.
    """

    _held: ClassVar[set[int]] = set()

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"{path} cannot be written ({error.strerror}); copy the run to a place that can") from error
        for attempt in range(5):  # a reader that asks whether the run is alive holds it for an instant
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 4:
                    holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip() or "unknown"
                    os.close(self._fd)
                    raise StoreError(f"{path} is being written by process {holder}; wait for it, stop it, or give the new "
                                     "run another name") from None  # fmt: skip
                time.sleep(0.05)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        WriteLock._held.add(self._fd)

    def release(self) -> None:
        if self._fd in WriteLock._held:
            WriteLock._held.discard(self._fd)
            os.close(self._fd)

    @staticmethod
    def close_in_child() -> None:
        while WriteLock._held:
            os.close(WriteLock._held.pop())


os.register_at_fork(after_in_child=WriteLock.close_in_child)


def writer_pid(path: str | Path) -> int | None:
    """The process that writes the run now, or None. A pid left by a dead process does not count."""
    try:
        fd = os.open(Path(path) / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        text = os.pread(fd, 20, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)

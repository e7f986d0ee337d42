"""One cell of the sandbox, seen from outside: a fork server behind walls, its process and the socket to it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from milepost import sandbox_main
from milepost.sandbox_keeper import FRAME
from milepost.sandbox_runs import Ran, Run, read_result

START_SECONDS, GRACE_SECONDS = 30.0, 5.0
MAX_REPLY_BYTES = 64 << 20


class CellError(Exception):
    """A cell could not be built; the message says which wall was refused."""


class Cell:
    """The outer end of one fork server. Raises CellError if it does not come up."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.item: Any = None
        self.gone, self.folder = False, None
        if config["level"] == "plain":
            self.folder = tempfile.mkdtemp(prefix="milepost-sandbox-")
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-S", os.path.abspath(sandbox_main.__file__), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(),
                pass_fds=(theirs.fileno(),), start_new_session=True, cwd="/",
            )  # fmt: skip
        try:
            self._inbox = bytearray()
            self.socket.settimeout(START_SECONDS)
            self._post({**config, "folder": self.folder})
            self.facts = self._hello()
        except BaseException:
            self.close()
            raise

    def _hello(self) -> dict[str, Any]:
        while (frame := self._frame()) is None:
            try:
                chunk = self.socket.recv(1 << 16)
            except TimeoutError:
                raise CellError(f"it did not start within {START_SECONDS:g} s") from None
            if not chunk:
                raise CellError(f"it ended while starting, {self._obituary()}")
            self._inbox += chunk
        header = frame[0]
        if "facts" not in header:
            raise CellError(str(header.get("error")))
        return header["facts"]

    def _obituary(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        return f"exit status {self.process.poll()}"

    def _post(self, header: dict[str, Any]) -> None:
        data = json.dumps(header).encode()
        self.socket.sendall(FRAME.pack(len(data), 0) + data)

    def _frame(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self._inbox) < FRAME.size:
            return None
        head, body = FRAME.unpack_from(self._inbox)
        end = FRAME.size + head + body
        if len(self._inbox) < end:
            return None
        frame = json.loads(self._inbox[FRAME.size : FRAME.size + head]), bytes(self._inbox[FRAME.size + head : end])
        del self._inbox[:end]
        return frame

    def send(self, run: Run) -> None:
        """Begins a run. Raises OSError if the cell is gone."""
        if self.process.poll() is not None:
            raise BrokenPipeError
        self._token = secrets.token_hex(8)
        self.deadline = time.monotonic() + run.limits.seconds + GRACE_SECONDS
        self._post({"token": self._token, "jobs": run.jobs, "limits": run.limits.wire()})

    def advance(self, ready: bool) -> Ran | None:
        """Takes in what came; the result once the run is over, "broken" if the cell died or is stuck."""
        try:
            chunk = self.socket.recv(1 << 20, socket.MSG_DONTWAIT) if ready else None
            self._inbox += chunk or b""
            frame = self._frame()
            if frame is not None:
                return read_result(*frame) if frame[0].get("token") == self._token else self._broken(str(frame[0]))
        except BlockingIOError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            return self._broken(f"{type(error).__name__}: {error}")
        if chunk == b"" or len(self._inbox) > MAX_REPLY_BYTES:
            return self._broken(f"its cell ended, {self._obituary()}")
        return self._broken("its cell does not answer") if time.monotonic() > self.deadline else None

    def _broken(self, detail: str) -> Ran:
        self.gone = "error" not in detail
        return Ran("broken", detail=detail)

    def play(self, run: Run) -> Ran:
        """One run, waiting for it."""
        try:
            self.send(run)
            while (ran := self.advance(_readable(self.socket))) is None:
                pass
        except OSError as error:
            return self._broken(str(error))
        return ran

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.socket.close()
        for folder in set(getattr(self, "facts", {}).get("groups", {}).values()):
            _remove_group(folder)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def _readable(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0.5))


def _remove_group(folder: str) -> None:
    """The kernel needs a moment until the processes of a killed cell have left their control group."""
    for _ in range(200):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)


def _environment() -> dict[str, str]:
    fixed = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "USER": "sandbox", "LANG": "C.UTF-8",
             "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1",
             "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    library_path = os.environ.get("LD_LIBRARY_PATH")  # some interpreters do not start without it
    return {**fixed, "LD_LIBRARY_PATH": library_path} if library_path else fixed

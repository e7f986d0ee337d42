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
from dataclasses import asdict
from typing import Any

from milepost.sandbox import main
from milepost.sandbox.keeper import FRAME, GIVEN, memory_file, receive, send
from milepost.sandbox.runs import Ran, Run, read_result

START_SECONDS, GRACE_SECONDS = 30.0, 5.0
MAX_REPLY_BYTES = 1 << 20
CHANNELS = GIVEN[1:]


class CellError(Exception):
    """A cell could not be built; the message says which wall was refused."""


class Cell:
    """The outer end of one fork server. Raises CellError if it does not come up."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.item: Any = None
        """What the pool is playing here."""
        self.gone, self.folder, self.facts = False, None, {}
        self._pipes: dict[int, tuple[int, str]] = {}
        self._inbox, self._asked = bytearray(), False
        if config["level"] == "plain":
            self.folder = tempfile.mkdtemp(prefix="milepost-sandbox-")
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-S", os.path.abspath(main.__file__), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=_environment(config["hash_seed"]), pass_fds=(theirs.fileno(),), start_new_session=True,
                cwd="/",
            )  # fmt: skip
        try:
            self.socket.settimeout(START_SECONDS)
            send(self.socket, {**config, "folder": self.folder})
            self.facts = self._hello()
            self.socket.settimeout(None)  # with one, even a call that must not wait waits
        except BaseException:
            self.close()
            raise

    def _hello(self) -> dict[str, Any]:
        try:
            message = receive(self.socket)
        except TimeoutError:
            raise CellError(f"it did not start within {START_SECONDS:g} s") from None
        if message is None:
            raise CellError(f"it ended while starting, {self._obituary()}")
        if "facts" not in message[0]:
            raise CellError(str(message[0].get("error")))
        return message[0]["facts"]

    def _obituary(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        return f"exit status {self.process.poll()}"

    def send(self, run: Run) -> None:
        """Begins a run. Raises OSError if the cell is gone."""
        if self.process.poll() is not None:
            raise BrokenPipeError
        self._limits, self._token, self._asked = run.limits, secrets.token_hex(8), False
        self._data = [{name: bytearray() for name in CHANNELS} for _ in run.jobs]
        self._stopped = ""
        theirs: list[int] = []
        try:
            for place, job in enumerate(run.jobs):
                theirs.append(memory_file(json.dumps(job).encode()))
                for name in CHANNELS:
                    read, write = os.pipe()
                    os.set_blocking(read, False)
                    self._pipes[read] = (place, name)
                    theirs.append(write)
            send(self.socket, {"token": self._token, "limits": asdict(run.limits)}, tuple(theirs))
        finally:
            for fd in theirs:
                os.close(fd)
        self._heard = time.monotonic()
        self._deadline = self._heard + run.limits.seconds + GRACE_SECONDS

    @property
    def deadline(self) -> float:
        """When there is something to do even if nothing comes."""
        idle = self._limits.idle_seconds
        return min(self._deadline, self._heard + idle) if idle and not self._stopped else self._deadline

    def register(self, selector: selectors.BaseSelector) -> None:
        for fd in (self.socket.fileno(), *self._pipes):
            selector.register(fd, selectors.EVENT_READ, self)

    def advance(self) -> Ran | None:
        """Takes in what came; the result once the run is over, "broken" if the cell died or is stuck."""
        for fd in list(self._pipes):
            self._pump(fd)
        try:
            chunk = self.socket.recv(1 << 16, socket.MSG_DONTWAIT)
            self._inbox += chunk
            if chunk == b"" or len(self._inbox) > MAX_REPLY_BYTES:
                return self._broken(f"its cell ended, {self._obituary()}", gone=True)
            if (message := self._message()) is not None:
                return self._result(message)
        except BlockingIOError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            return self._broken(f"{type(error).__name__}: {error}", gone=True)
        now = time.monotonic()
        if now > self._deadline:
            return self._broken("its cell does not answer", gone=True)
        if now >= self.deadline:
            self._stop("time")
        return None

    def _pump(self, fd: int) -> None:
        """Reads what is there, up to what is kept; closes at the end."""
        place, name = self._pipes[fd]
        kept, most = self._data[place][name], getattr(self._limits, f"{name}_bytes")
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    os.close(fd)
                    del self._pipes[fd]
                    return
                if name == "results":
                    self._heard = time.monotonic()
                if len(kept) + len(chunk) > most and (name == "results" or (name == "out" and self._limits.stop_at_output)):
                    self._stop("output")
                kept += chunk[: max(0, most - len(kept))]

    def _stop(self, why: str) -> None:
        if not self._stopped:
            self._stopped = why
            with contextlib.suppress(OSError):
                send(self.socket, {"stop": why})

    def _message(self) -> dict[str, Any] | None:
        if len(self._inbox) < FRAME.size:
            return None
        end = FRAME.size + FRAME.unpack_from(self._inbox)[0]
        if len(self._inbox) < end:
            return None
        message = json.loads(self._inbox[FRAME.size : end])
        del self._inbox[:end]
        return message

    def _result(self, message: dict[str, Any]) -> Ran:
        if message.get("token") != self._token:
            return self._broken(str(message.get("error")), gone=False)
        for fd in list(self._pipes):  # all who could write have ended
            self._pump(fd)
        self._close_pipes()
        return read_result(message, self._data, self._stopped)

    def _broken(self, detail: str, *, gone: bool) -> Ran:
        self.gone = gone
        return Ran("broken", detail=detail)

    def play(self, run: Run) -> Ran:
        """One run, waiting for it."""
        try:
            self.send(run)
            while (ran := self.advance()) is None:
                with selectors.DefaultSelector() as selector:
                    self.register(selector)
                    selector.select(max(0.0, min(0.5, self.deadline - time.monotonic())))
        except OSError as error:
            return self._broken(str(error), gone=True)
        return ran

    def _close_pipes(self) -> None:
        while self._pipes:
            os.close(self._pipes.popitem()[0])

    def close(self) -> None:
        """Ends the cell and all that runs in it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.socket.close()
        self._close_pipes()
        for folder in set(self.facts.get("groups", {}).values()):
            _remove_group(folder)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def _remove_group(folder: str) -> None:
    """The kernel needs a moment until the processes of a killed cell have left their control group."""
    for _ in range(200):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)


def _environment(hash_seed: int) -> dict[str, str]:
    fixed = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "USER": "sandbox", "LANG": "C.UTF-8",
             "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": str(hash_seed), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1",
             "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    library_path = os.environ.get("LD_LIBRARY_PATH")  # some interpreters do not start without it
    return {**fixed, "LD_LIBRARY_PATH": library_path} if library_path else fixed

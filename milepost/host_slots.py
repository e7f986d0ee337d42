"""Where environment instances live: a thread of this process, or a process of its own that can be killed. Torch-free.

`hosts.py` hands out slots and judges what they answer; `host_main.py` is the side that touches the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import pickle
import queue
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from milepost.env import Environment
from milepost.host_main import BOOT, Garbage, Instance, Reply, decode
from milepost.types import MilepostError, RecipeError
from milepost.worker_main import FRAME

START_SECONDS = 60.0
"""For the imports of an isolated environment."""
CLOSE_SECONDS = 5.0
MAX_REPLY_BYTES = 64 << 20


class HostsDown(MilepostError):
    """Every instance fails to start: a server that is down, a missing file. One sentence; the run cannot go on."""


class Slot(Protocol):
    """Where instances live, one after the other. `ask` never raises for what an environment does."""

    healthy: bool

    async def ask(self, method: str, arguments: tuple, seconds: float) -> Reply: ...

    def discard(self) -> None:
        """Ends it without waiting for the environment. Idempotent."""
        ...

    def join(self, seconds: float) -> None:
        """After `discard`: waits for it to be gone, for so long at most."""
        ...


# --- a slot in this process -----------------------------------------------------------------------------------------


Job = tuple[Future[Reply], str, tuple[Any, ...]]


class ThreadSlot:
    """A thread with its instance. The thread is a daemon: one that hangs must not keep the interpreter alive."""

    def __init__(self, make: Callable[[], Environment], home: str | None) -> None:
        self.healthy = True
        self._instance = Instance(make, home=home)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._wake = asyncio.Event()
        self._running = False
        self._thread = threading.Thread(target=self._work, name="milepost-host", daemon=True)
        self._thread.start()

    async def ask(self, method: str, arguments: tuple, seconds: float) -> Reply:
        if not self.healthy:
            return Reply(fault="dead", detail=f"{method}: its thread was given up before")
        answer: Future[Reply] = Future()
        self._put((answer, method, arguments))
        waited = asyncio.wrap_future(answer)
        try:
            done, _ = await asyncio.wait({waited}, timeout=seconds)
        except BaseException:
            self.discard()
            raise
        if done:
            return waited.result()
        waited.cancel()
        self.discard()
        return Reply(fault="hang", detail=f"{method}: no answer within {seconds:g} s", seconds=seconds)

    def _put(self, job: Job | None) -> None:
        self._jobs.put(job)
        loop = self._instance.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile: the thread is at its end
                loop.call_soon_threadsafe(self._wake.set)

    def _next(self) -> Job | None:
        """Waits for a job. What an async environment does in the background goes on meanwhile."""
        loop = self._instance.loop
        while loop is not None and self._jobs.empty():
            self._wake.clear()
            if self._jobs.empty():
                loop.run_until_complete(self._wake.wait())
        return self._jobs.get()

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                answer, method, arguments = job
                if answer.set_running_or_notify_cancel():
                    self._running = True
                    reply = self._instance.ask(method, *arguments)
                    self._running = False
                    answer.set_result(reply)
        except _GivenUp:
            pass
        finally:
            self._instance.shut()

    def discard(self) -> None:
        """The thread closes the environment and ends, as soon as it can; one that is busy is told so."""
        if not self.healthy:
            return
        self.healthy = False
        self._put(None)
        if self._running:
            self._instance.cancel()
            ident = self._thread.ident
            if ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(_GivenUp))

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)


class _GivenUp(SystemExit):
    """Raised inside a thread that missed its deadline: ends loops that would burn a core for the rest of the run."""


# --- a slot in a process of its own ---------------------------------------------------------------------------------


class ProcessSlot:
    """The parent's end of one process."""

    def __init__(self, server: Server, connection: socket.socket, pid: int, folder: str) -> None:
        connection.setblocking(False)
        self.healthy, self._asking = True, False
        self.pid, self._server, self._connection, self._folder = pid, server, connection, folder

    async def ask(self, method: str, arguments: tuple, seconds: float) -> Reply:
        """`method` "": only waits for the process to say that it is there."""
        if not self.healthy:
            return Reply(fault="dead", detail=f"{method}: its process was killed before")
        try:
            body = pickle.dumps((method, *arguments), protocol=pickle.HIGHEST_PROTOCOL) if method else b""
        except Exception as error:
            return Reply(fault="crash", detail=f"{method}: its arguments cannot be sent to a process: {error}")
        data = FRAME.pack(len(body), max(1, int(seconds + 1))) + body if method else b""
        exchange = asyncio.ensure_future(self._exchange(data))
        self._asking = True
        try:
            done, _ = await asyncio.wait({exchange}, timeout=seconds)
            if not done and self._has_answered():  # we were late in looking, not the environment in answering
                done, _ = await asyncio.wait({exchange}, timeout=1.0)
            if not done:
                return Reply(fault="hang", detail=f"{method or 'start'}: no answer within {seconds:g} s", seconds=seconds)
            return decode(exchange.result())
        except Garbage as error:
            return Reply(fault="garbage", detail=f"{method}: {error}")
        except (OSError, EOFError):
            return Reply(fault="crash", detail=f"{method or 'start'}: the process ended ({self._end()})")
        finally:
            finished = exchange.done() and not exchange.cancelled() and exchange.exception() is None
            if not exchange.done():
                exchange.cancel()
                await asyncio.wait({exchange})
            self._asking = False
            if not finished or not self.healthy:  # half an answer may be in the pipe
                self.discard()
                self._connection.close()

    async def _exchange(self, data: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        if data:
            await loop.sock_sendall(self._connection, data)
        size, _ = FRAME.unpack(await self._read(loop, FRAME.size))
        if size > MAX_REPLY_BYTES:
            raise Garbage(f"it answered with {size} bytes; at most {MAX_REPLY_BYTES} are read")
        return await self._read(loop, size)

    async def _read(self, loop: asyncio.AbstractEventLoop, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = await loop.sock_recv(self._connection, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def _has_answered(self) -> bool:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0))

    def discard(self) -> None:
        self._end()

    def join(self, seconds: float) -> None:
        """Nothing to wait for: whoever kills it waits."""

    def _end(self) -> str:
        """Kills it; how it had ended, if it was dead already."""
        if not self.healthy:
            return "killed"
        self.healthy = False
        if not self._asking:  # else the event loop still watches the descriptor; `ask` closes it
            self._connection.close()
        how = self._server.kill(self.pid)
        shutil.rmtree(self._folder, ignore_errors=True)
        return how


class Server:
    """The parent's end of the program that forks slots. Its requests take milliseconds, so they are simply waited for."""

    def __init__(self, name: str, hash_seed: int) -> None:
        self._name, self._hash_seed = name, hash_seed
        self._folder = tempfile.mkdtemp(prefix="milepost-hosts-")
        self._num_forked = 0
        self._process: subprocess.Popen | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Raises HostsDown with the environment's own words if it cannot be imported."""
        mine, theirs = socket.socketpair()
        paths = list(dict.fromkeys([*(os.path.abspath(path) for path in sys.path), os.getcwd()]))
        paths.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-u", "-c", BOOT, json.dumps(paths), str(theirs.fileno()), self._name],
                stdin=subprocess.DEVNULL, stdout=2, pass_fds=(theirs.fileno(),), start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": str(self._hash_seed)},
            )  # fmt: skip
        finally:
            theirs.close()
        self._control = mine
        try:
            answer = self._answer(START_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            answer = {"failure": f"its process says nothing ({type(error).__name__})", "ours": False}
        if answer["failure"] is None:
            return
        self._stop()
        if answer["ours"]:
            raise RecipeError(answer["failure"])
        raise HostsDown(f"environment {self._name!r} cannot be imported in a process of its own: {answer['failure']}")

    def fork(self) -> ProcessSlot:
        """Raises OSError or HostsDown. A server that died is replaced."""
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._start()
        self._num_forked += 1
        folder = os.path.join(self._folder, str(self._num_forked))
        mine, theirs = socket.socketpair()
        try:
            request = json.dumps({"fork": folder}).encode()
            socket.send_fds(self._control, [request], [theirs.fileno()])
            pid = self._answer(START_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            mine.close()
            self._stop()
            raise OSError(f"the program that starts it is gone ({type(error).__name__})") from None
        finally:
            theirs.close()
        return ProcessSlot(self, mine, pid, folder)

    def kill(self, pid: int) -> str:
        try:
            self._control.sendall(json.dumps({"kill": pid}).encode())
            return self._answer(START_SECONDS)
        except (OSError, EOFError, ValueError):
            return "and so did the program that started it"

    def _answer(self, seconds: float) -> Any:
        self._control.settimeout(seconds)
        size, _ = FRAME.unpack(self._receive(FRAME.size))
        return json.loads(self._receive(size))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._control.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def _stop(self) -> None:
        """It kills its slots when the control socket closes; should it not, they die with it."""
        process, self._process = self._process, None
        if process is None:
            return
        self._control.close()
        try:
            process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

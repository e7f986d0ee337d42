"""A small pool of Python processes that can be killed, for scorers that may hang, crash or eat the memory.

    pool = WorkerPool(size=2)                                   # nothing starts before the first call
    pool.map([Call("mymodule:score", {"text": "6"}, timeout=10)])  -> [Answer(value=1.0)]

A call that hangs, dies, exits or runs out of memory costs only itself: its process group is killed (SIGKILL), the
next call gets a fresh process, and the caller gets a typed failure. Requests travel pickled from parent to worker;
answers come back as JSON over a pipe of their own, so prints do no harm and nothing a worker wrote is ever unpickled.
`worker_main.py` is the program they run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from milepost import worker_main
from milepost.worker_main import FRAME, Isolation

MAX_REPLY_BYTES = 64 << 20
MAX_OUTPUT_BYTES = 8 << 10


@dataclass(frozen=True)
class Call:
    """`function` ("module:function" or "file.py:function") is called with `arguments` as keywords."""

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 10.0
    """Seconds from the moment a ready worker gets the call; start-up does not count."""


@dataclass(frozen=True)
class Answer:
    """What a call returned, or why it did not: "timeout", "worker_died" or "error: <exception type>"."""

    value: Any = None
    failure: str | None = None
    detail: str = ""
    """Traceback, exit status and the tail of what the worker printed. For logs and people."""


class WorkerPool:
    """At most `size` processes, started when needed, reused, replaced after a failure. Safe to use from any thread.

    isolated=True (foreign code): empty environment, PYTHONHASHSEED=0, no network where the system allows it,
    RLIMIT_AS = memory_mb, output captured. isolated=False (the user's own functions): the same killable process with
    the caller's environment, folder, network and memory; what it prints goes to standard error.
    `setup` is called once in each new process (imports, models); its time is limited by its own timeout.
    """

    def __init__(self, size: int = 2, *, isolated: bool = True, memory_mb: int = 2048, setup: Call | None = None) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one worker, not {size}")
        self.size, self.isolated, self.memory_mb, self.setup = size, isolated, memory_mb, setup
        self.num_calls = 0
        """How many it was given so far, whatever became of them."""
        self._workers: list[_Worker] = []
        self._cpu_seconds: list[float] = []  # of each process that it ever had
        self._lock = threading.Lock()
        self._isolation: Isolation | None = None
        # Runs at close(), at garbage collection and at interpreter exit, whichever comes first.
        self._finalizer = weakref.finalize(self, _kill_workers, self._workers, os.getpid())

    @property
    def isolation(self) -> Isolation | None:
        """As reported by the latest worker that came up; None before the first one."""
        return self._isolation

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    @property
    def cpu_seconds(self) -> float:
        """What its processes used so far, their start and what they waited for included: of those that ended all of it, of
        the others as much as at their last answer."""
        return math.fsum(self._cpu_seconds)

    def start(self) -> Answer:
        """Brings up one worker if there is none and returns what `setup` returned there."""
        self._require_open()
        with self._lock:
            worker = self._workers[0] if self._workers else self._spawn()
            while worker.ready is None:
                if failure := self._pump([worker]):
                    return failure[0][1]
            return worker.ready

    def call(self, function: str, arguments: Mapping[str, Any] | None = None, timeout: float = 10.0) -> Answer:
        return self.map([Call(function, arguments or {}, timeout)])[0]

    def map(self, calls: Sequence[Call]) -> list[Answer]:
        """Runs all calls, each within its own deadline; answers in the order of the calls. Never raises for a call."""
        self._require_open()
        with self._lock:
            self.num_calls += len(calls)
            answers: dict[int, Answer] = {}
            pending = deque(enumerate(calls))
            try:
                while len(answers) < len(calls):
                    self._dispatch(pending, answers)
                    for index, answer in self._pump(self._workers):
                        if index is not None:
                            answers[index] = answer
                        elif not any(w.ready for w in self._workers):  # none can start: no use in trying once per call
                            answers.update({i: answer for i, _ in pending})
                            pending.clear()
            except BaseException:  # Ctrl-C while a call runs must not leave its late answer behind for the next call
                _kill_workers(self._workers, os.getpid())
                raise
            return [answers[i] for i in range(len(calls))]

    def close(self) -> None:
        """Kills every worker and waits for it. Idempotent."""
        self._finalizer()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise RuntimeError("this worker pool is closed")

    def _spawn(self) -> _Worker:
        worker = _Worker(self.isolated, self.memory_mb, self.setup, self._cpu_seconds)
        self._workers.append(worker)
        return worker

    def _dispatch(self, pending: deque[tuple[int, Call]], answers: dict[int, Answer]) -> None:
        for worker in [w for w in self._workers if w.idle]:
            if not pending:
                return
            if worker.polluted():
                self._drop(worker)
                continue
            index, call = pending.popleft()
            if failure := worker.send(index, call):
                answers[index] = failure
        # A further process costs seconds of imports: only when those there have been busy for a while.
        youngest = max((w.started for w in self._workers), default=-1e9)
        starting = any(w.ready is None for w in self._workers)
        stalled = not starting and time.monotonic() - youngest > 0.5 and self._stalled()
        if pending and len(self._workers) < self.size and (not self._workers or stalled):
            self._spawn()

    def _stalled(self) -> bool:
        now = time.monotonic()
        return all(not w.idle and now - w.sent > 0.25 for w in self._workers)

    def _pump(self, workers: Sequence[_Worker]) -> list[tuple[int | None, Answer]]:
        """Waits briefly for any of the pipes; returns (index of the call, answer) of those that ended.

        The index is None for a worker that failed to start.
        """
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                worker.register(selector)
            deadline = min((w.deadline for w in workers), default=0.0)
            # 0.1 s: how soon a stalled pool notices that it may start one more worker.
            events = selector.select(max(0.0, min(0.1, deadline - time.monotonic())))
            touched = {key.data for key, _ in events}
        finished: list[tuple[int | None, Answer]] = []
        for worker in list(workers):
            answer = worker.advance() if worker in touched or worker.deadline <= time.monotonic() else None
            if answer is None:
                continue
            was_starting, was_idle, index = worker.ready is None, worker.idle, worker.index
            worker.index, worker.deadline = None, float("inf")
            if was_starting and answer.failure is None:
                worker.ready, self._isolation = answer, worker.isolation
                continue
            if not was_idle:
                finished.append((index, answer))
            if was_starting or answer.failure in ("timeout", "worker_died"):
                self._drop(worker)
        return finished

    def _drop(self, worker: _Worker) -> None:
        worker.kill()
        self._workers.remove(worker)


class Counted(Protocol):
    """Something that scores, and counts how often and for how long."""

    @property
    def num_calls(self) -> int: ...

    @property
    def cpu_seconds(self) -> float: ...


def spent_by(pools: Sequence[Counted]) -> dict[str, float]:
    """Calls and CPU-seconds of these pools so far, under the names of their metrics; empty if none has run anything."""
    calls, seconds = sum(pool.num_calls for pool in pools), math.fsum(pool.cpu_seconds for pool in pools)
    return {"scorer/calls": float(calls), "scorer/cpu_seconds": seconds} if calls or seconds else {}


def _kill_workers(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer must not kill the workers of the original
        return
    while workers:
        workers.pop().kill()


class _Worker:
    """The parent's end of one process."""

    def __init__(self, isolated: bool, memory_mb: int, setup: Call | None, cpu_seconds: list[float]) -> None:
        """Keeps the CPU-seconds of its process in a place of its own at the end of `cpu_seconds`."""
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._output = -1
        output: int = 2
        if isolated:
            self._output, output = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-u", os.path.abspath(worker_main.__file__), str(requests), str(replies)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(requests, replies),
                start_new_session=True, env=_environment(isolated), cwd="/" if isolated else None,
            )  # fmt: skip
        finally:
            for fd in (requests, replies, *([output] if isolated else [])):
                os.close(fd)
        for fd in (self._requests, self._replies, self._output):
            if fd >= 0:
                os.set_blocking(fd, False)
        self._cpu_seconds, self._place = cpu_seconds, len(cpu_seconds)
        cpu_seconds.append(0.0)
        self.started = self.sent = time.monotonic()
        self.ready: Answer | None = None
        self.isolation: Isolation | None = None
        self.index: int | None = None
        self._inbox, self._tail = bytearray(), bytearray()
        setup = setup or Call("", timeout=60.0)
        config = {"sys_path": _sys_path(isolated), "isolated": isolated, "memory_mb": memory_mb}
        self._post(setup, pickle.dumps(dict(setup.arguments)), config)

    @property
    def idle(self) -> bool:
        return self.ready is not None and self.index is None

    def send(self, index: int, call: Call) -> Answer | None:
        """Hands the call over. A call that cannot be pickled fails here and now."""
        try:
            body = pickle.dumps(dict(call.arguments), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            return Answer(failure=f"error: {type(error).__name__}", detail=f"arguments cannot be sent to a worker: {error}")
        self.index = index
        self._post(call, body, {})
        return None

    def _post(self, call: Call, body: bytes, extra: dict[str, Any]) -> None:
        self._token = secrets.token_hex(16)
        header = {"token": self._token, "function": call.function, "timeout": call.timeout, **extra}
        head = json.dumps(header).encode()
        self._outbox = memoryview(FRAME.pack(len(head), len(body)) + head + body)
        self._tail.clear()
        self.sent = time.monotonic()
        self.deadline = self.sent + call.timeout
        self._timeout = call.timeout

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._replies, selectors.EVENT_READ, self)
        if self._output >= 0:
            selector.register(self._output, selectors.EVENT_READ, self)
        if self._outbox:
            selector.register(self._requests, selectors.EVENT_WRITE, self)

    def advance(self) -> Answer | None:
        """Moves bytes; returns the answer once the call is over."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._outbox:
                self._outbox = self._outbox[os.write(self._requests, self._outbox[: 1 << 20]) :]
        if self._output >= 0:
            data, closed = _drain(self._output)
            self._tail = (self._tail + data)[-MAX_OUTPUT_BYTES:]
            if closed:
                os.close(self._output)
                self._output = -1
        data, closed = _drain(self._replies)
        self._inbox += data
        if self.index is None and self.ready is not None:  # idle: nothing is owed, anything said is noise
            return Answer(failure="worker_died") if closed or self._inbox else None
        reply = self._reply()
        if reply is not None:
            return reply
        if closed or len(self._inbox) > MAX_REPLY_BYTES:
            return Answer(failure="worker_died", detail=self._obituary())
        if time.monotonic() >= self.deadline:
            return Answer(failure="timeout", detail=f"no answer within {self._timeout:g} s\n{self._printed()}".strip())
        return None

    def _reply(self) -> Answer | None:
        if len(self._inbox) < FRAME.size:
            return None
        size, _ = FRAME.unpack_from(self._inbox)
        if len(self._inbox) < FRAME.size + size:
            return None
        try:
            reply = json.loads(self._inbox[FRAME.size : FRAME.size + size])
            del self._inbox[: FRAME.size + size]
            if reply["token"] != self._token:
                raise ValueError("answer to another call")
            self._cpu_seconds[self._place] = float(reply["cpu_seconds"])
            if "isolation" in reply:
                self.isolation = Isolation(**reply["isolation"])
            if reply["failure"] is None:
                return Answer(value=reply["value"])
            return Answer(failure=str(reply["failure"]), detail=f"{reply['detail']}\n{self._printed()}".strip())
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return Answer(failure="worker_died", detail=f"the worker's answer broke the protocol: {error}")

    def polluted(self) -> bool:
        """Whether an idle worker has died or said something unasked: then it is not to be trusted with the next call."""
        data, closed = _drain(self._replies)
        return closed or bool(data) or bool(self._inbox)

    def _printed(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def _obituary(self) -> str:
        code = self._ended(1.0)
        how = "closed its pipe" if code is None else f"exit status {code}" if code >= 0 else f"signal {-code}"
        return f"worker ended: {how}\n{self._printed()}".strip()

    def _ended(self, seconds: float = math.inf) -> int | None:
        """Waits for the process to end; its exit code, or None if it still runs. What it used in all is known then."""
        until, pause = time.monotonic() + seconds, 0.0005
        while self.process.returncode is None:
            try:
                pid, status, usage = os.wait4(self.process.pid, 0 if seconds == math.inf else os.WNOHANG)
            except ChildProcessError:  # somebody else waited for it
                return self.process.wait()
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self._cpu_seconds[self._place] = usage.ru_utime + usage.ru_stime
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(pause)
                pause = min(0.05, 2 * pause)
        return self.process.returncode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self._ended()
        for fd in (self._requests, self._replies, self._output):
            if fd >= 0:
                os.close(fd)
        self._requests = self._replies = self._output = -1


def _drain(fd: int) -> tuple[bytes, bool]:
    """What is there to read now (up to a bound), and whether the other end is closed."""
    data = bytearray()
    try:
        while len(data) < 1 << 22:
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                return bytes(data), True
            data += chunk
    except BlockingIOError:
        pass
    return bytes(data), False


def _environment(isolated: bool) -> dict[str, str]:
    if not isolated:
        return {**os.environ, "PYTHONHASHSEED": "0"}
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "HOME": "/",
             "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    library_path = os.environ.get("LD_LIBRARY_PATH")  # some interpreters do not start without it
    return {**fixed, "LD_LIBRARY_PATH": library_path} if library_path else fixed


def _sys_path(isolated: bool) -> list[str]:
    """The parent's search path, made absolute; this package's folder is on it, and for users' functions the current one."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [os.path.abspath(p) for p in sys.path if isinstance(p, str)]
    return list(dict.fromkeys([*paths, root, *([] if isolated else [os.getcwd()])]))

"""The keeper of the sandbox: plays programs one after another, each in a fresh process behind the walls.

Started by `sandbox_main.py`; standard library only. The processes, from the outside in:

    launcher   the caller's user; makes the control group, writes the user namespace's maps, waits
      keeper   process 1 of its own namespaces, nothing of the host but a read-only runtime; runs no untrusted code
        warden   process 1 of the namespaces of one run, with a /tmp of its own; when it ends, the kernel kills all in them
          program  no privileges, system call filter, limits; runs the untrusted code (`sandbox_child.py`)

Without namespaces the launcher is the keeper, there is no warden, and the program cannot start processes.
A request and its answer are frames over one socket; the program has no way to it, nor to the pipe of the warden.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from milepost import sandbox_child
from milepost import sandbox_walls as walls
from milepost.sandbox_filter import install_filter, make_filter

FRAME = struct.Struct(">II")  # lengths of the JSON header and of the bytes behind it
CHANNELS = ("out", "err", "results")


# --- frames ---------------------------------------------------------------------------------------------------------


def send(control: socket.socket, header: dict[str, Any], *blobs: bytes) -> None:
    head = json.dumps(header).encode()
    control.sendall(b"".join([FRAME.pack(len(head), sum(map(len, blobs))), head, *blobs]))


def receive(control: socket.socket) -> dict[str, Any] | None:
    """The next request; None when the other side is gone."""
    head = _exactly(control, FRAME.size)
    body = _exactly(control, FRAME.unpack(head)[0]) if head else None
    return json.loads(body) if body else None


def _exactly(control: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = control.recv(min(size - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


# --- one run --------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """One program of a run: its top process here (warden or program), the pipes from it, what came so far."""

    job: dict[str, Any]
    pid: int = 0
    running: bool = False
    ending: int = -1
    """A pidfd: readable once the top process has ended. -1 where the system has none."""
    pipes: dict[str, int] = field(default_factory=dict)
    data: dict[str, bytearray] = field(default_factory=dict)
    stopped: str | None = None
    """Why it was killed: time, idle, output."""

    def stop(self, why: str) -> None:
        if self.stopped is None and self.running:
            self.stopped = why
            os.kill(self.pid, signal.SIGKILL)


class Keeper:
    """Plays requests behind the walls that `facts` names."""

    def __init__(self, control: socket.socket, config: dict[str, Any], facts: dict[str, Any]) -> None:
        self.control, self.config, self.facts = control, config, facts
        self.namespaces = facts["level"] == "namespaces"

    def serve(self) -> NoReturn:
        while (request := receive(self.control)) is not None:
            send(self.control, *self.play(request))
        os._exit(0)

    def play(self, request: dict[str, Any]) -> tuple[Any, ...]:
        limits, sides = request["limits"], [Side(job) for job in request["jobs"]]
        began = time.monotonic()
        kills = walls.num_memory_kills(self.facts["memory_events"])
        lines = _duplex() if len(sides) == 2 else [(), ()]
        try:
            for side, ends in zip(sides, lines):
                self.start(side, limits, ends)
        finally:
            for fd in (*lines[0], *lines[1]):
                os.close(fd)
        self.watch(sides, limits, began)
        seconds = time.monotonic() - began
        starved = walls.num_memory_kills(self.facts["memory_events"]) > kills
        ended = [self.finish(side, limits) | {"starved": starved} for side in sides]
        blobs = [bytes(side.data[name]) for side in sides for name in CHANNELS]
        header = {"token": request["token"], "seconds": seconds, "sides": ended, "sizes": [len(blob) for blob in blobs]}
        return header, *blobs

    def start(self, side: Side, limits: dict[str, Any], line: tuple[int, ...]) -> None:
        pipes = {name: os.pipe() for name in (*CHANNELS, "status")}
        if self.namespaces:
            walls.unshare(walls.NEW_PID)
        folder = tempfile.mkdtemp(prefix="run-", dir=self.facts["folder"]) if self.facts.get("folder") else None
        if folder and self.facts["uid"] is not None:
            os.chown(folder, self.facts["uid"], self.facts["uid"])
        side.job["folder"] = folder
        side.pid = os.fork()
        if side.pid == 0:
            self.in_child(side.job, limits, {name: ends[1] for name, ends in pipes.items()}, line)
        if self.namespaces:
            walls.join_pid_namespace(self.facts["pid_namespace"])
        side.running = True
        side.ending = os.pidfd_open(side.pid) if hasattr(os, "pidfd_open") else -1
        for name, (read, write) in pipes.items():
            os.close(write)
            side.pipes[name] = read
            side.data[name] = bytearray()

    def watch(self, sides: list[Side], limits: dict[str, Any], began: float) -> None:
        """Moves bytes until every side has ended, by itself or at a limit."""
        poller, owners = select.poll(), {}
        poller.register(self.control, select.POLLIN)
        for side in sides:
            for name, fd in (*side.pipes.items(), ("ending", side.ending)):
                if fd >= 0:
                    poller.register(fd, select.POLLIN)
                    owners[fd] = (side, name)
        end, idle, heard = began + limits["seconds"], limits["idle_seconds"], began
        longest = 100 if all(side.ending >= 0 for side in sides) else 5
        while any(side.running for side in sides):
            left = (min(end, heard + idle) if idle else end) - time.monotonic()
            for side in sides if left <= 0 else ():
                side.stop("time")
            for fd, _ in poller.poll(min(max(1.0, left * 1000), longest)):
                if fd == self.control.fileno():
                    os._exit(1)  # the caller is gone, or speaks out of turn: this ends every process in here
                side, name = owners[fd]
                if name == "ending" or not self.pump(side, name, limits):
                    poller.unregister(fd)
                elif name == "results":
                    heard = time.monotonic()
            for side in sides:
                self.bury(side, limits)
            if len(sides) == 2 and not sides[0].running:  # the tests are over, so nobody asks the solution any more
                sides[1].stop("over")

    def pump(self, side: Side, name: str, limits: dict[str, Any]) -> bool:
        """Reads what is there; False at the end of the pipe."""
        chunk = os.read(side.pipes[name], 1 << 16)
        room = limits["bytes"].get(name, 1 << 14) - len(side.data[name])
        side.data[name] += chunk[: max(0, room)]
        if len(chunk) > room and name != "err":
            side.stop("output")
        return bool(chunk)

    def bury(self, side: Side, limits: dict[str, Any]) -> None:
        """If the top process has ended, and with it all others, what is left in the pipes is all that there will be."""
        pid, status, usage = os.wait4(side.pid, os.WNOHANG) if side.running else (0, 0, None)
        if not pid:
            return
        side.running = False
        if side.ending >= 0:
            os.close(side.ending)
        if not self.namespaces:
            side.data["status"] += json.dumps(_obituary(status, usage)).encode()
            with contextlib.suppress(OSError):
                os.killpg(side.pid, signal.SIGKILL)
        for name, fd in side.pipes.items():
            os.set_blocking(fd, False)
            with contextlib.suppress(BlockingIOError):
                while self.pump(side, name, limits):
                    pass

    def finish(self, side: Side, limits: dict[str, Any]) -> dict[str, Any]:
        for fd in side.pipes.values():
            os.close(fd)
        if side.job["folder"]:
            shutil.rmtree(side.job["folder"], ignore_errors=True)
        ended: dict[str, Any] = {"stopped": side.stopped}
        for line in side.data["status"].splitlines():  # none where the warden was killed
            ended |= json.loads(line)
        if ended.get("signal") == signal.SIGKILL and ended["cpu_seconds"] >= limits["cpu_seconds"]:
            ended["stopped"] = ended["stopped"] or "time"
        return ended

    # --- on the other side of the fork ---

    def in_child(
        self, job: dict[str, Any], limits: dict[str, Any], ends: dict[str, int], line: tuple[int, ...]
    ) -> NoReturn:
        """The warden, who makes the private folder and waits; or the program at once, where there are no namespaces."""
        status: dict[str, Any] = {"broken": "the warden did not get to its end"}
        try:
            if not self.namespaces:
                self.become_program(job, limits, ends, line)
            walls.private_tmp(limits["tmp_mb"])
            program = os.fork()
            if program == 0:
                self.become_program(job, limits, ends, line)
            os.dup2(ends["status"], 0)
            os.closerange(1, 1 << 20)
            pid = 0
            while pid != program:
                pid, code, usage = os.wait4(-1, 0)
            status = _obituary(code, usage)
        except BaseException as error:
            status = {"broken": f"{type(error).__name__}: {error}"}
        finally:
            _tell(0, status)
            os._exit(0)

    def become_program(self, job: dict, limits: dict, ends: dict[str, int], line: tuple[int, ...]) -> NoReturn:
        status = ends["status"]
        try:
            os.setsid()
            given = [_input(job.get("stdin", "")), *(ends[name] for name in CHANNELS), *line]
            status = fcntl.fcntl(ends["status"], fcntl.F_DUPFD_CLOEXEC, 200)
            for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in given]):
                os.dup2(fd, place, inheritable=place < 3)
            os.closerange(len(given), status)
            os.closerange(status + 1, 1 << 20)
            self.confine(job, limits)
        except BaseException as error:
            _tell(status, {"broken": f"{type(error).__name__}: {error}"})
            os._exit(1)
        os.close(status)
        try:
            os._exit(sandbox_child.run(job))
        finally:
            os._exit(1)

    def confine(self, job: dict[str, Any], limits: dict[str, Any]) -> None:
        os.umask(0o077)
        home = "/tmp" if self.namespaces else job["folder"] or "/"
        os.environ |= {"HOME": home, "TMPDIR": home}
        os.chdir(home)
        walls.limit_resources(
            cpu_seconds=limits["cpu_seconds"], memory_bytes=self.facts["base_bytes"] + (limits["memory_mb"] << 20),
            file_bytes=limits["file_mb"] << 20, processes=limits["processes"] + self.facts["extra_processes"],
        )  # fmt: skip
        if (uid := self.facts["uid"]) is not None:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        if self.facts["linux"]:
            walls.drop_capabilities()
        if self.facts["filter"]:
            only = 0 if self.namespaces else os.getpid()
            install_filter(make_filter(may_fork=self.facts["may_fork"], only_pid=only))


def _obituary(status: int, usage: Any) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None,
            "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_kb": usage.ru_maxrss}  # fmt: skip


def _duplex() -> list[tuple[int, ...]]:
    """(read, write) for the tests and for the solution: what one writes the other reads."""
    (a, b), (c, d) = os.pipe(), os.pipe()
    return [(a, d), (c, b)]


def _input(text: str) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    else:
        fd = os.dup(tempfile.TemporaryFile().fileno())  # noqa: SIM115
    with open(os.dup(fd), "wb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _tell(fd: int, status: dict[str, Any]) -> None:
    os.write(fd, json.dumps(status).encode() + b"\n")

"""The keeper of the sandbox: plays programs one after another, each in a fresh process behind the walls.

Started by `main.py`; standard library only. The processes, from the outside in:

    launcher   the caller's user; makes the control group, writes the user namespace's maps, waits
      keeper   process 1 of its own namespaces, nothing of the host but a read-only runtime; runs no untrusted code
        warden   process 1 of the namespaces of one run, with a /tmp of its own; when it ends, the kernel kills all in them
          program  no privileges, system call filter, limits; runs the untrusted code (`child.py`)

Without namespaces the launcher is the keeper, there is no warden, and the program cannot start processes.

A request names limits; what to run, what it prints and what it returns travel through descriptors that the keeper only
hands on. So no run finds anything of another, or of its own tests, in the memory that it inherits. The program has no way
to the control socket, nor to the pipe in which the warden says how it ended.
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
from dataclasses import dataclass
from typing import Any, NoReturn

from milepost.sandbox import child, walls
from milepost.sandbox.filter import install_filter, make_filter

FRAME = struct.Struct(">I")
GIVEN = ("job", "out", "err", "results")
"""The descriptors that come with a request, for each of its programs: a file with the job, and the ends of three pipes."""


# --- frames ---------------------------------------------------------------------------------------------------------


def send(control: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    data = json.dumps(message).encode()
    data = FRAME.pack(len(data)) + data
    sent = socket.send_fds(control, [data], fds) if fds else 0
    control.sendall(data[sent:])


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message with its descriptors; None when the other side is gone."""
    head, fds, _, _ = socket.recv_fds(control, FRAME.size, 2 * len(GIVEN))
    for fd in fds:
        os.set_inheritable(fd, False)
    while head and len(head) < FRAME.size:
        more = control.recv(FRAME.size - len(head))
        head = head + more if more else b""
    data = bytearray()
    while head and len(data) < FRAME.unpack(head)[0]:
        chunk = control.recv(FRAME.unpack(head)[0] - len(data))
        if not chunk:
            return None
        data += chunk
    return (json.loads(data), fds) if head else None


# --- one run --------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """One program of a run: its top process (warden or program), the pipe in which it says how it ended."""

    pid: int
    status: int
    folder: str | None
    ending: int = -1
    """A pidfd: readable once the top process has ended. -1 where the system has none."""
    running: bool = True
    told: bytes = b""
    stopped: str | None = None
    """Why it was killed: "time", "asked" or "over"."""

    def stop(self, why: str) -> None:
        if self.stopped is None and self.running:
            self.stopped = why
            os.kill(self.pid, signal.SIGKILL)


class Keeper:
    """Plays requests behind the walls that `facts` names."""

    def __init__(self, control: socket.socket, facts: dict[str, Any]) -> None:
        self.control, self.facts = control, facts
        self.namespaces = facts["level"] == "namespaces"

    def serve(self) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a program may signal its warden where both are the same user
        while (request := receive(self.control)) is not None:
            message, fds = request
            if "token" in message:  # a stop that came too late has none
                send(self.control, self.play(message, fds))
        os._exit(0)

    def play(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        limits, began = request["limits"], time.monotonic()
        kills = walls.num_memory_kills(self.facts["memory_events"])
        count = len(GIVEN)
        given = [fds[at : at + count] for at in range(0, len(fds), count)]
        lines = _duplex() if len(given) == 2 else [(), ()]
        sides = [self.start(own, limits, line) for own, line in zip(given, lines)]
        for fd in (*fds, *lines[0], *lines[1]):
            os.close(fd)
        self.watch(sides, began + limits["seconds"])
        seconds = time.monotonic() - began
        starved = walls.num_memory_kills(self.facts["memory_events"]) > kills
        ended = [self.finish(side, limits) | {"starved": starved} for side in sides]
        return {"token": request["token"], "seconds": seconds, "sides": ended}

    def start(self, given: list[int], limits: dict[str, Any], line: tuple[int, ...]) -> Side:
        read, write = os.pipe()
        folder = None
        if self.facts["folder"]:
            folder = tempfile.mkdtemp(prefix="run-", dir=self.facts["folder"])
            if self.facts["uid"] is not None:
                os.chown(folder, self.facts["uid"], self.facts["uid"])
        if self.namespaces:
            walls.unshare(walls.NEW_PID)
        pid = os.fork()
        if pid == 0:
            self.in_child(given, limits, line, write, folder)
        if self.namespaces:
            walls.join_pid_namespace(self.facts["pid_namespace"])
        os.close(write)
        return Side(pid, read, folder, os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1)

    def watch(self, sides: list[Side], deadline: float) -> None:
        """Waits until every side has ended, by itself, at the deadline or on request."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        for side in sides:
            if side.ending >= 0:
                poller.register(side.ending, select.POLLIN)
        longest = 1000 if all(side.ending >= 0 for side in sides) else 5
        while any(side.running for side in sides):
            left = deadline - time.monotonic()
            for side in sides if left <= 0 else ():
                side.stop("time")
            for fd, _ in poller.poll(min(max(1.0, left * 1000), longest)):
                if fd == self.control.fileno():
                    if receive(self.control) is None:
                        os._exit(1)  # the caller is gone: this ends every process in here
                    for side in sides:
                        side.stop("asked")
            for side in sides:
                if side.running and self.bury(side) and side.ending >= 0:
                    poller.unregister(side.ending)
                    os.close(side.ending)
            if len(sides) == 2 and not sides[0].running:  # the tests are over, so nobody asks the solution any more
                sides[1].stop("over")

    def bury(self, side: Side) -> bool:
        """Whether the top process has ended, and with it all others."""
        pid, status, usage = os.wait4(side.pid, os.WNOHANG)
        if pid:
            side.running = False
            side.told = os.read(side.status, 1 << 14)
            if not self.namespaces:
                side.told += json.dumps(_obituary(status, usage)).encode()
                with contextlib.suppress(OSError):
                    os.killpg(side.pid, signal.SIGKILL)
        return bool(pid)

    def finish(self, side: Side, limits: dict[str, Any]) -> dict[str, Any]:
        os.close(side.status)
        if side.folder:
            shutil.rmtree(side.folder, ignore_errors=True)
        ended: dict[str, Any] = {"stopped": side.stopped}
        for line in side.told.splitlines():  # none where the warden was killed
            ended |= json.loads(line)
        if ended.get("signal") == signal.SIGKILL and ended["cpu_seconds"] >= limits["cpu_seconds"]:
            ended["stopped"] = ended["stopped"] or "time"
        return ended

    # --- on the other side of the fork ---

    def in_child(self, given: list[int], limits: dict, line: tuple, status: int, folder: str | None) -> NoReturn:
        """The warden, who makes the private folder and waits; or the program at once, where there are no namespaces."""
        said: dict[str, Any] = {}
        try:
            if not self.namespaces:
                self.become_program(given, limits, line, status, folder)
            walls.private_tmp(limits["tmp_mb"], self.facts["hidden"])
            program = os.fork()
            if program == 0:
                self.become_program(given, limits, line, status, folder)
            os.dup2(status, 0)
            os.closerange(1, 1 << 20)
            status = pid = 0
            while pid != program:
                pid, code, usage = os.wait4(-1, 0)
            said = _obituary(code, usage)
        except BaseException as error:
            said = {"broken": f"{type(error).__name__}: {error}"}
        finally:
            _tell(status, said)
            os._exit(0)

    def become_program(self, given: list[int], limits: dict, line: tuple, status: int, folder: str | None) -> NoReturn:
        try:
            os.setsid()
            job = _read_job(given[0])
            kept = [_input(job.pop("stdin", "")), *given[1:], *line]
            status = fcntl.fcntl(status, fcntl.F_DUPFD_CLOEXEC, 200)
            for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in kept]):
                os.dup2(fd, place, inheritable=place < 3)
            os.closerange(len(kept), status)
            os.closerange(status + 1, 1 << 20)
            self.confine(limits, folder)
        except BaseException as error:
            _tell(status, {"broken": f"{type(error).__name__}: {error}"})
            os._exit(1)
        os.close(status)
        try:
            os._exit(child.run(job))
        finally:
            os._exit(1)

    def confine(self, limits: dict[str, Any], folder: str | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.umask(0o077)
        home = "/tmp" if self.namespaces else folder or "/"
        os.environ |= {"HOME": home, "TMPDIR": home}
        os.chdir(home)
        walls.limit_resources(
            cpu_seconds=limits["cpu_seconds"], memory_bytes=self.facts["base_bytes"] + (limits["memory_mb"] << 20),
            file_bytes=limits["file_mb"] << 20, processes=limits["processes"] + self.facts["extra_processes"],
        )  # fmt: skip
        if self.facts["linux"]:
            walls.change_user(self.facts["uid"])
        elif self.facts["uid"] is not None:
            os.setgroups([])
            os.setgid(self.facts["uid"])
            os.setuid(self.facts["uid"])
        if self.facts["filter"]:
            only = 0 if self.namespaces else os.getpid()
            install_filter(make_filter(may_fork=self.facts["may_fork"], only_pid=only))


def _obituary(status: int, usage: Any) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None,
            "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_kb": usage.ru_maxrss}  # fmt: skip


def _tell(fd: int, status: dict[str, Any]) -> None:
    os.write(fd, json.dumps(status).encode() + b"\n")


def _duplex() -> list[tuple[int, ...]]:
    """(read, write) for the tests and for the solution: what one writes the other reads."""
    (a, b), (c, d) = os.pipe(), os.pipe()
    return [(a, d), (c, b)]


def _read_job(fd: int) -> dict[str, Any]:
    data = bytearray()
    while chunk := os.pread(fd, 1 << 20, len(data)):
        data += chunk
    return json.loads(data)


def _input(text: str) -> int:
    fd = memory_file(text.encode("utf-8", "surrogatepass"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def memory_file(data: bytes) -> int:
    """A descriptor of a file without a name that holds the data."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("milepost", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd

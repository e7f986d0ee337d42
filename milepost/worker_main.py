"""The program that worker processes run: read a call, make it, answer. Started by `workers.py`, never by hand.

It imports nothing but the standard library, not even this package, so that a worker is up in a few milliseconds.
A request is a JSON header and a pickled dict of keywords from the parent; the answer is JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import io
import json
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FRAME = struct.Struct(">QQ")  # lengths of the JSON header and of the pickled body
ALARM_GRACE_SECONDS = 5.0
CLONE_NEWUSER, CLONE_NEWNET, PR_SET_NO_NEW_PRIVS = 0x10000000, 0x40000000, 38


@dataclass(frozen=True)
class Isolation:
    """What the system granted. `network` and `memory` say whether the barrier is really in place."""

    network: bool
    """True: the worker has no network at all."""
    memory: bool
    """True: the address space is capped."""


def resolve(name: str) -> Callable[..., Any]:
    """Imports "module:function" or "file.py:function". Raises whatever the import raises."""
    where, _, attribute = name.rpartition(":")
    target: Any = _load_file(where) if where.endswith(".py") else importlib.import_module(where)
    for part in attribute.split("."):
        target = getattr(target, part)
    return target


def _load_file(path: str) -> Any:
    full = os.path.abspath(path)
    key = f"_milepost_file_{full}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, full)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses and pickling look their module up here
    folder = os.path.dirname(full)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module


def _isolate(memory_mb: int) -> Isolation:
    import resource

    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 64 << 20)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    memory = False
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
        memory = True
    return Isolation(network=_cut_network(), memory=memory)


def _cut_network() -> bool:
    """Moves this process into an empty network namespace. Only possible while it has a single thread."""
    uid, gid = os.getuid(), os.getgid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        cut = libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
        if cut:  # keep the ids' names; without a mapping the process would look like "nobody" to itself
            for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with contextlib.suppress(OSError):
                    Path(f"/proc/self/{file}").write_text(text)
        else:
            cut = libc.unshare(CLONE_NEWNET) == 0
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return False
    return cut


def _no_core_dumps() -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run(function: str, body: bytes) -> dict[str, Any]:
    """One call: the function's value, or the type and traceback of whatever it raised, SystemExit included."""
    try:
        value = resolve(function)(**pickle.loads(body)) if function else None
        json.dumps(value)
        return {"failure": None, "value": value}
    except BaseException as error:
        lines = traceback.format_exception(type(error), error, _below_worker(error))
        return {"failure": f"error: {type(error).__name__}", "detail": "".join(lines)[-20_000:]}


def _below_worker(error: BaseException) -> Any:
    """The traceback without the frame of `_run`, which tells the reader nothing."""
    return error.__traceback__.tb_next if error.__traceback__ else None


def _cpu_seconds() -> float:
    """Used so far by this process, and by the children that it waited for."""
    import resource

    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _serve(requests: io.BufferedReader, replies: io.BufferedWriter) -> None:
    me = os.getpid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while len(lengths := requests.read(FRAME.size)) == FRAME.size:
        size, body_size = FRAME.unpack(lengths)
        header, body = json.loads(requests.read(size)), requests.read(body_size)
        # The backstop in case the parent is gone: the kernel ends this process, whatever the code does or locks.
        signal.setitimer(signal.ITIMER_REAL, header["timeout"] + ALARM_GRACE_SECONDS)
        reply: dict[str, Any] = {"token": header["token"]}
        if "sys_path" in header:
            sys.path[:] = header["sys_path"]
            _no_core_dumps()
            isolation = _isolate(header["memory_mb"]) if header["isolated"] else Isolation(network=False, memory=False)
            reply["isolation"] = asdict(isolation)
        reply |= _run(header["function"], body)
        reply["cpu_seconds"] = _cpu_seconds()
        if os.getpid() != me:  # the function forked and came back twice
            os._exit(1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        data = json.dumps(reply).encode()
        replies.write(FRAME.pack(len(data), 0) + data)
        replies.flush()


def _main() -> None:
    descriptors = [int(argument) for argument in sys.argv[1:3]]
    for fd in descriptors:
        os.set_inheritable(fd, False)
    sys.argv = ["milepost-worker"]
    with (
        contextlib.suppress(BrokenPipeError),
        open(descriptors[0], "rb") as requests,
        open(descriptors[1], "wb") as replies,
    ):
        _serve(requests, replies)
    os._exit(0)  # threads that a scorer left behind must not keep the process alive


if __name__ == "__main__":
    _main()

"""Attacks a new sandbox before anything is entrusted to it: are the walls really there?"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost.kept import descendants

_ATTACK = """
import ctypes, json, os, socket, sys, time
found = {}

def attempt(name, action):
    try:
        found[name] = action()
    except BaseException as error:
        found[name] = None

def fork_all():
    count = 0
    try:
        while count < PROCESSES + 8:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            count += 1
    except OSError:
        pass
    return count

def write_anywhere():
    for folder in ("/", "/usr/lib", sys.prefix, os.path.dirname(os.__file__), os.path.dirname(SECRET)):
        try:
            open(os.path.join(folder, "milepost-probe"), "w").close()
            return folder
        except OSError:
            pass

def fill():
    for number in range(TMP // FILE + 1):
        with open(f"{number}.bin", "wb") as file:
            file.write(bytes(FILE << 20))
    return True

attempt("reads a file of this machine", lambda: open(SECRET).read())
attempt("reaches this machine's network", lambda: bool(socket.create_connection(("127.0.0.1", PORT), 2)))
attempt("writes outside its own folder", write_anywhere)
attempt("takes more memory than allowed", lambda: len(bytearray(MEGABYTES + 32 << 20)))
attempt("writes more than its folder may hold", fill)
attempt("makes a namespace of its own", lambda: ctypes.CDLL(None).unshare(0x10000000) == 0 or None)
attempt("traces", lambda: ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 or None)
attempt("signals its parent", lambda: os.getpid() != 2 and (os.kill(os.getppid(), 0) or True) or None)
found["processes"] = fork_all()
import colorsys  # not loaded yet: is the library within reach?
print(json.dumps(found))
"""


def probe(play: Callable[[str], Any], *, facts: dict[str, Any], config: dict[str, Any], pid: int) -> str | None:
    """None if every attack is repelled, else what an untrusted program could do.

    play(code) runs a program in the new cell and returns its `Ran`; pid is the cell's outermost process.
    """
    limits = config["limits"]
    before = len(descendants(pid))
    with tempfile.TemporaryDirectory(prefix="milepost-probe-") as folder, contextlib.ExitStack() as stack:
        port = 0
        with contextlib.suppress(OSError):  # where this process may not listen either, connecting fails all the same
            port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        secret = Path(folder, "secret")
        secret.write_text("expected output")
        for path, mode in ((Path(folder), 0o755), (secret, 0o644)):
            path.chmod(mode)
        names = {"SECRET": str(secret), "PORT": port, "PROCESSES": limits["processes"],
                 "MEGABYTES": limits["memory_mb"], "TMP": limits["tmp_mb"], "FILE": limits["file_mb"]}  # fmt: skip
        ran = play("\n".join(f"{name} = {value!r}" for name, value in names.items()) + _ATTACK)
    try:
        found = json.loads(ran.out)
        processes = int(found.pop("processes"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return (
            f"the test program did not run ({ran.why}{': ' + ran.err.strip().splitlines()[-1] if ran.err.strip() else ''})"
        )
    if config["level"] == "plain":  # no walls are promised: that it runs is all
        return None
    open_doors = [name for name, value in found.items() if value is not None]
    if processes > (limits["processes"] if facts["may_fork"] else 0):
        open_doors.append("starts more processes than allowed")
    if len(descendants(pid)) > before:
        open_doors.append("leaves processes behind")
    return f"a program {', '.join(open_doors)}" if open_doors else None

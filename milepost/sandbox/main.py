"""The program that builds the sandbox's walls and then serves behind them. Started by `cell.py`, never by hand.

It gets the socket's descriptor as its argument and reads its configuration there. `keeper.py` is what it becomes.
Standard library only.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import contextlib
import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

_ROOT = str(Path(__file__).resolve().parents[2])
sys.path.insert(0, _ROOT)
from milepost.sandbox import walls  # noqa: E402
from milepost.sandbox.filter import make_filter  # noqa: E402
from milepost.sandbox.keeper import Keeper, receive, send  # noqa: E402

KEEPER_BYTES = 64 << 20  # what launcher, keeper and wardens may take beside a program's memory
KEEPER_PROCESSES = 6
PRELOADED = """
array ast base64 bisect calendar cmath collections contextlib copy dataclasses datetime decimal enum fractions functools
hashlib heapq io itertools json linecache math numbers operator os queue random re statistics string struct textwrap
threading time traceback types typing unicodedata
"""


def _preload(facts: dict[str, Any], config: dict[str, Any]) -> None:
    """Common modules, once for all programs to come, and how much address space that takes."""
    sys.path[:] = [path for path in sys.path if path != _ROOT] + config["package_folders"]
    for name in (*PRELOADED.split(), *config["packages"]):
        importlib.import_module(name)
    for name in ("exit", "quit"):  # of the site module, which is left out here; scripts use them all the same
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    facts["base_bytes"] = walls.address_space_bytes()


def launch(control: socket.socket, config: dict[str, Any]) -> None:
    """Builds the walls of `config["level"]` and serves behind them. Raises OSError where they cannot be had."""
    facts: dict[str, Any] = {
        "level": config["level"], "linux": sys.platform == "linux", "groups": {}, "memory_events": -1, "uid": None,
        "extra_processes": 0, "filter": False, "may_fork": False, "folder": None,
    }  # fmt: skip
    if config["level"] == "namespaces":
        return _launch_namespaces(control, config, facts)
    with contextlib.suppress(OSError) if config["level"] == "plain" else contextlib.nullcontext():
        make_filter(may_fork=False)
        facts["filter"] = True
    if os.geteuid() == 0 and config["apart"]:
        facts["uid"] = 1_900_000_000 + 2 * os.getpid() if facts["linux"] else 65534
    _preload(facts, config)
    if config["level"] == "landlock":
        walls.restrict_files(config["readable"], config["listable"], config["devices"])
    else:
        facts["folder"] = config["folder"]
        os.chmod(config["folder"], 0o711)
    send(control, {"facts": facts})
    Keeper(control, facts).serve()


def _launch_namespaces(control: socket.socket, config: dict[str, Any], facts: dict[str, Any]) -> None:
    limits, me = config["limits"], os.getpid()
    memory = (limits["memory_mb"] + limits["tmp_mb"] << 20) + KEEPER_BYTES
    groups = walls.create_groups(f"milepost-{me}", limits["processes"] + KEEPER_PROCESSES, memory)
    facts |= {"groups": groups, "filter": True, "may_fork": config["apart"] and "memory" in groups}
    asks, told = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        told.close()
        try:
            _enter(control, asks, config, facts, me)
        except BaseException as error:
            send(control, {"error": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(1)
    control.close()
    asks.close()
    with contextlib.suppress(OSError):
        if wish := told.recv(1):
            told.sendall(walls.write_maps(pid, privileged=wish == b"p").encode())
    os.waitpid(pid, 0)
    for folder in set(groups.values()):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _enter(control: socket.socket, asks: socket.socket, config: dict, facts: dict, parent: int) -> NoReturn:
    """From the launcher's child to the keeper. With CAP_SYS_ADMIN the root is built before that privilege is given up."""
    walls.join_groups(list(set(facts["groups"].values())))
    if "memory" in facts["groups"]:
        facts["memory_events"] = walls.open_memory_events(facts["groups"]["memory"])
    _preload(facts, config)
    try:
        walls.unshare(walls.ALL_BUT_USER_AND_PID)
        privileged = True
    except PermissionError:
        privileged = False
    if privileged:
        facts["hidden"] = _furnish(config)
    walls.unshare(walls.NEW_USER)
    asks.sendall(b"p" if privileged else b"u")
    mapped = asks.recv(10).decode()
    asks.close()
    if mapped == "apart":
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    elif mapped != "same":
        raise OSError("the user namespace's maps could not be written")
    if not privileged:
        walls.unshare(walls.ALL_BUT_USER_AND_PID)
        facts["hidden"] = _furnish(config)
    walls.die_with_parent(parent)
    walls.unshare(walls.NEW_PID)
    if pid := os.fork():
        control.close()
        os.waitpid(pid, 0)
        os._exit(0)
    walls.die_with_parent(0)  # a process 1 sees no parent
    walls.hide_memory()
    facts |= {"uid": walls.INSIDE_ID if mapped == "apart" else None, "extra_processes": 0 if mapped == "apart" else 4}
    facts |= {"privileged": privileged, "pid_namespace": os.pidfd_open(os.getpid())}
    send(control, {"facts": facts})
    Keeper(control, facts).serve()


def _furnish(config: dict[str, Any]) -> list[str]:
    socket.sethostname("sandbox")
    shown = (config[name] for name in ("folders", "links", "covers", "package_parts", "devices"))
    return walls.build_root(*shown)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    sys.argv = ["sandbox"]
    first = receive(control)
    if first is None:
        return
    try:
        launch(control, first[0])
    except BaseException as error:
        send(control, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()

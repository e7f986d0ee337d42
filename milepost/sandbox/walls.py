"""The walls of the sandbox: namespaces and mounts, Landlock, control groups, resource limits.

Plain system calls through ctypes, for the program inside (`main.py`); standard library only. Every function
raises OSError where the system refuses, and none goes on without. docs/sandbox.md says what each wall is for.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

NEW_MOUNT, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
ALL_BUT_USER_AND_PID = NEW_MOUNT | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_NET
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
INSIDE_ID = 1000
"""User and group id that a program has inside."""

MACHINE = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), -1)
_PIVOT_ROOT, _CAPSET = ((155, 126), (41, 91))[MACHINE]
_MOUNT_SETATTR, _LANDLOCK = 442, (444, 445, 446)  # the same on both
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def linux() -> ctypes.CDLL:
    if _libc is None or MACHINE < 0:
        raise OSError(errno.ENOSYS, f"not known for {sys.platform} on {platform.machine()}")
    return _libc


def _long(value: int) -> ctypes.c_long:
    return ctypes.c_long(value)


# --- namespaces -----------------------------------------------------------------------------------------------------


def unshare(flags: int) -> None:
    check(linux().unshare(flags), "unshare")


def join_pid_namespace(fd: int) -> None:
    check(linux().setns(fd, NEW_PID), "setns")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None)
    check(linux().mount(*arguments, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def make_read_only(target: str, extra: int = 0) -> None:
    """The mount and all below it, by mount_setattr; before Linux 5.12 the mount alone."""
    attributes = struct.pack("=QQQQ", READ_ONLY | NO_SUID | extra, 0, 0, 0)  # the first flags have the same bits
    if linux().syscall(_long(_MOUNT_SETATTR), -100, target.encode(), 0x8000, attributes, _long(len(attributes))) == 0:
        return
    kept = os.statvfs(target).f_flag & (NO_SUID | NO_DEV | NO_EXEC)
    mount("none", target, None, REMOUNT | BIND | READ_ONLY | NO_SUID | kept | extra)


PRIVATE_FOLDERS = ("/tmp", "/dev/shm")
_ASIDE = "/.aside"


def build_root(
    folders: list[str], links: dict[str, str], covers: list[str], parts: list[str], devices: list[str]
) -> list[str]:
    """This process' mount namespace becomes an empty, read-only root with the folders in it, read-only, at their own paths.

    `covers` are hidden by empty folders, then `parts` are mounted, perhaps within these. /tmp is an empty folder on which
    each program gets a mount of its own. → the paths that this will hide, as of an interpreter that is installed there;
    they are kept aside for `private_tmp`.
    """
    real = {path: os.path.realpath(path) for path in (*folders, *parts, *devices)}
    mount("none", "/", None, RECURSIVE | PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEV, "size=1m,nr_inodes=4096,mode=755")
    os.mkdir("/tmp/old", 0o700)
    check(linux().syscall(_long(_PIVOT_ROOT), b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    for path in folders:
        _show(f"/old{real[path]}", path, NO_DEV)
    for path in covers:
        mount("tmpfs", path, "tmpfs", NO_SUID | NO_DEV, "size=64k,nr_inodes=64,mode=755")
    for path in parts:
        _show(f"/old{real[path]}", path, NO_DEV)
    for path in covers:
        make_read_only(path)
    for path in devices:
        _show(f"/old{real[path]}", path, NO_EXEC)
    for path, target in links.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    for path in (*PRIVATE_FOLDERS, "/etc"):
        os.makedirs(path, exist_ok=True)
    Path("/etc/passwd").write_text(f"sandbox:x:{INSIDE_ID}:{INSIDE_ID}::/tmp:/bin/false\n")
    Path("/etc/group").write_text(f"sandbox:x:{INSIDE_ID}:\n")
    hidden = list[str]()
    for path in (*folders, *parts):  # what is inside a folder goes with it
        if _below(path, PRIVATE_FOLDERS) and not _below(path, hidden):
            hidden.append(path)
            _show(path, _ASIDE + path, NO_DEV)
    check(linux().umount2(b"/old", DETACH), "umount")
    os.rmdir("/old")
    make_read_only("/")
    return hidden


def _below(path: str, folders: Iterable[str]) -> bool:
    return path.startswith(tuple(f"{folder}/" for folder in folders))


def _show(source: str, path: str, extra: int) -> None:
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    mount(source, path, None, BIND | RECURSIVE)
    make_read_only(path, extra)


def private_tmp(megabytes: int, hidden: list[str]) -> None:
    """A new mount namespace with an empty /tmp of limited size; /dev/shm is the same folder. What of the runtime it would
    hide stands in it again, read-only."""
    unshare(NEW_MOUNT)
    options = f"size={megabytes}m,nr_inodes=4096,mode=700,uid={INSIDE_ID},gid={INSIDE_ID}"
    mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEV | NO_EXEC, options)
    mount("/tmp", "/dev/shm", None, BIND)
    for path in hidden:
        _show(_ASIDE + path, path, NO_DEV)


def write_maps(pid: int, privileged: bool) -> str:
    """Fills in who is who in the user namespace of `pid`, from its parent namespace. Returns "apart" or "same".

    apart: programs get an id that nobody else on the machine has, so that the process limit counts them alone.
    same: they stay the caller's user, without any capability; all that an unprivileged caller may give.
    """
    own_ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    for first in (1_900_000_000 + 2 * pid, 60_000 + 2 * (pid % 2500)):
        with contextlib.suppress(OSError):
            for name, own in own_ids.items():
                outer = first if privileged else own
                Path(f"/proc/{pid}/{name}").write_text(f"0 {outer} 1\n{INSIDE_ID} {first + 1} 1\n")
            return "apart"
    Path(f"/proc/{pid}/setgroups").write_text("deny")
    for name, own in own_ids.items():
        Path(f"/proc/{pid}/{name}").write_text(f"{INSIDE_ID} {own} 1\n")
    return "same"


def die_with_parent(parent: int) -> None:
    """This process is killed when the one that forked it ends. Does not survive a change of user, so comes after it."""
    check(linux().prctl(1, 9, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """No process without capabilities may trace or read this one, even under the same user."""
    check(linux().prctl(4, 0, 0, 0, 0), "prctl")


def change_user(user: int | None) -> None:
    """To this user and group, if one is given, without any capability and with no way to get one back."""
    libc = linux()
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)  # out of the bounding set; beyond the last one it fails
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    check(libc.syscall(_long(_CAPSET), header, none), "capset")
    check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")


# --- Landlock -------------------------------------------------------------------------------------------------------


def landlock_abi() -> int:
    """0 where the kernel has none."""
    try:
        return max(0, linux().syscall(_long(_LANDLOCK[0]), None, _long(0), 1))
    except OSError:
        return 0


def restrict_files(readable: list[str], listable: list[str], devices: list[str]) -> None:
    """From now on this process and its children read what is at or below `readable`, list `listable`, and open no other
    file but the devices. They write no file at all.
    """
    abi = landlock_abi()
    if not abi:
        raise OSError(errno.ENOSYS, "Landlock: the kernel does not offer it")
    rights = (1 << 13) - 1 | (abi > 1) << 13 | (abi > 2) << 14 | (abi > 4) << 15  # refer, truncate, ioctl on devices
    network, scoped = 3 if abi > 3 else 0, 3 if abi > 5 else 0  # TCP; abstract sockets and signals of others
    attributes = struct.pack("=QQQ", rights, network, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    libc = linux()
    ruleset = check(libc.syscall(_long(_LANDLOCK[0]), attributes, _long(len(attributes)), 0), "landlock_create_ruleset")
    write, read, list_ = 1 << 1, 1 << 2, 1 << 3
    rules = [(path, read | list_ if os.path.isdir(path) else read) for path in readable]
    rules += [(path, list_) for path in listable] + [(path, read | write) for path in devices]
    for path, allowed in rules:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed, fd)
        check(libc.syscall(_long(_LANDLOCK[1]), ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(fd)
    check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    check(libc.syscall(_long(_LANDLOCK[2]), ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


# --- resource limits ------------------------------------------------------------------------------------------------


def limit_resources(*, cpu_seconds: int, memory_bytes: int, file_bytes: int, processes: int | None) -> None:
    """Hard limits of this process and each of its children. `processes` counts those of this user, threads included."""
    import resource

    wanted = {"RLIMIT_CPU": cpu_seconds, "RLIMIT_AS": memory_bytes, "RLIMIT_DATA": memory_bytes, "RLIMIT_FSIZE": file_bytes,
              "RLIMIT_NOFILE": 64, "RLIMIT_CORE": 0, "RLIMIT_MEMLOCK": 0, "RLIMIT_MSGQUEUE": 0, "RLIMIT_RTPRIO": 0,
              "RLIMIT_NICE": 0, "RLIMIT_SIGPENDING": 256, "RLIMIT_NPROC": processes}  # fmt: skip
    for name, value in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None or value is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        most = value + 1 if name == "RLIMIT_CPU" and value != hard else value  # SIGXCPU first, then SIGKILL
        with contextlib.suppress(ValueError, OSError) if sys.platform != "linux" else contextlib.nullcontext():
            resource.setrlimit(kind, (value, most))


def address_space_bytes() -> int:
    """What this process has mapped already: a program's own memory comes on top."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 64 << 20


# --- control groups -------------------------------------------------------------------------------------------------


def create_groups(name: str, processes: int, memory_bytes: int) -> dict[str, str]:
    """A control group below this process' own, with a limit on processes and memory: controller → folder, where allowed.

    Version 1 and 2. Whatever the system refuses is left out. Folders of this kind whose maker is gone are removed first.
    """
    made: dict[str, str] = {}
    for controller, parent, limits in _group_places(processes, memory_bytes):
        _sweep(parent, name)
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            for file, value in limits.items():
                (folder / file).write_text(str(value))
            made[controller] = str(folder)
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return made


def _group_places(processes: int, memory_bytes: int) -> list[tuple[str, Path, dict[str, int]]]:
    top, found = Path("/sys/fs/cgroup"), []
    limits = {
        "pids": ({"pids.max": processes}, {"pids.max": processes}),
        "memory": ({"memory.limit_in_bytes": memory_bytes}, {"memory.max": memory_bytes, "memory.swap.max": 0}),
    }
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for number, names, path in lines:
            for controller, (first, second) in limits.items():
                if controller in names.split(","):
                    found.append((controller, top / controller / path.lstrip("/"), first))
                elif number == "0" and controller in _read(top / path.lstrip("/") / "cgroup.subtree_control").split():
                    found.append((controller, top / path.lstrip("/"), second))
    return found


def _sweep(parent: Path, name: str) -> None:
    """Removes groups that a killed predecessor left. A name ends in the id of the process that made it."""
    prefix = name.rpartition("-")[0]
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{prefix}-*"):
            pid = folder.name.rpartition("-")[2]
            if not pid.isdecimal() or not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def join_groups(folders: list[str]) -> None:
    for folder in folders:
        Path(folder, "cgroup.procs").write_text("0")


def open_memory_events(folder: str) -> int:
    """A descriptor for `num_memory_kills`, which works on where the folder is out of sight; -1 where there is none."""
    for file in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            return os.open(Path(folder, file), os.O_RDONLY | os.O_CLOEXEC)
    return -1


def num_memory_kills(fd: int) -> int:
    """How often the kernel killed a process of the group for its memory."""
    text = os.pread(fd, 4096, 0).decode() if fd >= 0 else ""
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

"""Which system calls a sandboxed program may make: a seccomp filter, written by hand for x86_64 and aarch64.

    install_filter(make_filter(may_fork=False))      # for this process and all its children, for good

Old calls are allowed unless listed here; calls that came after Linux 5.1 are refused unless listed, so that what a newer
kernel brings is not open by accident. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from milepost.sandbox.walls import MACHINE, check, linux

# Number on x86_64 and on aarch64; -1: does not exist there.
_REFUSED = """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, mount 165 40, umount2 166 39,
pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, swapon 167 224, swapoff 168 225, reboot 169 142,
sethostname 170 161, setdomainname 171 162, init_module 175 105, finit_module 313 273, delete_module 176 106,
kexec_load 246 104, kexec_file_load 320 294, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, keyctl 250 219,
add_key 248 217, request_key 249 218, syslog 103 116, acct 163 89, quotactl 179 60, settimeofday 164 170,
clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171, iopl 172 -1, ioperm 173 -1, modify_ldt 154 -1,
personality 135 92, name_to_handle_at 303 264, open_by_handle_at 304 265, fanotify_init 300 262, fanotify_mark 301 263,
lookup_dcookie 212 18, nfsservctl 180 42, vhangup 153 58, socket 41 198, connect 42 203, bind 49 200, listen 50 201,
accept 43 202, accept4 288 242, shmget 29 194, shmat 30 196, shmctl 31 195, shmdt 67 197, semget 64 190, semop 65 193,
semctl 66 191, semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180,
mq_unlink 241 181, mq_timedsend 242 182, mq_timedreceive 243 183, mq_notify 244 184, mq_getsetattr 245 185,
memfd_create 319 279, mknod 133 -1, mknodat 259 33, io_setup 206 0, io_submit 209 2, remap_file_pages 216 234,
migrate_pages 256 238, move_pages 279 239, uselib 134 -1, ustat 136 -1, sysfs 139 -1, _sysctl 156 -1,
create_module 174 -1, get_kernel_syms 177 -1, query_module 178 -1, security 185 -1, vserver 236 -1, splice 275 76,
tee 276 77, vmsplice 278 75, sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243, setsockopt 54 208
"""
# Besides, where processes and files of the same user are within reach: what acts on another process, and what changes a
# file that cannot be opened (Landlock leaves owner, mode, times and attributes alone).
_REFUSED_BESIDE_OTHERS = """
tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, setpriority 141 140, ioprio_set 251 30,
sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274,
chmod 90 -1, fchmod 91 52, fchmodat 268 53, chown 92 -1, lchown 94 -1, fchown 93 55, fchownat 260 54, setxattr 188 5,
lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, utime 132 -1,
utimes 235 -1, futimesat 261 -1, utimensat 280 88, truncate 76 45, inotify_add_watch 254 27
"""
_FIRST_NEW = 403
_NEW_ALLOWED = (436, 437, 439, 441, 449, 454, 455, 456)  # close_range, openat2, faccessat2, epoll_pwait2, futexes
_CLONE, _FORK, _VFORK = (56, 220), (57, -1), (58, -1)
_SOCKETPAIR, _KILL, _TGKILL, _PRLIMIT = (53, 199), (62, 129), (234, 131), (302, 261)
_CLONE_NEW, _CLONE_THREAD = 0x7E020080, 0x10000
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
# An instruction is (code, jump if true, jump if false, value); loads take an offset into the call's description.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16


def make_filter(*, may_fork: bool, only_pid: int = 0) -> bytes:
    """A seccomp program: no sockets, no namespaces, no tracing, nothing that administers a machine.

    may_fork=False: threads only, no processes. only_pid: signals and limits reach this process alone, for the case
    that others of the same user are within reach. Raises OSError on machines whose system calls are not listed above.
    """
    linux()
    refuse, no_more = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ERRNO | errno.EAGAIN)
    program = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, _AUDIT_ARCH[MACHINE]), (_RETURN, 0, 0, _KILL_PROCESS)]
    program += [(_LOAD, 0, 0, _NUMBER_AT), (_AT_LEAST, 0, 1, 0x40000000), refuse]  # the x32 doubles of every call
    newer = [line for number in _NEW_ALLOWED for line in _when(number, (_RETURN, 0, 0, _ALLOW))]
    newer.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))  # clone3 among them: the C library then uses clone
    program += [(_AT_LEAST, 0, len(newer), _FIRST_NEW), *newer]
    for number in _numbers(_REFUSED) + (_numbers(_REFUSED_BESIDE_OTHERS) if only_pid else []):
        program += _when(number, refuse)
    program += _only_with(_SOCKETPAIR[MACHINE], 1)  # AF_UNIX: the pair that asyncio makes for itself
    program += _only_with(_PRLIMIT[MACHINE], 0)  # its own limits: a warden may be the same user
    if only_pid:
        program += _only_with(_KILL[MACHINE], only_pid) + _only_with(_TGKILL[MACHINE], only_pid)
    clone = [(_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_ANY_BIT, 0, 1, _CLONE_NEW), refuse]
    if not may_fork:
        clone += [(_ANY_BIT, 1, 0, _CLONE_THREAD), no_more]
        program += _when(_FORK[MACHINE], no_more) + _when(_VFORK[MACHINE], no_more)
    program += _when(_CLONE[MACHINE], *clone, (_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in [*program, (_RETURN, 0, 0, _ALLOW)])


def _numbers(table: str) -> list[int]:
    return [int(entry.split()[1 + MACHINE]) for entry in table.replace("\n", " ").split(",")]


def _when(number: int, *then: tuple) -> list[tuple]:
    """`then` must return: it is left out for every other call."""
    return [(_EQUAL, 0, len(then), number), *then] if number >= 0 else []


def _only_with(number: int, value: int) -> list[tuple]:
    """The call is allowed with this first argument alone."""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    return _when(number, (_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_EQUAL, 0, 1, value), allow, refuse)


def install_filter(program: bytes) -> None:
    """For this process and all its children, for good. Needs no_new_privs, which is set here."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    libc, code = linux(), ctypes.create_string_buffer(program, len(program))
    check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    wanted = Program(len(program) // 8, ctypes.addressof(code))
    check(libc.prctl(22, 2, ctypes.byref(wanted), 0, 0), "seccomp")

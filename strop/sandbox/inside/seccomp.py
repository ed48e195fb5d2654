"""Filter of this process's system calls: no network, no further processes, no signals to other processes.

The filter rejects a list of calls with an error; all others are allowed. It is a program for the kernel's packet
filter, as documented in the kernel's `seccomp_filter.rst`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> architecture number of the audit interface, and column of the tables below."""
_X32_CALLS = 0x40000000

_DENIED: dict[str, tuple[int | None, int | None]] = {
    # network
    "socket": (41, 198),
    "bind": (49, 200),
    "connect": (42, 203),
    # processes
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    # limits, and memory that they do not count: buffers of sockets that are sent or enlarged
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "setsockopt": (54, 208),
    "setrlimit": (160, 164),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # what the kernel counts for all processes of the machine or of the user
    "io_setup": (206, 0),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    # attributes of files, which Landlock does not restrict
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # administration
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "personality": (135, 92),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "vhangup": (153, 58),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
}
_UNKNOWN = ((435, 435), (425, 425), (426, 426), (427, 427))
"""clone3, whose arguments a filter cannot read, and io_uring, which bypasses filters: reported as unknown, so
that the C library uses the older calls."""
_SHELL_DENIED = (
    *("socket", "ptrace", "process_vm_writev", "pidfd_open", "pidfd_send_signal"),
    *("tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "setrlimit", "setpriority"),
)
_CLONE, _KILL, _TGKILL = (56, 220), (62, 129), (234, 131)
_PRLIMIT64, _FCNTL, _IOCTL = (302, 261), (72, 25), (16, 29)
_CLONE_THREAD = 0x10000
_DENIED_FCNTLS = (8, 10, 15, 1031)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX, which have the kernel send signals to other processes; F_SETPIPE_SZ, which
enlarges the buffer of a pipe."""
_OWNER_IOCTLS = (0x8901, 0x8902, 0x5412)
"""FIOSETOWN and SIOCSPGRP, as above; TIOCSTI, which types into a terminal."""

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`."""

_Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def filter_system_calls(libc: ctypes.CDLL) -> None:
    """Install the filter, for good. Raises OSError where the kernel, or this architecture, has none. The
    process must have `no_new_privs`."""
    _require_architecture()
    _install(libc, _instructions(os.getpid()))


def filter_shell(libc: ctypes.CDLL) -> None:
    """Install a filter for a shell, which may start programs: it denies new sockets and signals, and keeps all
    processes in the group of this one. Raises OSError as `filter_system_calls` does."""
    _require_architecture()
    _, column = _ARCHITECTURES[platform.machine()]
    denied = [_DENIED[name][column] for name in _SHELL_DENIED]
    denied += [numbers[column] for numbers in (_KILL, _TGKILL, *_UNKNOWN[1:])]
    program = [*_prologue(), *_rejections(denied)]
    for name in (
        "setpgid",
        "setsid",
    ):  # as if it had succeeded, because bash's job control complains otherwise
        program += [(_JUMP_EQUAL, 0, 1, _DENIED[name][column] or 0), (_RETURN, 0, 0, _ERRNO)]
    _install(libc, [*program, (_RETURN, 0, 0, _ALLOW)])


def _require_architecture() -> None:
    if platform.machine() not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {platform.machine()}")


def _install(libc: ctypes.CDLL, instructions: list[_Instruction]) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel has no filter of system calls")


def _instructions(process: int) -> list[_Instruction]:
    _, column = _ARCHITECTURES[platform.machine()]
    denied = [numbers[column] for numbers in _DENIED.values()]
    reject = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    unknown = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    allow = (_RETURN, 0, 0, _ALLOW)
    program = [*_prologue(), *_rejections(denied)]
    for numbers in _UNKNOWN:
        program += [(_JUMP_EQUAL, 0, 1, numbers[column]), unknown]
    program += _if_call(_CLONE[column], [_load_argument(0), (_JUMP_SET, 1, 0, _CLONE_THREAD), reject, allow])
    for numbers in (_KILL, _TGKILL):
        program += _if_call(numbers[column], [_load_argument(0), (_JUMP_EQUAL, 1, 0, process), reject, allow])
    unless_null = [_load_argument(2), (_JUMP_EQUAL, 1, 0, 0), reject]
    unless_null += [_load_argument(2, high=True), (_JUMP_EQUAL, 1, 0, 0), reject, allow]
    program += _if_call(_PRLIMIT64[column], unless_null)
    for numbers, commands in ((_FCNTL, _DENIED_FCNTLS), (_IOCTL, _OWNER_IOCTLS)):
        checks = [part for command in commands for part in ((_JUMP_EQUAL, 0, 1, command), reject)]
        program += _if_call(numbers[column], [_load_argument(1), *checks, allow])
    return [*program, allow]


def _prologue() -> list[_Instruction]:
    """End the process on calls of another architecture; then load the number of the call."""
    architecture, _ = _ARCHITECTURES[platform.machine()]
    return [
        _load(_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        _load(_NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32_CALLS),
        (_RETURN, 0, 0, _KILL_PROCESS),
    ]


def _rejections(denied: Sequence[int | None]) -> list[_Instruction]:
    program: list[_Instruction] = []
    for number in denied:
        if number is not None:
            program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return program


def _load(offset: int) -> _Instruction:
    return (_LOAD, 0, 0, offset)


def _load_argument(index: int, *, high: bool = False) -> _Instruction:
    """Load the lower (or higher) 32 bits of an argument; both architectures are little-endian."""
    return _load(_ARGUMENTS + 8 * index + 4 * high)


def _if_call(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """Run the body, which returns on all paths, for one system call; else continue after it."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]

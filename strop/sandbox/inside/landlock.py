"""Restriction of this process to a list of files and folders by Landlock (Linux 5.13 or newer)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights to files, by the first version of the interface that knows them."""
_TCP_BIND_AND_CONNECT = 3
_SCOPE_SOCKETS_AND_SIGNALS = 3


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


def restrict_files(
    libc: ctypes.CDLL, readable: Sequence[str], writable: Sequence[str], executable: Sequence[str] = ()
) -> None:
    """Allow access only to the given paths and all below them. Raises OSError where the kernel has no
    Landlock. The process must have `no_new_privs`."""
    version = _checked(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG))
    rights = _ALL_BY_VERSION[max(known for known in _ALL_BY_VERSION if known <= version)]
    attributes = _Ruleset(rights, _TCP_BIND_AND_CONNECT, _SCOPE_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _checked(libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0))
    for path in readable:
        _allow(libc, ruleset, path, _READ_FILE | _READ_DIR)
    for path in executable:
        _allow(libc, ruleset, path, _READ_FILE | _EXECUTE)
    for path in writable:
        _allow(libc, ruleset, path, rights & ~_EXECUTE)
    _checked(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):  # noqa: PTH112  (pathlib would double the start-up time)
        rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE | _EXECUTE
    rule = _PathBeneath(rights, descriptor)
    _checked(libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0))
    os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock is not available")
    return result

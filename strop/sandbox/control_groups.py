"""Control groups of the Linux kernel (version 1 or 2), which limit all processes of a program together."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

log = logging.getLogger("strop.sandbox")
Resource = Literal["threads", "memory"]

_NAME = re.compile(r"strop-(\d+)-(\d+)-\d+")
"""Name of a group: the namespace and the number of its process, and a count."""
_numbers = itertools.count()
JOIN_FAILED = 125
"""Exit code of a command that cannot enter its group; the command itself has not run."""
_JOIN = f'while [ "$1" != -- ]; do echo 0 > "$1" || exit {JOIN_FAILED}; shift; done; shift; exec "$@"'
"""Shell program that enters groups, of which it gets the files, and becomes the command after `--`."""
_EMPTY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Controller:
    """A folder in which this process may make groups, and the files that limit a resource there."""

    parent: Path
    limits: Mapping[Resource, Sequence[str]]


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One group, in each of the hierarchies that limit something."""

    folders: tuple[Path, ...]

    def joined(self, command: Sequence[str]) -> list[str]:
        """The command, which enters the group before anything else."""
        files = [str(folder / "cgroup.procs") for folder in self.folders]
        return ["/bin/sh", "-c", _JOIN, "sh", *files, "--", *command]

    def kill(self) -> None:
        """Kill all processes in the group. Raises TimeoutError if some remain."""
        deadline = time.monotonic() + _EMPTY_SECONDS
        for folder in self.folders:
            while numbers := (folder / "cgroup.procs").read_text().split():
                for number in numbers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(number), signal.SIGKILL)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"processes remain in {folder}")
                time.sleep(0.001)


class ControlGroups:
    """A reused set of groups with the same limits. Any thread may call."""

    def __init__(self, limits: Mapping[Resource, int]) -> None:
        self._limits = limits
        self._controllers = [each for each in _own_controllers() if _accepts(each, limits)]
        self._free: list[ControlGroup] = []
        self._process = os.getpid()
        self._lock = threading.Lock()
        self.limited: frozenset[Resource] = frozenset(
            resource for each in self._controllers for resource in each.limits
        )
        """Resources that the groups limit; empty where this process may make none."""
        for controller in self._controllers:
            _remove_stale(controller.parent)
        atexit.register(self.close)

    def take(self) -> ControlGroup | None:
        """A group without processes; None where this process may make none. Raises OSError."""
        if not self._controllers:
            return None
        with self._lock:
            if self._process != os.getpid():  # a fork; the groups are those of the process before it
                self._free, self._process = [], os.getpid()
            if self._free:
                return self._free.pop()
        name = _new_name()
        return ControlGroup(tuple(_make(each, name, self._limits) for each in self._controllers))

    def give_back(self, group: ControlGroup) -> None:
        """Kill what is left in a group, for its next use; a group whose processes do not end has none."""
        try:
            group.kill()
        except (TimeoutError, FileNotFoundError) as error:
            log.warning("A control group of the sandbox is not used again: %s", error)
            return
        with self._lock:
            self._free.append(group)

    def close(self) -> None:
        """Remove the groups that are not in use."""
        with self._lock:
            groups, self._free = self._free if self._process == os.getpid() else [], []
        for group in groups:
            for folder in group.folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _own_controllers() -> list[_Controller]:
    try:
        return _controllers(Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text())
    except OSError:
        return []


def _controllers(mount_table: str, groups: str) -> list[_Controller]:
    """The hierarchies that a process is in, by the texts of `/proc/self/mounts` and `/proc/self/cgroup`."""
    own = [line.split(":", 2) for line in groups.splitlines()]
    found = []
    for _, mount, kind, options, *_ in map(str.split, mount_table.splitlines()):
        names = set(options.split(",")) & {"pids", "memory"}
        if kind == "cgroup2":
            path = next((path for _, controllers, path in own if not controllers), "/")
            # a group with processes has no groups with limits, so the new ones are next to this process's own
            parent = Path(mount, path.strip("/")).parent if path.strip("/") else Path(mount)
            found.append(_Controller(parent, {"threads": ("pids.max",), "memory": ("memory.max",)}))
        elif kind == "cgroup" and names:
            path = next((path for _, controllers, path in own if names & set(controllers.split(","))), "/")
            files: dict[Resource, Sequence[str]] = {}
            if "pids" in names:
                files["threads"] = ("pids.max",)
            if "memory" in names:
                files["memory"] = ("memory.limit_in_bytes",)
            found.append(_Controller(Path(mount, path.strip("/")), files))
    return found


def _accepts(controller: _Controller, limits: Mapping[Resource, int]) -> bool:
    """Whether this process can make a group with limits there."""
    name = _new_name()
    try:
        _make(controller, name, limits)
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            (controller.parent / name).rmdir()


def _make(controller: _Controller, name: str, limits: Mapping[Resource, int]) -> Path:
    folder = controller.parent / name
    folder.mkdir(exist_ok=True)
    for resource, files in controller.limits.items():
        for file in files:
            (folder / file).write_text(str(limits[resource]))
    if not os.access(folder / "cgroup.procs", os.W_OK):
        raise PermissionError(folder)
    return folder


def _new_name() -> str:
    """A name that no other group of this process has: two sandboxes have limits of their own."""
    return f"strop-{_namespace()}-{os.getpid()}-{next(_numbers)}"


def _namespace() -> int:
    """Number of the namespace in which this process has its number; another one may share the groups."""
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116


def _remove_stale(parent: Path) -> None:
    """Remove the empty groups of processes that have ended without doing so."""
    for folder in parent.glob("strop-*"):
        match = _NAME.fullmatch(folder.name)
        if match and int(match[1]) == _namespace() and not Path("/proc", match[2]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()

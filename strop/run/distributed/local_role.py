"""Roles as processes of this machine, as the launcher sees them."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

import cloudpickle

from strop.run.distributed.role import RoleEntry, RoleExit, RoleSpec, print_line
from strop.workers.child_process import ErrorReport, describe_exit, start_module

_OUTPUT_GRACE_SECONDS = 5.0
"""Longest wait for the rest of an ended process's output, which one of its own children may keep open."""


class LocalRoleProcess:
    """A `RoleProcess` of this machine. Its output is printed line by line, by a thread."""

    def __init__(self, spec: RoleSpec, entry: RoleEntry, inherited: Sequence[int] = ()) -> None:
        """Start the entry's module, which reads the spec from stdin and inherits the file descriptors `inherited`."""
        self._name = spec.name
        self._report = ErrorReport()
        descriptor = self._report.fileno()
        self._process = start_module(
            entry.module,
            str(descriptor),
            spec.name,
            imports=entry.imports,
            has_children=spec.name != "buffer",
            pass_fds=[descriptor, *inherited],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which `poll` reports
            self._process.stdin.write(cloudpickle.dumps(spec))
            self._process.stdin.flush()  # stdin stays open: its end tells the process that the launcher ended
        self._output_thread = threading.Thread(
            target=_forward_output, args=(self._name, self._process.stdout), daemon=True
        )
        self._output_thread.start()

    def poll(self) -> RoleExit | None:
        """See `RoleProcess`."""
        return None if self._process.poll() is None else self.wait()

    def request_stop(self) -> None:
        """See `RoleProcess`."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> RoleExit:
        """See `RoleProcess`."""
        code = self._process.wait()
        self._output_thread.join(_OUTPUT_GRACE_SECONDS)
        if code == 0:
            return RoleExit()
        error = self._report.read()
        if code > 0:
            text = f"The {self._name} ended {describe_exit(code)}; its output is printed above."
            return RoleExit(error or text, code)
        return RoleExit(f"The {self._name} ended {describe_exit(code)}.", 128 - code, was_killed=True)


def _forward_output(name: str, output: IO[bytes]) -> None:
    for line in output:
        print_line(name, line.decode(errors="replace").rstrip("\n"))

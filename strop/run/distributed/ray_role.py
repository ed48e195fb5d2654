"""Roles as actors of a Ray cluster: the code of the actor's process, and the actor as the launcher sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from signal import SIGTERM
from threading import Lock, Thread

from strop.errors import PlacementError, StropError, WorkerDiedError
from strop.run.distributed.role import RoleExit, RoleSpec, print_line
from strop.runs.lock import lock_actor
from strop.workers.network import node_address
from strop.workers.signals import StopSignal
from strop.workers.start import RayPlacement, start_worker
from strop.workers.worker import Channel, WorkerTarget

CLUSTER_MARKER = ".cluster"
"""The file of the run's folder by which an actor recognizes the folder."""


@dataclass(frozen=True, slots=True)
class RayRoleSpec:
    """The input of a role's Ray actor."""

    spec: RoleSpec
    folder: Path
    """The run's folder, absolute."""
    marker: str
    """The content of the marker file."""

    def check_folder(self) -> None:
        """Raise PlacementError if this node sees another folder under the path than the launcher does."""
        marker = self.folder / CLUSTER_MARKER
        if not marker.is_file() or marker.read_text() != self.marker:
            raise PlacementError(
                f"The node {node_address()}, where the {self.spec.name} was placed, does not see the run's "
                f"folder {self.folder}. All nodes of a cluster must reach it at one path: set `output` to "
                "a folder on a disk that they share."
            )


@dataclass(frozen=True, slots=True)
class OutputLines:
    """Complete lines of the role's console output."""

    lines: list[str]


class StopRequest:
    """Asks the role to save its state and end."""


def serve_role(channel: Channel, run_role: Callable[[RoleSpec], None]) -> None:
    """Receive a `RayRoleSpec` and run its role until it ends or a `StopRequest` arrives.

    Sends `OutputLines` during the run and a `RoleExit` at its end.
    """
    spec: RayRoleSpec = channel.receive()
    Thread(target=_watch_for_stop, args=(channel,), daemon=True).start()
    channel.send(_run_spec(spec, run_role, lambda lines: channel.send(OutputLines(lines))))


def _watch_for_stop(channel: Channel) -> None:
    """Messages, because Ray handles the actor's signals itself."""
    while True:
        if isinstance(channel.receive(), StopRequest):
            StopSignal.request(SIGTERM)


def _run_spec(
    spec: RayRoleSpec, run_role: Callable[[RoleSpec], None], show: Callable[[list[str]], None]
) -> RoleExit:
    try:
        spec.check_folder()
        lines = _LineWriter(show)
        with lock_actor(spec.folder), redirect_stdout(lines), redirect_stderr(lines):
            run_role(spec.spec)
    except StropError as error:
        return RoleExit(str(error), error.exit_code)
    return RoleExit()


class _LineWriter(TextIOBase):
    """Writes into the actor's log, and passes complete lines to `show`."""

    def __init__(self, show: Callable[[list[str]], None]) -> None:
        self._log = sys.stdout
        self._show = show
        self._text = ""
        self._lock = Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._log.write(text)
            self._log.flush()
            lines, end, self._text = (self._text + text).rpartition("\n")
            if end:
                self._show(lines.split("\n"))
        return len(text)


_POLL_SECONDS = 0.5


class RayRoleProcess:
    """A `RoleProcess` that is an actor. Its output is printed when it is polled."""

    def __init__(self, spec: RayRoleSpec, serve: WorkerTarget, name: str, placement: RayPlacement) -> None:
        """Start the actor under this name.

        Raises ConfigError if another actor keeps the name, PlacementError if no node has enough resources.
        """
        self._role = spec.spec.name
        self._exit: RoleExit | None = None
        self._worker = start_worker(name, serve, placement)
        with suppress(WorkerDiedError):  # which `poll` reports
            self._worker.send(spec)

    def poll(self) -> RoleExit | None:
        """See `RoleProcess`."""
        while self._exit is None and self._worker.poll(0):
            self._receive()
        return self._exit

    def request_stop(self) -> None:
        """See `RoleProcess`."""
        if self._exit is None:
            with suppress(WorkerDiedError):  # which `wait` reports
                self._worker.send(StopRequest())

    def wait(self) -> RoleExit:
        """See `RoleProcess`."""
        while self._exit is None:
            if self._worker.poll(_POLL_SECONDS):
                self._receive()
        return self._exit

    def _receive(self) -> None:
        try:
            message: OutputLines | RoleExit = self._worker.receive()
        except WorkerDiedError as death:
            error = f"The {self._role}'s actor ended {death.exit_reason}."
            message = RoleExit(error, 1, was_killed=death.killed)
        if isinstance(message, RoleExit):
            self._exit = message
            self._worker.kill()  # Ray keeps the name of a dead actor until it is killed
            return
        for line in message.lines:
            print_line(self._role, line)

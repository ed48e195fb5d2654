"""Roles as actors of a Ray cluster, as the launcher sees them."""

from __future__ import annotations

from contextlib import suppress

from strop.errors import WorkerDiedError
from strop.run.distributed.ray_actor import OutputLines, RayRoleSpec, StopRequest
from strop.run.distributed.role import RoleExit, print_line
from strop.workers.start import RayPlacement, start_worker
from strop.workers.worker import WorkerTarget

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

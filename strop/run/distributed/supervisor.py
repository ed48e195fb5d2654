"""Supervision of a role: its process is restarted when it was killed, up to a limit."""

from __future__ import annotations

from collections.abc import Callable

from strop.errors import StropError
from strop.run.distributed.role import RoleExit, RoleName, RoleProcess, print_line
from strop.workers.restarts import RestartBudget


class RoleSupervisor:
    """Starts the process of a role, watches it, and starts another one when it was killed."""

    def __init__(self, name: RoleName, start: Callable[[], RoleProcess], max_restarts: int) -> None:
        self.name = name
        self._start = start
        self._budget = RestartBudget(max_restarts)
        self._exit: RoleExit | None = None
        """The result of the last process; None while it runs."""
        self._process = start()

    @property
    def is_done(self) -> bool:
        """Whether the role has finished its work."""
        return self._exit is not None and self._exit.error is None

    def check(self) -> None:
        """Restart the process if it was killed. Raises the error that ended it, if a restart cannot help."""
        while self._exit is None:
            ended = self._process.poll()
            if ended is None:
                return
            if ended.error is None or not ended.is_restartable or not self._budget.spend():
                self._exit = ended
                break
            print_line("run", f"{ended.error} It is restarted from its last saved state ({self._budget}).")
            self._process = self._start()
        if self._exit.error is not None:
            raise self._error(self._exit)

    def request_stop(self) -> None:
        """Ask the process to save its state and end; it is not restarted afterwards."""
        if self._exit is None:
            self._process.request_stop()

    def wait(self) -> None:
        """Wait until the process has ended and its output is printed."""
        if self._exit is None:
            self._exit = self._process.wait()

    def _error(self, ended: RoleExit) -> StropError:
        text = str(ended.error)
        if ended.is_restartable:
            restarts = self._budget.restarts
            text += f" It had been restarted {restarts} times, which is synchronizer.max_restarts."
        error = StropError(text)
        error.exit_code = ended.exit_code
        return error

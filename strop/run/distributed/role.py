"""Roles of a distributed run: what a role's process is started with, how it ends, and its protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from strop.config.load.loader import LoadedRun
from strop.errors import RankLostError
from strop.python_rewards import PythonRewards
from strop.workers.worker import WorkerTarget

RoleName = Literal["buffer", "explorer", "trainer"]


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """The input of a role's process."""

    name: RoleName
    loaded: LoadedRun
    reward: PythonRewards | None
    """The reward function that was passed to `strop.train`; None if the run file names it."""
    argv: list[str]
    """The command line of the launcher."""


@dataclass(frozen=True, slots=True)
class RoleEntry:
    """The code that runs a role in its own process."""

    module: str
    """Main module of a local process: reads a `RoleSpec` from stdin."""
    imports: Sequence[str]
    """Modules of the roles, which are imported once for all local processes."""
    serve: WorkerTarget
    """Target of a Ray actor: receives a `RayRoleSpec`."""


@dataclass(frozen=True, slots=True)
class RoleExit:
    """The result of a role's process: success, or the error that ended it."""

    error: str | None = None
    """One paragraph that says what ended it; None after success."""
    exit_code: int = 0
    was_killed: bool = False
    """Whether it was killed from outside, so that a restart can succeed."""

    @property
    def is_restartable(self) -> bool:
        """Whether a restart from the last saved state can succeed."""
        return self.was_killed or self.exit_code == RankLostError.exit_code


class RoleProcess(Protocol):
    """One running process of a role, as the launcher sees it."""

    def poll(self) -> RoleExit | None:
        """The result of the process; None while it runs."""
        ...

    def request_stop(self) -> None:
        """Ask the process to save its state and end."""
        ...

    def wait(self) -> RoleExit:
        """Wait until the process has ended and its output is printed."""
        ...


def print_line(role: str, line: str) -> None:
    """Print one line on the console, after the role's name."""
    print(f"{role:8} | {line}", flush=True)

"""Interface of sandboxes: programs, their results, and isolation levels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol


class IsolationLevel(IntEnum):
    """Isolation of a sandboxed program; each level includes those before it."""

    LIMITED = 1
    """Process with resource limits, a new folder, and no variables of this process's environment."""
    FILTERED = 2
    """No network, no further processes, no signals to other processes (seccomp)."""
    CONFINED = 3
    """No files except Python's own and the new folder (Landlock)."""
    NAMESPACED = 4
    """Namespaces of its own: it sees no other processes, users, mounts or network interfaces (bubblewrap)."""
    REMOTE = 5
    """On a server; the isolation there is the server's."""

    @property
    def label(self) -> str:
        """Name in run files and messages."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """Python code that tests a program from a process of its own."""

    source: str
    shared: str = ""
    """Code that runs before, such as the functions of a prompt, and whose names are not the program's."""
    names: tuple[str, ...] = ()
    """Names of the program that the tests use."""
    classes: tuple[str, ...] = ()
    """Classes of the tests whose objects are copied from one process to the other."""


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program and its standard input, or the tests that call its functions."""

    source: str
    stdin: str = ""
    tests: ProgramTests | None = None
    """Tests that run after the program, with an empty standard input. They never share its process."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """End of a program, or of its tests, and the output until then."""

    stdout: str
    stderr: str
    exit_code: int | None
    """None if the program was killed at a limit."""
    completed: bool
    """Whether the program (with tests: the tests) ran to the last line, without an exception and without ending
    itself."""
    stopped: Literal["", "time limit", "output limit"] = ""
    """Limit at which the program was killed."""


class Sandbox(Protocol):
    """Runs programs; any thread may call."""

    name: str
    level: IsolationLevel
    unlimited: tuple[str, ...]
    """Resources that this machine cannot limit at this level."""

    def run(self, program: Program, timeout_seconds: float) -> ProgramResult:
        """Run a program to its end or to the time limit. Raises SandboxError if the sandbox itself fails."""

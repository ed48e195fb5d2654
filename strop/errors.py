"""The tree of Strop's exceptions. Each message is one paragraph: what is wrong, where, and what to write
instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import ClassVar, Literal

from strop.printable import printable, shorten

_MAX_SHOWN = 25
"""Maximum number of faults of one kind that a message lists."""


class ExitCode(IntEnum):
    """Exit codes of the command line; the table is in docs/troubleshooting.md."""

    FINISHED = 0
    """The command did what it was asked to."""
    FAILED = 1
    """A run or a command failed: what it read, wrote or computed; with a traceback, a fault of Strop's."""
    REFUSED = 2
    """The command line or the configuration is to be changed; nothing was trained."""
    LOST = 75
    """A process, a machine or a connection was lost; the same command continues (EX_TEMPFAIL of sysexits.h)."""
    SIGNALED = 128
    """Plus the number of the signal that stopped the command: 130 for Ctrl-C, 143 for SIGTERM."""


class StropError(Exception):
    """Base class of the errors that Strop raises on purpose. The command line prints them without a
    traceback."""

    exit_code: int = ExitCode.FAILED

    def __str__(self) -> str:
        """The message without control characters, shortened to `MAX_MESSAGE` characters."""
        return shorten(printable(super().__str__()))


TroubleshootingSection = Literal[
    "the-reward-stays-flat",
    "the-reward-rises-then-collapses",
    "out-of-memory",
    "a-run-hangs-or-waits",
    "a-run-does-not-resume",
    "it-is-slow",
]
"""Sections of docs/troubleshooting.md that messages name."""


def see_troubleshooting(section: TroubleshootingSection) -> str:
    """The last sentence of a message about a symptom that docs/troubleshooting.md describes."""
    return f"See `strop help troubleshooting#{section}`."


def out_of_memory(error: BaseException) -> str | None:
    """The message for memory that could not be allocated, on a GPU or on the CPU; None for any other error."""
    text = str(error).partition("\n")[0]
    is_memory = isinstance(error, MemoryError) or type(error).__name__ in (
        "OutOfMemoryError",
        "ArrayMemoryError",
    )
    if not is_memory and not (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text):
        return None
    return (
        f"Out of memory: {shorten(printable(text)) or type(error).__name__}. A smaller trainer.microbatch or "
        "model.gradient_checkpointing=true needs less; `strop plan RUN.yaml` lists the memory by purpose, and the "
        f"cheapest changes. The same command continues the run. {see_troubleshooting('out-of-memory')}"
    )


def message_with_notes(error: BaseException) -> str:
    """The message of an error, and those of the errors that followed it."""
    return " ".join([str(error), *getattr(error, "__notes__", ())])


class FaultKind(Enum):
    """Kind of a fault in a configuration, with its heading in a list of faults."""

    UNKNOWN_KEY = "Unknown keys"
    WRONG_TYPE = "Values of a wrong type"
    UNSUPPORTED = "Values that are not accepted"
    PLACEMENT = "Placement"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in a configuration: what is wrong, where, and what to write instead."""

    kind: FaultKind
    message: str


class ConfigError(StropError):
    """A run file, an override or a configuration of another framework is invalid."""

    exit_code = ExitCode.REFUSED
    kind: ClassVar = FaultKind.UNSUPPORTED
    """Kind of a fault that is given as a text."""

    def __init__(self, *faults: str | Fault) -> None:
        """`faults` are all faults of the configuration; the message groups them by kind."""
        self.faults = tuple(
            fault if isinstance(fault, Fault) else Fault(self.kind, fault) for fault in dict.fromkeys(faults)
        )
        super().__init__("\n".join(_report(self.faults)))
        self.notices: tuple[str, ...] = ()
        """Notices about the configuration's other values, which a command prints before the faults."""

    def __str__(self) -> str:
        """The message without control characters; every fault is shortened on its own."""
        return printable("\n".join(map(str, self.args)))

    def reworded(self, reword: Callable[[str], str]) -> ConfigError:
        """The same error with other messages."""
        error = config_error([replace(fault, message=reword(fault.message)) for fault in self.faults])
        error.notices = tuple(map(reword, self.notices))
        return error


class PlacementError(ConfigError):
    """The configuration asks for hardware or engines that this machine does not have."""

    kind: ClassVar = FaultKind.PLACEMENT


def config_error(faults: Sequence[Fault], notices: Iterable[str] = ()) -> ConfigError:
    """The error for the faults of a configuration: a PlacementError if all of them concern placement."""
    only_placement = all(fault.kind is FaultKind.PLACEMENT for fault in faults)
    error = (PlacementError if only_placement else ConfigError)(*faults)
    error.notices = tuple(dict.fromkeys(notices))
    return error


def _report(faults: Sequence[Fault]) -> Iterator[str]:
    """The lines of a message: the faults, under headings if they are of several kinds."""
    kinds = [kind for kind in FaultKind if any(fault.kind is kind for fault in faults)]
    if len(kinds) > 1:
        yield f"{len(faults)} faults in this configuration."
    for kind in kinds:
        messages = [shorten(fault.message) for fault in faults if fault.kind is kind]
        if len(kinds) > 1:
            yield f"{kind.value}:"
        indent = "  " if len(kinds) > 1 else ""
        yield from (f"{indent}{message}" for message in messages[:_MAX_SHOWN])
        if len(messages) > _MAX_SHOWN:
            yield f"{indent}and {len(messages) - _MAX_SHOWN} more."


class MissingExtraError(ConfigError):
    """The optional packages of a feature are not installed; the message names the install command."""


class DataError(StropError):
    """A dataset cannot be read, or one of its rows cannot be used."""


class ModelError(StropError):
    """A model folder or a tokenizer cannot be used."""


class RewardError(StropError):
    """A reward function cannot be found, or has an unsupported signature."""


class SandboxError(StropError):
    """A sandbox cannot isolate programs as required, or cannot run them."""


class RolloutError(StropError):
    """Too large a fraction of one step's rollouts failed."""


class InferenceError(StropError):
    """An inference engine cannot serve a request."""


class WeightTransferError(StropError):
    """A version of the weights did not arrive at an engine, and is to be requested again."""


class EngineLostError(StropError):
    """An inference engine has ended and is not restarted; no request caused it, and nothing can be sampled."""


class TrainingError(StropError):
    """An update failed, for example with a loss that is NaN or infinite."""


class RankLostError(TrainingError):
    """One of the trainer's ranks was killed. The run can be resumed from the last checkpoint."""

    exit_code = ExitCode.LOST


class WorkerDiedError(StropError):
    """A worker process has ended although its work was not done."""

    def __init__(self, name: str, exit_reason: str, *, killed: bool) -> None:
        """`exit_reason` continues "it ended", such as `by signal 9 (Killed)`. `killed` says that the
        process was killed from outside, so that a restart can succeed."""
        super().__init__(f"{name} ended {exit_reason}")
        self.name = name
        self.exit_reason = exit_reason
        self.killed = killed


class NodeLostError(WorkerDiedError):
    """A worker's node does not respond any more, or its network does not."""

    def __init__(self, name: str, node: str, fault: str) -> None:
        """`fault` continues the sentence after the node's name, such as `which does not respond`."""
        super().__init__(name, f"with its node {node}, {fault}", killed=True)
        self.node = node
        self.fault = fault


class StoreError(StropError):
    """An experience buffer cannot be opened, read or written, or has unreadable content."""


class BufferExhausted(StropError):
    """An experience buffer is empty, and no writer is left."""


class WritersLostError(BufferExhausted):
    """An experience buffer is empty, and its writers were lost before they had finished."""


class CheckpointError(StropError):
    """A checkpoint cannot be written, verified or resumed from."""


class RunFolderError(StropError):
    """A run's folder, or the folder that explorer and trainer share, belongs to another configuration or
    cannot be written."""


class MonitorError(StropError):
    """A tracking service could not start: no account, no connection, or a value that it rejects."""


class CallbackError(StropError):
    """An exception in a callback that was passed to `strop.train`."""


class Interrupted(StropError):
    """The run has saved its state and stops, because of a signal or a request. This is not a failure."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode.SIGNALED + signal_number

    def _render_traceback_(self) -> list[str]:
        """IPython calls this by its name, to print an exception that ends a cell: one line here, no traceback."""
        return [str(self)]

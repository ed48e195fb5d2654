"""State of one execution of a script: what its objects recorded, and what `train()` of its trainer does."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.compat.ledger.key_mapping import KeyOwnerHint, no_key_owner
from strop.config.load.config_tree import Source
from strop.errors import ConfigError

if TYPE_CHECKING:
    from strop.config.load.loader import Job
    from strop.run.entry.start import RunResult


PACKAGES = ("trl", "unsloth")
"""Packages that stand-ins replace; a script that imports one is TRL's."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_STROP = str(Path(__file__).parents[3])
_PARSER_FRAMES = 4
"""Number of frames between a parser and the field that it sets."""
_session: ScriptSession | None = None


class ScriptStopped(BaseException):
    """Ends a script at its first `train()`, if it is run to be read. Not an Exception, so that a script does not
    catch it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job


class RefusedName(ConfigError, ImportError):
    """A name of TRL or unsloth that has no stand-in; a script that tries several names may catch it."""


class RefusedArgument(ConfigError, TypeError):
    """An argument that TRL does not have; a script that supports several versions of TRL may catch it."""


@dataclass(slots=True)
class ScriptSession:
    """One execution of a script."""

    script: Path
    here: bool
    key_owner: KeyOwnerHint = no_key_owner
    changes: Sequence[str] = ()
    """Overrides of run-file keys."""
    start: Callable[[Job], RunResult] | None = None
    """Trains a job; None if the script is read and ends at `train()`."""
    evaluate: Callable[[Job, Path | None], dict[str, float]] | None = None
    """Evaluates a job's tasksets with a checkpoint, or with the initial model; None if the script is read."""
    notes: list[str] = field(default_factory=list)
    """Notices about arguments without effect, for the next run."""
    origins: dict[int, Any] = field(default_factory=dict)
    """Sources of datasets, by `id`; each entry also keeps its dataset, so that the number stays unique."""
    trained: int = 0
    """Number of calls of `train()`."""
    is_recording: bool = True
    """Whether `from_pretrained` and `load_dataset` record, which they do not in Strop's own calls."""
    failure: Exception | None = None
    """Exception of a run, in which the script has no part."""

    def note(self, what: str) -> None:
        """Add a notice with the place in the script, once."""
        text = f"{self.place()}: {what}"
        if text not in self.notes:
            self.notes.append(text)

    def error(self, what: str) -> ConfigError:
        """The error for a call of the script, with its place."""
        return ConfigError(f"{self.place()}: {what}")

    def place(self) -> str:
        """File and line of the script, or of another file of the user, that is being executed."""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith((_STROP, *_LIBRARIES, "<")) and "-packages" not in file:
                return f"{self.script if self.is_script(file) else file}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return str(self.script)

    def is_script(self, file: str) -> bool:
        """Whether a file is the script; cells of a notebook are files of their own."""
        return Path(file).absolute() == self.script.absolute()

    def option_source(self, name: str) -> Source | None:
        """The option `--name` of the command line as a source; None unless a parser of transformers sets the value."""
        frame = sys._getframe(1)
        for _ in range(_PARSER_FRAMES):
            if frame is None or frame.f_code.co_filename.endswith("hf_argparser.py"):
                break
            frame = frame.f_back  # type: ignore[assignment]
        else:
            return None
        words = [word.partition("=")[0].replace("-", "_") for word in sys.argv[1:]]
        return Source("override", f"--{name}") if frame is not None and f"__{name}" in words else None

    def source(self) -> Source:
        """The place as the source of a value."""
        return Source("file", self.place())


def current_session() -> ScriptSession:
    """The execution that is in progress. Raises ConfigError outside of one, where a script has kept a stand-in."""
    if _session is None:
        raise ConfigError("Stand-ins of TRL's classes work only while `strop` runs a script.")
    return _session


@contextmanager
def opened(session: ScriptSession) -> Iterator[None]:
    """Make a session the current one. Raises ConfigError if a script is being executed."""
    global _session
    if _session is not None:
        raise ConfigError(f"{session.script}: a script is run by another script ({_session.script}).")
    _session = session
    try:
        yield
    finally:
        _session = None

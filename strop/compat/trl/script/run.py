"""Execution of a Python script or notebook with stand-ins for the classes of TRL and unsloth, up to `train()` or to its
end."""

from __future__ import annotations

import linecache
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from strop.compat.ledger.table import KeyOwnerHint, no_key_owner
from strop.compat.trl.script.detection import NOTEBOOK, is_trl_script
from strop.compat.trl.script.notebook import read_code_cells
from strop.compat.trl.script.session import ScriptSession, ScriptStopped, opened
from strop.config.load.job import Job
from strop.errors import ConfigError, StropError, out_of_memory
from strop.workers.memory_limit import MemoryLimit

T = TypeVar("T")


def read_trl_script(
    path: Path,
    arguments: Sequence[str] = (),
    *,
    here: bool = False,
    changes: Sequence[str] = (),
    key_owner: KeyOwnerHint = no_key_owner,
) -> Job:
    """Run a script up to its first `train()`; returns the run that would start there.

    `changes` are overrides of run-file keys. Raises ConfigError where the script fails, ends without `train()`, or asks
    for what Strop does not have.
    """
    session = ScriptSession(path, here, key_owner, changes)
    try:
        _execute(session, arguments, MemoryLimit())
    except ScriptStopped as stopped:
        loaded = stopped.job.loaded
        note = f"{path}: the script was run up to its first train(); what follows was not looked at."
        return replace(stopped.job, loaded=replace(loaded, notes=(*loaded.notes, note)))
    raise ConfigError(
        f"{path}: the script ended without a call of train() of a trainer; nothing would be trained."
    )


def run_trl_script(
    path: Path,
    arguments: Sequence[str],
    *,
    here: bool,
    changes: Sequence[str],
    key_owner: KeyOwnerHint,
    start: Callable[[Job], Any],
    evaluate: Callable[[Job, Path | None], dict[str, float]],
) -> None:
    """Run a script to its end; `start` trains at each `train()`, and `evaluate` evaluates at each `evaluate()`.

    Raises ConfigError like `read_trl_script`, and what `start` and `evaluate` raise.
    """
    memory = MemoryLimit()

    def unlimited(work: Callable[..., T]) -> Callable[..., T]:
        def call(*arguments: Any) -> T:
            with memory.lifted():
                return work(*arguments)

        return call

    session = ScriptSession(path, here, key_owner, changes, unlimited(start), unlimited(evaluate))
    _execute(session, arguments, memory)
    if not session.trained:
        raise ConfigError(
            f"{path}: the script ended without a call of train() of a trainer; nothing was trained."
        )
    for note in session.notes:
        print(f"note: {note}", flush=True)


def _execute(session: ScriptSession, arguments: Sequence[str], memory: MemoryLimit) -> None:
    path = session.script
    if not is_trl_script(path):
        raise ConfigError(
            f"{path}: the script imports neither trl nor unsloth. Strop runs scripts that train with them; run another "
            "program with python."
        )
    # Here, because the modules import the trainers, and those read all ledgers.
    from strop.compat.trl.script.modules import installed

    with opened(session), _as_program(path, arguments), installed():
        try:
            with memory:
                if path.suffix == NOTEBOOK:
                    _run_cells(session)
                else:
                    runpy.run_path(str(path), run_name="__main__")
        except StropError:
            raise
        except SystemExit as error:
            if error.code not in (None, 0):
                raise ConfigError(f"{path}: the script ended with exit code {error.code}.") from error
        except KeyboardInterrupt:
            raise
        except Exception as error:
            if error is session.failure:
                raise
            message = _failure(session, error)
            if out_of_memory(error) is not None:
                traceback.clear_frames(error.__traceback__)  # their variables fill the memory
                message += (
                    ". It has taken all memory of this machine that was free. Read fewer rows, or stream them, or run "
                    "it where there is more memory."
                )
            raise ConfigError(message) from error


def _run_cells(session: ScriptSession) -> None:
    """Execute the code cells of a notebook one after another, as one program."""
    path = session.script
    module = ModuleType("__main__")
    module.__dict__["display"] = print
    before, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        for cell in read_code_cells(path, session.notes.append):
            name = cell.file_name(path)
            # For tracebacks, and for the source of functions, by which a run knows them.
            linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
            exec(compile(cell.source, name, "exec"), module.__dict__)
    finally:
        sys.modules["__main__"] = before


def _failure(session: ScriptSession, error: Exception) -> str:
    """Type and message of a script's exception, with the line of the script and that of the exception."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if session.is_script(frame.filename) or frame.filename.startswith(f"{session.script}, cell ")
    ]
    place = str(session.script)
    if own:
        place = f"{place if session.is_script(own[-1].filename) else own[-1].filename}:{own[-1].lineno}"
    inner = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames and frames[-1] not in own else ""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{place}: the script raised {said}{inner}"


@contextmanager
def _as_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """`sys.argv` and `sys.path` of `python script.py ARGUMENTS`; afterwards modules of the user are forgotten, so that
    another script imports its own."""
    argv, before, folders = sys.argv, set(sys.modules), list(sys.path)
    folder = str(path.resolve().parent)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, folders
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith((f"{folder}/", f"{Path.cwd()}/")) and "site-packages" not in file:
                del sys.modules[name]

"""Execution of a Python script or notebook that trains with TRL or unsloth, with stand-ins for their classes, up to
`train()` or to its end."""

from __future__ import annotations

import ast
import linecache
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from strop.compat.ledger.key_mapping import KeyOwnerHint, no_key_owner
from strop.compat.trl.script.session import PACKAGES, ScriptSession, ScriptStopped, opened
from strop.config.load.loader import Job
from strop.config.load.yaml_file import read_bounded
from strop.errors import ConfigError, StropError, out_of_memory
from strop.workers.json_text import parse_json
from strop.workers.memory import MemoryLimit

T = TypeVar("T")

_NOTEBOOK = ".ipynb"
_SKIPPED_LINE = re.compile(
    r"[!%]\s*(uv\s+)?(pip3?|conda|mamba)\b|!\s*nvidia-smi\b|%(matplotlib|load_ext|reload_ext|autoreload|config|env$)|"
    r"%(time|timeit)\s*$"
)
"""Commands of lines that install packages or change the display."""
_SKIPPED_CELL = ("capture", "time", "timeit")
"""Magics of cells whose code is executed as it is."""
_MAGIC_LINE = re.compile(r"(?P<indent>\s*)(?P<command>[!%](?=[\w!%(]).*)")


def is_trl_script(path: Path) -> bool:
    """Whether a Python file or notebook imports TRL or unsloth. Raises ConfigError for one that is not Python."""
    if path.suffix == _NOTEBOOK:
        sources = {cell.file_name(path): cell.source for cell in read_code_cells(path)}
    else:
        sources = {str(path): read_bounded(path)}
    try:
        modules = [ast.parse(source, name) for name, source in sources.items()]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not a Python script: {error}.") from None
    nodes = (node for module in modules for node in ast.walk(module))
    return any(name.partition(".")[0] in PACKAGES for node in nodes for name in _imported(node))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []


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
                if path.suffix == _NOTEBOOK:
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


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell."""

    number: int
    """Number among all cells, from 1."""
    source: str
    """Python source, with as many lines as the cell has."""

    def file_name(self, notebook: Path) -> str:
        """Name of the cell in tracebacks and messages."""
        return f"{notebook}, cell {self.number}"


def read_code_cells(path: Path, note: Callable[[str], None] = lambda text: None) -> list[CodeCell]:
    """The code cells of a notebook; `note` gets a line for each command that is skipped.

    Raises ConfigError for a file that is no notebook of Python, and for a command of the shell or of IPython whose
    effect a program would lack.
    """
    try:
        notebook = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: this is not a Jupyter notebook: {error}.") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ConfigError(
            f"{path}: this is not a Jupyter notebook of nbformat 4: it has no list of cells. Open it in Jupyter and "
            "save it, or write the code as a Python script."
        )
    language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    if str(language).lower() != "python":
        raise ConfigError(f"{path}: the cells of this notebook are {language}; Strop runs Python.")
    return [
        CodeCell(number, _python(_text(cell), f"{path}, cell {number}", note))
        for number, cell in enumerate(cells, 1)
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
    ]


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _python(text: str, place: str, note: Callable[[str], None]) -> str:
    """The source with `pass` in place of each skipped command."""
    lines, inside = text.split("\n"), _lines_between_quotes(text)
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        name = lines[first][2:].split()[0] if lines[first][2:].split() else ""
        if name not in _SKIPPED_CELL:
            raise _refused(f"{place}:{first + 1}", lines[first], "the cell")
        lines[first] = ""
    continued = False
    for number, line in enumerate(lines):
        found = None if number in inside else _MAGIC_LINE.fullmatch(line)
        if continued and found is None:  # the rest of a command that ends with a backslash
            continued, lines[number] = line.rstrip().endswith("\\"), ""
            continue
        continued = False
        if found is None:
            continue
        command = found["command"]
        if _SKIPPED_LINE.match(command) is None:
            raise _refused(f"{place}:{number + 1}", command, "the line")
        note(
            f"{place}:{number + 1}: {command.strip():.60} is skipped; run it before, if the script needs it."
        )
        lines[number] = f"{found['indent']}pass"
        continued = command.rstrip().endswith("\\")
    return "\n".join(lines)


def _refused(place: str, command: str, what: str) -> ConfigError:
    return ConfigError(
        f"{place}: {command.strip():.60} is a command of IPython or the shell, which Strop does not execute; write "
        f"{what} in Python, or run the command before and remove it."
    )


def _lines_between_quotes(text: str) -> set[int]:
    """Numbers of the lines that begin between triple quotes."""
    found, opened = set(), ""
    for number, line in enumerate(text.split("\n")):
        if opened:
            found.add(number)
        for quotes in re.findall(r'"""|\'\'\'', line):
            opened = ("" if opened == quotes else opened) if opened else quotes
    return found

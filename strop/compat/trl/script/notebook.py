"""Code cells of Jupyter notebooks (nbformat 4) as Python source, without the lines that only IPython reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.errors import ConfigError

_SKIPPED_LINE = re.compile(
    r"[!%]\s*(uv\s+)?(pip3?|conda|mamba)\b|!\s*nvidia-smi\b|%(matplotlib|load_ext|reload_ext|autoreload|config|env$)|"
    r"%(time|timeit)\s*$"
)
"""Commands of lines that install packages or change the display."""
_SKIPPED_CELL = ("capture", "time", "timeit")
"""Magics of cells whose code is executed as it is."""
_MAGIC_LINE = re.compile(r"(?P<indent>\s*)(?P<command>[!%](?=[\w!%(]).*)")


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
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
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

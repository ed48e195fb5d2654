"""Paths and names of files: lookup of paths from a configuration, which may be too long or invalid for the file
system; names that become files or folders; formats of data files by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCRIPT_SUFFIXES = (".py", ".ipynb")
"""Endings of the names of programs, which are run where a configuration is read."""
GGUF_SUFFIX = ".gguf"
"""Ending of the names of GGUF files."""


def expand_user(path: str | Path) -> Path:
    """Replace `~` with the home folder; return the path unchanged if there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def existing_path(path: str | Path) -> Path | None:
    """Return the path if it exists; None if it does not, or if the system cannot have such a path."""
    found = expand_user(path)
    try:
        return found if found.exists() else None
    except (OSError, ValueError):
        return None


def is_local(path: str) -> bool:
    """Whether a path exists or can only be local; otherwise it may be a name on the Hub, such as `owner/name`.

    A path whose first part is a folder here is local: `models/small` where there is a folder `models`.
    """
    if existing_path(path) or path.startswith(("/", "./", "../", "~")) or path.count("/") > 1:
        return True
    first, slash, _ = path.partition("/")
    return bool(slash) and existing_path(first) is not None


def gguf_file(path: str) -> Path | None:
    """The GGUF file that a model's path names: the file, or the only one of a folder without a config.json."""
    found = existing_path(path)
    if found is None:
        return None
    if found.is_file():
        return found if found.suffix == GGUF_SUFFIX else None
    if (found / "config.json").is_file():
        return None
    files = sorted(found.glob(f"*{GGUF_SUFFIX}"))
    return files[0] if len(files) == 1 else None


MAX_NAME_LENGTH = 100
NAME_PATTERN = "^[A-Za-z0-9_]([A-Za-z0-9 ._+=,@-]*[A-Za-z0-9_+=,@-])?$"
NAME_RULE = (
    f"write at most {MAX_NAME_LENGTH} characters: letters (a-z), digits, spaces and . _ - + = , @, with a letter, "
    "a digit or _ at the start, and no space or dot at the end"
)
_NAME = re.compile(NAME_PATTERN)
_SHOWN_CHARACTERS = 40


def check_file_name(name: object) -> str:
    """Return a name that can be a file or folder name. Raises ValueError for any other value."""
    if not isinstance(name, str):
        raise ValueError(f"expected a name, got {name!r}; {NAME_RULE}")
    if len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name):
        return name
    shown = repr(name[:_SHOWN_CHARACTERS]) + ("..." if len(name) > _SHOWN_CHARACTERS else "")
    raise ValueError(f"{shown} ({len(name)} characters) cannot be the name of a file or folder; {NAME_RULE}")


FileFormat = Literal["parquet", "json", "csv"]

DATA_FILE_PATTERNS = (
    "*.parquet, *.jsonl or *.json (one object per line, or one list of them), *.csv or *.tsv (the last four also "
    "packed, as *.jsonl.gz or *.csv.zst)"
)
_SUFFIX = re.compile(
    r"\.(?:(?P<parquet>parquet)|(?:(?P<table>csv|tsv)|jsonl|ndjson|json)(?P<packed>\.gz|\.zst|\.bz2)?)$"
)


@dataclass(frozen=True, slots=True)
class DataFileName:
    """Format, compression and delimiter of a data file, by its name."""

    format: FileFormat
    packed: str | None
    """Suffix of the compression: `.gz`, `.zst` or `.bz2`; None for a file that is not compressed."""
    delimiter: str
    """Character between the values of a row of CSV or TSV."""


def data_file_name(path: str) -> DataFileName | None:
    """The format of a data file, by its name or URL; None for other files, folders and names on the Hub."""
    match = _SUFFIX.search(re.split(r"[?#]", path)[0] if "://" in path else path)
    if match is None:
        return None
    form: FileFormat = "parquet" if match["parquet"] else "csv" if match["table"] else "json"
    return DataFileName(form, match["packed"], "\t" if match["table"] == "tsv" else ",")

"""Lookup of paths from a configuration, which may be too long or invalid for the file system."""

from __future__ import annotations

from pathlib import Path

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

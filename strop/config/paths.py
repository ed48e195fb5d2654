"""Lookup of paths from a configuration, which may be too long or invalid for the file system."""

from __future__ import annotations

from pathlib import Path


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

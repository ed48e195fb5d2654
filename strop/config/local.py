"""Paths that someone wrote: whether they are there. What no file can be called is not there, and no fault."""

from __future__ import annotations

from pathlib import Path


def expanded(path: str | Path) -> Path:
    """With the home folder for `~`; as it is written where that is nobody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def existing(path: str | Path) -> Path | None:
    """Where it is; None where it is not, be it that its name is too long for the system."""
    place = expanded(path)
    try:
        return place if place.exists() else None
    except (OSError, ValueError):
        return None

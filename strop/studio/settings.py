"""Settings of one Studio server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StudioSettings:
    """Settings of one Studio server."""

    runs: Path
    """Folder that holds the runs of the list."""
    token: str
    """Secret that a request must have: in its URL, its cookie, or its header `Authorization`."""
    base: str = "/studio"
    """Path of the pages: the cookie is sent to this path alone, so it is secret too, and ends without a slash."""
    folder: Path = field(default_factory=Path.cwd)
    """Folder in which Studio was started; files are read and written below it and below `runs`."""
    anywhere: bool = False
    """Whether files outside of the folders are read and written, too."""

    def allows(self, path: Path) -> bool:
        """Whether a file or folder may be read and written, whichever links lead to it."""
        resolved = path.resolve()
        roots = (self.folder.resolve(), self.runs.resolve())
        return self.anywhere or any(resolved.is_relative_to(root) for root in roots)

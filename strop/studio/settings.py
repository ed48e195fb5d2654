"""Settings of one Studio server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StudioSettings:
    """Settings of one Studio server."""

    runs: Path
    """Folder that holds the runs of the list."""
    token: str
    """Secret that a browser must have."""
    port: int
    """Port that the server listens on; a browser's cookie carries it in its name."""

    @property
    def cookie(self) -> str:
        """Name of the cookie with the token; cookies do not distinguish ports."""
        return f"strop_studio_{self.port}"

"""Where a part of a run listens: a file in the run's folder, new with each of its lives."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Address:
    """What the other parts need in order to reach it."""

    host: str
    port: int
    token: str
    """Who knows it may ask: whoever can read the run's folder."""

    def save(self, path: Path) -> None:
        """Write it, whole or not at all, for this user's eyes alone."""
        beside = path.with_name(f".{path.name}.tmp")
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(asdict(self)) + "\n")
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> Address | None:
        """What `save` wrote last; None where nobody has ever listened."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None

"""What a fresh interpreter needs in order to find what this one finds."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment with its module path, and `more`: for a Python that is started from here."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, **more}

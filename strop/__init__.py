"""Strop: reinforcement fine-tuning of language models.

`strop.load` reads a run file, `strop.train` runs it; see `strop.api`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from strop.api import RunHandle, RunResult, evaluate, export, generate, load, start, train
    from strop.errors import Interrupted, StropError
    from strop.run.drivers.callbacks import Callback, RunControl

_MODULES = {
    "Callback": "strop.run.drivers.callbacks",
    "Interrupted": "strop.errors",
    "RunControl": "strop.run.drivers.callbacks",
    "RunHandle": "strop.api",
    "RunResult": "strop.api",
    "StropError": "strop.errors",
    "evaluate": "strop.api",
    "export": "strop.api",
    "generate": "strop.api",
    "load": "strop.api",
    "start": "strop.api",
    "train": "strop.api",
}
"""Module of each exported name."""

__all__ = [
    "Callback",
    "Interrupted",
    "RunControl",
    "RunHandle",
    "RunResult",
    "StropError",
    "__version__",
    "evaluate",
    "export",
    "generate",
    "load",
    "start",
    "train",
]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import strop`, and with it `strop --help`, does not wait for torch.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'strop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

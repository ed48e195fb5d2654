"""Strop: reinforcement fine-tuning of language models.

`strop.load` reads a run file, `strop.train` runs it; see `strop.api`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from strop.api import RunResult, evaluate, export, generate, load, train
    from strop.errors import StropError

_HOME = {
    "RunResult": "strop.api",
    "StropError": "strop.errors",
    "evaluate": "strop.api",
    "export": "strop.api",
    "generate": "strop.api",
    "load": "strop.api",
    "train": "strop.api",
}

__all__ = ["RunResult", "StropError", "__version__", "evaluate", "export", "generate", "load", "train"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import strop` (and with it `strop --help`) does not wait for torch.
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'strop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

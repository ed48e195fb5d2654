"""Functions that exist only in this Python program, under names of this module: lambdas, and functions of a notebook.

A run file names such a function `strop.in_process.NAME`. Other processes, and a later command line, do not have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PREFIX = f"{__name__}."
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def add(name: str, function: Callable[..., Any]) -> str:
    """Keep a function for this process; returns its name in a run file."""
    _FUNCTIONS[name] = function
    return f"{PREFIX}{name}"


def missing(name: str) -> str:
    """Sentences for a function that another program had."""
    return (
        f"the run was started from Python with the function {name}, which no import path names, so only that program "
        "has it. Continue the run with the same call of strop.train, or move the function into a file and name it as "
        "file.py:function."
    )


def __getattr__(name: str) -> Callable[..., Any]:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

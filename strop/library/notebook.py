"""The live line of a run in a notebook."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping
from typing import Any

from strop.config.load.loader import LoadedRun

_SHOWN = ("reward/mean", "loss", "grad_norm", "response_tokens/mean")
"""Metrics of the line, where a step has them."""


def in_notebook() -> bool:
    """Whether this program is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def may_watch(loaded: LoadedRun) -> bool:
    """Whether the training loops of a run are in this process, so that callbacks are called."""
    return all(
        stage.run.mode in ("both", "train") and not stage.run.is_launched_in_roles for stage in loaded.runs
    )


class LiveLine:
    """Callback that shows the last step's metrics in one line below the cell, and replaces it with each step."""

    def __init__(self) -> None:
        self._handle: Any = None

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a step."""
        from IPython.display import HTML, display

        line = HTML(f"<code>{html.escape(step_line(metrics))}</code>")
        if self._handle is None:
            self._handle = display(line, display_id=True)
        else:
            self._handle.update(line)


def step_line(metrics: Mapping[str, float]) -> str:
    """A step and its most important metrics, as text."""
    shown = [f"{name} {metrics[name]:.4g}" for name in _SHOWN if metrics.get(name) is not None]
    return "  ".join([f"step {int(metrics.get('step', 0))}", *shown])

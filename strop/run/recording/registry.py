"""Registry of monitors: the class for each name that `record.monitors` may list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strop.run.recording.console import ConsoleMonitor
from strop.run.recording.mlflow import MlflowMonitor
from strop.run.recording.monitor import Monitor
from strop.run.recording.tensorboard import TensorBoardMonitor
from strop.run.recording.trackers import SwanlabMonitor, WandbMonitor

MONITORS: dict[str, Callable[[], Monitor]] = {
    "console": ConsoleMonitor,
    "tensorboard": TensorBoardMonitor,
    "wandb": WandbMonitor,
    "mlflow": MlflowMonitor,
    "swanlab": SwanlabMonitor,
}
"""Monitor classes by name; each name is also a value of the schema's `record.monitors`."""


def make_monitors(names: Sequence[str]) -> tuple[Monitor, ...]:
    """Construct the monitors of a run, in the order of the registry."""
    return tuple(make() for name, make in MONITORS.items() if name in names)

"""The one number of an evaluation that a run follows."""

from __future__ import annotations

from collections.abc import Mapping

from strop.config.schema import Run
from strop.errors import TrainingError


def followed(run: Run, metric: str | None) -> str:
    """The metric that was named, or else the first eval taskset's reward; empty where there is none."""
    return metric or (f"eval/{run.data.eval[0].name}/reward" if run.data.eval else "")


def measured(metrics: Mapping[str, float], name: str, key: str) -> float:
    """Its value. Raises TrainingError, which names the run file's `key`, where the evaluation gave none."""
    if name not in metrics:
        there = ", ".join(sorted(metric for metric in metrics if metric.startswith("eval/")))
        raise TrainingError(f"{key} is {name}, and the evaluation gave no such number, but {there}.")
    return metrics[name]

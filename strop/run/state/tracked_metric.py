"""The evaluation metric that a schedule or `checkpoint.best` follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strop.config.schema.data import EvalTasksetConfig
from strop.errors import TrainingError


def tracked_metric(metric: str | None, tasksets: Sequence[EvalTasksetConfig]) -> str:
    """The configured metric, or else the first eval taskset's reward; empty where there is no taskset."""
    return metric or (f"eval/{tasksets[0].name}/reward" if tasksets else "")


def tracked_value(metrics: Mapping[str, float], name: str, key: str) -> float:
    """The metric's value.

    Raises TrainingError, which names the run file's `key`, where the evaluation lacks the metric.
    """
    if name not in metrics:
        found = ", ".join(sorted(metric for metric in metrics if metric.startswith("eval/")))
        raise TrainingError(
            f"{key} is {name}, but the evaluation has no such metric. It has {found or 'none'}; write one of "
            "these."
        )
    return metrics[name]

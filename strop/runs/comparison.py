"""Comparison of several runs: final metrics, settings that differ, and responses to the same tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.runs.reader import RunData
from strop.runs.rollout_file import read_rollouts
from strop.runs.sample_table import choose_tasks
from strop.runs.samples import TaskSample, sample_of

_IGNORED_SETTINGS = ("name", "folder", "output", "project")
"""Settings that name a run; they differ between any two runs."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """First and last value of one metric in each run; None where a run does not have it."""

    name: str
    first: tuple[float | None, ...]
    last: tuple[float | None, ...]


def run_labels(runs: Sequence[RunData]) -> list[str]:
    """Short names of the runs: as many last parts of their paths as make them differ."""
    paths = [run.folder.path.resolve().parts for run in runs]
    for length in range(1, max(map(len, paths)) + 1):
        labels = ["/".join(parts[-length:]) for parts in paths]
        if len(set(labels)) == len(labels):
            break
    return labels


def compare_metrics(runs: Sequence[RunData]) -> list[MetricRow]:
    """The metrics that at least one of the runs has, in the order of their first appearance."""
    names = dict.fromkeys(name for run in runs for name in run.names() if name != "step")
    found = [(name, [run.series(name)[1] for run in runs]) for name in names]
    return [
        MetricRow(
            name,
            tuple(values[0] if values else None for values in series),
            tuple(values[-1] if values else None for values in series),
        )
        for name, series in found
        if any(series)
    ]


def differing_settings(runs: Sequence[RunData]) -> list[tuple[str, tuple[str, ...]]]:
    """Dotted keys of the resolved run files whose values differ, with the value in each run; empty if unset."""
    leaves = [dict(_leaves(run.configuration())) for run in runs]
    keys = dict.fromkeys(key for each in leaves for key in each)
    rows = [(key, tuple(each.get(key, "") for each in leaves)) for key in keys]
    return [
        (key, values)
        for key, values in rows
        if len(set(values)) > 1 and key.partition(".")[0] not in _IGNORED_SETTINGS
    ]


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys of the values below a value; a list of texts or numbers is one value."""
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, list) and any(isinstance(entry, Mapping | list) for entry in value):
        entries = enumerate(value)
    if not entries:
        yield key, "" if value is None or value in ([], {}) else str(value)
    for name, entry in entries:
        yield from _leaves(entry, f"{key}.{name}" if key else str(name))


def shared_samples(runs: Sequence[RunData], labels: Sequence[str], count: int) -> dict[str, list[TaskSample]]:
    """Responses of all runs to the same tasks in their last evaluations, by eval taskset."""
    files = [run.eval_files() for run in runs]
    shared = [name for name in files[0] if all(name in each for each in files)]
    samples = {name: _shared_samples([each[name][-1] for each in files], labels, count) for name in shared}
    return {name: found for name, found in samples.items() if found}


def _shared_samples(files: Sequence[Path], labels: Sequence[str], count: int) -> list[TaskSample]:
    rows = [{row["task_id"]: row for row in read_rollouts(file) if row["index"] == 0} for file in files]
    common = set(rows[0]).intersection(*rows[1:])
    return [
        sample_of([(label, each[task]) for label, each in zip(labels, rows, strict=True)])
        for task in choose_tasks(common, count)
    ]

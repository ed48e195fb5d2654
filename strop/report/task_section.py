"""Section of a report on `data.pipeline`: rows in and out of each operator, and histograms of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.errors import RunFolderError
from strop.runs.folder import RunFolder
from strop.runs.formatting import format_number
from strop.runs.task_pipeline import Table, operator_table, score_histograms
from strop.workers.json_text import read_object


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """One bin of a histogram."""

    edge: str
    """Lower edge."""
    count: int
    percent: float
    """Length of the bar, in percent of the longest one."""


@dataclass(frozen=True, slots=True)
class ScoreHistogram:
    """Scores that one operator gave to its rows."""

    title: str
    bars: Sequence[HistogramBar]


@dataclass(frozen=True, slots=True)
class TaskSection:
    """Effect of a run's pipeline on the rows of its training taskset."""

    rows_in: int
    rows_out: int
    operators: Table
    """Rows of the table of operators, with the heading first."""
    histograms: Sequence[ScoreHistogram]


def read_task_section(folder: RunFolder) -> TaskSection | None:
    """The section of a run; None for a run without a task pipeline. Raises `RunFolderError` for a damaged file."""
    file = folder.task_pipeline
    if not file.exists():
        return None
    try:
        manifest = read_object(file)["manifest"]
        return TaskSection(
            rows_in=manifest["rows_in"],
            rows_out=manifest["rows_out"],
            operators=operator_table(manifest),
            histograms=[ScoreHistogram(title, _bars(found)) for title, found in score_histograms(manifest)],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}. Delete it; the report is then written without the task pipeline."
        ) from None


def _bars(histogram: Mapping[str, Any]) -> list[HistogramBar]:
    counts: Sequence[int] = histogram["counts"]
    largest = max(counts)
    return [
        HistogramBar(format_number(edge), count, 100 * count / largest)
        for edge, count in zip(histogram["edges"], counts, strict=False)
    ]

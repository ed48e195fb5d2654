"""Manifest of a task pipeline as tables for the command line and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strop.runs.formatting import format_duration, format_number

_BAR_WIDTH = 40
Table = list[tuple[str, ...]]


def operator_table(manifest: Mapping[str, Any]) -> Table:
    """Rows in and out of each operator, with the reasons of removals."""
    rows: Table = [("operator", "rows in", "rows out", "time", "removed")]
    for number, each in enumerate(manifest["operators"]):
        notes = [f"{count} {reason}" for reason, count in (*each["removed"].items(), *each["counts"].items())]
        rows.append(
            (
                f"{number} {each['type']}",
                str(each["rows_in"]),
                str(each["rows_out"]),
                format_duration(each["seconds"]),
                "; ".join(notes) or "-",
            )
        )
    return rows


def score_histograms(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Title and histogram of each score."""
    for number, each in enumerate(manifest["operators"]):
        for name, histogram in each["scores"].items():
            mean = format_number(histogram["mean"])
            yield f"{number} {each['type']}: {name} of {histogram['count']} rows, mean {mean}", histogram


def describe_manifest(manifest: Mapping[str, Any]) -> Iterator[Any]:
    """The table of operators, then for each score its title and the rows of a histogram."""
    yield operator_table(manifest)
    for title, histogram in score_histograms(manifest):
        yield title, histogram_rows(histogram)


def histogram_rows(histogram: Mapping[str, Any]) -> Table:
    """Lower edge, count and bar of each bin."""
    counts: Sequence[int] = histogram["counts"]
    largest = max(counts)
    return [
        (format_number(edge), str(count), "#" * round(count * _BAR_WIDTH / largest))
        for edge, count in zip(histogram["edges"], counts, strict=False)
    ]

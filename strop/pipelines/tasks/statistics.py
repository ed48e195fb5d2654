"""Statistics of an operator: rows in and out, reasons of removals, histograms of scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strop.pipelines.tasks.protocol import Processed, Scores

_BINS = 20


@dataclass(slots=True)
class OperatorStatistics:
    """Statistics of one operator, over all rows or a part of them."""

    rows_in: int = 0
    rows_out: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    """Removed rows by reason."""
    counts: Counter[str] = field(default_factory=Counter)
    """Further numbers of rows."""
    scores: dict[str, list[Scores]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, rows_in: int, result: Processed, seconds: float) -> None:
        """Add the result for some rows."""
        self.rows_in += rows_in
        self.rows_out += result.table.num_rows
        self.removed.update(removal.reason for removal in result.removals)
        self.counts.update(result.counts)
        for name, values in result.scores.items():
            self.scores.setdefault(name, []).append(np.asarray(values, np.float64))
        self.seconds += seconds

    def to_json(self) -> dict[str, Any]:
        """Values for a file; `merge` reads them."""
        return {
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "removed": dict(self.removed),
            "counts": dict(self.counts),
            "scores": {name: np.concatenate(values).tolist() for name, values in self.scores.items()},
            "seconds": self.seconds,
        }

    def merge(self, written: Mapping[str, Any]) -> None:
        """Add the statistics that `to_json` gave for other rows."""
        self.rows_in += written["rows_in"]
        self.rows_out += written["rows_out"]
        self.removed.update(written["removed"])
        self.counts.update(written["counts"])
        for name, values in written["scores"].items():
            self.scores.setdefault(name, []).append(np.array(values, np.float64))
        self.seconds += written["seconds"]

    def summary(self) -> dict[str, Any]:
        """Values for the manifest, with histograms in place of the scores."""
        histograms = {name: histogram(np.concatenate(values)) for name, values in self.scores.items()}
        return {
            **self.to_json(),
            "scores": {name: found for name, found in histograms.items() if found},
            "seconds": round(self.seconds, 3),
        }


def histogram(values: Scores) -> dict[str, Any]:
    """Counts of values in bins of equal width, with their mean; one bin for equal values, empty for no finite ones."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    low, high = values.min(), values.max()
    counts, edges = np.histogram(values, bins=_BINS if low < high else [low, high])
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "min": float(low),
        "max": float(high),
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }

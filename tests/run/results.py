"""Runs in this process, and what they leave behind: rows of metrics, checkpoints, weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import strop
from strop.run.entry.start import RunResult

CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/")
"""Prefixes of the metrics that depend on time or on memory."""
WEIGHTS = "model.safetensors"


def train(values: dict[str, Any], *overrides: str) -> RunResult:
    """Run to the end."""
    return strop.train(strop.load(values, list(overrides)))


def measured(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the metrics that depend on time or on memory."""
    return {name: value for name, value in row.items() if not name.startswith(CLOCKS)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, without those that depend on time or on memory."""
    return [measured(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps_of(folder: Path) -> list[int]:
    return [int(row["step"]) for row in rows_of(folder)]


def trained_rows(values: dict[str, Any], *overrides: str) -> list[dict[str, Any]]:
    """Run to the end; returns the rows of the run's metrics."""
    return rows_of(train(values, *overrides).folder)


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:06d}"


def state(folder: Path, step: int) -> dict[str, Any]:
    """The state that a checkpoint holds."""
    found: dict[str, Any] = json.loads((checkpoint(folder, step) / "state.json").read_text())
    return found


def weights(folder: Path) -> bytes:
    """The weights of a run's final model."""
    return (folder / "model" / WEIGHTS).read_bytes()

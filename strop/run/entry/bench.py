"""Mode bench: evaluates several checkpoints on the eval tasksets.

bench.jsonl   one row per checkpoint
bench.csv     the same rows as a table
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.config.load.loader import LoadedRun
from strop.config.schema import Run
from strop.errors import CheckpointError
from strop.python_rewards import PythonRewards
from strop.run.entry.evaluate import open_evaluator
from strop.run.rollout.server_explorer import samples_from_server
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.formatting import format_duration, format_number
from strop.training.checkpoints import checkpoint
from strop.workers.files import atomic_write
from strop.workers.signals import StopSignal

INITIAL_MODEL = "model"
"""Label of the initial model (no checkpoint)."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Evaluation of one checkpoint."""

    checkpoint: str
    """Name of the checkpoint's folder, or its path where another run wrote it."""
    step: int
    metrics: dict[str, float]


def bench(
    loaded: LoadedRun, reward: PythonRewards | None = None, stop: StopSignal | None = None
) -> list[BenchRow]:
    """Evaluate all checkpoints and write the tables.

    Raises `CheckpointError` for a missing or damaged checkpoint before any is evaluated.
    """
    run = loaded.run
    checkpoints = list(_checkpoints(run))
    folder = RunFolder.of(run)
    folder.create()
    rows = []
    with open_evaluator(run, reward, stop) as evaluate_checkpoint:
        for name, path in checkpoints:
            started = time.perf_counter()
            measured = evaluate_checkpoint(path)
            rows.append(BenchRow(name, measured.step, measured.metrics))
            print(_line(rows[-1], time.perf_counter() - started), flush=True)
    _write(folder.path, rows)
    return rows


def _checkpoints(run: Run) -> Iterator[tuple[str, Path | None]]:
    """Label and folder of each checkpoint; the folder is None for the initial model, or that of a server."""
    if run.bench.initial_model:
        yield INITIAL_MODEL, None
    if samples_from_server(run):
        return
    own = RunFolder.of(run)
    for path in [Path(one).expanduser() for one in run.bench.checkpoints] or [own.path]:
        found = checkpoint.folders(RunFolder(path).checkpoints)
        if not found and not (path / checkpoint.MANIFEST_FILE).is_file():
            raise CheckpointError(
                f"bench.checkpoints: {path} is neither a checkpoint (.../checkpoints/step-000020) nor a run "
                "folder with checkpoints. Without the key all checkpoints of this run are evaluated; train it "
                "first."
            )
        for folder in found or [path]:
            checkpoint.verify(folder)
            yield folder.name if folder.parent == own.checkpoints else str(folder), folder


def _line(row: BenchRow, seconds: float) -> str:
    scores = [
        f"{name.split('/')[1]} {format_number(value)}"
        for name, value in row.metrics.items()
        if name.endswith(("/reward", "/loss"))
    ]
    return f"{row.checkpoint}, step {row.step}:  {'  '.join(scores)}  {format_duration(seconds)}"


def _write(folder: Path, benched: Sequence[BenchRow]) -> None:
    rows = [{"checkpoint": one.checkpoint, "step": one.step, **one.metrics} for one in benched]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, names)
    writer.writeheader()
    writer.writerows(rows)
    with reporting_write_errors(folder):
        atomic_write(folder / "bench.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        atomic_write(folder / "bench.csv", table.getvalue())

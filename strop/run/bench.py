"""Mode bench: the eval tasksets, measured with one checkpoint after the other.

bench.jsonl   one row per checkpoint
bench.csv     the same as a table
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.load import Loaded
from strop.config.schema import Run
from strop.errors import CheckpointError
from strop.run.folder import RunFolder
from strop.run.offline import open_measure
from strop.run.records.wording import duration, number
from strop.training import checkpoint

MODEL = "model"
"""What the model as it is is called among checkpoints."""


@dataclass(frozen=True, slots=True)
class Benched:
    """One checkpoint's measurements."""

    checkpoint: str
    step: int
    metrics: dict[str, float]


def bench(loaded: Loaded, reward: Callable[..., Any] | None = None) -> list[Benched]:
    """Measure them all, and write the tables. Raises `CheckpointError` for one that is not there or damaged,
    before any is measured."""
    run = loaded.run
    chosen = list(_chosen(run))
    folder = RunFolder.of(run)
    folder.create()
    benched = []
    with open_measure(run, reward) as measure:
        for name, path in chosen:
            started = time.perf_counter()
            measured = measure(path)
            benched.append(Benched(name, measured.step, measured.metrics))
            print(_line(benched[-1], time.perf_counter() - started), flush=True)
    _write(folder.path, benched)
    return benched


def _chosen(run: Run) -> Iterator[tuple[str, Path | None]]:
    if run.bench.model:
        yield MODEL, None
    own = RunFolder.of(run)
    for path in [Path(one).expanduser() for one in run.bench.checkpoints] or [own.path]:
        found = checkpoint.folders(RunFolder(path).checkpoints)
        if not found and not (path / checkpoint.MANIFEST).is_file():
            raise CheckpointError(
                f"bench.checkpoints: {path} is no checkpoint (.../checkpoints/step-000020) and no run "
                "folder with checkpoints in it. Left out, it is all of this run's own; do train it first."
            )
        for folder in found or [path]:
            checkpoint.verify(folder)
            yield folder.name if folder.parent == own.checkpoints else str(folder), folder


def _line(one: Benched, seconds: float) -> str:
    rewards = [f"{name.split('/')[1]} {number(value)}" for name, value in one.metrics.items() if _tells(name)]
    return f"{one.checkpoint}, step {one.step}:  {'  '.join(rewards)}  {duration(seconds)}"


def _tells(name: str) -> bool:
    return name.endswith(("/reward", "/loss"))


def _write(folder: Path, benched: Sequence[Benched]) -> None:
    rows = [{"checkpoint": one.checkpoint, "step": one.step, **one.metrics} for one in benched]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / "bench.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with (folder / "bench.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)

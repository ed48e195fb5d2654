"""What a loaded run file is started as: in one process, in two, or as one half."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.load import Loaded
from strop.config.schema.parts import is_apart
from strop.run.folder import RunFolder
from strop.run.records.rows import joined, last_row, read_rows
from strop.run.records.sessions import read_sessions
from strop.run.resume import find_start


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run leaves."""

    folder: Path
    model: Path | None
    """The trained model as a Hugging Face folder; none where nothing was trained here."""
    steps: int
    model_step: int
    """Whose weights the model has: the last step's, or under `checkpoint.best` the best one's."""
    metrics: dict[str, float]
    """Of the last step."""


def start(loaded: Loaded, reward: Callable[..., Any] | None = None) -> Outcome:
    """Run to the end, or on from where an earlier start of the same run was stopped.

    Each mode is imported where it is needed: what launches others starts at once, without torch.
    """
    run = loaded.run
    folder = RunFolder.of(run)
    if run.mode == "bench":
        from strop.run.bench import bench

        benched = bench(loaded, reward)
        return Outcome(folder.path, None, len(benched), benched[-1].step, benched[-1].metrics)
    if run.mode == "explore":
        from strop.run.apart.explore import explore

        steps = explore(loaded, reward).step
        return Outcome(folder.explorer.path, None, steps, steps, _last(folder))
    if is_apart(run) and run.mode == "both":
        from strop.run.apart.launch import launch

        steps = launch(loaded, reward)
        return Outcome(folder.path, folder.model, steps, steps, _last(folder))
    from strop.run.train import train

    trained = train(loaded, reward)
    return Outcome(folder.path, folder.model, trained.state.step, trained.model_step, _last(folder))


def finished(loaded: Loaded) -> Outcome | None:
    """What an earlier start of the same run has left at its end; None where it has not come there yet.

    Raises `RunFolderError` where the folder holds a run of another configuration.
    """
    run = loaded.run
    folder = RunFolder.of(run)
    if run.resume != "auto":
        return None
    start = find_start(run, folder)
    halves = (folder, folder.explorer) if is_apart(run) and run.mode == "both" else (folder,)
    ended = [read_sessions(half.path)[-1:] for half in halves]
    if start.checkpoint is None or not all(last and last[0]["outcome"] == "finished" for last in ended):
        return None
    best = start.state.best
    step = start.state.step
    return Outcome(folder.path, folder.model, step, best.step if best else step, _last(folder))


def _last(folder: RunFolder) -> dict[str, float]:
    return last_row(joined(read_rows(folder.explorer.metrics), read_rows(folder.metrics)))

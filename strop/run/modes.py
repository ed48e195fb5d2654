"""What a loaded run file is started as: in one process, in two, or as one half."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.load import Loaded
from strop.config.schema.parts import is_apart
from strop.run.explore import explore
from strop.run.folder import RunFolder
from strop.run.launch import launch
from strop.run.rows import joined, last_row, read_rows
from strop.run.train import train


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
    """Run to the end, or on from where an earlier start of the same run was stopped."""
    run = loaded.run
    folder = RunFolder.of(run)
    if run.mode == "explore":
        steps = explore(loaded, reward).step
        return Outcome(folder.explorer.path, None, steps, steps, _last(folder))
    if is_apart(run) and run.mode == "both":
        steps = launch(loaded, reward)
        return Outcome(folder.path, folder.model, steps, steps, _last(folder))
    trained = train(loaded, reward)
    return Outcome(folder.path, folder.model, trained.state.step, trained.model_step, _last(folder))


def _last(folder: RunFolder) -> dict[str, float]:
    return last_row(joined(read_rows(folder.explorer.metrics), read_rows(folder.metrics)))

"""Files by which a Tinker client's training run is a run folder like others, for `strop list`, Studio and reports."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from strop.compat.tinker.store import TrainingRunInfo
from strop.config.save import save_resolved
from strop.config.schema import Run
from strop.run.recording.recorder import command_line, machine_info, peak_memory_mb, source_info
from strop.runs.folder import RunFolder
from strop.runs.lock import lock_run
from strop.runs.metrics_file import MetricsWriter
from strop.runs.sessions import SessionOutcome, begin_session, end_session

_PROGRESS = "progress.json"


class RunRecord:
    """Metrics and sessions of one training run."""

    def __init__(self, folder: Path, info: TrainingRunInfo, run: Run, state: Path | None) -> None:
        """Begin a session; `state` is the folder of the state that it starts from, None for the run's start.

        Raises RunFolderError while another process has the run's lock.
        """
        self._folder = RunFolder(folder)
        self._steps = 0 if state is None else int(json.loads((state / _PROGRESS).read_text())["steps"])
        self._loss = 0.0
        """Loss since the last step."""
        self._lock = ExitStack()
        self._lock.enter_context(lock_run(self._folder, mode="train", is_distributed=False))
        save_resolved(
            run.model_copy(update={"project": "tinker", "name": info.model_id}), self._folder.run_file
        )
        begin_session(
            folder,
            {
                "project": "tinker",
                "name": info.model_id,
                "steps": 0,
                "from_step": self._steps,
                "command": command_line(),
                "directory": str(Path.cwd()),
                "notes": [],
                "set_aside": [],
                **machine_info(),
                **source_info(),
            },
        )
        self._metrics = MetricsWriter(self._folder.metrics, self._steps)

    def add_loss(self, loss: float) -> None:
        """Count the loss of a part of the next step."""
        self._loss += loss

    def add_step(self, lr: float, grad_norm: float) -> None:
        """Write the metrics of a step."""
        self._steps += 1
        row = {"step": self._steps, "loss": self._loss, "grad_norm": grad_norm, "lr": lr, "updates": 1.0}
        self._metrics.append({**row, "memory/peak_mb": peak_memory_mb()})
        self._loss = 0.0

    def write_progress(self, folder: Path) -> None:
        """Write the number of steps into a state."""
        (folder / _PROGRESS).write_text(json.dumps({"steps": self._steps}))

    def close(self, outcome: SessionOutcome) -> None:
        """End the session and free the lock."""
        with self._lock:
            self._metrics.close()
            end_session(self._folder.path, outcome, None)

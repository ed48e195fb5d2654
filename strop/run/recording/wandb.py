"""Weights & Biases monitor: metrics, tables of samples, alerts on failure; online or offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop.config.save import saved_values
from strop.errors import MonitorError
from strop.run.recording.monitor import SessionInfo
from strop.run.recording.tracking import (
    SAMPLE_COLUMNS,
    load_run_id,
    new_run_id,
    require_package,
    sample_rows,
    save_run_id,
)
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup

_EXIT_CODES: Mapping[SessionOutcome, int] = {"finished": 0, "failed": 1, "interrupted": 130}


class WandbMonitor:
    """Logs to one W&B run per Strop run; a resumed run continues it.

    The horizontal axis is the metric `step`, so that steps which a resumed run repeats are accepted.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._sample_count = 0

    def start(self, session: SessionInfo) -> None:
        """Start or resume the W&B run. Raises `MissingExtraError`, and `MonitorError` if wandb refuses."""
        require_package("wandb")
        import wandb

        run, options = session.run, session.run.record.wandb
        address = {"base_url": options.base_url} if options.base_url else {}
        run_id = load_run_id(session.folder, "wandb") or new_run_id()
        try:
            self._run = wandb.init(
                project=run.project,
                name=run.name,
                id=run_id,
                resume="allow",
                entity=options.entity,
                group=options.group,
                tags=list(options.tags) or None,
                mode=options.mode,
                dir=str(session.folder),
                config=saved_values(run),
                settings=wandb.Settings(console="off", silent=True, **address),
            )
        except wandb.errors.Error as error:
            raise MonitorError(
                f"wandb could not start the run: {error}. Log in with `wandb login`, or write "
                "`record.wandb.mode: offline`."
            ) from error
        save_run_id(session.folder, "wandb", run_id)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._sample_count = run.record.eval_answers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log({**metrics, "step": step})

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Log the responses to `record.eval_answers` tasks as a table."""
        if self._sample_count:
            import wandb

            table = wandb.Table(list(SAMPLE_COLUMNS), sample_rows(step, groups, self._sample_count))
            self._run.log({f"eval/{name}/samples": table, "step": step})

    def message(self, line: str) -> None:
        """Do nothing: W&B has no log of messages."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """End the W&B run with the outcome as its exit code."""
        if self._run is not None:
            self._run.summary["outcome"] = outcome
            if message:
                self._run.summary["message"] = message
            self._run.finish(exit_code=_EXIT_CODES[outcome])
            self._run = None

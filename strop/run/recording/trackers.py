"""Monitors that report to a tracking service, Weights & Biases and SwanLab: run ids, configuration, samples."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strop.config.save import saved_values
from strop.errors import ConfigError, MissingExtraError, MonitorError, RunFolderError
from strop.run.recording.monitor import SessionInfo
from strop.runs.rollout_file import prompt_text
from strop.runs.sample_table import choose_samples, samples_markdown
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup
from strop.workers.files import atomic_write

SAMPLE_COLUMNS = ("step", "task", "prompt", "expected", "response", "reward")
"""Columns of a table of samples."""

_FILE = "tracking.json"


def require_package(name: str) -> None:
    """Raise `MissingExtraError` if the package of a monitor is not installed."""
    if find_spec(name) is None:
        raise MissingExtraError(
            f"record.monitors lists {name}, which is not installed: pip install 'strop[{name}]'"
        )


def new_run_id() -> str:
    """A random run id that every service accepts: 16 lower-case hexadecimal digits."""
    return secrets.token_hex(8)


def load_run_id(folder: Path, service: str) -> str | None:
    """Id of this run at a service, from an earlier session; None in the first session."""
    return _load_ids(folder).get(service)


def save_run_id(folder: Path, service: str, run_id: str) -> None:
    """Store the id in the run folder, so that a resumed run continues the same run of the service."""
    ids = {**_load_ids(folder), service: run_id}
    atomic_write(folder / _FILE, json.dumps(ids, indent=2) + "\n")


def _load_ids(folder: Path) -> dict[str, str]:
    path = folder / _FILE
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise RunFolderError(
            f"{path}: damaged, so the run's ids at the tracking services are unknown. Restore it, or delete it "
            "to start new runs there."
        ) from None


def flat_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Values by dotted key, as text."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_values(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def sample_rows(step: int, groups: Sequence[RolloutGroup], count: int) -> list[list[Any]]:
    """Rows of `SAMPLE_COLUMNS`: the first response to each of `count` fixed tasks."""
    rows = []
    for task, rollout in choose_samples(groups, count):
        expected = "" if task.answer is None else str(task.answer)
        rows.append([step, task.id, prompt_text(task), expected, rollout.text, rollout.reward])
    return rows


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


_STATES: Mapping[SessionOutcome, str] = {"finished": "success", "failed": "crashed", "interrupted": "aborted"}


class SwanlabMonitor:
    """Logs to one SwanLab run per Strop run; a resumed run continues it."""

    def __init__(self) -> None:
        self._run: Any = None
        self._sample_count = 0

    def start(self, session: SessionInfo) -> None:
        """Start or resume the SwanLab run. Raises `MissingExtraError`."""
        require_package("swanlab")
        import swanlab

        run, options = session.run, session.run.record.swanlab
        if options.mode == "local" and find_spec("swanboard") is None:
            raise MissingExtraError(
                "record.swanlab.mode is local, which needs swanboard: pip install 'swanlab[dashboard]'"
            )
        run_id = load_run_id(session.folder, "swanlab") or new_run_id()
        try:
            self._run = swanlab.init(
                project=run.project,
                name=run.name,
                id=run_id,
                resume="allow",
                workspace=options.workspace,
                group=options.group,
                tags=list(options.tags) or None,
                mode=options.mode,
                log_dir=str(session.folder / "swanlab"),
                config=saved_values(run),
            )
        except RuntimeError as error:
            raise ConfigError(
                f"record.monitors lists swanlab, which does not start: {error} Set the environment variable "
                "SWANLAB_API_KEY, or write record.swanlab.mode: offline."
            ) from error
        save_run_id(session.folder, "swanlab", run_id)
        self._sample_count = run.record.eval_answers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(metrics), step=step)

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Log the responses to `record.eval_answers` tasks as a Markdown table."""
        if self._sample_count:
            import swanlab

            table = samples_markdown(groups, self._sample_count)
            self._run.log({f"eval/{name}/samples": swanlab.Text(table)}, step=step)

    def message(self, line: str) -> None:
        """Do nothing: SwanLab has no log of messages."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """End the SwanLab run with the outcome as its state."""
        if self._run is not None:
            self._run.finish(state=_STATES[outcome], error=message if outcome == "failed" else None)
            self._run = None

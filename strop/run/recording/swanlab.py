"""SwanLab monitor: metrics and samples; online, offline or local."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from strop.config.save import saved_values
from strop.errors import ConfigError, MissingExtraError
from strop.run.recording.monitor import SessionInfo
from strop.run.recording.tracking import load_run_id, new_run_id, require_package, save_run_id
from strop.runs.sample_table import samples_markdown
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup

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

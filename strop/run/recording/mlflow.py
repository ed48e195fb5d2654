"""MLflow Tracking monitor: parameters, metrics and samples, on a server or in a local database."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strop.config.redact import redact_text
from strop.config.save import saved_values
from strop.config.schema import Run
from strop.errors import MonitorError
from strop.run.recording.monitor import SessionInfo
from strop.run.recording.trackers import flat_values, load_run_id, require_package, save_run_id
from strop.runs.sample_table import samples_markdown
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("strop.recording")

_STATUS: Mapping[SessionOutcome, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_MAX_PARAMETER_CHARACTERS = 500
_PARAMETERS_PER_BATCH = 100


class MlflowMonitor:
    """Logs to one MLflow run per Strop run; a resumed run continues it.

    A row that the server does not accept is reported as a warning and does not end the run.
    """

    def __init__(self) -> None:
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._sample_count = 0

    def start(self, session: SessionInfo) -> None:
        """Start or resume the MLflow run. Raises `MissingExtraError`, and `MonitorError` if MLflow refuses."""
        require_package("mlflow")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
        from mlflow.exceptions import MlflowException

        uri = tracking_uri(session.run)
        known = load_run_id(session.folder, "mlflow")
        try:
            self._client = _open_client(uri)
            if known is None:
                self._run_id = _create_run(self._client, session.run)
                save_run_id(session.folder, "mlflow", self._run_id)
            else:
                self._run_id = known
                self._client.update_run(known, status="RUNNING")
        except MlflowException as error:
            raise MonitorError(
                f"MLflow at {redact_text(uri)} could not start the run: {redact_text(str(error))}. Check "
                "record.mlflow.tracking_uri."
            ) from error
        self._sample_count = session.run.record.eval_answers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        now = int(time.time() * 1000)
        values = [Metric(name, value, now, step) for name, value in metrics.items()]
        try:
            if self._client is not None:
                self._client.log_batch(self._run_id, metrics=values)
        except MlflowException as error:
            log.warning("MLflow did not accept the metrics of step %d: %s", step, redact_text(str(error)))

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Store the responses to `record.eval_answers` tasks as a Markdown artifact."""
        from mlflow.exceptions import MlflowException

        if self._client is None or not self._sample_count:
            return
        text = samples_markdown(groups, self._sample_count)
        try:
            self._client.log_text(self._run_id, text, f"eval/{name}/step-{step:06d}.md")
        except MlflowException as error:
            log.warning("MLflow did not accept the samples of step %d: %s", step, redact_text(str(error)))

    def message(self, line: str) -> None:
        """Do nothing: MLflow has no log of messages."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """End the MLflow run with the outcome as its status."""
        from mlflow.exceptions import MlflowException

        if self._client is None:
            return
        try:
            if message:
                self._client.set_tag(self._run_id, "message", message)
            self._client.set_terminated(self._run_id, _STATUS[outcome])
        except MlflowException as error:
            log.warning("MLflow did not accept the end of the run: %s", redact_text(str(error)))
        self._client = None


def tracking_uri(run: Run) -> str:
    """URI of the tracking store: configured, from the environment, or a database in the output folder."""
    local = f"sqlite:///{Path(run.output).expanduser().absolute() / 'mlflow.db'}"
    return run.record.mlflow.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or local


def _open_client(uri: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)  # announces every table of a new database
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient(uri)


def _create_run(client: MlflowClient, run: Run) -> str:
    """Create the experiment if it is missing, and a run with the configuration as parameters."""
    from mlflow.entities import Param

    name = run.record.mlflow.experiment or run.project
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        artifacts = Path(run.output).expanduser().absolute() / "mlartifacts"
        local = tracking_uri(run).startswith("sqlite:")
        experiment_id = client.create_experiment(name, artifacts.as_uri() if local else None)
    else:
        experiment_id = experiment.experiment_id
    run_id: str = client.create_run(
        experiment_id, run_name=run.name, tags=dict(run.record.mlflow.tags)
    ).info.run_id
    values = [
        Param(key, value[:_MAX_PARAMETER_CHARACTERS]) for key, value in flat_values(saved_values(run)).items()
    ]
    for first in range(0, len(values), _PARAMETERS_PER_BATCH):
        client.log_batch(run_id, params=values[first : first + _PARAMETERS_PER_BATCH])
    return run_id

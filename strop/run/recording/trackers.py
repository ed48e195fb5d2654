"""Monitors of TensorBoard and of tracking services, Weights & Biases, SwanLab, Trackio and MLflow: run ids,
configuration, samples."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.redact import redact_text
from strop.config.save import saved_values
from strop.config.schema.run import Run
from strop.errors import ConfigError, MissingExtraError, MonitorError, RunFolderError
from strop.run.recording.monitor import SessionInfo
from strop.runs.rollout_file import prompt_text
from strop.runs.sample_table import choose_samples, samples_markdown
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup
from strop.workers.files import AppendFile, atomic_write
from strop.workers.json_text import parse_json

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


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
        return dict(parse_json(path.read_text(encoding="utf-8")))
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


class TrackioMonitor:
    """Logs to one Trackio run per Strop run, whose name has an id; a resumed run continues it."""

    def __init__(self) -> None:
        self._run: Any = None
        self._sample_count = 0

    def start(self, session: SessionInfo) -> None:
        """Start or resume the Trackio run. Raises `MissingExtraError`, and `MonitorError` if Trackio refuses."""
        require_package("trackio")
        import trackio
        from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

        run, options = session.run, session.run.record.trackio
        name = load_run_id(session.folder, "trackio") or f"{run.name}-{new_run_id()[:6]}"
        try:
            with redirect_stdout(io.StringIO()):
                self._run = trackio.init(
                    project=run.project,
                    name=name,
                    group=options.group,
                    space_id=options.space_id,
                    server_url=options.server_url,
                    config=saved_values(run),
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except (ValueError, OSError, HfHubHTTPError, LocalTokenNotFoundError) as error:
            raise MonitorError(
                f"trackio could not start the run: {redact_text(str(error))}. Check record.trackio; without space_id "
                "and server_url the run stays on this machine."
            ) from error
        save_run_id(session.folder, "trackio", name)
        self._sample_count = run.record.eval_answers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row; `step` is a name of Trackio's own."""
        self._run.log({name: value for name, value in metrics.items() if name != "step"}, step=step)

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Log the responses to `record.eval_answers` tasks as a Markdown table."""
        if self._sample_count:
            import trackio

            table = samples_markdown(groups, self._sample_count)
            self._run.log({f"eval/{name}/samples": trackio.Markdown(table)}, step=step)

    def message(self, line: str) -> None:
        """Do nothing: Trackio has no log of messages."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """End the Trackio run, which sends what is left."""
        if self._run is not None:
            with redirect_stdout(io.StringIO()):
                self._run.finish()
            self._run = None


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


_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\..*")
_FORMAT = "brain.Event:2"


class EventFile:
    """A new event file, which TensorBoard reads after all files of its folder.

    A record that the disk refuses leaves no part in the file. If a kill cuts one off, TensorBoard reads the records
    before it, and then the next file. tensorboard's own writer has neither property: it writes in a thread.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        """TensorBoard hides the events of `first_step` and later steps in earlier files."""
        # Imported here, because the import takes about a second and not every run uses TensorBoard.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._new_event = Event
        folder.mkdir(parents=True, exist_ok=True)
        self._file = AppendFile(folder / _next_name(folder))
        self._records = RecordWriter(_RecordTarget(self._file))
        self._add(file_version=_FORMAT)
        self._add(step=first_step, file_version=_FORMAT)
        self._add(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, summary: Any) -> None:
        """Append the values of one step, a TensorBoard `Summary`. Raises `OSError` where they cannot be written."""
        self._add(step=step, summary=summary)

    def close(self) -> None:
        """Close the file; every record is written already."""
        self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._new_event(wall_time=time.time(), **fields).SerializeToString())


class _RecordTarget:
    """The target of tensorboard's `RecordWriter`, which passes each record in one call."""

    def __init__(self, file: AppendFile) -> None:
        self._file = file

    def write(self, record: bytes) -> None:
        self._file.append(record)


def _next_name(folder: Path) -> str:
    """Name that sorts after all others, also within one second or after a change of the clock."""
    seconds = [int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    second = max([int(time.time()), *(earlier + 1 for earlier in seconds)])
    return f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"


class TensorBoardMonitor:
    """Writes event files into the folder that `record.tensorboard` names."""

    def __init__(self) -> None:
        self._file: EventFile | None = None
        self._sample_count = 0

    def start(self, session: SessionInfo) -> None:
        """Open an event file; TensorBoard hides earlier events of the steps that this session repeats."""
        record = session.run.record
        self._sample_count = record.eval_answers
        self._file = EventFile(session.folder / Path(record.tensorboard).expanduser(), session.first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric, all of them in one record."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._file is not None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
            self._file.add(step, Summary(value=values))

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Write the responses to `record.eval_answers` tasks as a Markdown table."""
        from torch.utils.tensorboard.summary import text

        if self._file is not None and self._sample_count:
            table = samples_markdown(groups, self._sample_count)
            self._file.add(step, text(f"eval/{name}/answers", table))  # type: ignore[no-untyped-call]

    def message(self, line: str) -> None:
        """Do nothing: TensorBoard has no log of messages."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()
            self._file = None

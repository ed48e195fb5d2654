"""Reader of run folders: metrics, sessions, configuration and rollout files of a run, finished or not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from strop.config.load.schema_faults import first_fault
from strop.config.load.yaml_file import parse_yaml
from strop.errors import RunFolderError
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import MetricsRow, merge_rows, read_metrics
from strop.runs.rollout_file import is_readable
from strop.runs.sessions import read_sessions
from strop.workers.files import is_regular, read_regular


class _Part(BaseModel):
    """A part of a run file: types of the values that are read again."""

    model_config = ConfigDict(strict=True)


class _Taskset(_Part):
    path: str | list[str] | None = None


class _Data(_Part):
    train: _Taskset | list[_Taskset | str] | str | None = None


class _Model(_Part):
    path: str | None = None
    tokenizer: str | None = None
    lora: dict[str, Any] | None = None


class _Algorithm(_Part):
    type: str = ""


class _Trainer(_Part):
    optimizer: dict[str, Any] = {}


class _Record(_Part):
    eval_answers: int = 0


class _RunFile(_Part):
    model: _Model = _Model()
    data: _Data = _Data()
    algorithm: _Algorithm = _Algorithm()
    trainer: _Trainer = _Trainer()
    record: _Record = _Record()


@dataclass(frozen=True, slots=True)
class RunData:
    """Contents of a run folder."""

    folder: RunFolder
    rows: list[MetricsRow]
    """Metrics, one row per step; rows of a separate explorer process are merged in."""
    sessions: list[dict[str, Any]]
    """Sessions of `run.json`, oldest first."""
    run_file: str
    """Text of the resolved run file; empty if there is none."""

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Return the steps that have a metric, and its values at these steps."""
        found = [(int(row["step"] or 0), row[name]) for row in self.rows if row.get(name) is not None]
        return [step for step, _ in found], [float(value or 0.0) for _, value in found]

    def names(self) -> list[str]:
        """Return the names of all metrics, in the order of their first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def configuration(self) -> dict[str, Any]:
        """Parse the resolved run file; empty if there is none."""
        try:
            _, values = parse_yaml(self.run_file)
            _RunFile.model_validate(values or {})
        except (yaml.YAMLError, ValidationError) as error:
            reason = first_fault(error) if isinstance(error, ValidationError) else "it is not YAML."
            raise RunFolderError(
                f"{self.folder.run_file} is damaged: {reason} Restore it from a checkpoint of the run, "
                "checkpoints/step-*/run.yaml."
            ) from error
        return values or {}

    def eval_files(self) -> dict[str, list[Path]]:
        """List the readable rollout files of each eval taskset, oldest first."""
        files: dict[str, list[Path]] = {}
        found = (folder.path.glob("eval/*/step-*.parquet") for folder in (self.folder, self.folder.explorer))
        for path in filter(is_readable, sorted(chain.from_iterable(found))):
            files.setdefault(path.parent.name, []).append(path)
        return files

    @property
    def eval_answers(self) -> int:
        """Number of fixed eval tasks whose responses the report shows (`record.eval_answers`)."""
        return int(self.configuration().get("record", {}).get("eval_answers", 0))

    def rollout_files(self) -> list[Path]:
        """List the readable rollout files of training steps, oldest first."""
        found = (folder.rollouts.glob("step-*.parquet") for folder in (self.folder, self.folder.explorer))
        return list(filter(is_readable, sorted(chain.from_iterable(found))))


def read_run(path: Path) -> RunData:
    """Read a run folder. Raises `RunFolderError` if it is not a run folder, or if a file in it is damaged."""
    folder = RunFolder(path)
    rows, sessions = read_metrics(folder.metrics), read_sessions(path)
    if folder.explorer.metrics.exists():
        rows = merge_rows(read_metrics(folder.explorer.metrics), rows)
    if not rows and not sessions:
        raise RunFolderError(
            f"{path} is not a run folder: it has neither metrics.jsonl nor run.json. A run writes both into "
            "<output>/<project>/<name>."
        )
    run_file = read_regular(folder.run_file).decode("utf-8", "replace") if is_regular(folder.run_file) else ""
    return RunData(folder, rows, sessions, run_file)

"""Layout of a run folder: the path of every file that a run writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from strop.config.schema import Run
from strop.errors import RunFolderError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Folder of one run, `<output>/<project>/<name>/`, and the paths in it."""

    path: Path

    @classmethod
    def of(cls, run: Run) -> RunFolder:
        """Return the folder that a run's configuration names."""
        return cls(run.folder_path)

    @property
    def run_file(self) -> Path:
        """Resolved run file, secrets redacted."""
        return self.path / "run.yaml"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints that the run can resume from."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Trained model, as a Hugging Face folder."""
        return self.path / "model"

    @property
    def metrics(self) -> Path:
        """Metrics file: one JSON row per step."""
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """Folder of the Parquet files with the rollouts of selected training steps."""
        return self.path / "rollouts"

    def evaluations(self, name: str) -> Path:
        """Folder of the Parquet files with the rollouts of the eval taskset `name`."""
        return self.path / "eval" / name

    @property
    def judge_cache(self) -> Path:
        """Folder of the cached replies of the reward's judges."""
        return self.path / "judges"

    @property
    def explorer(self) -> RunFolder:
        """Folder of an explorer that runs as a separate process; it has the same layout."""
        return RunFolder(self.path / "explorer")

    @property
    def report(self) -> Path:
        """HTML report of the run."""
        return self.path / "report.html"

    def create(self) -> None:
        """Create the folder. Raises `RunFolderError` if it is not writable."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunFolderError(
                f"The run folder {self.path} cannot be written ({error.strerror}). "
                "Set `output` to a writable folder, or change the folder's permissions."
            ) from error

    def archive_existing(self) -> Path | None:
        """Rename a folder that holds another run's files; returns the new path, or None if it was empty."""
        if not self.path.exists() or not any(self.path.iterdir()):
            return None
        old = self.path.with_name(f"{self.path.name}_{datetime.now():%Y%m%d-%H%M%S}")
        self.path.rename(old)
        return old


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Convert an `OSError` into a `RunFolderError` that names the path."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"The record of the run cannot be written to {path}: {error.strerror or error}. The run stops, "
            "so that no results are lost. Free space on that disk or change `output`; the same command then "
            "resumes from the last checkpoint."
        ) from error

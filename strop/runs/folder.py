"""Layout of a run folder: the path of every file that a run writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from strop.config.load.loader import RUN_FILE
from strop.config.schema import Run
from strop.errors import RunFolderError

LOCK_FILE = ".lock"
EXPLORER_LOCK_FILE = ".explorer.lock"
ACTORS_LOCK_FILE = ".actors.lock"
_RUN_MARKERS = {"run.json", "metrics.jsonl", "checkpoints", "explorer", "explorer.json", "bench.jsonl"}
"""Entries of a folder in which a run has started."""
_EARLY_ENTRIES = {
    RUN_FILE,
    "identity.json",
    "annotations",
    "images",
    "inputs",
    "judges",
    "log",
    "sync",
    "buffer.db",
    "reference",
    "task_pipeline.json",
    "training_examples.jsonl",
    "held_out_scores.json",
}
"""Entries that a run may have left that ended before its first record."""


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
        return self.path / RUN_FILE

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
    def images(self) -> Path:
        """Folder of the images in prompts, each stored once under its digest."""
        return self.path / "images"

    @property
    def training_examples(self) -> Path:
        """First rows of the data of an SFT or DPO run, for the report."""
        return self.path / "training_examples.jsonl"

    @property
    def held_out_scores(self) -> Path:
        """Scores of a reward model's last evaluation, for the report."""
        return self.path / "held_out_scores.json"

    @property
    def incomplete_steps(self) -> Path:
        """Groups of the steps that were trained on incomplete, under `buffer.on_timeout: train`."""
        return self.path / "incomplete_steps.jsonl"

    @property
    def task_pipeline(self) -> Path:
        """Folder and manifest of the result of `data.pipeline` that the run reads."""
        return self.path / "task_pipeline.json"

    @property
    def judge_cache(self) -> Path:
        """Folder of the cached replies of the reward's judges."""
        return self.path / "judges"

    @property
    def annotations(self) -> Path:
        """Folder of the questions to people, and of their answers."""
        return self.path / "annotations"

    @property
    def console_log(self) -> Path:
        """Output of the run after its terminal or pipe was closed."""
        return self.path / "log" / "console.log"

    @property
    def explorer(self) -> RunFolder:
        """Folder of an explorer that runs as a separate process; it has the same layout."""
        return RunFolder(self.path / "explorer")

    @property
    def report(self) -> Path:
        """HTML report of the run."""
        return self.path / "report.html"

    def create(self, mode: int = 0o777) -> None:
        """Create the folder with the permissions of `mode`. Raises `RunFolderError` if it is not writable."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=mode, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass  # the folder is writable
        except OSError as error:
            raise RunFolderError(
                f"The run folder {self.path} cannot be written ({error.strerror}). "
                "Set `output` to a writable folder, or change the folder's permissions."
            ) from error

    def archive_existing(self, keep: Iterable[Path] = ()) -> Path | None:
        """Rename a folder that holds another run's files; returns the new path, or None if it was empty.

        Locks stay in a new folder of the same name, and so do `keep`, files and folders in `inputs` that the new run
        reads. Raises `RunFolderError` where the folder cannot be renamed, or holds other files than those of a run.
        """
        path = self.path.absolute()
        entries = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        locks = entries & {LOCK_FILE, EXPLORER_LOCK_FILE}
        if entries <= locks | {"inputs"}:
            return None
        if not entries & _RUN_MARKERS and any(
            name not in _EARLY_ENTRIES and not name.startswith(".") for name in entries
        ):
            raise RunFolderError(
                f"{path} holds other files than those of a run, so it is not renamed although `resume` is not "
                "`auto`. Set `name` or `folder` to a folder that is empty, or does not exist."
            )
        old = _unused(path.with_name(f"{path.name}_{datetime.now():%Y%m%d-%H%M%S}"))
        try:
            path.rename(old)
            path.mkdir()
            for name in locks:
                # A link fails where another process has created the file since the folder was created.
                (path / name).hardlink_to(old / name)
                (old / name).unlink()
            for kept in keep:
                place = kept.absolute().relative_to(path)
                (path / place).parent.mkdir(parents=True, exist_ok=True)
                (old / place).rename(path / place)
        except OSError as error:
            raise RunFolderError(
                f"The run folder {path} cannot be renamed to {old}: {error.strerror or error}. Another run may have "
                "started in it; change `name`, or the permissions of the folder above."
            ) from error
        return old


def _unused(path: Path) -> Path:
    """The path, with a number where it exists."""
    candidates = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    return next(candidate for candidate in candidates if not candidate.exists())


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

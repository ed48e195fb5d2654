"""What a run folder tells, read from its files alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from strop.errors import RunFolderError
from strop.run.folder import RunFolder
from strop.run.records.rows import Row, joined, read_rows
from strop.run.records.sessions import read_sessions


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a run, read."""

    folder: RunFolder
    rows: list[Row]
    sessions: list[dict[str, Any]]
    run_file: str
    """The resolved run file's text; empty where there is none."""

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """The steps that have this metric, and its values: steps without it leave no hole."""
        found = [(int(row["step"] or 0), row[name]) for row in self.rows if row.get(name) is not None]
        return [step for step, _ in found], [float(value or 0.0) for _, value in found]

    def names(self) -> list[str]:
        """Every metric that some row has, in the order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def eval_files(self) -> dict[str, list[Path]]:
        """The rollouts of each eval taskset, oldest first."""
        files: dict[str, list[Path]] = {}
        found = (folder.path.glob("eval/*/step-*.parquet") for folder in (self.folder, self.folder.explorer))
        for path in sorted(chain.from_iterable(found)):
            files.setdefault(path.parent.name, []).append(path)
        return files

    @property
    def eval_answers(self) -> int:
        """How many held-out answers the run file asks to be shown always."""
        run = yaml.safe_load(self.run_file) or {}
        return int(run.get("record", {}).get("eval_answers", 0))

    def rollout_files(self) -> list[Path]:
        """The rollouts of the training steps that were kept, oldest first."""
        found = (folder.rollouts.glob("step-*.parquet") for folder in (self.folder, self.folder.explorer))
        return sorted(chain.from_iterable(found))


def read_contents(path: Path) -> Contents:
    """Read a run folder. Raises `RunFolderError` where it is none, or a file in it is broken."""
    folder = RunFolder(path)
    rows, sessions = read_rows(folder.metrics), read_sessions(path)
    if folder.explorer.metrics.exists():
        rows = joined(read_rows(folder.explorer.metrics), rows)
    if not rows and not sessions:
        raise RunFolderError(
            f"{path} is no run folder: it has neither metrics.jsonl nor run.json. A run writes them to "
            "<output>/<project>/<name>."
        )
    run_file = folder.run_file.read_text(encoding="utf-8") if folder.run_file.exists() else ""
    return Contents(folder, rows, sessions, run_file)

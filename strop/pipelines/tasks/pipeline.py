"""Runs a task pipeline once: reads the dataset, applies the operators, caches the result by its fingerprint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.redact import redact_text
from strop.config.schema.data import DataConfig
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.pipelines.tasks.columns import missing_column
from strop.pipelines.tasks.execution import (
    Stage,
    Tick,
    WorkFolder,
    location,
    run_dataset_stage,
    stages_of,
)
from strop.pipelines.tasks.export import export_rows
from strop.pipelines.tasks.fingerprint import pipeline_fingerprint
from strop.pipelines.tasks.part_stages import OpenExecutor, local_processes, run_part_stage
from strop.pipelines.tasks.parts import ROW_ID, Parts, conform, part_file, read_part, write_part
from strop.pipelines.tasks.protocol import PipelineServices, Say
from strop.pipelines.tasks.reading import read_tables
from strop.pipelines.tasks.registry import OperatorContext, open_replies
from strop.pipelines.tasks.result import PipelineResult, read_result
from strop.pipelines.tasks.statistics import OperatorStatistics
from strop.workers.files import atomic_folder, atomic_write

Progress = Callable[[str, int], Tick]
"""Starts a bar with a text and a number of rows; returns what advances it."""
_NAME_LENGTH = 16
_ROWS_PER_SHARD = 100_000


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """One execution of a pipeline."""

    data: DataConfig
    cache: Path
    services: PipelineServices
    progress: Progress
    say: Say
    open_executor: OpenExecutor = local_processes
    """Opens the worker processes of `processes`."""

    def __call__(self) -> PipelineResult:
        """The result, from the cache if it is there. Raises DataError for rows that an operator cannot use, and for a
        pipeline that removes all rows."""
        pipeline = self.data.pipeline
        assert pipeline is not None
        rows = read_rows(self.data.train)
        fingerprint = pipeline_fingerprint(self.data, rows, self.services)
        folder = self.cache / fingerprint[:_NAME_LENGTH]
        with _locked(folder, self.say):
            result = read_result(folder)
            if result is None:
                result = self._run(rows, fingerprint, folder)
        if pipeline.export is not None:
            export_rows(result.data, pipeline.export, pipeline.export_table)
        return result

    def _run(self, rows: DatasetRows, fingerprint: str, folder: Path) -> PipelineResult:
        assert self.data.pipeline is not None
        work = folder.with_name(f"{folder.name}.work")
        with open_replies(self.cache / "replies") as replies:
            context = OperatorContext(self.services, replies, self.say, [rows.where])
            parts = self._read(rows, work / "input")
            total = len(parts)
            operators: list[dict[str, Any]] = []
            for number, stage in enumerate(stages_of(self.data.pipeline.operators)):
                before, parts = parts, self._stage(stage, parts, work / f"stage-{number:03d}", context)
                operators += _summaries(stage, before, work / f"stage-{number:03d}")
                _require_rows(parts, operators, total)
        manifest = {
            "fingerprint": fingerprint,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "input": redact_text(str(self.data.train.path)),
            "rows_in": total,
            "rows_out": len(parts),
            "operators": operators,
        }
        self._finish(parts, folder, work, manifest, context)
        shutil.rmtree(work)
        found = read_result(folder)
        assert found is not None
        return found

    def _read(self, rows: DatasetRows, folder: Path) -> Parts:
        """The rows as parts; those of an interrupted execution are kept."""
        done = folder / "complete.json"
        if not done.is_file():
            count = 0
            while part_file(folder, count).is_file():
                count += 1
            first = sum(read_part(part_file(folder, number)).num_rows for number in range(count))
            tick = self.progress("Reading the rows", len(rows))
            tick(first)
            for table in read_tables(rows, first, self.data.train.images):
                ids = pa.array(np.arange(first, first + table.num_rows))
                write_part(part_file(folder, count), table.append_column(ROW_ID, ids))
                tick(table.num_rows)
                first, count = first + table.num_rows, count + 1
            atomic_write(done, json.dumps({"parts": count}))
        count = json.loads(done.read_text())["parts"]
        return Parts(tuple(part_file(folder, number) for number in range(count)))

    def _stage(self, stage: Stage, parts: Parts, folder: Path, context: OperatorContext) -> Parts:
        assert self.data.pipeline is not None
        names = ", ".join(section.type for section in stage.sections)
        tick = self.progress(names, len(parts))
        if stage.scope == "dataset":
            return run_dataset_stage(stage, parts, folder, context, tick)
        workers = self.data.pipeline.processes
        return run_part_stage(stage, parts, folder, context, workers, self.open_executor, tick)

    def _finish(
        self, parts: Parts, folder: Path, work: Path, manifest: dict[str, Any], context: OperatorContext
    ) -> None:
        """Write the result, which appears by renaming."""
        assert self.data.pipeline is not None
        names = list(self.data.pipeline.columns or parts.names)
        if unknown := [name for name in names if name not in parts.names]:
            raise DataError(f"data.pipeline.columns: {missing_column(unknown[0], parts.names)}.")
        with atomic_folder(folder) as temporary:
            _write_dataset(parts, names, temporary / "data")
            (ids,) = parts.columns([ROW_ID])
            np.save(temporary / "origins.npy", ids.to_numpy())
            with (temporary / "removed.jsonl").open("w", encoding="utf-8") as file:
                for stage in sorted(work.glob("stage-*")):
                    file.writelines(
                        _located(removal, context.sources) for removal in WorkFolder(stage).removals()
                    )
            (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _located(removal: dict[str, Any], sources: list[Callable[[int], str]]) -> str:
    """A line of the file of removed rows, with the location of the row."""
    like = removal.pop("like")
    if like is not None:
        removal["detail"] = f"of {location(like, sources)}"
    return json.dumps({"row": location(removal["id"], sources), **removal}, ensure_ascii=False) + "\n"


def _write_dataset(parts: Parts, names: list[str], folder: Path) -> None:
    """Write the rows as a folder of the library `datasets`."""
    import datasets

    schema = pa.schema([parts.schema.field(name) for name in names])
    datasets.disable_progress_bars()
    tables = [conform(read_part(file), parts.schema).select(names) for file in parts.files]
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    dataset = datasets.Dataset(datasets.table.InMemoryTable(table.replace_schema_metadata(None)))
    dataset.save_to_disk(str(folder), num_shards=max(1, -(-len(dataset) // _ROWS_PER_SHARD)))


def _summaries(stage: Stage, before: Parts, folder: Path) -> list[dict[str, Any]]:
    """The manifest's entries of the operators of a stage."""
    work = WorkFolder(folder)
    found = [OperatorStatistics() for _ in stage.sections]
    number = 0
    while work.has(number):
        for total, part in zip(found, work.statistics(number), strict=True):
            total.merge(part)
        number += 1
    if stage.scope == "dataset":
        found[0].rows_in = len(before)
    return [
        {"type": section.type, "settings": section.model_dump(mode="json"), **total.summary()}
        for section, total in zip(stage.sections, found, strict=True)
    ]


def _require_rows(parts: Parts, operators: list[dict[str, Any]], total: int) -> None:
    """Raises DataError if no row is left."""
    if len(parts):
        return
    last = next(each for each in operators if each["rows_out"] == 0)
    reasons = ", ".join(f"{reason}: {count}" for reason, count in last["removed"].items()) or "no reason"
    number = operators.index(last)
    raise DataError(
        f"data.pipeline.operators.{number} ({last['type']}) removes all of the {last['rows_in']} rows that reach it "
        f"({reasons}), so nothing is left of {total} rows to train on. Change its settings."
    )


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is deleted at the end."""
    with TemporaryDirectory(prefix="strop-") as folder:
        yield Path(folder)


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[None]:
    """One process at a time executes a pipeline; others wait for it and read its result."""
    from filelock import FileLock, Timeout

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"data.pipeline.cache: the folder {folder.parent} cannot be written ({error.strerror}); write another one."
        ) from None
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("Another process runs the same data.pipeline; waiting for its result")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

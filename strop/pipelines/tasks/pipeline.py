"""Runs a task pipeline once: reads the dataset, applies the operators, caches the result by its fingerprint.

The result is a folder:

    data/           the rows, as a folder of the library `datasets`
    origins.npy     the identity of each row's source row
    removed.jsonl   each removed row: its location, the operator, the reason
    manifest.json   input, operators, rows in and out, reasons, histograms
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strop import __version__
from strop.config.paths import existing_path
from strop.config.redact import redact_text
from strop.config.schema.base import Section
from strop.config.schema.data import DataConfig
from strop.config.schema.task_pipeline import (
    CustomTaskOperatorConfig,
    DataJuicerTasksConfig,
    EndpointModelConfig,
    EngineModelConfig,
    MixtureConfig,
    PassRateConfig,
    TemplateConfig,
)
from strop.config.user_code import code_digest
from strop.data.sources.cache import content_digest, file_digest, files_digest
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError, MissingExtraError
from strop.pipelines.tasks.execution import (
    OpenExecutor,
    OperatorStatistics,
    Stage,
    Tick,
    WorkFolder,
    local_processes,
    location,
    run_dataset_stage,
    run_part_stage,
    stages_of,
)
from strop.pipelines.tasks.llm_operators import endpoint_url
from strop.pipelines.tasks.operator import (
    ROW_ID,
    Parts,
    PipelineServices,
    Say,
    conform,
    missing_column,
    part_file,
    read_part,
    write_part,
)
from strop.pipelines.tasks.order import read_tables
from strop.pipelines.tasks.registry import OperatorContext, open_replies
from strop.pipelines.tasks.templates import template_text
from strop.workers.files import atomic_folder, atomic_path, atomic_write
from strop.workers.json_text import parse_json

if TYPE_CHECKING:
    import datasets


Progress = Callable[[str, int], Tick]
"""Starts a bar with a text and a number of rows; returns what advances it."""
_NAME_LENGTH = 16
_ROWS_PER_SHARD = 100_000
_LIBRARIES = ("datasketch", "py3langid")
_INPUT_FIELDS = ("path", "table", "split", "subset", "limit_tasks", "generator", "images")
"""Fields of a taskset that decide which rows a pipeline reads."""


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
            _export_rows(result.data, pipeline.export, pipeline.export_table)
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


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """A complete result."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def data(self) -> Path:
        """Folder of the rows."""
        return self.folder / "data"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.manifest["rows_out"])

    def removed(self) -> Iterator[dict[str, Any]]:
        """The removed rows, by operator."""
        file = self.folder / "removed.jsonl"
        if file.is_file():
            with file.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def __str__(self) -> str:
        """`data.pipeline: 7473 rows -> 5210 (length 12, deduplicate 3, pass_rate 2248 removed)`"""
        changes = [
            f"{each['type']} {each['rows_in'] - each['rows_out']:+d}".replace("+-", "-").replace("+", "-")
            if each["rows_in"] >= each["rows_out"]
            else f"{each['type']} +{each['rows_out'] - each['rows_in']}"
            for each in self.manifest["operators"]
            if each["rows_in"] != each["rows_out"]
        ]
        text = f" ({', '.join(changes)})" if changes else ""
        return f"data.pipeline: {self.manifest['rows_in']} rows -> {self.rows}{text}; {self.folder}"


def read_result(folder: Path) -> PipelineResult | None:
    """The result in a folder; None if there is none. Raises DataError for a manifest that cannot be read."""
    file = folder / "manifest.json"
    if not file.is_file():
        return None
    try:
        manifest = parse_json(file.read_text(encoding="utf-8"))
        return PipelineResult(folder, {**manifest, "rows_out": int(manifest["rows_out"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read: {error}. Delete the folder, and the pipeline runs again."
        ) from None


def pipeline_fingerprint(data: DataConfig, rows: DatasetRows, services: PipelineServices) -> str:
    """Hash of everything that the result depends on."""
    assert data.pipeline is not None
    digest = hashlib.sha256()
    train = data.train
    content = [
        __version__,
        _package_digest(),
        {name: str(getattr(train, name)) for name in _INPUT_FIELDS},
        content_digest(train.path, rows),
        data.pipeline.model_dump(mode="json", include={"operators", "columns"}),
        [_operator_identity(section, services) for section in data.pipeline.operators],
        {name: _version(name) for name in _LIBRARIES},
    ]
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def _operator_identity(section: Section, services: PipelineServices) -> list[str]:
    """Identities of what an operator's result depends on in addition to its section: files, models, reward."""
    found: list[str] = []
    model = getattr(section, "model", None)
    if isinstance(prompt := getattr(section, "prompt", None), str):
        found.append(_text_digest(prompt))
    if isinstance(section, TemplateConfig):
        found += map(_text_digest, section.columns.values())
    if isinstance(model, EngineModelConfig):
        found.append(services.model_fingerprint(model.path))
    if isinstance(model, EndpointModelConfig):
        found.append(endpoint_url(model) or "")
    if isinstance(section, PassRateConfig):
        found += [services.model_fingerprint(section.model), services.rollout_fingerprint()]
    if isinstance(section, CustomTaskOperatorConfig):
        found.append(code_digest(section.operator))
    if isinstance(section, DataJuicerTasksConfig) and section.config is not None:
        found.append(files_digest(section.config))
    if isinstance(section, MixtureConfig):
        found += [files_digest(each.path) for each in section.inputs]
    return found


def _text_digest(text: str) -> str:
    """Hash of a text, or of the file that it names."""
    file = existing_path(text) if "\n" not in text and len(text) < 1000 else None
    if file is not None and file.is_file():
        return file_digest(file)
    return hashlib.sha256(template_text(text, "prompt").encode()).hexdigest()


def _package_digest() -> str:
    """Hash of the source of this package."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _export_rows(data: Path, target: str, table: str | None) -> None:
    """Write the rows to a file or a table, which is replaced. Raises DataError where that is not possible."""
    import datasets

    datasets.disable_progress_bars()
    dataset = datasets.load_from_disk(str(data))
    if table is not None:
        _to_table(dataset, target, table)
        return
    path = Path(target).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            if path.suffix == ".parquet":
                dataset.to_parquet(str(temporary))
            else:
                dataset.to_json(str(temporary), force_ascii=False)
    except OSError as error:
        raise DataError(
            f"data.pipeline.export: {path} cannot be written: {error.strerror or error}."
        ) from None


def _to_table(dataset: datasets.Dataset, url: str, table: str) -> None:
    """Write the rows to a table in one transaction; values that no column of a database can hold become JSON."""
    try:
        import sqlalchemy as sa
    except ImportError:
        raise MissingExtraError(
            f"data.pipeline.export: {redact_text(url)} is written with SQLAlchemy: pip install 'strop[sql]'"
        ) from None
    kinds = {name: _sql_type(feature) for name, feature in dataset.features.items()}
    metadata = sa.MetaData()
    key = sa.Column("strop_row", sa.Integer, primary_key=True)
    target = sa.Table(table, metadata, key, *(sa.Column(name, kind) for name, kind in kinds.items()))
    engine = sa.create_engine(url)
    try:
        if engine.dialect.name == "sqlite" and engine.url.database:
            Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
        with engine.begin() as connection:
            metadata.drop_all(connection)
            metadata.create_all(connection)
            for first in range(0, len(dataset), 1000):
                rows = dataset.select(range(first, min(first + 1000, len(dataset)))).to_list()
                connection.execute(
                    sa.insert(target), [{"strop_row": first + n, **row} for n, row in enumerate(rows)]
                )
    except (sa.exc.SQLAlchemyError, OSError) as error:
        reason = redact_text(str(error).splitlines()[0])
        raise DataError(f"data.pipeline.export: {redact_text(url)} cannot be written: {reason}.") from None
    finally:
        engine.dispose()


def _sql_type(feature: object) -> Any:
    import sqlalchemy as sa

    kind = getattr(feature, "dtype", None)
    if not isinstance(kind, str) or kind in ("dict", "list"):
        return sa.JSON()
    if "int" in kind:
        return sa.BigInteger()
    if "float" in kind:
        return sa.Float()
    return {"bool": sa.Boolean(), "binary": sa.LargeBinary()}.get(kind, sa.Text())

"""Training rows of a run with `data.pipeline`: the result of the pipeline, which the run folder names."""

from __future__ import annotations

import json
from pathlib import Path

from strop.config.schema.data import TasksetConfig
from strop.config.schema.run import Run
from strop.errors import DataError
from strop.pipelines.tasks.pipeline import PipelineResult, read_result
from strop.runs.folder import RunFolder
from strop.workers.files import atomic_write
from strop.workers.json_text import parse_json

DEFAULT_CACHE = "task_pipelines"
"""Folder of the results, in the folder of all projects."""
SOURCE_FIELDS = ("split", "subset", "table", "generator", "limit_tasks")
"""Fields of a taskset that select rows at its path; prepared rows are read whole."""


def cache_folder(run: Run) -> Path:
    """Folder of the results of a run's pipeline."""
    assert run.data.pipeline is not None
    cache = run.data.pipeline.cache
    return (Path(cache) if cache else Path(run.output) / DEFAULT_CACHE).expanduser()


def write_pointer(run: Run, result: PipelineResult) -> None:
    """Write which result the run reads, with its manifest for the report."""
    folder = RunFolder.of(run)
    folder.create()
    content = {"folder": str(result.folder.absolute()), "manifest": result.manifest}
    atomic_write(folder.task_pipeline, json.dumps(content))


def prepared_result(run: Run) -> PipelineResult:
    """The result that the run reads. Raises DataError if there is none yet, or it was deleted."""
    file = RunFolder.of(run).task_pipeline
    try:
        folder = Path(parse_json(file.read_text(encoding="utf-8"))["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"data.pipeline has no result for this run: {file} does not exist. Start the run with `strop train`, or "
            "the pipeline alone with `strop data run`."
        ) from None
    result = read_result(folder)
    if result is None:
        raise DataError(
            f"data.pipeline: the result {folder} was deleted. Run `strop data run` again; replies of models are kept."
        )
    return result


def train_section(run: Run) -> TasksetConfig:
    """`data.train`, with the path of the pipeline's result if there is a pipeline."""
    if run.data.pipeline is None:
        return run.data.train
    return rows_at(run, prepared_result(run).data)


def rows_at(run: Run, path: Path) -> TasksetConfig:
    """`data.train` for all rows of a file or folder of prepared rows."""
    return run.data.train.model_copy(update={"path": str(path), **dict.fromkeys(SOURCE_FIELDS)})


def prepared_run(run: Run) -> Run:
    """The run without its pipeline, on the pipeline's result."""
    data = run.data.model_copy(update={"train": train_section(run), "pipeline": None})
    return run.model_copy(update={"data": data})


def data_notes(run: Run) -> tuple[str, ...]:
    """Notes for the console about the run's pipeline."""
    if not run.data.is_prepared:
        return ()
    return (str(prepared_result(run)),)

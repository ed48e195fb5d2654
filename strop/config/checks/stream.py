"""Checks of `data.stream` against the rest of the run."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.schema.algorithm import OfflineAlgorithmConfig
from strop.config.schema.data import GENERATORS
from strop.config.schema.language_model import EngineModelConfig
from strop.config.schema.run import Run
from strop.config.schema.task_filters import LengthFilterConfig
from strop.config.schema.task_pipeline import ROW_OPERATORS, TaskPipelineConfig


def stream_faults(run: Run) -> Iterator[str]:
    """Faults of a run that reads its tasks from a source of unknown length."""
    data, train = run.data, run.data.train
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        yield f"data.stream has no effect under algorithm {run.algorithm.type}, which reads all rows; remove it"
    if run.trainer.duration.unit == "epochs":
        yield "trainer.duration: a stream has no known length; write steps or updates, such as `100 steps`"
    if data.queue is not None:
        yield "data.stream and data.queue are two ways to read `train`; remove one of them"
    if data.pipeline is not None:
        yield from arriving_row_faults(data.pipeline, "data.stream")
    if data.order is not None:
        yield "data.order: the tasks of a stream are not known at the start; remove the order, or data.stream"
    if data.incomplete_batch == "keep":
        yield "data.incomplete_batch: a stream begins its next epoch within a step; remove it"
    if train.images is not None:
        yield "data.train.images: a stream has no images; remove data.stream"
    if train.dataset is not None:
        yield "data.train.dataset has no effect with data.stream, which reads files row by row; remove it"
    paths = (train.path,) if isinstance(train.path, str) else train.path
    if train.table is not None or any(path.partition("://")[0] in GENERATORS for path in paths):
        yield "data.stream reads files, URLs and names on the hub; remove it for a database or a generator"


def arriving_row_faults(pipeline: TaskPipelineConfig, source: str) -> Iterator[str]:
    """Faults of operators on rows that are read during the run, from `source`."""
    for number, operator in enumerate(pipeline.operators):
        tokens = isinstance(operator, LengthFilterConfig) and operator.unit == "tokens"
        engine = isinstance(getattr(operator, "model", None), EngineModelConfig)
        if not isinstance(operator, ROW_OPERATORS) or tokens or engine:
            what = operator.type + (" in tokens" if tokens else " with an engine" if engine else "")
            known = ", ".join(str(each.model_fields["type"].default) for each in ROW_OPERATORS)
            yield (
                f"data.pipeline.operators.{number}: {what} does not run on rows that arrive in {source}; write "
                f"operators that need one row at a time and no engine ({known})"
            )
    for name in ("columns", "cache", "export", "export_table"):
        if getattr(pipeline, name) is not None:
            yield f"data.pipeline.{name} has no effect with {source}, whose rows are not stored; remove it"
    if pipeline.processes > 1:
        yield f"data.pipeline.processes: the rows of {source} pass through one process; remove it"

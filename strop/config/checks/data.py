"""Checks of a run's data: its images against the engine, lengths, streams, the order of tasks, and names of models."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.model_files import IMAGE_FAMILIES, TILE_FAMILIES, read_model_file
from strop.config.schema.buffer import FixedStyleConfig, MemorySyncConfig
from strop.config.schema.data import GENERATORS, ColumnOrderConfig
from strop.config.schema.rollout import ServerConnectionConfig, ServingEngineConfig, SglangEngineConfig
from strop.config.schema.run import Run, configured_rewards
from strop.config.schema.task_pipeline import (
    ROW_OPERATORS,
    EngineModelConfig,
    LengthFilterConfig,
    TaskPipelineConfig,
)

_NATIVE = "Write `rollout.engine: native`, which samples from images"
_SGLANG_PATCH = 14
"""Width and height in pixels of the only patches that SGLang's Qwen2.5-VL takes."""


def image_engine_fault(run: Run) -> str | None:
    """Fault of a run that samples from images with an engine that does not take those of its model.

    None for a model that is not on this machine.
    """
    config = read_model_file(run.model.path, "config.json")
    family, engine = config.get("model_type"), run.rollout.engine
    if family not in IMAGE_FAMILIES or run.algorithm.is_offline:
        return None
    if isinstance(engine, ServerConnectionConfig):
        return (
            f"rollout.engine: {engine.type} sends text to a server, and the run has images. {_NATIVE}, or an engine of "
            "vllm or sglang that Strop starts."
        )
    if not isinstance(engine, ServingEngineConfig):
        return None
    if family in TILE_FAMILIES:
        return (
            f"rollout.engine: {engine.type} gets no images of {family} models from Strop, and the run has images. "
            f"{_NATIVE} of every family."
        )
    vision = config.get("vision_config") or {}
    patch = vision.get("patch_size", _SGLANG_PATCH)
    if isinstance(engine, SglangEngineConfig) and family == "qwen2_5_vl" and patch != _SGLANG_PATCH:
        return (
            f"rollout.engine: SGLang's Qwen2.5-VL takes patches of 14 x 14 pixels only, and "
            f"{run.model.path}/config.json has vision_config.patch_size {patch}. {_NATIVE} with patches of any size."
        )
    return None


def length_faults(run: Run) -> Iterator[str]:
    """Faults in token limits and in the buffer's capacity; each names its key."""
    data = run.data
    for where, sampling in (
        ("rollout.sampling", run.rollout.sampling),
        *((f"data.eval ({taskset.name}).sampling", taskset.sampling) for taskset in data.eval),
    ):
        if sampling.min_response_tokens >= data.max_response_tokens:
            yield (
                f"{where}.min_response_tokens ({sampling.min_response_tokens}) must be below "
                f"data.max_response_tokens ({data.max_response_tokens})"
            )
    penalty = run.algorithm.overlong_penalty
    if penalty is not None and penalty.buffer_tokens > data.max_response_tokens:
        yield (
            f"algorithm.overlong_penalty.buffer_tokens ({penalty.buffer_tokens}) must not exceed "
            f"data.max_response_tokens ({data.max_response_tokens})"
        )
    capacity = getattr(run.buffer, "capacity_groups", None)
    if capacity is not None and capacity < run.trainer.tasks_per_step:
        yield (
            f"buffer.capacity_groups ({capacity}) is less than one step; write at least "
            f"trainer.tasks_per_step ({run.trainer.tasks_per_step})"
        )
    yield from _sequence(run)


def _sequence(run: Run) -> Iterator[str]:
    longest = run.rollout.max_sequence_tokens
    if longest is not None and longest <= run.data.max_prompt_tokens:
        yield (
            f"rollout.max_sequence_tokens ({longest}) leaves no tokens for a response after a prompt of "
            f"data.max_prompt_tokens ({run.data.max_prompt_tokens}); write a larger value"
        )


def stream_faults(run: Run) -> Iterator[str]:
    """Faults of a run that reads its tasks from a source of unknown length."""
    data, train = run.data, run.data.train
    if run.algorithm.is_offline:
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


def task_order_faults(run: Run) -> Iterator[str]:
    """Faults of an order that the run's tasks cannot have."""
    order = run.data.order
    if order is None:
        return
    if run.data.queue is not None:
        yield "data.order: a task queue is first in, first out; remove the order, or order the rows in the table"
    if isinstance(order, ColumnOrderConfig):
        return
    if run.algorithm.is_offline:
        yield (
            f"data.order: {order.type} needs the success rates of rollouts, which algorithm {run.algorithm.type} "
            "does not sample; write `order: {type: column, column: ...}`"
        )
    section = run.synchronizer
    if not isinstance(section, MemorySyncConfig) and not isinstance(section.style, FixedStyleConfig):
        yield (
            f"data.order: under synchronizer.style {section.style.type} the next tasks are drawn before the results of "
            f"earlier ones are known, at times that no restart repeats, so {order.type} would not resume exactly; "
            "write style: fixed, or an order by column"
        )
    if run.data.incomplete_batch == "keep":
        yield f"data.incomplete_batch: data.order {order.type} has no incomplete steps; remove it"


def model_faults(run: Run) -> Iterator[str]:
    """Faults in `rollout.auxiliary_models`: a name given twice, or a judge whose model is not listed."""
    names = [model.name for model in run.rollout.auxiliary_models]
    called = [*names, run.rollout.endpoint.model]
    for name in sorted({name for name in called if called.count(name) > 1}):
        yield f"rollout.auxiliary_models: two models have the name {name!r}; write two different names"
    for where, reward in configured_rewards(run).items():
        for judge in reward.judges:
            if judge.url == "auxiliary" and judge.model not in names:
                yield (
                    f"{where}.judges ({judge.name}).model: there is no {judge.model!r} in "
                    f"rollout.auxiliary_models; the names are {', '.join(names) or 'none'}"
                )

"""Differences in meaning between two runs, for `strop convert`: equivalent ways to write a value are equal.

`resume_compatibility` compares two starts of one run instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strop.config.schema import Run
from strop.config.schema.algorithm import OfflineAlgorithmConfig, PpoConfig, demonstrations_field
from strop.config.schema.base import Section
from strop.config.schema.batch_selection import WarmupSelectionConfig
from strop.config.schema.cluster import RayClusterConfig
from strop.config.schema.data import DataConfig
from strop.config.schema.inference_engine import AutoEngineConfig
from strop.config.schema.schedule import BaseScheduleConfig, ConstantScheduleConfig
from strop.config.schema.synchronizer import MemorySyncConfig
from strop.config.step_arithmetic import to_steps, updates_per_step
from strop.config.units import Amount


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """Field or section with its value in each of two runs; None if a run does not have it."""

    field: str
    first: Any
    second: Any


def semantic_diff(first: Run, second: Run) -> list[FieldDifference]:
    """Return every field in which two runs differ in meaning; a section that only one run has is one
    difference."""
    return list(_diff(canonicalize(first), canonicalize(second), ()))


def _diff(first: Any, second: Any, at: tuple[str, ...]) -> Iterator[FieldDifference]:
    if isinstance(first, Section) and type(first) is type(second):
        for name in type(first).model_fields:
            yield from _diff(getattr(first, name), getattr(second, name), (*at, name))
    elif _has_sections(first) and _has_sections(second):
        for index in range(max(len(first), len(second))):
            yield from _diff(_item(first, index), _item(second, index), (*at, str(index)))
    elif first != second:
        yield FieldDifference(".".join(at), first, second)


def _has_sections(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, Section) for item in value)


def _item(items: tuple[Any, ...], index: int) -> Any:
    return items[index] if index < len(items) else None


def canonicalize(run: Run) -> Run:
    """Return the run with all dependent defaults filled in and one way to write each value: the folder as one
    path, data types and sizes that follow other fields, intervals in steps."""
    trainer, checkpoint = run.trainer, run.checkpoint
    computed = run.model.compute_dtype or run.model.dtype
    changes: dict[str, Any] = {
        "folder": str(run.folder_path),
        "output": "runs",
        "model": _with(run.model, compute_dtype=computed),
        "rollout": _with(run.rollout, engine=_engine(run.rollout.engine, computed)),
        "data": _data(run),
        "algorithm": _algorithm(run),
        "cluster": _cluster(run),
        "checkpoint": _with(
            checkpoint,
            every=to_steps(run, checkpoint.every),
            resume_optimizer=checkpoint.resume_optimizer and checkpoint.save_optimizer,
        ),
        # Explorer and trainer that take turns in one process never wait for each other.
        "buffer": _with(run.buffer, on_timeout="stop")
        if isinstance(run.synchronizer, MemorySyncConfig)
        else run.buffer,
        "evaluate": _with(run.evaluate, every=to_steps(run, run.evaluate.every)),
        "record": _with(run.record, rollouts_every=to_steps(run, run.record.rollouts_every)),
        "trainer": _with(
            trainer,
            tasks_per_update=trainer.tasks_per_update or trainer.tasks_per_step,
            duration=to_steps(run, trainer.duration),
            schedule=_schedule(run, trainer.schedule),
            batch_selection=_sample(run),
        ),
    }
    return run.model_copy(update=changes)


def _engine(section: Section, computed: str) -> Section:
    """Fill in the data type of the sampler, which is that of the trainer's computation."""
    if isinstance(section, AutoEngineConfig):
        native, vllm = (_engine(each, computed) for each in (section.native, section.vllm))
        return _with(section, native=native, vllm=vllm)
    return _with(section, dtype=computed) if getattr(section, "dtype", None) == "model" else section


def _cluster(run: Run) -> Section:
    """Fill in the default namespace of the actors."""
    section = run.cluster
    if not isinstance(section, RayClusterConfig):
        return section
    return _with(section, namespace=section.namespace or f"{run.project}/{run.name}")


def _data(run: Run) -> DataConfig:
    """Remove columns and limits without an effect: demonstrations have no reference answer, and only the sum
    of the two length limits applies to them, unless responses are sampled too."""
    data = _with(run.data, demonstrations=tuple(_with(item, answer=None) for item in run.data.demonstrations))
    if not isinstance(run.algorithm, OfflineAlgorithmConfig):
        return data
    measured = tuple(taskset if taskset.is_sampled else _with(taskset, answer=None) for taskset in data.eval)
    mixture = tuple(_with(taskset, answer=None) for taskset in data.mixture)
    changes: dict[str, Any] = {
        "train": _with(data.train, answer=None),
        "mixture": mixture,
        "eval": measured,
    }
    if not any(taskset.is_sampled for taskset in measured):
        whole = data.max_prompt_tokens + data.max_response_tokens
        changes |= {"max_prompt_tokens": whole // 2, "max_response_tokens": whole - whole // 2}
    return _with(data, **changes)


def _algorithm(run: Run) -> Section:
    """Fill in the critic's defaults, which are the policy's values, the name of the expert's set, and the teacher's
    temperature."""
    algorithm: Section = run.algorithm
    if (teachers := getattr(run.algorithm, "distillation", None)) is not None:
        temperature = teachers.temperature or run.rollout.sampling.temperature
        algorithm = _with(algorithm, distillation=_with(teachers, temperature=temperature))
    if (field := demonstrations_field(run.algorithm)) is not None:
        named = run.data.demonstrations_named(getattr(run.algorithm, field))
        return _with(algorithm, **{field: named.name})
    if not isinstance(run.algorithm, PpoConfig):
        return algorithm
    trainer, critic = run.trainer, run.algorithm.critic
    spelled = _with(
        critic,
        tasks_per_update=critic.tasks_per_update or trainer.tasks_per_update or trainer.tasks_per_step,
        epochs_per_step=critic.epochs_per_step or trainer.epochs_per_step,
        microbatch=critic.microbatch or trainer.microbatch,
    )
    return _with(algorithm, critic=spelled)


def _sample(run: Run) -> Section:
    """Fill in the defaults of a warm-up."""
    sample, tasks = run.trainer.batch_selection, run.trainer.tasks_per_update or run.trainer.tasks_per_step
    if not isinstance(sample, WarmupSelectionConfig) or isinstance(run.algorithm, OfflineAlgorithmConfig):
        return sample
    rollouts = tasks * run.algorithm.rollouts_per_task
    return _with(
        sample,
        demonstrations=run.data.demonstrations_named(sample.demonstrations).name,
        demonstrations_per_update=sample.demonstrations_per_update or rollouts,
    )


def _schedule(run: Run, schedule: BaseScheduleConfig) -> Section:
    """Remove options without an effect: the start of an empty warm-up, the rounding of one that is no fraction, and
    the interval of a constant rate."""
    warmup = to_steps(run, schedule.warmup)
    spelled = _with(schedule, warmup=warmup)
    if schedule.warmup.unit != "%" or schedule.warmup.count == 0:
        spelled = _with(spelled, warmup_rounding="down")
    if schedule.warmup.count == 0:
        spelled = _with(spelled, warmup=Amount(0, "steps"), start_ratio=0.0)
    stays = isinstance(schedule, ConstantScheduleConfig) and schedule.warmup.count == 0
    return _with(spelled, interval="steps") if stays or updates_per_step(run) == 1 else spelled


def _with(section: Section, **changes: Any) -> Any:
    return section.model_copy(update=changes)

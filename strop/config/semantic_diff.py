"""Differences in meaning between two runs, for `strop convert`: equivalent ways to write a value are equal.

`resume_compatibility` compares two starts of one run instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from strop.config.load.config_tree import iter_values, split_key
from strop.config.load.loader import load_values
from strop.config.load.yaml_file import read_bounded, read_yaml
from strop.config.redact import redact
from strop.config.save import escape_interpolations, fingerprint, recorded_fingerprints
from strop.config.schema import Run
from strop.config.schema.base import Section
from strop.config.schema.buffer import MemorySyncConfig
from strop.config.schema.data import DataConfig
from strop.config.schema.optimizer import (
    BaseScheduleConfig,
    ConstantScheduleConfig,
    ReduceOnPlateauScheduleConfig,
)
from strop.config.schema.rollout import AutoEngineConfig
from strop.config.schema.run import RayClusterConfig, leaves, to_steps, updates_per_step
from strop.config.schema.trainer import WarmupSelectionConfig
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
    if not run.algorithm.is_offline:
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
    if (teachers := run.algorithm.distillation) is not None:
        temperature = teachers.temperature or run.rollout.sampling.temperature
        algorithm = _with(algorithm, distillation=_with(teachers, temperature=temperature))
    if (added := run.algorithm.added_demonstrations) is not None:
        return _with(algorithm, **{added.field: run.data.demonstrations_named(added.name).name})
    trainer, critic = run.trainer, run.algorithm.trained_models.get("critic")
    if critic is None:
        return algorithm
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
    if not isinstance(sample, WarmupSelectionConfig) or run.algorithm.is_offline:
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


NON_LEARNING_FIELDS = (
    "output",
    "project",
    "name",
    "folder",
    "resume",
    "mode",
    "bench",
    "synchronizer.backend",
    "synchronizer.folder",
    "synchronizer.timeout_seconds",
    "synchronizer.max_restarts",
    "checkpoint",
    "export",
    "evaluate",
    "data.eval",
    "data.tokenize_workers",
    "record",
    "buffer.on_timeout",
    "reward.timeout_seconds",
    "reward.workers",
    "reward.worker",
    "reward.sandbox",
    "reward.judge_calls",
    "reward.models.*.device",
    "reward.models.*.microbatch",
    "reward.judges.*.url",
    "reward.judges.*.api_key_env",
    "rollout.max_error_fraction",
    "rollout.engine.merge_lora",
    "rollout.engine.native.merge_lora",
    "rollout.pool",
    "rollout.max_concurrent_rollouts",
    "trainer.elastic",
    "trainer.engine",
    "trainer.microbatch",
    "trainer.skip_zero_advantages",
    "trainer.stop_after",
    "cluster",
)
"""Fields and sections that do not change what is learned: locations, checkpoints, evaluation, the number of processes,
and the division of an update's work, which change results only by rounding."""


def recorded_differences(run_file: Path, run: Run) -> list[str]:
    """Return the fields by which a run and the one of a saved run file would learn differently.

    A value that the file has as an interpolation of an environment variable is compared by its fingerprint,
    so that the variables of the recorded run need not be set.
    """
    tree = read_yaml(run_file)
    now = dict(iter_values(run.model_dump(mode="json")))
    changed = []
    for field, recorded in recorded_fingerprints(read_bounded(run_file)).items():
        keys = split_key(field)
        if not (isinstance(now.get(keys), str) and tree.has(keys)):
            continue
        is_same = not recorded or fingerprint(field, now[keys]) == recorded
        if not is_same and not _is_non_learning(field, NON_LEARNING_FIELDS):
            changed.append(f"{field} was another value of {tree.get(keys)}")
        tree.replace_value(keys, escape_interpolations(now[keys]))
    return [*changed, *resume_differences(load_values(tree.values, origin=str(run_file)).run, run)]


def resume_differences(recorded: Run, run: Run) -> list[str]:
    """Return the fields by which two runs would learn differently, as `field was ..., is ...`.

    `trainer.duration` may change if neither learning rate nor weight decay depends on the run's length.
    Secrets are compared in their redacted form, as they are saved.
    """
    free = tuple(field for field in _non_learning_fields(run) if field in _non_learning_fields(recorded))
    if not (_depends_on_length(run) or _depends_on_length(recorded)):
        free += ("trainer.duration",)
    was, now = _values(recorded), _values(run)
    return [
        f"{field} was {_show(was.get(field))}, is {_show(now.get(field))}"
        for field in dict.fromkeys((*was, *now))
        if was.get(field) != now.get(field) and not _is_non_learning(field, free)
    ]


def learning_fields(run: Run) -> dict[str, Any]:
    """Return the fields that determine what is learned, including the run's length; secrets are redacted."""
    free = _non_learning_fields(run)
    return {field: value for field, value in _values(run).items() if not _is_non_learning(field, free)}


def is_learning_field(run: Run, field: str) -> bool:
    """Return whether a field determines what a run learns."""
    return not _is_non_learning(field, _non_learning_fields(run))


def _values(run: Run) -> dict[str, Any]:
    return {".".join(leaf.keys): redact(leaf.value, leaf.keys[-1]) for leaf in leaves(run)}


def _show(value: Any) -> str:
    return "unset" if value is None else str(value)


def _is_non_learning(field: str, free: tuple[str, ...]) -> bool:
    return any(fnmatchcase(field, known) or fnmatchcase(field, f"{known}.*") for known in free)


def _non_learning_fields(run: Run) -> tuple[str, ...]:
    """Return the fields without an effect on learning; a schedule that follows evaluations excludes those."""
    follows = isinstance(run.trainer.schedule, ReduceOnPlateauScheduleConfig)
    return tuple(
        field for field in NON_LEARNING_FIELDS if not (follows and field in ("evaluate", "data.eval"))
    )


def _depends_on_length(run: Run) -> bool:
    schedules = [run.trainer.schedule, *(each.schedule for each in run.algorithm.trained_models.values())]
    if run.trainer.weight_decay_increase is not None:
        return True
    return any(not isinstance(s, ConstantScheduleConfig) or _is_fraction(s.warmup) for s in schedules)


def _is_fraction(warmup: Amount) -> bool:
    """Return whether the warm-up's length depends on the run's length."""
    return warmup.unit == "%" and warmup.count > 0

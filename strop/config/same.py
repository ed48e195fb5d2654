"""Where two configurations of one run differ in meaning, whatever way each of them puts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Mix, Ppo, Sft
from strop.config.schema.base import Section
from strop.config.schema.cluster import RayCluster
from strop.config.schema.data import Data
from strop.config.schema.sample import WarmUpSample
from strop.config.schema.schedule import ConstantSchedule, ScheduleBase
from strop.config.units import Amount


@dataclass(frozen=True, slots=True)
class Difference:
    """A field, or a whole section, and what it is in each of two runs; None where it is not there."""

    field: str
    first: Any
    second: Any


def compare(first: Run, second: Run) -> list[Difference]:
    """Every field in which two runs differ in meaning; a section that only one has is one difference."""
    return list(_compare(spelled_out(first), spelled_out(second), ()))


def _compare(first: Any, second: Any, at: tuple[str, ...]) -> Iterator[Difference]:
    if isinstance(first, Section) and type(first) is type(second):
        for name in type(first).model_fields:
            yield from _compare(getattr(first, name), getattr(second, name), (*at, name))
    elif _has_sections(first) and _has_sections(second):
        for index in range(max(len(first), len(second))):
            yield from _compare(_item(first, index), _item(second, index), (*at, str(index)))
    elif first != second:
        yield Difference(".".join(at), first, second)


def _has_sections(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, Section) for item in value)


def _item(items: tuple[Any, ...], index: int) -> Any:
    return items[index] if index < len(items) else None


def updates_per_step(run: Run) -> int | None:
    """Updates that every step makes; None where steps differ in it."""
    trainer = run.trainer
    warms_up = isinstance(run.algorithm, Ppo) and run.algorithm.critic.warmup_steps > 0
    if warms_up or run.data.incomplete_batch == "keep":
        return None
    return trainer.tasks_per_step // (trainer.tasks_per_update or trainer.tasks_per_step) * trainer.passes


def in_steps(run: Run, amount: Amount | None) -> Amount | None:
    """Updates as the steps that make them, where they make whole ones; any other amount as it is."""
    each = updates_per_step(run)
    if amount is None or amount.unit != "updates" or each is None or amount.count % each:
        return amount
    return Amount(amount.count // each, "steps")


def spelled_out(run: Run) -> Run:
    """The run with everything said that it leaves to other values, and each thing said in one way: its
    folder in one piece, types and sizes where they follow others, intervals in steps."""
    trainer, engine, kept = run.trainer, run.rollout.engine, run.checkpoint
    computed = run.model.compute_dtype or run.model.dtype
    changes: dict[str, Any] = {
        "folder": str(run.folder_path),
        "output": "runs",
        "model": _with(run.model, compute_dtype=computed),
        "rollout": _with(
            run.rollout, engine=_with(engine, dtype=computed if engine.dtype == "model" else engine.dtype)
        ),
        "data": _data(run),
        "algorithm": _algorithm(run),
        "cluster": _cluster(run),
        "checkpoint": _with(
            kept, every=in_steps(run, kept.every), resume_optimizer=kept.resume_optimizer and kept.optimizer
        ),
        "evaluate": _with(run.evaluate, every=in_steps(run, run.evaluate.every)),
        "record": _with(run.record, rollouts_every=in_steps(run, run.record.rollouts_every)),
        "trainer": _with(
            trainer,
            tasks_per_update=trainer.tasks_per_update or trainer.tasks_per_step,
            duration=in_steps(run, trainer.duration),
            schedule=_schedule(run, trainer.schedule),
            sample=_sample(run),
        ),
    }
    return run.model_copy(update=changes)


def _cluster(run: Run) -> Section:
    """Actors are in the namespace of the run's names, unless another is said."""
    section = run.cluster
    if not isinstance(section, RayCluster):
        return section
    return _with(section, namespace=section.namespace or f"{run.project}/{run.name}")


def _data(run: Run) -> Data:
    """Given answers have no column of a reference; they are bounded by the sum of the two limits, unless
    others are sampled beside them."""
    data = _with(run.data, auxiliary=tuple(_with(one, answer=None) for one in run.data.auxiliary))
    if not isinstance(run.algorithm, Sft | Dpo):
        return data
    measured = tuple(taskset if taskset.is_sampled else _with(taskset, answer=None) for taskset in data.eval)
    changes: dict[str, Any] = {"train": _with(data.train, answer=None), "eval": measured}
    if not any(taskset.is_sampled for taskset in measured):
        whole = data.max_prompt_tokens + data.max_response_tokens
        changes |= {"max_prompt_tokens": whole // 2, "max_response_tokens": whole - whole // 2}
    return _with(data, **changes)


def _algorithm(run: Run) -> Section:
    """What a critic leaves out is as for the policy; the only expert has a name."""
    if isinstance(run.algorithm, Mix):
        return _with(run.algorithm, expert=run.data.answers_of(run.algorithm.expert).name)
    if not isinstance(run.algorithm, Ppo):
        return run.algorithm
    trainer, critic = run.trainer, run.algorithm.critic
    spelled = _with(
        critic,
        tasks_per_update=critic.tasks_per_update or trainer.tasks_per_update or trainer.tasks_per_step,
        passes=critic.passes or trainer.passes,
        microbatch=critic.microbatch or trainer.microbatch,
    )
    return _with(run.algorithm, critic=spelled)


def _sample(run: Run) -> Section:
    """The same for a warm-up."""
    sample, tasks = run.trainer.sample, run.trainer.tasks_per_update or run.trainer.tasks_per_step
    if not isinstance(sample, WarmUpSample) or isinstance(run.algorithm, Sft | Dpo):
        return sample
    rollouts = tasks * run.algorithm.rollouts_per_task
    return _with(
        sample,
        answers=run.data.answers_of(sample.answers).name,
        answers_per_update=sample.answers_per_update or rollouts,
    )


def _schedule(run: Run, schedule: ScheduleBase) -> Section:
    """Where nothing warms up, the start means nothing; where nothing moves, neither does what is counted."""
    warmup = in_steps(run, schedule.warmup)
    spelled = _with(schedule, warmup=warmup)
    if schedule.warmup.count == 0:
        spelled = _with(spelled, warmup=Amount(0, "steps"), start_ratio=0.0)
    stays = isinstance(schedule, ConstantSchedule) and schedule.warmup.count == 0
    return _with(spelled, counts="steps") if stays or updates_per_step(run) == 1 else spelled


def _with(section: Section, **changes: Any) -> Any:
    return section.model_copy(update=changes)

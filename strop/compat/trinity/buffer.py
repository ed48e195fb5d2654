"""Ledger rows of Trinity's `buffer` section, with the converters of batch sizes and duration."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    any_inactive,
    mapped,
    not_on_page,
    unstated_defaults,
    written_by,
)
from strop.compat.ledger.value_types import INTEGER, nullable
from strop.compat.trinity import experience_buffer, sample_strategy, taskset_rows
from strop.compat.trinity.buffer_writer import write_batches, write_duration
from strop.compat.trinity.packaged_workflows import TRAINS_ON_VERDICTS
from strop.compat.trinity.presets import (
    MIXED,
    advantage,
    algorithm_type,
    is_offline,
    only_sampled,
    only_types,
    repeat_times,
)

_EXPERT_FRACTION = "algorithm.sample_strategy_args.expert_data_ratio"


@written_by(write_batches)
def batches(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the number of tasks per step; under sft, cpt and dpo, `train_batch_size` is the number of rows per
    step."""
    tasks, experiences = foreign["buffer.batch_size"], foreign["buffer.train_batch_size"]
    if is_offline(foreign):
        return {"trainer.tasks_per_step": tasks if experiences is None else experiences}
    repeat, fraction = repeat_times(foreign), foreign[_EXPERT_FRACTION]
    if algorithm_type(foreign) not in MIXED:
        return _task_counts(foreign, experiences, tasks, repeat)
    if experiences is None:
        return {"trainer.tasks_per_step": tasks, "algorithm.expert_fraction": fraction}
    demonstrations = ceil(fraction * experiences)
    settings = _task_counts(foreign, experiences - demonstrations, tasks, repeat, demonstrations)
    return {**settings, "algorithm.expert_fraction": demonstrations / experiences}


def _task_counts(
    foreign: ForeignValues, experiences: int | None, tasks: int, repeat: int, demonstrations: int = 0
) -> dict[str, Any]:
    """The tasks per step and per update, so that an update trains on `experiences` rollouts.

    Raises ConfigError where a number of whole tasks and steps does not give that number.
    """
    rollouts = tasks * repeat
    if not experiences or experiences == rollouts or counts_turns(foreign) or _has_other_experiences(foreign):
        return {"trainer.tasks_per_step": tasks}
    if experiences % rollouts == 0 and not demonstrations:
        return {"trainer.tasks_per_step": experiences // repeat}
    if rollouts % experiences == 0 and experiences % repeat == 0 and not demonstrations:
        return {"trainer.tasks_per_step": tasks, "trainer.tasks_per_update": experiences // repeat}
    added = f" with {demonstrations} expert responses ({_EXPERT_FRACTION})" if demonstrations else ""
    expected = rollouts + (round(rollouts * demonstrations / experiences) if demonstrations else 0)
    raise foreign.error_for(
        "buffer.train_batch_size",
        f"buffer.train_batch_size ({experiences + demonstrations}){added} does not match batch_size x repeat_times "
        f"({tasks} x {repeat} = {rollouts}), the number of rollouts per step: an update trains on whole tasks. Write "
        f"{expected}, or remove it.",
    )


def _has_other_experiences(foreign: ForeignValues) -> bool:
    """Whether the workflow trains on more than the rollouts of a task, such as on the verdicts of a judge."""
    return foreign["buffer.explorer_input.default_workflow_type"] in TRAINS_ON_VERDICTS


def counts_turns(foreign: ForeignValues) -> bool:
    """Whether an experience is a turn, of which a rollout has any number."""
    return advantage(foreign) in ("step_wise_grpo", "multi_step_grpo", "gigpo")


def _turns(foreign: ForeignValues) -> str | None:
    if foreign["buffer.train_batch_size"] and _has_other_experiences(foreign):
        return "the workflow decides how many experiences a task gives, and a step trains on those of batch_size tasks"
    if is_offline(foreign) or not counts_turns(foreign) or not foreign["buffer.train_batch_size"]:
        return None
    return "it counts turns, and Strop's step trains on all turns of the rollouts of batch_size tasks"


@written_by(write_duration)
def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration; `trainer.total_steps` takes precedence over `buffer.total_steps`, and both over the
    epochs."""
    steps = foreign["trainer.total_steps"]
    steps = foreign["buffer.total_steps"] if steps is None else steps
    return {
        "trainer.duration": f"{foreign['buffer.total_epochs']} epochs" if steps is None else f"{steps} steps"
    }


def _epochs(foreign: ForeignValues) -> str | None:
    for key in ("trainer.total_steps", "buffer.total_steps"):
        if foreign[key] is not None:
            return f"{key} is {foreign[key]} and takes precedence"
    return None


def _buffer_steps(foreign: ForeignValues) -> str | None:
    steps = foreign["trainer.total_steps"]
    return None if steps is None else f"trainer.total_steps is {steps} and takes precedence"


def _rows_counted(foreign: ForeignValues) -> str | None:
    if is_offline(foreign) and foreign["buffer.train_batch_size"] is not None:
        return f"under {algorithm_type(foreign)}, train_batch_size is the number of rows per step"
    return None


_SIZES = (
    mapped(
        "buffer.batch_size",
        1,
        "trainer.tasks_per_step",
        read=batches,
        inactive=_rows_counted,
        note="counts tasks",
    ),
    mapped(
        "buffer.train_batch_size",
        None,
        "trainer.tasks_per_step",
        "trainer.tasks_per_update",
        read=batches,
        value_type=nullable(INTEGER),
        warn=_turns,
        note="counts experiences: rollouts and, under mix, expert responses; more than those of batch_size tasks are a "
        "larger step, fewer are several updates per step",
    ),
    mapped("buffer.total_epochs", 1, "trainer.duration", read=duration, inactive=_epochs),
    mapped(
        "buffer.total_steps",
        None,
        "trainer.duration",
        read=duration,
        value_type=nullable(INTEGER),
        inactive=_buffer_steps,
        note="takes precedence over total_epochs",
    ),
)
ROWS: tuple[KeyMapping, ...] = (
    *unstated_defaults(*_SIZES),
    *taskset_rows.ROWS,
    *experience_buffer.ROWS,
    *sample_strategy.ROWS,
    taskset_rows.WORKFLOW,
    taskset_rows.REWARD,
    *taskset_rows.DEFAULTS,
    *not_on_page(
        mapped(
            _EXPERT_FRACTION,
            0.5,
            "algorithm.expert_fraction",
            read=batches,
            inactive=any_inactive(only_sampled, only_types(*MIXED)),
            note="fraction of train_batch_size; without train_batch_size, fraction of all sequences of a step",
        )
    ),
    *experience_buffer.ARGUMENTS,
    *sample_strategy.ARGUMENTS,
)
(TOTAL_STEPS,) = unstated_defaults(
    mapped(
        "trainer.total_steps",
        None,
        "trainer.duration",
        read=duration,
        value_type=nullable(INTEGER),
        note="takes precedence over buffer.total_steps and buffer.total_epochs",
    )
)

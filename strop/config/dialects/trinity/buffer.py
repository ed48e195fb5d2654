"""Trinity's `buffer`: how many tasks make a step, and how many steps a run."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from strop.config.dialects.row import (
    WHOLE,
    Row,
    beyond_the_page,
    either,
    mapped,
    or_null,
    unstated,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import auxiliary, experience, tasksets
from strop.config.dialects.trinity.presets import is_offline, kind, only_sampled, only_types, repeat_times
from strop.config.dialects.trinity.write_buffer import write_batches, write_duration

_SHARE = "algorithm.sample_strategy_args.expert_data_ratio"


@written_by(write_batches)
def batches(theirs: Theirs) -> Mapping[str, Any]:
    """Tasks of a step; under sft and dpo, `train_batch_size` counts the rows of one."""
    tasks, experiences = theirs["buffer.batch_size"], theirs["buffer.train_batch_size"]
    if is_offline(theirs):
        return {"trainer.tasks_per_step": tasks if experiences is None else experiences}
    repeat, share = repeat_times(theirs), theirs[_SHARE]
    settings: dict[str, Any] = {"trainer.tasks_per_step": tasks}
    if kind(theirs) != "mix":
        _check(theirs, experiences, tasks, repeat)
        return settings
    if experiences is None:
        return {**settings, "algorithm.expert_share": share}
    given = ceil(share * experiences)
    _check(theirs, experiences, tasks, repeat, given)
    return {**settings, "algorithm.expert_share": given / experiences}


def _check(theirs: Theirs, experiences: int | None, tasks: int, repeat: int, given: int = 0) -> None:
    """Every step trains on what it sampled, and beside it on `given` answers of an expert."""
    if experiences is None or experiences - given == tasks * repeat:
        return
    beside = f", beside {given} of an expert's answers ({_SHARE})," if given else ""
    right = tasks * repeat + (round(tasks * repeat * given / (experiences - given)) if given else 0)
    raise theirs.fault(
        "buffer.train_batch_size",
        f"buffer.train_batch_size ({experiences}){beside} is not batch_size x repeat_times ({tasks} x "
        f"{repeat} = {tasks * repeat}): a step trains on what it sampled. Write {right}, or leave it out.",
    )


@written_by(write_duration)
def duration(theirs: Theirs) -> Mapping[str, Any]:
    """`trainer.total_steps` comes before `buffer.total_steps`, and both before the epochs."""
    steps = theirs["trainer.total_steps"]
    steps = theirs["buffer.total_steps"] if steps is None else steps
    return {
        "trainer.duration": f"{theirs['buffer.total_epochs']} epochs" if steps is None else f"{steps} steps"
    }


def _epochs(theirs: Theirs) -> str | None:
    for key in ("trainer.total_steps", "buffer.total_steps"):
        if theirs[key] is not None:
            return f"{key} is {theirs[key]}, and steps beat epochs"
    return None


def _buffer_steps(theirs: Theirs) -> str | None:
    steps = theirs["trainer.total_steps"]
    return None if steps is None else f"trainer.total_steps is {steps} and comes first"


def _rows_say(theirs: Theirs) -> str | None:
    if is_offline(theirs) and theirs["buffer.train_batch_size"] is not None:
        return f"under {kind(theirs)} train_batch_size says how many rows make a step"
    return None


_SIZES = (
    mapped(
        "buffer.batch_size", 1, "trainer.tasks_per_step", read=batches, off=_rows_say, note="counts tasks"
    ),
    mapped(
        "buffer.train_batch_size",
        None,
        "trainer.tasks_per_step",
        read=batches,
        kind=or_null(WHOLE),
        note="counts experiences: rollouts, and under mix an expert's answers with them",
    ),
    mapped("buffer.total_epochs", 1, "trainer.duration", read=duration, off=_epochs),
    mapped(
        "buffer.total_steps",
        None,
        "trainer.duration",
        read=duration,
        kind=or_null(WHOLE),
        off=_buffer_steps,
        note="beats total_epochs",
    ),
)
ROWS: tuple[Row, ...] = (
    *unstated(*_SIZES),
    *tasksets.ROWS,
    *experience.ROWS,
    *auxiliary.ROWS,
    tasksets.WORKFLOW,
    tasksets.REWARD,
    *beyond_the_page(
        mapped(
            _SHARE,
            0.5,
            "algorithm.expert_share",
            read=batches,
            off=either(only_sampled, only_types("mix")),
            note="of train_batch_size; left out that one, of what is trained beside batch_size tasks",
        )
    ),
    *experience.ARGUMENTS,
    *auxiliary.ARGUMENTS,
)
(TOTAL_STEPS,) = unstated(
    mapped(
        "trainer.total_steps",
        None,
        "trainer.duration",
        read=duration,
        kind=or_null(WHOLE),
        note="beats buffer.total_steps and buffer.total_epochs",
    )
)

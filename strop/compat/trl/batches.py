"""Converters of TRL's batch sizes, which count completions, rows or pairs, and of durations and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.config.schema import Run
from strop.config.step_arithmetic import to_steps, updates_per_step
from strop.config.units import Amount


def update_batch(foreign: ForeignValues) -> int:
    """Number of completions, rows or pairs in one optimizer update."""
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    for key in sizes:
        if foreign[key] < 1:
            raise foreign.error_for(key, f"{key} is {foreign[key]}; write a number of at least 1.")
    device, accumulated, processes = (foreign[key] for key in sizes)
    return int(device * accumulated * processes)


def _device_batch(run: Run, batch: int, size: Amount) -> dict[str, Any]:
    """The batch of each process: the micro-batch of this size, if it divides the process's part of an update. The
    processes are the ranks, if they divide an update."""
    ranks = run.trainer.engine.ranks
    processes = 1 if batch % ranks else ranks
    part = batch // processes
    device = int(size.count) if size.unit == "sequences" and part % size.count == 0 else part
    return {
        "per_device_train_batch_size": device,
        "gradient_accumulation_steps": part // device,
        "num_processes": processes,
    }


def write_offline_batch(run: Run) -> Mapping[str, Any]:
    """Write the rows, pairs or packed sequences of an update, and whether an epoch's last one may be smaller."""
    size, longest = run.trainer.microbatch, run.data.max_prompt_tokens + run.data.max_response_tokens
    if run.data.packing is not None and size.unit == "tokens" and size.count % longest == 0:
        size = Amount(size.count // longest, "sequences")
    batch = _device_batch(run, run.trainer.tasks_per_update or run.trainer.tasks_per_step, size)
    return {**batch, "dataloader_drop_last": run.data.incomplete_batch == "drop"}


@written_by(write_offline_batch)
def offline_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the rows, pairs or packed sequences of an update, which is one step. The last batch of an epoch may be
    smaller."""
    device, longest = foreign["per_device_train_batch_size"], foreign["max_length"]
    packed = foreign.has_row("packing") and foreign["packing"] and longest is not None
    return {
        "trainer.tasks_per_step": update_batch(foreign),
        "trainer.microbatch": f"{device * longest} tokens" if packed else f"{device} sequences",
        "data.incomplete_batch": "drop" if foreign["dataloader_drop_last"] else "keep",
    }


def write_rollout_batch(run: Run) -> Mapping[str, Any]:
    """Write the completions of an update, and of a generation batch with several updates."""
    rollouts = getattr(run.algorithm, "rollouts_per_task", 1)
    per_step = run.trainer.tasks_per_step
    batch = (run.trainer.tasks_per_update or per_step) * rollouts
    values = _device_batch(run, batch, run.trainer.microbatch)
    several = run.trainer.tasks_per_update not in (None, per_step)
    return {
        "num_generations": rollouts,
        **values,
        "generation_batch_size": per_step * rollouts if several else None,
        "num_iterations": run.trainer.epochs_per_step,
    }


@written_by(write_rollout_batch)
def rollout_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the batch sizes, which count completions: those sampled at once are a step, and are trained on in
    one or more updates, `num_iterations` times."""
    batch, rollouts = update_batch(foreign), foreign["num_generations"]
    if rollouts is None or rollouts < 2:
        raise foreign.error_for(
            "num_generations",
            f"num_generations is {rollouts}, but GRPO compares the completions of one prompt with each other; "
            "write 2 or more.",
        )
    sampled, steps = foreign["generation_batch_size"], foreign["steps_per_generation"]
    if sampled is not None and steps is not None:
        raise foreign.error_for(
            "generation_batch_size",
            "generation_batch_size and steps_per_generation both set the completions sampled at once; write "
            "one of them.",
        )
    if sampled is None:
        accumulated = foreign["gradient_accumulation_steps"]
        sampled = batch // accumulated * (accumulated if steps is None else steps)
    for key, size, unit in (
        ("generation_batch_size", sampled, rollouts),
        ("per_device_train_batch_size", batch, rollouts),
        ("generation_batch_size", sampled, batch),
    ):
        if size < unit or size % unit:
            raise foreign.error_for(
                key,
                f"the completions sampled at once ({sampled}) must be a multiple of those of an update "
                f"(per_device_train_batch_size x gradient_accumulation_steps x num_processes, {batch}), and "
                f"both a multiple of num_generations ({rollouts}), because Strop updates on whole groups; "
                "change gradient_accumulation_steps.",
            )
    return {
        "algorithm.rollouts_per_task": rollouts,
        "trainer.tasks_per_step": sampled // rollouts,
        "trainer.tasks_per_update": None if sampled == batch else batch // rollouts,
        "trainer.epochs_per_step": foreign["num_iterations"],
        "trainer.microbatch": f"{foreign['per_device_train_batch_size']} sequences",
    }


def write_duration(run: Run) -> Mapping[str, Any]:
    """Write the duration in epochs or updates."""
    length = run.trainer.duration
    if length.unit == "epochs":
        return {"num_train_epochs": length.count}
    return {"max_steps": in_updates(run, length)}


@written_by(write_duration)
def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration; a positive `max_steps` counts updates and takes precedence over the epochs."""
    steps, epochs = foreign["max_steps"], foreign["num_train_epochs"]
    return {"trainer.duration": f"{steps} updates" if steps > 0 else f"{epochs} epochs"}


def epochs_overridden(foreign: ForeignValues) -> str | None:
    """The number of updates takes precedence over the number of epochs."""
    steps = foreign["max_steps"]
    return f"max_steps is {steps} and takes precedence" if steps > 0 else None


def in_updates(run: Run, amount: Amount | None) -> float | None:
    """An interval in updates; None if updates cannot express it."""
    steps, per_step = to_steps(run, amount), updates_per_step(run)
    if steps is None:
        return None
    if steps.unit == "steps":
        return None if per_step is None else steps.count * per_step
    return steps.count if steps.unit == "updates" else None


def interval(foreign: ForeignValues, strategy: str, steps: float) -> str:
    """The interval of a strategy: never, every epoch, or a number of updates."""
    if strategy == "steps" and (steps < 1 or steps != int(steps)):
        key = "save_steps" if strategy == foreign["save_strategy"] else "eval_steps"
        raise foreign.error_for(
            key, f"an interval of {steps} steps is a fraction of the run; write a whole number of updates."
        )
    return {"no": "never", "epoch": "1 epochs"}.get(strategy, f"{int(steps)} updates")


def write_saving(run: Run) -> Mapping[str, Any]:
    """Write the interval of checkpoints, how many are kept, and whether the best one counts."""
    often = run.checkpoint.every
    values: dict[str, Any] = {"save_total_limit": run.checkpoint.keep}
    values["save_only_model"] = not run.checkpoint.save_optimizer
    if often is None:
        return {**values, "save_strategy": "no"}
    if often.unit == "epochs":
        return {**values, "save_strategy": "epoch" if often.count == 1 else None}
    updates = in_updates(run, often)
    return {**values, "save_strategy": "steps" if updates else None, "save_steps": updates}


@written_by(write_saving)
def saving(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the interval of checkpoints, how many are kept, and what they hold besides the model, which each of
    them exports as a Hugging Face folder."""
    strategy = foreign["save_strategy"]
    return {
        "checkpoint.every": interval(foreign, strategy, foreign["save_steps"]),
        "checkpoint.keep": foreign["save_total_limit"],
        "checkpoint.save_optimizer": not foreign["save_only_model"],
        "checkpoint.export": True,
    }

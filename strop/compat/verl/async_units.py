"""Units of verl's asynchronous trainers, in Strop's steps: batches, weight versions, staleness and duration.

The trainer of `fully_async_policy` trains on `ppo_mini_batch_size` * `require_batches` prompts at a time (a step of
Strop), and publishes its weights after `trigger_parameter_sync_step` of these (a version, by which verl counts
evaluations and checkpoints).

Of trainer v1, `colocate_async` samples a batch of `data.train_batch_size` prompts in each step, with
`num_warmup_batches` further batches under way. `separate_async` does the same, trains on each `ppo_mini_batch_size`
prompts as they arrive (a step of Strop), and publishes its weights after `parameter_sync_step` of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues

V1 = "trainer.v1"
V1_MODE = f"{V1}.trainer_mode"
_COLOCATED, SEPARATE = "colocate_async", "separate_async"
V1_INTERVAL = f"{V1}.{SEPARATE}.parameter_sync_step"
MINI_BATCH, _BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size", "data.train_batch_size"
V1_WARMUP = {mode: f"{V1}.{mode}.num_warmup_batches" for mode in (_COLOCATED, SEPARATE)}
V1_OLDEST = f"{V1}.sampler.max_off_policy_threshold"


def async_mode(foreign: ForeignValues) -> str | None:
    """The asynchronous mode of trainer v1; None for the synchronous trainer."""
    mode = str(foreign[V1_MODE])
    return mode if foreign["trainer.use_v1"] and mode in V1_WARMUP else None


def _is_separate(foreign: ForeignValues) -> bool:
    """Whether a step is one mini-batch of verl's, of which a version has several."""
    return async_mode(foreign) == SEPARATE


def v1_steps_per_version(foreign: ForeignValues) -> int:
    """Steps between two publications of the weights."""
    return _at_least(foreign, V1_INTERVAL, 1) if _is_separate(foreign) else 1


def _v1_tasks_per_step(foreign: ForeignValues) -> int:
    """Prompts of a mini-batch under `separate_async`. Raises ConfigError where verl does."""
    size, batch, interval = foreign[MINI_BATCH], foreign[_BATCH], v1_steps_per_version(foreign)
    if batch != size * interval:
        raise foreign.error_for(
            _BATCH,
            f"{_BATCH} is {batch}, and under {V1_MODE}={SEPARATE} it must be {MINI_BATCH} ({size}) * {V1_INTERVAL} "
            f"({interval}), {size * interval}; write that.",
        )
    return int(size)


def v1_synchronizer(foreign: ForeignValues, mode: str) -> Mapping[str, Any]:
    """Read the explorer: the batch of a step and the further ones are under way with the weights of one version."""
    further, interval = _at_least(foreign, V1_WARMUP[mode], 0), v1_steps_per_version(foreign)
    if foreign[V1_OLDEST] < further + 1:
        raise foreign.error_for(
            V1_OLDEST,
            f"{V1_OLDEST} is {foreign[V1_OLDEST]}, and {V1_WARMUP[mode]}={further} lets rollouts span {further + 1} "
            f"versions of the weights, of which verl drops the oldest; write {further + 1} or a greater number.",
        )
    return {
        "synchronizer.type": "collective",
        "synchronizer.style.type": "bounded",
        "synchronizer.style.every": f"{interval} steps",
        "synchronizer.style.max_staleness": f"{(further + 1) * interval - 1} steps",
        "synchronizer.style.pause_mode": "abort",
    }


def _at_least(foreign: ForeignValues, key: str, least: int) -> int:
    value = foreign[key]
    if value < least:
        raise foreign.error_for(key, f"{key} is {value}; write {least} or a greater number.")
    return int(value)


_ASYNC = "async_training"
STALENESS, INTERVAL = f"{_ASYNC}.staleness_threshold", f"{_ASYNC}.trigger_parameter_sync_step"
REQUIRED, PARTIAL = f"{_ASYNC}.require_batches", f"{_ASYNC}.partial_rollout"
TOTAL = "rollout.total_rollout_steps"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_PROXIMAL = f"{_ASYNC}.compute_prox_log_prob"
_HYBRID, _GENERATED = "actor_rollout_ref.hybrid_engine", "data.gen_batch_size"


def is_bypass(foreign: ForeignValues) -> bool:
    """Whether the sampler's log-probs are the old ones: verl's bypass mode, which has losses of its own. The first
    versions of the fully asynchronous trainer have a key that says the opposite."""
    return bool(foreign[_BYPASS]) and not foreign[_PROXIMAL]


def is_fully_async(foreign: ForeignValues) -> bool:
    """Whether the configuration is that of verl's fully asynchronous trainer, which has a program of its own."""
    named = any(key in foreign.written for key in (STALENESS, INTERVAL, REQUIRED))
    return named or (TOTAL in foreign.written and foreign[TOTAL] is not None)


def synchronous(foreign: ForeignValues) -> str | None:
    """Keys of the fully asynchronous trainer that another one ignores."""
    return None if is_fully_async(foreign) else "the trainer is not the fully asynchronous one"


def has_mini_batch_steps(foreign: ForeignValues) -> bool:
    """Whether the trainer takes mini-batches from a queue, each a step or a part of one."""
    return is_fully_async(foreign) or _is_separate(foreign)


def fully_async(foreign: ForeignValues) -> str | None:
    """verl's fully asynchronous trainer takes the number of prompts of a step from the mini-batches."""
    if not is_fully_async(foreign):
        return None
    return f"the fully asynchronous trainer trains on {MINI_BATCH} * {REQUIRED} prompts at a time"


def steps_alone(foreign: ForeignValues) -> str | None:
    """verl's fully asynchronous trainer does not read the number of training steps."""
    return f"the fully asynchronous trainer counts {TOTAL} instead" if is_fully_async(foreign) else None


def unfiltered(foreign: ForeignValues) -> str | None:
    """verl's fully asynchronous trainer does not replace groups."""
    return "the fully asynchronous trainer trains on all groups" if is_fully_async(foreign) else None


def tasks_per_step(foreign: ForeignValues) -> int:
    """Prompts that the trainer takes from the queue at a time."""
    if not is_fully_async(foreign):
        return _v1_tasks_per_step(foreign)
    return int(_positive(foreign, MINI_BATCH) * _positive(foreign, REQUIRED))


def steps_per_version(foreign: ForeignValues) -> int:
    """Steps between two publications of the weights; 1 in verl's synchronous trainer."""
    if is_fully_async(foreign):
        return int(_positive(foreign, INTERVAL))
    return v1_steps_per_version(foreign)


def _positive(foreign: ForeignValues, key: str) -> float:
    value = foreign[key]
    if value < 1:
        raise foreign.error_for(key, f"{key} is {value}; write a positive number.")
    return float(value)


def max_outstanding(foreign: ForeignValues) -> int:
    """Prompts that verl samples with one version, and those that are left when the version is published."""
    if foreign[STALENESS] < 0:
        raise foreign.error_for(
            STALENESS, f"{STALENESS} is {foreign[STALENESS]}; write 0 or a positive number."
        )
    return int(tasks_per_step(foreign) * (foreign[STALENESS] + 1) * steps_per_version(foreign))


def max_staleness(foreign: ForeignValues) -> int:
    """Greatest age in steps that lets the explorer sample no prompt that verl would hold back."""
    return max_outstanding(foreign) // tasks_per_step(foreign) - 1


def synchronizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the explorer: it takes the newest weights, and waits only where its prompts would exceed the staleness."""
    if foreign.is_set(_HYBRID) and foreign[_HYBRID]:
        raise foreign.error_for(
            _HYBRID,
            f"{_HYBRID} is True, and the fully asynchronous trainer ({_ASYNC}) stops at its start unless it is False; "
            f"write {_HYBRID}=False.",
        )
    if foreign[_GENERATED] not in (None, 1):
        raise foreign.error_for(
            _GENERATED,
            f"{_GENERATED} is {foreign[_GENERATED]}, and the fully asynchronous trainer ({_ASYNC}) samples prompt by "
            f"prompt; write {_GENERATED}=1.",
        )
    return {
        "synchronizer.type": "collective",
        "synchronizer.style.type": "bounded",
        "synchronizer.style.every": f"{steps_per_version(foreign)} steps",
        "synchronizer.style.max_staleness": f"{max_staleness(foreign)} steps",
        "synchronizer.style.pause_mode": "abort" if foreign[PARTIAL] else "finish",
    }


def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration: the trainer stops where the prompts that are left do not fill a step."""
    epochs, prompts = foreign["trainer.total_epochs"], foreign[TOTAL]
    if prompts is None:
        return {"trainer.duration": f"{epochs} epochs", "trainer.stop_after": None}
    steps = int(prompts) // tasks_per_step(foreign)
    if steps < 1:
        raise foreign.error_for(
            TOTAL,
            f"{TOTAL} is {prompts}, and a step takes {tasks_per_step(foreign)} prompts ({MINI_BATCH} * {REQUIRED}), so "
            "that the run would end before its first step; write a greater number.",
        )
    return {"trainer.duration": f"{steps} steps", "trainer.stop_after": f"{epochs} epochs"}


def staleness_notice(foreign: ForeignValues) -> str | None:
    """Notice of a bound below verl's, where verl's is not a whole number of steps."""
    size, oldest = tasks_per_step(foreign), max_staleness(foreign)
    more = max_outstanding(foreign) - (oldest + 1) * size
    if not more:
        return None
    return (
        f"weights are at most {oldest} steps old, where verl also lets {more} of the {size} prompts of the next step "
        "be sampled with them: Strop's bound counts whole steps, and never exceeds verl's"
    )


def unwritten_ratio_notice(foreign: ForeignValues) -> str | None:
    """The notice of other old log-probs, where no key of the configuration decides about them."""
    return None if foreign.is_set(_BYPASS) else ratio_notice(foreign)


def ratio_notice(foreign: ForeignValues) -> str | None:
    """Notice of other old log-probs, where verl computes them with the weights of the last version."""
    if is_bypass(foreign):
        return None
    interval = steps_per_version(foreign)
    if interval == 1:
        return None
    return (
        "the ratio is that to the weights at the start of each step; verl's asynchronous trainer computes the "
        f"old log-probs of all {interval} steps of a version with the weights at the start of the first"
    )

"""Asynchronous modes of verl's trainer v1, `trainer.v1.trainer_mode`: ledger rows, and their units in Strop's steps.

`colocate_async` samples a batch of `data.train_batch_size` prompts in each step, with `num_warmup_batches` further
batches under way. `separate_async` does the same, trains on each `ppo_mini_batch_size` prompts as they arrive (a step
of Strop), and publishes its weights after `parameter_sync_step` of these (a version, by which verl counts its steps).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    always,
    mapped,
    no_effect,
    placement,
    refused,
)
from strop.compat.ledger.placement_notes import ONE_MACHINE
from strop.compat.ledger.value_types import ANY, one_of

_V1 = "trainer.v1"
MODE = f"{_V1}.trainer_mode"
COLOCATED, SEPARATE = "colocate_async", "separate_async"
INTERVAL = f"{_V1}.{SEPARATE}.parameter_sync_step"
MINI_BATCH, _BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size", "data.train_batch_size"
_WARMUP = {mode: f"{_V1}.{mode}.num_warmup_batches" for mode in (COLOCATED, SEPARATE)}
_OLDEST = f"{_V1}.sampler.max_off_policy_threshold"


def async_mode(foreign: ForeignValues) -> str | None:
    """The asynchronous mode of trainer v1; None for the synchronous trainer."""
    mode = str(foreign[MODE])
    return mode if foreign["trainer.use_v1"] and mode in _WARMUP else None


def is_separate(foreign: ForeignValues) -> bool:
    """Whether a step is one mini-batch of verl's, of which a version has several."""
    return async_mode(foreign) == SEPARATE


def steps_per_version(foreign: ForeignValues) -> int:
    """Steps between two publications of the weights."""
    return _at_least(foreign, INTERVAL, 1) if is_separate(foreign) else 1


def tasks_per_step(foreign: ForeignValues) -> int:
    """Prompts of a mini-batch under `separate_async`. Raises ConfigError where verl does."""
    size, batch, interval = foreign[MINI_BATCH], foreign[_BATCH], steps_per_version(foreign)
    if batch != size * interval:
        raise foreign.error_for(
            _BATCH,
            f"{_BATCH} is {batch}, and under {MODE}={SEPARATE} it must be {MINI_BATCH} ({size}) * {INTERVAL} "
            f"({interval}), {size * interval}; write that.",
        )
    return int(size)


def synchronizer(foreign: ForeignValues, mode: str) -> Mapping[str, Any]:
    """Read the explorer: the batch of a step and the further ones are under way with the weights of one version."""
    further, interval = _at_least(foreign, _WARMUP[mode], 0), steps_per_version(foreign)
    if foreign[_OLDEST] < further + 1:
        raise foreign.error_for(
            _OLDEST,
            f"{_OLDEST} is {foreign[_OLDEST]}, and {_WARMUP[mode]}={further} lets rollouts span {further + 1} versions "
            f"of the weights, of which verl drops the oldest; write {further + 1} or a greater number.",
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


def _only(*modes: str) -> InactiveCheck:
    def inactive(foreign: ForeignValues) -> str | None:
        mode = async_mode(foreign)
        return None if mode in modes else f"the trainer's mode is {mode or 'sync'}"

    return inactive


def rows(read: Any, batches: Any, warn: InactiveCheck) -> tuple[KeyMapping, ...]:
    """Rows of `trainer.v1`; `read` reads the synchronizer, `batches` the batch sizes, and `warn` gives a notice."""
    style = "synchronizer.style"
    return (
        mapped(
            MODE,
            "sync",
            f"{style}.type",
            read=read,
            value_type=one_of("sync", *_WARMUP),
            warn=warn,
            inactive=lambda foreign: None if foreign["trainer.use_v1"] else "trainer.use_v1 is False",
            note="the asynchronous modes have an explorer of style bounded, whose rollouts continue with newer "
            f"weights; under {SEPARATE} a step is ppo_mini_batch_size prompts, and trainer.total_training_steps, "
            "test_freq and save_freq count versions",
        ),
        mapped(
            _OLDEST,
            8,
            f"{style}.max_staleness",
            read=read,
            inactive=_only(*_WARMUP),
            note="no rollout is older than max_staleness, so nothing is left to drop or to wait for",
        ),
        *(
            mapped(
                key,
                1,
                f"{style}.max_staleness",
                read=read,
                inactive=_only(mode),
                note="(it + 1) * parameter_sync_step - 1 steps" if mode == SEPARATE else "in steps",
            )
            for mode, key in _WARMUP.items()
        ),
        mapped(
            INTERVAL, 4, f"{style}.every", "trainer.tasks_per_step", read=batches, inactive=_only(SEPARATE)
        ),
        placement(
            f"{_V1}.{SEPARATE}.hybrid_rollout.*",
            UNSET,
            f"explorer and trainer share {ONE_MACHINE.removeprefix('a single process on ')}",
            supported=always,
            value_type=ANY,
        ),
        no_effect(
            f"{_V1}.sampler.max_off_policy_strategy",
            "drop",
            "no rollout exceeds the greatest age, so none is dropped or waited for",
            value_type=one_of("drop", "wait"),
        ),
        no_effect(
            f"{_V1}.sampler.sync_refill_failed_groups",
            False,
            "rollouts that fail are sampled again",
        ),
        refused(
            f"{_V1}.sampler.custom_sampler.path",
            None,
            "Strop has no interface for classes that choose rollouts from verl's transfer queue; leave it null",
        ),
        no_effect(f"{_V1}.*", UNSET, "it belongs to no mode of the trainer that Strop runs", value_type=ANY),
    )

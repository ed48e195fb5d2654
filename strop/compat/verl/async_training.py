"""Ledger rows of verl's asynchronous trainers: `fully_async_policy`, the modes of trainer v1, and the
one-step-off-policy trainer, which samples a step while it trains on the one before. `switches` has their units."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    INTEGER,
    ONE_MACHINE,
    UNSET,
    ForeignValues,
    InactiveCheck,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    placement,
    refused,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.data import batches
from strop.compat.verl.rollout_correction import correction
from strop.compat.verl.switches import SEPARATE, V1, V1_INTERVAL, V1_MODE, V1_OLDEST, V1_WARMUP, async_mode
from strop.compat.verl.trainer import duration
from strop.config.schema import Run
from strop.config.schema.buffer import CollectiveSyncConfig, FixedStyleConfig

_HYBRID = "actor_rollout_ref.hybrid_engine"


def write_one_step_off(run: Run) -> Mapping[str, Any]:
    """Write an explorer that is one step ahead; verl has no key for other leads."""
    synchronizer = run.synchronizer
    if not isinstance(synchronizer, CollectiveSyncConfig):
        return {}
    one_ahead = FixedStyleConfig().model_copy(update={"max_lead": FixedStyleConfig().every})
    return {_HYBRID: False} if synchronizer.style == one_ahead else {}


@written_by(
    write_one_step_off,
    off={_HYBRID: True}
    | dict.fromkeys(
        (switches.STALENESS, switches.INTERVAL, switches.REQUIRED, switches.TOTAL, switches.V1_MODE), UNSET
    ),
)
def explorer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the explorer: in turns with the trainer, or a process of its own, one step ahead or asynchronous."""
    if switches.is_fully_async(foreign):
        return switches.synchronizer(foreign)
    if mode := switches.async_mode(foreign):
        return switches.v1_synchronizer(foreign, mode)
    if foreign[_HYBRID]:
        return {}
    return {"synchronizer.type": "collective", "synchronizer.style.max_lead": "1 steps"}


_SHARED = "explorer and trainer are two processes, which share this machine's processors as they need them"
_STYLE = "synchronizer.style"


def _only(*modes: str) -> InactiveCheck:
    def inactive(foreign: ForeignValues) -> str | None:
        mode = async_mode(foreign)
        return None if mode in modes else f"the trainer's mode is {mode or 'sync'}"

    return inactive


_row = partial(mapped, read=explorer)
_LISTED = (
    _row(
        _HYBRID,
        True,
        "synchronizer.type",
        "synchronizer.style.max_lead",
        note="False: a separate explorer samples a step while the trainer trains on the step before, as in verl's "
        "one_step_off_policy",
    ),
)
_UNLISTED = not_on_page(
    *(
        placement(
            f"rollout.{name}",
            UNSET,
            f"explorer and trainer share {ONE_MACHINE.removeprefix('a single process on ')}",
        )
        for name in ("nnodes", "n_gpus_per_node")
    ),
    no_effect("rollout.n", UNSET, "actor_rollout_ref.rollout.n applies"),
    _row(
        switches.STALENESS,
        0.1,
        f"{_STYLE}.max_staleness",
        warn=switches.staleness_notice,
        inactive=switches.synchronous,
        note="the prompts that verl samples with one version, as whole steps: floor((1 + it) * "
        "trigger_parameter_sync_step) - 1",
    ),
    _row(
        switches.INTERVAL,
        4,
        f"{_STYLE}.every",
        inactive=switches.synchronous,
        note="counts steps of ppo_mini_batch_size * require_batches prompts; trainer.test_freq and trainer.save_freq "
        "then count these intervals",
    ),
    _row(
        switches.PARTIAL,
        True,
        f"{_STYLE}.pause_mode",
        inactive=switches.synchronous,
        note="True: abort; False: finish, as verl's documentation says",
    ),
    _row(
        V1_MODE,
        "sync",
        f"{_STYLE}.type",
        value_type=one_of("sync", *V1_WARMUP),
        warn=switches.unwritten_ratio_notice,
        inactive=lambda foreign: None if foreign["trainer.use_v1"] else "trainer.use_v1 is False",
        note="the asynchronous modes have an explorer of style bounded, whose rollouts continue with newer "
        f"weights; under {SEPARATE} a step is ppo_mini_batch_size prompts, and trainer.total_training_steps, "
        "test_freq and save_freq count versions",
    ),
    _row(
        V1_OLDEST,
        8,
        f"{_STYLE}.max_staleness",
        inactive=_only(*V1_WARMUP),
        note="no rollout is older than max_staleness, so nothing is left to drop or to wait for",
    ),
    *(
        _row(
            key,
            1,
            f"{_STYLE}.max_staleness",
            inactive=_only(mode),
            note="(it + 1) * parameter_sync_step - 1 steps" if mode == SEPARATE else "in steps",
        )
        for mode, key in V1_WARMUP.items()
    ),
    mapped(
        V1_INTERVAL, 4, f"{_STYLE}.every", "trainer.tasks_per_step", read=batches, inactive=_only(SEPARATE)
    ),
    mapped(
        switches.REQUIRED,
        1,
        "trainer.tasks_per_step",
        read=batches,
        inactive=switches.synchronous,
        note="updates of a step, each of ppo_mini_batch_size prompts",
    ),
    mapped(
        switches.TOTAL,
        100,
        "trainer.duration",
        read=duration,
        value_type=nullable(INTEGER),
        inactive=switches.synchronous,
        note="counts prompts; trainer.total_epochs may end the run before",
    ),
    *(
        placement(f"async_training.{name}", UNSET, instead)
        for name, instead in (
            ("use_trainer_do_validate", "the explorer evaluates"),
            ("use_dynamic_resource_scheduling", _SHARED),
            ("dynamic_schedule_policy", _SHARED),
            ("dynamic_schedule_deactivate_ratio", _SHARED),
            ("dynamic_schedule_enable_rebalance", _SHARED),
            ("concurrent_samples_per_replica", "the sampler takes the completions that its KV cache holds"),
            ("checkpoint_engine.*", "the explorer receives the weights from the trainer directly"),
        )
    ),
    mapped(
        "async_training.compute_prox_log_prob",
        False,
        "algorithm.old_policy",
        read=correction,
        warn=switches.ratio_notice,
        inactive=switches.synchronous,
        note="the opposite of algorithm.rollout_correction.bypass_mode, over which it takes precedence",
    ),
    refused(
        "async_training.use_rollout_log_probs",
        True,
        "without the sampler's log-probs, write async_training.compute_prox_log_prob=True or, in later versions, "
        "algorithm.rollout_correction.bypass_mode=False",
        inactive=switches.synchronous,
    ),
    refused(
        "async_training.*",
        UNSET,
        "the fully asynchronous trainer of verl 2026-08 has staleness_threshold, trigger_parameter_sync_step, "
        "require_batches, partial_rollout, use_trainer_do_validate and keys of dynamic scheduling, and not this one; "
        "remove it",
    ),
    placement(
        f"{V1}.{SEPARATE}.hybrid_rollout.*",
        UNSET,
        f"explorer and trainer share {ONE_MACHINE.removeprefix('a single process on ')}",
    ),
    no_effect(
        f"{V1}.sampler.max_off_policy_strategy",
        "drop",
        "no rollout exceeds the greatest age, so none is dropped or waited for",
        value_type=one_of("drop", "wait"),
    ),
    no_effect(f"{V1}.sampler.sync_refill_failed_groups", False, "rollouts that fail are sampled again"),
    refused(
        f"{V1}.sampler.custom_sampler.path",
        None,
        "Strop has no interface for classes that choose rollouts from verl's transfer queue; leave it null",
    ),
    no_effect(f"{V1}.*", UNSET, "it belongs to no mode of the trainer that Strop runs"),
)
ROWS = (*_LISTED, *_UNLISTED)

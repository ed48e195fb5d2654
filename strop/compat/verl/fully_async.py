"""Ledger rows of verl's asynchronous trainers, `fully_async_policy` and the modes of trainer v1; `async_units` and
`trainer_v1` have their meaning."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import (
    UNSET,
    always,
    mapped,
    never,
    no_effect,
    not_on_page,
    placement,
    refused,
)
from strop.compat.ledger.value_types import ANY, BOOLEAN, INTEGER, NUMBER, nullable
from strop.compat.verl import async_units, trainer_v1
from strop.compat.verl.data import batches
from strop.compat.verl.one_step_off import explorer
from strop.compat.verl.rollout_correction import correction
from strop.compat.verl.trainer import duration

_SHARED = "explorer and trainer are two processes, which share this machine's processors as they need them"
_STYLE = "synchronizer.style"

ROWS = not_on_page(
    mapped(
        async_units.STALENESS,
        0.1,
        f"{_STYLE}.max_staleness",
        read=explorer,
        value_type=NUMBER,
        warn=async_units.staleness_notice,
        inactive=async_units.synchronous,
        note="the prompts that verl samples with one version, as whole steps: floor((1 + it) * "
        "trigger_parameter_sync_step) - 1",
    ),
    mapped(
        async_units.INTERVAL,
        4,
        f"{_STYLE}.every",
        read=explorer,
        value_type=INTEGER,
        inactive=async_units.synchronous,
        note="counts steps of ppo_mini_batch_size * require_batches prompts; trainer.test_freq and trainer.save_freq "
        "then count these intervals",
    ),
    mapped(
        async_units.REQUIRED,
        1,
        "trainer.tasks_per_step",
        read=batches,
        value_type=INTEGER,
        inactive=async_units.synchronous,
        note="updates of a step, each of ppo_mini_batch_size prompts",
    ),
    mapped(
        async_units.PARTIAL,
        True,
        f"{_STYLE}.pause_mode",
        read=explorer,
        value_type=BOOLEAN,
        inactive=async_units.synchronous,
        note="True: abort; False: finish, as verl's documentation says",
    ),
    mapped(
        async_units.TOTAL,
        100,
        "trainer.duration",
        read=duration,
        value_type=nullable(INTEGER),
        inactive=async_units.synchronous,
        note="counts prompts; trainer.total_epochs may end the run before",
    ),
    no_effect("rollout.n", UNSET, "actor_rollout_ref.rollout.n applies", value_type=ANY),
    *(
        placement(f"async_training.{name}", UNSET, instead, supported=always, value_type=ANY)
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
        warn=async_units.ratio_notice,
        inactive=async_units.synchronous,
        note="the opposite of algorithm.rollout_correction.bypass_mode, over which it takes precedence",
    ),
    refused(
        "async_training.use_rollout_log_probs",
        True,
        "without the sampler's log-probs, write async_training.compute_prox_log_prob=True or, in later versions, "
        "algorithm.rollout_correction.bypass_mode=False",
        inactive=async_units.synchronous,
    ),
    refused(
        "async_training.*",
        UNSET,
        "the fully asynchronous trainer of verl 2026-08 has staleness_threshold, trigger_parameter_sync_step, "
        "require_batches, partial_rollout, use_trainer_do_validate and keys of dynamic scheduling, and not this one; "
        "remove it",
        supported=never,
    ),
    *trainer_v1.rows(explorer, batches, async_units.unwritten_ratio_notice),
)

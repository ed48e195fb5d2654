"""Ledger rows of Trinity keys that a file need not have: those that Trinity computes itself, and those of verl's
configuration that its trainer does not read."""

from __future__ import annotations

from collections.abc import Iterator

from strop.compat.ledger.key_mapping import (
    UNSET,
    KeyMapping,
    never,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    versions,
)
from strop.compat.ledger.value_types import ANY
from strop.compat.trinity.serving_engine import extra_arguments_row

_COMPUTED = "Trinity sets it itself"
_NO_PREPARATION = "Strop's runners need no preparation of a process"
_SWITCH = "its switch is off"
_UNREAD = "Trinity's trainer does not read it"
_AUXILIARY = "explorer.auxiliary_models.0"
_BUFFER, _VERL = "buffer.trainer_input.experience_buffer", "trainer.trainer_config"
_ENGINE = (
    *(
        "enable_lora",
        "enable_runtime_lora_updating",
        "lora_modules",
        "lora_kwargs",
        "rope_scaling",
        "rope_theta",
    ),
    *(
        "engine_id",
        "ray_namespace",
        "ray_actor_name",
        "sync_method",
        "checkpoint_job_dir",
        "cuda_visible_devices",
    ),
    *("gpu_per_engine", "nnodes", "node_rank", "enable_return_routed_experts", "trust_remote_code"),
    "external_model_config.*",
)
"""Keys of an inference model that follow from other keys."""
_TASK_FILE = (
    *(
        "format.chosen_key",
        "format.rejected_key",
        "format.enable_concatenated_multi_turn",
        "format.chat_template",
    ),
    *(
        "format.enable_thinking",
        "max_read_timeout",
        "mm_data_kwargs",
        "replay_buffer_kwargs",
        "replay_buffer",
    ),
    *("reuse_cooldown_time", "schema_type", "use_priority_queue", "wrap_in_ray", "tokenizer_path"),
)
"""Keys of a storage that a taskset does not use."""
_ROLLOUTS = (
    *(
        "data_selector.*",
        "default_workflow_type",
        "default_eval_workflow_type",
        "default_reward_fn_type",
        "is_eval",
    ),
    *("mm_data_kwargs", "repeat_times", "rollout_args.*", "workflow_args", "reward_fn_args"),
    *("format.workflow_key", "format.reward_fn_key", "format.video_key"),
)
"""Keys of a storage that the experience buffer does not use."""
_OVERWRITTEN = {
    "project_name": "project",
    "group_name": "group",
    "experiment_name": "name",
    "logger": "monitor.monitor_type",
    "nnodes": "cluster.node_num",
    "n_gpus_per_node": "cluster.gpu_per_node",
    "save_freq": "trainer.save_interval",
    "test_freq": "explorer.eval_interval",
    "sync_freq": "synchronizer.sync_interval",
    "total_epochs": "buffer.total_epochs",
    "default_local_dir": "checkpoint_root_dir",
    "val_before_train": "explorer.eval_on_startup",
    "sft_warmup_steps": "buffer.trainer_input.sft_warmup_steps",
}
"""Keys of verl's trainer, each with Trinity's key that takes its place."""
_DISUSED = ("val_generations_to_log_to_wandb", "training_rollout_mode", "enable_exp_buffer", "device")


def _rows(section: str, names: tuple[str, ...], why: str) -> Iterator[KeyMapping]:
    for name in names:
        yield no_effect(f"{section}.{name}", UNSET, why, value_type=ANY)


def _engine_rows(section: str) -> Iterator[KeyMapping]:
    """Options of an inference model that the native sampler does not have."""
    yield from _rows(section, ("weight_sync_buffer_size",), "weights are sent without a buffer of a set size")
    yield from _rows(
        section, ("base_port", "api_key"), "an endpoint has a free port of this machine and its own token"
    )
    yield from _rows(section, ("enable_multimodal",), "format.image_key decides whether prompts have images")


ROWS: tuple[KeyMapping, ...] = not_on_page(
    no_effect("checkpoint_job_dir", UNSET, _COMPUTED, value_type=ANY),
    *_rows("buffer", ("explorer_output.*", "tokenizer_path", "pad_token_id", "cache_dir"), _COMPUTED),
    *_rows(
        "cluster", tuple(f"{name}_gpu_num" for name in ("total", "rollout", "auxiliary_model")), _COMPUTED
    ),
    *_rows("cluster", ("explorer_gpu_num", "trainer_gpu_num"), _COMPUTED),
    *_rows("cluster", ("trainer_node_num", "trainer_gpu_num_per_node"), _COMPUTED),
    *_rows("explorer.rollout_model", (*_ENGINE, "name"), _COMPUTED),
    *_rows(_AUXILIARY, (*_ENGINE, "bundle_indices"), _COMPUTED),
    *_rows(_AUXILIARY, ("enable_log_requests",), "the native sampler logs no requests"),
    *_rows(
        _AUXILIARY,
        ("enable_prompt_truncation",),
        "prompts of auxiliary models are bounded by the model alone",
    ),
    *(
        refused(f"{_AUXILIARY}.{name}", None, why, supported=only(None, False, ""))
        for name, why in (
            ("ignore_eos", "it is for tests of long responses; remove it"),
            ("chat_template", "an auxiliary model has its tokenizer's chat template; remove it"),
        )
    ),
    *_rows("synchronizer", ("explorer_world_size", "ray_namespace"), _COMPUTED),
    *_rows("log", ("save_dir",), _COMPUTED),
    *_rows("monitor", ("cache_dir",), _COMPUTED),
    *_rows("trainer", ("trust_remote_code",), _COMPUTED),
    *(
        row
        for taskset in ("taskset", "eval_tasksets.0")
        for row in _rows(f"buffer.explorer_input.{taskset}", _TASK_FILE, "a taskset does not use it")
    ),
    *_rows(_BUFFER, _ROLLOUTS, "the experience buffer does not use it"),
    *_rows(_VERL, ("data.*", "buffer.*", "synchronizer.*", "global_profiler.*", "enable_preview"), _UNREAD),
    *_rows(_VERL, ("custom_reward_function.*", "reward_model.*", "reward.*"), _UNREAD),
    *_rows(
        f"{_VERL}.actor_rollout_ref",
        ("rollout.*", "synchronizer.*", "explorer_name", "nccl_timeout"),
        _UNREAD,
    ),
    *_rows(f"{_VERL}.actor_rollout_ref.ref", ("checkpoint.*",), _UNREAD),
    *_rows(f"{_VERL}.trainer", _DISUSED, _UNREAD),
    *_rows(f"{_VERL}.actor_rollout_ref.model", ("rope_scaling", "rope_theta"), "Trinity's keys are in model"),
    *_rows(
        f"{_VERL}.actor_rollout_ref",
        (
            "actor.fix_actor_microbatch_loss_scale",
            "ref.use_prefix_grouper",
        ),
        "the loss is normalized over the whole update, and a group's prompt is always computed once",
    ),
    *(
        no_effect(f"{_VERL}.trainer.{name}", UNSET, f"Trinity's key is {key}", value_type=ANY)
        for name, key in _OVERWRITTEN.items()
    ),
    *(
        no_effect(f"{_VERL}.algorithm.{name}", UNSET, f"Trinity's key is algorithm.{key}", value_type=ANY)
        for name, key in (
            ("adv_estimator", "advantage_fn"),
            ("norm_adv_by_std_in_grpo", "advantage_fn_args"),
            ("use_kl_in_reward", "kl_penalty_fn"),
            ("gamma", "advantage_fn_args.gamma"),
            ("lam", "advantage_fn_args.lam"),
            ("kl_penalty", "kl_penalty_fn"),
            ("kl_ctrl.*", "kl_penalty_fn_args"),
        )
    ),
)
LATER: tuple[KeyMapping, ...] = (
    *versions(
        no_effect(
            "explorer.concurrent_mode",
            "sequential",
            "all rollouts of a task run concurrently",
            value_type=ANY,
        ),
        since="0.5",
    ),
    *versions(
        *_rows("explorer", ("runner_prepare_concurrency", "runner_prepare_max_retries"), _NO_PREPARATION),
        *_rows(
            "explorer", ("over_rollout.return_partial_tasks", "dynamic_timeout.warmup_min_steps"), _SWITCH
        ),
        no_effect(
            "explorer.max_inflight_batches",
            UNSET,
            "synchronizer.sync_offset, or under other styles than fixed the capacity of the buffer, bounds it",
            value_type=ANY,
        ),
        no_effect("synchronizer.group_name", UNSET, "the group of processes has no name", value_type=ANY),
        *(
            refused(
                f"synchronizer.{role}_sync_interval",
                None,
                "explorer and trainer synchronize at the same steps; write synchronizer.sync_interval",
                supported=lambda foreign, value: value in (None, foreign["synchronizer.sync_interval"]),
            )
            for role in ("explorer", "trainer")
        ),
        extra_arguments_row(),
        refused(
            "cod.*",
            UNSET,
            "tasks are packed for the workflows of connect-the-dots, which belong to Trinity's research code and keep "
            "their state over the tasks of a pack; Strop gives a workflow one task at a time; remove it",
            supported=never,
        ),
        placement(
            f"{_AUXILIARY}.extra_engine_args.*",
            UNSET,
            "the native sampler has no such option",
            supported=never,
            value_type=ANY,
        ),
        *(row for model in ("explorer.rollout_model", _AUXILIARY) for row in _engine_rows(model)),
        since="0.6",
    ),
)

"""Ledger rows of transformers' TrainingArguments, which TRL's trainers share."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    KeyMapping,
    always,
    mapped,
    no_effect,
    only,
    placement,
    refused,
)
from strop.compat.ledger.placement_notes import NO_SHARDS, OWN_KERNELS, fused_kernels
from strop.compat.ledger.value_types import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAPPING,
    NUMBER,
    STRING,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.compat.trl import batches, optimization, run_settings, training_engine

_WITHOUT_EFFECT: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "Strop always writes its metrics, progress and log",
        {
            "logging_strategy": "steps",
            "logging_first_step": False,
            "log_on_each_node": True,
            "logging_nan_inf_filter": True,
            "log_level": "passive",
            "log_level_replica": "warning",
            "disable_tqdm": None,
            "include_num_input_tokens_seen": "no",
            "skip_memory_metrics": True,
        },
    ),
    (
        "Strop has no Trackio monitor",
        dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")),
    ),
    (
        "Strop evaluates rewards, or the loss of held-out rows",
        {
            "eval_do_concat_batches": True,
            "eval_use_gather_object": False,
            "include_for_metrics": [],
            "eval_accumulation_steps": None,
            "batch_eval_metrics": False,
            "prediction_loss_only": False,
            "do_eval": False,
            "do_train": False,
            "do_predict": False,
        },
    ),
    (
        "the run folder is local",
        {
            "hub_private_repo": None,
            "hub_model_id": None,
            "hub_strategy": "every_save",
            "hub_always_push": False,
            "hub_revision": None,
            "hub_token": None,
        },
    ),
    (
        "Strop reads data in processes of its own",
        {
            "dataloader_num_workers": 0,
            "dataloader_pin_memory": True,
            "dataloader_persistent_workers": False,
            "dataloader_prefetch_factor": None,
            "dataloader_multiprocessing_context": None,
            "dataloader_in_order": True,
            "label_names": None,
            "length_column_name": "length",
        },
    ),
    (
        "losses are divided by counts over the whole batch",
        {"average_tokens_across_devices": True},
    ),
    (
        "a checkpoint is written whole, and a run resumes exactly",
        {
            "save_on_each_node": False,
            "enable_jit_checkpoint": False,
            "ignore_data_skip": False,
            "restore_callback_states_from_checkpoint": False,
            "full_determinism": False,
        },
    ),
    (
        "sequences are packed without padding",
        {"pad_to_multiple_of": "auto"},
    ),
)
_PLACEMENT: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        OWN_KERNELS,
        {
            "torch_compile": False,
            "torch_compile_backend": None,
            "torch_compile_mode": None,
            "tf32": None,
        },
    ),
    (NO_SHARDS, {"parallelism_config": None}),
    ("a single process trains", {"accelerator_config": None}),
    (
        "a single process trains; write the file's num_processes, and fsdp with its fsdp_config, or deepspeed, as "
        "options",
        {"accelerate_config": None},
    ),
)
_ALWAYS_PLACED: dict[str, Any] = {
    "ddp_find_unused_parameters": None,
    "ddp_bucket_cap_mb": None,
    "ddp_broadcast_buffers": None,
    "ddp_static_graph": None,
    "ddp_backend": None,
    "ddp_timeout": 1800,
    "local_rank": -1,
    "gradient_checkpointing_kwargs": None,
    "debug": "",
    "torch_empty_cache_steps": None,
    "use_cache": False,
    "per_device_eval_batch_size": 8,
    "bf16_full_eval": False,
    "fp16_full_eval": False,
    "use_cpu": False,
    "auto_find_batch_size": False,
    "liger_kernel_config": None,
}


SHUFFLED_ROW = refused(
    "train_sampling_strategy",
    "random",
    "Strop shuffles the tasks of each epoch; write data.shuffle in a run file",
)
"""Row of the order of tasks for trainers that shuffle them."""


def training_rows(
    learning_rate: float, *, remove_unused_columns: bool, order: KeyMapping = SHUFFLED_ROW
) -> tuple[KeyMapping, ...]:
    """TrainingArguments, apart from the batch sizes, with the defaults that configurations change; `order` is the row
    of the order of tasks."""
    return (
        *_name_rows(),
        *_optimization_rows(learning_rate),
        *_interval_rows(),
        refused("resume_from_checkpoint", None, "run the same command again to resume a run"),
        refused("push_to_hub", False, "upload the folder `model` of the run when it has ended"),
        order,
        *(
            no_effect(key, default, why, value_type=ANY)
            for why, keys in _WITHOUT_EFFECT
            for key, default in keys.items()
        ),
        *(
            placement(key, default, why, supported=only(default), value_type=ANY)
            for why, keys in _PLACEMENT
            for key, default in keys.items()
        ),
        no_effect("remove_unused_columns", remove_unused_columns, "Strop reads data in processes of its own"),
        fused_kernels("use_liger_kernel", value_type=ANY),
        *training_engine.ROWS,
        *(
            placement(key, default, "it changes no result", supported=always, value_type=ANY)
            for key, default in _ALWAYS_PLACED.items()
        ),
    )


def _optimization_rows(learning_rate: float) -> tuple[KeyMapping, ...]:
    adam = optimization.not_adamw
    return (
        mapped("learning_rate", learning_rate, "trainer.optimizer.lr", read=optimization.optimizer),
        mapped(
            "optim",
            "adamw_torch_fused",
            "trainer.optimizer.type",
            "trainer.optimizer.fused",
            "trainer.optimizer.bits",
            "trainer.optimizer.paged",
            read=optimization.optimizer,
            value_type=one_of(*optimization.OPTIMIZERS),
        ),
        mapped(
            "weight_decay",
            0.0,
            "trainer.optimizer.weight_decay",
            "trainer.optimizer.decay_norms_and_biases",
            read=optimization.optimizer,
            inactive=optimization.without_decay,
            note="not of norms and biases, which transformers leaves out",
        ),
        mapped("adam_beta1", 0.9, "trainer.optimizer.betas", read=optimization.optimizer, inactive=adam),
        mapped("adam_beta2", 0.999, "trainer.optimizer.betas", read=optimization.optimizer, inactive=adam),
        mapped("adam_epsilon", 1e-8, "trainer.optimizer.eps", read=optimization.optimizer, inactive=adam),
        refused("optim_args", None, "write the options of trainer.optimizer in a run file"),
        refused(
            "optim_target_modules",
            None,
            "galore_adamw projects all matrices of the layers; leave it at its default",
        ),
        mapped(
            "max_grad_norm", 1.0, "trainer.max_grad_norm", read=optimization.grad_norm, note="0 is no bound"
        ),
        *_schedule_rows(),
        mapped(
            "bf16",
            None,
            "model.compute_dtype",
            read=optimization.precision,
            value_type=nullable(BOOLEAN),
            note="mixed precision; null is true",
        ),
        refused("fp16", False, "Strop computes in bfloat16 or float32; write bf16"),
        refused("label_smoothing_factor", 0.0, "its losses have no label smoothing; leave it 0"),
        refused("neftune_noise_alpha", None, "Strop trains without noise in embeddings; leave it null"),
    )


def _schedule_rows() -> tuple[KeyMapping, ...]:
    return (
        mapped(
            "lr_scheduler_type",
            "linear",
            "trainer.schedule.type",
            read=optimization.schedule,
            value_type=one_of(*optimization.SCHEDULES),
            note="counts updates",
        ),
        mapped(
            "lr_scheduler_kwargs",
            None,
            "trainer.schedule.min_ratio",
            "trainer.schedule.cycles",
            "trainer.schedule.power",
            "trainer.schedule.timescale",
            read=optimization.schedule,
            value_type=nullable(MAPPING),
            note="num_cycles, min_lr, min_lr_rate, lr_end, power, timescale",
        ),
        mapped(
            "warmup_steps",
            0,
            "trainer.schedule.warmup",
            "trainer.schedule.warmup_rounding",
            read=optimization.schedule,
            value_type=NUMBER,
            inactive=optimization.no_warmup,
            note="updates; below 1 a fraction of the run, rounded up",
        ),
        mapped(
            "warmup_ratio",
            None,
            "trainer.schedule.warmup",
            "trainer.schedule.warmup_rounding",
            read=optimization.schedule,
            value_type=nullable(NUMBER),
            inactive=optimization.no_warmup,
            deprecated="write warmup_steps, which may be a fraction",
        ),
    )


def _interval_rows() -> tuple[KeyMapping, ...]:
    saving, evaluation = batches.saving, run_settings.evaluation
    off = run_settings.without_evaluation
    return (
        mapped(
            "num_train_epochs",
            3.0,
            "trainer.duration",
            read=batches.duration,
            inactive=batches.epochs_overridden,
        ),
        mapped("max_steps", -1, "trainer.duration", read=batches.duration, note="counts updates"),
        mapped(
            "save_strategy",
            "steps",
            "checkpoint.every",
            read=saving,
            value_type=one_of("no", "steps", "epoch"),
        ),
        mapped(
            "save_steps",
            500,
            "checkpoint.every",
            read=saving,
            value_type=NUMBER,
            inactive=run_settings.saves_not_by_steps,
            note="counts updates",
        ),
        mapped(
            "save_total_limit",
            None,
            "checkpoint.keep",
            read=saving,
            value_type=nullable(INTEGER),
            note="null keeps all",
        ),
        mapped("save_only_model", False, "checkpoint.save_optimizer", read=saving),
        refused("load_best_model_at_end", False, "write checkpoint.best in a run file"),
        no_effect("metric_for_best_model", None, "it is an option of load_best_model_at_end", value_type=ANY),
        no_effect("greater_is_better", None, "it is an option of load_best_model_at_end", value_type=ANY),
        mapped(
            "eval_strategy",
            "no",
            "evaluate.every",
            read=evaluation,
            value_type=one_of("no", "steps", "epoch"),
        ),
        mapped(
            "eval_steps",
            None,
            "evaluate.every",
            read=evaluation,
            value_type=nullable(NUMBER),
            inactive=run_settings.not_by_steps,
            note="counts updates; null means logging_steps",
        ),
        mapped("eval_on_start", False, "evaluate.at_start", read=evaluation, inactive=off),
        refused("eval_delay", 0, "evaluations start at the first interval", inactive=off),
        no_effect("logging_steps", 10, "Strop always writes the metrics of every step", value_type=NUMBER),
    )


def _name_rows() -> tuple[KeyMapping, ...]:
    return (
        mapped("output_dir", None, "folder", read=run_settings.names, value_type=nullable(STRING)),
        mapped("run_name", None, "name", read=run_settings.names, value_type=nullable(STRING)),
        mapped("project", "huggingface", "project", read=run_settings.names),
        mapped(
            "report_to",
            "none",
            "record.monitors",
            read=run_settings.monitors,
            value_type=nullable(STRING_OR_LIST),
            note="in addition to the console",
        ),
        mapped("seed", 42, "seed"),
        refused("data_seed", None, "write seed, which also orders the tasks"),
        no_effect("env.*", UNSET, "set environment variables before the command", value_type=ANY),
    )

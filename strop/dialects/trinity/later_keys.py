"""Ledger rows of Trinity keys that are newer than the seed page and stand for keys of verl: the optimizer,
gradient clipping, micro-batches and sharding."""

from __future__ import annotations

from dataclasses import replace

from strop.dialects.ledger.key_mapping import (
    KeyMapping,
    always,
    no_effect,
    only,
    placement,
    refused,
    versions,
)
from strop.dialects.ledger.value_types import ANY, INTEGER, NUMBER, NUMBER_LIST, nullable, one_of
from strop.dialects.trinity.embedded_verl import newer_row
from strop.dialects.trinity.layout import with_ranks

_SCHEDULES = nullable(one_of("constant", "cosine"))
OPTIMIZER: tuple[KeyMapping, ...] = (
    newer_row("algorithm.optimizer.lr", 1e-6, "0.4"),
    newer_row("algorithm.optimizer.lr_warmup_steps", -1, "0.4", value_type=nullable(INTEGER)),
    newer_row("algorithm.optimizer.lr_warmup_steps_ratio", 0.0, "0.4"),
    newer_row("algorithm.optimizer.min_lr_ratio", 0.0, "0.4", value_type=nullable(NUMBER)),
    newer_row("algorithm.optimizer.lr_scheduler_type", "constant", "0.5", value_type=_SCHEDULES),
    newer_row(
        "algorithm.optimizer.warmup_style",
        None,
        "0.4",
        value_type=_SCHEDULES,
        deprecated="write algorithm.optimizer.lr_scheduler_type",
    ),
    newer_row("algorithm.optimizer.betas", [0.9, 0.999], "0.4", value_type=NUMBER_LIST),
    newer_row("algorithm.optimizer.weight_decay", 0.01, "0.4"),
    *versions(
        refused(
            "algorithm.optimizer.optimizer_type",
            "adam",
            "Trinity's FSDP trainers use AdamW; write adam",
            supported=only("adam", "adamw", None),
        ),
        since="0.4",
    ),
)
TRAINER: tuple[KeyMapping, ...] = (
    newer_row("trainer.grad_clip", 1.0, "0.4"),
    replace(newer_row("trainer.actor_grad_clip", None, "0.3", value_type=nullable(NUMBER)), until="0.3"),
    newer_row("trainer.use_dynamic_bsz", True, "0.4"),
    newer_row("trainer.max_token_len_per_gpu", None, "0.4", value_type=nullable(INTEGER)),
    with_ranks(newer_row("trainer.ulysses_sequence_parallel_size", 1, "0.4")),
    with_ranks(
        newer_row(
            "trainer.trainer_strategy",
            "fsdp",
            "0.4",
            value_type=one_of("fsdp", "fsdp2", "megatron"),
            note="Strop's trainer",
        )
    ),
    newer_row("trainer.max_checkpoints_to_keep", None, "0.4", value_type=nullable(INTEGER)),
    *versions(
        no_effect("trainer.enable_preview", True, "rollouts are always recorded, and the monitors show them"),
        since="0.2",
    ),
    *versions(
        placement(
            "trainer.save_hf_checkpoint",
            "last",
            "a run writes its final model as a Hugging Face folder, `model`; for each checkpoint write hf_model in "
            "save_contents",
            supported=only("last"),
            value_type=one_of("last", "always", "never"),
        ),
        placement(
            "trainer.fix_actor_microbatch_loss_scale",
            False,
            "the loss is normalized over the whole update, whatever its micro-batches",
            supported=always,
            value_type=ANY,
        ),
        since="0.4",
    ),
)

"""Ledger rows of Trinity keys that are newer than the seed page and stand for keys of verl: the optimizer,
gradient clipping, micro-batches, sharding and the old policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    also_inactive,
    always,
    mapped,
    no_effect,
    only,
    placement,
    refused,
    versions,
)
from strop.compat.ledger.value_types import ANY, BOOLEAN, INTEGER, NUMBER, NUMBER_LIST, nullable, one_of
from strop.compat.trinity.algorithm import algorithm
from strop.compat.trinity.embedded_verl import MEGATRON_SIZES, for_embedded, newer_row
from strop.compat.trinity.layout import with_ranks
from strop.compat.trinity.presets import only_sampled, without_critic
from strop.compat.verl import switches

_MEGATRON = for_embedded(switches.megatron)


def _is_bypass(foreign: ForeignValues, value: Any) -> bool:
    """Whether a section `rollout_correction` says no more than the default."""
    return value is True


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
    newer_row("algorithm.optimizer.clip_grad", 1.0, "0.4"),
    *(
        replace(newer_row(f"algorithm.optimizer.{name}", default, "0.4", value_type=ANY), until="0.4")
        for name, default in (("lr_warmup_init", 0.0), ("lr_decay_style", "constant"), ("min_lr", 0.0))
    ),
    replace(
        newer_row("algorithm.optimizer.lr_decay_steps", None, "0.4", value_type=nullable(INTEGER)),
        until="0.4",
    ),
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
RATIOS: tuple[KeyMapping, ...] = versions(
    mapped(
        "algorithm.bypass_old_logprobs",
        True,
        "algorithm.old_policy",
        read=algorithm,
        inactive=only_sampled,
        note="false recomputes the log-probs of the old policy before each step",
    ),
    refused(
        "algorithm.rollout_correction.*",
        UNSET,
        "Trinity 0.6 reads it and corrects nothing; write trainer.trainer_config.algorithm.rollout_correction, which "
        "0.5 applies, or remove it",
        supported=_is_bypass,
    ),
    refused(
        "algorithm.enable_router_replay",
        False,
        "Strop's sampler records no routes of experts; write false",
        value_type=BOOLEAN,
    ),
    since="0.6",
)
TRAINER: tuple[KeyMapping, ...] = (
    newer_row("trainer.grad_clip", 1.0, "0.4"),
    newer_row("trainer.balance_batch", True, "0.6"),
    newer_row("trainer.use_remove_padding", True, "0.6"),
    also_inactive(newer_row("trainer.critic_warmup", 0, "0.6"), without_critic),
    *(
        with_ranks(newer_row(f"trainer.{name}", False, "0.6"))
        for name in ("param_offload", "optimizer_offload", "offload_policy")
    ),
    with_ranks(newer_row("trainer.grad_offload", False, "0.6", inactive=_MEGATRON)),
    *(
        with_ranks(newer_row(f"trainer.megatron.{name}", default, "0.6", inactive=_MEGATRON))
        for name, default in MEGATRON_SIZES.items()
    ),
    *versions(
        placement(
            "trainer.megatron.sequence_parallel",
            True,
            "it changes memory only: the ranks of tensor parallelism compute norms whole",
            supported=always,
            inactive=_MEGATRON,
        ),
        since="0.6",
    ),
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

"""Ledger rows of Trinity's `trainer` section, except verl's keys in `trainer_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    MAPPING,
    NUMBER,
    STRING,
    UNSET,
    ForeignValues,
    also_inactive,
    mapped,
    named,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.buffer import duration
from strop.compat.trinity.embedded_verl import MEGATRON_SIZES, for_embedded, newer_row, with_ranks
from strop.compat.trinity.presets import without_critic
from strop.compat.verl import switches
from strop.compat.verl.trainer import every, frequency
from strop.config.schema import Run


def write_checkpointing(run: Run) -> Mapping[str, Any]:
    """The checkpoint interval in steps; 0 saves only at the end."""
    often = frequency(run, run.checkpoint.every)
    return {"trainer.save_interval": 0 if often == -1 else often}


@written_by(write_checkpointing)
def checkpointing(foreign: ForeignValues) -> Mapping[str, Any]:
    """The checkpoint interval in steps; 0 saves only at the end."""
    return {"checkpoint.every": every(foreign["trainer.save_interval"])}


_SAVE_STRATEGIES = {"unrestricted": "all"} | {f"single_{one}": one for one in ("thread", "process", "node")}
_megatron = for_embedded(switches.megatron)
_STRATEGIES = one_of("fsdp", "fsdp2", "megatron")
ROWS = (
    *unstated_defaults(
        placement(
            "trainer.trainer_type",
            "verl",
            "Strop's trainer, configured with verl's keys",
            supported=only("verl"),
            value_type=one_of("verl", "tinker"),
        ),
        mapped("trainer.save_interval", 0, "checkpoint.every", read=checkpointing, note="counts steps"),
        mapped(
            "trainer.total_steps",
            None,
            "trainer.duration",
            read=duration,
            value_type=nullable(INTEGER),
            note="takes precedence over buffer.total_steps and buffer.total_epochs",
        ),
    ),
    mapped(
        "trainer.save_strategy",
        "unrestricted",
        "checkpoint.save_concurrency",
        converts=named(_SAVE_STRATEGIES),
        value_type=one_of(*_SAVE_STRATEGIES),
        note="which ranks save a checkpoint concurrently",
    ),
    mapped(
        "trainer.trainer_config",
        None,
        note="verl's keys; each has a row of its own",
        value_type=nullable(MAPPING),
    ),
    mapped(
        "trainer.trainer_config_path",
        "",
        note="path of a file with the keys of trainer_config",
        value_type=nullable(STRING),
    ),
    *not_on_page(no_effect("trainer.trust_remote_code", UNSET, "Trinity sets it itself")),
    newer_row("trainer.grad_clip", 1.0, "0.4"),
    newer_row("trainer.balance_batch", True, "0.6"),
    newer_row("trainer.use_remove_padding", True, "0.6"),
    also_inactive(newer_row("trainer.critic_warmup", 0, "0.6"), without_critic),
    *(
        with_ranks(newer_row(f"trainer.{name}", False, "0.6"))
        for name in ("param_offload", "optimizer_offload", "offload_policy")
    ),
    with_ranks(newer_row("trainer.grad_offload", False, "0.6", inactive=_megatron)),
    *(
        with_ranks(newer_row(f"trainer.megatron.{name}", default, "0.6", inactive=_megatron))
        for name, default in MEGATRON_SIZES.items()
    ),
    *versions(
        placement(
            "trainer.megatron.sequence_parallel",
            True,
            "it changes memory only: the ranks of tensor parallelism compute norms whole",
            inactive=_megatron,
        ),
        since="0.6",
    ),
    replace(newer_row("trainer.actor_grad_clip", None, "0.3", value_type=nullable(NUMBER)), until="0.3"),
    newer_row("trainer.use_dynamic_bsz", True, "0.4"),
    newer_row("trainer.max_token_len_per_gpu", None, "0.4", value_type=nullable(INTEGER)),
    with_ranks(newer_row("trainer.ulysses_sequence_parallel_size", 1, "0.4")),
    with_ranks(
        newer_row("trainer.trainer_strategy", "fsdp", "0.4", value_type=_STRATEGIES, note="Strop's trainer")
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
            value_type=ANY,
        ),
        since="0.4",
    ),
)

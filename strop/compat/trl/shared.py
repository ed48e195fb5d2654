"""Ledger rows that TRL's trainers share: ModelConfig, ScriptArguments and the batch sizes."""

from __future__ import annotations

from collections.abc import Sequence

from strop.compat.ledger.key_mapping import (
    UNSET,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    always,
    mapped,
    no_effect,
    placement,
    refused,
)
from strop.compat.ledger.placement_notes import OWN_KERNELS
from strop.compat.ledger.value_types import ANY, NUMBER, STRING, STRING_OR_LIST, nullable, one_of
from strop.compat.trl import images, optimization, run_settings

_OPTION_OF_LORA = run_settings.without_peft


def model_rows() -> tuple[KeyMapping, ...]:
    """ModelConfig, with the dtype and the adapter."""
    return (
        mapped("model_name_or_path", None, "model.path", value_type=nullable(STRING)),
        refused("model_revision", "main", "download the revision, and write its folder"),
        mapped(
            "dtype",
            "float32",
            "model.dtype",
            read=optimization.precision,
            value_type=one_of("float32", "bfloat16", "bf16"),
            note="dtype of the parameters",
        ),
        placement("attn_implementation", None, OWN_KERNELS, supported=always, value_type=ANY),
        *_adapter_rows(),
        refused("load_in_8bit", False, "Strop trains on weights that are not quantized; leave it False"),
        refused("load_in_4bit", False, "Strop trains on weights that are not quantized; leave it False"),
        *(
            no_effect(key, default, "it is an option of load_in_4bit", value_type=ANY)
            for key, default in (
                ("bnb_4bit_quant_type", "nf4"),
                ("use_bnb_nested_quant", False),
                ("bnb_4bit_quant_storage", None),
            )
        ),
        mapped("trust_remote_code", False, "model.trust_remote_code"),
        refused("model_init_kwargs", None, "write the keys of ModelConfig, such as dtype"),
        mapped(
            "router_aux_loss_coef",
            None,
            "trainer.router_loss.balance_coef",
            "trainer.router_loss.balance_over",
            read=run_settings.router_loss,
            value_type=nullable(NUMBER),
            note="null takes the coefficient in the model's config.json, which dense models lack; 0 for none. Of a "
            "model on the Hub it is not known: write it",
        ),
    )


def _adapter_rows() -> tuple[KeyMapping, ...]:
    return (
        mapped("use_peft", False, "model.lora", read=run_settings.lora),
        mapped("lora_r", 16, "model.lora.rank", read=run_settings.lora, inactive=_OPTION_OF_LORA),
        mapped(
            "lora_alpha",
            32,
            "model.lora.alpha",
            read=run_settings.lora,
            inactive=_OPTION_OF_LORA,
            value_type=NUMBER,
        ),
        mapped("lora_dropout", 0.05, "model.lora.dropout", read=run_settings.lora, inactive=_OPTION_OF_LORA),
        mapped(
            "use_rslora", False, "model.lora.use_rslora", read=run_settings.lora, inactive=_OPTION_OF_LORA
        ),
        mapped(
            "lora_target_modules",
            None,
            "model.lora.targets",
            read=run_settings.lora,
            inactive=_OPTION_OF_LORA,
            value_type=nullable(STRING_OR_LIST),
        ),
        *(
            refused(key, default, why, inactive=_OPTION_OF_LORA)
            for key, default, why in (
                ("lora_target_parameters", None, "Strop adapts modules; write lora_target_modules"),
                (
                    "lora_modules_to_save",
                    None,
                    "Strop trains either the adapter or all weights; leave it null",
                ),
                ("lora_task_type", "CAUSAL_LM", "Strop trains causal language models; leave it CAUSAL_LM"),
                ("use_dora", False, "Strop has LoRA adapters without a magnitude vector; leave it False"),
            )
        ),
    )


SAMPLED_STREAMING = refused(
    "dataset_streaming",
    False,
    "TRL's trainers with rollouts stop at a data set that is streamed; leave it out; a run file streams by data.stream",
)
"""Row of a streamed data set for the trainers that sample."""


def dataset_rows(
    read: ReadFunction,
    *warnings: InactiveCheck,
    streaming: KeyMapping = SAMPLED_STREAMING,
    fields: Sequence[str] = (),
) -> tuple[KeyMapping, ...]:
    """ScriptArguments; `read` also decides the columns, `fields` of the run file, of which `warnings` say more.
    `streaming` is the row of a streamed data set, which may be refused."""
    return (
        mapped(
            "dataset_name",
            None,
            "data.train.path",
            "data.text_prompts",
            *images.FIELDS,
            *fields,
            read=read,
            value_type=nullable(STRING),
            warn=_together(*warnings, images.unknown_images),
        ),
        mapped("dataset_config", None, "data.train.subset", read=read, value_type=nullable(STRING)),
        mapped("dataset_train_split", "train", "data.train.split", read=read),
        mapped(
            "dataset_test_split",
            "test",
            "data.eval.0.split",
            read=read,
            inactive=run_settings.without_evaluation,
            note="used if eval_strategy enables evaluation",
        ),
        streaming,
        refused(
            "datasets",
            UNSET,
            "name one data set and convert; a list under data.train of the run file is a mixture (`strop help data`)",
        ),
        no_effect("ignore_bias_buffers", False, "it works around DistributedDataParallel"),
    )


def _together(*checks: InactiveCheck) -> InactiveCheck:
    """All notices of the checks as one."""
    return lambda foreign: "; ".join(filter(None, (check(foreign) for check in checks))) or None


def batch_rows(read: ReadFunction, *fields: str) -> tuple[KeyMapping, ...]:
    """The batch sizes; `fields` are the run-file fields of the whole batch."""
    return (
        mapped(
            "per_device_train_batch_size", 8, *fields, "trainer.microbatch", read=read, note="per process"
        ),
        mapped("gradient_accumulation_steps", 1, *fields, read=read),
        mapped(
            "num_processes",
            1,
            *fields,
            read=read,
            note="accelerate's option; its processes multiply the batch",
        ),
    )

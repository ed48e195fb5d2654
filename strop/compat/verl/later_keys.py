"""Ledger rows of verl's keys that the seed page does not list: keys of later versions, and of recipes."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    any_inactive,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    unless,
)
from strop.compat.ledger.placement_notes import OWN_KERNELS
from strop.compat.ledger.value_types import ANY, INTEGER, NUMBER, STRING, STRING_OR_LIST, nullable
from strop.compat.verl import async_units, switches
from strop.compat.verl.actor_converters import schedule
from strop.compat.verl.data import batches, chat_template, tasksets, template_args
from strop.compat.verl.distillation import ROWS as DISTILLATION
from strop.compat.verl.empty_values import is_empty
from strop.compat.verl.images import NO_VIDEO, has_no_column
from strop.compat.verl.model import lora
from strop.compat.verl.policy_loss import LATER_ROWS as POLICY_LOSS
from strop.compat.verl.rollout_correction import ROWS as ROLLOUT_CORRECTION
from strop.compat.verl.trainer import mode, rollout_files

_ACTOR, _MODEL, _ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("actor", "model", "rollout"))
_IMAGES = "the model's own image processor is used, and pixels are made where they are used"
_TOOLS_IN_PROMPTS = "data.max_prompt_length limits a prompt without the descriptions of the tools"
_mtp = any_inactive(unless(f"{_MODEL}.mtp.enable", True), unless(f"{_MODEL}.mtp.enable_train", True))


def empty(key: str, reason: str, default: Any = UNSET) -> KeyMapping:
    """A key that Strop supports only where it is null or empty."""
    return refused(key, default, reason, supported=is_empty)


def _heads_only(foreign: ForeignValues, value: Any) -> bool:
    """Whether multi-token prediction does not train the model itself, but only its additional heads."""
    return not value or bool(foreign[f"{_MODEL}.mtp.detach_encoder"])


def _no_generation_batch(foreign: ForeignValues) -> str | None:
    return "data.gen_batch_size is null" if foreign["data.gen_batch_size"] is None else None


def is_response_length(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports null and the maximum length of a response."""
    return value is None or bool(value == foreign["data.max_response_length"])


_DATA = (
    no_effect("data.min_response_length", UNSET, "no version of verl reads it", value_type=ANY),
    no_effect("data.val_batch_size", None, "all validation prompts are sampled together", value_type=ANY),
    mapped(
        "data.gen_batch_size",
        None,
        "trainer.tasks_per_step",
        read=batches,
        value_type=nullable(INTEGER),
        inactive=any_inactive(async_units.fully_async, _no_generation_batch),
        note="prompts of a step; with algorithm.filter_groups.enable, of one sampling round, and "
        "data.train_batch_size counts the prompts of a step",
    ),
    mapped(
        "data.train_max_samples",
        -1,
        "data.train.limit_tasks",
        read=tasksets,
        note="-1 means all rows; verl takes a random choice, Strop the first rows",
    ),
    mapped(
        "data.val_max_samples",
        -1,
        "data.eval.0.limit_tasks",
        read=tasksets,
        note="-1 means all rows; verl takes a random choice, Strop the first rows",
    ),
    mapped(
        f"{_MODEL}.custom_chat_template",
        None,
        "data.chat_template",
        read=chat_template,
        value_type=nullable(STRING),
        note="Jinja text; null means the tokenizer's template",
    ),
    *(
        no_effect(f"data.{name}", default, why, value_type=ANY)
        for name, default, why in (
            ("use_shm", False, "the data is read from its files"),
            ("dataloader_num_workers", 8, "rows are read in this process"),
            ("validation_shuffle", False, "all validation prompts are evaluated, in any order"),
            ("image_patch_size", 14, _IMAGES),
            ("return_multi_modal_inputs", True, _IMAGES),
            ("tool_config_path", UNSET, _TOOLS_IN_PROMPTS),
            ("function_tool_path", UNSET, _TOOLS_IN_PROMPTS),
            ("need_tools_kwargs", UNSET, "a row without tools_kwargs is no error"),
        )
    ),
    *(
        refused(
            f"data.{name}_key", f"{name}s", NO_VIDEO, supported=has_no_column, value_type=nullable(STRING)
        )
        for name in ("video", "audio")
    ),
    *(
        mapped(
            f"data.mm_processor_kwargs.{name}",
            None,
            f"data.images.{name}",
            value_type=nullable(INTEGER),
            note="replaces the limit of the model's image processor",
        )
        for name in ("min_pixels", "max_pixels")
    ),
    empty(
        "data.mm_processor_kwargs.*",
        "of the image processor's arguments Strop has min_pixels and max_pixels; remove the others",
    ),
    mapped(
        f"{_ROLLOUT}.limit_images",
        None,
        "data.images.max_images",
        value_type=nullable(INTEGER),
        note="a row with more images is an error",
    ),
    mapped(
        "data.apply_chat_template_kwargs.*",
        UNSET,
        "data.chat_template_args",
        read=template_args,
        note="variables of the chat template",
    ),
    empty(
        "data.sampler.*",
        "Strop does not run verl's sampler classes; sort the file and write data.shuffle=False, or a run file with "
        "data.order: {type: column}, or curriculum or difficulty, which draw tasks by the run's own rewards",
    ),
    empty("data.datagen.*", "Strop has no generation of tasks during a run; write the tasks to a file"),
)
_LOSS = (
    *POLICY_LOSS,
    refused(
        f"{_ACTOR}.loss_scale_factor",
        None,
        "the sum over tokens is divided by data.max_response_length; leave it null",
        supported=is_response_length,
        inactive=unless(f"{_ACTOR}.loss_agg_mode", "seq-mean-token-sum-norm"),
    ),
    placement(
        "algorithm.filter_groups.max_inflight_gen_batches",
        1,
        "one sampling round at a time",
        supported=only(1),
    ),
    *DISTILLATION,
)
_OPTIMIZER = (
    *(
        mapped(
            f"{_ACTOR}.optim.{name}",
            0.0,
            f"trainer.schedule.{field}",
            read=schedule,
            inactive=switches.fsdp,
            note="a rate, of VeOmni's schedule; a fraction of lr in the run file",
        )
        for name, field in (("lr_min", "min_ratio"), ("lr_start", "start_ratio"))
    ),
    refused(f"{_ACTOR}.optim.lr_decay_ratio", 1.0, "the rate decays until the end of the run; write 1.0"),
    refused(f"{_ACTOR}.optim.zero_indexed_step", True, "the schedule counts steps from 0; leave it True"),
    placement(
        f"{_ACTOR}.optim.optimizer_impl",
        "torch.optim",
        "Strop's own optimizer",
        supported=only("torch.optim"),
    ),
    *(
        placement(
            f"{_ACTOR}.optim.{name}", default, "the optimizer's state is in float32", supported=only(default)
        )
        for name, default in (
            ("use_precision_aware_optimizer", False),
            ("main_grads_dtype", "fp32"),
            ("exp_avg_dtype", "fp32"),
            ("exp_avg_sq_dtype", "fp32"),
            ("use_layer_wise_distributed_optimizer", False),
        )
    ),
    *(
        placement(
            f"{_ACTOR}.optim.override_optimizer_config.{name}",
            UNSET,
            "the optimizer's state is in float32, on the device that trains",
            supported=only(UNSET),
            value_type=ANY,
        )
        for name in (
            "optimizer_cpu_offload",
            "optimizer_offload_fraction",
            "offload_fraction",
            "overlap_cpu_optimizer_d2h_h2d",
            "use_precision_aware_optimizer",
            "fp8_recipe",
            "foreach",
            "fused",
        )
    ),
    empty(
        f"{_ACTOR}.optim.override_optimizer_config.*",
        "Strop does not know this option of the optimizer; write the optimizer's own keys",
    ),
)
_MODELS = (
    mapped(
        f"{_MODEL}.lora_adapter_path",
        None,
        "model.lora.adapter",
        read=lora,
        value_type=nullable(STRING),
        inactive=switches.lora,
        note="PEFT folder of an adapter of the same lora_rank and lora_alpha",
    ),
    empty(
        f"{_MODEL}.hf_config_path",
        "the model folder's config.json is read; write values that replace "
        f"those in it as +{_MODEL}.override_config.NAME",
    ),
    mapped(
        f"{_MODEL}.lora.rank",
        0,
        "model.lora.rank",
        read=lora,
        inactive=switches.fsdp_lora,
        note="LoRA under Megatron",
    ),
    mapped(
        f"{_MODEL}.lora.alpha",
        32,
        "model.lora.alpha",
        read=lora,
        value_type=NUMBER,
        inactive=switches.megatron_lora,
    ),
    mapped(f"{_MODEL}.lora.dropout", 0.0, "model.lora.dropout", read=lora, inactive=switches.megatron_lora),
    mapped(
        f"{_MODEL}.lora.target_modules",
        ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
        "model.lora.targets",
        read=lora,
        value_type=STRING_OR_LIST,
        inactive=switches.megatron_lora,
        note="Megatron's names of the modules",
    ),
    refused(
        f"{_MODEL}.lora.type",
        "lora",
        "Strop has no other adapter; leave it lora",
        inactive=switches.megatron_lora,
    ),
    refused(f"{_MODEL}.lora.exclude_modules", [], "write target_modules", inactive=switches.megatron_lora),
    refused(
        f"{_MODEL}.lora.adapter_path",
        None,
        "write the merged model's folder as the model's path",
        inactive=switches.megatron_lora,
    ),
    no_effect(
        f"{_MODEL}.lora.*",
        UNSET,
        "the adapter starts as in peft, and is merged for the export",
        value_type=ANY,
    ),
    no_effect(f"{_MODEL}.mtp.enable", False, "tokens are sampled and trained one by one"),
    refused(
        f"{_MODEL}.mtp.enable_train",
        False,
        f"multi-token prediction adds a loss; write {_MODEL}.mtp.detach_encoder=True, with which it trains "
        "only its own heads, or leave it False",
        supported=_heads_only,
        inactive=_mtp,
    ),
    no_effect(f"{_MODEL}.mtp.detach_encoder", False, "the additional heads are not trained"),
    no_effect(f"{_MODEL}.mtp.*", UNSET, "the additional heads are not trained", value_type=ANY),
    placement("critic.model.lora_rank", 0, OWN_KERNELS, supported=only(0)),
)
_TRAINER = (
    no_effect(
        "trainer.max_critic_ckpt_to_keep", None, "policy and critic are saved together", value_type=ANY
    ),
    mapped(
        "trainer.rollout_data_dir",
        None,
        "record.rollouts_every",
        read=rollout_files,
        value_type=nullable(STRING),
        note="the rollouts of every step are written to the run folder, as Parquet",
    ),
    no_effect(
        "trainer.validation_data_dir", None, "the run folder has the validation responses", value_type=ANY
    ),
    mapped(
        "trainer.val_only",
        False,
        "mode",
        read=mode,
        note="evaluates the initial model and the checkpoints of trainer.default_local_dir, and does not train",
    ),
)
ROWS = not_on_page(*_DATA, *_LOSS, *ROLLOUT_CORRECTION, *_OPTIMIZER, *_MODELS, *_TRAINER)

"""Ledger and reader of verl's `sft_trainer.yaml`. The seed page has the `optim` and `model` sections; `data`
and `trainer` follow verl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.compat.hydra.selection import ConfigSelection, select
from strop.compat.ledger.conversions import SWITCH
from strop.compat.ledger.key_mapping import (
    aliases,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    unless,
    versions,
)
from strop.compat.ledger.placement_notes import NO_SHARDS, ONE_GPU, ONE_MACHINE, fused_kernels
from strop.compat.ledger.reader import read_dialect
from strop.compat.ledger.table import KeyOwnerHint, Ledger, no_key_owner
from strop.compat.ledger.value_types import (
    ANY,
    BETAS,
    INTEGER,
    NUMBER,
    STRING,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.compat.verl.data import custom_class_rows
from strop.compat.verl.gpus import one_gpu
from strop.compat.verl.hydra import read_command_line
from strop.compat.verl.later_sft_keys import OTHER_NAMES
from strop.compat.verl.later_sft_keys import ROWS as LATER
from strop.compat.verl.parameter_dtypes import PARAMETER_DTYPES, half_parameters
from strop.compat.verl.sft_converters import (
    answer_columns,
    betas,
    imports,
    intervals,
    length_limit,
    lora,
    micro_batch,
    precision,
    schedule,
    template,
    without_lora,
)
from strop.compat.verl.sft_engine_trainer import read_engine_trainer, uses_engine
from strop.compat.verl.sft_run_rows import FOLDERS, INTERVALS
from strop.compat.verl.shipped import SFT
from strop.compat.verl.trainer import MONITOR_NAMES, duration_in_epochs, lacking_monitors, monitors
from strop.config.load.loader import LoadedRun
from strop.config.load.placement import here_requested

_conversation = unless("data.multiturn.enable", True)
_columns = unless("data.multiturn.enable", False)
_offload = unless("model.fsdp_config.cpu_offload", True)

_OPTIM = (
    mapped("optim.lr", 1e-5, "trainer.optimizer.lr"),
    mapped("optim.weight_decay", 0.01, "trainer.optimizer.weight_decay"),
    mapped("optim.warmup_steps_ratio", 0.1, "trainer.schedule.warmup", read=schedule),
    mapped("optim.clip_grad", 1.0, "trainer.max_grad_norm"),
    mapped(
        "optim.lr_scheduler",
        "cosine",
        "trainer.schedule.type",
        read=schedule,
        value_type=one_of("cosine", "wsd"),
    ),
)
_MODEL = (
    mapped("model.partial_pretrain", "~/models/gemma-1.1-7b-it", "model.path"),
    mapped(
        "model.fsdp_config.model_dtype",
        "fp32",
        "model.dtype",
        "model.compute_dtype",
        read=precision,
        value_type=one_of(*PARAMETER_DTYPES),
        warn=half_parameters("model.fsdp_config.model_dtype"),
        note="dtype of the parameters; computation is in bfloat16",
    ),
    placement("model.fsdp_config.wrap_policy.min_num_params", 0, NO_SHARDS, supported=only(0)),
    placement("model.fsdp_config.cpu_offload", False, NO_SHARDS, supported=only(False)),
    placement("model.fsdp_config.offload_params", False, NO_SHARDS, supported=only(False), inactive=_offload),
    mapped(
        "model.external_lib",
        None,
        "model.imports",
        read=imports,
        value_type=nullable(STRING_OR_LIST),
        note="imported before the model is loaded",
    ),
    mapped("model.enable_gradient_checkpointing", False, "model.gradient_checkpointing", converts=SWITCH),
    mapped("model.trust_remote_code", False, "model.trust_remote_code"),
    mapped("model.lora_rank", 0, "model.lora.rank", read=lora),
    mapped("model.lora_alpha", 16, "model.lora.alpha", read=lora, value_type=NUMBER, inactive=without_lora),
    mapped(
        "model.target_modules",
        "all-linear",
        "model.lora.targets",
        read=lora,
        value_type=STRING_OR_LIST,
        inactive=without_lora,
    ),
    fused_kernels("model.use_liger"),
)
_DATA = not_on_page(
    mapped("data.train_batch_size", 256, "trainer.tasks_per_step", note="counts rows"),
    mapped(
        "data.micro_batch_size_per_gpu", 4, "trainer.microbatch", read=micro_batch, note="counts sequences"
    ),
    mapped(
        "data.train_files",
        "~/data/gsm8k/train.parquet",
        "data.train.path",
        read=answer_columns,
        value_type=STRING_OR_LIST,
    ),
    mapped(
        "data.val_files",
        "~/data/gsm8k/test.parquet",
        "data.eval.0.path",
        read=answer_columns,
        value_type=nullable(STRING_OR_LIST),
        note="the loss on this file is the evaluation; null disables evaluation",
    ),
    mapped(
        "data.prompt_key",
        "question",
        "data.train.prompt",
        "data.eval.0.prompt",
        read=answer_columns,
        inactive=_columns,
    ),
    mapped(
        "data.response_key",
        "answer",
        "data.train.response",
        "data.eval.0.response",
        read=answer_columns,
        inactive=_columns,
    ),
    mapped(
        "data.prompt_dict_keys",
        None,
        "data.train.prompt",
        "data.eval.0.prompt",
        read=answer_columns,
        value_type=nullable(STRING_OR_LIST),
        inactive=_columns,
        note="keys inside the column, if it has mappings",
    ),
    mapped(
        "data.response_dict_keys",
        None,
        "data.train.response",
        "data.eval.0.response",
        read=answer_columns,
        value_type=nullable(STRING_OR_LIST),
        inactive=_columns,
        note="keys inside the column, if it has mappings",
    ),
    mapped(
        "data.multiturn.enable", False, "data.train.response", "data.eval.0.response", read=answer_columns
    ),
    mapped(
        "data.multiturn.messages_key",
        "messages",
        "data.train.response",
        "data.eval.0.response",
        read=answer_columns,
        inactive=_conversation,
    ),
    mapped(
        "data.max_length",
        1024,
        "data.max_prompt_tokens",
        "data.max_response_tokens",
        read=length_limit,
        note="bounds prompt and response together",
    ),
    mapped(
        "data.truncation",
        "error",
        "data.overlong",
        read=length_limit,
        value_type=one_of("error", "left", "right"),
    ),
    placement("data.balance_dp_token", False, "a single process needs no balancing", supported=only(False)),
    mapped(
        "data.chat_template",
        None,
        "data.chat_template",
        read=template,
        value_type=nullable(STRING),
        note="a Jinja file or Jinja text; null means the tokenizer's template",
    ),
    *not_on_page(
        mapped(
            "data.multiturn.tools_key",
            "tools",
            "data.train.tools",
            "data.eval.0.tools",
            read=answer_columns,
            inactive=_conversation,
            note="column of a row's tools, where it exists",
        ),
        mapped(
            "data.multiturn.enable_thinking_key",
            "enable_thinking",
            "data.train.template_columns",
            "data.eval.0.template_columns",
            read=answer_columns,
            inactive=_conversation,
            note="column of a row's own enable_thinking, where it exists",
        ),
    ),
    *custom_class_rows(
        answer_columns, "a torch Dataset of input_ids, attention_mask and loss_mask, or of rows"
    ),
)
_TRAINER = not_on_page(
    *INTERVALS,
    mapped(
        "data.micro_batch_size",
        None,
        "trainer.microbatch",
        read=micro_batch,
        value_type=nullable(INTEGER),
        note="total number of sequences on all GPUs",
        deprecated="write micro_batch_size_per_gpu, the number per GPU",
    ),
    *(
        no_effect(key, default, why, value_type=ANY)
        for key, default, why in (
            ("data.use_shm", False, "the data is read from its files"),
            ("model.use_shm", False, "the model is read from its folder"),
            ("model.strategy", "fsdp2", "a single process trains"),
        )
    ),
    refused("trainer.resume_path", None, "a run resumes from its own folder; leave it null"),
    *FOLDERS,
    mapped("trainer.total_epochs", 4, "trainer.duration", read=duration_in_epochs),
    mapped(
        "trainer.total_training_steps",
        None,
        "trainer.duration",
        read=duration_in_epochs,
        value_type=nullable(INTEGER),
        note="may end the run before total_epochs, which schedules span",
    ),
    mapped(
        "trainer.logger",
        ["console", "wandb"],
        "record.monitors",
        read=monitors,
        value_type=MONITOR_NAMES,
        warn=lacking_monitors,
    ),
    mapped("trainer.seed", 1, "seed", read=intervals),
    placement("trainer.nnodes", 1, ONE_MACHINE, supported=only(1)),
    placement(
        "trainer.n_gpus_per_node",
        8,
        ONE_GPU,
        supported=one_gpu,
    ),
    mapped(
        "optim.betas",
        [0.9, 0.95],
        "trainer.optimizer.betas",
        read=betas,
        value_type=BETAS,
    ),
    placement("ulysses_sequence_parallel_size", 1, NO_SHARDS, supported=only(1)),
    placement(
        "use_remove_padding", False, "sequences are always packed without padding", supported=only(True)
    ),
)
_ROWS = (*_OPTIM, *_MODEL, *_DATA, *_TRAINER, *LATER)
LEDGER = Ledger("verl-sft", (*_ROWS, *versions(*aliases(_ROWS, OTHER_NAMES), since="0.6")))


def read_verl_sft(
    overrides: Sequence[str],
    *,
    config: Path | None = None,
    selection: ConfigSelection | None = None,
    here: bool = False,
    key_owner: KeyOwnerHint = no_key_owner,
) -> LoadedRun:
    """Read the arguments of `verl.trainer.fsdp_sft_trainer`, or of `verl.trainer.sft_trainer`, which has
    other keys: overrides, applied to `config` if it is given.

    Raises ConfigError for a key or value that is not accepted, and PlacementError for hardware that this
    machine does not have, unless `here` or STROP_HERE overrides it.
    """
    chosen = select(config, selection)
    if uses_engine(overrides, chosen):
        return read_engine_trainer(overrides, chosen, here=here_requested(here), key_owner=key_owner)
    tree = read_command_line(LEDGER, SFT, "sft_trainer", overrides, chosen, key_owner)
    return read_dialect(LEDGER, tree, here=here_requested(here), key_owner=key_owner)

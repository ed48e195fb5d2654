"""Ledger of verl's `sft_trainer_engine.yaml`, the SFT trainer since verl 0.6, and the reader of both SFT trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from strop.compat.hydra import ConfigSelection, read_command_line, select
from strop.compat.ledger.key_mapping import (
    ALWAYS_PACKED,
    ANY,
    BETAS,
    INTEGER,
    NO_QUANTIZED_TRAINING,
    NO_SHARDS,
    NUMBERS,
    ONE_GPU,
    OWN_KERNELS,
    STRING,
    STRING_OR_LIST,
    SWITCH,
    UNSET,
    ForeignValues,
    KeyOwnerHint,
    Ledger,
    aliases,
    fused_kernels,
    mapped,
    no_effect,
    no_key_owner,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    placement_section,
    refused,
    unless,
    unset_by_null,
    written_by,
)
from strop.compat.ledger.reader import read_dialect
from strop.compat.verl import sft
from strop.compat.verl.data import (
    NO_VIDEO,
    custom_class,
    custom_class_rows,
    has_no_column,
    image_columns,
    require_no_video,
    template_args,
    write_custom_class,
    write_image_columns,
    write_row_limits,
    write_template_args,
)
from strop.compat.verl.engine import PARAMETER_DTYPES, half_parameters, one_gpu
from strop.compat.verl.hydra import SFT_ENGINE
from strop.compat.verl.optim import ADAMW, OptimizerKeys
from strop.compat.verl.sft import (
    checkpoint_contents_rows,
    length_limit,
    read_fsdp_trainer,
    row_columns,
    write_row_columns,
)
from strop.compat.verl.trainer import RESUME, duration
from strop.config.load.loader import LoadedRun
from strop.config.load.overrides import parse_overrides
from strop.config.load.yaml_file import read_yaml
from strop.config.machine import here_requested
from strop.config.schema import Run

_fixed_batch = unless("data.use_dynamic_bsz", False)
_dynamic_batch = unless("data.use_dynamic_bsz", True)


def write_conversations(run: Run) -> Mapping[str, Any]:
    """Write the files and the column of the conversations."""
    train, held_out = run.data.train, run.data.eval
    return {
        "data.train_files": train.path,
        "data.val_files": held_out[0].path if held_out else None,
        "data.messages_key": train.response,
        **write_row_columns(run, "data"),
        **write_row_limits(run),
        **write_image_columns(run),
        **write_custom_class(train.dataset),
    }


@written_by(write_conversations)
def conversations(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the files, and the column of whole conversations, of which the assistant's turns are trained."""
    require_no_video(foreign)
    columns: dict[str, Any] = {"response": foreign["data.messages_key"], **row_columns(foreign, "data")}
    if images := image_columns(foreign):
        optional = [*columns["optional_columns"], *images["optional_columns"]]
        columns |= {**images, "optional_columns": optional}
    dataset = custom_class(foreign)
    settings: dict[str, Any] = {"algorithm.type": "sft", "data.eval": []}
    for name, files in (("train", "data.train_files"), ("val", "data.val_files")):
        limit = foreign[f"data.{name}_max_samples"]
        taskset = {"path": foreign[files], **columns}
        taskset |= {"limit_tasks": limit} if limit > 0 else {}
        taskset |= {} if dataset is None else {"dataset": dataset}
        if name == "train":
            settings |= {f"data.train.{key}": value for key, value in taskset.items()}
        elif foreign[files] is not None:
            settings["data.eval"] = [{"name": "val", **taskset}]
    return settings


@written_by(write_template_args)
def thinking_args(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the variables of the chat template; `enable_thinking_default` is one of them."""
    args = dict(template_args(foreign).get("data.chat_template_args", {}))
    thinking = foreign["data.enable_thinking_default"]
    if thinking not in (None, "none"):
        args["enable_thinking"] = bool(thinking)
    return {"data.chat_template_args": args} if args else {}


def write_micro_batch(run: Run) -> Mapping[str, Any]:
    """Write the micro-batch size in tokens or in sequences."""
    size = run.trainer.microbatch
    by_tokens = size.unit == "tokens"
    key = "data.max_token_len_per_gpu" if by_tokens else "data.micro_batch_size_per_gpu"
    return {"data.use_dynamic_bsz": by_tokens, key: size.count}


@written_by(write_micro_batch)
def micro_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the micro-batch size: tokens for a dynamic batch size, else sequences."""
    if foreign["data.use_dynamic_bsz"]:
        return {"trainer.microbatch": f"{foreign['data.max_token_len_per_gpu']} tokens"}
    return {"trainer.microbatch": f"{foreign['data.micro_batch_size_per_gpu']} sequences"}


_row = partial(mapped, read=conversations)
_DATA = (
    mapped("data.train_batch_size", 256, "trainer.tasks_per_step", note="counts rows"),
    mapped("data.micro_batch_size_per_gpu", 4, "trainer.microbatch", read=micro_batch, inactive=_fixed_batch),
    mapped(
        "data.max_token_len_per_gpu", 8192, "trainer.microbatch", read=micro_batch, inactive=_dynamic_batch
    ),
    mapped("data.use_dynamic_bsz", True, "trainer.microbatch", read=micro_batch),
    _row("data.train_files", "~/data/gsm8k/train.parquet", "data.train.path", value_type=STRING_OR_LIST),
    _row(
        "data.val_files",
        None,
        "data.eval.0.path",
        value_type=nullable(STRING_OR_LIST),
        note="the loss on this file is the evaluation",
    ),
    _row("data.train_max_samples", -1, "data.train.limit_tasks"),
    _row("data.val_max_samples", -1, "data.eval.0.limit_tasks"),
    _row("data.messages_key", "messages", "data.train.response", "data.eval.0.response"),
    mapped(
        "data.max_length",
        1024,
        "data.max_prompt_tokens",
        "data.max_response_tokens",
        read=length_limit,
        note="bounds a whole conversation",
    ),
    mapped(
        "data.truncation",
        "error",
        "data.overlong",
        read=length_limit,
        value_type=one_of("error", "left", "right"),
    ),
    _row(
        "data.tools_key",
        "tools",
        "data.train.tools",
        "data.eval.0.tools",
        note="column of a row's tools, where it exists",
    ),
    _row(
        "data.enable_thinking_key",
        "enable_thinking",
        "data.train.template_columns",
        "data.eval.0.template_columns",
        note="column of a row's own enable_thinking, where it exists",
    ),
    mapped(
        "data.enable_thinking_default",
        None,
        "data.chat_template_args",
        read=thinking_args,
        note="enable_thinking of rows without it; null or none for the template's own default",
    ),
    *custom_class_rows(
        conversations, "a torch Dataset of input_ids, attention_mask and loss_mask, or of rows"
    ),
    *(
        no_effect(f"data.{name}", default, why, value_type=ANY)
        for name, default, why in (
            ("pad_mode", "no_padding", ALWAYS_PACKED),
            ("balance_dp_token", False, "a single process needs no balancing"),
            ("use_shm", False, "the data is read from its files"),
            ("num_workers", 8, "rows are read in this process"),
            ("ignore_input_ids_mismatch", False, "a conversation is always tokenized as a whole"),
        )
    ),
    _row(
        "data.image_key",
        "images",
        "data.train.images",
        value_type=nullable(STRING),
        note="images of the rows that have this column; without it in the files, conversations are text",
    ),
    refused("data.video_key", "videos", NO_VIDEO, supported=has_no_column, value_type=nullable(STRING)),
    mapped(
        "data.apply_chat_template_kwargs.*",
        UNSET,
        "data.chat_template_args",
        read=thinking_args,
        note="variables of the chat template",
    ),
)
_KEYS = OptimizerKeys("optim", "engine.strategy")


def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule and the bound of the gradient norm from the keys of the engine."""
    settings = {f"trainer.schedule.{name}": value for name, value in _KEYS.schedule(foreign).items()}
    if foreign.is_set("optim.init_lr_ratio") and foreign["engine.strategy"] == "automodel":
        settings["trainer.schedule.start_ratio"] = foreign["optim.init_lr_ratio"]
    return settings | {"trainer.max_grad_norm": foreign["optim.clip_grad"] or None}


def _is_off(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports null, zero, false and what is empty."""
    return value in (None, {}, [], 0, False)


_STATE = {
    **dict.fromkeys(("master_weights", "store_param_remainders", "use_precision_aware_optimizer"), False),
    **dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype", "master_weight_dtype")),
    "main_grads_dtype": "fp32",
}
_OPTIM = (
    mapped("optim.lr", 1e-3, "trainer.optimizer.lr"),
    mapped("optim.weight_decay", 0.01, "trainer.optimizer.weight_decay"),
    mapped(
        "optim.betas",
        [0.9, 0.999],
        "trainer.optimizer.betas",
        converts=NUMBERS,
        value_type=BETAS,
        note="a list, or a list in quotes",
    ),
    mapped("optim.clip_grad", 1.0, "trainer.max_grad_norm", read=schedule, note="0 means no bound"),
    *_KEYS.warmup_rows("trainer", schedule),
    *_KEYS.megatron_rows("trainer", schedule),
    *_KEYS.later_rows("trainer", schedule, _STATE),
    mapped("optim.init_lr_ratio", 0.0, "trainer.schedule.start_ratio", read=schedule, inactive=_KEYS.fsdp),
    *(
        refused(f"optim.{name}", "constant", "the weight decay is constant; leave it constant")
        for name in ("weight_decay_incr_style", "wd_incr_style")
    ),
    refused(
        "optim.optimizer",
        "AdamW",
        "Strop reads AdamW here; another optimizer needs a run file",
        supported=only(*ADAMW),
    ),
)
_mtp = unless("model.mtp.enable", True)


def template(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the chat template; null means the tokenizer's."""
    return {"data.chat_template": foreign["model.custom_chat_template"] or "tokenizer"}


def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the dtypes: the key sets the parameters' dtype; computation is in bfloat16."""
    return {"model.dtype": PARAMETER_DTYPES[foreign["engine.model_dtype"]], "model.compute_dtype": "bfloat16"}


def _heads_only(foreign: ForeignValues, value: Any) -> bool:
    return not value or bool(foreign["model.mtp.detach_encoder"])


_MODEL = (
    mapped("model.path", "~/models/deepseek-llm-7b-chat", "model.path"),
    mapped("model.tokenizer_path", None, "model.tokenizer", value_type=nullable(STRING)),
    *sft.MODEL,
    mapped("model.enable_gradient_checkpointing", True, "model.gradient_checkpointing", converts=SWITCH),
    mapped(
        "model.custom_chat_template",
        None,
        "data.chat_template",
        read=template,
        value_type=nullable(STRING),
        note="Jinja text; null means the tokenizer's template",
    ),
    *(
        refused(f"model.{name}", default, why, supported=_is_off)
        for name, default, why in (
            ("exclude_modules", None, "write model.target_modules"),
            ("lora_adapter_path", None, "write the merged model's folder as model.path"),
            ("lora.rank", 0, "write model.lora_rank"),
            ("hf_config_path", None, "the model folder's config.json is read; leave it null"),
            ("override_config.*", UNSET, "write a model folder with this config.json"),
        )
    ),
    placement("model.use_remove_padding", True, ALWAYS_PACKED, supported=only(True)),
    *(
        placement(f"model.{name}", False, OWN_KERNELS, supported=only(False))
        for name in ("use_shm", "enable_activation_offload")
    ),
    fused_kernels("model.use_fused_kernels"),
    *(placement_section(f"model.{name}", OWN_KERNELS) for name in ("fused_kernel_options", "tiled_mlp")),
    no_effect("model.lora.*", UNSET, "model.lora.rank is 0"),
    no_effect("model.mtp.enable", False, "tokens are trained one by one"),
    no_effect("model.mtp.detach_encoder", False, "the additional heads are not trained"),
    refused(
        "model.mtp.enable_train",
        False,
        "multi-token prediction adds a loss; write model.mtp.detach_encoder=True, or leave it False",
        supported=_heads_only,
        inactive=_mtp,
    ),
    no_effect("model.mtp.*", UNSET, "the additional heads are not trained"),
)
_ENGINE = (
    placement("engine.strategy", "fsdp", "a single process trains", supported=only("fsdp", "fsdp2")),
    mapped(
        "engine.model_dtype",
        "fp32",
        "model.dtype",
        "model.compute_dtype",
        read=precision,
        value_type=one_of(*PARAMETER_DTYPES),
        warn=half_parameters("engine.model_dtype"),
        note="dtype of the parameters; computation is in bfloat16",
    ),
    *(
        refused(f"engine.{name}", UNSET, f"{why}; write 0", supported=_is_off)
        for name, why in (
            ("override_transformer_config.moe_aux_loss_coeff", "a run file has it as trainer.router_loss"),
            ("override_transformer_config.moe_z_loss_coeff", "a run file has it as trainer.router_loss"),
            ("override_transformer_config.attention_dropout", "Strop trains without dropout"),
            ("override_transformer_config.hidden_dropout", "Strop trains without dropout"),
            ("enable_fp8", "Strop trains in bfloat16 or float32"),
            ("backend_config.fake_balanced_gate", "experts are chosen by the router"),
            ("backend_config.fake_gate_noise", "experts are chosen by the router"),
        )
    ),
    refused("engine.qat.enable", UNSET, NO_QUANTIZED_TRAINING, supported=_is_off),
    placement_section("engine", NO_SHARDS),
)
_TRAINER = (
    *sft.RUN,
    sft.DEVICE,
    mapped("trainer.total_epochs", 4, "trainer.duration", read=duration),
    mapped(
        "trainer.total_training_steps",
        None,
        "trainer.duration",
        read=duration,
        value_type=nullable(INTEGER),
        note="schedules span it, and total_epochs may end the run before",
    ),
    *RESUME,
    placement("trainer.n_gpus_per_node", 1, ONE_GPU, supported=one_gpu),
    placement(
        "trainer.balance_batch",
        True,
        "the ranks of an update always share it by predicted cost",
        supported=only(True),
    ),
    no_effect("trainer.profile_interval", [-1, -1], "Strop does not profile a run", value_type=ANY),
    no_effect("profiler.*", UNSET, "Strop does not profile a run"),
    no_effect("global_profiler.*", UNSET, "Strop does not profile a run"),
    no_effect("hydra.*", UNSET, "the run folder is trainer.default_local_dir"),
    *checkpoint_contents_rows("checkpoint"),
)
_ROWS = unset_by_null((*_DATA, *_MODEL, *_ENGINE, *_OPTIM, *_TRAINER), ("optim.warmup_style",))
LEDGER = Ledger(
    "verl-sft-engine", not_on_page(*_ROWS, *aliases(_ROWS, {"optim.lr_scheduler_type": "optim.warmup_style"}))
)


def uses_engine(overrides: Sequence[str], selection: ConfigSelection) -> bool:
    """Whether the command line is of the SFT trainer since verl 0.6, which has keys of its own."""
    if "sft_trainer_engine" in (selection.name or "", selection.file.stem if selection.file else ""):
        return True
    if selection.file is not None and selection.file.is_file():
        tree = read_yaml(selection.file)
        return "engine" in tree.values or tree.has(("model", "path"))
    keys = [override.key_or_group for override in parse_overrides(overrides, groups=True)]
    return any(key.split(".")[0] == "engine" or key in ("model.path", "data.messages_key") for key in keys)


def read_engine_trainer(
    overrides: Sequence[str], selection: ConfigSelection, *, here: bool, key_owner: KeyOwnerHint
) -> LoadedRun:
    """Read the arguments of `verl.trainer.sft_trainer`. Raises ConfigError and PlacementError."""
    tree = read_command_line(LEDGER, SFT_ENGINE, "sft_trainer_engine", overrides, selection, key_owner)
    return read_dialect(LEDGER, tree, here=here, key_owner=key_owner)


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
    read = read_engine_trainer if uses_engine(overrides, chosen) else read_fsdp_trainer
    return read(overrides, chosen, here=here_requested(here), key_owner=key_owner)

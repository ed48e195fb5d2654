"""Ledger of verl's `sft_trainer.yaml`, and the rows and converters that the SFT trainer since verl 0.6 has too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from strop.compat.hydra import ConfigSelection, read_command_line
from strop.compat.ledger.key_mapping import (
    ANY,
    BETAS,
    INTEGER,
    NAMES,
    NO_SHARDS,
    NUMBER,
    NUMBERS,
    ONE_GPU,
    ONE_MACHINE,
    STRING,
    STRING_OR_LIST,
    SWITCH,
    UNSET,
    ForeignValues,
    KeyMapping,
    KeyOwnerHint,
    Ledger,
    aliases,
    empty,
    fused_kernels,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    unless,
    versions,
    written_by,
)
from strop.compat.ledger.reader import read_dialect
from strop.compat.verl.data import (
    custom_class,
    custom_class_rows,
    limit_of_rows,
    template_args,
    write_custom_class,
    write_row_limits,
)
from strop.compat.verl.engine import PARAMETER_DTYPES, half_parameters, one_gpu
from strop.compat.verl.hydra import SFT
from strop.compat.verl.trainer import (
    FOLDER,
    MONITOR_NAMES,
    RESUME,
    duration_in_epochs,
    every,
    folder,
    frequency,
    lacking_monitors,
    monitors,
)
from strop.config.load.loader import LoadedRun
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.config.units import Amount

EACH_EPOCH = "after_each_epoch"
"""Value of an interval that means one epoch."""


def without_lora(foreign: ForeignValues) -> str | None:
    """LoRA rank 0 trains the whole model."""
    rank = foreign["model.lora_rank"]
    return None if rank > 0 else f"model.lora_rank is {rank}"


def write_schedule(run: Run) -> Mapping[str, Any]:
    """Write the schedule; verl has the warm-up as a fraction of the run."""
    section = run.trainer.schedule
    values: dict[str, Any] = {"optim.lr_scheduler": section.type}
    if section.warmup.unit == "%" or section.warmup.count == 0:
        values["optim.warmup_steps_ratio"] = round(section.warmup.count / 100, 12)
    return values


@written_by(write_schedule)
def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule, which counts steps; wsd decays in the last tenth of the steps after the warm-up."""
    percent = round(100 * foreign["optim.warmup_steps_ratio"], 10)
    kind = {
        "trainer.schedule.type": foreign["optim.lr_scheduler"],
        "trainer.schedule.interval": "steps",
        "trainer.schedule.warmup": f"{percent} %",
    }
    decay = {"trainer.schedule.decay": "10 %", "trainer.schedule.style": "cosine"}
    return kind | (decay if foreign["optim.lr_scheduler"] == "wsd" else {})


@written_by(
    lambda run: {"model.fsdp_config.model_dtype": {"float32": "fp32", "bfloat16": "bf16"}[run.model.dtype]}
)
def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the dtypes: the key sets the parameters' dtype; computation is in bfloat16."""
    kind = PARAMETER_DTYPES[foreign["model.fsdp_config.model_dtype"]]
    return {"model.dtype": kind, "model.compute_dtype": "bfloat16"}


def write_lora(run: Run) -> Mapping[str, Any]:
    """Write the LoRA adapter; rank 0 means no adapter."""
    adapter = run.model.lora
    if adapter is None:
        return {"model.lora_rank": 0}
    return {
        "model.lora_rank": adapter.rank,
        "model.lora_alpha": adapter.alpha,
        "model.target_modules": adapter.targets,
    }


@written_by(write_lora, off={"model.lora_rank": 0})
def lora(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the LoRA adapter; rank 0 trains the whole model."""
    if without_lora(foreign):
        return {}
    return {
        "model.lora.rank": foreign["model.lora_rank"],
        "model.lora.alpha": foreign["model.lora_alpha"],
        "model.lora.targets": foreign["model.target_modules"],
    }


def row_columns(foreign: ForeignValues, section: str) -> dict[str, Any]:
    """Read the columns of a row's tools and of its variable `enable_thinking`, which rows may lack."""
    tools, thinking = (foreign[f"{section}.{name}"] for name in ("tools_key", "enable_thinking_key"))
    return {
        "tools": tools,
        "template_columns": {"enable_thinking": thinking},
        "optional_columns": [tools, thinking],
    }


def write_row_columns(run: Run, section: str) -> Mapping[str, Any]:
    """Write the columns of a row's tools and of its variable `enable_thinking`."""
    train = run.data.train
    return {
        f"{section}.tools_key": train.tools,
        f"{section}.enable_thinking_key": train.template_columns.get("enable_thinking"),
    }


def write_answer_columns(run: Run) -> Mapping[str, Any]:
    """Write the files and columns: a `messages` column of whole conversations, or prompt and response columns
    with the keys inside them."""
    train = run.data.train
    if isinstance(run.algorithm, SftConfig) and train.prompt == "prompt" and train.response == "messages":
        columns: dict[str, Any] = {
            "data.multiturn.enable": True,
            "data.multiturn.messages_key": "messages",
            **write_row_columns(run, "data.multiturn"),
        }
    else:
        columns = {"data.multiturn.enable": False}
        for name in ("prompt", "response"):
            first, *inside = (getattr(train, name) or "").split(".")
            columns |= {f"data.{name}_key": first, f"data.{name}_dict_keys": inside or None}
    eval_path = run.data.eval[0].path if run.data.eval else None
    files = {"data.train_files": train.path, "data.val_files": eval_path}
    return {**files, **columns, **write_row_limits(run), **write_custom_class(train.dataset)}


@written_by(write_answer_columns)
def answer_columns(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the files and columns: prompt and response columns, with the keys inside mappings, or one column
    of messages."""
    if foreign["data.multiturn.enable"]:
        columns: dict[str, Any] = {
            "response": foreign["data.multiturn.messages_key"],
            **row_columns(foreign, "data.multiturn"),
        }
    else:
        columns = {
            name: ".".join([foreign[f"data.{name}_key"], *(foreign[f"data.{name}_dict_keys"] or [])])
            for name in ("prompt", "response")
        }
    settings: dict[str, Any] = {"algorithm.type": "sft", "data.train.path": foreign["data.train_files"]}
    settings |= {f"data.train.{name}": column for name, column in columns.items()}
    validation = {"name": "val", "path": foreign["data.val_files"], **columns}
    limits = {name: limit_of_rows(foreign, f"data.{name}_max_samples") for name in ("train", "val")}
    settings["data.train.limit_tasks"], validation["limit_tasks"] = limits["train"], limits["val"]
    if (dataset := custom_class(foreign)) is not None:
        settings["data.train.dataset"] = validation["dataset"] = dataset
    settings["data.eval"] = [] if foreign["data.val_files"] is None else [validation]
    return settings


def write_length_limit(run: Run) -> Mapping[str, Any]:
    """Write the length limit: the sum of the prompt and response limits."""
    total = run.data.max_prompt_tokens + run.data.max_response_tokens
    return {"data.max_length": total, "data.truncation": run.data.overlong}


@written_by(write_length_limit)
def length_limit(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limit on prompt and response together; Strop's sft bounds them by the sum of its two
    limits."""
    total = foreign["data.max_length"]
    if total < 2:
        raise foreign.error_for(
            "data.max_length", "data.max_length must be at least 2: one token of prompt and one of response."
        )
    return {
        "data.max_prompt_tokens": total // 2,
        "data.max_response_tokens": total - total // 2,
        "data.overlong": foreign["data.truncation"],
    }


def write_template(run: Run) -> Mapping[str, Any]:
    """Write the chat template; null means the tokenizer's."""
    chat_template = run.data.chat_template
    return (
        {}
        if chat_template == "none"
        else {"data.chat_template": None if chat_template == "tokenizer" else chat_template}
    )


@written_by(write_template)
def template(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the chat template; null means the tokenizer's."""
    return {"data.chat_template": foreign["data.chat_template"] or "tokenizer"}


def write_micro_batch(run: Run) -> Mapping[str, Any]:
    """Write the micro-batch size, if it is in sequences."""
    size = run.trainer.microbatch
    return {"data.micro_batch_size_per_gpu": size.count} if size.unit == "sequences" else {}


@written_by(write_micro_batch)
def micro_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the micro-batch size in sequences; the deprecated key counts those of all GPUs."""
    everywhere = foreign["data.micro_batch_size"]
    if everywhere is not None and not foreign.is_set("data.micro_batch_size_per_gpu"):
        gpus = foreign["trainer.nnodes"] * foreign["trainer.n_gpus_per_node"]
        return {"trainer.microbatch": f"{max(1, everywhere // max(1, gpus))} sequences"}
    return {"trainer.microbatch": f"{foreign['data.micro_batch_size_per_gpu']} sequences"}


def write_intervals(run: Run) -> Mapping[str, Any]:
    """Write the seed, and the evaluation and checkpoint intervals."""
    intervals = {"trainer.test_freq": run.evaluate.every, "trainer.save_freq": run.checkpoint.every}
    written = {key: _frequency(run, often) for key, often in intervals.items()}
    return {"trainer.seed": run.seed, "trainer.max_ckpt_to_keep": run.checkpoint.keep, **written}


@written_by(write_intervals)
def intervals(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the seed and the intervals; verl also evaluates and saves a Hugging Face folder at the end."""
    return {
        "seed": foreign["trainer.seed"],
        "evaluate.every": _interval(foreign, "trainer.test_freq"),
        "evaluate.at_start": False,
        "checkpoint.every": _interval(foreign, "trainer.save_freq"),
        "checkpoint.keep": foreign["trainer.max_ckpt_to_keep"],
        "checkpoint.export": True,
    }


def _frequency(run: Run, often: Amount | None) -> float | str | None:
    if often is not None and (often.count, often.unit) == (1, "epochs"):
        return EACH_EPOCH
    return frequency(run, often)


def _interval(foreign: ForeignValues, key: str) -> str:
    count = foreign[key]
    if count == EACH_EPOCH:
        return "1 epochs"
    if not isinstance(count, int):
        raise foreign.error_for(key, f"{key} is {count!r}; write a number of steps, or {EACH_EPOCH}.")
    return every(count)


_NOTE = f"counts steps; -1 means only at the end, {EACH_EPOCH} every epoch"
DEVICE = placement(
    "trainer.device", "cuda", "this machine's GPU, or its CPU if there is no GPU", supported=only("cuda")
)
RUN = (
    mapped("trainer.save_freq", -1, "checkpoint.every", read=intervals, value_type=ANY, note=_NOTE),
    mapped("trainer.test_freq", -1, "evaluate.every", read=intervals, value_type=ANY, note=_NOTE),
    mapped("trainer.max_ckpt_to_keep", None, "checkpoint.keep", read=intervals, value_type=nullable(INTEGER)),
    mapped("trainer.seed", 1, "seed", read=intervals),
    FOLDER,
    mapped("trainer.default_hdfs_dir", None, "checkpoint.mirror", value_type=nullable(STRING)),
    mapped("trainer.project_name", "gsm8k-sft", "project", read=folder),
    mapped("trainer.experiment_name", "test", "name", read=folder),
    mapped(
        "trainer.logger",
        ["console", "wandb"],
        "record.monitors",
        read=monitors,
        value_type=MONITOR_NAMES,
        warn=lacking_monitors,
    ),
    placement("trainer.nnodes", 1, ONE_MACHINE, supported=only(1)),
)
"""Rows of `trainer` that both SFT trainers have."""
_lora_row = partial(mapped, read=lora, inactive=without_lora)
MODEL = (
    mapped(
        "model.external_lib",
        None,
        "model.imports",
        converts=NAMES,
        value_type=nullable(STRING_OR_LIST),
        note="imported before the model is loaded",
    ),
    mapped("model.trust_remote_code", False, "model.trust_remote_code"),
    mapped("model.lora_rank", 0, "model.lora.rank", read=lora),
    _lora_row("model.lora_alpha", 16, "model.lora.alpha", value_type=NUMBER),
    _lora_row("model.target_modules", "all-linear", "model.lora.targets", value_type=STRING_OR_LIST),
    fused_kernels("model.use_liger"),
)
"""Rows of `model` that both SFT trainers have."""


def checkpoint_contents_rows(section: str) -> tuple[KeyMapping, ...]:
    """Rows of a `checkpoint` section of SFT, whose checkpoints always have all of their parts."""
    whole = ["model", "optimizer", "extra"]
    why = "checkpoints always have the model, the optimizer's state and the run's state"
    return (
        *(
            refused(f"{section}.{name}", default, f"{why}; leave it at its default", supported=_is_whole)
            for name, default in (
                ("save_contents", whole),
                ("load_contents", f"${{{section}.save_contents}}"),
            )
        ),
        no_effect(f"{section}.*", UNSET, why),
    )


def _is_whole(foreign: ForeignValues, value: Any) -> bool:
    return isinstance(value, list) and all(part in value for part in ("model", "optimizer", "extra"))


_OTHER_NAMES = {"optim.lr_warmup_steps_ratio": "optim.warmup_steps_ratio"}
"""Keys of version 0.6 that mean the same as a key of the ledger."""
_column_row = partial(mapped, read=answer_columns)
_LATER = versions(
    *RESUME,
    *checkpoint_contents_rows("trainer.checkpoint"),
    DEVICE,
    _column_row("data.train_max_samples", -1, "data.train.limit_tasks", note="-1 means all rows"),
    _column_row("data.val_max_samples", -1, "data.eval.0.limit_tasks", note="-1 means all rows"),
    mapped(
        "data.apply_chat_template_kwargs.*",
        UNSET,
        "data.chat_template_args",
        read=template_args,
        note="variables of the chat template",
    ),
    refused("optim.optimizer", "AdamW", "Strop reads AdamW here; another optimizer needs a run file"),
    placement("optim.optimizer_impl", "torch.optim", "Strop's own optimizer", supported=only("torch.optim")),
    refused(
        "optim.override_optimizer_config.*",
        UNSET,
        "Strop does not know this option of the optimizer; remove it",
        supported=empty,
    ),
    *(
        no_effect(f"optim.{name}", UNSET, "fsdp_sft_trainer does not read it")
        for name in (
            "total_training_steps",
            "lr_warmup_steps",
            "min_lr_ratio",
            "num_cycles",
            "lr_scheduler_type",
            "warmup_style",
        )
    ),
    since="0.5",
)
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
    mapped("model.enable_gradient_checkpointing", False, "model.gradient_checkpointing", converts=SWITCH),
    *MODEL,
)
_DATA = not_on_page(
    mapped("data.train_batch_size", 256, "trainer.tasks_per_step", note="counts rows"),
    mapped(
        "data.micro_batch_size_per_gpu", 4, "trainer.microbatch", read=micro_batch, note="counts sequences"
    ),
    _column_row(
        "data.train_files", "~/data/gsm8k/train.parquet", "data.train.path", value_type=STRING_OR_LIST
    ),
    _column_row(
        "data.val_files",
        "~/data/gsm8k/test.parquet",
        "data.eval.0.path",
        value_type=nullable(STRING_OR_LIST),
        note="the loss on this file is the evaluation; null disables evaluation",
    ),
    _column_row("data.prompt_key", "question", "data.train.prompt", "data.eval.0.prompt", inactive=_columns),
    _column_row(
        "data.response_key", "answer", "data.train.response", "data.eval.0.response", inactive=_columns
    ),
    *(
        _column_row(
            f"data.{name}_dict_keys",
            None,
            f"data.train.{name}",
            f"data.eval.0.{name}",
            value_type=nullable(STRING_OR_LIST),
            inactive=_columns,
            note="keys inside the column, if it has mappings",
        )
        for name in ("prompt", "response")
    ),
    _column_row("data.multiturn.enable", False, "data.train.response", "data.eval.0.response"),
    _column_row(
        "data.multiturn.messages_key",
        "messages",
        "data.train.response",
        "data.eval.0.response",
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
        _column_row(
            "data.multiturn.tools_key",
            "tools",
            "data.train.tools",
            "data.eval.0.tools",
            inactive=_conversation,
            note="column of a row's tools, where it exists",
        ),
        _column_row(
            "data.multiturn.enable_thinking_key",
            "enable_thinking",
            "data.train.template_columns",
            "data.eval.0.template_columns",
            inactive=_conversation,
            note="column of a row's own enable_thinking, where it exists",
        ),
    ),
    *custom_class_rows(
        answer_columns, "a torch Dataset of input_ids, attention_mask and loss_mask, or of rows"
    ),
)
_TRAINER = not_on_page(
    *RUN,
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
    mapped("trainer.total_epochs", 4, "trainer.duration", read=duration_in_epochs),
    mapped(
        "trainer.total_training_steps",
        None,
        "trainer.duration",
        read=duration_in_epochs,
        value_type=nullable(INTEGER),
        note="may end the run before total_epochs, which schedules span",
    ),
    placement("trainer.n_gpus_per_node", 8, ONE_GPU, supported=one_gpu),
    mapped("optim.betas", [0.9, 0.95], "trainer.optimizer.betas", converts=NUMBERS, value_type=BETAS),
    placement("ulysses_sequence_parallel_size", 1, NO_SHARDS, supported=only(1)),
    placement(
        "use_remove_padding", False, "sequences are always packed without padding", supported=only(True)
    ),
)
_ROWS = (*_OPTIM, *_MODEL, *_DATA, *_TRAINER, *_LATER)
LEDGER = Ledger("verl-sft", (*_ROWS, *versions(*aliases(_ROWS, _OTHER_NAMES), since="0.6")))


def read_fsdp_trainer(
    overrides: Sequence[str], selection: ConfigSelection, *, here: bool, key_owner: KeyOwnerHint
) -> LoadedRun:
    """Read the arguments of `verl.trainer.fsdp_sft_trainer`. Raises ConfigError and PlacementError."""
    tree = read_command_line(LEDGER, SFT, "sft_trainer", overrides, selection, key_owner)
    return read_dialect(LEDGER, tree, here=here, key_owner=key_owner)

"""verl's `sft_trainer.yaml`. The page has its optimizer and its model; data and trainer are upstream's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.config.dialects.lines import draft_of
from strop.config.dialects.read import read_dialect
from strop.config.dialects.row import (
    NUMBER,
    NUMBERS,
    TEXT,
    TEXTS,
    WHOLE,
    beyond_the_page,
    mapped,
    one_of,
    only,
    or_null,
    placement,
    unless,
    written_by,
)
from strop.config.dialects.theirs import Ledger, Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.data import custom_class, custom_class_rows, write_custom_class
from strop.config.dialects.verl.trainer import duration, folder, monitors, one_gpu
from strop.config.load import Loaded
from strop.config.placement import wants_here
from strop.config.schema import Run
from strop.config.schema.algorithm import Sft

_NO_SHARDS = "one process holds the whole model"
_DTYPES = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
_conversation = unless("data.multiturn.enable", True)
_columns = unless("data.multiturn.enable", False)
_offload = unless("model.fsdp_config.cpu_offload", True)


def _lora(theirs: Theirs) -> str | None:
    rank = theirs["model.lora_rank"]
    return None if rank > 0 else f"model.lora_rank is {rank}"


def write_schedule(run: Run) -> Mapping[str, Any]:
    """The warm-up is a share of the run."""
    said = run.trainer.schedule
    values: dict[str, Any] = {"optim.lr_scheduler": said.type}
    if said.warmup.unit == "%" or said.warmup.count == 0:
        values["optim.warmup_steps_ratio"] = round(said.warmup.count / 100, 12)
    return values


@written_by(write_schedule)
def schedule(theirs: Theirs) -> Mapping[str, Any]:
    """By steps; wsd falls in the last tenth of what follows the warm-up."""
    percent = round(100 * theirs["optim.warmup_steps_ratio"], 10)
    kind = {
        "trainer.schedule.type": theirs["optim.lr_scheduler"],
        "trainer.schedule.counts": "steps",
        "trainer.schedule.warmup": f"{percent} %",
    }
    decay = {"trainer.schedule.decay": "10 %", "trainer.schedule.style": "cosine"}
    return kind | (decay if theirs["optim.lr_scheduler"] == "wsd" else {})


def write_precision(run: Run) -> Mapping[str, Any]:
    """The type of the parameters; the products' is not theirs to say."""
    return {"model.fsdp_config.model_dtype": {"float32": "fp32", "bfloat16": "bf16"}[run.model.dtype]}


@written_by(write_precision)
def precision(theirs: Theirs) -> Mapping[str, Any]:
    """Parameters of that type, multiplied in bfloat16."""
    kind = _DTYPES[theirs["model.fsdp_config.model_dtype"]]
    return {"model.dtype": kind, "model.compute_dtype": "bfloat16"}


def write_lora(run: Run) -> Mapping[str, Any]:
    """Rank 0 is no adapter."""
    said = run.model.lora
    if said is None:
        return {"model.lora_rank": 0}
    return {
        "model.lora_rank": said.rank,
        "model.lora_alpha": said.alpha,
        "model.target_modules": said.targets,
    }


@written_by(write_lora)
def lora(theirs: Theirs) -> Mapping[str, Any]:
    """Rank 0 trains the whole model."""
    if _lora(theirs):
        return {}
    return {
        "model.lora.rank": theirs["model.lora_rank"],
        "model.lora.alpha": theirs["model.lora_alpha"],
        "model.lora.targets": theirs["model.target_modules"],
    }


def write_answers(run: Run) -> Mapping[str, Any]:
    """Columns apart, with the way inside them; `messages` alone is a column of whole conversations."""
    train = run.data.train
    if isinstance(run.algorithm, Sft) and train.prompt == "prompt" and train.response == "messages":
        columns: dict[str, Any] = {"data.multiturn.enable": True, "data.multiturn.messages_key": "messages"}
    else:
        columns = {"data.multiturn.enable": False}
        for name in ("prompt", "response"):
            first, *inside = (getattr(train, name) or "").split(".")
            columns |= {f"data.{name}_key": first, f"data.{name}_dict_keys": inside or None}
    measured = run.data.eval[0].path if run.data.eval else None
    files = {"data.train_files": train.path, "data.val_files": measured}
    return {**files, **columns, **write_custom_class(train.dataset)}


@written_by(write_answers)
def answers(theirs: Theirs) -> Mapping[str, Any]:
    """A prompt's and an answer's column, with the way inside where they are mappings; or one of messages."""
    if theirs["data.multiturn.enable"]:
        columns = {"response": theirs["data.multiturn.messages_key"]}
    else:
        columns = {
            name: ".".join([theirs[f"data.{name}_key"], *(theirs[f"data.{name}_dict_keys"] or [])])
            for name in ("prompt", "response")
        }
    settings: dict[str, Any] = {"algorithm.type": "sft", "data.train.path": theirs["data.train_files"]}
    settings |= {f"data.train.{name}": column for name, column in columns.items()}
    validation = {"name": "val", "path": theirs["data.val_files"], **columns}
    if (own := custom_class(theirs)) is not None:
        settings["data.train.dataset"] = validation["dataset"] = own
    settings["data.eval"] = [] if theirs["data.val_files"] is None else [validation]
    return settings


def write_limits(run: Run) -> Mapping[str, Any]:
    """The sum of both."""
    whole = run.data.max_prompt_tokens + run.data.max_response_tokens
    return {"data.max_length": whole, "data.truncation": run.data.overlong}


@written_by(write_limits)
def limits(theirs: Theirs) -> Mapping[str, Any]:
    """verl bounds prompt and answer together; so does sft here, by the sum of two limits."""
    whole = theirs["data.max_length"]
    if whole < 2:
        raise theirs.fault(
            "data.max_length", "data.max_length is below 2, a token each of prompt and answer."
        )
    if theirs["data.truncation"] == "left":
        raise theirs.fault(
            "data.truncation",
            "data.truncation is left, which cuts into prompts; write right, which drops an answer's end, or "
            "error.",
        )
    return {
        "data.max_prompt_tokens": whole // 2,
        "data.max_response_tokens": whole - whole // 2,
        "data.overlong": theirs["data.truncation"],
    }


def write_template(run: Run) -> Mapping[str, Any]:
    """The tokenizer's own is null."""
    said = run.data.chat_template
    return {} if said == "none" else {"data.chat_template": None if said == "tokenizer" else said}


@written_by(write_template)
def template(theirs: Theirs) -> Mapping[str, Any]:
    """Null is the tokenizer's own."""
    return {"data.chat_template": theirs["data.chat_template"] or "tokenizer"}


def write_imports(run: Run) -> Mapping[str, Any]:
    """One alone is no list."""
    names = list(run.model.imports)
    return {"model.external_lib": names[0] if len(names) == 1 else names or None}


@written_by(write_imports)
def imports(theirs: Theirs) -> Mapping[str, Any]:
    """One library or several."""
    said = theirs["model.external_lib"]
    return {"model.imports": [said] if isinstance(said, str) else said or []}


def write_micro_batch(run: Run) -> Mapping[str, Any]:
    """Where it is said in sequences."""
    size = run.trainer.microbatch
    return {"data.micro_batch_size_per_gpu": size.count} if size.unit == "sequences" else {}


@written_by(write_micro_batch)
def micro_batch(theirs: Theirs) -> Mapping[str, Any]:
    """Sequences at once."""
    return {"trainer.microbatch": f"{theirs['data.micro_batch_size_per_gpu']} sequences"}


def write_each_epoch(run: Run) -> Mapping[str, Any]:
    """When it measures and saves is not theirs to say."""
    return {"trainer.seed": run.seed}


@written_by(write_each_epoch)
def each_epoch(theirs: Theirs) -> Mapping[str, Any]:
    """Upstream measures and saves at every epoch's end, as a Hugging Face folder."""
    return {
        "seed": theirs["trainer.seed"],
        "evaluate.every": "1 epochs",
        "evaluate.at_start": False,
        "checkpoint.every": "1 epochs",
        "checkpoint.keep": None,
        "checkpoint.export": True,
    }


_OPTIM = (
    mapped("optim.lr", 1e-5, "trainer.optimizer.lr"),
    mapped("optim.weight_decay", 0.01, "trainer.optimizer.weight_decay"),
    mapped("optim.warmup_steps_ratio", 0.1, "trainer.schedule.warmup", read=schedule),
    mapped("optim.clip_grad", 1.0, "trainer.max_grad_norm"),
    mapped(
        "optim.lr_scheduler", "cosine", "trainer.schedule.type", read=schedule, kind=one_of("cosine", "wsd")
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
        kind=one_of(*_DTYPES),
        note="of the parameters, which are multiplied in bfloat16; fp16 is not built",
    ),
    placement("model.fsdp_config.wrap_policy.min_num_params", 0, _NO_SHARDS, can=only(0)),
    placement("model.fsdp_config.cpu_offload", False, _NO_SHARDS, can=only(False)),
    placement("model.fsdp_config.offload_params", False, _NO_SHARDS, can=only(False), off=_offload),
    mapped(
        "model.external_lib",
        None,
        "model.imports",
        read=imports,
        kind=or_null(TEXTS),
        note="imported before the model is loaded",
    ),
    mapped("model.enable_gradient_checkpointing", False, "model.gradient_checkpointing"),
    mapped("model.trust_remote_code", False, "model.trust_remote_code"),
    mapped("model.lora_rank", 0, "model.lora.rank", read=lora),
    mapped("model.lora_alpha", 16, "model.lora.alpha", read=lora, kind=NUMBER, off=_lora),
    mapped("model.target_modules", "all-linear", "model.lora.targets", read=lora, kind=TEXTS, off=_lora),
    placement("model.use_liger", False, "Strop's own kernels are used", can=only(False)),
)
_DATA = beyond_the_page(
    mapped("data.train_batch_size", 256, "trainer.tasks_per_step", note="counts rows"),
    mapped(
        "data.micro_batch_size_per_gpu", 4, "trainer.microbatch", read=micro_batch, note="counts sequences"
    ),
    mapped("data.train_files", "~/data/gsm8k/train.parquet", "data.train.path", read=answers, kind=TEXTS),
    mapped(
        "data.val_files",
        "~/data/gsm8k/test.parquet",
        "data.eval.0.path",
        read=answers,
        kind=or_null(TEXTS),
        note="its loss is measured; null measures nothing",
    ),
    mapped(
        "data.prompt_key", "question", "data.train.prompt", "data.eval.0.prompt", read=answers, off=_columns
    ),
    mapped(
        "data.response_key",
        "answer",
        "data.train.response",
        "data.eval.0.response",
        read=answers,
        off=_columns,
    ),
    mapped(
        "data.prompt_dict_keys",
        None,
        "data.train.prompt",
        "data.eval.0.prompt",
        read=answers,
        kind=or_null(TEXTS),
        off=_columns,
        note="the way inside the column, where it holds mappings",
    ),
    mapped(
        "data.response_dict_keys",
        None,
        "data.train.response",
        "data.eval.0.response",
        read=answers,
        kind=or_null(TEXTS),
        off=_columns,
        note="the way inside the column, where it holds mappings",
    ),
    mapped("data.multiturn.enable", False, "data.train.response", "data.eval.0.response", read=answers),
    mapped(
        "data.multiturn.messages_key",
        "messages",
        "data.train.response",
        "data.eval.0.response",
        read=answers,
        off=_conversation,
    ),
    mapped(
        "data.max_length",
        1024,
        "data.max_prompt_tokens",
        "data.max_response_tokens",
        read=limits,
        note="bounds prompt and answer together",
    ),
    mapped("data.truncation", "error", "data.overlong", read=limits, kind=one_of("error", "left", "right")),
    placement("data.balance_dp_token", False, "one process has nothing to balance with", can=only(False)),
    mapped(
        "data.chat_template",
        None,
        "data.chat_template",
        read=template,
        kind=or_null(TEXT),
        note="a Jinja file or its text; null is the tokenizer's own",
    ),
    *custom_class_rows(answers, "a torch Dataset of input_ids, attention_mask and loss_mask; or rows"),
)
_TRAINER = beyond_the_page(
    mapped(
        "trainer.default_local_dir",
        "checkpoints/${trainer.project_name}/${trainer.experiment_name}",
        "folder",
        "output",
        read=folder,
        kind=TEXT,
    ),
    mapped("trainer.default_hdfs_dir", None, "checkpoint.copy_to", kind=or_null(TEXT)),
    mapped("trainer.project_name", "gsm8k-sft", "project", read=folder),
    mapped("trainer.experiment_name", "test", "name", read=folder),
    mapped("trainer.total_epochs", 4, "trainer.duration", read=duration, off=switches.epochs),
    mapped(
        "trainer.total_training_steps",
        None,
        "trainer.duration",
        read=duration,
        kind=or_null(WHOLE),
        note="beats trainer.total_epochs",
    ),
    mapped("trainer.logger", ["console", "wandb"], "record.monitors", read=monitors, kind=TEXTS),
    mapped("trainer.seed", 1, "seed", read=each_epoch),
    placement("trainer.nnodes", 1, "one process, on this machine", can=only(1)),
    placement(
        "trainer.n_gpus_per_node", 8, "one process, on this machine's GPU or else its CPU", can=one_gpu
    ),
    mapped("optim.betas", [0.9, 0.95], "trainer.optimizer.betas", kind=NUMBERS),
    placement("ulysses_sequence_parallel_size", 1, _NO_SHARDS, can=only(1)),
    placement("use_remove_padding", False, "sequences are always packed without padding", can=only(True)),
)
LEDGER = Ledger("verl-sft", (*_OPTIM, *_MODEL, *_DATA, *_TRAINER))


def read_verl_sft(overrides: Sequence[str], *, config: Path | None = None, here: bool = False) -> Loaded:
    """Read what `verl.trainer.fsdp_sft_trainer` is given: overrides, over a whole YAML if there is one.

    Raises ConfigError for a key or value that cannot be taken, PlacementError for hardware that is
    not here, unless `here` or STROP_HERE sets it aside.
    """
    return read_dialect(LEDGER, draft_of(LEDGER, overrides, config), here=wants_here(here))

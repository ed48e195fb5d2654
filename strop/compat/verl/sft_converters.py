"""Converters of the keys of verl's `sft_trainer.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.compat.ledger.value_types import number_list
from strop.compat.verl.data import custom_class, limit_of_rows, write_custom_class, write_row_limits
from strop.compat.verl.parameter_dtypes import PARAMETER_DTYPES
from strop.compat.verl.trainer import every, frequency
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.config.units import Amount

EACH_EPOCH = "after_each_epoch"
"""Value of an interval that means one epoch."""


def without_lora(foreign: ForeignValues) -> str | None:
    """LoRA rank 0 trains the whole model."""
    rank = foreign["model.lora_rank"]
    return None if rank > 0 else f"model.lora_rank is {rank}"


def write_betas(run: Run) -> Mapping[str, Any]:
    """Write AdamW's betas."""
    own = getattr(run.trainer.optimizer, "betas", None)
    return {} if own is None else {"optim.betas": list(own)}


@written_by(write_betas)
def betas(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read AdamW's betas, a list or its text."""
    return {"trainer.optimizer.betas": number_list(foreign["optim.betas"])}


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


def write_precision(run: Run) -> Mapping[str, Any]:
    """Write the dtype of the parameters; verl has no key for the compute dtype."""
    return {"model.fsdp_config.model_dtype": {"float32": "fp32", "bfloat16": "bf16"}[run.model.dtype]}


@written_by(write_precision)
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


@written_by(write_lora)
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


def write_imports(run: Run) -> Mapping[str, Any]:
    """Write the imports; a single one is written as a string."""
    names = list(run.model.imports)
    return {"model.external_lib": names[0] if len(names) == 1 else names or None}


@written_by(write_imports)
def imports(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the imports: one library or a list."""
    libraries = foreign["model.external_lib"]
    return {"model.imports": [libraries] if isinstance(libraries, str) else libraries or []}


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

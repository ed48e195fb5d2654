"""Transformers' TrainingArguments, which TRL's trainers share: batch, intervals, names, and what has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    NEGATED,
    NO_SHARDS,
    NUMBER,
    OWN_KERNELS,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    KeyMapping,
    ReadFunction,
    ValueType,
    fused_kernels,
    mapped,
    no_effect,
    null_means,
    nullable,
    one_of,
    only,
    placement,
    refused,
    unless,
    written_by,
)
from strop.compat.trl.optimization import optimization_rows
from strop.compat.trl.training_engine import ENGINE_ROWS
from strop.config.schema import Run
from strop.config.schema.run import to_steps, updates_per_step
from strop.config.units import Amount


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


def update_batch(foreign: ForeignValues) -> int:
    """Number of completions, rows or pairs in one optimizer update."""
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    for key in sizes:
        if foreign[key] < 1:
            raise foreign.error_for(key, f"{key} is {foreign[key]}; write a number of at least 1.")
    device, accumulated, processes = (foreign[key] for key in sizes)
    return int(device * accumulated * processes)


def device_batch(run: Run, batch: int, size: Amount) -> dict[str, Any]:
    """The batch of each process: the micro-batch of this size, if it divides the process's part of an update. The
    processes are the ranks, if they divide an update."""
    ranks = run.trainer.engine.ranks
    processes = 1 if batch % ranks else ranks
    part = batch // processes
    device = int(size.count) if size.unit == "sequences" and part % size.count == 0 else part
    return {
        "per_device_train_batch_size": device,
        "gradient_accumulation_steps": part // device,
        "num_processes": processes,
    }


def _in_updates(run: Run, amount: Amount | None) -> float | None:
    """An interval in updates; None if updates cannot express it."""
    steps, per_step = to_steps(run, amount), updates_per_step(run)
    if steps is None:
        return None
    if steps.unit == "steps":
        return None if per_step is None else steps.count * per_step
    return steps.count if steps.unit == "updates" else None


def _written_interval(run: Run, every: Amount | None, kind: str) -> dict[str, Any]:
    """The strategy and the steps, of `save` or `eval`."""
    if every is None:
        return {f"{kind}_strategy": "no"}
    if every.unit == "epochs":
        return {f"{kind}_strategy": "epoch" if every.count == 1 else None}
    updates = _in_updates(run, every)
    return {f"{kind}_strategy": "steps" if updates else None, f"{kind}_steps": updates}


def _interval(foreign: ForeignValues, strategy: str, steps: float) -> str:
    """The interval of a strategy: never, every epoch, or a number of updates."""
    if strategy == "steps" and (steps < 1 or steps != int(steps)):
        key = "save_steps" if strategy == foreign["save_strategy"] else "eval_steps"
        raise foreign.error_for(
            key, f"an interval of {steps} steps is a fraction of the run; write a whole number of updates."
        )
    return {"no": "never", "epoch": "1 epochs"}.get(strategy, f"{int(steps)} updates")


def write_duration(run: Run) -> Mapping[str, Any]:
    """Write the duration in epochs or updates."""
    length = run.trainer.duration
    if length.unit == "epochs":
        return {"num_train_epochs": length.count}
    return {"max_steps": _in_updates(run, length)}


@written_by(write_duration)
def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration; a positive `max_steps` counts updates and takes precedence over the epochs."""
    steps, epochs = foreign["max_steps"], foreign["num_train_epochs"]
    return {"trainer.duration": f"{steps} updates" if steps > 0 else f"{epochs} epochs"}


def epochs_overridden(foreign: ForeignValues) -> str | None:
    """The number of updates takes precedence over the number of epochs."""
    steps = foreign["max_steps"]
    return f"max_steps is {steps} and takes precedence" if steps > 0 else None


@written_by(lambda run: _written_interval(run, run.checkpoint.every, "save"))
def saving(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the interval of checkpoints, each of which exports the model as a Hugging Face folder."""
    every = _interval(foreign, foreign["save_strategy"], foreign["save_steps"])
    return {"checkpoint.every": every, "checkpoint.export": True}


def is_evaluated(foreign: ForeignValues) -> bool:
    """Whether the run is evaluated."""
    return bool(foreign["eval_strategy"] != "no")


def without_evaluation(foreign: ForeignValues) -> str | None:
    """The options of evaluation have no effect without evaluation."""
    return None if is_evaluated(foreign) else "eval_strategy is no, so there is no evaluation"


def write_evaluation(run: Run) -> Mapping[str, Any]:
    """Write the interval of evaluations."""
    if not run.data.eval or run.evaluate.every is None:
        return {"eval_strategy": "no"}
    written = _written_interval(run, run.evaluate.every, "eval")
    return {"eval_on_start": run.evaluate.at_start, **written}


@written_by(write_evaluation)
def evaluation(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the interval of evaluations; `eval_steps` unset means `logging_steps`."""
    strategy, steps = foreign["eval_strategy"], foreign["eval_steps"]
    return {
        "evaluate.every": _interval(foreign, strategy, foreign["logging_steps"] if steps is None else steps),
        "evaluate.at_start": bool(foreign["eval_on_start"]) and is_evaluated(foreign),
    }


_row = partial(mapped, read=evaluation)
_INTERVAL_ROWS = (
    mapped("num_train_epochs", 3.0, "trainer.duration", read=duration, inactive=epochs_overridden),
    mapped("max_steps", -1, "trainer.duration", read=duration, note="counts updates"),
    mapped(
        "save_strategy", "steps", "checkpoint.every", read=saving, value_type=one_of("no", "steps", "epoch")
    ),
    mapped(
        "save_steps",
        500,
        "checkpoint.every",
        read=saving,
        value_type=NUMBER,
        inactive=unless("save_strategy", "steps"),
        note="counts updates",
    ),
    mapped("save_total_limit", None, "checkpoint.keep", value_type=nullable(INTEGER), note="null keeps all"),
    mapped("save_only_model", False, "checkpoint.save_optimizer", converts=NEGATED),
    refused("load_best_model_at_end", False, "write checkpoint.best in a run file"),
    no_effect("metric_for_best_model", None, "it is an option of load_best_model_at_end"),
    no_effect("greater_is_better", None, "it is an option of load_best_model_at_end"),
    _row("eval_strategy", "no", "evaluate.every", value_type=one_of("no", "steps", "epoch")),
    _row(
        "eval_steps",
        None,
        "evaluate.every",
        value_type=nullable(NUMBER),
        inactive=unless("eval_strategy", "steps"),
        note="counts updates; null means logging_steps",
    ),
    _row("eval_on_start", False, "evaluate.at_start", inactive=without_evaluation),
    refused("eval_delay", 0, "evaluations start at the first interval", inactive=without_evaluation),
    no_effect("logging_steps", 10, "Strop always writes the metrics of every step", value_type=NUMBER),
)


_MONITORS = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")


@written_by(lambda run: {"output_dir": str(run.folder_path)})
def folder(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the run folder."""
    return {"folder": foreign["output_dir"] or "trainer_output"}


def write_monitors(run: Run) -> Mapping[str, Any]:
    """Write the monitors other than the console, which TRL always has."""
    named = [name for name in run.record.monitors if name in _MONITORS]
    complete = "console" in run.record.monitors
    return {"report_to": named or "none"} if complete else {}


@written_by(write_monitors)
def monitors(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the monitors: names, none, or all."""
    named = foreign["report_to"] or "none"
    names = [named] if isinstance(named, str) else named
    unknown = [name for name in names if name not in (*_MONITORS, "none", "all")]
    if unknown or "all" in names:
        raise foreign.error_for(
            "report_to",
            f"report_to has {(unknown or ['all'])[0]}; write the names of those to use: none, "
            f"{', '.join(_MONITORS)}.",
        )
    return {"record.monitors": ["console", *(name for name in names if name != "none")]}


_NAMES = ValueType(
    "a string, a list of strings, or null", lambda value: value in (None, []) or STRING_OR_LIST.accepts(value)
)
_NAME_ROWS = (
    mapped("output_dir", None, "folder", read=folder, value_type=nullable(STRING)),
    mapped("run_name", None, "name", converts=null_means("run"), value_type=nullable(STRING)),
    mapped("project", "huggingface", "project"),
    mapped(
        "report_to",
        "none",
        "record.monitors",
        read=monitors,
        value_type=_NAMES,
        note="in addition to the console",
    ),
    mapped("seed", 42, "seed"),
    refused("data_seed", None, "write seed, which also orders the tasks"),
    no_effect("env.*", UNSET, "set environment variables before the command"),
)


_WITHOUT_EFFECT: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "Strop always writes its metrics, progress and log",
        {
            "logging_strategy": "steps",
            "logging_first_step": False,
            "log_on_each_node": True,
            "logging_nan_inf_filter": True,
            "log_level": "passive",
            "log_level_replica": "warning",
            "disable_tqdm": None,
            "include_num_input_tokens_seen": "no",
            "skip_memory_metrics": True,
        },
    ),
    (
        "the monitor trackio writes on this machine; record.trackio.space_id of a run file names a Space",
        dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")),
    ),
    (
        "Strop evaluates rewards, or the loss of held-out rows",
        {
            "eval_do_concat_batches": True,
            "eval_use_gather_object": False,
            "include_for_metrics": [],
            "eval_accumulation_steps": None,
            "batch_eval_metrics": False,
            "prediction_loss_only": False,
            "do_eval": False,
            "do_train": False,
            "do_predict": False,
        },
    ),
    (
        "the run folder is local",
        {
            "hub_private_repo": None,
            "hub_model_id": None,
            "hub_strategy": "every_save",
            "hub_always_push": False,
            "hub_revision": None,
            "hub_token": None,
        },
    ),
    (
        "Strop reads data in processes of its own",
        {
            "dataloader_num_workers": 0,
            "dataloader_pin_memory": True,
            "dataloader_persistent_workers": False,
            "dataloader_prefetch_factor": None,
            "dataloader_multiprocessing_context": None,
            "dataloader_in_order": True,
            "label_names": None,
            "length_column_name": "length",
        },
    ),
    ("losses are divided by counts over the whole batch", {"average_tokens_across_devices": True}),
    (
        "a checkpoint is written whole, and a run resumes exactly",
        {
            "save_on_each_node": False,
            "enable_jit_checkpoint": False,
            "ignore_data_skip": False,
            "restore_callback_states_from_checkpoint": False,
            "full_determinism": False,
        },
    ),
    ("sequences are packed without padding", {"pad_to_multiple_of": "auto"}),
)
_PLACEMENT: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        OWN_KERNELS,
        {"torch_compile": False, "torch_compile_backend": None, "torch_compile_mode": None, "tf32": None},
    ),
    (NO_SHARDS, {"parallelism_config": None}),
    ("a single process trains", {"accelerator_config": None}),
    (
        "a single process trains; write the file's num_processes, and fsdp with its fsdp_config, or deepspeed, as "
        "options",
        {"accelerate_config": None},
    ),
)
_ALWAYS_PLACED: dict[str, Any] = {
    "ddp_find_unused_parameters": None,
    "ddp_bucket_cap_mb": None,
    "ddp_broadcast_buffers": None,
    "ddp_static_graph": None,
    "ddp_backend": None,
    "ddp_timeout": 1800,
    "local_rank": -1,
    "gradient_checkpointing_kwargs": None,
    "debug": "",
    "torch_empty_cache_steps": None,
    "use_cache": False,
    "per_device_eval_batch_size": 8,
    "bf16_full_eval": False,
    "fp16_full_eval": False,
    "use_cpu": False,
    "auto_find_batch_size": False,
    "liger_kernel_config": None,
}
SHUFFLED_ROW = refused(
    "train_sampling_strategy",
    "random",
    "Strop shuffles the tasks of each epoch; write data.shuffle in a run file",
)
"""Row of the order of tasks for trainers that shuffle them."""


def training_rows(
    learning_rate: float, *, remove_unused_columns: bool, order: KeyMapping = SHUFFLED_ROW
) -> tuple[KeyMapping, ...]:
    """TrainingArguments, apart from the batch sizes, with the defaults that configurations change; `order` is the row
    of the order of tasks."""
    return (
        *_NAME_ROWS,
        *optimization_rows(learning_rate),
        *_INTERVAL_ROWS,
        refused("resume_from_checkpoint", None, "run the same command again to resume a run"),
        refused("push_to_hub", False, "upload the folder `model` of the run when it has ended"),
        order,
        *(
            no_effect(key, default, why, value_type=ANY)
            for why, keys in _WITHOUT_EFFECT
            for key, default in keys.items()
        ),
        *(
            placement(key, default, why, supported=only(default), value_type=ANY)
            for why, keys in _PLACEMENT
            for key, default in keys.items()
        ),
        no_effect("remove_unused_columns", remove_unused_columns, "Strop reads data in processes of its own"),
        fused_kernels("use_liger_kernel", value_type=ANY),
        *ENGINE_ROWS,
        *(
            placement(key, default, "it changes no result", value_type=ANY)
            for key, default in _ALWAYS_PLACED.items()
        ),
    )

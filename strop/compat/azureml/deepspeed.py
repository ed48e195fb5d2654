"""Ledger rows and reader of the GRPO component's DeepSpeed file, which becomes the training engine.

Training options must equal the component's inputs; all other options are placement, which `--here` overrides. The
number of processes is that of torchrun or, started without it, that of DeepSpeed's own equation: train_batch_size
divided by the batch of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import (
    NO_DEEPSPEED,
    UNSET,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    in_effect,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    written_by,
)
from strop.config.deepspeed import KEYS, LOGGING, SWITCHED_OFF, VALUES_OFF, read_deepspeed_file
from strop.config.load.config_tree import KeyPath
from strop.config.schema import Run
from strop.config.schema.trainer import DeepSpeedEngineConfig
from strop.errors import ConfigError
from strop.workers.torchrun import torchrun_process

_OWN_ROWS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    *LOGGING,
)
_PLACEMENT = tuple(
    name for name in (*KEYS, *SWITCHED_OFF, *VALUES_OFF) if "." not in name and name not in _OWN_ROWS
)


def read_deepspeed(path: Path) -> Iterator[tuple[KeyPath, Any]]:
    """The sections of a DeepSpeed configuration file. Raises ConfigError unless the file is a JSON object."""
    try:
        values = read_deepspeed_file(path)
    except ConfigError as error:
        raise ConfigError(f"--deepspeed_config: {error}") from None
    yield from (((str(key),), value) for key, value in values.items()) if values else [((), {})]


def processes(foreign: ForeignValues) -> int:
    """Number of processes, which multiply the batch; one if neither a launcher nor the file says."""
    launched = torchrun_process()
    if launched is not None:
        return launched.ranks
    whole = foreign["deepspeed_config.train_batch_size"]
    if not isinstance(whole, int):
        return 1
    return max(1, whole // _process_batch(foreign))


def _process_batch(foreign: ForeignValues) -> int:
    return max(1, foreign["per_device_train_batch_size"] * foreign["gradient_accumulation_steps"])


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the path of the run's DeepSpeed file, if it has one."""
    section = run.trainer.engine
    if isinstance(section, DeepSpeedEngineConfig) and isinstance(section.config, str):
        return {"deepspeed_config": section.config}
    return {}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the file as the training engine; its precision is the model's, which has no input."""
    config = foreign["deepspeed_config"]
    if foreign.here or not isinstance(config, dict):
        return {}
    precision = {}
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if foreign[f"deepspeed_config.{name}.enabled"] is True:
            precision["model.compute_dtype"] = dtype
    return precision | {
        "trainer.engine.type": "deepspeed",
        "trainer.engine.ranks": processes(foreign),
        "trainer.engine.config": config,
    }


def unless_here(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports every value on the machine that the configuration asks for."""
    return not foreign.here


ENGINE_FIELDS = (
    "trainer.engine.type",
    "trainer.engine.ranks",
    "trainer.engine.config",
    "model.compute_dtype",
)
"""Run-file fields that the file decides."""


def _option(name: str) -> KeyMapping:
    row = placement(f"deepspeed_config.{name}", UNSET, NO_DEEPSPEED, supported=unless_here)
    return replace(row, warn=in_effect)


def _same_as(key: str) -> SupportCheck:
    return lambda foreign, value: value == "auto" or value == foreign[key]


def _whole_batch(foreign: ForeignValues, value: Any) -> bool:
    is_multiple = isinstance(value, int) and value > 0 and value % _process_batch(foreign) == 0
    return value == "auto" or is_multiple


def _must_match(name: str, key: str) -> KeyMapping:
    note = f"it must equal --{key}; write 'auto'"
    return refused(f"deepspeed_config.{name}", UNSET, note, supported=_same_as(key))


DEEPSPEED = not_on_page(
    *(row for name in _PLACEMENT for row in (_option(name), _option(f"{name}.*"))),
    _must_match("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    _must_match("gradient_accumulation_steps", "gradient_accumulation_steps"),
    _must_match("gradient_clipping", "max_grad_norm"),
    refused(
        "deepspeed_config.train_batch_size",
        UNSET,
        "it must be per_device_train_batch_size x gradient_accumulation_steps x the number of processes; write 'auto' "
        "for one process",
        supported=_whole_batch,
    ),
    refused(
        "deepspeed_config.optimizer.type",
        UNSET,
        "the input --optim sets the optimizer; remove it",
        supported=only("AdamW"),
    ),
    _must_match("optimizer.params.lr", "learning_rate"),
    refused(
        "deepspeed_config.optimizer.params.weight_decay",
        UNSET,
        "the component has no weight decay; write 'auto' or 0",
        supported=only("auto", 0),
    ),
    refused(
        "deepspeed_config.optimizer.params.*", UNSET, "write 'auto' or remove it", supported=only("auto")
    ),
    refused(
        "deepspeed_config.scheduler.*", UNSET, "the input --lr_scheduler_type sets the schedule; remove it"
    ),
    *(no_effect(f"deepspeed_config.{name}", UNSET, "Strop has its own logging") for name in LOGGING),
)

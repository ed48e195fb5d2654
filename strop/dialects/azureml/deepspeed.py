"""Ledger rows and reader of the GRPO component's DeepSpeed file. Training options must equal the component's
inputs; all other options are placement, which `--here` overrides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strop.config.load.config_tree import KeyPath
from strop.config.load.value_limits import is_deeper
from strop.config.load.yaml_file import read_bounded
from strop.config.load.yaml_parser import MAX_DEPTH
from strop.config.paths import expand_user
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    never,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
)
from strop.dialects.ledger.placement_notes import NO_DEEPSPEED
from strop.dialects.ledger.value_types import ANY
from strop.errors import ConfigError

_PLACEMENT = (
    "zero_optimization",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "fp16",
    "bf16",
    "amp",
    "data_types",
    "activation_checkpointing",
    "aio",
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
)
_LOGGING = ("steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "tensorboard")


def read_deepspeed(path: Path) -> Iterator[tuple[KeyPath, Any]]:
    """The sections of a DeepSpeed configuration file. Raises ConfigError unless the file is a JSON object."""
    try:
        values = json.loads(read_bounded(expand_user(path)))
    except ConfigError as error:
        raise ConfigError(f"--deepspeed_config: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--deepspeed_config: {path} is not JSON: {error}.") from None
    if is_deeper(values, MAX_DEPTH):
        raise ConfigError(f"--deepspeed_config: {path} nests more than {MAX_DEPTH} objects or lists.")
    if not isinstance(values, dict):
        raise ConfigError(
            f"--deepspeed_config: {path} is not a JSON object; write a DeepSpeed configuration."
        )
    yield from (((str(key),), value) for key, value in values.items()) if values else [((), {})]


def _same_as(key: str) -> SupportCheck:
    return lambda foreign, value: value == "auto" or value == foreign[key]


def _whole_batch(foreign: ForeignValues, value: Any) -> bool:
    batch = foreign["per_device_train_batch_size"] * foreign["gradient_accumulation_steps"]
    return value in ("auto", batch)


def _must_match(name: str, key: str) -> KeyMapping:
    note = f"it must equal --{key}; write 'auto'"
    return refused(f"deepspeed_config.{name}", UNSET, note, supported=_same_as(key))


DEEPSPEED = not_on_page(
    *(
        row
        for name in _PLACEMENT
        for row in (
            placement(f"deepspeed_config.{name}", UNSET, NO_DEEPSPEED, supported=never, value_type=ANY),
            placement(f"deepspeed_config.{name}.*", UNSET, NO_DEEPSPEED, supported=never, value_type=ANY),
        )
    ),
    _must_match("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    _must_match("gradient_accumulation_steps", "gradient_accumulation_steps"),
    _must_match("gradient_clipping", "max_grad_norm"),
    refused(
        "deepspeed_config.train_batch_size",
        UNSET,
        "it must equal per_device_train_batch_size times gradient_accumulation_steps; write 'auto'",
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
        "deepspeed_config.scheduler.*",
        UNSET,
        "the input --lr_scheduler_type sets the schedule; remove it",
        supported=never,
    ),
    *(
        no_effect(f"deepspeed_config.{name}", UNSET, "Strop has its own logging", value_type=ANY)
        for name in _LOGGING
    ),
)

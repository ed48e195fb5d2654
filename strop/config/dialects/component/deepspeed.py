"""The DeepSpeed file of the GRPO component: what it says about the training must agree with the inputs, and
the rest says where and how to run, which `--here` sets aside by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strop.config.dialects.row import (
    ANY,
    UNSET,
    Can,
    Row,
    beyond_the_page,
    never,
    no_effect,
    only,
    placement,
    refused,
)
from strop.config.dialects.theirs import Theirs
from strop.config.draft import Keys
from strop.errors import ConfigError

_NO_BACKEND = "one process trains without DeepSpeed"
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
_TALK = ("steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "tensorboard")


def read_deepspeed(path: Path) -> Iterator[tuple[Keys, Any]]:
    """The sections of a DeepSpeed configuration. Raises ConfigError where it is no JSON object."""
    try:
        values = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--deepspeed_config: {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"--deepspeed_config: {path} is not JSON: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--deepspeed_config: {path} is no JSON object, as a DeepSpeed configuration is.")
    yield from (((str(key),), value) for key, value in values.items()) if values else [((), {})]


def _same_as(key: str) -> Can:
    return lambda theirs, value: value == "auto" or value == theirs[key]


def _whole_batch(theirs: Theirs, value: Any) -> bool:
    whole = theirs["per_device_train_batch_size"] * theirs["gradient_accumulation_steps"]
    return value in ("auto", whole)


def _agreeing(name: str, key: str) -> Row:
    note = f"it must agree with --{key}; write 'auto'"
    return refused(f"deepspeed_config.{name}", UNSET, note, can=_same_as(key))


DEEPSPEED = beyond_the_page(
    *(
        row
        for name in _PLACEMENT
        for row in (
            placement(f"deepspeed_config.{name}", UNSET, _NO_BACKEND, can=never, kind=ANY),
            placement(f"deepspeed_config.{name}.*", UNSET, _NO_BACKEND, can=never, kind=ANY),
        )
    ),
    _agreeing("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    _agreeing("gradient_accumulation_steps", "gradient_accumulation_steps"),
    _agreeing("gradient_clipping", "max_grad_norm"),
    refused(
        "deepspeed_config.train_batch_size",
        UNSET,
        "it must be per_device_train_batch_size times gradient_accumulation_steps; write 'auto'",
        can=_whole_batch,
    ),
    refused(
        "deepspeed_config.optimizer.type",
        UNSET,
        "the optimizer is the input --optim's; leave it out",
        can=only("AdamW"),
    ),
    _agreeing("optimizer.params.lr", "learning_rate"),
    refused(
        "deepspeed_config.optimizer.params.weight_decay",
        UNSET,
        "the component has none; write 'auto' or 0",
        can=only("auto", 0),
    ),
    refused("deepspeed_config.optimizer.params.*", UNSET, "write 'auto', or leave it out", can=only("auto")),
    refused(
        "deepspeed_config.scheduler.*", UNSET, "the schedule is the input --lr_scheduler_type's", can=never
    ),
    *(
        no_effect(f"deepspeed_config.{name}", UNSET, "Strop prints what it prints", kind=ANY)
        for name in _TALK
    ),
)

"""TRL's optimizer, learning rate schedule and precision, which are those of transformers' TrainingArguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    BOOLEAN,
    MAPPING,
    NUMBER,
    ZERO_IS_NULL,
    ForeignValues,
    KeyMapping,
    mapped,
    nullable,
    one_of,
    refused,
    written_by,
)
from strop.config.schema import Run
from strop.config.schema.optimizer import (
    AdamWConfig,
    BitsAndBytesAdamWConfig,
    CosineScheduleConfig,
    CosineWithRestartsScheduleConfig,
    InverseSqrtScheduleConfig,
    PolynomialScheduleConfig,
)

_OPTIMIZERS = (
    *("adamw_torch_fused", "adamw_torch", "adafactor", "ademamix", "sgd", "adagrad", "rmsprop"),
    *("galore_adamw", "lomo", "adalomo", "grokadamw", "schedule_free_sgd", "adamw_bnb_8bit", "adamw_8bit"),
    *("paged_adamw_8bit", "paged_adamw_32bit", "paged_adamw"),
)
_BITSANDBYTES = {
    "adamw_bnb_8bit": (8, False),
    "adamw_8bit": (8, False),
    "paged_adamw_8bit": (8, True),
    "paged_adamw_32bit": (32, True),
    "paged_adamw": (32, True),
}
"""Bits of the moments, and whether they are paged."""
_UNDECAYED = ("galore_adamw", "lomo", "adalomo")


def write_optimizer(run: Run) -> Mapping[str, Any]:
    """Write the optimizer; plain and fused AdamW have different names."""
    section = run.trainer.optimizer
    values: dict[str, Any] = {
        "learning_rate": section.lr,
        "weight_decay": section.weight_decay,
        "optim": section.type,
    }
    if isinstance(section, BitsAndBytesAdamWConfig):
        kinds = {kind: name for name, kind in reversed(_BITSANDBYTES.items())}
        values["optim"] = kinds[section.bits, section.paged]
    elif isinstance(section, AdamWConfig):
        values["optim"] = "adamw_torch_fused" if section.fused else "adamw_torch"
    if isinstance(section, AdamWConfig | BitsAndBytesAdamWConfig):
        values |= {"adam_beta1": section.betas[0], "adam_beta2": section.betas[1]}
        values["adam_epsilon"] = section.eps
    return values


@written_by(write_optimizer)
def optimizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the optimizer; the Adam options apply to AdamW. transformers leaves norms and biases out of the weight
    decay."""
    name = foreign["optim"]
    kind = "adamw" if name.startswith("adamw_torch") else "adamw_bnb" if name in _BITSANDBYTES else name
    settings = {
        "trainer.optimizer.type": kind,
        "trainer.optimizer.lr": foreign["learning_rate"],
        "trainer.optimizer.weight_decay": 0.0 if without_decay(foreign) else foreign["weight_decay"],
    }
    if settings["trainer.optimizer.weight_decay"] > 0:
        settings["trainer.optimizer.decay_norms_and_biases"] = False
    if kind not in ("adamw", "adamw_bnb"):
        return settings
    settings |= {
        "trainer.optimizer.betas": [foreign["adam_beta1"], foreign["adam_beta2"]],
        "trainer.optimizer.eps": foreign["adam_epsilon"],
    }
    if kind == "adamw":
        return settings | {"trainer.optimizer.fused": name == "adamw_torch_fused"}
    bits, paged = _BITSANDBYTES[name]
    return settings | {"trainer.optimizer.bits": bits, "trainer.optimizer.paged": paged}


def without_decay(foreign: ForeignValues) -> str | None:
    """transformers gives the libraries of these optimizers their own parameter groups, without a weight decay."""
    name = foreign["optim"]
    return f"optim is {name}, to which transformers passes no weight decay" if name in _UNDECAYED else None


def not_adamw(foreign: ForeignValues) -> str | None:
    """The Adam options have no effect on other optimizers."""
    name = foreign["optim"]
    is_adamw = name.startswith("adamw_torch") or name in _BITSANDBYTES
    return None if is_adamw else f"optim is {name}"


_SCHEDULES = (
    *("linear", "cosine", "cosine_with_min_lr", "cosine_with_restarts", "polynomial", "constant"),
    *("constant_with_warmup", "inverse_sqrt"),
)
_OPTIONS = {
    "cosine": ("num_cycles",),
    "cosine_with_min_lr": ("num_cycles", "min_lr", "min_lr_rate"),
    "cosine_with_restarts": ("num_cycles",),
    "polynomial": ("lr_end", "power"),
    "inverse_sqrt": ("timescale",),
}
"""Accepted options of `lr_scheduler_kwargs`, by schedule."""


def write_schedule(run: Run) -> Mapping[str, Any]:
    """Write the schedule with its options, and the warm-up as a fraction or a number of updates."""
    section = run.trainer.schedule
    name: str = section.type
    options: dict[str, Any] = {}
    if section.type == "constant" and section.warmup.count > 0:
        name = "constant_with_warmup"
    if isinstance(section, CosineScheduleConfig) and section.min_ratio:
        name, options = "cosine_with_min_lr", {"min_lr_rate": section.min_ratio}
    if isinstance(section, CosineScheduleConfig | CosineWithRestartsScheduleConfig):
        default = type(section).model_fields["cycles"].default
        options |= {} if section.cycles == default else {"num_cycles": section.cycles}
    if isinstance(section, InverseSqrtScheduleConfig) and section.timescale is not None:
        options |= {"timescale": section.timescale.count}
    if isinstance(section, PolynomialScheduleConfig):
        options["lr_end"] = section.min_ratio * run.trainer.optimizer.lr
        options |= {"power": section.power} if section.power != 1 else {}
    values: dict[str, Any] = {"lr_scheduler_type": name, "lr_scheduler_kwargs": options or None}
    if section.warmup.unit == "%" and section.warmup.count < 100:
        values["warmup_steps"] = round(section.warmup.count / 100, 12)
    elif section.warmup.unit == "updates" or section.warmup.count == 0:
        values["warmup_steps"] = section.warmup.count
    return values


@written_by(write_schedule)
def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule, which counts updates. A warm-up below 1 is a fraction of the run."""
    name, options = foreign["lr_scheduler_type"], foreign["lr_scheduler_kwargs"] or {}
    unknown = [key for key in options if key not in _OPTIONS.get(name, ())]
    if unknown:
        raise foreign.error_for(
            "lr_scheduler_kwargs",
            f"lr_scheduler_kwargs has {unknown[0]}, which is not supported for lr_scheduler_type {name}; it may "
            f"have {', '.join(_OPTIONS.get(name, ())) or 'no key'}.",
        )
    warmup = foreign["warmup_steps"] or foreign["warmup_ratio"] or 0
    length = f"{int(warmup)} updates" if warmup >= 1 else f"{round(100 * warmup, 10)} %"
    kind = {"constant_with_warmup": "constant", "cosine_with_min_lr": "cosine"}.get(name, name)
    settings = {
        "trainer.schedule.type": kind,
        "trainer.schedule.interval": "updates",
        "trainer.schedule.warmup": "0 %" if name == "constant" else length,
    }
    if 0 < warmup < 1 and name != "constant":
        settings["trainer.schedule.warmup_rounding"] = "up"
    if "num_cycles" in options:
        settings["trainer.schedule.cycles"] = options["num_cycles"]
    if "power" in options:
        settings["trainer.schedule.power"] = options["power"]
    if "timescale" in options:
        settings["trainer.schedule.timescale"] = f"{options['timescale']} updates"
    rate = foreign["learning_rate"]
    last = options.get("min_lr", options.get("lr_end", 1e-7 if name == "polynomial" else None))
    if last is not None and rate > 0:
        settings["trainer.schedule.min_ratio"] = min(1.0, last / rate)
    if "min_lr_rate" in options:
        settings["trainer.schedule.min_ratio"] = options["min_lr_rate"]
    return settings


def no_warmup(foreign: ForeignValues) -> str | None:
    """The schedule `constant` has no warm-up."""
    constant = foreign["lr_scheduler_type"] == "constant"
    return "lr_scheduler_type is constant, which has no warm-up" if constant else None


_row = partial(mapped, read=schedule)
_SCHEDULE_ROWS = (
    _row(
        "lr_scheduler_type",
        "linear",
        "trainer.schedule.type",
        value_type=one_of(*_SCHEDULES),
        note="counts updates",
    ),
    _row(
        "lr_scheduler_kwargs",
        None,
        "trainer.schedule.min_ratio",
        "trainer.schedule.cycles",
        "trainer.schedule.power",
        "trainer.schedule.timescale",
        value_type=nullable(MAPPING),
        note="num_cycles, min_lr, min_lr_rate, lr_end, power, timescale",
    ),
    _row(
        "warmup_steps",
        0,
        "trainer.schedule.warmup",
        "trainer.schedule.warmup_rounding",
        value_type=NUMBER,
        inactive=no_warmup,
        note="updates; below 1 a fraction of the run, rounded up",
    ),
    _row(
        "warmup_ratio",
        None,
        "trainer.schedule.warmup",
        "trainer.schedule.warmup_rounding",
        value_type=nullable(NUMBER),
        inactive=no_warmup,
        deprecated="write warmup_steps, which may be a fraction",
    ),
)


def write_precision(run: Run) -> Mapping[str, Any]:
    """Write the dtype of the parameters, and whether matrix products are in bfloat16."""
    compute = run.model.compute_dtype or run.model.dtype
    return {"dtype": run.model.dtype, "bf16": None if compute == "bfloat16" else False}


@written_by(write_precision)
def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the dtype of the parameters, and mixed precision in bfloat16, which TRL enables unless bf16 is
    false."""
    dtype = "bfloat16" if foreign["dtype"] in ("bfloat16", "bf16") else "float32"
    mixed = foreign["bf16"] is not False and dtype == "float32"
    return {"model.dtype": dtype, "model.compute_dtype": "bfloat16" if mixed else None}


def optimization_rows(learning_rate: float) -> tuple[KeyMapping, ...]:
    """Rows of the optimizer, the schedule and the precision, with a configuration's default learning rate."""
    return (
        mapped("learning_rate", learning_rate, "trainer.optimizer.lr", read=optimizer),
        mapped(
            "optim",
            "adamw_torch_fused",
            "trainer.optimizer.type",
            "trainer.optimizer.fused",
            "trainer.optimizer.bits",
            "trainer.optimizer.paged",
            read=optimizer,
            value_type=one_of(*_OPTIMIZERS),
        ),
        mapped(
            "weight_decay",
            0.0,
            "trainer.optimizer.weight_decay",
            "trainer.optimizer.decay_norms_and_biases",
            read=optimizer,
            inactive=without_decay,
            note="not of norms and biases, which transformers leaves out",
        ),
        mapped("adam_beta1", 0.9, "trainer.optimizer.betas", read=optimizer, inactive=not_adamw),
        mapped("adam_beta2", 0.999, "trainer.optimizer.betas", read=optimizer, inactive=not_adamw),
        mapped("adam_epsilon", 1e-8, "trainer.optimizer.eps", read=optimizer, inactive=not_adamw),
        refused("optim_args", None, "write the options of trainer.optimizer in a run file"),
        refused(
            "optim_target_modules",
            None,
            "galore_adamw projects all matrices of the layers; leave it at its default",
        ),
        mapped("max_grad_norm", 1.0, "trainer.max_grad_norm", converts=ZERO_IS_NULL, note="0 is no bound"),
        *_SCHEDULE_ROWS,
        mapped(
            "bf16",
            None,
            "model.compute_dtype",
            read=precision,
            value_type=nullable(BOOLEAN),
            note="mixed precision; null is true",
        ),
        refused("fp16", False, "Strop computes in bfloat16 or float32; write bf16"),
        refused("label_smoothing_factor", 0.0, "its losses have no label smoothing; leave it 0"),
        refused("neftune_noise_alpha", None, "Strop trains without noise in embeddings; leave it null"),
    )

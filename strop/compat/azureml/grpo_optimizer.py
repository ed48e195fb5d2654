"""Converters of the optimizer and schedule inputs of `group_relative_policy_optimization`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.azureml.grpo_converters import is_evaluation_on
from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.config.schema import Run
from strop.config.schema.optimizer import AdamWConfig

ALL_OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_fused",
    "adafactor",
    "ademamix",
    "sgd",
    "adagrad",
    "rmsprop",
    "galore_adamw",
    "lomo",
    "adalomo",
    "grokadamw",
    "schedule_free_sgd",
)
ALL_SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
)


_WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau")


def no_warmup(foreign: ForeignValues) -> str | None:
    """Schedules to which transformers passes no warm-up."""
    kind = foreign["lr_scheduler_type"]
    return f"lr_scheduler_type is {kind}, which has no warm-up" if kind in _WITHOUT_WARMUP else None


def write_optimizer(run: Run) -> Mapping[str, Any]:
    """Write the optimizer; plain and fused AdamW have different names."""
    section = run.trainer.optimizer
    adamw = "adamw_torch_fused" if isinstance(section, AdamWConfig) and section.fused else "adamw_torch"
    return {"optim": adamw if isinstance(section, AdamWConfig) else section.type, "learning_rate": section.lr}


@written_by(write_optimizer)
def optimizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the optimizer, without weight decay as in the default of Hugging Face's trainer."""
    name = foreign["optim"]
    kind = "adamw" if name.startswith("adamw_torch") else name
    fused = {"trainer.optimizer.fused": name == "adamw_torch_fused"} if kind == "adamw" else {}
    return {
        "trainer.optimizer.type": kind,
        "trainer.optimizer.lr": foreign["learning_rate"],
        "trainer.optimizer.weight_decay": 0.0,
        **fused,
    }


def write_grad_norm(run: Run) -> Mapping[str, Any]:
    """Write the gradient norm bound; 0 means no bound."""
    return {"max_grad_norm": run.trainer.max_grad_norm or 0.0}


@written_by(write_grad_norm)
def grad_norm(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the gradient norm bound; 0 means no bound. LOMO optimizers update weights during the backward pass
    and never have the whole gradient."""
    bound, name = foreign["max_grad_norm"], foreign["optim"]
    if bound > 0 and name in ("lomo", "adalomo"):
        raise foreign.error_for(
            "optim",
            f"optim {name} updates the weights during the backward pass and cannot apply max_grad_norm "
            f"({bound:g}); write max_grad_norm 0.",
        )
    return {"trainer.max_grad_norm": bound if bound > 0 else None}


def write_schedule(run: Run) -> Mapping[str, Any]:
    """Write the schedule; `constant` has different names with and without a warm-up."""
    section = run.trainer.schedule
    plain = section.type == "constant" and section.warmup.count == 0
    values: dict[str, Any] = {"lr_scheduler_type": "constant" if plain else section.type}
    if section.type == "constant" and not plain:
        values["lr_scheduler_type"] = "constant_with_warmup"
    if section.warmup.unit == "%" or section.warmup.count == 0:
        values["warmup_ratio"] = round(section.warmup.count / 100, 12)
    return values


@written_by(write_schedule)
def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule, which counts updates; `constant` and `reduce_lr_on_plateau` have no warm-up, and
    `polynomial` ends at a rate of 1e-7."""
    kind = foreign["lr_scheduler_type"]
    percent = 0 if kind in _WITHOUT_WARMUP else round(100 * foreign["warmup_ratio"], 10)
    if kind == "reduce_lr_on_plateau" and not is_evaluation_on(foreign):
        raise foreign.error_for(
            "lr_scheduler_type",
            "lr_scheduler_type reduce_lr_on_plateau requires evaluation, which is disabled; write "
            "eval_strategy steps or epoch.",
        )
    rate = foreign["learning_rate"]
    last = {"trainer.schedule.min_ratio": min(1.0, 1e-7 / rate) if rate > 0 else 0.0}
    return {
        "trainer.schedule.type": "constant" if kind == "constant_with_warmup" else kind,
        "trainer.schedule.interval": "updates",
        "trainer.schedule.warmup": f"{percent} %",
        **({"trainer.schedule.warmup_rounding": "up"} if percent else {}),
        **(last if kind == "polynomial" else {}),
    }

"""What the inputs of `group_relative_policy_optimization` mean that say how the weights move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.component.grpo_meaning import evaluates
from strop.config.dialects.row import written_by
from strop.config.dialects.theirs import Theirs
from strop.config.schema import Run
from strop.config.schema.optimizer import AdamW

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


def warms_up(theirs: Theirs) -> str | None:
    """Plain `constant` starts at its rate."""
    kind = theirs["lr_scheduler_type"]
    return "lr_scheduler_type is constant, which has no warm-up" if kind == "constant" else None


def write_optimizer(run: Run) -> Mapping[str, Any]:
    """AdamW's two kinds have names of their own."""
    said = run.trainer.optimizer
    adamw = "adamw_torch_fused" if isinstance(said, AdamW) and said.fused else "adamw_torch"
    return {"optim": adamw if isinstance(said, AdamW) else said.type, "learning_rate": said.lr}


@written_by(write_optimizer)
def optimizer(theirs: Theirs) -> Mapping[str, Any]:
    """Without weight decay, as Hugging Face's trainer has it where nobody says otherwise."""
    name = theirs["optim"]
    kind = "adamw" if name.startswith("adamw_torch") else name
    fused = {"trainer.optimizer.fused": name == "adamw_torch_fused"} if kind == "adamw" else {}
    return {
        "trainer.optimizer.type": kind,
        "trainer.optimizer.lr": theirs["learning_rate"],
        "trainer.optimizer.weight_decay": 0.0,
        **fused,
    }


def write_grad_norm(run: Run) -> Mapping[str, Any]:
    """0 is no bound."""
    return {"max_grad_norm": run.trainer.max_grad_norm or 0.0}


@written_by(write_grad_norm)
def grad_norm(theirs: Theirs) -> Mapping[str, Any]:
    """0 bounds nothing. What moves the weights during backward has no whole gradient to bound."""
    bound, name = theirs["max_grad_norm"], theirs["optim"]
    if bound > 0 and name in ("lomo", "adalomo"):
        raise theirs.fault(
            "optim",
            f"optim {name} moves the weights during backward, so max_grad_norm ({bound:g}) has no whole "
            "gradient to bound; write max_grad_norm 0 with it.",
        )
    return {"trainer.max_grad_norm": bound if bound > 0 else None}


def write_schedule(run: Run) -> Mapping[str, Any]:
    """`constant` has two names, with a warm-up and without."""
    said = run.trainer.schedule
    plain = said.type == "constant" and said.warmup.count == 0
    values: dict[str, Any] = {"lr_scheduler_type": "constant" if plain else said.type}
    if said.type == "constant" and not plain:
        values["lr_scheduler_type"] = "constant_with_warmup"
    if said.warmup.unit == "%" or said.warmup.count == 0:
        values["warmup_ratio"] = round(said.warmup.count / 100, 12)
    return values


@written_by(write_schedule)
def schedule(theirs: Theirs) -> Mapping[str, Any]:
    """Counted in updates; plain `constant` has no warm-up, and `polynomial` ends at a rate of 1e-7."""
    kind = theirs["lr_scheduler_type"]
    percent = 0 if kind == "constant" else round(100 * theirs["warmup_ratio"], 10)
    if kind == "reduce_lr_on_plateau" and not evaluates(theirs):
        raise theirs.fault(
            "lr_scheduler_type",
            "lr_scheduler_type reduce_lr_on_plateau follows what is measured, and nothing is; write "
            "eval_strategy steps or epoch.",
        )
    rate = theirs["learning_rate"]
    last = {"trainer.schedule.min_ratio": min(1.0, 1e-7 / rate) if rate > 0 else 0.0}
    return {
        "trainer.schedule.type": "constant" if kind == "constant_with_warmup" else kind,
        "trainer.schedule.counts": "updates",
        "trainer.schedule.warmup": f"{percent} %",
        **(last if kind == "polynomial" else {}),
    }

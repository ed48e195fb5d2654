"""Converters of verl's `actor_rollout_ref.actor` keys: micro-batches, KL loss, optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.compat.ledger.value_types import number_list
from strop.compat.verl import switches
from strop.compat.verl.algorithm_converters import KL_LOSS, KL_NAMES
from strop.compat.verl.lr_schedule import (
    fsdp_schedule,
    megatron_schedule,
    requires_megatron,
    schedule_values,
)
from strop.compat.verl.parameter_dtypes import PARAMETER_DTYPES
from strop.config.schema import Run

_AT = "actor_rollout_ref.actor"
OPTIM = f"{_AT}.optim"


def write_micro_batch(run: Run) -> Mapping[str, Any]:
    """Write the micro-batch size with the per-GPU keys."""
    actor, size = "actor_rollout_ref.actor", run.trainer.microbatch
    if size.unit == "tokens":
        return {f"{actor}.use_dynamic_bsz": True, f"{actor}.ppo_max_token_len_per_gpu": size.count}
    return {f"{actor}.use_dynamic_bsz": False, f"{actor}.ppo_micro_batch_size_per_gpu": size.count}


@written_by(write_micro_batch)
def micro_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the micro-batch size of the actor."""
    return {"trainer.microbatch": micro_batch_size(foreign, _AT)}


def micro_batch_size(foreign: ForeignValues, section: str) -> str:
    """The micro-batch size of actor or critic: tokens for a dynamic batch size, else sequences.

    The deprecated key counts the sequences of all GPUs. Raises ConfigError where it and its replacement are
    set.
    """
    if foreign[f"{section}.use_dynamic_bsz"]:
        return f"{foreign[f'{section}.ppo_max_token_len_per_gpu']} tokens"
    everywhere = foreign[f"{section}.ppo_micro_batch_size"]
    if everywhere is None:
        return f"{foreign[f'{section}.ppo_micro_batch_size_per_gpu']} sequences"
    each = f"{section}.ppo_micro_batch_size_per_gpu"
    if foreign.is_set(each) and foreign[each] != everywhere:
        raise foreign.error_for(
            f"{section}.ppo_micro_batch_size",
            f"{section}.ppo_micro_batch_size and {section}.ppo_micro_batch_size_per_gpu set the same option; "
            "write only ppo_micro_batch_size_per_gpu.",
        )
    gpus = foreign["trainer.nnodes"] * foreign["trainer.n_gpus_per_node"]
    return f"{max(1, everywhere // max(1, gpus))} sequences"


def write_entropy(run: Run) -> Mapping[str, Any]:
    """Write the coefficient of the entropy."""
    return {"actor_rollout_ref.actor.entropy_coeff": getattr(run.algorithm, "entropy_coef", None)}


@written_by(write_entropy)
def entropy(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the coefficient of the entropy."""
    if switches.distillation_alone(foreign) or switches.spin_alone(foreign):
        return {}
    return {"algorithm.entropy_coef": foreign["actor_rollout_ref.actor.entropy_coeff"]}


def write_epochs(run: Run) -> Mapping[str, Any]:
    """Write the epochs over a step."""
    return {"actor_rollout_ref.actor.ppo_epochs": run.trainer.epochs_per_step}


@written_by(write_epochs)
def epochs(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the epochs over a step; verl's recipe SPIN has one."""
    if switches.spin_alone(foreign):
        return {}
    return {"trainer.epochs_per_step": foreign["actor_rollout_ref.actor.ppo_epochs"]}


def write_kl_loss(run: Run) -> Mapping[str, Any]:
    """Write the switch and, where it is on, the coefficient and the estimator."""
    actor, term = "actor_rollout_ref.actor", getattr(run.algorithm, "kl_loss", None)
    if term is None:
        return {f"{actor}.use_kl_loss": False}
    return {
        f"{actor}.use_kl_loss": True,
        f"{actor}.kl_loss_coef": term.coef,
        f"{actor}.kl_loss_type": KL_NAMES.get(term.estimator, term.estimator),
    }


@written_by(write_kl_loss)
def kl_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the KL penalty in the loss, where it is on."""
    if switches.kl_loss(foreign):
        return {}
    kind = foreign["actor_rollout_ref.actor.kl_loss_type"]
    return {
        "algorithm.kl_loss.estimator": KL_LOSS[kind],
        "algorithm.kl_loss.coef": foreign["actor_rollout_ref.actor.kl_loss_coef"],
    }


def write_schedule(run: Run) -> Mapping[str, Any]:
    """Write the schedule with the keys of the strategy that supports it."""
    values = schedule_values(run, run.trainer.schedule, run.trainer.optimizer.lr, OPTIM)
    return values | ({"actor_rollout_ref.actor.strategy": "megatron"} if requires_megatron(run) else {})


@written_by(write_schedule)
def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule from the keys of the strategy."""
    settings = (
        megatron_schedule(foreign, OPTIM) if not switches.megatron(foreign) else fsdp_schedule(foreign, OPTIM)
    )
    return {f"trainer.schedule.{name}": value for name, value in settings.items()}


def write_clipping(run: Run) -> Mapping[str, Any]:
    """Write the gradient norm bound with the strategy's key; for Megatron, 0 means no bound."""
    bound = run.trainer.max_grad_norm
    return {f"{OPTIM}.clip_grad": bound or 0.0} if requires_megatron(run) else {f"{_AT}.grad_clip": bound}


@written_by(write_clipping)
def clipping(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the gradient norm bound: `optim.clip_grad` under Megatron and where it is set, else `grad_clip`."""
    bound = foreign["actor_rollout_ref.actor.grad_clip"]
    if not switches.megatron(foreign) or foreign.is_set(f"{OPTIM}.clip_grad"):
        bound = foreign[f"{OPTIM}.clip_grad"] or None
    return {"trainer.max_grad_norm": bound}


def write_betas(run: Run) -> Mapping[str, Any]:
    """Write AdamW's betas under FSDP; Megatron has no key for them."""
    adamw_betas = getattr(run.trainer.optimizer, "betas", None)
    return {} if adamw_betas is None or requires_megatron(run) else {f"{OPTIM}.betas": list(adamw_betas)}


@written_by(write_betas)
def betas(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read AdamW's betas under FSDP; Megatron always uses its own betas, which equal Strop's defaults."""
    return (
        {} if switches.fsdp(foreign) else {"trainer.optimizer.betas": number_list(foreign[f"{OPTIM}.betas"])}
    )


_FSDP = "actor_rollout_ref.actor.fsdp_config"


def write_precision(run: Run) -> Mapping[str, Any]:
    """Write the dtypes of the parameters and of the computation."""
    names = {"float32": "fp32", "bfloat16": "bf16"}
    compute = names.get(run.model.compute_dtype or run.model.dtype)
    written = {f"{_FSDP}.model_dtype": names[run.model.dtype]}
    return written if compute is None else written | {f"{_FSDP}.mixed_precision.param_dtype": compute}


@written_by(write_precision)
def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the dtypes: by default verl computes in bfloat16, with parameters in float32."""
    kinds = (foreign[f"{_FSDP}.{name}"] for name in ("model_dtype", "mixed_precision.param_dtype"))
    dtype, compute = (PARAMETER_DTYPES[kind] for kind in kinds)
    return {"model.dtype": dtype, "model.compute_dtype": compute}

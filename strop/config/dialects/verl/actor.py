"""verl's `actor_rollout_ref.actor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    NUMBERS,
    TEXTS,
    WHOLE,
    Can,
    beyond_the_page,
    mapped,
    one_of,
    only,
    or_null,
    placement,
    refused,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.algorithm import KL, KL_NAMES
from strop.config.dialects.verl.data import batches
from strop.config.dialects.verl.engine import NO_SHARDS, engine
from strop.config.dialects.verl.saving import loaded, saved, without_optimizer
from strop.config.dialects.verl.schedule import of_fsdp, of_megatron, wants_megatron, write
from strop.config.schema import Run
from strop.config.schema.algorithm import ClippedLoss, GspoLoss

_AT = "actor_rollout_ref.actor"
OPTIM = f"{_AT}.optim"
_LOSSES = {"vanilla": "clip", "gspo": "gspo", "gpg": "gpg"}


def either_is(value: Any, key: str) -> Can:
    """Can be had where it is that value, or says what another key says."""
    return lambda theirs, said: said == value or said == theirs[key]


def write_micro_batch(run: Run) -> Mapping[str, Any]:
    """The keys of one GPU."""
    actor, size = "actor_rollout_ref.actor", run.trainer.microbatch
    if size.unit == "tokens":
        return {f"{actor}.use_dynamic_bsz": True, f"{actor}.ppo_max_token_len_per_gpu": size.count}
    return {f"{actor}.use_dynamic_bsz": False, f"{actor}.ppo_micro_batch_size_per_gpu": size.count}


@written_by(write_micro_batch)
def micro_batch(theirs: Theirs) -> Mapping[str, Any]:
    """Tokens where the batch is dynamic, else sequences; the old key counts those of all GPUs together."""
    actor = "actor_rollout_ref.actor"
    if theirs[f"{actor}.use_dynamic_bsz"]:
        return {"trainer.microbatch": f"{theirs[f'{actor}.ppo_max_token_len_per_gpu']} tokens"}
    everywhere = theirs[f"{actor}.ppo_micro_batch_size"]
    if everywhere is None:
        return {"trainer.microbatch": f"{theirs[f'{actor}.ppo_micro_batch_size_per_gpu']} sequences"}
    if theirs.wrote(f"{actor}.ppo_micro_batch_size_per_gpu"):
        raise theirs.fault(
            f"{actor}.ppo_micro_batch_size",
            f"{actor}.ppo_micro_batch_size and {actor}.ppo_micro_batch_size_per_gpu say the same thing "
            "twice; write only ppo_micro_batch_size_per_gpu.",
        )
    gpus = theirs["trainer.nnodes"] * theirs["trainer.n_gpus_per_node"]
    return {"trainer.microbatch": f"{max(1, everywhere // max(1, gpus))} sequences"}


def write_policy_loss(run: Run) -> Mapping[str, Any]:
    """`clip_ratio` alone where both sides are alike."""
    actor, loss = "actor_rollout_ref.actor", getattr(run.algorithm, "policy_loss", None)
    names = {ours: theirs for theirs, ours in _LOSSES.items()}
    values: dict[str, Any] = {f"{actor}.policy_loss.loss_mode": names.get(loss.type) if loss else None}
    if isinstance(loss, ClippedLoss):
        values[f"{actor}.clip_ratio_c"] = loss.dual_clip
    if isinstance(loss, ClippedLoss | GspoLoss):
        sides = {f"{actor}.clip_ratio_low": loss.clip_low, f"{actor}.clip_ratio_high": loss.clip_high}
        alike = loss.clip_low == loss.clip_high
        values |= {f"{actor}.clip_ratio": loss.clip_low} if alike else sides
    return values


@written_by(write_policy_loss)
def policy_loss(theirs: Theirs) -> Mapping[str, Any]:
    """Clipped, whatever the estimator; `clip_ratio` holds on both sides, where no side has its own."""
    actor = "actor_rollout_ref.actor"
    low, high = theirs[f"{actor}.clip_ratio_low"], theirs[f"{actor}.clip_ratio_high"]
    both = theirs[f"{actor}.clip_ratio"]
    settings = {"algorithm.policy_loss.type": _LOSSES[theirs[f"{actor}.policy_loss.loss_mode"]]}
    if not switches.ratio(theirs):
        settings["algorithm.policy_loss.clip_low"] = both if low is None else low
        settings["algorithm.policy_loss.clip_high"] = both if high is None else high
    if not switches.dual_clip(theirs):
        settings["algorithm.policy_loss.dual_clip"] = theirs[f"{actor}.clip_ratio_c"]
    return settings


def write_kl_loss(run: Run) -> Mapping[str, Any]:
    """The switch, and what stands behind it."""
    actor, term = "actor_rollout_ref.actor", getattr(run.algorithm, "kl_loss", None)
    if term is None:
        return {f"{actor}.use_kl_loss": False}
    return {
        f"{actor}.use_kl_loss": True,
        f"{actor}.kl_loss_coef": term.coef,
        f"{actor}.kl_loss_type": KL_NAMES[term.estimator],
    }


@written_by(write_kl_loss)
def kl_loss(theirs: Theirs) -> Mapping[str, Any]:
    """The penalty in the loss, where it is on."""
    if switches.kl_loss(theirs):
        return {}
    kind = theirs["actor_rollout_ref.actor.kl_loss_type"]
    return {
        "algorithm.kl_loss.estimator": KL[kind],
        "algorithm.kl_loss.coef": theirs["actor_rollout_ref.actor.kl_loss_coef"],
    }


def write_schedule(run: Run) -> Mapping[str, Any]:
    """By the keys of the strategy that has such a schedule."""
    values = write(run, run.trainer.schedule, run.trainer.optimizer.lr, OPTIM)
    return values | ({"actor_rollout_ref.actor.strategy": "megatron"} if wants_megatron(run) else {})


@written_by(write_schedule)
def schedule(theirs: Theirs) -> Mapping[str, Any]:
    """Of the strategy's own keys."""
    settings = of_megatron(theirs, OPTIM) if not switches.megatron(theirs) else of_fsdp(theirs, OPTIM)
    return {f"trainer.schedule.{name}": value for name, value in settings.items()}


def write_clipping(run: Run) -> Mapping[str, Any]:
    """By the key of the strategy; Megatron's 0 is no bound."""
    bound = run.trainer.max_grad_norm
    return {f"{OPTIM}.clip_grad": bound or 0.0} if wants_megatron(run) else {f"{_AT}.grad_clip": bound}


@written_by(write_clipping)
def clipping(theirs: Theirs) -> Mapping[str, Any]:
    """Megatron's optimizer has a key of its own for it."""
    bound = theirs["actor_rollout_ref.actor.grad_clip"]
    if not switches.megatron(theirs):
        bound = theirs[f"{OPTIM}.clip_grad"] or None
    return {"trainer.max_grad_norm": bound}


def write_betas(run: Run) -> Mapping[str, Any]:
    """Under FSDP alone."""
    said = getattr(run.trainer.optimizer, "betas", None)
    return {} if said is None or wants_megatron(run) else {f"{OPTIM}.betas": list(said)}


@written_by(write_betas)
def betas(theirs: Theirs) -> Mapping[str, Any]:
    """Megatron's are its own, which are the same."""
    return {} if switches.fsdp(theirs) else {"trainer.optimizer.betas": theirs[f"{OPTIM}.betas"]}


def write_precision(run: Run) -> Mapping[str, Any]:
    """The type of the parameters; the products' is not theirs to say."""
    names = {"float32": "fp32", "bfloat16": "bf16"}
    return {"actor_rollout_ref.actor.fsdp_config.model_dtype": names[run.model.dtype]}


@written_by(write_precision)
def precision(theirs: Theirs) -> Mapping[str, Any]:
    """verl computes in bfloat16 over its parameters, which are float32 unless said otherwise."""
    names = {"fp32": "float32", "bf16": "bfloat16"}
    kind = theirs["actor_rollout_ref.actor.fsdp_config.model_dtype"]
    return {"model.dtype": names.get(kind, kind), "model.compute_dtype": "bfloat16"}


ROWS = (
    placement(
        "actor_rollout_ref.actor.strategy",
        "fsdp",
        "one process trains",
        kind=one_of("fsdp", "fsdp2", "megatron"),
        can=only("fsdp", "fsdp2"),
    ),
    mapped(
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        256,
        "trainer.tasks_per_update",
        read=batches,
        note="counts prompts",
    ),
    mapped(
        "actor_rollout_ref.actor.ppo_micro_batch_size",
        None,
        "trainer.microbatch",
        read=micro_batch,
        kind=or_null(WHOLE),
        off=switches.fixed_batch,
        note="counts the sequences of all GPUs together",
        deprecated="write ppo_micro_batch_size_per_gpu, which counts those of one GPU",
    ),
    mapped(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        8,
        "trainer.microbatch",
        read=micro_batch,
        off=switches.fixed_batch,
        note="counts sequences",
    ),
    mapped("actor_rollout_ref.actor.use_dynamic_bsz", False, "trainer.microbatch", read=micro_batch),
    mapped(
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        16384,
        "trainer.microbatch",
        read=micro_batch,
        off=switches.dynamic_batch,
        note="counts tokens",
    ),
    mapped(
        "actor_rollout_ref.actor.grad_clip",
        1.0,
        "trainer.max_grad_norm",
        read=clipping,
        off=switches.fsdp,
    ),
    mapped(
        "actor_rollout_ref.actor.clip_ratio",
        0.2,
        "algorithm.policy_loss.clip_low",
        "algorithm.policy_loss.clip_high",
        read=policy_loss,
        off=switches.ratio,
    ),
    mapped("actor_rollout_ref.actor.entropy_coeff", 0.0, "algorithm.entropy_coef"),
    mapped("actor_rollout_ref.actor.use_kl_loss", False, "algorithm.kl_loss", read=kl_loss),
    placement("actor_rollout_ref.actor.use_torch_compile", True, "nothing is compiled", can=only(False)),
    mapped(
        "actor_rollout_ref.actor.kl_loss_coef",
        0.001,
        "algorithm.kl_loss.coef",
        read=kl_loss,
        off=switches.kl_loss,
    ),
    mapped(
        "actor_rollout_ref.actor.kl_loss_type",
        "low_var_kl",
        "algorithm.kl_loss.estimator",
        read=kl_loss,
        kind=one_of(*KL),
        off=switches.kl_loss,
    ),
    mapped("actor_rollout_ref.actor.ppo_epochs", 1, "trainer.passes"),
    mapped(
        "actor_rollout_ref.actor.data_loader_seed",
        None,
        "trainer.shuffle_seed",
        kind=or_null(WHOLE),
        off=switches.shuffle,
        note="null is data.seed",
    ),
    mapped("actor_rollout_ref.actor.shuffle", False, "trainer.shuffle_passes"),
    placement("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1, NO_SHARDS, can=only(1)),
    mapped("actor_rollout_ref.actor.optim.lr", 1e-6, "trainer.optimizer.lr"),
    mapped(
        "actor_rollout_ref.actor.optim.lr_warmup_steps",
        -1,
        "trainer.schedule.warmup",
        read=schedule,
        kind=or_null(WHOLE),
        note="negative leaves it to the ratio",
    ),
    mapped(
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        0.0,
        "trainer.schedule.warmup",
        read=schedule,
        off=switches.warmup_ratio,
    ),
    mapped(
        "actor_rollout_ref.actor.optim.min_lr_ratio",
        0.0,
        "trainer.schedule.min_ratio",
        read=schedule,
        off=switches.cosine,
    ),
    mapped(
        "actor_rollout_ref.actor.optim.num_cycles",
        0.5,
        "trainer.schedule.cycles",
        read=schedule,
        off=switches.cosine,
    ),
    mapped(
        "actor_rollout_ref.actor.optim.warmup_style",
        "constant",
        "trainer.schedule.type",
        read=schedule,
        kind=one_of("constant", "cosine"),
        off=switches.fsdp,
    ),
    refused(
        "actor_rollout_ref.actor.optim.total_training_steps",
        -1,
        "the program sets it to the run's length, whatever it says; write trainer.total_training_steps",
        can=either_is(-1, "trainer.total_training_steps"),
        kind=WHOLE,
    ),
    placement("actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params", 0, NO_SHARDS, can=only(0)),
    placement("actor_rollout_ref.actor.fsdp_config.param_offload", False, NO_SHARDS, can=only(False)),
    placement("actor_rollout_ref.actor.fsdp_config.optimizer_offload", False, NO_SHARDS, can=only(False)),
    placement("actor_rollout_ref.actor.fsdp_config.fsdp_size", -1, NO_SHARDS, can=only(-1, 1)),
    mapped(
        "actor_rollout_ref.actor.checkpoint.save_contents",
        ["model", "optimizer", "extra"],
        "checkpoint.optimizer",
        "checkpoint.export",
        read=saved,
        kind=TEXTS,
        warn=without_optimizer,
        note="hf_model adds an export",
    ),
    mapped(
        "actor_rollout_ref.actor.checkpoint.load_contents",
        "${actor_rollout_ref.actor.checkpoint.save_contents}",
        "checkpoint.resume_optimizer",
        read=loaded,
        kind=TEXTS,
        note="without the optimizer it starts anew where the run goes on",
    ),
    *beyond_the_page(
        mapped(
            "actor_rollout_ref.actor.clip_ratio_low",
            None,
            "algorithm.policy_loss.clip_low",
            read=policy_loss,
            off=switches.ratio,
            kind=or_null(NUMBER),
            note="clip_ratio where it is left out",
        ),
        mapped(
            "actor_rollout_ref.actor.clip_ratio_high",
            None,
            "algorithm.policy_loss.clip_high",
            read=policy_loss,
            off=switches.ratio,
            kind=or_null(NUMBER),
            note="clip_ratio where it is left out",
        ),
        mapped(
            "actor_rollout_ref.actor.clip_ratio_c",
            3.0,
            "algorithm.policy_loss.dual_clip",
            read=policy_loss,
            off=switches.dual_clip,
        ),
        mapped(
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            "vanilla",
            "algorithm.policy_loss.type",
            read=policy_loss,
            kind=one_of(*_LOSSES),
            note="the clip_ratio keys bound gspo's ratio too",
        ),
        mapped(
            "actor_rollout_ref.actor.loss_agg_mode",
            "token-mean",
            "algorithm.aggregation",
            kind=one_of("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
        ),
        mapped(
            "actor_rollout_ref.actor.optim.betas",
            [0.9, 0.999],
            "trainer.optimizer.betas",
            read=betas,
            kind=NUMBERS,
            off=switches.fsdp,
        ),
        mapped(
            "actor_rollout_ref.actor.fsdp_config.model_dtype",
            "fp32",
            "model.dtype",
            "model.compute_dtype",
            read=precision,
            kind=one_of("fp32", "float32", "bf16", "bfloat16"),
            note="of the parameters; they are multiplied in bfloat16",
        ),
        placement(
            "actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",
            None,
            NO_SHARDS,
            can=only(None),
        ),
        *(
            placement(f"actor_rollout_ref.actor.fsdp_config.{name}", False, NO_SHARDS, can=only(False))
            for name in ("forward_prefetch", "offload_policy")
        ),
        *engine("actor_rollout_ref.actor.megatron", switches.megatron),
    ),
)

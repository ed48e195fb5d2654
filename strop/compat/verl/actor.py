"""Ledger rows of verl's `actor_rollout_ref.actor` and `actor_rollout_ref.ref`; the optimizer is in `optim`, the loss in
`policy_loss`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    NO_QUANTIZED_TRAINING,
    NO_SHARDS,
    NUMBER,
    ONE_TRAINER,
    OWN_KERNELS,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    any_inactive,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    placement_section,
    refused,
    same_as,
    unless,
    written_by,
)
from strop.compat.verl import engine, switches
from strop.compat.verl.algorithm import KL_LOSS, KL_NAMES
from strop.compat.verl.data import batches
from strop.compat.verl.engine import (
    NO_PROFILER,
    PARAMETER_DTYPES,
    default_only,
    half_parameters,
    log_prob_rows,
    megatron_parallelism_rows,
    worker_rows,
)
from strop.compat.verl.model import RECOMPUTED, recomputation
from strop.compat.verl.optim import clipping
from strop.config.schema import Run

_ACTOR, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"


def write_micro_batch(run: Run) -> Mapping[str, Any]:
    """Write the micro-batch size with the per-GPU keys."""
    size = run.trainer.microbatch
    if size.unit == "tokens":
        return {f"{_ACTOR}.use_dynamic_bsz": True, f"{_ACTOR}.ppo_max_token_len_per_gpu": size.count}
    return {f"{_ACTOR}.use_dynamic_bsz": False, f"{_ACTOR}.ppo_micro_batch_size_per_gpu": size.count}


@written_by(write_micro_batch)
def micro_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the micro-batch size of the actor."""
    return {"trainer.microbatch": micro_batch_size(foreign, _ACTOR)}


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


def write_kl_loss(run: Run) -> Mapping[str, Any]:
    """Write the switch and, where it is on, the coefficient and the estimator."""
    term = getattr(run.algorithm, "kl_loss", None)
    if term is None:
        return {f"{_ACTOR}.use_kl_loss": False}
    return {
        f"{_ACTOR}.use_kl_loss": True,
        f"{_ACTOR}.kl_loss_coef": term.coef,
        f"{_ACTOR}.kl_loss_type": KL_NAMES.get(term.estimator, term.estimator),
    }


@written_by(write_kl_loss, off={f"{_ACTOR}.use_kl_loss": False})
def kl_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the KL penalty in the loss, where it is on."""
    if switches.kl_loss(foreign):
        return {}
    kind = foreign[f"{_ACTOR}.kl_loss_type"]
    return {
        "algorithm.kl_loss.estimator": KL_LOSS[kind],
        "algorithm.kl_loss.coef": foreign[f"{_ACTOR}.kl_loss_coef"],
    }


_FSDP = f"{_ACTOR}.fsdp_config"


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


def write_checkpoint_contents(run: Run) -> Mapping[str, Any]:
    """Write the saved and the loaded parts of a checkpoint."""
    parts = {"model": True, "optimizer": run.checkpoint.save_optimizer, "extra": True}
    parts["hf_model"] = run.checkpoint.export
    at = f"{_ACTOR}.checkpoint"
    saved = [name for name, kept in parts.items() if kept]
    resumed = run.checkpoint.resume_optimizer or not run.checkpoint.save_optimizer
    loaded = [name for name in saved if name != "hf_model" and (resumed or name != "optimizer")]
    return {f"{at}.save_contents": saved} | ({} if resumed else {f"{at}.load_contents": loaded})


@written_by(write_checkpoint_contents)
def saved_contents(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the saved parts; Strop always saves the model and the random number generator states. Weights in Hugging
    Face's format alone are a model, too."""
    contents = foreign[f"{_ACTOR}.checkpoint.save_contents"]
    known = ("model", "optimizer", "extra", "hf_model")
    if not {"model", "hf_model"} & set(contents) or any(part not in known for part in contents):
        raise foreign.error_for(
            f"{_ACTOR}.checkpoint.save_contents",
            f"save_contents is {contents}; the supported parts are {', '.join(known)}, and resuming requires "
            "'model' or 'hf_model'.",
        )
    return {"checkpoint.save_optimizer": "optimizer" in contents, "checkpoint.export": "hf_model" in contents}


@written_by(write_checkpoint_contents)
def loaded_contents(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the loaded parts, which must have been saved; Strop always loads the model and the random number
    generator states (see without_extra)."""
    key = f"{_ACTOR}.checkpoint"
    contents, kept = foreign[f"{key}.load_contents"], foreign[f"{key}.save_contents"]
    lacking = [part for part in contents if part not in kept]
    if lacking:
        raise foreign.error_for(
            f"{key}.load_contents",
            f"load_contents has {', '.join(lacking)}, which save_contents does not have: {', '.join(kept)}.",
        )
    if "model" in kept and "model" not in contents:
        raise foreign.error_for(
            f"{key}.load_contents",
            "load_contents has no model, which a resumed run always loads; add it. To start a new run from a model's "
            "weights, write the model's folder as actor_rollout_ref.model.path.",
        )
    return {"checkpoint.resume_optimizer": "optimizer" in contents}


def without_extra(foreign: ForeignValues) -> str | None:
    """Notice for a resumed run that restores more than its configuration asks for."""
    key = f"{_ACTOR}.checkpoint"
    if "extra" in foreign[f"{key}.load_contents"] or "extra" not in foreign[f"{key}.save_contents"]:
        return None
    return (
        "load_contents has no extra, and a resumed run restores it nevertheless: the state of the random numbers and "
        "the position in the learning-rate schedule, which verl would start again"
    )


def without_optimizer(foreign: ForeignValues) -> str | None:
    """Notice for a run whose checkpoints have no optimizer state."""
    kept = "optimizer" in foreign[f"{_ACTOR}.checkpoint.save_contents"]
    return None if kept else "without the optimizer state, a resumed run differs from an uninterrupted one"


_OVERRIDE = f"{_ACTOR}.megatron.override_transformer_config"
_AUX, _Z, _BALANCING = (
    f"{_OVERRIDE}.{name}"
    for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_router_load_balancing_type")
)
_BALANCED = ("aux_loss", "global_aux_loss")
_SEQUENCE = "seq_aux_loss"


def write_router_loss(run: Run) -> Mapping[str, Any]:
    """Write the coefficients, where the loss balances each layer as Megatron's does."""
    section = run.trainer.router_loss
    if section is None or section.balance_over != "layer":
        return {}
    balanced = {_AUX: section.balance_coef, _BALANCING: "global_aux_loss"} if section.balance_coef else {}
    return balanced | ({_Z: section.z_coef} if section.z_coef else {})


@written_by(write_router_loss)
def router_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the coefficients that are not 0; Megatron sums both losses over layers."""
    if foreign[_BALANCING] == _SEQUENCE:
        raise foreign.error_for(
            _BALANCING,
            f"{_BALANCING} is {_SEQUENCE}, which balances each sequence on its own; Strop balances an update. Write "
            "global_aux_loss, or none.",
        )
    balance = foreign[_AUX] if foreign[_BALANCING] in _BALANCED else 0
    found = {"balance_coef": balance, "z_coef": foreign[_Z]}
    return {f"trainer.router_loss.{name}": value for name, value in found.items() if value}


_row = partial(mapped, read=router_loss)
_ROUTER_LOSS = (
    _row(
        _AUX,
        0,
        "trainer.router_loss.balance_coef",
        value_type=NUMBER,
        inactive=any_inactive(switches.megatron, unless(_BALANCING, *_BALANCED, _SEQUENCE)),
        note="verl switches the loss off (type none) for every family but DeepSeek-V3's, unless the type is written",
    ),
    _row(_Z, 0, "trainer.router_loss.z_coef", value_type=NUMBER, inactive=switches.megatron),
    _row(
        _BALANCING,
        "none",
        "trainer.router_loss.balance_coef",
        value_type=one_of("none", *_BALANCED, _SEQUENCE),
        inactive=switches.megatron,
        note="aux_loss balances each micro-batch in Megatron, and the update here, as global_aux_loss does",
    ),
)
_REFERENCE_MODEL = (
    engine.REF_OFFLOAD,
    placement(f"{_REF}.fsdp_config.wrap_policy.min_num_params", 0, NO_SHARDS, supported=only(0)),
    *log_prob_rows(_REF, switches.reference),
    placement(
        f"{_REF}.ulysses_sequence_parallel_size",
        "${actor_rollout_ref.actor.ulysses_sequence_parallel_size}",
        "the reference model is divided as the actor is",
        supported=same_as(f"{_ACTOR}.ulysses_sequence_parallel_size"),
    ),
    *not_on_page(
        placement(
            f"{_REF}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",
            None,
            NO_SHARDS,
            supported=only(None),
        ),
        *no_effects(
            f"{_REF}.megatron.override_transformer_config",
            (f"recompute_{name}" for name in ("granularity", "method", "num_layers", "modules")),
            "the reference model is not trained, so that nothing of it is recomputed",
        ),
        *megatron_parallelism_rows(f"{_REF}.megatron", any_inactive(switches.reference, switches.megatron)),
    ),
)


def _quantized_training(section: str, inactive: InactiveCheck | None = None) -> tuple[KeyMapping, ...]:
    """Rows of quantization-aware training, which changes what is learned."""
    return (
        refused(f"{section}.qat.enable", False, NO_QUANTIZED_TRAINING, inactive=inactive),
        no_effect(f"{section}.qat.*", UNSET, "quantization-aware training is off"),
    )


def _is_response_length(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports null and the maximum length of a response."""
    return value is None or bool(value == foreign["data.max_response_length"])


_MEMORY = "it changes only memory use"
_batch_row = partial(mapped, read=micro_batch)
_kl_loss_row = partial(mapped, read=kl_loss)
_LISTED = (
    placement(f"{_ACTOR}.strategy", "fsdp", ONE_TRAINER, supported=only("fsdp", "fsdp2")),
    mapped(
        f"{_ACTOR}.ppo_mini_batch_size",
        256,
        "trainer.tasks_per_update",
        read=batches,
        inactive=switches.spin_alone,
        note="counts prompts",
    ),
    _batch_row(
        f"{_ACTOR}.ppo_micro_batch_size",
        None,
        "trainer.microbatch",
        value_type=nullable(INTEGER),
        inactive=switches.fixed_batch,
        note="total number of sequences on all GPUs",
        deprecated="write ppo_micro_batch_size_per_gpu, the number per GPU",
    ),
    _batch_row(
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
        8,
        "trainer.microbatch",
        inactive=switches.fixed_batch,
        note="counts sequences",
    ),
    _batch_row(f"{_ACTOR}.use_dynamic_bsz", False, "trainer.microbatch"),
    _batch_row(
        f"{_ACTOR}.ppo_max_token_len_per_gpu",
        16384,
        "trainer.microbatch",
        inactive=switches.dynamic_batch,
        note="counts tokens",
    ),
    mapped(f"{_ACTOR}.grad_clip", 1.0, "trainer.max_grad_norm", read=clipping, inactive=switches.fsdp),
    mapped(
        f"{_ACTOR}.entropy_coeff",
        0.0,
        "algorithm.entropy_coef",
        inactive=any_inactive(switches.distillation_alone, switches.spin_alone),
    ),
    _kl_loss_row(
        f"{_ACTOR}.use_kl_loss",
        False,
        "algorithm.kl_loss",
        inactive=any_inactive(switches.distillation_alone, switches.spin_alone),
    ),
    placement(f"{_ACTOR}.use_torch_compile", True, "nothing is compiled", supported=only(False)),
    _kl_loss_row(f"{_ACTOR}.kl_loss_coef", 0.001, "algorithm.kl_loss.coef", inactive=switches.kl_loss),
    _kl_loss_row(
        f"{_ACTOR}.kl_loss_type",
        "low_var_kl",
        "algorithm.kl_loss.estimator",
        value_type=one_of(*KL_LOSS),
        inactive=switches.kl_loss,
    ),
    mapped(f"{_ACTOR}.ppo_epochs", 1, "trainer.epochs_per_step", inactive=switches.spin_alone),
    mapped(
        f"{_ACTOR}.data_loader_seed",
        None,
        "trainer.shuffle_seed",
        value_type=nullable(INTEGER),
        inactive=switches.shuffle,
        note="null means data.seed",
    ),
    mapped(f"{_ACTOR}.shuffle", False, "trainer.shuffle_each_epoch"),
    engine.ULYSSES,
    engine.MIN_PARAMETERS,
    *engine.OFFLOAD,
    engine.SIZE,
    mapped(
        f"{_ACTOR}.checkpoint.save_contents",
        ["model", "optimizer", "extra"],
        "checkpoint.save_optimizer",
        "checkpoint.export",
        read=saved_contents,
        value_type=STRING_OR_LIST,
        warn=without_optimizer,
        note="hf_model also exports the model as a Hugging Face folder",
    ),
    mapped(
        f"{_ACTOR}.checkpoint.load_contents",
        "${actor_rollout_ref.actor.checkpoint.save_contents}",
        "checkpoint.resume_optimizer",
        read=loaded_contents,
        value_type=STRING_OR_LIST,
        warn=without_extra,
        note="without optimizer, a resumed run starts with a fresh optimizer state",
    ),
    *_REFERENCE_MODEL,
)
_UNLISTED = not_on_page(
    mapped(
        f"{_ACTOR}.fsdp_config.model_dtype",
        "fp32",
        "model.dtype",
        "model.compute_dtype",
        read=precision,
        value_type=one_of(*PARAMETER_DTYPES),
        warn=half_parameters(f"{_ACTOR}.fsdp_config.model_dtype"),
        note="dtype of the parameters",
    ),
    mapped(
        f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype",
        "bf16",
        "model.compute_dtype",
        read=precision,
        value_type=one_of("bf16", "bfloat16", "fp32", "float32"),
        note="dtype of the computation",
    ),
    no_effect(
        f"{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype",
        "fp32",
        "buffers, such as rotary frequencies, stay in float32",
        value_type=ANY,
    ),
    *engine.NOT_ON_PAGE,
    engine.TIMEOUT,
    *RECOMPUTED.megatron_rows("model.gradient_checkpointing", recomputation),
    *_ROUTER_LOSS,
    *megatron_parallelism_rows(f"{_ACTOR}.megatron", switches.megatron, ()),
    *worker_rows(_ACTOR),
    *worker_rows(_REF, switches.reference),
    placement_section(f"{_ACTOR}.fsdp_config", NO_SHARDS),
    default_only(f"{_ACTOR}.use_fused_kernels", UNSET, OWN_KERNELS),
    default_only(
        f"{_ACTOR}.use_prefix_grouper", False, "prompts of a group are always shared, with the same gradient"
    ),
    no_effect(f"{_ACTOR}.calculate_entropy", False, "the metrics always include the entropy"),
    no_effect(
        f"{_ACTOR}.calculate_sum_pi_squared", False, "optimal_token_baseline computes it, without this key"
    ),
    no_effect(f"{_ACTOR}.freeze_vision_tower", False, "models of text have no vision tower"),
    refused(
        f"{_ACTOR}.loss_scale_factor",
        None,
        "the sum over tokens is divided by data.max_response_length; leave it null",
        supported=_is_response_length,
        inactive=unless(f"{_ACTOR}.loss_agg_mode", "seq-mean-token-sum-norm"),
    ),
    no_effect(f"{_ACTOR}.sum_pi_squared_checkpointing", UNSET, _MEMORY),
    no_effect(
        f"{_ACTOR}.model_engine",
        UNSET,
        f"{_ACTOR}.strategy and the config group model_engine name the engine",
    ),
    placement_section(f"{_REF}.fsdp_config", NO_SHARDS, inactive=switches.reference),
    *_quantized_training(_ACTOR),
    *_quantized_training(f"{_ACTOR}.fsdp_config"),
    default_only(f"{_REF}.use_torch_compile", UNSET, "nothing is compiled", switches.reference),
    placement(
        f"{_REF}.strategy",
        "${actor_rollout_ref.actor.strategy}",
        "a single process computes its log-probs",
        value_type=STRING,
        supported=only("fsdp", "fsdp2"),
        inactive=switches.reference,
    ),
    no_effect(f"{_REF}.param_offload", UNSET, _MEMORY),
    placement_section(f"{_REF}.model", "the reference model is the initial policy"),
    no_effect(f"{_ACTOR}.checkpoint.async_save", False, "checkpoints are complete before the next step"),
    no_effect(f"{_ACTOR}.checkpoint.strict", True, "checkpoints are always complete"),
    no_effect(f"{_ACTOR}.checkpoint.mbridge_config.*", UNSET, "there is one checkpoint format"),
    no_effect(f"{_REF}.optim.*", UNSET, "the reference model is not trained"),
    no_effect("actor_rollout_ref.profiler.*", UNSET, NO_PROFILER),
)
ROWS = (*_LISTED, *_UNLISTED)

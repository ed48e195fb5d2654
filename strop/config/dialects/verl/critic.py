"""verl's `critic`: the value model of `gae`. The page says only that its keys are like the actor's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    NUMBERS,
    TEXT,
    TEXTS,
    UNSET,
    WHOLE,
    beyond_the_page,
    either,
    mapped,
    never,
    one_of,
    only,
    or_null,
    placement,
    refused,
    same_as,
    unless,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.data import dividing
from strop.config.dialects.verl.engine import NO_SHARDS, engine
from strop.config.dialects.verl.megatron import scheduled
from strop.config.dialects.verl.model import overrides
from strop.config.dialects.verl.schedule import by_steps, of_fsdp, of_megatron, wants_megatron, write
from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo
from strop.config.schema.model import Model

_AT = "algorithm.critic"
_OPTIM = "critic.optim"
_dynamic = either(switches.gae, unless("critic.use_dynamic_bsz", True))
_fixed = either(switches.gae, unless("critic.use_dynamic_bsz", False))
_fsdp = either(switches.gae, unless("critic.strategy", "fsdp", "fsdp2"))
_megatron = either(switches.gae, unless("critic.strategy", "megatron"))
_cosine = either(_fsdp, unless("critic.optim.warmup_style", "cosine"))
_falling = either(
    _megatron, unless("critic.optim.lr_decay_style", "linear", "cosine", "inverse_square_root", "WSD")
)
_wsd = either(_megatron, unless("critic.optim.lr_decay_style", "WSD"))


def _no_path(theirs: Theirs) -> str | None:
    return "critic.model.path is null" if theirs["critic.model.path"] is None else None


def _no_ratio(theirs: Theirs) -> str | None:
    return "critic.optim.lr_warmup_steps comes first" if by_steps(theirs, _OPTIM) else None


_own_model = either(switches.gae, _no_path)


def write_critic(run: Run) -> Mapping[str, Any]:
    """What the value model leaves out is as for the policy, and verl's keys follow the actor's too."""
    if not isinstance(run.algorithm, Ppo):
        return {}
    said = run.algorithm.critic
    size = said.microbatch or run.trainer.microbatch
    by_tokens = size.unit == "tokens"
    whole = run.trainer.tasks_per_update or run.trainer.tasks_per_step
    values: dict[str, Any] = {
        "critic.cliprange_value": said.value_clip,
        "trainer.critic_warmup": said.warmup_steps,
        "critic.ppo_mini_batch_size": said.tasks_per_update or whole,
        "critic.ppo_epochs": said.passes or run.trainer.passes,
        "critic.use_dynamic_bsz": by_tokens,
        "critic.ppo_max_token_len_per_gpu"
        if by_tokens
        else "critic.ppo_micro_batch_size_per_gpu": size.count,
        "critic.optim.lr": said.optimizer.lr,
        "critic.optim.weight_decay": said.optimizer.weight_decay,
    }
    values |= write(run, said.schedule, said.optimizer.lr, _OPTIM)
    if wants_megatron(run):
        values[f"{_OPTIM}.clip_grad"] = said.max_grad_norm or 0.0
    else:
        values["critic.grad_clip"] = said.max_grad_norm
        values[f"{_OPTIM}.betas"] = list(getattr(said.optimizer, "betas", (0.9, 0.999)))
    return values | ({} if said.model is None else _write_model(said.model))


def _write_model(said: Model) -> dict[str, Any]:
    values = {
        "path": said.path,
        "tokenizer_path": said.tokenizer,
        "external_lib": list(said.imports) or None,
        "enable_gradient_checkpointing": said.gradient_checkpointing,
        "trust_remote_code": said.trust_remote_code,
        "fsdp_config.model_dtype": {"float32": "fp32", "bfloat16": "bf16"}[said.dtype],
    }
    values |= {f"override_config.{name}": value for name, value in said.override.items()}
    return {f"critic.model.{name}": value for name, value in values.items()}


@written_by(write_critic)
def critic(theirs: Theirs) -> Mapping[str, Any]:
    """The value model; the policy's own where no path is given."""
    if switches.gae(theirs):
        return {}
    policys = theirs["actor_rollout_ref.actor.strategy"]
    if (theirs["critic.strategy"] == "megatron") != (policys == "megatron"):
        raise theirs.fault(
            "critic.strategy",
            f"critic.strategy is {theirs['critic.strategy']} and actor_rollout_ref.actor.strategy is "
            f"{policys}; one program trains both, so write the same.",
        )
    settings = {
        "value_clip": theirs["critic.cliprange_value"],
        "warmup_steps": theirs["trainer.critic_warmup"],
        "tasks_per_update": dividing(theirs, "critic.ppo_mini_batch_size"),
        "passes": theirs["critic.ppo_epochs"],
        "microbatch": _micro_batch(theirs),
        "max_grad_norm": theirs["critic.grad_clip"],
        "optimizer.lr": theirs[f"{_OPTIM}.lr"],
        "optimizer.weight_decay": theirs[f"{_OPTIM}.weight_decay"],
    }
    if _fsdp(theirs) is None:
        settings["optimizer.betas"] = theirs[f"{_OPTIM}.betas"]
        schedule = of_fsdp(theirs, _OPTIM)
    else:
        settings["max_grad_norm"] = theirs[f"{_OPTIM}.clip_grad"] or None
        schedule = of_megatron(theirs, _OPTIM)
    settings |= {f"schedule.{name}": value for name, value in schedule.items()}
    settings |= {f"model.{name}": value for name, value in _model(theirs).items()}
    return {f"{_AT}.{name}": value for name, value in settings.items()}


def _micro_batch(theirs: Theirs) -> str:
    if theirs["critic.use_dynamic_bsz"]:
        return f"{theirs['critic.ppo_max_token_len_per_gpu']} tokens"
    everywhere = theirs["critic.ppo_micro_batch_size"]
    if everywhere is None:
        return f"{theirs['critic.ppo_micro_batch_size_per_gpu']} sequences"
    if theirs.wrote("critic.ppo_micro_batch_size_per_gpu"):
        raise theirs.fault(
            "critic.ppo_micro_batch_size",
            "critic.ppo_micro_batch_size and critic.ppo_micro_batch_size_per_gpu say the same thing twice; "
            "write only ppo_micro_batch_size_per_gpu.",
        )
    gpus = theirs["trainer.nnodes"] * theirs["trainer.n_gpus_per_node"]
    return f"{max(1, everywhere // max(1, gpus))} sequences"


def _model(theirs: Theirs) -> Mapping[str, Any]:
    if _no_path(theirs):
        return {}
    kind = theirs["critic.model.fsdp_config.model_dtype"]
    libraries = theirs["critic.model.external_lib"]
    settings = {
        "path": theirs["critic.model.path"],
        "tokenizer": theirs["critic.model.tokenizer_path"],
        "gradient_checkpointing": theirs["critic.model.enable_gradient_checkpointing"],
        "trust_remote_code": theirs["critic.model.trust_remote_code"],
        "imports": [libraries] if isinstance(libraries, str) else libraries or [],
        "dtype": {"fp32": "float32", "bf16": "bfloat16"}.get(kind, kind),
        "compute_dtype": "bfloat16",
    }
    return settings | {"override": overrides(theirs, "critic.model.override_config")}


_MODEL = (
    mapped(
        "critic.model.path",
        None,
        f"{_AT}.model",
        f"{_AT}.model.path",
        read=critic,
        kind=or_null(TEXT),
        off=switches.gae,
        note="the policy's own where it is left out",
    ),
    mapped(
        "critic.model.tokenizer_path",
        None,
        f"{_AT}.model.tokenizer",
        read=critic,
        kind=or_null(TEXT),
        off=_own_model,
        note="its tokens must be the policy's",
    ),
    mapped(
        "critic.model.external_lib",
        None,
        f"{_AT}.model.imports",
        read=critic,
        kind=or_null(TEXTS),
        off=_own_model,
    ),
    mapped("critic.model.override_config.*", UNSET, f"{_AT}.model.override", read=critic, off=_own_model),
    mapped(
        "critic.model.enable_gradient_checkpointing",
        False,
        f"{_AT}.model.gradient_checkpointing",
        read=critic,
        off=_own_model,
    ),
    mapped(
        "critic.model.trust_remote_code",
        False,
        f"{_AT}.model.trust_remote_code",
        read=critic,
        off=_own_model,
    ),
    mapped(
        "critic.model.fsdp_config.model_dtype",
        "fp32",
        f"{_AT}.model.dtype",
        read=critic,
        kind=one_of("fp32", "float32", "bf16", "bfloat16"),
        off=_own_model,
    ),
    placement(
        "critic.model.use_remove_padding",
        False,
        "sequences are always packed without padding, which changes no result",
        can=only(True),
        off=switches.gae,
    ),
    *(
        placement(f"critic.{name}", default, NO_SHARDS, can=only(default, 1), off=switches.gae)
        for name, default in (
            ("model.enable_activation_offload", False),
            ("model.fsdp_config.param_offload", False),
            ("model.fsdp_config.optimizer_offload", False),
            ("model.fsdp_config.offload_policy", False),
            ("model.fsdp_config.fsdp_size", -1),
            ("model.fsdp_config.wrap_policy.min_num_params", 0),
            ("ulysses_sequence_parallel_size", 1),
        )
    ),
    placement(
        "critic.strategy",
        "${actor_rollout_ref.actor.strategy}",
        "one process trains",
        kind=one_of("fsdp", "fsdp2", "megatron"),
        can=only("fsdp", "fsdp2"),
        off=switches.gae,
    ),
    *engine("critic.megatron", _megatron),
)
_MEGATRON = scheduled(_OPTIM, _AT, critic, _megatron, _falling, _wsd)
_OPTIMIZER = (
    mapped(f"{_OPTIM}.lr", 1e-5, f"{_AT}.optimizer.lr", read=critic, off=switches.gae),
    mapped(f"{_OPTIM}.weight_decay", 0.01, f"{_AT}.optimizer.weight_decay", read=critic, off=switches.gae),
    mapped(
        f"{_OPTIM}.betas",
        [0.9, 0.999],
        f"{_AT}.optimizer.betas",
        read=critic,
        kind=NUMBERS,
        off=_fsdp,
    ),
    mapped(
        f"{_OPTIM}.lr_warmup_steps",
        -1,
        f"{_AT}.schedule.warmup",
        read=critic,
        kind=or_null(WHOLE),
        off=switches.gae,
        note="negative leaves it to the ratio",
    ),
    mapped(
        f"{_OPTIM}.lr_warmup_steps_ratio",
        0.0,
        f"{_AT}.schedule.warmup",
        read=critic,
        off=either(switches.gae, _no_ratio),
    ),
    mapped(
        f"{_OPTIM}.warmup_style",
        "constant",
        f"{_AT}.schedule.type",
        read=critic,
        kind=one_of("constant", "cosine"),
        off=_fsdp,
    ),
    mapped(f"{_OPTIM}.min_lr_ratio", 0.0, f"{_AT}.schedule.min_ratio", read=critic, off=_cosine),
    mapped(f"{_OPTIM}.num_cycles", 0.5, f"{_AT}.schedule.cycles", read=critic, off=_cosine),
    mapped(
        f"{_OPTIM}.clip_grad", 1.0, f"{_AT}.max_grad_norm", read=critic, off=_megatron, note="0 is no bound"
    ),
    *_MEGATRON.values(),
)
_UPDATES = (
    mapped(
        "critic.ppo_mini_batch_size",
        "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        f"{_AT}.tasks_per_update",
        read=critic,
        kind=WHOLE,
        off=switches.gae,
        note="counts prompts",
    ),
    mapped(
        "critic.ppo_micro_batch_size",
        None,
        f"{_AT}.microbatch",
        read=critic,
        kind=or_null(WHOLE),
        off=_fixed,
        note="counts the sequences of all GPUs together",
        deprecated="write ppo_micro_batch_size_per_gpu, which counts those of one GPU",
    ),
    mapped(
        "critic.ppo_micro_batch_size_per_gpu",
        8,
        f"{_AT}.microbatch",
        read=critic,
        kind=WHOLE,
        off=_fixed,
        note="counts sequences",
    ),
    *(
        placement(
            f"critic.{name}",
            None,
            "values go through the model in its own micro-batches",
            kind=or_null(WHOLE),
            can=only(None),
            off=_fixed,
        )
        for name in ("forward_micro_batch_size", "forward_micro_batch_size_per_gpu")
    ),
    mapped(
        "critic.use_dynamic_bsz",
        "${actor_rollout_ref.actor.use_dynamic_bsz}",
        f"{_AT}.microbatch",
        read=critic,
        off=switches.gae,
    ),
    mapped("critic.ppo_max_token_len_per_gpu", 32768, f"{_AT}.microbatch", read=critic, off=_dynamic),
    placement(
        "critic.forward_max_token_len_per_gpu",
        "${critic.ppo_max_token_len_per_gpu}",
        "values go through the model in its own micro-batches",
        can=same_as("critic.ppo_max_token_len_per_gpu"),
        off=_dynamic,
    ),
    mapped(
        "critic.ppo_epochs",
        "${actor_rollout_ref.actor.ppo_epochs}",
        f"{_AT}.passes",
        read=critic,
        kind=WHOLE,
        off=switches.gae,
    ),
    refused(
        "critic.shuffle",
        "${actor_rollout_ref.actor.shuffle}",
        "policy and critic go over a step in the same order; write actor_rollout_ref.actor.shuffle",
        can=same_as("actor_rollout_ref.actor.shuffle"),
        off=switches.gae,
    ),
    refused(
        "critic.checkpoint.save_contents",
        "${actor_rollout_ref.actor.checkpoint.save_contents}",
        "policy and critic are saved together; write actor_rollout_ref.actor.checkpoint.save_contents",
        can=same_as("actor_rollout_ref.actor.checkpoint.save_contents"),
        off=switches.gae,
    ),
    mapped("critic.grad_clip", 1.0, f"{_AT}.max_grad_norm", read=critic, kind=or_null(NUMBER), off=_fsdp),
    mapped("critic.cliprange_value", 0.5, f"{_AT}.value_clip", read=critic, off=switches.gae),
)
ROWS = (
    refused(
        "critic.*",
        UNSET,
        "this key of the critic has no counterpart in algorithm.critic; leave it out",
        can=never,
        off=switches.gae,
    ),
    *beyond_the_page(*_MODEL, *_OPTIMIZER, *_UPDATES),
)

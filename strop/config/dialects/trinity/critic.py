"""`trainer.trainer_config.critic`: the value model, by verl's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strop.config.dialects.row import (
    ANY,
    NUMBER,
    TEXT,
    Row,
    always,
    either,
    mapped,
    only,
    or_null,
    placement,
    refused,
    same_as,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity.inside import PREFIX, pair, verl_row
from strop.config.dialects.trinity.presets import without_critic
from strop.config.dialects.verl.critic import critic as verl_critic
from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo
from strop.config.schema.schedule import CosineSchedule

_CRITIC = f"{PREFIX}critic"
_ACTOR = f"{PREFIX}actor_rollout_ref.actor"
_NO_SHARDS = "one process holds the whole model"
_AS_TRAINED = "values go through the critic in its own micro-batches"


def row(key: str, default: Any) -> Row:
    """verl's row of a key that only a critic gives a meaning."""
    theirs = verl_row(key, default)
    return replace(theirs, off=either(without_critic, theirs.off) if theirs.off else without_critic)


def write_min_ratio(run: Run) -> Mapping[str, Any]:
    """Of a cosine alone."""
    schedule = run.algorithm.critic.schedule if isinstance(run.algorithm, Ppo) else None
    if not isinstance(schedule, CosineSchedule):
        return {}
    return {f"{_CRITIC}.optim.min_lr_ratio": schedule.min_ratio or None}


@written_by(write_min_ratio)
def min_ratio(theirs: Theirs) -> Mapping[str, Any]:
    """Where the cosine ends."""
    ratio = theirs[f"{_CRITIC}.optim.min_lr_ratio"]
    if without_critic(theirs) or _not_cosine(theirs) or ratio is None:
        return {}
    return {"algorithm.critic.schedule.min_ratio": ratio}


def _not_cosine(theirs: Theirs) -> str | None:
    style = theirs[f"{_CRITIC}.optim.warmup_style"]
    return None if style == "cosine" else f"{_CRITIC}.optim.warmup_style is {style}"


def _place(key: str, default: Any, note: str, *wanted: Any) -> Row:
    can = only(*wanted) if wanted else always
    return placement(f"{_CRITIC}.{key}", default, note, can=can, kind=ANY, off=without_critic)


MODEL = mapped(
    "model.critic_model_path",
    "${model.model_path}",
    "algorithm.critic.model",
    "algorithm.critic.model.path",
    read=pair(verl_critic),
    kind=or_null(TEXT),
    off=without_critic,
    note="the policy's own where it is empty",
)
ROWS = (
    row("critic.strategy", "fsdp"),
    row("critic.optim.lr", 1e-5),
    row("critic.optim.lr_warmup_steps_ratio", 0.0),
    mapped(
        f"{_CRITIC}.optim.min_lr_ratio",
        None,
        "algorithm.critic.schedule.min_ratio",
        read=min_ratio,
        kind=or_null(NUMBER),
        off=either(without_critic, _not_cosine),
    ),
    row("critic.optim.warmup_style", "constant"),
    refused(
        f"{_CRITIC}.optim.total_training_steps",
        -1,
        "the program sets it, the page says; write trainer.total_steps",
        off=without_critic,
    ),
    refused(
        f"{_CRITIC}.model.override_config",
        {},
        "values of the model's config.json are not overridden yet; change them in the model's folder",
        off=without_critic,
    ),
    refused(
        f"{_CRITIC}.model.external_lib",
        f"${{{PREFIX}actor_rollout_ref.model.external_lib}}",
        "packages that register models are not imported yet; use a model that transformers knows",
        can=only(None),
        off=without_critic,
    ),
    row("critic.model.enable_gradient_checkpointing", True),
    _place("model.use_remove_padding", False, "sequences are always packed without padding"),
    row("critic.model.fsdp_config.param_offload", False),
    row("critic.model.fsdp_config.optimizer_offload", False),
    _place("model.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap", None, _NO_SHARDS, None),
    _place("model.fsdp_config.wrap_policy.min_num_params", 0, _NO_SHARDS),
    _place("model.fsdp_config.fsdp_size", -1, _NO_SHARDS, -1, 1),
    _place("model.fsdp_config.forward_prefetch", False, _NO_SHARDS, False),
    row("critic.ppo_micro_batch_size_per_gpu", 8),
    _place("forward_micro_batch_size_per_gpu", f"${{{_CRITIC}.ppo_micro_batch_size_per_gpu}}", _AS_TRAINED),
    row("critic.use_dynamic_bsz", f"${{{_ACTOR}.use_dynamic_bsz}}"),
    row("critic.ppo_max_token_len_per_gpu", 32768),
    _place("forward_max_token_len_per_gpu", f"${{{_CRITIC}.ppo_max_token_len_per_gpu}}", _AS_TRAINED),
    _place("ulysses_sequence_parallel_size", 1, _NO_SHARDS, 1),
    row("critic.ppo_epochs", f"${{{_ACTOR}.ppo_epochs}}"),
    refused(
        f"{_CRITIC}.shuffle",
        f"${{{_ACTOR}.shuffle}}",
        "critic and policy go over a step in one order; write actor.shuffle, and the same here",
        can=same_as(f"{_ACTOR}.shuffle"),
        off=without_critic,
    ),
    row("critic.grad_clip", 1.0),
    row("critic.cliprange_value", 0.5),
)

"""verl's `critic`: the value model of `gae`. The page says only that its keys are like the actor's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    TEXT,
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
    unless,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo

_AT = "algorithm.critic"
_NO_SHARDS = "one process holds the whole model"
_dynamic = either(switches.gae, unless("critic.use_dynamic_bsz", True))
_fixed = either(switches.gae, unless("critic.use_dynamic_bsz", False))


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
        "critic.ppo_max_token_len_per_gpu" if by_tokens else "critic.ppo_micro_batch_size_per_gpu": int(
            size.count
        ),
        "critic.optim.lr": said.optimizer.lr,
        "critic.optim.weight_decay": said.optimizer.weight_decay,
        "critic.optim.warmup_style": said.schedule.type,
        "critic.grad_clip": said.max_grad_norm,
    }
    if said.schedule.warmup.unit == "%":
        values["critic.optim.lr_warmup_steps_ratio"] = round(said.schedule.warmup.count / 100, 12)
    if said.model is not None:
        values["critic.model.path"] = said.model.path
        values["critic.model.enable_gradient_checkpointing"] = said.model.gradient_checkpointing
    return values


@written_by(write_critic)
def critic(theirs: Theirs) -> Mapping[str, Any]:
    """The value model; the policy's own where no path is given."""
    if switches.gae(theirs):
        return {}
    tokens = theirs["critic.ppo_max_token_len_per_gpu"]
    sequences = theirs["critic.ppo_micro_batch_size_per_gpu"]
    settings = {
        f"{_AT}.value_clip": theirs["critic.cliprange_value"],
        f"{_AT}.warmup_steps": theirs["trainer.critic_warmup"],
        f"{_AT}.tasks_per_update": theirs["critic.ppo_mini_batch_size"],
        f"{_AT}.passes": theirs["critic.ppo_epochs"],
        f"{_AT}.microbatch": f"{tokens} tokens"
        if theirs["critic.use_dynamic_bsz"]
        else f"{sequences} sequences",
        f"{_AT}.optimizer.lr": theirs["critic.optim.lr"],
        f"{_AT}.optimizer.weight_decay": theirs["critic.optim.weight_decay"],
        f"{_AT}.max_grad_norm": theirs["critic.grad_clip"],
        f"{_AT}.schedule.type": theirs["critic.optim.warmup_style"],
        f"{_AT}.schedule.warmup": f"{round(100 * theirs['critic.optim.lr_warmup_steps_ratio'], 10)} %",
    }
    if theirs["critic.model.path"] is not None:
        settings[f"{_AT}.model.path"] = theirs["critic.model.path"]
        settings[f"{_AT}.model.gradient_checkpointing"] = theirs["critic.model.enable_gradient_checkpointing"]
        settings[f"{_AT}.model.compute_dtype"] = "bfloat16"
    return settings


_has_path = either(
    switches.gae, lambda theirs: "critic.model.path is null" if theirs["critic.model.path"] is None else None
)
ROWS = (
    refused("critic.*", UNSET, "this key of the critic is not read", can=never, off=switches.gae),
    *beyond_the_page(
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
            "critic.model.enable_gradient_checkpointing",
            False,
            f"{_AT}.model.gradient_checkpointing",
            read=critic,
            off=_has_path,
        ),
        placement(
            "critic.model.use_remove_padding",
            False,
            "sequences are always packed without padding, which changes no result",
            can=only(True),
            off=switches.gae,
        ),
        *(
            placement(
                f"critic.model.fsdp_config.{name}", False, _NO_SHARDS, can=only(False), off=switches.gae
            )
            for name in ("param_offload", "optimizer_offload")
        ),
        placement(
            "critic.strategy",
            "fsdp",
            "one process trains",
            kind=one_of("fsdp", "fsdp2", "megatron"),
            can=only("fsdp", "fsdp2"),
            off=switches.gae,
        ),
        mapped("critic.optim.lr", 1e-5, f"{_AT}.optimizer.lr", read=critic, off=switches.gae),
        mapped(
            "critic.optim.weight_decay", 0.01, f"{_AT}.optimizer.weight_decay", read=critic, off=switches.gae
        ),
        mapped(
            "critic.optim.lr_warmup_steps_ratio",
            0.0,
            f"{_AT}.schedule.warmup",
            read=critic,
            off=switches.gae,
        ),
        mapped(
            "critic.optim.warmup_style",
            "constant",
            f"{_AT}.schedule.type",
            read=critic,
            kind=one_of("constant", "cosine"),
            off=switches.gae,
        ),
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
            "critic.ppo_micro_batch_size_per_gpu",
            8,
            f"{_AT}.microbatch",
            read=critic,
            kind=WHOLE,
            off=_fixed,
            note="counts sequences",
        ),
        mapped(
            "critic.use_dynamic_bsz",
            "${actor_rollout_ref.actor.use_dynamic_bsz}",
            f"{_AT}.microbatch",
            read=critic,
            off=switches.gae,
        ),
        mapped("critic.ppo_max_token_len_per_gpu", 32768, f"{_AT}.microbatch", read=critic, off=_dynamic),
        mapped(
            "critic.ppo_epochs",
            "${actor_rollout_ref.actor.ppo_epochs}",
            f"{_AT}.passes",
            read=critic,
            kind=WHOLE,
            off=switches.gae,
        ),
        mapped("critic.grad_clip", 1.0, f"{_AT}.max_grad_norm", read=critic, off=switches.gae),
        mapped("critic.cliprange_value", 0.5, f"{_AT}.value_clip", read=critic, off=switches.gae),
    ),
)

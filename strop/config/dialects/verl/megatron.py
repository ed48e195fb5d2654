"""The optimizer keys that the page gives for Megatron, under `actor_rollout_ref.actor.optim`.

But for the weight decay they mean nothing under FSDP, and Megatron's own schedule is not built yet.
"""

from __future__ import annotations

from typing import Any

from strop.config.dialects.row import Row, mapped, refused
from strop.config.dialects.verl import switches

_INSTEAD = "Megatron's optimizer is not built yet; write actor_rollout_ref.actor.strategy=fsdp, and its keys"


def _megatron(name: str, default: Any) -> Row:
    return refused(f"actor_rollout_ref.actor.optim.{name}", default, _INSTEAD, off=switches.megatron)


ROWS = (
    _megatron("optimizer", "adam"),
    _megatron("clip_grad", 1.0),
    _megatron("lr_warmup_init", 0.0),
    _megatron("lr_decay_steps", None),
    _megatron("lr_decay_style", "linear"),
    _megatron("min_lr", 0.0),
    mapped("actor_rollout_ref.actor.optim.weight_decay", 0.01, "trainer.optimizer.weight_decay"),
    _megatron("weight_decay_incr_style", "constant"),
    _megatron("lr_wsd_decay_style", "exponential"),
    _megatron("lr_wsd_decay_steps", None),
    _megatron("use_checkpoint_opt_param_scheduler", False),
)

"""The optimizer keys that the page gives for Megatron, under `actor_rollout_ref.actor.optim`.

They mean nothing under FSDP, and Megatron's own schedule is not built yet.
"""

from __future__ import annotations

from typing import Any

from strop.config.dialects.row import refused
from strop.config.dialects.verl import switches

_INSTEAD = "Megatron's optimizer is not built yet; write actor_rollout_ref.actor.strategy=fsdp, and its keys"

_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("optimizer", "adam"),
    ("clip_grad", 1.0),
    ("lr_warmup_init", 0.0),
    ("lr_decay_steps", None),
    ("lr_decay_style", "linear"),
    ("min_lr", 0.0),
    ("weight_decay_incr_style", "constant"),
    ("lr_wsd_decay_style", "exponential"),
    ("lr_wsd_decay_steps", None),
    ("use_checkpoint_opt_param_scheduler", False),
)

ROWS = tuple(
    refused(f"actor_rollout_ref.actor.optim.{name}", default, _INSTEAD, off=switches.megatron)
    for name, default in _DEFAULTS
)

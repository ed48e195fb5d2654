"""Ledger rows of keys that scripts in verl's repository set and that no part of verl reads, or only a recipe's program
whose algorithm Strop does not have."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import UNSET, no_effect, not_on_page, refused
from strop.compat.ledger.value_types import ANY

_ACTOR, _LOSS = "actor_rollout_ref.actor", "actor_rollout_ref.actor.policy_loss"
NAMES = {
    f"{_ACTOR}.loss_mode": f"{_LOSS}.loss_mode",
    **{f"{_ACTOR}.{name}": f"{_LOSS}.{name}" for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")},
}
"""Keys that a recipe sets outside the section in which verl reads them, with the key in that section."""
_UNREAD = {
    f"{_ACTOR}.model_engine": f"{_ACTOR}.strategy and the config group model_engine name the engine",
    "actor_rollout_ref.model.enable_activation_offloading": "verl reads enable_activation_offload",
    "reward_model.param_offload": "verl has it in reward_model.megatron; a single process scores",
    "trainer.tensorboard_dir": "verl reads the variable TENSORBOARD_DIR; the events are in the run folder",
    "trainer.rl_logging_board_dir": "rollouts are recorded in the run folder",
    "trainer.log_freq": "metrics are written after every step",
    "trainer.worker_env.*": "set the variables in the shell that starts the run",
    **{
        f"trainer.{name}": "it sizes a store between verl's processes"
        for name in ("num_global_batch", "num_data_storage_units", "num_data_controllers")
    },
    "trainer.debug": "it starts a debugger in the recipe's process",
}
ROWS = not_on_page(
    *(no_effect(key, UNSET, why, value_type=ANY) for key, why in _UNREAD.items()),
    refused(
        "trainer.spo.enable",
        False,
        "SPO keeps a value of each prompt over the whole run and draws prompts by it; Strop has no such "
        "algorithm; leave it False, or write algorithm.adv_estimator=grpo alone",
    ),
    no_effect("trainer.spo.*", UNSET, "trainer.spo.enable is False", value_type=ANY),
)

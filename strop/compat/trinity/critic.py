"""Ledger rows of Trinity's critic: `model.critic_model_path` and verl's keys in
`trainer.trainer_config.critic`."""

from __future__ import annotations

from dataclasses import replace

from strop.compat.ledger.key_mapping import mapped, no_effect
from strop.compat.ledger.value_types import ANY, MAPPING, NUMBER, STRING, nullable
from strop.compat.trinity.embedded_verl import PREFIX, embedded_converter, verl_row
from strop.compat.trinity.presets import without_critic
from strop.compat.verl.critic_converters import critic

_ACTOR = f"{PREFIX}actor_rollout_ref.actor"
TOTAL_STEPS = "Trinity overwrites it; write trainer.total_steps"
MODEL = mapped(
    "model.critic_model_path",
    "${model.model_path}",
    "algorithm.critic.model",
    "algorithm.critic.model.path",
    read=embedded_converter(critic),
    value_type=nullable(STRING),
    inactive=without_critic,
    note="empty means the policy's model",
)
ROWS = (
    verl_row("critic.strategy", f"${{{_ACTOR}.strategy}}"),
    verl_row("critic.optim.lr", 1e-5),
    verl_row("critic.optim.lr_warmup_steps_ratio", 0.0),
    replace(verl_row("critic.optim.min_lr_ratio", None), value_type=nullable(NUMBER)),
    verl_row("critic.optim.warmup_style", "constant"),
    no_effect(f"{PREFIX}critic.optim.total_training_steps", -1, TOTAL_STEPS, value_type=ANY),
    mapped(
        f"{PREFIX}critic.model.override_config",
        {},
        "algorithm.critic.model.override",
        read=embedded_converter(critic),
        value_type=MAPPING,
        inactive=without_critic,
    ),
    verl_row("critic.model.external_lib", f"${{{PREFIX}actor_rollout_ref.model.external_lib}}"),
    verl_row("critic.model.enable_gradient_checkpointing", True),
    verl_row("critic.model.use_remove_padding", False),
    verl_row("critic.model.fsdp_config.param_offload", False),
    verl_row("critic.model.fsdp_config.optimizer_offload", False),
    verl_row("critic.model.fsdp_config.wrap_policy.min_num_params", 0),
    verl_row("critic.model.fsdp_config.fsdp_size", -1),
    replace(
        verl_row("actor_rollout_ref.actor.fsdp_config.forward_prefetch", False),
        key=f"{PREFIX}critic.model.fsdp_config.forward_prefetch",
        inactive=without_critic,
    ),
    verl_row("critic.ppo_micro_batch_size_per_gpu", 8),
    verl_row("critic.forward_micro_batch_size_per_gpu", f"${{{PREFIX}critic.ppo_micro_batch_size_per_gpu}}"),
    verl_row("critic.use_dynamic_bsz", f"${{{_ACTOR}.use_dynamic_bsz}}"),
    verl_row("critic.ppo_max_token_len_per_gpu", 32768),
    verl_row("critic.forward_max_token_len_per_gpu", f"${{{PREFIX}critic.ppo_max_token_len_per_gpu}}"),
    verl_row("critic.ulysses_sequence_parallel_size", 1),
    verl_row("critic.ppo_epochs", f"${{{_ACTOR}.ppo_epochs}}"),
    verl_row("critic.shuffle", f"${{{_ACTOR}.shuffle}}"),
    verl_row("critic.grad_clip", 1.0),
    verl_row("critic.cliprange_value", 0.5),
)

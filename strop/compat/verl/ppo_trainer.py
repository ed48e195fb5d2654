"""Ledger and reader of verl's RL configuration: `ppo_trainer.yaml` with `key=value` overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from strop.compat.hydra import ConfigSelection, read_command_line, select
from strop.compat.ledger.key_mapping import (
    KeyMapping,
    KeyOwnerHint,
    Ledger,
    aliases,
    no_key_owner,
    unset_by_null,
)
from strop.compat.ledger.reader import read_dialect
from strop.compat.verl import (
    actor,
    algorithm,
    async_training,
    critic,
    data,
    distillation,
    engine,
    model,
    multi_turn,
    optim,
    policy_loss,
    reward,
    rollout,
    rollout_correction,
    trainer,
)
from strop.compat.verl.hydra import PPO
from strop.compat.verl.optim import MUON
from strop.config.load.loader import LoadedRun
from strop.config.machine import here_requested

_LOSS = "actor_rollout_ref.actor.policy_loss"
MISPLACED = {
    "actor_rollout_ref.actor.loss_mode": f"{_LOSS}.loss_mode",
    **{
        f"actor_rollout_ref.actor.{name}": f"{_LOSS}.{name}"
        for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
    },
}
"""Keys that a recipe sets outside the section in which verl reads them, with the key in that section."""
_BUFFER = "reward_model.reward_kwargs.overlong_buffer_cfg"
_ACTOR = "actor_rollout_ref.actor"
OTHER_NAMES = {
    **MISPLACED,
    **{
        f"reward_model.overlong_buffer.{name}": f"{_BUFFER}.{name}"
        for name in ("enable", "len", "penalty_factor", "log")
    },
    **{
        f"reward.reward_kwargs.overlong_buffer_cfg.{name}": f"{_BUFFER}.{name}"
        for name in ("enable", "len", "penalty_factor", "log")
    },
    "reward.reward_kwargs.max_resp_len": "reward_model.reward_kwargs.max_resp_len",
    "reward.custom_reward_function.path": "custom_reward_function.path",
    "reward.custom_reward_function.name": "custom_reward_function.name",
    **{
        f"reward.sandbox_fusion.{name}": f"reward_model.sandbox_fusion.{name}"
        for name in ("url", "max_concurrent", "memory_limit_mb")
    },
    "reward.reward_manager.name": "reward_model.reward_manager",
    "actor_rollout_ref.model.tokenizer_path": "data.tokenizer",
    "reward.reward_model.enable": "reward_model.enable",
    "reward.reward_model.model_path": "reward_model.model.path",
    f"{_ACTOR}.optim.lr_scheduler_type": f"{_ACTOR}.optim.warmup_style",
    f"{_ACTOR}.optim.name": f"{_ACTOR}.optim.optimizer",
    f"{_ACTOR}.checkpoint.contents": f"{_ACTOR}.checkpoint.save_contents",
    "critic.checkpoint.contents": "critic.checkpoint.save_contents",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
    "critic.optim.lr_scheduler_type": "critic.optim.warmup_style",
    "rollout.total_epochs": "trainer.total_epochs",
    "rollout.test_freq": "trainer.test_freq",
}
"""Keys of other versions that mean the same as a key of the ledger, with that key."""
_SINCE = {
    "0.5": """
        actor_rollout_ref.profiler critic.loss_agg_mode
        actor_rollout_ref.rollout.agent actor_rollout_ref.rollout.multi_turn.max_assistant_turns
        actor_rollout_ref.rollout.multi_turn.max_user_turns actor_rollout_ref.rollout.multi_turn.max_parallel_calls
        actor_rollout_ref.rollout.multi_turn.interaction_config_path
        actor_rollout_ref.rollout.multi_turn.max_tool_response_length
        actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side
        actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode
        actor_rollout_ref.rollout.trace actor_rollout_ref.model.exclude_modules
        actor_rollout_ref.rollout.update_weights_bucket_megabytes data.dataloader_num_workers data.datagen
        data.sampler data.return_multi_modal_inputs trainer.esi_redundant_time trainer.npu_profile
        trainer.use_legacy_worker_impl actor_rollout_ref.actor.tis_imp_ratio_cap
    """,
    "0.6": """
        actor_rollout_ref.ref.model actor_rollout_ref.rollout.skip_rollout actor_rollout_ref.rollout.skip_dump_dir
        critic.enable critic.loss_scale_factor critic.optim.optimizer_impl critic.optim.override_optimizer_config
        algorithm.rollout_is algorithm.rollout_is_threshold algorithm.rollout_is_threshold_lower
        algorithm.rollout_is_level algorithm.rollout_is_mode algorithm.rollout_is_veto_threshold
        actor_rollout_ref.actor.use_rollout_log_probs
        ray_kwargs model_engine global_profiler transfer_queue algorithm.rollout_correction
        data.apply_chat_template_kwargs data.image_patch_size data.tool_config_path data.train_max_samples
        data.val_max_samples reward_model.enable_resource_pool reward_model.n_gpus_per_node reward_model.nnodes
        actor_rollout_ref.actor.freeze_vision_tower actor_rollout_ref.actor.use_fused_kernels
        actor_rollout_ref.actor.use_remove_padding actor_rollout_ref.actor.veomni actor_rollout_ref.ref.veomni
        actor_rollout_ref.actor.optim.lr_scheduler_type actor_rollout_ref.actor.optim.optimizer_impl
        actor_rollout_ref.actor.optim.override_optimizer_config actor_rollout_ref.model.hf_config_path
        actor_rollout_ref.model.lora_adapter_path actor_rollout_ref.model.tokenizer_path
        actor_rollout_ref.rollout.multi_turn.num_repeat_rollouts
        actor_rollout_ref.rollout.cudagraph_capture_sizes actor_rollout_ref.rollout.data_parallel_size
        actor_rollout_ref.rollout.enable_prefix_caching actor_rollout_ref.rollout.expert_parallel_size
        actor_rollout_ref.rollout.server actor_rollout_ref.rollout.sglang_rollout_mode reward_model.model.type
        rollout.total_epochs rollout.test_freq async_training.use_rollout_log_probs
        async_training.compute_prox_log_prob
        actor_rollout_ref.rollout.over_sample_rate actor_rollout_ref.rollout.pipeline_model_parallel_size
        actor_rollout_ref.rollout.prometheus actor_rollout_ref.rollout.skip_tokenizer_init
        critic.optim.lr_scheduler_type
    """,
    "0.7": """
        actor_rollout_ref.actor.optim.name actor_rollout_ref.actor.optim.eps critic.optim.eps
        actor_rollout_ref.actor.optim.decay_type critic.optim.decay_type critic.optim.name
        actor_rollout_ref.actor.optim.min_lr_factor critic.optim.min_lr_factor actor_rollout_ref.ref.optim
        actor_rollout_ref.actor.sum_pi_squared_checkpointing critic.optim.lr_min critic.optim.lr_start
        critic.optim.lr_decay_ratio
        algorithm.gdpo_reward_keys algorithm.gdpo_reward_weights
        actor_rollout_ref.actor.calculate_entropy actor_rollout_ref.actor.loss_scale_factor
        actor_rollout_ref.actor.rollout_n actor_rollout_ref.actor.router_replay actor_rollout_ref.ref.router_replay
        actor_rollout_ref.ref.rollout_n actor_rollout_ref.actor.tau_neg actor_rollout_ref.actor.tau_pos
        actor_rollout_ref.actor.gvpo_beta
        actor_rollout_ref.model.lora actor_rollout_ref.model.tiled_mlp actor_rollout_ref.rollout.logprobs_mode
        actor_rollout_ref.rollout.enable_rollout_routing_replay actor_rollout_ref.rollout.quantization
        actor_rollout_ref.rollout.quantization_config_file algorithm.rollout_correction.loss_type
        reward_model.num_workers reward_model.rollout reward_model.reward_loop_source
        reward_model.reward_loop_module_path reward_model.reward_loop_class_name
    """,
    "0.8": """
        actor_rollout_ref.rollout.skip critic.model.mtp critic.optim.zero_indexed_step
        distillation reward sandbox_fusion critic.fsdp critic.veomni data.audio_key data.function_tool_path
        data.mm_processor_kwargs actor_rollout_ref.actor.calculate_sum_pi_squared actor_rollout_ref.actor.qat
        actor_rollout_ref.actor.fsdp_config.qat actor_rollout_ref.actor.use_prefix_grouper
        actor_rollout_ref.actor.checkpoint.strict actor_rollout_ref.actor.checkpoint.mbridge_config
        actor_rollout_ref.actor.optim.zero_indexed_step actor_rollout_ref.actor.torchtitan
        actor_rollout_ref.ref.torchtitan actor_rollout_ref.model.mtp actor_rollout_ref.rollout.checkpoint_engine
        actor_rollout_ref.rollout.multi_turn.function_tool_path
        actor_rollout_ref.actor.mindspeed actor_rollout_ref.ref.mindspeed critic.mindspeed
        actor_rollout_ref.rollout.disaggregation actor_rollout_ref.rollout.mtp actor_rollout_ref.rollout.qat
        actor_rollout_ref.rollout.n_gpus_per_node actor_rollout_ref.rollout.nnodes
        actor_rollout_ref.rollout.scheduling_policy
    """,
    "0.9": " ".join(MUON)
    + """
        data.continuous_token async_training rollout.n rollout.total_rollout_steps
        critic.optim.use_precision_aware_optimizer critic.optim.main_grads_dtype
        critic.optim.exp_avg_dtype critic.optim.exp_avg_sq_dtype
        critic.optim.use_layer_wise_distributed_optimizer
        skip trainer.use_v1 trainer.v1 actor_rollout_ref.actor.entropy_from_logits_chunk_size
        actor_rollout_ref.actor.pad_to_length actor_rollout_ref.ref.pad_to_length
        actor_rollout_ref.ref.entropy_from_logits_chunk_size actor_rollout_ref.actor.policy_loss.dro_beta
        actor_rollout_ref.actor.optim.use_precision_aware_optimizer actor_rollout_ref.actor.optim.main_grads_dtype
        actor_rollout_ref.actor.optim.exp_avg_dtype actor_rollout_ref.actor.optim.exp_avg_sq_dtype
        actor_rollout_ref.actor.optim.use_layer_wise_distributed_optimizer
        algorithm.filter_groups.max_inflight_gen_batches actor_rollout_ref.rollout.full_determinism
        actor_rollout_ref.rollout.moe_load_balance_metrics_interval actor_rollout_ref.rollout.seed
    """,
    "0.9.1": "actor_rollout_ref.rollout.router_config_path trainer.checkpoint_callback_class",
}
"""Versions later than 0.3.1, each with the keys and sections that it adds."""
_UNTIL = {
    "0.3": """
        actor_rollout_ref.ref.param_offload actor_rollout_ref.actor.checkpoint.contents critic.checkpoint.contents
        trainer.val_generations_to_log_to_wandb
    """,
    "0.4": """
        actor_rollout_ref.rollout.multi_turn.max_turns
        actor_rollout_ref.rollout.multi_turn.enable_tokenization_sanity_check
        ray_init actor_rollout_ref.actor.load_weight actor_rollout_ref.ref.load_weight trainer.profile_steps
        trainer.controller_nsight_options trainer.worker_nsight_options actor_rollout_ref.rollout.layer_name_map
        trainer.remove_previous_ckpt_in_save reward_model.overlong_buffer
    """,
    "0.5": """
        actor_rollout_ref.profiler
        actor_rollout_ref.actor.profile actor_rollout_ref.ref.profile trainer.npu_profile
        actor_rollout_ref.actor.tis_imp_ratio_cap actor_rollout_ref.rollout.multi_turn.completion_callback
    """,
    "0.6": """
        actor_rollout_ref.ref.model
        algorithm.rollout_is algorithm.rollout_is_threshold algorithm.rollout_is_threshold_lower
        algorithm.rollout_is_level algorithm.rollout_is_mode algorithm.rollout_is_veto_threshold
        algorithm.rollout_correction.use_policy_gradient reward_model.model.type
    """,
    "0.7": """
        actor_rollout_ref.rollout.skip_rollout actor_rollout_ref.rollout.skip_dump_dir
        actor_rollout_ref.rollout.server actor_rollout_ref.rollout.sglang_rollout_mode
        async_training.use_rollout_log_probs async_training.compute_prox_log_prob
        rollout.total_epochs rollout.test_freq
        actor_rollout_ref.actor.sum_pi_squared_checkpointing
        actor_rollout_ref.rollout.update_weights_bucket_megabytes critic.model.fsdp_config data.datagen data.sampler
        reward_model.max_length reward_model.megatron reward_model.micro_batch_size
        reward_model.micro_batch_size_per_gpu reward_model.model.fsdp_config reward_model.model.input_tokenizer
        actor_rollout_ref.rollout.multi_turn.interaction_config_path
        reward_model.profiler reward_model.reward_kwargs trainer.use_legacy_worker_impl
        algorithm.rollout_correction.rollout_rs_threshold_lower
        algorithm.rollout_correction.rollout_token_veto_threshold
    """,
    "0.8": "actor_rollout_ref.rollout.skip critic.load_weight",
    "0.9.0": "actor_rollout_ref.actor.megatron.grad_offload",
}
"""Versions, each with the keys and sections that the next version does not have."""


def dated(rows: Iterable[KeyMapping]) -> tuple[KeyMapping, ...]:
    """The rows with the first and the last version that has each key."""
    return tuple(
        replace(row, since=_version_of(row.key, _SINCE), until=_version_of(row.key, _UNTIL)) for row in rows
    )


def _version_of(key: str, table: Mapping[str, str]) -> str:
    """The version of the longest key or section of the table that contains the key."""
    versions = {name: version for version, names in table.items() for name in names.split()}
    parts = key.removesuffix(".*").split(".")
    sections = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((versions[name] for name in sections if name in versions), "")


NULL_IS_UNSET = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "reward_model.micro_batch_size_per_gpu",
    "reward_model.model.path",
    "reward_model.model.trust_remote_code",
    "reward_model.reward_manager",
    "data.seed",
    *(
        f"{at}.optim.{name}"
        for at in ("actor_rollout_ref.actor", "critic")
        for name in ("warmup_style", "min_lr_ratio")
    ),
)
"""Keys that are null in verl's files, where verl takes a default or does not read them."""
_SECTIONS = (
    *(data, async_training, model, actor, policy_loss, rollout, optim, critic, reward, algorithm, trainer),
    *(distillation, rollout_correction, multi_turn),
)
_ROWS = unset_by_null((row for section in _SECTIONS for row in section.ROWS), NULL_IS_UNSET)
_ALIASES = aliases(_ROWS, OTHER_NAMES)
LEDGER = Ledger("verl", dated(map(engine.with_gpus, (*_ROWS, *_ALIASES))))


def read_verl(
    overrides: Sequence[str],
    *,
    config: Path | None = None,
    selection: ConfigSelection | None = None,
    here: bool = False,
    key_owner: KeyOwnerHint = no_key_owner,
) -> LoadedRun:
    """Read the arguments of `python -m verl.trainer.main_ppo`: overrides, applied to `config` if it is given.

    Raises ConfigError for a key or value that is not accepted, and PlacementError for hardware and engines
    that this machine does not have, unless `here` or STROP_HERE overrides them.
    """
    selection = select(config, selection)
    tree = read_command_line(LEDGER, PPO, "ppo_trainer", overrides, selection, key_owner)
    return read_dialect(LEDGER, tree, here=here_requested(here), key_owner=key_owner)

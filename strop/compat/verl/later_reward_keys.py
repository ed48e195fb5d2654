"""Ledger rows of verl's keys of rewards that the seed page does not list: keys of later versions, and of recipes."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import (
    UNSET,
    mapped,
    no_effect,
    not_on_page,
    placement,
    refused,
)
from strop.compat.ledger.value_types import ANY
from strop.compat.verl import switches
from strop.compat.verl.later_keys import empty
from strop.compat.verl.reward import reward

ROWS = not_on_page(
    *(
        no_effect(key, default, why, value_type=ANY)
        for key, default, why in (
            (
                "reward_model.launch_reward_fn_async",
                False,
                "responses are always scored while others are sampled",
            ),
            ("reward_model.strategy", UNSET, "a single process scores"),
            ("reward_model.num_workers", UNSET, "responses are scored in parallel"),
            ("reward.num_workers", 8, "responses are scored in parallel"),
            ("reward_model.use_dynamic_bsz", UNSET, "it changes only memory use"),
            ("reward_model.forward_max_token_len_per_gpu", UNSET, "it changes only memory use"),
            ("reward_model.ulysses_sequence_parallel_size", UNSET, "a single process scores"),
            ("reward_model.nccl_timeout", UNSET, "a single process scores"),
            ("reward_model.load_weight", UNSET, "the weights are always loaded"),
            ("reward_model.profiler.*", UNSET, "Strop does not profile a run"),
            ("reward_model.megatron.*", UNSET, "a single process scores"),
            ("reward_model.model.use_shm", UNSET, "the model is read from its folder"),
            ("reward_model.model.use_remove_padding", UNSET, "sequences are always packed"),
            ("reward_model.model.use_fused_kernels", UNSET, "Strop's own kernels are used"),
            ("reward_model.model.fsdp_config.*", UNSET, "a single process scores"),
            ("reward_model.micro_batch_size", None, "write reward_model.micro_batch_size_per_gpu"),
            ("reward_model.reward_loop_source", UNSET, "reward_manager names the manager"),
        )
    ),
    *(
        placement(
            f"{section}.{name}",
            UNSET,
            "the reward model runs in a process of its own on this machine",
            supported=lambda foreign, value: not value,
            value_type=ANY,
            inactive=switches.reward_model,
        )
        for section in ("reward_model", "reward.reward_model")
        for name in ("enable_resource_pool", "n_gpus_per_node", "nnodes", "rollout.*")
    ),
    refused(
        "reward_model.model.type",
        "discriminative",
        "a generative model is asked by a reward function; write a run file with reward.judges",
        inactive=switches.reward_model,
    ),
    no_effect("sandbox_fusion.*", UNSET, "reward.sandbox_fusion decides", value_type=ANY),
    *(
        empty(
            f"{section}.{name}",
            "Strop does not run verl's reward managers; pass a function's options as "
            "custom_reward_function.reward_kwargs",
        )
        for section, name in (
            ("reward_model", "reward_kwargs.*"),
            ("reward", "reward_kwargs.*"),
        )
    ),
    *(
        mapped(
            f"{section}.reward_kwargs.*",
            UNSET,
            "reward.functions.0.args",
            read=reward,
            inactive=switches.custom_function,
            note="keyword arguments of the function",
        )
        for section in ("custom_reward_function", "reward.custom_reward_function")
    ),
    refused(
        "reward.reward_manager.source",
        "register",
        "Strop does not run a reward manager of your own; write a reward function",
    ),
    no_effect("reward.reward_manager.module.*", UNSET, "the manager is a registered one", value_type=ANY),
    empty("reward_model.reward_loop_module_path", "write a reward function"),
    empty("reward_model.reward_loop_class_name", "write a reward function"),
)

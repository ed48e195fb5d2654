"""Configurations that verl ships, by the program that composes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.hydra import ShippedConfig, ShippedConfigs

_ENGINES = ("dp", "megatron", "veomni", "torchtitan", "mlite", "mindspeed")
_STRATEGIES = {"dp": "fsdp", **{engine: engine for engine in _ENGINES if engine != "dp"}}
_WORKERS = {"actor": "actor_rollout_ref.actor", "ref": "actor_rollout_ref.ref", "critic": "critic"}
_SFT_ENGINES = ("fsdp", "megatron", "veomni", "torchtitan", "automodel", "mlite", "mindspeed")
"""Engines of verl itself, with that of MindSpeed in 0.8 and 0.9, and Megatron Lite, whose configurations are in a
package of its own."""
_SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "veomni": {"lr_scheduler_type": "cosine"},
    "automodel": {"lr": 1e-5, "lr_scheduler_type": "cosine", "min_lr_ratio": 0.01, "init_lr_ratio": 0.1},
}
"""Options of an engine's optimizer that differ from FSDP's."""
_PACKAGES = ("pkg://verl.trainer.config", "file://verl/trainer/config", "pkg://verl_mlite.config")


def _engine(name: str) -> ShippedConfig:
    return ShippedConfig({"model_engine": name}, package="_global_")


def _worker(role: str, engine: str) -> ShippedConfig:
    """FSDP's actor, critic and reference model are the ledger's defaults."""
    if engine == "dp" or role == "ref":
        return ShippedConfig()
    schedule = {"optim.lr_scheduler_type": "cosine"} if engine == "veomni" else {}
    return ShippedConfig({"strategy": _STRATEGIES[engine], **schedule})


_GROUPS = {
    **{f"model_engine/{engine}": _engine(engine) for engine in _ENGINES if engine != "dp"},
    "model_engine/dp": ShippedConfig(),
    **{f"{role}/{engine}_{role}": _worker(role, engine) for role in _WORKERS for engine in _ENGINES},
    **{f"{group}/{group}": ShippedConfig() for group in ("rollout", "reward", "distillation")},
    "model/hf_model": ShippedConfig(),
    "data/legacy_data": ShippedConfig(),
    "algorithm/rollout_correction": ShippedConfig(),
}
_PPO = ShippedConfig(
    defaults=(
        {"model_engine": "dp"},
        *({f"{role}@{package}": f"${{model_engine}}_{role}"} for role, package in _WORKERS.items()),
        "_self_",
    )
)
_PPO_MEGATRON = ShippedConfig(
    defaults=(
        "ppo_trainer",
        "_self_",
        *({f"override {role}@{package}": f"megatron_{role}"} for role, package in _WORKERS.items()),
    )
)
_DAPO = {
    "data.gen_batch_size": "${data.train_batch_size}",
    "reward_model.reward_manager": "dapo",
    "trainer.project_name": "verl-dapo",
}
_PRIME = {
    "data.filter_accuracy": True,
    "data.truncation": "right",
    "actor_rollout_ref.rollout.mode": "sync",
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.actor.entropy_coeff": 0.001,
    "algorithm.adv_estimator": "rloo",
    "reward_model.model.update": "before",
    "trainer.project_name": "prime",
    "trainer.experiment_name": "examples",
    "trainer.val_before_train": False,
}
_SPPO = {
    "actor_rollout_ref.actor.sppo_eta": 1.0,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 15,
    "actor_rollout_ref.rollout.name": "sglang",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.5,
    "actor_rollout_ref.rollout.val_kwargs.n": 2,
    "algorithm.sppo_eta": 1.0,
    "trainer.log_val_generations": 0,
}
_SPIN = {
    "actor_rollout_ref.actor.dpo_beta": 0.1,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 15,
    "actor_rollout_ref.rollout.name": "sglang",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.5,
    "actor_rollout_ref.rollout.val_kwargs.n": 2,
    "algorithm.adv_estimator": None,
    "trainer.log_val_generations": 0,
    "trainer.ref_update_freq": 1,
}
_TRANSFER = "verl-dapo-transferqueue"
_ASYNC = {
    "actor_rollout_ref.hybrid_engine": False,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "algorithm.rollout_correction.bypass_mode": True,
}
"""Options of `one_step_off_policy`, whose scripts also set `hybrid_engine`, which its program requires to be False."""
_FULLY_ASYNC = _ASYNC | {
    "async_training.staleness_threshold": 0.1,
    "async_training.trigger_parameter_sync_step": 4,
    "async_training.require_batches": 1,
    "async_training.partial_rollout": True,
    "rollout.total_rollout_steps": 100,
}
"""Options of `fully_async_policy`."""


def _recipe(base: str, values: Mapping[str, Any]) -> ShippedConfig:
    return ShippedConfig(values, (base, "_self_"))


PPO = ShippedConfigs(
    "verl",
    {
        "ppo_trainer": _PPO,
        "ppo_megatron_trainer": _PPO_MEGATRON,
        "dapo_trainer": _recipe("ppo_trainer", _DAPO),
        "dapo_megatron_trainer": _recipe("ppo_megatron_trainer", _DAPO),
        "dapo_transfer_queue_trainer": _recipe(
            "ppo_megatron_trainer", _DAPO | {"trainer.project_name": _TRANSFER}
        ),
        "prime_trainer": _recipe("ppo_trainer", _PRIME),
        "entropy_trainer": _recipe("ppo_trainer", _DAPO | {"trainer.project_name": "verl-entropy"}),
        "sppo_trainer": _recipe("ppo_trainer", _SPPO),
        "spin_trainer": _recipe("ppo_trainer", _SPIN),
        "transfer_queue_ppo_trainer": _recipe("ppo_trainer", {"transfer_queue.enable": True}),
        "one_step_off_ppo_trainer": _recipe("ppo_trainer", _ASYNC),
        "one_step_off_ppo_megatron_trainer": _recipe("ppo_megatron_trainer", _ASYNC),
        "fully_async_ppo_trainer": _recipe("ppo_trainer", _FULLY_ASYNC),
        "fully_async_ppo_megatron_trainer": _recipe("ppo_megatron_trainer", _FULLY_ASYNC),
        **_GROUPS,
    },
    _PACKAGES,
)
"""Configurations of `verl.trainer.main_ppo` and of the recipes built on it."""
SFT = ShippedConfigs("verl", {"sft_trainer": ShippedConfig()}, _PACKAGES)
"""Configuration of `verl.trainer.fsdp_sft_trainer`."""
SFT_ENGINE = ShippedConfigs(
    "verl",
    {
        "sft_trainer_engine": ShippedConfig(
            defaults=(
                {"model@model": "hf_model"},
                {"engine@engine": "fsdp"},
                {"optim@optim": "fsdp"},
                "_self_",
            )
        ),
        **{
            f"engine/{engine}": ShippedConfig({} if engine == "fsdp" else {"strategy": engine})
            for engine in _SFT_ENGINES
        },
        **{f"optim/{engine}": ShippedConfig(_SCHEDULES.get(engine, {})) for engine in _SFT_ENGINES},
        "model/hf_model": ShippedConfig(),
        "profiler/profiler": ShippedConfig(),
    },
    _PACKAGES,
)
"""Configuration of `verl.trainer.sft_trainer`, whose engine is a config group."""
_SERVER = {
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.top_p": 1,
    "actor_rollout_ref.rollout.prompt_length": 512,
    "rollout.top_k": -1,
}
"""Options of `main_generation_server`, which reads `ppo_trainer`, that differ from those of `generation`."""
GENERATION = ShippedConfigs(
    "verl", {"generation": ShippedConfig(), "generation_server": ShippedConfig(_SERVER)}, _PACKAGES
)
EVALUATION = ShippedConfigs("verl", {"evaluation": ShippedConfig()}, _PACKAGES)

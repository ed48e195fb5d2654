"""Hypothesis strategies of configurations: any mapped rows of a ledger with values of their types."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.key_mapping import UNSET, KeyMapping
from strop.compat.registry import LEDGERS

Values = dict[str, Any]
"""Values by dotted key."""

_MODEL, _ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
_TASKSET = "buffer.explorer_input.taskset"
_EVAL = "buffer.explorer_input.eval_tasksets"
_EXPERIENCE = "buffer.trainer_input.experience_buffer"
_GIVEN = {"mode": "train", f"{_EXPERIENCE}.storage_type": "file", f"{_EXPERIENCE}.path": "a.jsonl"}
_LIMITS = {"model.model_path": "m", "model.max_prompt_tokens": 60, "model.max_response_tokens": 70}
_FILES = {"data_train_files": "t.parquet", "data_val_files": "v.parquet", "actor_model_path": "m"}

BASES: dict[str, Values] = {
    "verl": {f"{_MODEL}.path": "m", "algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 4},
    "verl-sft": {"model.partial_pretrain": "m"},
    "trinity": {
        **_LIMITS,
        "algorithm.algorithm_type": "grpo",
        f"{_TASKSET}.path": "t.jsonl",
        "buffer.default_reward_fn_type": "math_reward",
    },
    "trinity sft": {**_LIMITS, **_GIVEN, "algorithm.algorithm_type": "sft"},
    "trinity dpo": {**_LIMITS, **_GIVEN, "algorithm.algorithm_type": "dpo"},
    "trl": {"model_name_or_path": "m", "dataset_name": "d", "scale_rewards": "group"},
    "trl-rloo": {"model_name_or_path": "m", "dataset_name": "d", "normalize_advantages": False},
    "trl-sft": {"model_name_or_path": "m", "dataset_name": "d", "completion_only_loss": True},
    "trl-dpo": {"model_name_or_path": "m", "dataset_name": "d", "label_smoothing": 0.0},
    "trl-kto": {"model_name_or_path": "m", "dataset_name": "d", "desirable_weight": 1.0},
    "trl-reward": {"model_name_or_path": "m", "dataset_name": "d", "center_rewards_coefficient": None},
    "trl-cpo": {"model_name_or_path": "m", "dataset_name": "d", "cpo_alpha": 1.0},
    "trl-orpo": {"model_name_or_path": "m", "dataset_name": "d", "padding_value": None},
    "rft_trainer": {**_FILES, "actor_rft_mini_batch_size": 64},
    "verl_trainer": {**_FILES, "actor_ppo_mini_batch_size": 64},
    "grpo": {
        "model_name_or_path": "m",
        "dataset_train_split": "t.jsonl",
        "dataset_validation_split": "v.jsonl",
        "deepspeed_config": "ds.json",
    },
}
"""Values with which every generated configuration starts."""

_POOL: tuple[Any, ...] = (
    True,
    False,
    None,
    0,
    1,
    2,
    4,
    32,
    64,
    512,
    1.0,
    0.5,
    0.05,
    2e-6,
    "a.b",
    "x",
    ["x", "y"],
)
_POOLS: dict[str, tuple[Any, ...]] = {
    f"{_ACTOR}.checkpoint.save_contents": (
        ["model"],
        ["model", "optimizer", "extra", "hf_model"],
        ["model", "extra"],
    ),
    "trainer.logger": ("console", ["console"], ["console", "tensorboard"], ["tensorboard"]),
    f"{_ACTOR}.policy_loss.loss_mode": ("vanilla", "gspo", "gpg", "cispo", "sapo", "geo_mean", "dppo_tv"),
    f"{_ACTOR}.optim.optimizer": ("adam",),
    "actor_rollout_ref.model.lora.target_modules": (["linear_qkv"], ["linear_proj", "linear_fc2"]),
    "algorithm.adv_estimator": ("gae", "grpo", "rloo", "remax", "reinforce_plus_plus"),
    "data.gen_batch_size": (None,),
    "trainer.save_freq": (-1, 3),
    "trainer.test_freq": (-1, 2),
    "custom_reward_function.path": (None, "score.py"),
    "data.multiturn.messages_key": ("messages", "turns"),
    "data.max_length": (2, 101, 4096),
    "data.truncation": ("error", "right", "left", "middle"),
    f"{_ACTOR}.optim.betas": ([0.9, 0.95], [0.8, 0.999]),
    "optim.betas": ([0.9, 0.95], [0.8, 0.999]),
    "actor_model_target_modules": ("all-linear", "[q_proj,v_proj]"),
    "actor_model_exclude_modules": (".*visual.*", "[lm_head]"),
    "checkpoint_root_dir": ("./checkpoints", "elsewhere"),
    "output_model_path": ("out", "a/b"),
    "pypi_packages_override": ("einops==0.8.0", "einops,tabulate>=0.9"),
    "model.max_model_len": (None, 130, 4096),
    "model.min_response_tokens": (0, 1, 5),
    "monitor.monitor_type": ("tensorboard",),
    "max_steps": (-1, 12, 300),
    "loss_type": ("dapo", "grpo", "dr_grpo", "sapo"),
    "importance_sampling_level": ("token",),
    "lr_scheduler_kwargs": (None,),
    "steps_per_generation": (None, 2),
    "generation_batch_size": (None, 32),
    "gradient_accumulation_steps": (1, 2),
    "num_processes": (1, 2),
    "reward_funcs": (["rewards.right"], ["a.b", "c.d"]),
    "reward_weights": (None,),
    "lora_target_modules": (["q_proj", "v_proj"], "all-linear"),
    "report_to": ("none", "wandb", ["tensorboard", "mlflow"]),
    "chat_template_kwargs": (None, {"enable_thinking": False}),
    "warmup_steps": (0, 0.1, 20),
    "save_steps": (500, 20),
    "eval_steps": (None, 50),
    "logging_steps": (10,),
    "per_device_train_batch_size": (8, 16),
    "num_generations": (2, 4),
    "epsilon": (0.2, 0.5),
    "top_p": (1, 0.9),
    "rollout_top_p": (1, 0.9),
    "rollout_val_top_p": (1, 0.9),
    "data_train_batch_size": (512, 128),
    "rollout_n": (2, 5),
    "num_train_epochs": (1, 2.5),
    "trainer_total_epochs": (1, 3),
    "total_training_steps": (5, 100),
}


def _values(row: KeyMapping) -> tuple[Any, ...]:
    """Candidate values of a row: its default, the values that its type names, and those of the pool that its
    type accepts."""
    if row.key in _POOLS:
        return _POOLS[row.key]
    key = row.key.removeprefix("trainer.trainer_config.")
    if key in _POOLS:
        return _POOLS[key]
    own = [] if row.default is UNSET or "${" in str(row.default) else [row.default]
    words = row.value_type.description.removesuffix(", or null").split(" or ")
    found = [value for value in (*own, *words, *_POOL) if row.value_type.accepts(value)]
    if row.value_type.description == "anything":
        found = own
    return tuple(found) or (None,)


_NOT_WRITTEN = {
    "verl_trainer": ("data_image_key",),
}
"""Keys that a dialect reads, and that conversion to it reports as not supported."""


def rows_of(dialect: str) -> list[KeyMapping]:
    """The rows that are drawn: mapped, and no section of others. One reward scores all tasks of a run, and
    stages would make several of it."""
    ledger = LEDGERS[dialect]
    rows = [row for row in ledger.rows if row.disposition == "mapped" and "*" not in row.key]
    return [
        row
        for row in rows
        if not ledger.is_section(row.key)
        and not row.key.startswith("stages.")
        and not row.key.endswith(("default_reward_fn_type", "trainer_config_path"))
    ]


@st.composite
def configurations(draw: st.DrawFn, name: str) -> Values:
    """A base, and up to eight further keys; in verl's, which is not only for grpo, they come before it."""
    rows = rows_of(name.split()[0])
    chosen = draw(st.lists(st.sampled_from(rows), max_size=8, unique_by=lambda row: row.key))
    drawn = {row.key: draw(st.sampled_from(_values(row))) for row in chosen}
    drawn = {key: value for key, value in drawn.items() if key not in _NOT_WRITTEN.get(name, ())}
    if name in COMPONENTS:
        drawn = {key: value for key, value in drawn.items() if value is not None}
    if any(key.startswith(_EVAL) for key in drawn):
        drawn |= {f"{_EVAL}.0.path": "e.jsonl", "buffer.default_reward_fn_type": "math_reward"}
    return {**BASES[name], **drawn} if name == "verl" else {**drawn, **BASES[name]}

"""Names of options in TRL, verl, Trinity-RFT and transformers, with what to write in a run file for them.

They are found by their last part, wherever they are written: `rollout.n`, `algorithm.num_generations`. `<8>` is an
example, which the number that was written replaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ROLLOUTS = "algorithm.rollouts_per_task=<8>"
_LR = "trainer.optimizer.lr=<1e-6>"
_STEPS = "trainer.duration='<10> steps', or in epochs: '2 epochs'"
_EPOCHS = "trainer.duration='<2> epochs', or in steps: '10 steps'"
_TASKS = "trainer.tasks_per_step=<64>, the number of tasks in one step"
_SIZE = "the size of one forward and backward pass"
_MICROBATCH = f"trainer.microbatch='<8> sequences', {_SIZE}"
_RESPONSE = "data.max_response_tokens=<1024>"
_KL = "algorithm.kl_loss.coef=<0.001> in the loss, or algorithm.kl_reward.coef in the reward"
_SAVE = "checkpoint.every='<10> steps'"
_TEST = "evaluate.every='<10> steps'"
_NO_VIDEO = "nothing: Strop trains on text and images, and not on video or audio"

_EXAMPLE = re.compile(r"<([^<>]*)>")

FAMILIAR_NAMES: Mapping[str, str] = {
    "r": "model.lora.rank=<16>",
    "lora_r": "model.lora.rank=<16>",
    "lora_rank": "model.lora.rank=<16>",
    "lora_alpha": "model.lora.alpha=<32>",
    "lora_target_modules": "model.lora.targets=all-linear",
    "target_modules": "model.lora.targets=all-linear",
    "n": _ROLLOUTS,
    "num_generations": _ROLLOUTS,
    "repeat_times": _ROLLOUTS,
    "group_size": _ROLLOUTS,
    "continue_final_message": "data.train.final_assistant=continue, which continues a last message of the assistant",
    "beta": _KL,
    "kl_coef": _KL,
    "kl_loss_coef": _KL,
    "entropy_coeff": "algorithm.entropy_coef=<0.001>",
    "learning_rate": _LR,
    "total_epochs": _EPOCHS,
    "num_train_epochs": _EPOCHS,
    "epochs": _EPOCHS,
    "max_steps": _STEPS,
    "total_steps": _STEPS,
    "total_training_steps": _STEPS,
    "batch_size": _TASKS,
    "train_batch_size": _TASKS,
    "ppo_mini_batch_size": "trainer.tasks_per_update=<16>, the number of tasks in one update",
    "per_device_train_batch_size": f"{_MICROBATCH}, and trainer.tasks_per_step, the number of tasks in one step",
    "micro_batch_size": _MICROBATCH,
    "micro_batch_size_per_gpu": _MICROBATCH,
    "gradient_accumulation_steps": f"trainer.microbatch='8 sequences' or '16384 tokens', {_SIZE}",
    "max_tokens": _RESPONSE,
    "max_new_tokens": _RESPONSE,
    "max_completion_length": _RESPONSE,
    "max_response_length": _RESPONSE,
    "max_prompt_length": "data.max_prompt_tokens=<1024>",
    "data_parallel": "rollout.pool.engines=<2>",
    "data_parallel_size": "rollout.pool.engines=<2>",
    "grad_clip": "trainer.max_grad_norm=<1>",
    "model_name": "model.path",
    "model_name_or_path": "model.path",
    "train_files": "data.train.path",
    "val_files": "data.eval='[{name: test, path: test.parquet}]'",
    "output_dir": "output",
    "default_local_dir": "output",
    "experiment_name": "name",
    "logger": "record.monitors='[console, tensorboard]'",
    "report_to": "record.monitors='[console, tensorboard]'",
    "logging_steps": "nothing: each step is recorded; record.monitors says where",
    "save_freq": _SAVE,
    "save_steps": _SAVE,
    "test_freq": _TEST,
    "eval_steps": _TEST,
    "reward_funcs": "reward",
    "bf16": "model.compute_dtype=bfloat16",
    "image_key": "data.train.images=images",
    "videos": _NO_VIDEO,
    "video_key": _NO_VIDEO,
    "audios": _NO_VIDEO,
    "audio_key": _NO_VIDEO,
}


def familiar_hint(dotted: str, last: str, value: Any) -> str:
    """` In a run file write ...` for the last part of a key that has this value; empty if it is no familiar name, or
    already that key."""
    advice = FAMILIAR_NAMES.get(last)
    if advice is None or advice.partition("=")[0] == dotted:
        return ""
    number = (
        str(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else ""
    )
    return f" In a run file write {_EXAMPLE.sub(lambda example: number or example[1], advice)}."

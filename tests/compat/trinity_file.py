"""A minimal Trinity file and helpers that read it."""

from __future__ import annotations

from pathlib import Path

from strop.compat.trinity.reader import read_trinity
from strop.config.load.loader import LoadedRun

TASKSET = "buffer.explorer_input.taskset"
BUFFER = "buffer.trainer_input.experience_buffer"
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
BASE = """\
algorithm: {algorithm_type: grpo, repeat_times: 8}
model: {model_path: m, max_prompt_tokens: 64, max_response_tokens: 32}
buffer:
  batch_size: 4
  total_epochs: 3
  explorer_input:
    taskset: {path: train.jsonl, format: {prompt_key: question, response_key: answer}}
    eval_tasksets:
    - {name: test, path: data, split: test, rollout_args: {temperature: 0.1}}
  default_reward_fn_type: countdown_reward
"""


def read(*overrides: str, here: bool = True) -> LoadedRun:
    """Read `t.yaml`, which the fixture `folder` writes."""
    return read_trinity(Path("t.yaml"), overrides, here=here)

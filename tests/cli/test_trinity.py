"""End-to-end test of `strop trinity` on a Countdown file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model

from .conftest import Cli
from .foreign import rows, write_rows

CONFIG = """\
project: Trinity-RFT
name: countdown
mode: both
checkpoint_root_dir: ${oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./checkpoints}
algorithm:
  algorithm_type: grpo
  repeat_times: 2
model:
  model_path: ${oc.env:MODEL_PATH}
  max_prompt_tokens: 700
  max_response_tokens: 8
cluster: {node_num: 1, gpu_per_node: 8}
buffer:
  batch_size: 4
  total_epochs: 1
  explorer_input:
    taskset:
      name: countdown_train
      storage_type: file
      path: train.jsonl
      split: train
      format: {prompt_key: 'question', response_key: 'answer'}
      rollout_args: {temperature: 1.0}
    eval_tasksets:
    - name: countdown_eval
      storage_type: file
      path: test.jsonl
      split: test
      repeat_times: 1
      format: {prompt_type: plaintext, prompt_key: 'question', response_key: 'answer'}
      rollout_args: {temperature: 0.1}
  trainer_input:
    experience_buffer: {name: countdown_buffer, storage_type: queue, max_read_timeout: 1800}
  default_workflow_type: 'math_workflow'
  default_reward_fn_type: 'countdown_reward'
explorer:
  runner_per_model: 8
  rollout_model: {engine_type: vllm_async, engine_num: 1, tensor_parallel_size: 1, enable_history: False}
  eval_interval: 100
  eval_on_startup: True
synchronizer: {sync_method: 'nccl', sync_interval: 1, sync_timeout: 1200}
trainer:
  trainer_type: 'verl'
  save_interval: 100
  trainer_config:
    actor_rollout_ref:
      actor: {use_dynamic_bsz: True, ppo_max_token_len_per_gpu: 4096, optim: {lr: 1e-5}}
"""


def test_countdown(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = rows("countdown/train.jsonl", 10)
    write_rows(tmp_path / "train.jsonl", tasks[:8])
    write_rows(tmp_path / "test.jsonl", tasks[8:])
    make_model(tmp_path / "tiny", [task["question"] for task in tasks], vocab_size=400)
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "tiny"))
    (tmp_path / "countdown.yaml").write_text(CONFIG)
    result = cli("trinity", "countdown.yaml", "--here")
    assert result.exit_code == 0, result.output
    assert "overridden: explorer.rollout_model.engine_type=vllm_async" in result.output
    folder = tmp_path / "checkpoints" / "Trinity-RFT" / "countdown"
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found] == [0, 1, 2] and "eval/countdown_eval/reward" in found[-1]
    AutoModelForCausalLM.from_pretrained(folder / "model")

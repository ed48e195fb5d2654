"""Tests of conversions between dialects and of the differences they report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from strop.compat.convert import Conversion, convert
from strop.config.load.loader import LoadedRun
from strop.config.save import yaml_text
from strop.config.semantic_diff import semantic_diff
from strop.errors import ConfigError
from strop.reading import read_any

VERL_LINE = """\
data: {train_files: gsm8k/train.parquet, val_files: gsm8k/test.parquet, train_batch_size: 1024,
  max_prompt_length: 512, max_response_length: 1024, filter_overlong_prompts: true, truncation: error}
actor_rollout_ref:
  model: {path: Qwen/Qwen2-7B-Instruct, use_remove_padding: true, enable_gradient_checkpointing: true}
  actor:
    {optim: {lr: 1e-6}, ppo_mini_batch_size: 256, ppo_micro_batch_size_per_gpu: 40, use_kl_loss: true,
    kl_loss_coef: 0.001, kl_loss_type: low_var_kl, entropy_coeff: 0, fsdp_config: {param_offload: false}}
  rollout: {tensor_model_parallel_size: 2, name: vllm, gpu_memory_utilization: 0.6, n: 5}
  ref: {log_prob_micro_batch_size_per_gpu: 40, fsdp_config: {param_offload: true}}
algorithm: {adv_estimator: grpo, use_kl_in_reward: false}
trainer: {logger: [console], project_name: grpo_example, experiment_name: qwen2_7b, n_gpus_per_node: 8,
  nnodes: 1, save_freq: 20, test_freq: 5, total_epochs: 15}
"""


def load(folder: Path, text: str, name: str = "from.yaml", overrides: Sequence[str] = ()) -> Any:
    path = folder / name
    path.write_text(text)
    return read_any(path, overrides, here=True)


def read_back(folder: Path, found: Conversion) -> LoadedRun:
    """The converted configuration, read back from a file."""
    return load(folder, yaml_text(found.values), "to.yaml").loaded


def differences(found: Conversion) -> dict[str, tuple[str, str]]:
    return {item.field: (item.value, item.target_value) for item in found.unsupported}


def test_verl_to_run_file_and_back(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE)
    found = convert(job, "strop")
    assert found.unsupported == ()
    assert found.values["reward"] == "verl_by_source"
    assert found.values["trainer"]["tasks_per_update"] == 256
    run_file = load(tmp_path, yaml_text(found.values), "run.yaml")
    assert semantic_diff(job.loaded.run, run_file.loaded.run) == []
    back = convert(run_file, "verl")
    assert back.unsupported == () and back.notes == ()
    assert semantic_diff(job.loaded.run, read_back(tmp_path, back).run) == []
    assert back.values["algorithm"] == {"adv_estimator": "grpo"}, "defaults are left out"


def test_placement_is_not_converted_but_listed(tmp_path: Path) -> None:
    found = convert(load(tmp_path, VERL_LINE), "verl")
    (note,) = found.notes
    assert "trainer.n_gpus_per_node=8" in note and "rollout.name=vllm" in note
    assert "nnodes" not in str(found.values)


def test_verl_to_component_and_back(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE)
    found = convert(job, "rft_trainer")
    assert differences(found) == {
        "project": ("grpo_example", "rft_trainer"),
        "name": ("qwen2_7b", "run"),
        "checkpoint.every": ("20 steps", "20 epochs"),
        "checkpoint.export": ("false", "true"),
        "evaluate.every": ("5 steps", "5 epochs"),
    }
    assert found.values["actor_rft_mini_batch_size"] == 256
    assert found.values["actor_model_lora_rank"] == 0, "the component's default is an adapter"
    component = read_back(tmp_path, found)
    assert component.run.folder_path == job.loaded.run.folder_path
    assert {d.field for d in semantic_diff(job.loaded.run, component.run)} == set(differences(found))
    back = convert(load(tmp_path, yaml_text(found.values), "inputs.yaml"), "verl")
    assert differences(back) == {
        "checkpoint.every": ("20 epochs", "never"),
        "evaluate.every": ("5 epochs", "2 steps"),
    }


def test_lists_become_text_for_a_component(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        VERL_LINE,
        overrides=[
            "actor_rollout_ref.model.lora_rank=8",
            "actor_rollout_ref.model.target_modules=[q_proj,v_proj]",
        ],
    )
    found = convert(job, "verl_trainer")
    assert found.values["actor_model_target_modules"] == "[q_proj,v_proj]"
    assert read_back(tmp_path, found).run.model.lora.targets == ("q_proj", "v_proj")  # type: ignore[union-attr]
    assert differences(found)["model.lora.exclude"] == ("null", ".*visual.*")


def test_verl_to_trinity_and_back(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE)
    found = convert(job, "trinity")
    assert differences(found) == {
        "data.train.source": ("data_source", "null"),
        "data.eval.0.source": ("data_source", "null"),
        "data.overlong": ("filter", "error"),
        "rollout.engine.max_sequences": ("1024", "256"),
        "record.monitors": ("[console]", "[console, tensorboard]"),
        "record.tensorboard": ("tensorboard", "monitor/tensorboard"),
    }
    assert [item.field for item in found.unsupported if not item.affects_training] == [
        *("data.eval.0.source", "rollout.engine.max_sequences", "record.monitors", "record.tensorboard"),
    ]
    trinity = load(tmp_path, yaml_text(found.values), "trinity.yaml")
    assert {d.field for d in semantic_diff(job.loaded.run, trinity.loaded.run)} == set(differences(found))
    back = convert(trinity, "verl")
    assert {**differences(back)}.keys() == {
        "data.train.source",
        "data.eval.0.source",
        "record.tensorboard",
    }


TRINITY = """\
project: Trinity-RFT
name: example
mode: both
checkpoint_root_dir: ./checkpoints
continue_from_checkpoint: true
algorithm: {algorithm_type: grpo, repeat_times: 8, kl_loss_fn: k2, policy_loss_fn_args: {clip_range: 0.3}}
model: {model_path: /models/m, max_model_len: 20480, max_prompt_tokens: 4096, max_response_tokens: 16384}
cluster: {node_num: 1, gpu_per_node: 8}
buffer:
  batch_size: 32
  train_batch_size: 256
  total_epochs: 100
  default_reward_fn_type: math_reward
  explorer_input:
    taskset:
      path: /tasks/train.jsonl
      format: {prompt_key: question, response_key: answer}
      rollout_args: {temperature: 1.0}
    eval_tasksets:
      - {name: one, path: /tasks/one.jsonl, format: {prompt_key: question, response_key: answer}}
      - {name: two, path: /tasks/two.jsonl, format: {prompt_key: question, response_key: answer},
         repeat_times: 4, rollout_args: {temperature: 0.1, top_p: 0.9}}
explorer: {eval_interval: 100, runner_per_model: 8, rollout_model: {engine_type: vllm, engine_num: 2}}
synchronizer: {sync_method: nccl, sync_interval: 1}
trainer:
  save_interval: 100
  trainer_config:
    actor_rollout_ref: {actor: {ppo_max_token_len_per_gpu: 8192, optim: {lr: 5e-7, warmup_style: cosine}}}
monitor: {monitor_type: tensorboard}
"""


def test_trinity_page_to_verl(tmp_path: Path) -> None:
    job = load(tmp_path, TRINITY)
    found = convert(job, "verl")
    assert found.values["actor_rollout_ref"]["actor"] == {
        "ppo_mini_batch_size": 32,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": 8192,
        "clip_ratio": 0.3,
        "clip_ratio_low": 0.3,
        "clip_ratio_high": 0.3,
        "use_kl_loss": True,
        "kl_loss_type": "mse",
        "optim": {"lr": 5e-7, "warmup_style": "cosine"},
    }
    assert found.values["trainer"]["save_freq"] == 100
    assert {item.field for item in found.unsupported if item.affects_training} == {
        "reward.functions.1",
        "data.train.answer",
        "data.train.source",
        "reward.functions.0.name",
        "reward.functions.0.function",
        "reward.functions.0.args",
        "algorithm.policy_loss.dual_clip",
        "rollout.sampling.min_response_tokens",
        "rollout.retries",
    }
    assert "data.eval.1" in differences(found)
    assert "cluster.gpu_per_node=8" in found.notes[0]


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trinity_offline_data_both_ways(kind: str, tmp_path: Path) -> None:
    columns = "{prompt_key: q, response_key: a}" if kind == "sft" else "{chosen_key: good, rejected_key: bad}"
    text = f"""\
mode: train
algorithm: {{algorithm_type: {kind}}}
model: {{model_path: m, max_prompt_tokens: 9, max_response_tokens: 20, lora_configs: [{{lora_rank: 4}}]}}
buffer:
  train_batch_size: 6
  total_steps: 7
  trainer_input: {{experience_buffer: {{storage_type: file, path: a.jsonl, format: {columns}}}}}
"""
    job = load(tmp_path, text)
    run_file = load(tmp_path, yaml_text(convert(job, "strop").values), "run.yaml")
    back = convert(run_file, "trinity")
    assert back.unsupported == ()
    assert back.values["model"]["lora_configs"] == [
        {"lora_rank": 4, "lora_alpha": 32, "target_modules": "all-linear"}
    ]
    assert semantic_diff(job.loaded.run, read_back(tmp_path, back).run) == []


GRPO = """\
model_name_or_path: m
dataset_train_split: t.jsonl
dataset_validation_split: v.jsonl
deepspeed_config: ds.json
dataset_prompt_column: question
num_generations: 8
per_device_train_batch_size: 16
gradient_accumulation_steps: 2
num_iterations: 2
do_eval: true
eval_strategy: steps
eval_steps: 30
beta: 0.04
max_steps: 300
lr_scheduler_type: constant_with_warmup
output_model_path: out
"""


def test_grpo_component_to_run_file_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    job = load(tmp_path, GRPO)
    found = convert(job, "strop")
    assert found.unsupported == ()
    assert found.values["trainer"]["duration"] == "300 updates"
    assert "deepspeed_config.zero_optimization.stage=3" in found.notes[0]
    back = convert(load(tmp_path, yaml_text(found.values), "run.yaml"), "grpo")
    assert back.unsupported == () and "deepspeed_config is required" in back.notes[0]
    assert back.values["gradient_accumulation_steps"] == 2
    whole = yaml_text({**back.values, "deepspeed_config": "ds.json"})
    again = load(tmp_path, whole, "inputs.yaml").loaded.run
    assert semantic_diff(job.loaded.run, again) == []


def test_updates_become_steps_where_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text("{}")
    job = load(tmp_path, GRPO)
    found = convert(job, "verl")
    assert found.values["trainer"]["total_training_steps"] == 150
    assert found.values["trainer"]["test_freq"] == 15
    assert not {"trainer.duration", "evaluate.every", "checkpoint.every"} & differences(found).keys()


def test_packages_and_outputs_of_a_component(tmp_path: Path) -> None:
    inputs = """\
actor_model_path: m
data_train_files: t.parquet
data_val_files: v.parquet
actor_rft_mini_batch_size: 64
pypi_packages_override: einops==0.8.0
model_output: out
"""
    job = load(tmp_path, inputs)
    found = convert(job, "rft_trainer")
    assert found.values["pypi_packages_override"] == "einops==0.8.0" and found.values["model_output"] == "out"
    other = convert(job, "verl_trainer_component")
    assert other.values["model_output"] == "out"
    assert "install einops==0.8.0 yourself" in " ".join(other.notes)
    assert "nothing is written to out" in " ".join(convert(job, "verl").notes)


def test_missing_required_input_is_listed(tmp_path: Path) -> None:
    text = "model: {path: m}\ndata: {train: {path: t.parquet}}\nreward: by_source\n"
    found = convert(load(tmp_path, text), "rft_trainer")
    assert found.notes == ("data_val_files is required, and this run has no value for it: add it yourself.",)


SFT = """\
model: {partial_pretrain: Qwen/Qwen2-7B, lora_rank: 8, target_modules: [q_proj]}
data: {train_files: [a.parquet, b.parquet], val_files: v.parquet, prompt_key: extra_info, max_length: 1001,
  prompt_dict_keys: [question], response_key: extra_info, response_dict_keys: [answer], truncation: right}
optim: {lr_scheduler: wsd, warmup_steps_ratio: 0.05}
trainer: {logger: console, total_training_steps: 30}
"""


def test_sft_both_ways(tmp_path: Path) -> None:
    job = load(tmp_path, SFT)
    run_file = load(tmp_path, yaml_text(convert(job, "strop").values), "run.yaml")
    back = convert(run_file, "verl")
    assert back.unsupported == ()
    assert back.values["data"]["prompt_dict_keys"] == ["question"]
    assert semantic_diff(job.loaded.run, read_back(tmp_path, back).run) == []


def test_sft_fields_that_trinity_cannot_express(tmp_path: Path) -> None:
    found = convert(load(tmp_path, SFT, overrides=["data.train_files=a.parquet"]), "trinity")
    says = differences(found)
    assert says["data.eval"][1] == "[]", "it evaluates no loss on demonstrations"
    assert says["trainer.schedule"][0].startswith("{'type': 'wsd'"), "its decay is in steps alone"
    form = found.values["buffer"]["trainer_input"]["experience_buffer"]["format"]
    assert form == {"prompt_key": "extra_info.question", "response_key": "extra_info.answer"}


def test_run_file_fields_that_verl_cannot_express(tmp_path: Path) -> None:
    text = """\
model: {path: m}
data:
  train: {path: t.jsonl, split: train}
  eval: [{name: one, path: e.jsonl}, {name: two, path: f.jsonl}]
reward: gsm8k
algorithm: {type: rloo, policy_loss: {type: opmd}}
trainer: {optimizer: {type: adafactor, lr: 1e-5}, duration: 100 updates, tasks_per_update: 32}
"""
    found = convert(load(tmp_path, text), "verl")
    says = differences(found)
    assert says["data.train.split"] == ("train", "null")
    assert says["data.eval.1"][1] == "null", "a whole section is one difference"
    assert says["reward.functions.0.function"] == ("gsm8k", "verl_by_source")
    assert says["algorithm.policy_loss"][0] == "{'type': 'opmd'}"
    assert "adafactor" in says["trainer.optimizer"][0]
    assert "trainer.duration" not in says, "two updates make a step"
    assert found.values["trainer"]["total_training_steps"] == 50
    why = {item.field: item.reason for item in found.unsupported}
    assert "custom_reward_function.path" in why["reward.functions.0.function"]
    assert "custom_reward_function.path" in why["reward.functions.0.function"]


def test_unsupported_algorithm_is_refused(tmp_path: Path) -> None:
    job = load(tmp_path, SFT)
    with pytest.raises(ConfigError, match="cannot be converted to rft_trainer"):
        convert(job, "rft_trainer")
    with pytest.raises(ConfigError, match="Unknown dialect 'velr'; did you mean 'verl'"):
        convert(job, "velr")


def test_secrets_are_not_written(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE, overrides=["data.train_files=https://me:hidden@host/t.parquet"])
    found = convert(job, "strop")
    assert "hidden" not in yaml_text(found.values)
    assert found.notes[-1] == "Secrets are written as ***: insert them yourself."


def test_resolved_interpolation_stays_text(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE, overrides=[r"data.train_files='a\${b}.parquet'"])
    assert job.loaded.run.data.train.path == "a${b}.parquet"
    found = convert(job, "strop")
    assert yaml.safe_load(yaml_text(found.values))["data"]["train"]["path"] == r"a\${b}.parquet"
    assert read_back(tmp_path, found).run.data.train.path == "a${b}.parquet"

"""A configuration in another dialect's words, and what those cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from strop.config.dialects import ledger_of
from strop.config.dialects.component import COMPONENTS
from strop.config.dialects.convert import Conversion, convert
from strop.config.dialects.recognise import read_file
from strop.config.load import Loaded
from strop.config.same import compare
from strop.config.save import yaml_text
from strop.errors import ConfigError

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
    return read_file(path, overrides, here=True)


def there(folder: Path, found: Conversion) -> Loaded:
    """What was written, read as a user would."""
    return load(folder, yaml_text(found.values), "to.yaml").loaded


def unsaid(found: Conversion) -> dict[str, tuple[str, str]]:
    return {one.field: (one.value, one.there) for one in found.unsaid}


def test_a_verl_line_as_a_run_file_and_back(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE)
    found = convert(job, "strop")
    assert found.unsaid == ()
    assert found.values["reward"] == "by_source"
    assert found.values["trainer"]["tasks_per_update"] == 256
    run_file = load(tmp_path, yaml_text(found.values), "run.yaml")
    assert compare(job.loaded.run, run_file.loaded.run) == []
    back = convert(run_file, "verl")
    assert back.unsaid == () and back.notes == ()
    assert compare(job.loaded.run, there(tmp_path, back).run) == []
    assert back.values["algorithm"] == {"adv_estimator": "grpo"}, "defaults are left out"


def test_placement_is_not_carried_and_is_named(tmp_path: Path) -> None:
    found = convert(load(tmp_path, VERL_LINE), "verl")
    (note,) = found.notes
    assert "trainer.n_gpus_per_node=8" in note and "rollout.name=vllm" in note
    assert "nnodes" not in str(found.values)


def test_a_verl_line_as_the_components_inputs_and_back(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE)
    found = convert(job, "rft_trainer")
    assert unsaid(found) == {
        "project": ("grpo_example", "rft_trainer"),
        "name": ("qwen2_7b", "run"),
        "checkpoint.every": ("20 steps", "20 epochs"),
        "checkpoint.export": ("false", "true"),
        "evaluate.every": ("5 steps", "5 epochs"),
    }
    assert found.values["actor_rft_mini_batch_size"] == 256
    assert found.values["actor_model_lora_rank"] == 0, "the component's default is an adapter"
    component = there(tmp_path, found)
    assert component.run.folder_path == job.loaded.run.folder_path
    assert {d.field for d in compare(job.loaded.run, component.run)} == set(unsaid(found))
    back = convert(load(tmp_path, yaml_text(found.values), "inputs.yaml"), "verl")
    assert unsaid(back) == {
        "checkpoint.every": ("20 epochs", "never"),
        "evaluate.every": ("5 epochs", "2 steps"),
    }


def test_lists_are_text_for_a_component(tmp_path: Path) -> None:
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
    assert there(tmp_path, found).run.model.lora.targets == ("q_proj", "v_proj")  # type: ignore[union-attr]
    assert unsaid(found)["model.lora.exclude"] == ("null", ".*visual.*")


def test_a_verl_line_as_trinitys_file_and_back(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE)
    found = convert(job, "trinity")
    assert unsaid(found) == {
        "data.train.source": ("data_source", "null"),
        "data.eval.0.source": ("data_source", "null"),
        "data.overlong": ("filter", "error"),
        "rollout.engine.max_sequences": ("1024", "256"),
        "trainer.tasks_per_update": ("256", "1024"),
        "record.monitors": ("[console]", "[console, tensorboard]"),
        "record.tensorboard": ("tensorboard", "monitor/tensorboard"),
    }
    assert [one.field for one in found.unsaid if not one.is_learned_from] == [
        "data.eval.0.source",
        "rollout.engine.max_sequences",
        "record.monitors",
        "record.tensorboard",
    ]
    trinity = load(tmp_path, yaml_text(found.values), "trinity.yaml")
    assert {d.field for d in compare(job.loaded.run, trinity.loaded.run)} == set(unsaid(found))
    back = convert(trinity, "verl")
    assert {**unsaid(back)}.keys() == {
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


def test_trinitys_page_as_a_verl_line(tmp_path: Path) -> None:
    job = load(tmp_path, TRINITY)
    found = convert(job, "verl")
    assert found.values["actor_rollout_ref"]["actor"] == {
        "ppo_mini_batch_size": 32,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": 8192,
        "clip_ratio": 0.3,
        "use_kl_loss": True,
        "kl_loss_type": "mse",
        "optim": {"lr": 5e-7, "warmup_style": "cosine"},
    }
    assert found.values["trainer"]["save_freq"] == 100
    assert {one.field for one in found.unsaid if one.is_learned_from} == {
        "data.train.answer",
        "data.train.source",
        "reward.functions.0.function",
        "algorithm.policy_loss.dual_clip",
        "rollout.sampling.min_response_tokens",
        "rollout.retries",
    }
    assert "data.eval.1" in unsaid(found)
    assert "cluster.gpu_per_node=8" in found.notes[0]


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trinitys_given_answers_both_ways(kind: str, tmp_path: Path) -> None:
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
    assert back.unsaid == ()
    assert back.values["model"]["lora_configs"] == [
        {"lora_rank": 4, "lora_alpha": 32, "target_modules": "all-linear"}
    ]
    assert compare(job.loaded.run, there(tmp_path, back).run) == []


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


def test_the_grpo_component_as_a_run_file_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    job = load(tmp_path, GRPO)
    found = convert(job, "strop")
    assert found.unsaid == ()
    assert found.values["trainer"]["duration"] == "300 updates"
    assert "deepspeed_config.zero_optimization.stage=3" in found.notes[0]
    back = convert(load(tmp_path, yaml_text(found.values), "run.yaml"), "grpo")
    assert back.unsaid == () and "deepspeed_config is required there" in back.notes[0]
    assert back.values["gradient_accumulation_steps"] == 2
    whole = yaml_text({**back.values, "deepspeed_config": "ds.json"})
    again = load(tmp_path, whole, "inputs.yaml").loaded.run
    assert compare(job.loaded.run, again) == []


def test_updates_become_steps_where_whole_steps_make_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text("{}")
    job = load(tmp_path, GRPO)
    found = convert(job, "verl")
    assert found.values["trainer"]["total_training_steps"] == 150
    assert found.values["trainer"]["test_freq"] == 15
    assert not {"trainer.duration", "evaluate.every", "checkpoint.every"} & unsaid(found).keys()


def test_what_a_component_does_beside_the_run(tmp_path: Path) -> None:
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


def test_a_required_input_that_nothing_says_is_named(tmp_path: Path) -> None:
    text = "model: {path: m}\ndata: {train: {path: t.parquet}}\nreward: by_source\n"
    found = convert(load(tmp_path, text), "rft_trainer")
    assert found.notes == (
        "data_val_files is required there, and nothing in this run says it: add it yourself.",
    )


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
    assert back.unsaid == ()
    assert back.values["data"]["prompt_dict_keys"] == ["question"]
    assert compare(job.loaded.run, there(tmp_path, back).run) == []


def test_what_trinity_cannot_say_of_an_sft_run(tmp_path: Path) -> None:
    found = convert(load(tmp_path, SFT, overrides=["data.train_files=a.parquet"]), "trinity")
    says = unsaid(found)
    assert says["data.eval"][1] == "[]", "it measures no loss of given answers"
    assert says["trainer.schedule"][0].startswith("{'type': 'wsd'"), "its decay is in steps alone"
    form = found.values["buffer"]["trainer_input"]["experience_buffer"]["format"]
    assert form == {"prompt_key": "extra_info.question", "response_key": "extra_info.answer"}


def test_what_a_run_file_says_that_verl_cannot(tmp_path: Path) -> None:
    text = """\
model: {path: m}
data:
  train: {path: t.jsonl, limit_tasks: 9}
  eval: [{name: one, path: e.jsonl}, {name: two, path: f.jsonl}]
reward: gsm8k
algorithm: {type: rloo, policy_loss: {type: cispo}}
trainer: {optimizer: {type: adafactor, lr: 1e-5}, duration: 100 updates, tasks_per_update: 32}
"""
    found = convert(load(tmp_path, text), "verl")
    says = unsaid(found)
    assert says["data.train.limit_tasks"] == ("9", "null")
    assert says["data.eval.1"][1] == "null", "a whole section is one difference"
    assert says["reward.functions.0.function"] == ("gsm8k", "by_source")
    assert says["algorithm.policy_loss"][0] == "{'type': 'cispo'}"
    assert "adafactor" in says["trainer.optimizer"][0]
    assert "trainer.duration" not in says, "two updates make a step"
    assert found.values["trainer"]["total_training_steps"] == 50
    why = {one.field: one.why for one in found.unsaid}
    assert why["data.train.limit_tasks"] == "no key says it"
    assert "custom_reward_function.path" in why["reward.functions.0.function"]


def test_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    job = load(tmp_path, SFT)
    with pytest.raises(ConfigError, match="cannot be said in rft_trainer"):
        convert(job, "rft_trainer")
    with pytest.raises(ConfigError, match="no dialect 'velr'; did you mean 'verl'"):
        convert(job, "velr")


def test_secrets_are_not_written(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE, overrides=["data.train_files=https://me:hidden@host/t.parquet"])
    found = convert(job, "strop")
    assert "hidden" not in yaml_text(found.values)
    assert found.notes[-1] == "Secrets are written as ***: put them in yourself."


def test_an_interpolation_that_was_resolved_stays_text(tmp_path: Path) -> None:
    job = load(tmp_path, VERL_LINE, overrides=[r"trainer.experiment_name='a\${b}'"])
    assert job.loaded.run.name == "a${b}"
    found = convert(job, "strop")
    assert yaml.safe_load(yaml_text(found.values))["name"] == r"a\${b}"
    assert there(tmp_path, found).run.name == "a${b}"


@pytest.mark.parametrize(
    "overrides",
    [
        ["actor_rollout_ref.actor.strategy=megatron"],
        [
            "actor_rollout_ref.actor.strategy=megatron",
            "actor_rollout_ref.actor.optim.lr_decay_style=WSD",
            "actor_rollout_ref.actor.optim.lr_wsd_decay_steps=9",
            "actor_rollout_ref.actor.optim.min_lr=1e-7",
            "actor_rollout_ref.actor.optim.clip_grad=0",
            "actor_rollout_ref.actor.optim.optimizer=sgd",
        ],
        ["algorithm.adv_estimator=gae", "critic.optim.warmup_style=cosine", "critic.model.path=c"],
        ["reward_model.enable=True", "reward_model.model.path=rm", "reward_model.model.input_tokenizer=null"],
        ["+actor_rollout_ref.model.override_config.attention_dropout=0.1"],
        ["actor_rollout_ref.model.external_lib=lib", "actor_rollout_ref.actor.data_loader_seed=4"],
        ["actor_rollout_ref.actor.checkpoint.load_contents=[model,extra]"],
    ],
)
def test_verls_rarer_keys_there_and_back(tmp_path: Path, overrides: list[str]) -> None:
    job = load(tmp_path, VERL_LINE, overrides=overrides)
    found = convert(job, "verl")
    assert found.unsaid == ()
    assert compare(job.loaded.run, there(tmp_path, found).run) == []


@pytest.mark.parametrize("dialect", ["verl", "verl-sft", "trinity", *COMPONENTS])
def test_what_is_read_is_written(dialect: str) -> None:
    ledger = COMPONENTS[dialect].reading if dialect in COMPONENTS else ledger_of(dialect)
    alone = [row.theirs for row in ledger.rows if row.ours and row.read is not None and row.write is None]
    assert alone == [], "a read without a write beside it"

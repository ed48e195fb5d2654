"""`strop verl ppo`, `sft` and `merge` with typical command lines, to the end."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from strop.models.loading import silence_transformers
from strop.models.tiny import make_model

from .conftest import Cli
from .foreign import rows, verl_rows, write_rows

ROOT = Path(__file__).parents[2]
LINE = """
data.train_files=train.jsonl data.val_files=test.jsonl data.train_batch_size=4 data.max_prompt_length=512
data.max_response_length=8 data.filter_overlong_prompts=True data.truncation='error'
actor_rollout_ref.model.path=tiny actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.actor.ppo_mini_batch_size=2
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.model.enable_gradient_checkpointing=True actor_rollout_ref.rollout.n=2
actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.gpu_memory_utilization=0.6 algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False
trainer.logger=[console] trainer.project_name=verl_grpo trainer.experiment_name=tiny trainer.n_gpus_per_node=8
trainer.nnodes=1 trainer.test_freq=-1 trainer.total_training_steps=1
"""
OWN = """
import json
class Mine:
    def __init__(self, data_files, tokenizer, config, processor):
        self.rows = [json.loads(line) for line in open(data_files[0])]
        self.start = config.custom_cls.start
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        row = dict(self.rows[i])
        question = row.pop('prompt')[0]['content']
        return {**row, 'raw_prompt': [{'role': 'user', 'content': self.start + question}]}
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {'score': float(len(solution_str)), 'acc': float(ground_truth in solution_str)}
"""


@pytest.fixture(scope="module")
def gsm8k_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model whose tokenizer knows the words of the rows."""
    texts = [row["question"] for row in rows("gsm8k/train.jsonl", 12)]
    return make_model(tmp_path_factory.mktemp("gsm8k") / "m", texts, vocab_size=400)


@pytest.fixture
def folder(tmp_path: Path, gsm8k_model: Path) -> Path:
    """Folder with rows of GSM8K in verl's columns, and the model `tiny`."""
    write_rows(tmp_path / "train.jsonl", verl_rows(4))
    write_rows(tmp_path / "test.jsonl", verl_rows(2))
    (tmp_path / "tiny").symlink_to(gsm8k_model)
    return tmp_path


def last_row(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return found


def test_ppo_with_custom_code(cli: Cli, folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    (folder / "library.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    more = ["data.custom_cls.path=own.py", "data.custom_cls.name=Mine", "custom_reward_function.path=own.py"]
    more += ["actor_rollout_ref.model.external_lib=library.py", "trainer.log_val_generations=1"]
    more += [
        "+actor_rollout_ref.model.override_config.attention_dropout=0.0",
        "trainer.default_hdfs_dir=second",
    ]
    refused = cli("verl", "ppo", "--here", *LINE.split(), *more, "+data.begin='Q: '")
    assert refused.exit_code == 2 and "data.begin" in refused.stderr
    result = cli("verl", "ppo", "--here", *LINE.split(), *more, "+data.custom_cls.start='Q: '")
    assert result.exit_code == 0, result.output
    out = folder / "checkpoints" / "verl_grpo" / "tiny"
    assert last_row(out)["step"] == 1 and "reward/part/compute_score/acc" in last_row(out)
    assert (folder / "imported").exists()
    assert (folder / "second" / "checkpoints" / "step-000001" / "manifest.json").is_file()
    assert "fixed selection" in (out / "report.html").read_text()
    AutoModelForCausalLM.from_pretrained(out / "model")


def test_ppo_with_a_reward_model_alone(cli: Cli, folder: Path) -> None:
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_pretrained(folder / "tiny", num_labels=1)
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(folder / "rm")
    words = [
        "reward_model.enable=True",
        "reward_model.model.path=rm",
        "reward_model.model.input_tokenizer=null",
    ]
    result = cli("verl", "ppo", "--here", *LINE.split(), *words, "actor_rollout_ref.actor.strategy=megatron")
    assert result.exit_code == 0, result.output
    row = last_row(folder / "checkpoints" / "verl_grpo" / "tiny")
    assert row["reward/mean"] == pytest.approx(row["reward/part/reward_model"]) != 0


def test_sft_of_an_adapter_and_its_merge(cli: Cli, folder: Path) -> None:
    """With a file and overrides; the run's folder and its checkpoint merge to the exported model."""
    found = rows("gsm8k/train.jsonl", 12)
    write_rows(folder / "train.jsonl", [{"extra_info": row} for row in found[:8]])
    write_rows(folder / "val.jsonl", [{"extra_info": row} for row in found[8:]])
    (folder / "sft.yaml").write_text(
        "data: {train_files: train.jsonl, val_files: val.jsonl, train_batch_size: 4, max_length: 1000}\n"
        "model: {partial_pretrain: tiny, lora_rank: 4}\n"
        "trainer: {total_epochs: 1, logger: console, default_local_dir: out, n_gpus_per_node: 8}\n"
    )
    words = ["data.prompt_key=extra_info", "+data.prompt_dict_keys=['question']", "optim.lr=1e-2"]
    more = ["data.response_key=extra_info", "+data.response_dict_keys=['answer']"]
    result = cli("verl", "sft", "--here", "--config", "sft.yaml", *words, *more)
    assert result.exit_code == 0, result.output
    assert "overridden: trainer.n_gpus_per_node=8" in result.output
    last = last_row(folder / "out")
    assert last["step"] == 2 and any(name.startswith("eval/val/") for name in last)
    exported = load_file(folder / "out" / "model" / "model.safetensors")
    for source, target in (("out", "a"), ("out/checkpoints/step-000002", "b")):
        result = cli("verl", "merge", "--backend", "fsdp", "--local_dir", source, "--target_dir", target)
        assert result.exit_code == 0 and f"Wrote {target}" in result.output, result.output
        merged = load_file(folder / target / "model.safetensors")
        assert exported.keys() == merged.keys()
        assert all(torch.equal(exported[name], merged[name]) for name in exported)
        AutoModelForCausalLM.from_pretrained(folder / target)


def test_merge_of_verls_shards(cli: Cli, folder: Path) -> None:
    (folder / "actor").mkdir()
    saved = load_file(folder / "tiny" / "model.safetensors")
    torch.save(saved, folder / "actor" / "model_world_size_1_rank_0.pt")
    result = cli("verl", "merge", "local_dir=actor", "target_dir=whole", "hf_model_path=tiny")
    assert result.exit_code == 0, result.output
    merged = load_file(folder / "whole" / "model.safetensors")
    assert all(torch.equal(saved[name], merged[name]) for name in saved)
    assert (folder / "whole" / "tokenizer.json").is_file()


@pytest.mark.slow
def test_the_example_with_a_tool_and_a_simulated_user(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`examples/verl/guess.sh`; a check reads its file of tools."""
    monkeypatch.chdir(ROOT)
    runpy.run_path("examples/verl/make.py")["make"](tmp_path)
    script = re.sub(r"\\\n", " ", Path("examples/verl/guess.sh").read_text()).partition("strop ")[2]
    line = [word.replace("$folder", str(tmp_path)) for word in shlex.split(script) if word != "$@"]
    (tmp_path / "mcp.yaml").write_text("tools: [{class_name: mine.py:T, config: {type: mcp}}]\n")
    key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    others = [word for word in line if not word.startswith(key)]
    result = cli(*others, f"{key}={tmp_path / 'mcp.yaml'}", "--check")
    assert result.exit_code == 2 and "mcp.mcp_servers_config_path" in result.stderr

    line = [word for word in line if not word.startswith("trainer.total_training_steps")]
    result = cli(*line, "trainer.total_training_steps=2", "actor_rollout_ref.rollout.n=2")
    assert result.exit_code == 0, result.output
    row = last_row(tmp_path / "checkpoints")
    assert row["rollouts/error_fraction"] == 0 and row["rollouts/turns"] > 1
    assert 0 <= row["reward/mean"] <= 1

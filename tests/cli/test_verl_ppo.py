"""End-to-end tests of `strop verl ppo` with typical command lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from strop.models.loading import silence_transformers
from strop.models.tiny import make_model

from .conftest import Cli
from .foreign import rows, verl_rows, write_rows

LINE = [
    "data.train_files=train.jsonl",
    "data.val_files=test.jsonl",
    "data.train_batch_size=4",
    "data.max_prompt_length=512",
    "data.max_response_length=8",
    "data.filter_overlong_prompts=True",
    "data.truncation='error'",
    "actor_rollout_ref.model.path=tiny",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.entropy_coeff=0",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=False",
    "trainer.logger=[console]",
    "trainer.project_name=verl_grpo",
    "trainer.experiment_name=tiny",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.test_freq=-1",
    "trainer.total_training_steps=1",
]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    write_rows(tmp_path / "train.jsonl", verl_rows(4))
    write_rows(tmp_path / "test.jsonl", verl_rows(2))
    make_model(tmp_path / "tiny", [row["question"] for row in rows("gsm8k/train.jsonl", 4)], vocab_size=400)
    return tmp_path


def last_row(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return found


def test_typical_command_line_with_custom_code(cli: Cli, prepared: Path) -> None:
    (prepared / "own.py").write_text(
        "import json\n"
        "class Mine:\n"
        "    def __init__(self, data_files, tokenizer, config, processor):\n"
        "        self.rows = [json.loads(line) for line in open(data_files[0])]\n"
        "        self.start = config.custom_cls.start\n"
        "    def __len__(self):\n"
        "        return len(self.rows)\n"
        "    def __getitem__(self, i):\n"
        "        row = dict(self.rows[i])\n"
        "        question = row.pop('prompt')[0]['content']\n"
        "        return {**row, 'raw_prompt': [{'role': 'user', 'content': self.start + question}]}\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(len(solution_str)), 'acc': float(ground_truth in solution_str)}\n"
    )
    (prepared / "library.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    more = [
        "data.custom_cls.path=own.py",
        "data.custom_cls.name=Mine",
        "custom_reward_function.path=own.py",
        "actor_rollout_ref.model.external_lib=library.py",
        "+actor_rollout_ref.model.override_config.attention_dropout=0.0",
        "trainer.log_val_generations=1",
        "trainer.default_hdfs_dir=second",
    ]
    refused = cli("verl", "ppo", "--here", *LINE, *more, "+data.begin='Q: '")
    assert refused.exit_code == 2 and "data.begin" in refused.stderr
    more.append("+data.custom_cls.start='Q: '")
    result = cli("verl", "ppo", "--here", *LINE, *more)
    assert result.exit_code == 0, result.output
    out = prepared / "checkpoints" / "verl_grpo" / "tiny"
    assert last_row(out)["step"] == 1 and "reward/part/compute_score/acc" in last_row(out)
    assert (prepared / "imported").exists()
    assert (prepared / "second" / "checkpoints" / "step-000001" / "manifest.json").is_file()
    assert "fixed selection" in (out / "report.html").read_text()
    AutoModelForCausalLM.from_pretrained(out / "model")


def test_only_the_reward_model_scores(cli: Cli, prepared: Path) -> None:
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_pretrained(prepared / "tiny", num_labels=1)
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(prepared / "rm")
    words = [
        "reward_model.enable=True",
        "reward_model.model.path=rm",
        "reward_model.model.input_tokenizer=null",
    ]
    result = cli("verl", "ppo", "--here", *LINE, *words, "actor_rollout_ref.actor.strategy=megatron")
    assert result.exit_code == 0, result.output
    row = last_row(prepared / "checkpoints" / "verl_grpo" / "tiny")
    assert row["reward/mean"] == pytest.approx(row["reward/part/reward_model"]) != 0

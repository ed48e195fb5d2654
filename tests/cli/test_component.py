"""The components run to the end on real data, and fill every output that they declare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.models.tiny import make_model
from strop.training import checkpoint

from .conftest import Cli
from .foreign import needs_data, rows, verl_rows, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and both components' data."""
    tasks, questions = verl_rows(12), rows("medmcqa/train.jsonl", 12)
    write_rows(tmp_path / "train.jsonl", tasks[:8])
    write_rows(tmp_path / "val.jsonl", tasks[8:])
    write_rows(tmp_path / "choice_train.jsonl", questions[:8])
    write_rows(tmp_path / "choice_val.jsonl", questions[8:])
    deepspeed = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps(deepspeed))
    make_model(tmp_path / "tiny", [task["prompt"][0]["content"] for task in tasks], vocab_size=400)
    return tmp_path


VERL = ["--data_train_files", "train.jsonl", "--data_val_files", "val.jsonl", "--actor_model_path", "tiny"]
SMALL = ["--data_train_batch_size=4", "--data_max_response_length=8", "--rollout_n=2"]


@needs_data
def test_rft_trainer_fills_both_outputs(cli: Cli, folder: Path) -> None:
    words = [
        "--actor_rft_mini_batch_size=2",
        "--trainer_total_epochs",
        "1",
        "--algorithm_use_kl_in_reward=True",
    ]
    outputs = ["--intermediate_folder", "inter", "--model_output", "out"]
    result = cli("component", "rft_trainer", "--here", *VERL, *SMALL, *words, *outputs)
    assert result.exit_code == 0, result.output
    assert checkpoint.latest(folder / "inter" / "checkpoints")[0] is not None
    model = AutoModelForCausalLM.from_pretrained(folder / "out")
    assert not any("lora" in name for name, _ in model.named_parameters())
    AutoTokenizer.from_pretrained(folder / "out")


@needs_data
def test_verl_trainer_counts_steps(cli: Cli, folder: Path) -> None:
    words = ["--actor_ppo_mini_batch_size=4", "--total_training_steps=1", "--algorithm_adv_estimator", "rloo"]
    line = ("component", "verl_trainer", "--here", *VERL, *SMALL, *words, "--model_output", "out")
    explained = cli(*line, "--explain")
    assert "by RLOO on train.jsonl" in explained.output and "goes on for 1 step" in explained.output
    assert not (folder / "out").exists()
    result = cli(*line)
    assert result.exit_code == 0, result.output
    AutoModelForCausalLM.from_pretrained(folder / "out")


@needs_data
def test_grpo_counts_updates_and_measures_its_own_rewards(cli: Cli, folder: Path) -> None:
    data = ["--dataset_train_split=choice_train.jsonl", "--dataset_validation_split=choice_val.jsonl"]
    given = ["--model_name_or_path", "tiny", "--deepspeed_config", "ds.json", "--output_model_path", "out"]
    words = ["--max_steps=4", "--num_iterations=2", "--save_steps=2", "--max_completion_length=8"]
    more = ["--max_prompt_length=600", "--eval_strategy=steps", "--eval_steps=2", "--beta=0.04"]
    result = cli("component", "grpo", "--here", *data, *given, *words, *more)
    assert result.exit_code == 0, result.output
    assert "set aside: deepspeed_config.zero_optimization.stage=2" in result.output
    found = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found] == [1, 2]
    assert {"reward/part/format", "reward/part/accuracy"} <= found[0].keys()
    assert "eval/validation/reward" in found[0]
    assert len(list((folder / "out" / "checkpoints").glob("step-*"))) == 2


def test_packages_are_installed_first_and_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[list[str]] = []

    class Done:
        returncode = 1

    def run(command: list[str], check: bool) -> Done:
        called.append(command)
        return Done()

    monkeypatch.setattr("strop.cli.component.subprocess.run", run)
    result = cli("component", "rft_trainer", *VERL, "--pypi_packages_override", "peft==0.1,torch")
    assert called[0][-2:] == ["peft==0.1", "torch"]
    assert result.exit_code == 2 and "pip could not install peft==0.1 torch" in result.stderr
    assert "pip install peft==0.1 torch" in result.output

"""Mistakes of the first hour: one paragraph says what to write, and `check` refuses what `train` refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli

MISTAKES: list[tuple[list[str], str]] = [
    (["trainer.duration=10", "steps"], "quote the whole: 'trainer.duration=10 steps'"),
    (["trainer.duration=10"], "such as '10 steps', got 10"),
    (["--trainer.optimizer.lr=1e-5"], "have no dashes: trainer.optimizer.lr=1e-5"),
    (["model.lora.r=8"], "there is no key model.lora.r. In a run file write model.lora.rank=8"),
    (["rollout.n=8"], "there is no key rollout.n. In a run file write algorithm.rollouts_per_task=8"),
    (["algorithm.num_generations=8"], "In a run file write algorithm.rollouts_per_task=8"),
    (["algorithm.beta=0.1"], "write algorithm.kl_loss.coef=0.1 in the loss, or algorithm.kl_reward.coef"),
    (["per_device_train_batch_size=4"], "write trainer.microbatch='4 sequences', the size of one forward"),
    (["model.path=./models/missing"], "folder ./models/missing"),
    (["data.train.path=tasks.jsonl"], "tasks.jsonl."),
    (["data.train.answer=solution"], "has no 'solution': its columns are 'prompt', 'answer'"),
    (["reward=exakt"], "did you mean 'exact'?"),
    (["reward=mine.py:score"], "mine.py."),
    (["trainer.tasks_per_step=100"], "Write 64 or fewer tasks per step"),
    (["data.max_prompt_tokens=2"], "64 of 64 prompts are too long"),
    (["model.path=plain"], "has no chat template, so messages cannot be converted to a prompt"),
    (["output=train.jsonl"], "train.jsonl"),
]


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: value[0] if len(value) < 3 else "")
def test_a_mistake(cli: Cli, run_file: Path, words: list[str], message: str, command: str) -> None:
    without_template(run_file.parent)
    refused = cli(command, run_file, *words)
    assert refused.exit_code in (1, 2), refused.output
    assert message in " ".join(refused.output.split()), refused.output
    assert "Traceback" not in refused.output and not (run_file.parent / "runs").exists()


def without_template(folder: Path) -> None:
    """Make `plain`, the model without its chat template."""
    (folder / "plain").mkdir()
    for file in (folder / "m").iterdir():
        if file.name != "chat_template.jinja":
            (folder / "plain" / file.name).hardlink_to(file)
    settings = json.loads((folder / "plain" / "tokenizer_config.json").read_text())
    assert "chat_template" not in settings


def test_a_name_of_the_hub_is_said_to_be_one(cli: Cli, run_file: Path) -> None:
    said = cli("check", run_file, "model.path=models/missing").output
    assert (
        "there is no folder models/missing here, so the run loads models/missing from the Hugging Face hub"
        in said
    )


def test_an_unusual_learning_rate(cli: Cli, run_file: Path) -> None:
    said = cli("check", run_file, "trainer.optimizer.lr=3").output
    assert "trainer.optimizer.lr is 3." in said and "Was 3e-6 meant?" in said

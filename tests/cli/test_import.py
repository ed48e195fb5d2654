"""`strop import`: a run file for each training command of a launch script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compat.trinity_file import BASE

from .conftest import Cli

PPO = """\
#!/usr/bin/env bash
set -xeuo pipefail
MODEL=${1:-Qwen/Qwen2.5-0.5B}
ARGS=(algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8)
mkdir -p logs
python3 -m verl.trainer.main_ppo "${ARGS[@]}" data.train_files=train.parquet data.train_batch_size=32 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.model.path=$MODEL \\
    custom_reward_function.path=reward.py trainer.n_gpus_per_node=8 2>&1 | tee logs/train.log
"""


def imported(cli: Cli, name: str, text: str, *words: str) -> str:
    """Import a script; returns what is printed."""
    Path(f"{name}.sh").write_text(text)
    result = cli("import", f"{name}.sh", *words)
    assert result.exit_code == 0, result.output
    return result.output


def read(name: str) -> Any:
    return yaml.safe_load(Path(f"{name}.yaml").read_text())


def test_one_command_of_verl(cli: Cli) -> None:
    output = imported(cli, "launch", PPO, "my/model")
    run = read("launch")
    assert run["model"]["path"] == "my/model"
    assert run["trainer"]["tasks_per_step"] == 32 and run["trainer"]["tasks_per_update"] == 16
    assert "strop train launch.yaml" in output and "strop verl ppo algorithm.adv" in output
    assert cli("explain", "launch.yaml").exit_code == 0
    again = cli("import", "launch.sh")
    assert again.exit_code == 2 and "launch.yaml exists already" in again.stderr


def test_recipes_of_verl_have_configurations_of_their_own(cli: Cli) -> None:
    output = imported(cli, "dapo", PPO.replace("verl.trainer.main_ppo", "recipe.dapo.main_dapo"))
    assert "--config-name=dapo_trainer" in output and read("dapo")["project"] == "verl-dapo"
    imported(cli, "sppo", PPO.replace("verl.trainer.main_ppo", "recipe.sppo.main_sppo"), "--here")
    assert read("sppo")["algorithm"]["type"] == "self_play"


def test_several_commands(cli: Cli) -> None:
    script = (
        "torchrun --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer data.train_files=s.parquet "
        "data.prompt_key=q data.response_key=a model.partial_pretrain=m\n"
        f"cat > t.yaml <<EOF\n{BASE}EOF\n"
        "export TRINITY_CHECKPOINT_ROOT_DIR=out\nnohup trinity run --config t.yaml > log &\nwait\n"
        "python3 -m verl.trainer.main_eval data.path=x.parquet"
    )
    output = imported(cli, "all", script, "--output", "run.yaml")
    assert read("run-1")["algorithm"] == {"type": "sft"} and read("run-2")["model"]["path"] == "m"
    assert not Path("run-3.yaml").exists() and "strop verl eval data.path=x.parquet" in output
    imported(cli, "all", script, "--only", "2")
    assert Path("all.yaml").read_text() == Path("run-2.yaml").read_text().replace("run.yaml", "all.yaml")


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("make all\n", [], "runs no command of verl, Trinity-RFT, TRL or AzureML. It would run: make."),
        (
            "python3 -m verl.trainer.main_ppo data.train_batch_siz=3 trainer.zzz=1\n",
            [],
            "did you mean 'data.train_batch_size'?",
        ),
        (
            "set -u\npython3 -m verl.trainer.main_ppo model=$NOWHERE_SET\n",
            [],
            "NOWHERE_SET: unbound variable",
        ),
        (None, [], "there is no such file"),
        (PPO, ["--only", "2"], "write a number from 1 to 1"),
    ],
)
def test_errors_are_one_paragraph(cli: Cli, text: str | None, words: list[str], message: str) -> None:
    if text is not None:
        Path("launch.sh").write_text(text)
    result = cli("import", "launch.sh", *words)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_commands_of_trl(cli: Cli) -> None:
    Path("train.py").write_text(
        "import sys\nfrom datasets import load_dataset\nfrom trl import SFTConfig, SFTTrainer\n"
        "SFTTrainer(model='m', args=SFTConfig('o', max_steps=int(sys.argv[1]), assistant_only_loss=True),\n"
        "           train_dataset=load_dataset('json', data_files='t.jsonl', split='train', cache_dir='c')).train()\n"
    )
    Path("t.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    script = (
        "cat > c.yaml <<EOF\nmodel_name_or_path: m\ndataset_name: d\nEOF\n"
        "trl grpo --config c.yaml --num_generations 4\n"
        "accelerate launch --num_processes 2 trl/scripts/dpo.py --model_name_or_path m --dataset_name d\n"
        "accelerate launch --num_processes 4 train.py 3 > out.log\n"
    )
    output = imported(cli, "trl", script)
    grpo, dpo, sft = (read(f"trl-{number}") for number in (1, 2, 3))
    assert grpo["algorithm"]["rollouts_per_task"] == 4 and grpo["trainer"]["tasks_per_step"] == 2
    assert dpo["algorithm"]["type"] == "dpo" and dpo["trainer"]["tasks_per_step"] == 16
    assert sft["data"]["train"]["path"] == "t.jsonl" and sft["trainer"]["duration"] == "3 updates"
    assert sft["trainer"]["tasks_per_step"] == 32 and "WORLD_SIZE=4 strop train train.py -- 3" in output

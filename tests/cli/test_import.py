"""`strop import`: a run file for each training command of a launch script."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.dialects.trinity_file import BASE

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


def test_one_command_of_verl(cli: Cli) -> None:
    Path("launch.sh").write_text(PPO)
    result = cli("import", "launch.sh", "my/model")
    assert result.exit_code == 0, result.output
    run = yaml.safe_load(Path("launch.yaml").read_text())
    assert run["model"]["path"] == "my/model"
    assert run["trainer"]["tasks_per_step"] == 32 and run["trainer"]["tasks_per_update"] == 16
    assert "strop train launch.yaml" in result.output and "strop verl ppo algorithm.adv" in result.output
    assert cli("explain", "launch.yaml").exit_code == 0
    again = cli("import", "launch.sh")
    assert again.exit_code == 2 and "launch.yaml exists already" in again.stderr


def test_recipes_of_verl_have_configurations_of_their_own(cli: Cli) -> None:
    Path("dapo.sh").write_text(PPO.replace("verl.trainer.main_ppo", "recipe.dapo.main_dapo"))
    result = cli("import", "dapo.sh")
    assert result.exit_code == 0, result.output
    assert "--config-name=dapo_trainer" in result.output
    assert yaml.safe_load(Path("dapo.yaml").read_text())["project"] == "verl-dapo"
    Path("sppo.sh").write_text(PPO.replace("verl.trainer.main_ppo", "recipe.sppo.main_sppo"))
    assert cli("import", "sppo.sh", "--here").exit_code == 0
    assert yaml.safe_load(Path("sppo.yaml").read_text())["algorithm"]["type"] == "self_play"


def test_several_commands(cli: Cli) -> None:
    lines = [
        "torchrun --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer data.train_files=s.parquet "
        "data.prompt_key=q data.response_key=a model.partial_pretrain=m",
        f"cat > t.yaml <<EOF\n{BASE}EOF",
        "export TRINITY_CHECKPOINT_ROOT_DIR=out",
        "nohup trinity run --config t.yaml > log &",
        "wait",
        "python3 -m verl.trainer.main_eval data.path=x.parquet",
    ]
    Path("all.sh").write_text("\n".join(lines))
    result = cli("import", "all.sh", "--output", "run.yaml")
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(Path("run-1.yaml").read_text())["algorithm"] == {"type": "sft"}
    assert yaml.safe_load(Path("run-2.yaml").read_text())["model"]["path"] == "m"
    assert not Path("run-3.yaml").exists() and "strop verl eval data.path=x.parquet" in result.output
    chosen = cli("import", "all.sh", "--only", "2")
    assert chosen.exit_code == 0 and Path("all.yaml").read_text() == Path("run-2.yaml").read_text().replace(
        "run.yaml", "all.yaml"
    )


def test_errors_are_one_paragraph(cli: Cli) -> None:
    Path("no.sh").write_text("make all\n")
    Path("bad.sh").write_text("python3 -m verl.trainer.main_ppo data.train_batch_siz=3 trainer.zzz=1\n")
    Path("unset.sh").write_text("set -u\npython3 -m verl.trainer.main_ppo model=$NOWHERE_SET\n")
    for name, said in (
        ("no.sh", "runs no command of verl, Trinity-RFT, TRL or AzureML. It would run: make."),
        ("bad.sh", "did you mean 'data.train_batch_size'?"),
        ("unset.sh", "NOWHERE_SET: unbound variable"),
        ("none.sh", "there is no such file"),
    ):
        result = cli("import", name)
        assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.output
    Path("two.sh").write_text(PPO)
    assert "write a number from 1 to 1" in cli("import", "two.sh", "--only", "2").stderr


def test_commands_of_trl(cli: Cli) -> None:
    Path("train.py").write_text(
        "from trl import SFTConfig, SFTTrainer\n"
        "SFTTrainer(model='m', args=SFTConfig(max_steps=3, assistant_only_loss=True),\n"
        "           train_dataset=load_dataset('json', data_files='t.jsonl')).train()\n"
    )
    Path("trl.sh").write_text(
        "cat > c.yaml <<EOF\nmodel_name_or_path: m\ndataset_name: d\nEOF\n"
        "trl grpo --config c.yaml --num_generations 4\n"
        "accelerate launch --num_processes 2 trl/scripts/dpo.py --model_name_or_path m --dataset_name d\n"
        "python train.py > out.log\n"
    )
    result = cli("import", "trl.sh")
    assert result.exit_code == 0, result.output
    runs = [yaml.safe_load(Path(f"trl-{number}.yaml").read_text()) for number in (1, 2, 3)]
    assert runs[0]["algorithm"]["rollouts_per_task"] == 4 and runs[0]["trainer"]["tasks_per_step"] == 2
    assert runs[1]["algorithm"]["type"] == "dpo" and runs[1]["trainer"]["tasks_per_step"] == 16
    assert runs[2]["data"]["train"]["path"] == "t.jsonl" and "strop train train.py" in result.output

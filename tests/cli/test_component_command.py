"""End-to-end tests of each component's `command:` line, with every default passed as AzureML passes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.models.formats.mlflow import write_mlflow
from strop.training.checkpoints import checkpoint

from .test_component import folder as component_folder

folder = component_folder
COMPONENTS = Path(__file__).parents[2] / "components"
VERL: dict[str, Any] = {
    "data_train_files": "train.jsonl",
    "data_val_files": "val.jsonl",
    "actor_model_path": "tiny",
    "data_train_batch_size": 4,
    "data_max_response_length": 8,
    "rollout_n": 2,
    "total_training_steps": 1,
}
BOUND: dict[str, dict[str, Any]] = {
    "rft_trainer": VERL | {"actor_rft_mini_batch_size": 4},
    "verl_trainer": VERL | {"actor_ppo_mini_batch_size": 4, "actor_model_path": "imported"},
    "grpo": {
        "dataset_train_split": "choice_train.jsonl",
        "dataset_validation_split": "choice_val.jsonl",
        "model_name_or_path": "tiny",
        "deepspeed_config": "ds.json",
        "max_steps": 3,
        "max_prompt_length": 600,
        "max_completion_length": 8,
    },
}
AZUREML = {
    "AZUREML_RUN_ID": "strop_test",
    "MLFLOW_TRACKING_URI": "azureml://nowhere.invalid/workspace",
    "MLFLOW_RUN_ID": "strop_test",
    "WORLD_SIZE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "NODE_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "6105",
}
"""Environment variables of a job's processes in AzureML."""


def command(component: str) -> str:
    """The component's command line, with values for inputs and folders for outputs."""
    said = yaml.safe_load((COMPONENTS / component / "component.yaml").read_text())
    values = {name: given["default"] for name, given in said["inputs"].items() if "default" in given}
    values |= BOUND[component]

    def optional(match: re.Match[str]) -> str:
        name = re.search(r"inputs\.(\w+)", match[1])
        return match[1] if name and name[1] in values else ""

    line = re.sub(r"\$\[\[(.*?)\]\]", optional, said["command"])
    line = re.sub(r"\$\{\{inputs\.(\w+)\}\}", lambda match: str(values[match[1]]), line)
    return re.sub(r"\$\{\{outputs\.(\w+)\}\}", r"out_\1", line)


def outputs(component: str) -> list[str]:
    """Names of the declared outputs."""
    return list(yaml.safe_load((COMPONENTS / component / "component.yaml").read_text())["outputs"])


@pytest.mark.slow
@pytest.mark.parametrize("component", BOUND)
def test_command_runs_end_to_end(component: str, folder: Path) -> None:
    if component == "verl_trainer":
        imported = folder / "imported" / "tiny"
        imported.mkdir(parents=True)
        write_mlflow(folder / "tiny", imported, max_new_tokens=8)
    for name in outputs(component):
        (folder / f"out_{name}").mkdir()  # AzureML creates the output folders
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command(component),
        shell=True,
        cwd=folder,
        env=os.environ | AZUREML | {"STROP_HERE": "1", "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "overridden: " in done.stdout
    assert done.stderr == ""
    models = {
        "rft_trainer": ["out_model_output"],
        "verl_trainer": ["out_model_output"],
        "grpo": ["out_mlflow_model_folder/model", "out_output_model_path/model"],
    }
    for model in models[component]:
        AutoModelForCausalLM.from_pretrained(folder / model)
        AutoTokenizer.from_pretrained(folder / model)
    runs = {"rft_trainer": "out_intermediate_folder", "grpo": "out_output_model_path"}
    if component in runs:
        assert checkpoint.latest(folder / runs[component] / "checkpoints")[0] is not None
    if component == "grpo":
        mlflow.transformers.load_model(str(folder / "out_mlflow_model_folder"))
    assert {Path(found).parts[0] for found in (*models[component], *filter(None, [runs.get(component)]))} == {
        f"out_{name}" for name in outputs(component)
    }

"""The AzureML components to the end: each fills every output that it declares."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.compat.azureml.grpo import SYSTEM_PROMPT
from strop.models.formats.mlflow import write_mlflow
from strop.models.tiny import make_model
from strop.training.checkpoints import checkpoint
from tests.cases import nightly
from tests.files import digest

from .conftest import Cli
from .foreign import rows, verl_rows, write_rows

COMPONENTS = Path(__file__).parents[2] / "components"
VERL = {"data_train_files": "train.jsonl", "data_val_files": "val.jsonl", "actor_model_path": "tiny"}
VERL |= {"data_train_batch_size": 4, "data_max_response_length": 8, "rollout_n": 2}
GRPO = {"dataset_train_split": "choice_train.jsonl", "dataset_validation_split": "choice_val.jsonl"}
GRPO |= {"model_name_or_path": "tiny", "deepspeed_config": "ds.json"}
GRPO |= {"max_prompt_length": 600, "max_completion_length": 8}
INPUTS = {
    "rft_trainer": VERL | {"actor_rft_mini_batch_size": 2, "trainer_total_epochs": 1},
    "verl_trainer": VERL | {"actor_ppo_mini_batch_size": 4, "total_training_steps": 1},
    "grpo": GRPO | {"max_steps": 3},
}
AZUREML = {"AZUREML_RUN_ID": "strop_test", "MLFLOW_TRACKING_URI": "azureml://nowhere.invalid/workspace"}
AZUREML |= {"MLFLOW_RUN_ID": "strop_test", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
AZUREML |= {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "6105"}
"""Environment variables of a job's processes in AzureML."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and the data of all components; to be read only."""
    made = tmp_path_factory.mktemp("components")
    tasks, questions = verl_rows(12), rows("medmcqa/train.jsonl", 12)
    for name, found in (("", tasks), ("choice_", questions)):
        write_rows(made / f"{name}train.jsonl", found[:8])
        write_rows(made / f"{name}val.jsonl", found[8:])
    zero = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}
    (made / "ds.json").write_text(json.dumps(zero))
    make_model(made / "tiny", [task["prompt"][0]["content"] for task in tasks], vocab_size=400)
    (made / "imported").mkdir()
    write_mlflow(made / "tiny", made / "imported" / "tiny", max_new_tokens=8)
    return made


@pytest.fixture
def folder(tmp_path: Path, data: Path) -> Path:
    for each in data.iterdir():
        (tmp_path / each.name).symlink_to(each)
    return tmp_path


def command(component: str, **changed: Any) -> str:
    """The component's command line, with its defaults, as AzureML passes them, and folders for outputs."""
    said = yaml.safe_load((COMPONENTS / component / "component.yaml").read_text())
    values = {name: given["default"] for name, given in said["inputs"].items() if "default" in given}
    values |= INPUTS[component] | changed

    def optional(match: re.Match[str]) -> str:
        name = re.search(r"inputs\.(\w+)", match[1])
        return match[1] if name and name[1] in values else ""

    line = re.sub(r"\$\[\[(.*?)\]\]", optional, said["command"])
    line = re.sub(r"\$\{\{inputs\.(\w+)\}\}", lambda match: str(values[match[1]]), line)
    return re.sub(r"\$\{\{outputs\.(\w+)\}\}", r"out_\1", line)


def words(component: str, **changed: Any) -> list[str]:
    """The words of the command line after `strop`."""
    return shlex.split(command(component, **changed))[1:]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_outputs(component: str, models: list[str], run: str | None = None) -> None:
    """Assert that the declared outputs are folders with a model that loads, and a run's checkpoint."""
    declared = yaml.safe_load((COMPONENTS / component / "component.yaml").read_text())["outputs"]
    filled = [*models, *filter(None, [run])]
    assert {Path(found).parts[0] for found in filled} == {f"out_{name}" for name in declared}
    for model in models:
        AutoModelForCausalLM.from_pretrained(model)
        AutoTokenizer.from_pretrained(model)
    if run is not None:
        assert checkpoint.latest(Path(run) / "checkpoints")[0] is not None


def adapted(adapter: Path) -> set[str]:
    """Last name parts of the modules that have an adapter."""
    names = load_file(adapter / "adapter_model.safetensors")
    return {name.partition(".lora_")[0].rpartition(".")[2] for name in names}


@pytest.mark.slow
def test_rft_trainer_fills_its_outputs_and_resumes(cli: Cli, folder: Path) -> None:
    more = {"actor_entropy_coeff": 0.1, "actor_optim_lr": 1e-2}
    result = cli(*words("rft_trainer", **more), "--here")
    assert result.exit_code == 0, result.output
    assert_outputs("rft_trainer", ["out_model_output"], "out_intermediate_folder")
    found, _ = checkpoint.latest(folder / "out_intermediate_folder" / "checkpoints")
    assert found is not None and found.name == "step-000002"
    assert {"optimizer.safetensors", "rng.safetensors", "model"} <= {path.name for path in found.iterdir()}
    trained = folder / "out_model_output" / "model.safetensors"
    assert not any("lora" in name for name in load_file(trained))
    first = trained.read_bytes()

    result = cli(*words("rft_trainer", **more, trainer_total_epochs=2), "--here")
    assert result.exit_code == 0, result.output
    assert "Resuming after step 2, from out_intermediate_folder/checkpoints/step-000002" in result.output
    assert [row["step"] for row in metrics_of(folder / "out_intermediate_folder")] == [0, 1, 2, 3, 4]
    assert trained.read_bytes() != first


@pytest.mark.slow
def test_verl_trainer_counts_steps_excludes_modules_and_reads_a_model_of_mlflow(
    cli: Cli, folder: Path
) -> None:
    modules = {"actor_model_target_modules": "all-linear", "actor_model_exclude_modules": ".*mlp.*"}
    modules |= {"actor_model_path": "imported", "algorithm_adv_estimator": "rloo"}
    line = (*words("verl_trainer", **modules), "--here")
    explained = cli(*line, "--explain")
    assert "by RLOO on train.jsonl" in explained.output and "The run lasts 1 step" in explained.output
    assert not (folder / "out_model_output").exists()
    result = cli(*line)
    assert result.exit_code == 0, result.output
    assert_outputs("verl_trainer", ["out_model_output"])
    assert adapted(folder / "out_model_output" / "adapter") == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.slow
def test_grpo_counts_updates_and_keeps_the_best_model(cli: Cli, folder: Path) -> None:
    given = {"max_steps": 6, "num_iterations": 2, "save_total_limit": 2, "beta": 0.04}
    result = cli(*words("grpo", **given, eval_strategy="steps", eval_steps=2), "--here")
    assert result.exit_code == 0, result.output
    best_folder, out = folder / "out_mlflow_model_folder", folder / "out_output_model_path"
    said = f"output mlflow_model_folder, in {best_folder.resolve()}: the trained model as an MLflow model"
    assert said in result.output
    assert "overridden: deepspeed_config.zero_optimization.stage=2" in result.output
    found = metrics_of(out)
    assert [row["step"] for row in found] == [1, 2, 3]
    assert {"reward/part/format", "reward/part/accuracy"} <= found[0].keys()
    assert all("eval/validation/reward" in row for row in found)
    best = max(found, key=lambda row: row["eval/validation/reward"])["step"]
    which = "" if best == 3 else f" (best checkpoint, of step {best})"
    assert f"Finished 3 steps. Model: out_output_model_path/model{which}." in result.output
    kept = out / "checkpoints"
    assert {path.name for path in kept.iterdir()} == {f"step-{best:06d}", "step-000003"}
    for path in kept.iterdir():
        checkpoint.verify(path)
        names = {file.name for file in path.rglob("*")}
        assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
        assert {"optimizer.safetensors", "state.json", "rng.safetensors"} <= names
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    text = tokenizer.apply_chat_template([{"role": "system", "content": SYSTEM_PROMPT}], tokenize=False)
    assert text.startswith("<|system|>\nA conversation")
    assert adapted(out / "model" / "adapter") == {"q_proj", "k_proj", "v_proj"}

    weights = kept / f"step-{best:06d}" / "model" / "model.safetensors"
    assert digest(weights) == digest(best_folder / "model" / "model.safetensors")
    assert {path.name for path in (best_folder / "checkpoints").iterdir()} == {p.name for p in kept.iterdir()}
    question = {"messages": [{"role": "user", "content": "Which?"}], "max_tokens": 3}
    (answer,) = mlflow.pyfunc.load_model(str(best_folder)).predict(question)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("component", ["grpo", *nightly("rft_trainer", "verl_trainer")])
def test_a_command_runs_in_a_process_of_azureml(component: str, folder: Path, monkeypatch) -> None:
    """Its variables do not disturb, and nothing is written to stderr."""
    monkeypatch.chdir(folder)
    declared = yaml.safe_load((COMPONENTS / component / "component.yaml").read_text())["outputs"]
    for name in declared:
        (folder / f"out_{name}").mkdir()  # AzureML creates the output folders
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | AZUREML | {"STROP_HERE": "1", "PATH": path}
    done = subprocess.run(command(component), shell=True, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "overridden: " in done.stdout and done.stderr == ""
    match component:
        case "grpo":
            models = ["out_mlflow_model_folder/model", "out_output_model_path/model"]
            assert_outputs(component, models, "out_output_model_path")
            mlflow.transformers.load_model("out_mlflow_model_folder")
        case "rft_trainer":
            assert_outputs(component, ["out_model_output"], "out_intermediate_folder")
        case _:
            assert_outputs(component, ["out_model_output"])


@pytest.mark.parametrize("option", ["--explain", pytest.param("--save_steps=3", marks=pytest.mark.slow)])
def test_grpo_trains_on_two_processes_with_its_deepspeed_file(cli: Cli, folder: Path, option: str) -> None:
    """ZeRO-3 with offload; the file's whole batch is that of two processes."""
    offload = {"device": "cpu", "pin_memory": True}
    zero = {"stage": 3, "offload_optimizer": offload, "offload_param": offload, "reduce_bucket_size": "auto"}
    sections = {"zero_optimization": zero, "train_batch_size": 8, "gradient_clipping": "auto"}
    (folder / "ds2.json").write_text(json.dumps(sections))
    given = GRPO | {"deepspeed_config": "ds2.json", "output_model_path": "out", "max_steps": 3}
    given |= {"per_device_train_batch_size": 4, "num_iterations": 1}
    result = cli("component", "grpo", *(f"--{name}={value}" for name, value in given.items()), option)
    assert result.exit_code == 0, result.output
    assert "overridden" not in result.output
    if option == "--explain":
        values = dict(
            line.split()[:2] for line in result.output.splitlines() if line.startswith("trainer.engine.")
        )
        assert values["trainer.engine.type"] == "deepspeed" and values["trainer.engine.ranks"] == "2"
        return
    assert "2 processes (DeepSpeed ZeRO-3, optimizer and parameters in CPU memory)" in result.output
    assert [row["step"] for row in metrics_of(folder / "out")] == [1, 2, 3]
    kept = {path.name for path in (folder / "out" / "checkpoints" / "step-000003").iterdir()}
    assert {"weights-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"} <= kept
    AutoModelForCausalLM.from_pretrained(folder / "out" / "model")

"""End-to-end tests of the AzureML components: each fills every output that it declares."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.dialects.azureml.grpo_converters import SYSTEM_PROMPT
from strop.models.tiny import make_model
from strop.training.checkpoints import checkpoint
from tests.files import digest

from .conftest import Cli
from .foreign import rows, verl_rows, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model and the data of all components."""
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


def adapted(adapter: Path) -> set[str]:
    """Last name parts of the modules that have an adapter."""
    names = load_file(adapter / "adapter_model.safetensors")
    return {name.partition(".lora_")[0].rpartition(".")[2] for name in names}


@pytest.mark.slow
def test_rft_trainer_fills_outputs_and_resumes(cli: Cli, folder: Path) -> None:
    words = ["--actor_rft_mini_batch_size=2", "--actor_entropy_coeff=0.1", "--actor_optim_lr=1e-2"]
    outputs = ["--intermediate_folder", "inter", "--model_output", "out"]
    line = ("component", "rft_trainer", "--here", *VERL, *SMALL, *words, *outputs)
    result = cli(*line, "--trainer_total_epochs", "1")
    assert result.exit_code == 0, result.output
    found, _ = checkpoint.latest(folder / "inter" / "checkpoints")
    assert found is not None and found.name == "step-000002"
    assert {"optimizer.safetensors", "rng.safetensors", "model"} <= {path.name for path in found.iterdir()}
    model = AutoModelForCausalLM.from_pretrained(folder / "out")
    assert not any("lora" in name for name, _ in model.named_parameters())
    AutoTokenizer.from_pretrained(folder / "out")
    first = (folder / "out" / "model.safetensors").read_bytes()

    result = cli(*line, "--trainer_total_epochs", "2")
    assert result.exit_code == 0, result.output
    assert "Resuming after step 2, from inter/checkpoints/step-000002" in result.output
    steps = [json.loads(row)["step"] for row in (folder / "inter" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3, 4]
    assert (folder / "out" / "model.safetensors").read_bytes() != first


@pytest.mark.slow
def test_verl_trainer_counts_steps_and_excludes_modules(cli: Cli, folder: Path) -> None:
    words = ["--actor_ppo_mini_batch_size=4", "--total_training_steps=1", "--algorithm_adv_estimator", "rloo"]
    modules = ["--actor_model_target_modules=all-linear", "--actor_model_exclude_modules=.*mlp.*"]
    line = ("component", "verl_trainer", "--here", *VERL, *SMALL, *words, *modules, "--model_output", "out")
    explained = cli(*line, "--explain")
    assert "by RLOO on train.jsonl" in explained.output and "The run lasts 1 step" in explained.output
    assert not (folder / "out").exists()
    result = cli(*line)
    assert result.exit_code == 0, result.output
    AutoModelForCausalLM.from_pretrained(folder / "out")
    assert adapted(folder / "out" / "adapter") == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.slow
def test_grpo_counts_updates_and_keeps_the_best_model(cli: Cli, folder: Path) -> None:
    data = ["--dataset_train_split=choice_train.jsonl", "--dataset_validation_split=choice_val.jsonl"]
    given = ["--model_name_or_path", "tiny", "--deepspeed_config", "ds.json", "--output_model_path", "out"]
    words = ["--max_steps=6", "--num_iterations=2", "--save_total_limit=2", "--max_completion_length=8"]
    more = ["--max_prompt_length=600", "--eval_strategy=steps", "--eval_steps=2", "--beta=0.04"]
    result = cli("component", "grpo", "--here", *data, *given, *words, *more, "--mlflow_model_folder=best")
    assert result.exit_code == 0, result.output
    assert "output mlflow_model_folder, in best: the trained model as an MLflow model" in result.output
    assert "overridden: deepspeed_config.zero_optimization.stage=2" in result.output
    found = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found] == [1, 2, 3]
    assert {"reward/part/format", "reward/part/accuracy"} <= found[0].keys()
    assert all("eval/validation/reward" in row for row in found)
    best = max(found, key=lambda row: row["eval/validation/reward"])["step"]
    which = "" if best == 3 else f" (best checkpoint, of step {best})"
    assert f"Finished 3 steps. Model: out/model{which}." in result.output
    kept = folder / "out" / "checkpoints"
    assert {path.name for path in kept.iterdir()} == {f"step-{best:06d}", "step-000003"}
    for path in kept.iterdir():
        checkpoint.verify(path)
        names = {file.name for file in path.rglob("*")}
        assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
        assert {"optimizer.safetensors", "state.json", "rng.safetensors"} <= names
    tokenizer = AutoTokenizer.from_pretrained(folder / "out" / "model")
    text = tokenizer.apply_chat_template([{"role": "system", "content": SYSTEM_PROMPT}], tokenize=False)
    assert text.startswith("<|system|>\nA conversation")
    assert adapted(folder / "out" / "model" / "adapter") == {"q_proj", "k_proj", "v_proj"}

    weights = [
        path / "model.safetensors" for path in (kept / f"step-{best:06d}" / "model", folder / "best/model")
    ]
    assert digest(weights[0]) == digest(weights[1])
    assert {path.name for path in (folder / "best/checkpoints").iterdir()} == {p.name for p in kept.iterdir()}
    question = {"messages": [{"role": "user", "content": "Which?"}], "max_tokens": 3}
    (answer,) = mlflow.pyfunc.load_model(str(folder / "best")).predict(question)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] <= 3


@pytest.mark.slow
def test_grpo_trains_on_two_processes_with_its_deepspeed_file(cli: Cli, folder: Path) -> None:
    """ZeRO-3 with offload; the file's whole batch is that of two processes."""
    offload = {"device": "cpu", "pin_memory": True}
    zero = {"stage": 3, "offload_optimizer": offload, "offload_param": offload, "reduce_bucket_size": "auto"}
    sections = {"zero_optimization": zero, "train_batch_size": 8, "gradient_clipping": "auto"}
    (folder / "ds.json").write_text(json.dumps(sections))
    data = ["--dataset_train_split=choice_train.jsonl", "--dataset_validation_split=choice_val.jsonl"]
    given = ["--model_name_or_path", "tiny", "--deepspeed_config", "ds.json", "--output_model_path", "out"]
    words = ["--per_device_train_batch_size=4", "--max_prompt_length=600", "--max_completion_length=8"]
    line = ("component", "grpo", *data, *given, *words, "--save_steps=3")
    result = cli(*line, "--max_steps=3", "--num_iterations=1")
    assert result.exit_code == 0, result.output
    assert "overridden" not in result.output
    assert "2 processes (DeepSpeed ZeRO-3, optimizer and parameters in CPU memory)" in result.output
    rows = [json.loads(row) for row in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    kept = {path.name for path in (folder / "out" / "checkpoints" / "step-000003").iterdir()}
    assert {"weights-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"} <= kept
    AutoModelForCausalLM.from_pretrained(folder / "out" / "model")


def test_unwritable_output_is_refused_before_the_run(cli: Cli, folder: Path) -> None:
    (folder / "file").touch()
    result = cli("component", "verl_trainer", "--here", *VERL, "--model_output", "file")
    assert result.exit_code == 2 and "The output folder file is not writable: File exists." in result.stderr
    given = ["--model_name_or_path=tiny", "--deepspeed_config=ds.json", "--dataset_name=x/y"]
    result = cli("component", "grpo", "--here", *given, "--output_model_path=a", "--mlflow_model_folder=./a")
    assert (
        result.exit_code == 2 and "--mlflow_model_folder and --output_model_path both name" in result.stderr
    )

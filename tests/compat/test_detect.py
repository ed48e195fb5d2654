"""Tests of the detection of a file's dialect."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.compat.detect import detect_dialect
from strop.config.load.yaml_file import read_yaml
from strop.errors import ConfigError
from strop.reading import read_any
from tests.config.conftest import RUN

FILES = {
    "strop": RUN,
    "verl": "algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {rollout: {n: 4}, model: {path: m}}\n",
    "verl-sft": "model: {partial_pretrain: m}\ndata: {train_files: t.parquet}\n",
    "verl-eval": "data: {path: a.parquet}\ncustom_reward_function: {path: r.py}\n",
    "verl-generate": "data: {path: a.parquet, n_samples: 2}\nmodel: {path: m}\n",
    "trinity": (
        "algorithm: {algorithm_type: grpo}\n"
        "model: {model_path: m, max_prompt_tokens: 9, max_response_tokens: 9}\n"
        "buffer: {default_reward_fn_type: math_reward, explorer_input: {taskset: {path: t.jsonl}}}\n"
    ),
    "rft_trainer": (
        "actor_model_path: m\ndata_train_files: t\ndata_val_files: v\nactor_rft_mini_batch_size: 64\n"
    ),
    "verl_trainer": (
        "inputs:\n  actor_model_path: {type: uri_folder, path: m}\n  data_train_files: {path: t}\n"
        "  data_val_files: {path: v}\n  ENGINE: vllm\n  actor_use_kl_loss: false\n"
        "outputs: {model_output: o}\n"
    ),
    "grpo": (
        "model_name_or_path: m\ndataset_name: org/name\ndeepspeed_config: ds.json\nnum_generations: 4\n"
        "do_eval: true\n"
    ),
}


@pytest.mark.parametrize("dialect", FILES)
def test_dialect_is_detected_and_read(dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text("{}")
    path = Path("config.yaml")
    path.write_text(FILES[dialect])
    assert detect_dialect(read_yaml(path)) == dialect
    if dialect in ("verl-eval", "verl-generate"):
        with pytest.raises(ConfigError, match=f"strop verl {dialect.removeprefix('verl-')} --config"):
            read_any(path)
        return
    job = read_any(path, here=True)
    assert job.loaded.run.model.path == "m"
    if dialect == "verl_trainer":
        assert job.output_folders("model") == (Path("o"),) and job.loaded.run.algorithm.kl_loss is None


def test_component_file_accepts_no_overrides(tmp_path: Path) -> None:
    path = tmp_path / "inputs.yaml"
    path.write_text(FILES["rft_trainer"])
    with pytest.raises(ConfigError, match="strop component rft_trainer --input value"):
        read_any(path, ["rollout_n=4"])


JOB = Path(__file__).parents[2] / "examples" / "azureml" / "job.yaml"


def test_the_only_job_of_a_pipeline_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its paths are relative to the file, as for `az ml job create`; STROP_HERE is one of its variables."""
    (tmp_path / "examples" / "azureml").mkdir(parents=True)
    (tmp_path / "runs" / "azureml").mkdir(parents=True)
    (tmp_path / "runs" / "azureml" / "deepspeed.json").write_text("{}", encoding="utf-8")
    file = tmp_path / "examples" / "azureml" / "job.yaml"
    file.write_text(JOB.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.delenv("STROP_HERE", raising=False)
    run = read_any(file).loaded.run
    assert str(run.trainer.duration) == "2 epochs"
    assert Path(run.model.path).resolve() == tmp_path / "runs" / "azureml" / "model"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("jobs:\n", "jobs:\n  first: {type: command}\n"), "pipeline of 2 jobs"),
        (("${{parent.inputs.model}}", "${{parent.jobs.import.outputs.model}}"), "only a workspace knows"),
        (("${{parent.inputs.model}}", "${{parent.inputs.mode}}"), "only a workspace knows"),
    ],
)
def test_pipelines_that_only_a_workspace_knows(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"job\.yaml:\d+: .*{message}.*write the inputs of one job"):
        read_any(file)

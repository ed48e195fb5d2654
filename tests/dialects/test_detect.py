"""Tests of the detection of a file's dialect."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.load.yaml_file import read_yaml
from strop.dialects.detect import detect_dialect, read_any
from strop.errors import ConfigError
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


def test_pipeline_is_refused() -> None:
    job = Path(__file__).parents[2] / "examples" / "azureml" / "job.yaml"
    with pytest.raises(ConfigError, match=r"job\.yaml:\d+: this file is an AzureML pipeline"):
        read_any(job)

"""`use_vllm` of TRL: the engine, the server of `trl vllm-serve`, and the correction of vLLM's probabilities.

Expectations are TRL 1.16.0's: the fields of trl/trainer/grpo_config.py, and the weights of grpo_trainer.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.importance import compute_importance_weights
from strop.config.load.loader import LoadedRun
from strop.config.schema.inference_engine import NativeEngineConfig, OpenAiEngineConfig, VllmEngineConfig
from strop.config.schema.off_policy import ImportanceCorrectionConfig
from strop.dialects.convert import convert
from strop.dialects.detect import read_any
from strop.dialects.job import Job
from strop.dialects.trl.reader import TrlProgram, read_trl_arguments
from strop.errors import ConfigError

SERVER = "--use_vllm --vllm_mode server"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)


def read(text: str, program: TrlProgram = "grpo", here: bool = False) -> LoadedRun:
    arguments = ["--model_name_or_path", "m", "--dataset_name", "train.jsonl", *text.split()]
    return read_trl_arguments(program, arguments, here=here)


@pytest.mark.parametrize("program", ["grpo", "rloo"])
def test_colocated_vllm(program: TrlProgram) -> None:
    options = "--use_vllm --vllm_tensor_parallel_size 2 --vllm_max_model_length 900 --vllm_enable_sleep_mode"
    run = read(f"{options} --vllm_model_impl transformers", program).run
    rollout = run.rollout
    assert rollout.engine == VllmEngineConfig(
        tensor_parallel=2,
        gpu_memory_utilization=0.3,
        max_model_len=900,
        engine_kwargs={"model_impl": "transformers"},
    )
    assert rollout.release_memory is True
    assert (run.data.max_prompt_tokens, run.data.overlong) == (900 - 512, "error")


@pytest.mark.parametrize(
    ("options", "url", "retries"),
    [
        (SERVER, "http://127.0.0.1:8000/v1", 8),  # 1 + 2 + ... + 128 = 255 seconds of waiting
        (f"{SERVER} --vllm_server_host node-3 --vllm_server_port 9000", "http://node-3:9000/v1", 8),
        (f"{SERVER} --vllm_server_base_url http://localhost:9/", "http://localhost:9/v1", 8),
        (f"{SERVER} --vllm_server_timeout 7", "http://127.0.0.1:8000/v1", 3),
    ],
)
def test_server(options: str, url: str, retries: int) -> None:
    assert read(options).run.rollout.engine == OpenAiEngineConfig(
        base_url=url, model="m", weight_updates="vllm", retries=retries
    )


@pytest.mark.parametrize(
    ("options", "key", "reason"),
    [
        ("--vllm_mode server", "vllm_mode", "use_vllm is False"),
        (f"{SERVER} --vllm_gpu_memory_utilization 0.5", "vllm_gpu_memory_utilization", "vllm_mode is server"),
        ("--use_vllm --vllm_server_port 1", "vllm_server_port", "vllm_mode is colocate"),
        (
            f"{SERVER} --vllm_server_base_url http://localhost:9 --vllm_server_port 1",
            "vllm_server_port",
            "vllm_server_base_url is set",
        ),
        ("--vllm_importance_sampling_mode token_mask", "vllm_importance_sampling_mode", "use_vllm is False"),
        (
            "--use_vllm --no_vllm_importance_sampling_correction --vllm_importance_sampling_clip_max 2.0",
            "vllm_importance_sampling_clip_max",
            "vllm_importance_sampling_correction is False",
        ),
    ],
)
def test_an_option_of_another_mode_has_no_effect(options: str, key: str, reason: str) -> None:
    (note,) = [note for note in read(options).notes if f"({key})" in note or key in note.split(":")[0]]
    assert "inactive" in note and reason in note


def test_here_replaces_vllm() -> None:
    loaded = read(f"{SERVER} --vllm_server_port 9", here=True)
    assert [item.key for item in loaded.overridden] == ["use_vllm"]
    assert isinstance(loaded.run.rollout.engine, NativeEngineConfig)
    assert loaded.run.algorithm.importance_correction is None


@pytest.mark.parametrize("options", ["", "--use_vllm --no_vllm_importance_sampling_correction"])
def test_without_correction(options: str) -> None:
    assert read(options).run.algorithm.importance_correction is None


def trl_weights(log_ratios: list[float], mode: str, low: float | None, high: float) -> list[float]:
    """The factors of one completion's tokens, as in GRPOTrainer._generate_and_score_completions."""
    difference = torch.tensor([log_ratios])
    ratio = torch.exp(difference.sum(-1, keepdim=True) if mode.startswith("sequence") else difference)
    if mode.endswith("truncate"):
        ratio = torch.clamp(ratio, min=low, max=high)
    else:
        outside = (ratio < (-torch.inf if low is None else low)) | (ratio > high)
        ratio = ratio.masked_fill(outside, value=0.0)
    return ratio.expand(1, len(log_ratios))[0].tolist()


@pytest.mark.parametrize("log_ratios", [[0.1, -0.3, 0.2], [1.5, 0.4, -0.1], [-2.0, 0.1, -3.0]])
@pytest.mark.parametrize(
    ("options", "mode", "low", "high"),
    [
        ("", "sequence_mask", None, 3.0),
        ("--vllm_importance_sampling_mode sequence_truncate", "sequence_truncate", None, 3.0),
        ("--vllm_importance_sampling_mode token_truncate", "token_truncate", None, 3.0),
        ("--vllm_importance_sampling_mode token_mask", "token_mask", None, 3.0),
        ("--vllm_importance_sampling_clip_min 0.5", "sequence_mask", 0.5, 3.0),
        (
            "--vllm_importance_sampling_mode token_mask --vllm_importance_sampling_clip_min 0.8 "
            "--vllm_importance_sampling_clip_max 1.2",
            "token_mask",
            0.8,
            1.2,
        ),
        ("--vllm_importance_sampling_cap 1.1", "sequence_mask", None, 1.1),
    ],
)
def test_weights_are_those_of_trl(
    log_ratios: list[float], options: str, mode: str, low: float | None, high: float
) -> None:
    section = read(f"--use_vllm {options}").run.algorithm.importance_correction
    assert isinstance(section, ImportanceCorrectionConfig)
    sampler = torch.tensor([-1.0, -2.0, -0.5])
    targets = TargetTokens.concatenated(torch.tensor([len(log_ratios)]))
    found = compute_importance_weights(sampler + torch.tensor(log_ratios), sampler, targets, section)
    assert found.weights.tolist() == pytest.approx(trl_weights(log_ratios, mode, low, high), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--vllm_importance_sampling_clip_max null", "write 3.0, for example"),
        (
            "--vllm_importance_sampling_mode token_truncate --vllm_importance_sampling_clip_min 0.5",
            "write vllm_importance_sampling_mode token_mask",
        ),
        ("--vllm_mode remote", "vllm_mode must be colocate or server"),
        ("--vllm_structured_outputs_regex a+", "sampled without a grammar"),
        ("--vllm_max_model_length 512", "leaves no token for the prompt"),
    ],
)
def test_refused(options: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"--use_vllm {options}")
    assert expected in str(caught.value) and len(caught.value.faults) == 1


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("grpo", "--use_vllm --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.5"),
        ("grpo", "--use_vllm --vllm_model_impl transformers --vllm_enable_sleep_mode"),
        ("grpo", "--use_vllm --vllm_max_model_length 4096"),
        ("grpo", "--use_vllm --vllm_max_model_length 4096 --max_prompt_length 100"),
        ("grpo", f"{SERVER} --vllm_server_port 9000 --vllm_importance_sampling_clip_min 0.5"),
        ("grpo", "--use_vllm --vllm_importance_sampling_mode token_truncate"),
        ("grpo", "--use_vllm --no_vllm_importance_sampling_correction"),
        ("rloo", f"{SERVER} --vllm_server_base_url http://localhost:9 --vllm_server_timeout 15"),
    ],
)
def test_conversion_in_both_directions(program: TrlProgram, options: str) -> None:
    loaded = read(options, program)
    found: Any = convert(Job(loaded), "trl")
    assert found.unsupported == ()
    Path("again.yaml").write_text(yaml.safe_dump(dict(found.values)))
    assert read_any(Path("again.yaml")).loaded.run == loaded.run

"""Tests of Trinity's stages (one run per stage, from the model of the previous one) and of auxiliary
models."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.load.loader import LoadedRun
from strop.config.schema.rollout import AuxiliaryModelConfig
from strop.config.units import Amount
from strop.errors import ConfigError

from .trinity_file import BASE, read

pytestmark = pytest.mark.usefixtures("trinity_file")
STAGES = """\
trainer: {total_steps: 1000}
stages:
- stage_name: sft_warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 64
    total_steps: 100
    trainer_input:
      experience_buffer: {name: sft_buffer, path: given.jsonl}
- stage_name: rft
"""


def staged(text: str = STAGES) -> LoadedRun:
    Path("t.yaml").write_text(BASE + text)
    return read()


def test_the_pages_stages() -> None:
    loaded = staged()
    warm, rft = (each.run for each in loaded.stages)
    assert (warm.name, warm.algorithm.type, warm.trainer.duration) == (
        "rft-sft_warmup",
        "sft",
        Amount(100, "steps"),
    )
    assert (warm.data.train.path, warm.trainer.tasks_per_step, warm.model.path) == ("given.jsonl", 64, "m")
    assert (rft.name, rft.algorithm.type, rft.trainer.duration) == ("rft-rft", "grpo", Amount(1000, "steps"))
    assert rft.model.path == str(warm.folder_path / "model") and loaded.run == rft
    assert str(loaded.sources["model.path"]) == "the model of stage sft_warmup (model.model_path)"
    assert "t.yaml:18" in str(loaded.stages[0].sources["trainer.duration"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stages: [{stage_name: a}, {stage_name: a}]", "is already the name of another stage"),
        ("stages: [{mode: train}]", "expected a name, got None"),
        ("stages: [{stage_name: a, algorithms: {}}]", "did you mean 'algorithm'"),
        ("stages: [{stage_name: a, model: {}}]", "for the whole file"),
        (
            "stages: [{stage_name: a, algorithm: {repeat_tims: 3}}]",
            r"t\.yaml:11: trinity has no key algorithm",
        ),
        ("stages: 3", "must be a list of stages"),
    ],
)
def test_invalid_stages_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        staged(text)


def test_no_stages_are_one_run() -> None:
    assert staged("stages: []").stages == ()


def test_bench_evaluates_the_runs_checkpoints() -> None:
    run = read("mode=bench", "+synchronizer.sync_method=checkpoint", "+explorer.eval_on_startup=false").run
    assert (run.mode, run.bench.initial_model, run.bench.checkpoints) == ("bench", False, ())
    assert read("mode=bench", "+synchronizer.sync_method=nccl").run.mode == "bench"


def test_auxiliary_models_are_named_by_their_path() -> None:
    helpers = "+explorer.auxiliary_models=[{model_path: Qwen/Q7, tensor_parallel_size: 1}]"
    assert read(helpers).run.rollout.auxiliary_models == (
        AuxiliaryModelConfig(name="Q7", path="Qwen/Q7", max_response_tokens=32),
    )

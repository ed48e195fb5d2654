"""DeepSpeed configurations: unknown keys, contradictions with the run file, and `auto` values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from strop.config.checks.run import run_faults
from strop.config.deepspeed import engine_config, with_hidden_size
from strop.config.schema import Run
from strop.config.schema.trainer import DeepSpeedEngineConfig

from .refused import rows


def run(config: Any, *, model: Any = None, engine: Any = None, **trainer: Any) -> Run:
    section = "local" if engine == "local" else {"type": "deepspeed", "config": config} | (engine or {})
    sizes = {"tasks_per_step": 8, "microbatch": "4 sequences", "optimizer": {"type": "adamw", "lr": 1e-5}}
    values = {
        "model": {"path": "m", **(model or {})},
        "data": {"train": {"path": "tasks.jsonl"}},
        "reward": "exact",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4},
        "trainer": {**sizes, "engine": section, **trainer},
    }
    return Run.model_validate(values)


def faults(config: Any, **settings: Any) -> list[str]:
    found = list(run_faults(run(config, **settings)))
    return [fault.removeprefix("trainer.engine.config: ") for fault in found]


AUTO = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": "auto"}},
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
}
"""A file as the documentation of transformers shows it."""


def test_auto_agrees_with_everything(tmp_path: Path) -> None:
    assert faults(AUTO) == []
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(AUTO))
    assert faults(str(path)) == []
    engines = [run(config).trainer.engine for config in (str(path), AUTO)]
    assert engine_config(engines[0], "cpu") == engine_config(engines[1], "cpu")


def test_auto_sizes_are_those_of_transformers() -> None:
    config = with_hidden_size(engine_config(run(AUTO).trainer.engine, "cuda"), 100)
    zero = config["zero_optimization"]
    assert zero["reduce_bucket_size"] == 10_000
    assert zero["stage3_prefetch_bucket_size"] == 9_000
    assert zero["stage3_param_persistence_threshold"] == 1_000
    assert zero["stage"] == 3 and zero["offload_optimizer"]["device"] == "cpu"
    assert "auto" not in json.dumps(config)
    assert config["fp16"] == {"loss_scale": 0}, "the model decides whether it is enabled"
    assert not {"optimizer", "scheduler", "train_batch_size"} & config.keys(), "Strop applies them"


def test_all_contradictions_are_named_with_both_values() -> None:
    config = {
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
        "bf16": {"enabled": True},
        "gradient_clipping": 0.5,
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-6, "betas": [0.9, 0.999], "eps": 1e-6}},
    }
    assert faults(config, engine={"zero_stage": 3, "offload_parameters": False}) == [
        *[
            f"{pair}; write 'auto', or the same value"
            for pair in (
                "zero_optimization.stage is 2, and trainer.engine.zero_stage is 3",
                "zero_optimization.offload_param is True, and trainer.engine.offload_parameters is False",
                "bf16.enabled is True, and model.compute_dtype is 'float32'",
                "gradient_clipping is 0.5, and trainer.max_grad_norm is 1.0",
                "train_batch_size is 64, and the number of sequences of an update is 32",
                "train_micro_batch_size_per_gpu is 8, and trainer.microbatch is 4",
                "gradient_accumulation_steps is 2, and the number of micro-batches of each of 2 ranks is 4",
            )
        ],
        *[
            f"optimizer.params.{pair}; write 'auto', or the same value in trainer.optimizer"
            for pair in ("lr is 3e-06, and the run's lr is 1e-05", "eps is 1e-06, and the run's eps is 1e-08")
        ],
    ]


def test_values_that_agree_are_accepted() -> None:
    config = {
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-5, "torch_adam": True, "betas": [0.9, 0.999]}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 5}},
    }
    schedule = {"type": "linear", "warmup": "5 steps"}
    assert faults(config, model={"compute_dtype": "bfloat16"}, schedule=schedule) == []


REFUSED = """
zero_optimisation: {} => did you mean 'zero_optimization'
zero_optimization: {stage3_max_live_params: 1} => did you mean 'stage3_max_live_parameters'
zero_optimization: {offload_param: {device: nvme}} => offloads to `cpu`, or `none`
zero_optimization: {zero_quantized_weights: true} => gathered without rounding
zero_optimization: 3 => write a mapping
activation_checkpointing: {partition_activations: true} => model.gradient_checkpointing
tensorboard: {enabled: true} => record.monitors
optimizer: {type: OneBitAdam} => 'OneBitAdam' is not one that Strop has; write AdamW
optimizer: {type: SGD} => trainer.optimizer.type is 'adamw'
optimizer: {type: AdamW, params: {amsgrad: true}} => amsgrad has no equal
scheduler: {type: OneCycle} => 'OneCycle' is not one that Strop has
scheduler: {type: WarmupDecayLR} => trainer.schedule.type is 'constant'
absent.json => there is no such file
"""


@pytest.mark.parametrize(("config", "expected"), rows(REFUSED))
def test_what_is_not_supported_is_refused(config: list[str], expected: str) -> None:
    (fault,) = faults(yaml.safe_load(config[0]))
    assert expected in fault


def test_deepspeed_does_not_see_what_is_switched_off() -> None:
    off = {
        "nebula": {"enabled": False},
        "tensorboard": {"enabled": False},
        "elasticity": {"enabled": False},
        "gradient_allreduce_op": "mean",
    }
    zero = {"mics_shard_size": -1, "zero_hpz_partition_size": 1, "legacy_stage1": False, "stage": 2}
    config = off | {"zero_optimization": zero | {"offload_optimizer": {"device": "cpu", "ratio": 1}}}
    assert faults(config) == []
    assert (
        faults({"amp": {"enabled": False}, "activation_checkpointing": {"partition_activations": False}})
        == []
    )
    found = engine_config(run(config).trainer.engine, "cpu")
    assert not off.keys() & found.keys()
    offload = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
    offload |= {"offload_param": {"device": "none", "pin_memory": False}}
    assert found["zero_optimization"] == {"stage": 2, **offload, "overlap_comm": False}


def test_what_the_engine_does_not_have_is_refused() -> None:
    warmup = {"type": "constant", "warmup": "5 steps"}
    (fault,) = faults({"scheduler": {"type": "WarmupLR", "params": {}}}, schedule=warmup)
    assert "warmup_type is 'log'" in fault
    (fault,) = faults(None, model={"dtype": "bfloat16"})
    assert "write dtype: float32 with compute_dtype: bfloat16" in fault
    (fault,) = faults(None, model={"compile": True})
    assert "model.compile is true, and DeepSpeed's hooks" in fault
    assert faults(None, model={"compute_dtype": "float16"}) == []
    (fault,) = faults(None, model={"compute_dtype": "float16"}, engine="local")
    assert "only trainer.engine: deepspeed does" in fault


@pytest.mark.parametrize("stage", [None, "auto", 0, 1])
def test_no_stage_is_stage_1(stage: object) -> None:
    section = DeepSpeedEngineConfig(config={"zero_optimization": {"stage": stage, "reduce_scatter": None}})
    zero = engine_config(section, "cpu")["zero_optimization"]
    assert zero["stage"] == 1 and "reduce_scatter" not in zero


def test_offload_of_parameters_needs_stage_3() -> None:
    with pytest.raises(ValidationError, match="write zero_stage: 3"):
        DeepSpeedEngineConfig(zero_stage=2, offload_parameters=True)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"optimizer": {"type": {}}}, "optimizer.type is {}; input should be a valid string"),
        ({"optimizer": "AdamW"}, "optimizer is 'AdamW'; write a mapping"),
        ({"scheduler": {"type": "WarmupLR", "params": [1]}}, "scheduler.params is [1]; write a mapping"),
        (
            {"zero_optimization": {"stage": "1:60"}},
            "zero_optimization.stage is '1:60'; input should be a valid integer",
        ),
        (
            {"zero_optimization": {"stage": 4}},
            "zero_optimization.stage is 4; input should be less than or equal to 3",
        ),
        ({"gradient_clipping": float("nan")}, "gradient_clipping is nan; input should be a finite number"),
    ],
)
def test_values_of_another_type_are_named(config: dict[str, Any], fault: str) -> None:
    assert faults(config) == [fault]

"""Tests of the keys of verl's `sft_trainer.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.config.schema.model import LoraConfig
from strop.config.units import Amount
from strop.dialects.verl.sft_trainer import read_verl_sft
from strop.errors import ConfigError, PlacementError


def value(overrides: list[str], field: str) -> Any:
    found: Any = read_verl_sft(overrides, here=True).run
    for part in field.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        ([], "algorithm.type", "sft"),
        ([], "trainer.optimizer.lr", 1e-5),
        ([], "trainer.optimizer.betas", (0.9, 0.95)),
        ([], "trainer.schedule.type", "cosine"),
        ([], "trainer.schedule.warmup", Amount(10, "%")),
        ([], "trainer.tasks_per_step", 256),
        ([], "trainer.microbatch", Amount(4, "sequences")),
        ([], "trainer.duration", Amount(4, "epochs")),
        (["trainer.total_training_steps=9"], "trainer.duration", Amount(4, "epochs")),
        (["trainer.total_training_steps=9"], "trainer.stop_after", Amount(9, "steps")),
        ([], "data.train.prompt", "question"),
        ([], "data.train.response", "answer"),
        (
            ["data.prompt_key=extra_info", "data.prompt_dict_keys=[question]"],
            "data.train.prompt",
            "extra_info.question",
        ),
        (["data.multiturn.enable=True"], "data.train.response", "messages"),
        (["data.val_files=null"], "data.eval", ()),
        ([], "data.eval.0.response", "answer"),
        (["data.max_length=101"], "data.max_response_tokens", 51),
        (["data.max_length=101"], "data.max_prompt_tokens", 50),
        ([], "model.lora", None),
        (["model.lora_rank=8"], "model.lora", LoraConfig(rank=8, alpha=16)),
        ([], "model.dtype", "float32"),
        ([], "model.compute_dtype", "bfloat16"),
        ([], "folder_path", Path("checkpoints/gsm8k-sft/test")),
        ([], "evaluate.at_start", False),
        (["trainer.seed=4"], "seed", 4),
        (["model.external_lib=x"], "model.imports", ("x",)),
        ([], "data.chat_template", "tokenizer"),
        (["trainer.default_hdfs_dir=hdfs://x"], "checkpoint.mirror", "hdfs://x"),
        (["data.chat_template='{{ messages }}'"], "data.chat_template", "{{ messages }}"),
    ],
)
def test_mapped(overrides: list[str], field: str, expected: object) -> None:
    assert value(overrides, field) == expected


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optim.lr_schedule=wsd", "did you mean 'optim.lr_scheduler'"),
        ("optim.lr_scheduler=linear", "cosine or wsd"),
        ("model.fsdp_config.model_dtype=fp16", "fp32 or"),
        ("data.max_length=1", "at least 2"),
        ("data.custom_cls.path=x.py", r"also write data\.custom_cls\.name"),
        ("algorithm.gamma=1", "there is no key algorithm.gamma"),
    ],
)
def test_refused(override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read_verl_sft([override], here=True)
    assert "\n" not in str(caught.value)


def test_placement() -> None:
    with pytest.raises(PlacementError, match=r"trainer\.nnodes=2"):
        read_verl_sft(["trainer.nnodes=2"])
    loaded = read_verl_sft(["trainer.nnodes=2"], here=True)
    assert [item.key for item in loaded.overridden] == ["trainer.nnodes"]
    assert loaded.run == read_verl_sft([]).run


def test_a_notice_says_what_takes_the_place_of_ligers_kernels() -> None:
    loaded = read_verl_sft(["model.use_liger=True"])
    (note,) = loaded.notes
    assert "model.use_liger" in note and "Strop's own functions take the place" in note
    assert (loaded.run, loaded.overridden) == (read_verl_sft([]).run, ())
    assert read_verl_sft(["model.use_liger=False"]).notes == ()


def test_keys_without_effect_have_notices() -> None:
    (note,) = read_verl_sft(["model.fsdp_config.offload_params=True"]).notes
    assert "cpu_offload is False" in note

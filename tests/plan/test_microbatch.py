"""The micro-batch of a run file without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.config.machine import GIB, parse_machine
from strop.config.schema import Run
from strop.plan.fit import with_fitting_microbatch

from .headers import write_header

LORA = {"dtype": "float32", "compute_dtype": "bfloat16", "lora": {"rank": 16}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Qwen2.5-0.5B, of which only the headers are there."""
    sizes = {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151_936}
    return write_header(tmp_path, [494_000_000], "BF16", **sizes)


def chosen(path: Path | str, machine: str, capacity: int | None, model: Any = None, **trainer: Any) -> str:
    values = {
        "model": {"path": str(path), **(model or {})},
        "data": {"train": {"path": "tasks.jsonl"}, "max_response_tokens": 512},
        "reward": "exact",
        "rollout": {"engine": {"type": "native", "kv_cache_tokens": 8192}},
        "trainer": trainer,
    }
    run = Run.model_validate(values)
    return str(with_fitting_microbatch(run, parse_machine(machine), capacity).trainer.microbatch)


def test_on_a_cpu_activations_are_no_larger_than_what_is_held(folder: Path) -> None:
    """A token keeps 24 layers x (8 x 896 + 256 + 3 x 4864) values: 1.06 MB in bfloat16, 2.11 MB in float32.

    Held are 1.1 GB with an adapter, and 7.9 GB in full fine-tuning in float32.
    """
    assert chosen(folder, "cpu", None, LORA) == "1024 tokens"
    assert chosen(folder, "cpu", None) == "2048 tokens"
    assert chosen(folder, "cpu", 24 * GIB) == "2048 tokens"


def test_on_a_gpu_it_is_what_fits(folder: Path) -> None:
    assert chosen(folder, "1xH100-80GB", 80 * GIB, LORA) == "16384 tokens"
    assert chosen(folder, "1xA10-24GB", 24 * GIB, LORA) == "16384 tokens"
    assert chosen(folder, "1xT4-16GB", 16 * GIB, LORA) == "8192 tokens"
    assert chosen(folder, "1xT4-16GB", 3 * GIB, LORA) == "1024 tokens"  # does not fit, which the plan says


@pytest.mark.parametrize("value", ["16384 tokens", "2 sequences"])
def test_a_written_value_stays(folder: Path, value: str) -> None:
    assert chosen(folder, "cpu", None, LORA, microbatch=value) == value


def test_the_default_stays_where_the_size_is_unknown_and_for_fused_optimizers(folder: Path) -> None:
    assert chosen("none/such", "cpu", 24 * GIB) == "16384 tokens"
    assert chosen(folder, "cpu", None, optimizer="lomo", max_grad_norm=None) == "16384 tokens"

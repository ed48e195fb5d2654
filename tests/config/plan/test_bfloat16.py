"""Whether `strop init` writes bfloat16 for a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.first_run import FirstRun
from strop.config.load.loader import load_run
from strop.config.plan import bfloat16
from strop.config.plan.bfloat16 import has_fast_bfloat16
from strop.config.plan.machine import parse_machine


@pytest.mark.parametrize(
    ("machine", "flags", "fast"),
    [
        ("1xH100-80GB", "flags : fpu sse", True),
        ("1xT4-16GB", "flags : amx_bf16", False),
        ("cpu", "processor : 0\nflags : fpu avx512_bf16 amx_bf16\n", True),
        ("cpu", "processor : 0\nflags : fpu avx512_bf16\n", False),
        ("cpu", "", False),
    ],
)
def test_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, fast: bool
) -> None:
    monkeypatch.setattr(bfloat16, "_CPU_INFO", tmp_path / "cpuinfo")
    assert has_fast_bfloat16(parse_machine(machine)) == (fast and "x" in machine)
    (tmp_path / "cpuinfo").write_text(flags)
    assert has_fast_bfloat16(parse_machine(machine)) == fast


@pytest.mark.parametrize("lora", [False, True])
def test_a_first_run_in_bfloat16_trains_float32_weights(tmp_path: Path, lora: bool) -> None:
    values = {"model": "m", "train": "t.jsonl", "prompt": "prompt", "answer": "answer", "reward": "exact"}
    first = FirstRun(eval=None, steps=1, lora=lora, max_response_tokens=8, chat=True, bfloat16=True, **values)
    (tmp_path / "run.yaml").write_text(first.text())
    model = load_run(tmp_path / "run.yaml").run.model
    assert (model.dtype, model.compute_dtype, model.lora is not None) == ("float32", "bfloat16", lora)

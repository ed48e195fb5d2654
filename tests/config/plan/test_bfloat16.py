"""bfloat16 on machines that are fast in it, or slow: what `strop init` writes, and what a run warns of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from strop.config.first_run import FirstRun
from strop.config.load.loader import load_run, load_values
from strop.config.plan import bfloat16
from strop.config.plan.bfloat16 import has_fast_bfloat16, slow_bfloat16
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


@pytest.mark.parametrize(
    ("machine", "flags", "dtypes", "warned"),
    [
        ("cpu", "flags : fma avx2", {"compute_dtype": "bfloat16"}, True),
        ("cpu", "flags : fma avx2", {"dtype": "bfloat16"}, True),
        ("cpu", "flags : fma avx2", {"dtype": "bfloat16", "compute_dtype": "float32"}, False),
        ("cpu", "flags : fma avx2", {}, False),
        ("cpu", "flags : avx2 avx512f avx512bw avx512vl", {"compute_dtype": "bfloat16"}, False),
        ("cpu", "Features : asimd", {"compute_dtype": "bfloat16"}, True),
        ("cpu", "Features : asimd i8mm bf16", {"compute_dtype": "bfloat16"}, False),
        ("cpu", "", {"compute_dtype": "bfloat16"}, False),
        ("1xH100-80GB", "flags : fma avx2", {"compute_dtype": "bfloat16"}, False),
    ],
)
def test_a_run_in_bfloat16_warns_on_a_cpu_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, dtypes: dict, warned: bool
) -> None:
    monkeypatch.setattr(bfloat16, "_CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(flags)
    values = {"model": {"path": "m", **dtypes}, "data": {"train": {"path": "d"}}, "reward": "exact"}
    warnings = list(slow_bfloat16(load_values(values).run, parse_machine(machine)))
    assert [warning.partition(": bfloat16")[0] for warning in warnings] == [
        "warning: model.compute_dtype"
    ] * warned


def test_a_sampler_in_bfloat16_warns_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16, "_CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags : avx2")
    values = {"model": {"path": "m"}, "data": {"train": {"path": "d"}}, "reward": "exact"}
    values["rollout"] = {"engine": {"type": "native", "dtype": "bfloat16"}}
    (warning,) = slow_bfloat16(load_values(values).run, parse_machine("cpu"))
    assert warning.startswith("warning: rollout.engine.dtype: bfloat16")


@pytest.mark.skipif(sys.platform != "linux", reason="flags of the CPU are read on Linux only")
def test_the_warning_agrees_with_torch_on_this_machine() -> None:
    values = {
        "model": {"path": "m", "dtype": "bfloat16"},
        "data": {"train": {"path": "d"}},
        "reward": "exact",
    }
    warned = bool(list(slow_bfloat16(load_values(values).run, parse_machine("cpu"))))
    assert warned is not torch.ops.mkldnn._is_mkldnn_bf16_supported()

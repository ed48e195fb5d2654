"""bfloat16 on machines that are fast in it, or slow: what `strop init` writes, and what a run warns of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from strop.config.first_run import FirstRun
from strop.config.load.loader import load_run, load_values
from strop.config.machine import parse_machine
from strop.plan import request
from strop.plan.request import has_fast_bfloat16, slow_bfloat16


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
    monkeypatch.setattr(request, "_CPU_INFO", tmp_path / "cpuinfo")
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


CPU = "flags : fma avx2"
WITH_AVX512 = "flags : avx2 avx512f avx512bw avx512vl"


def warnings_of(machine: str = "cpu", rollout: dict | None = None, **model: str) -> list[str]:
    values = {"model": {"path": "m", **model}, "data": {"train": {"path": "d"}}, "reward": "exact"}
    run = load_values(values | ({"rollout": rollout} if rollout else {})).run
    return list(slow_bfloat16(run, parse_machine(machine)))


@pytest.mark.parametrize(
    ("machine", "flags", "dtypes", "warned"),
    [
        ("cpu", CPU, {"compute_dtype": "bfloat16"}, True),
        ("cpu", CPU, {"dtype": "bfloat16"}, True),
        ("cpu", CPU, {"dtype": "bfloat16", "compute_dtype": "float32"}, False),
        ("cpu", CPU, {}, False),
        ("cpu", WITH_AVX512, {"compute_dtype": "bfloat16"}, False),
        ("cpu", "Features : asimd", {"compute_dtype": "bfloat16"}, True),
        ("cpu", "Features : asimd i8mm bf16", {"compute_dtype": "bfloat16"}, False),
        ("cpu", "", {"compute_dtype": "bfloat16"}, False),
        ("1xH100-80GB", CPU, {"compute_dtype": "bfloat16"}, False),
    ],
)
def test_a_run_in_bfloat16_warns_on_a_cpu_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, dtypes: dict, warned: bool
) -> None:
    monkeypatch.setattr(request, "_CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(flags)
    starts = [warning.partition(": bfloat16")[0] for warning in warnings_of(machine, **dtypes)]
    assert starts == ["warning: model.compute_dtype"] * warned
    (tmp_path / "cpuinfo").write_text(CPU)
    (warning,) = warnings_of(rollout={"engine": {"type": "native", "dtype": "bfloat16"}})
    assert warning.startswith("warning: rollout.engine.dtype: bfloat16"), "a sampler in bfloat16 warns too"


@pytest.mark.skipif(sys.platform != "linux", reason="flags of the CPU are read on Linux only")
def test_the_warning_agrees_with_torch_on_this_machine() -> None:
    assert bool(warnings_of(dtype="bfloat16")) is not torch.ops.mkldnn._is_mkldnn_bf16_supported()

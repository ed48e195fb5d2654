"""The number of processes of `trainer.engine: local` on a CPU, and their memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.config import local_workers as module
from strop.config.checks.topology import topology_faults
from strop.config.local_workers import local_workers, usable_cores, workers_obstacle
from strop.config.machine import GIB, parse_machine
from strop.config.schema import Run
from strop.plan import fit
from strop.plan.request import request_of

from .headers import write_header

CPU = parse_machine("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """SmolLM2-135M, of which only the headers are there."""
    sizes = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9}
    sizes |= {"num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49_152}
    return write_header(tmp_path, [134_515_008], "F32", **sizes)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.config.local_workers.usable_cores", lambda: 4)


def run_of(path: Path | str = "model", workers: int | str = "auto", **sections: Any) -> Run:
    trainer = {
        "engine": {"type": "local", "device": "cpu", "workers": workers},
        **sections.pop("trainer", {}),
    }
    values = {
        "model": {"path": str(path)},
        "data": {"train": {"path": "tasks.jsonl"}},
        "reward": "exact",
        "rollout": {"engine": {"type": "native", "kv_cache_tokens": 8192}},
        "trainer": trainer,
        **sections,
    }
    return Run.model_validate(values)


@pytest.mark.parametrize(
    ("threads", "affinity", "quota", "expected"),
    [
        (None, 8, "max 100000", 8),
        ("3", 8, "max 100000", 3),
        ("16", 8, None, 8),
        ("4,2", 8, None, 4),
        ("all", 8, "250000 100000", 3),
        ("0", 8, None, 1),
    ],
)
def test_cores_are_the_least_of_all_limits(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    threads: str | None,
    affinity: int,
    quota: str | None,
    expected: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(affinity)), raising=False)
    monkeypatch.setattr(module, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores() == expected


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("sections", "count", "threads", "reason"),
    [
        ({}, 4, 1, ""),
        ({"workers": 2}, 2, 2, ""),
        ({"workers": 6}, 6, 1, ""),
        ({"trainer": {"tasks_per_step": 2}}, 2, 2, ""),
        (
            {"trainer": {"optimizer": "lomo", "max_grad_norm": None}},
            1,
            4,
            "lomo updates all parameters together",
        ),
        ({"algorithm": "prime"}, 4, 1, ""),
        ({"synchronizer": {"type": "checkpoint"}}, 1, 4, "the explorer's process uses the other cores"),
    ],
)
def test_workers_use_the_cores(sections: dict[str, Any], count: int, threads: int, reason: str) -> None:
    found = local_workers(run_of(**sections))
    assert (found.count, found.threads) == (count, threads)
    assert reason in found.reason and bool(reason) == bool(found.reason)


@pytest.mark.usefixtures("four_cores")
def test_as_many_workers_as_there_is_memory_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and optimizer state are there once, gradients and activations for each worker; the cache is divided."""
    monkeypatch.setattr(fit, "machine_of", lambda run: CPU)
    for gib, workers in ((64, 4), (8, 2), (2, 1)):
        monkeypatch.setattr(fit, "_capacity", lambda run, machine, gib=gib: gib * GIB)
        assert fit.with_machine_defaults(run_of(folder)).trainer.engine.workers == workers, gib
    request = request_of(run_of(folder, 2), CPU)
    first, second = (rank.memory for rank in request.ranks)
    assert first is not None and second is not None
    held = {part.name: part.bytes for part in first.parts}
    assert first.needed - second.needed == held["parameters"] + held["optimizer"]
    alone = request_of(run_of(folder, 1), CPU).ranks[0].memory
    assert alone is not None
    samplers = [each.memory for each in request.samplers if each.memory is not None]
    caches = [part.bytes for need in samplers for part in need.parts if part.name == "KV cache"]
    assert len(caches) == 2
    assert sum(caches) == sum(part.bytes for part in alone.parts if part.name == "KV cache")


def test_an_obstacle_is_named_where_workers_are_set() -> None:
    assert workers_obstacle(run_of(workers=2)) is None
    (fault,) = topology_faults(run_of(workers=2, trainer={"optimizer": "lomo", "max_grad_norm": None}))
    assert fault.startswith("trainer.engine.workers is 2, and the optimizer lomo ")
    assert fault.endswith("; write workers: 1")


def test_a_function_of_this_program_only_has_no_workers() -> None:
    """Another process could not load it."""
    run = run_of(reward={"functions": [{"function": "strop.in_process.mine_1234"}]})
    assert workers_obstacle(run) == (
        "reward.functions.0.function is the function mine_1234, which exists only in this Python program"
    )

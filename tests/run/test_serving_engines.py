"""Whole runs whose rollouts come from vLLM or SGLang."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import strop
from strop.models.tiny import make_model
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import merge_rows, read_metrics
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM
from tests.kill_log import kills, record_kill

from .command import Command
from .groups_by_id import rows as group_rows
from .groups_by_id import states
from .test_launch import wait_for

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
ENGINES = {
    "vllm": {"type": "vllm", "enforce_eager": True, "engine_kwargs": {"kv_cache_memory_bytes": 2**26}},
    "sglang": {"type": "sglang", "max_total_tokens": 8192},
}
LAYERS = {"hidden_size": 64, "heads": 2, "kv_heads": 1, "intermediate_size": 192}
"""Sizes that vLLM's and SGLang's CPU builds accept, the latter with a LoRA adapter."""
KILLS = kills(1)
PROCESS_NAMES = ("VLLM", "sglang::")
"""Names that the libraries give to their processes."""


@pytest.fixture(params=[pytest.param("vllm", marks=NEEDS_VLLM), pytest.param("sglang", marks=NEEDS_SGLANG)])
def library(request: pytest.FixtureRequest) -> str:
    """Name of the library."""
    return str(request.param)


@pytest.fixture
def engine_values(
    library: str, values: Callable[..., dict[str, Any]], tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """The values of a small run with each library; its attention heads have the 32 values that vLLM's CPU build
    needs."""
    folder = make_model(tmp_path / "model", ["max 1 2"], vocab_size=300, **LAYERS)

    def make(**changes: Any) -> dict[str, Any]:
        return values(model__path=str(folder), rollout__engine=ENGINES[library], **changes)

    return make


def start(tmp_path: Path, values: dict[str, Any]) -> Command:
    """`strop train` in a new interpreter, which inherits the signals that are ignored."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(values))
    command = (sys.executable, "-m", "strop", "train", str(run_file))
    return Command(tmp_path / "output.txt", *command)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run's folder, with those of a separate explorer."""
    files = RunFolder(folder)
    return merge_rows(read_metrics(files.explorer.metrics), read_metrics(files.metrics))


def test_a_run_has_the_trainers_logprobs_after_every_load(engine_values):
    rows = rows_of(strop.train(strop.load(engine_values())).folder)
    trained = [row for row in rows if row["step"] > 0]
    assert len(trained) == 4
    for row in trained:
        assert row["engine/logprob_gap"] < 1e-4  # rounding, which may be nothing for so small a model
        assert row["logprob_diff/mean_abs"] < 1e-4


def test_lora_and_filters(engine_values, library):
    run = engine_values(
        model__lora={"rank": 4},
        rollout__sampling={"top_p": 0.9, "temperature": 0.8},
        algorithm__importance_correction={},
        trainer__duration="2 steps",
    )
    rows = rows_of(strop.train(strop.load(run)).folder)
    last = rows[-1]
    assert last["engine/logprob_gap"] < 1e-4
    assert 0 < last["importance/mean"] < 1
    if library == "sglang":
        assert last["logprob_diff/mean_abs"] < 1e-4
    else:
        assert "logprob_diff/mean_abs" not in last, "vLLM does not give the policy's log-probs under a filter"


@pytest.mark.parametrize("pause_mode", ["keep", "abort"])
def test_a_separate_explorer_compares_its_logprobs_with_the_trainers(engine_values, tmp_path, pause_mode):
    style = {"type": "bounded", "max_staleness": "2 steps", "pause_mode": pause_mode}
    values = engine_values(mode="both", synchronizer={"type": "checkpoint", "style": style})
    process = start(tmp_path, values)
    process.finish()
    rows = rows_of(tmp_path / "runs" / "strop" / "small")
    gaps = [row["engine/logprob_gap"] for row in rows if "engine/logprob_gap" in row]
    assert gaps and max(gaps) < 1e-4
    assert max(row.get("engine/tokens_per_second", 0) for row in rows) > 0


def processes_of(pid: int) -> list[psutil.Process]:
    """The engine's process and those that the library started, by the names that it gives them."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if _is_engine(child)]


def _is_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it has just ended
        command = process.cmdline()
        return command[-1] == "engine-0" or any(name in command[0] for name in PROCESS_NAMES)
    return False


@contextlib.contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    """Have processes that are started inside the block ignore a signal, as a shell script's background commands do."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("victim", "tensor_parallel"),
    [("engine", 1), ("child", 1), ("child", 2)],
    ids=["engine", "child", "rank"],
)
def test_a_killed_process_of_the_engine_is_replaced(
    engine_values, library, tmp_path, victim, tensor_parallel
):
    values = engine_values(trainer__duration="12 steps")
    engine = values["rollout"]["engine"] | {"tensor_parallel": tensor_parallel}
    with ignored(signal.SIGQUIT):  # by which SGLang reports the end of a process
        process = start(tmp_path, values | {"rollout": values["rollout"] | {"engine": engine}})
    folder = tmp_path / "runs" / "strop" / "small"
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    found = processes_of(process.pid)
    own = [each for each in found if each.cmdline()[-1] == "engine-0"]
    assert len(own) == 1 and len(found) >= 2
    chosen = (
        own[0] if victim == "engine" else random.Random(0).choice([each for each in found if each not in own])
    )
    chosen.send_signal(signal.SIGKILL)
    record_kill(f"{library} engine")
    said = process.finish()
    assert said.count("Restarting it with its latest weights and its pending requests") == 1
    rows = rows_of(folder)
    assert [row["step"] for row in rows][-1] == 12
    assert all(row["engine/logprob_gap"] < 1e-4 for row in rows if row["step"] > 0)
    _, alive = psutil.wait_procs(found, timeout=30)
    assert not alive, "a process of the library outlives its engine"


@pytest.mark.timeout(3600)
def test_engines_killed_at_random_moments_lose_nothing(engine_values, library, tmp_path):
    run = engine_values(
        trainer__duration=f"{KILLS + 2} steps",
        rollout__pool={"engines": 1, "max_restarts": KILLS},
        synchronizer={"type": "checkpoint", "style": "fixed"},
    )
    process = start(tmp_path, run)
    folder = tmp_path / "runs" / "strop" / "small"
    draw = random.Random(KILLS)
    for number in range(KILLS):
        wait_for(folder / "metrics.jsonl", lines=number + 1, process=process)
        time.sleep(draw.uniform(0, 0.5))
        while not (found := processes_of(process.pid)):  # the engine is being restarted after the last kill
            assert process.poll() is None
            time.sleep(0.1)
        draw.choice(found).send_signal(signal.SIGKILL)
        record_kill(f"{library} engine")
    said = process.finish()
    restarts = said.count("Restarting it with its latest weights and its pending requests")
    assert 1 <= restarts <= KILLS, "two kills may hit processes of the same engine"
    everything = {f"train-{s:06d}-{n:05d}" for s in range(1, KILLS + 3) for n in range(8)}
    assert states(folder) == dict.fromkeys(everything, "done"), "each group was trained on once"
    assert all(row["logprob_diff/mean_abs"] < 1e-4 for row in group_rows(folder))

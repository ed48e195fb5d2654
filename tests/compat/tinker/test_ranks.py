"""Adapters on FSDP2 ranks: the numbers of one process, faults of a request, and the end of a rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tinker.types import AdamParams, LoraConfig

from strop.compat.tinker.adapter_engine import AdapterEngines
from strop.compat.tinker.training import TrainedAdapter
from strop.compat.tinker.training_runs import TrainingRun
from strop.compat.tinker.wire import LossDatum, LossRequest
from strop.config.schema.model import ModelConfig
from strop.errors import TrainingError
from strop.runs.metrics_file import read_metrics
from strop.training.ranks.group import RankGroup
from tests.compat.tinker.test_training_runs import REQUESTS, created, run

ADAM = AdamParams(learning_rate=0.05)
LENGTHS = (3, 9, 5)


@pytest.fixture(scope="module")
def ranks() -> Iterator[AdapterEngines]:
    engines = AdapterEngines(2)
    yield engines
    engines.close()


def adapter(model: Path, engines: AdapterEngines) -> TrainedAdapter:
    return TrainedAdapter(ModelConfig(path=str(model)), LoraConfig(rank=4, seed=1), 64, 300, engines)


def request(
    loss: str = "cross_entropy", *, several: bool = False, forward_only: bool = False, sampled: float = -5.0
) -> LossRequest:
    random = np.random.default_rng(0)
    data = []
    for length in LENGTHS:
        ids = random.integers(20, 60, length + 1)
        targets = np.stack([ids[1:], ids[:-1]], axis=1) if several else ids[1:]
        values = np.full(targets.shape, 0.5, np.float32)
        inputs = {"target_tokens": targets, "weights": values}
        if loss != "cross_entropy":
            sampler = np.full(length, sampled, np.float32)
            inputs = {"target_tokens": targets, "advantages": values, "logprobs": sampler}
        data.append(LossDatum(ids[:-1].astype(np.int32), inputs, ()))
    return LossRequest("m", 1, loss, {}, tuple(data), forward_only)


REQUESTED = [
    request(),
    request(several=True),
    request("importance_sampling"),
    request("ppo", forward_only=True),
]


def test_ranks_compute_what_one_process_computes(model: Path, ranks: AdapterEngines, tmp_path: Path) -> None:
    """With three sequences for two ranks; a state of the ranks goes on in one process."""
    alone, divided = adapter(model, AdapterEngines()), adapter(model, ranks)
    for asked in REQUESTED:
        (expected, one), (found, other) = (each.compute(asked) for each in (alone, divided))
        assert other["loss:sum"] == pytest.approx(one["loss:sum"], rel=1e-5)
        for wanted, got in zip(expected, found, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)
        if not asked.forward_only:
            norms = [each.step(ADAM)["unclipped_grad_l2:mean"] for each in (alone, divided)]
            assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    divided.write_state(tmp_path / "state")
    alone.load_state(tmp_path / "state")
    divided.load_state(tmp_path / "state")
    losses = [each.compute(request())[1]["loss:sum"] for each in (alone, divided)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    divided.write_adapter(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


def test_two_adapters_are_trained_on_the_same_ranks(model: Path, ranks: AdapterEngines) -> None:
    one, other = (adapter(model, ranks) for _ in range(2))
    for _ in range(2):
        one.compute(request())
        one.step(ADAM)
    first, second = (each.compute(request(forward_only=True))[1]["loss:sum"] for each in (one, other))
    assert first < second
    other.engine.close()
    assert one.compute(request(forward_only=True))[1]["loss:sum"] == pytest.approx(first)


def test_a_loss_that_is_not_finite_leaves_the_ranks(model: Path, ranks: AdapterEngines) -> None:
    trained = adapter(model, ranks)
    before = trained.compute(request(forward_only=True))[1]["loss:sum"]
    with pytest.raises(TrainingError, match=r"inf|nan"):
        trained.compute(request("importance_sampling", sampled=-1e30))
    trained.compute(request())
    norm = trained.step(ADAM)["unclipped_grad_l2:mean"]
    assert np.isfinite(norm) and not trained.engine.is_lost
    assert trained.compute(request(forward_only=True))[1]["loss:sum"] < before


def test_a_run_goes_on_after_a_rank_was_killed(model: Path, ranks: AdapterEngines, tmp_path: Path) -> None:
    """The client sees nothing: the ranks start again, and compute what is in no state yet."""
    found = []
    for killed in (False, True):
        service = created(tmp_path / str(killed))
        files = service.run("s:train:0")
        assert files is not None
        training = TrainingRun(files, service, lambda info: adapter(model, ranks))
        run(training, 1, 5)
        if killed:
            group = ranks._ranks
            assert isinstance(group, RankGroup)
            [rank] = group._remote
            os.kill(rank._worker.pid, signal.SIGKILL)
        found.append([each.body for each in run(training, 5, len(REQUESTS) + 1)])
        assert [row["step"] for row in read_metrics(files.folder / "metrics.jsonl")] == [1, 2, 3]
        training.close("finished")
    assert found[0] == found[1] and ranks._ranks is not group

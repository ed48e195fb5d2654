"""Choice of the explorer's GPU. The GPUs are simulated by replaced functions of torch."""

from __future__ import annotations

import pytest
import torch

from strop.config.schema import Run
from strop.errors import PlacementError
from strop.run.rollout.inference_engines import explorer_device

NCCL = {"type": "collective", "backend": "nccl"}
TWO_RANKS = {"type": "fsdp2", "ranks": 2}


def told(monkeypatch: pytest.MonkeyPatch, gpus: int) -> list[torch.device]:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


@pytest.mark.parametrize(
    ("gpus", "engine", "expected"),
    [
        (0, {}, "cpu"),
        (1, {}, "cuda:0"),
        (2, {}, "cuda:1"),
        (2, {"device": "cpu"}, "cpu"),
        (2, TWO_RANKS, "cuda:0"),
        (4, TWO_RANKS, "cuda:2"),
    ],
)
def test_the_explorer_gets_one_that_no_rank_takes(values, monkeypatch, gpus, engine, expected):
    chosen = told(monkeypatch, gpus)
    run = Run.model_validate(values(synchronizer="collective", trainer__engine=engine))
    assert str(explorer_device(run)) == expected
    assert [str(device) for device in chosen] == ([expected] if "cuda" in expected else [])


@pytest.mark.parametrize(("gpus", "engine"), [(0, {}), (1, {}), (2, TWO_RANKS)])
def test_nccl_without_a_gpu_for_each_is_refused(values, monkeypatch, gpus, engine):
    told(monkeypatch, gpus)
    run = Run.model_validate(values(synchronizer=NCCL, trainer__engine=engine))
    with pytest.raises(PlacementError, match=rf"torch finds {gpus}; set it to gloo or auto"):
        explorer_device(run)

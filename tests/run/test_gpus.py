"""Which GPU of this machine the explorer gets. There is none here: torch is told of some."""

from __future__ import annotations

import pytest
import torch

from strop.config.schema import Run
from strop.errors import PlacementError
from strop.run.apart.gpus import explorers_environment

NCCL = {"type": "collective", "backend": "nccl"}


@pytest.mark.parametrize(
    ("there", "visible", "engine", "expected"),
    [
        (0, None, {}, {}),
        (1, None, {}, {}),
        (2, None, {}, {"CUDA_VISIBLE_DEVICES": "1"}),
        (3, "4,6,7", {"type": "fsdp2", "ranks": 2}, {"CUDA_VISIBLE_DEVICES": "7"}),
        (2, None, {"type": "fsdp2", "ranks": 2}, {}),
        (2, None, {"device": "cpu"}, {}),
    ],
)
def test_the_explorer_gets_one_that_no_rank_takes(values, monkeypatch, there, visible, engine, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    run = Run.model_validate(values(synchronizer="collective", trainer__engine=engine))
    assert explorers_environment(run) == expected
    if not expected and engine.get("device") != "cpu":
        run = Run.model_validate(values(synchronizer=NCCL, trainer__engine=engine))
        with pytest.raises(PlacementError, match=rf"torch sees {there} here; write gloo, or auto"):
            explorers_environment(run)

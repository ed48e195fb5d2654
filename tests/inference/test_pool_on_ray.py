"""Pools whose engines are Ray actors."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import running_engine
from strop.models.tiny import make_model
from strop.types import SamplingParams
from strop.workers.start import RayPlacement

from .helpers import random_prompts, requests_for, same, sample
from .test_pool import NativeFactory, assert_close, sample_concurrently

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.faults
def test_actors_sample_load_weights_and_are_restarted(tmp_path, caplog):
    factory = NativeFactory(make_model(tmp_path / "model", ["two and two is four"], vocab_size=300))
    model = AutoModelForCausalLM.from_pretrained(factory.folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    single = factory()
    requests = requests_for(
        random_prompts(5, 9, 14, 7), SamplingParams(max_tokens=16, ignore_eos=True), samples=3
    )
    specs = [EngineSpec(f"explorer-engine-{number}", factory) for number in range(2)]
    with running_engine(EnginePool(specs, RayPlacement(cpus=0.5), max_restarts=1)) as pool:
        for engine in (pool, single):
            engine.load(model.named_parameters(), 3)
        first = sample_concurrently(pool, requests)
        for from_pool, expected in zip(first, sample(single, requests), strict=True):
            assert_close(from_pool, expected)
        assert ray.get_actor("explorer-engine-1")
        os.kill(pool._engines[0]._worker.pid, signal.SIGKILL)
        assert all(map(same, first, sample_concurrently(pool, requests)))
    (record,) = caplog.records
    assert record.getMessage().startswith("explorer-engine-0 ended with its actor: ")

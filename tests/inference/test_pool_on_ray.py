"""A pool whose engines are Ray actors: the same answers, and the same care."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.inference.pool import EnginePool, Wanted
from strop.models.tiny import make_model
from strop.types import Sampling
from strop.workers.start import OnRay

from .helpers import random_prompts, requests_for, same, sample
from .test_pool import Make, agree, ask

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.faults
def test_actors_answer_take_weights_and_are_replaced(tmp_path, caplog):
    make = Make(make_model(tmp_path / "model", ["two and two is four"], vocab_size=300))
    model = AutoModelForCausalLM.from_pretrained(make.folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    alone = make()
    requests = requests_for(random_prompts(5, 9, 14, 7), Sampling(max_tokens=16, ignore_eos=True), samples=3)
    wanted = [Wanted(f"explorer-engine-{number}", make) for number in range(2)]
    with closing(EnginePool(wanted, OnRay(cpus=0.5), max_restarts=1)) as pool:
        for engine in (pool, alone):
            engine.load(model.named_parameters(), 3)
        first = ask(pool, requests)
        for mine, theirs in zip(first, sample(alone, requests), strict=True):
            agree(mine, theirs)
        assert ray.get_actor("explorer-engine-1")
        os.kill(pool._members[0]._worker.pid, signal.SIGKILL)
        assert all(map(same, first, ask(pool, requests)))
    (record,) = caplog.records
    assert record.getMessage().startswith("explorer-engine-0 ended with its actor: ")

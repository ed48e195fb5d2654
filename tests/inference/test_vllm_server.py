"""vLLM's real HTTP server: evaluation as it is, weight updates, restarts, and two runs on one server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import OpenAiEngineConfig
from strop.errors import EngineLostError, InferenceError
from strop.inference.registry import load_engine, running_engine
from strop.protocols import InferenceEngine
from strop.types import Completion, SamplingParams
from tests.inference.helpers import (
    NEEDS_VLLM,
    assert_sampled_by,
    random_prompts,
    requests_for,
    sample,
    scaled,
    sharp_model,
)
from tests.inference.vllm_server import VllmServerProcess, vllm_server

pytestmark = [pytest.mark.engines, NEEDS_VLLM, pytest.mark.timeout(900)]
PROMPTS = random_prompts(4, 9, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "model"
    sharp_model(folder, hidden_size=128)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[VllmServerProcess]:
    with vllm_server(folder, "--logprobs-mode", "processed_logprobs") as process:
        yield process


def connect(server: VllmServerProcess, folder: Path, **changes: Any) -> InferenceEngine:
    values = {"base_url": server.url, "model": "policy", "weight_updates": "vllm", "backoff_seconds": 0.2}
    section = OpenAiEngineConfig(**values | changes)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return load_engine(section, ModelConfig(path=str(folder)), tokenizer, torch.device("cpu"))


def served(folder: Path, factor: float) -> PreTrainedModel:
    return scaled(AutoModelForCausalLM.from_pretrained(folder).eval(), factor)


def test_a_server_as_it_is_gives_exact_tokens(server, folder):
    requests = requests_for(PROMPTS, SamplingParams(temperature=0.7, max_tokens=16), samples=2)
    with running_engine(connect(server, folder, weight_updates="none")) as engine:
        completions = sample(engine, requests)
        assert_sampled_by(served(folder, 1), requests, completions)
        stops = tuple(range(0, 300, 3))
        sampling = SamplingParams(max_tokens=40, min_tokens=6, stop_token_ids=stops, stop=("zzz",))
        for completion in sample(engine, requests_for(PROMPTS, sampling)):
            *inner, last = completion.token_ids.tolist()
            assert len(inner) >= 6 and not set(stops) & set(inner)
            assert completion.finish_reason == ("stop" if last in stops else "length")
        with pytest.raises(InferenceError, match="without weight_updates none can be loaded"):
            engine.load([], 1)


def test_updates_reach_the_server_with_their_versions(server, folder):
    requests = requests_for(PROMPTS, SamplingParams(temperature=0.7, max_tokens=16), samples=2)
    with running_engine(connect(server, folder)) as engine:
        for version, factor in ((1, 0.9), (2, 1.1)):
            model = served(folder, factor)
            engine.load(model.named_parameters(), version)
            completions = sample(engine, requests)
            assert_sampled_by(model, requests, completions)
            assert {each.version for each in completions} == {version}
            for each in completions:
                np.testing.assert_array_equal(each.sampler_logprobs, each.policy_logprobs)
        filtered = sample(engine, requests_for(PROMPTS, SamplingParams(top_k=3, max_tokens=4)))
        assert all(each.policy_logprobs is None for each in filtered)


def test_running_completions_continue_with_the_new_weights(server, folder):
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=300, ignore_eos=True))
    new = served(folder, 0.8)
    with running_engine(connect(server, folder, max_concurrent_requests=len(requests))) as engine:
        engine.load(served(folder, 1).named_parameters(), 1)

        async def load_meanwhile() -> list[Completion]:
            call = asyncio.create_task(engine.sample(requests))
            await asyncio.sleep(0.3)
            assert not call.done()
            await asyncio.to_thread(engine.load, new.named_parameters(), 2)
            return await call

        completions = asyncio.run(load_meanwhile())
    for request, completion in zip(requests, completions, strict=True):
        versions = completion.token_versions
        assert (
            versions is not None and (versions[0], versions[-1]) == (1, 2) and (np.diff(versions) >= 0).all()
        )
        assert_sampled_by(new, [request], [completion], last=int((versions == 2).sum()))


def test_two_runs_cannot_update_one_server(server, folder):
    weights = served(folder, 1)
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=4))
    with running_engine(connect(server, folder, holder="sums/a")) as first:
        first.load(weights.named_parameters(), 1)
        with (
            closing(connect(server, folder, holder="sums/b")) as second,
            pytest.raises(EngineLostError, match="weights of another run, 'sums/a'"),
        ):
            second.start()
        # The same name again is a resumed run, unless the first one is still there to notice.
        with running_engine(connect(server, folder, holder="sums/a")) as resumed:
            resumed.load(weights.named_parameters(), 5)
            with pytest.raises(EngineLostError, match="Two runs cannot update one server"):
                sample(first, requests)
            with pytest.raises(EngineLostError, match="Two runs cannot update one server"):
                first.load(weights.named_parameters(), 2)
            assert {each.version for each in sample(resumed, requests)} == {5}
    with running_engine(connect(server, folder, holder="sums/b")) as later:
        later.load(weights.named_parameters(), 1)


def test_a_restarted_server_gets_the_last_weights_again(server, folder):
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=12), samples=2)
    model = served(folder, 0.9)
    with running_engine(connect(server, folder, retries=12, timeout_seconds=60)) as engine:
        engine.load(model.named_parameters(), 3)
        server.kill()
        server.start()
        completions = sample(engine, requests)
        assert_sampled_by(model, requests, completions)
        assert {each.version for each in completions} == {3}


def test_a_server_with_other_options_is_refused(folder):
    with (
        vllm_server(folder, "--logprobs-mode", "raw_logprobs") as server,
        closing(connect(server, folder)) as engine,
        pytest.raises(InferenceError, match=r"--logprobs-mode raw_logprobs .* Start it with: VLLM_SERVER"),
    ):
        engine.start()

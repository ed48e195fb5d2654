"""The engine on an SGLang server: against recorded replies, and against SGLang's own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("aiohttp")

from benchmarks.free_port import find_free_port
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import SglangServerConfig
from strop.errors import EngineLostError, InferenceError, ModelError
from strop.inference.registry import load_engine, running_engine
from strop.models.tiny import make_model
from strop.protocols import InferenceEngine
from strop.types import SamplingParams
from tests.inference.helpers import NEEDS_SGLANG, assert_sampled_by, random_prompts, requests_for, sample
from tests.inference.http_server import http_server

PROMPTS = random_prompts(4, 9)


@dataclass
class Server:
    """Replies as SGLang 0.5.23 does, and keeps what it was sent."""

    sent: list[tuple[str, Any]] = field(default_factory=list)
    loaded: dict[str, torch.Tensor] = field(default_factory=dict)
    version: str = "default"
    is_rejecting: bool = False

    def __call__(self, request: BaseHTTPRequestHandler, content: bytes) -> tuple[int, bytes]:
        body = json.loads(content) if content else None
        self.sent.append((request.path, body))
        status, reply = self._reply(request.path, body)
        return status, json.dumps(reply).encode()

    def _reply(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        match path:
            case "/server_info":
                info = {"version": "0.5.23", "enable_deterministic_inference": False}
                return 200, info | {"max_req_input_len": 64, "sampling_mask_max_tokens": 8}
            case "/update_weights_from_disk":
                if self.is_rejecting:
                    return 400, {"success": False, "message": "Failed to update weights"}
                self.version = body["weight_version"]
                for file in Path(body["model_path"]).glob("*.safetensors"):
                    self.loaded = load_file(file)
                return 200, {"success": True, "message": "", "num_paused_requests": 0}
            case "/generate":
                tokens = body["sampling_params"]["max_new_tokens"]
                meta = {
                    "output_token_logprobs": [[-0.5, 7, None]] * tokens,
                    "output_token_sampling_logprobs": [-0.25] * tokens,
                    "finish_reason": {"type": "length"},
                    "weight_versions": [{"version": self.version, "start": 0, "end": tokens}],
                    "prompt_tokens": len(body["input_ids"]),
                    "cached_tokens": 0,
                }
                return 200, {"text": "", "meta_info": meta}
        return 200, {"message": "ok"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("sglang") / "model", ["two and two"], hidden_size=128)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """The engine's server, which a test may close."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def engine(server: Server, opened: ExitStack, folder: Path) -> Iterator[InferenceEngine]:
    url = f"http://127.0.0.1:{opened.enter_context(http_server(server))}"
    section = SglangServerConfig(base_url=url, retries=1, backoff_seconds=0.01)
    model, tokenizer = ModelConfig(path=str(folder)), AutoTokenizer.from_pretrained(folder)
    with running_engine(load_engine(section, model, tokenizer, torch.device("cpu"))) as engine:
        yield engine


def test_the_server_loads_the_runs_model_and_samples_from_token_ids(
    engine: InferenceEngine, server: Server, folder: Path
):
    paths = [path for path, _ in server.sent]
    assert paths == ["/server_info", "/continue_generation", "/update_weights_from_disk"]
    assert server.sent[-1][1]["model_path"] == str(folder)
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=3, top_k=5))
    for request, completion in zip(requests, sample(engine, requests), strict=True):
        assert completion.sampler_logprobs.tolist() == [-0.25] * 3 and completion.version == 0
        assert request.prompt_ids.tolist() in [body["input_ids"] for _, body in server.sent[3:]]
    assert "SGLang 0.5.23 at http://127.0.0.1" in engine.describe()


def test_weights_are_loaded_from_a_folder_while_the_server_is_paused(engine: InferenceEngine, server: Server):
    server.sent.clear()
    engine.load([("model.norm.weight", torch.full((3,), 2.0))], 4)
    paths = [path for path, _ in server.sent]
    assert paths == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert server.loaded["model.norm.weight"].tolist() == [2, 2, 2]
    assert not Path(server.sent[1][1]["model_path"]).exists()
    (completion,) = sample(engine, requests_for(PROMPTS[:1], SamplingParams(max_tokens=2)))
    assert completion.version == 4
    np.testing.assert_array_equal(completion.token_ids, [7, 7])


def test_another_runs_weights_are_an_error(engine: InferenceEngine, server: Server):
    server.version = "of another run"
    with pytest.raises(InferenceError, match="weights that this run did not load"):
        sample(engine, requests_for(PROMPTS, SamplingParams(max_tokens=2)))


def test_after_a_failed_load_the_engine_samples_no_more(engine: InferenceEngine, server: Server):
    server.is_rejecting = True
    with pytest.raises(ModelError, match=r"SGLang server cannot load version 2 .*must be able to read"):
        engine.load([("model.norm.weight", torch.zeros(3))], 2)
    with pytest.raises(InferenceError, match="cannot load version 2"):
        sample(engine, requests_for(PROMPTS, SamplingParams(max_tokens=2)))


def test_a_filter_beyond_the_servers_limit_is_refused(engine: InferenceEngine):
    with pytest.raises(InferenceError, match=r"a top_k of at most 8\. Write rollout.sampling.top_k"):
        sample(engine, requests_for(PROMPTS, SamplingParams(max_tokens=2, top_p=0.9)))


def test_a_server_that_has_ended_is_a_lost_engine(engine: InferenceEngine, opened: ExitStack):
    opened.close()
    with pytest.raises(EngineLostError, match="did not respond in 2 attempts"):
        asyncio.run(engine.sample(requests_for(PROMPTS, SamplingParams(max_tokens=2))))


@pytest.fixture
def real_server(folder: Path) -> Iterator[int]:
    """Port of SGLang's server on the model."""
    port = find_free_port("127.0.0.1")
    options = "--device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph"
    options += " --disable-overlap-schedule --dtype float32 --max-total-tokens 4096 --context-length 512"
    options += f" --skip-server-warmup --log-level error --host 127.0.0.1 --port {port}"
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), *options.split()]
    process = subprocess.Popen(command, env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1"})
    try:
        while process.poll() is None and not is_up(port):
            time.sleep(1)
        assert process.poll() is None, "the server has ended at its start"
        yield port
    finally:
        process.terminate()
        process.wait(60)


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
            return reply.status == 200
    except OSError:
        return False


@pytest.mark.engines
@NEEDS_SGLANG
@pytest.mark.timeout(600)
def test_a_real_server_has_the_logprobs_of_the_weights_that_were_loaded(real_server: int, folder: Path):
    trained = AutoModelForCausalLM.from_pretrained(folder).eval()
    section = SglangServerConfig(base_url=f"http://127.0.0.1:{real_server}")
    model, tokenizer = ModelConfig(path=str(folder)), AutoTokenizer.from_pretrained(folder)
    requests = requests_for(PROMPTS, SamplingParams(temperature=0.8, max_tokens=12), samples=2)
    with running_engine(load_engine(section, model, tokenizer, torch.device("cpu"))) as engine:
        for version in (0, 1):
            completions = sample(engine, requests)
            assert_sampled_by(trained, requests, completions)
            assert {completion.version for completion in completions} == {version}
            with torch.no_grad():
                for parameter in trained.parameters():
                    parameter.mul_(1.5)
            engine.load(trained.named_parameters(), 1)

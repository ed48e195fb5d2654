"""The engine on a server, over HTTP: Strop's own endpoint, and a proxy before it that fails."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("aiohttp")

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import NativeEngineConfig, OpenAiEngineConfig
from strop.errors import EngineLostError, InferenceError
from strop.inference import server_client
from strop.inference.native import NativeEngine
from strop.inference.openai import OpenAiEngine
from strop.inference.openai.engine import chat_body, completion_body, parse_reply
from strop.inference.registry import load_engine, running_engine
from strop.types import SampleRequest, SamplingParams
from tests.inference.endpoints import Client, open_endpoint, tiny_model
from tests.inference.helpers import LIMIT, random_prompts, requests_for, sample
from tests.inference.http_server import http_server

KEY = "STROP_TEST_SERVER_KEY"
PROMPTS = random_prompts(4, 9, 15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "model"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Client]:
    with tiny_model(folder) as model, open_endpoint({"tiny": model}) as client:
        yield client


@pytest.fixture
def connect(server: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OpenAiEngine]:
    """An engine on the server, not yet started."""
    monkeypatch.setenv(KEY, server.key)

    def make(**changes: Any) -> OpenAiEngine:
        values = {"base_url": f"http://127.0.0.1:{server.port}/v1", "model": "tiny", "api_key_env": KEY}
        section = OpenAiEngineConfig(**values | {"backoff_seconds": 0.01} | changes)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return load_engine(section, ModelConfig(path=str(folder)), tokenizer, None)  # type: ignore[arg-type, return-value]

    return make


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.7, top_p=0.9, top_k=30, min_p=0.01, repetition_penalty=1.2),
        SamplingParams(min_tokens=5, stop_token_ids=tuple(range(0, 300, 3))),
        SamplingParams(stop=("e", "a"), ignore_eos=True),
    ],
    ids=["plain", "greedy", "filters", "stop tokens", "stop texts"],
)
def test_completions_are_those_of_the_model_with_the_same_seeds(connect, folder, sampling):
    requests = requests_for(PROMPTS, replace(sampling, max_tokens=24), samples=2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with running_engine(NativeEngine.from_model(model, NativeEngineConfig(), tokenizer)) as native:
        expected = sample(native, requests)
    with running_engine(connect()) as engine:
        found = sample(engine, requests)
    for one, other in zip(expected, found, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.finish_reason == other.finish_reason
        # A server reports the model's probabilities, before filters.
        own = one.sampler_logprobs if one.policy_logprobs is None else one.policy_logprobs
        np.testing.assert_allclose(own, other.sampler_logprobs, atol=1e-5)
        assert other.policy_logprobs is None and other.version == 0


def test_the_chat_api_sends_messages_and_encodes_the_text(connect, server):
    prompt = PROMPTS[0]
    messages = ({"role": "user", "content": "two and two"},)
    request = SampleRequest("a", prompt, SamplingParams(max_tokens=2, temperature=0), 1, messages=messages)
    content = server.ask(temperature=0, max_tokens=2).json()["choices"][0]["message"]["content"]
    with running_engine(connect(api="chat")) as engine:
        (found,) = sample(engine, [request])
        assert np.isnan(found.sampler_logprobs).all()
        assert engine._tokenizer.decode(found.token_ids) == content
        with pytest.raises(InferenceError, match="Write `api: completions`"):
            sample(engine, requests_for([prompt], SamplingParams(max_tokens=2)))


@pytest.mark.parametrize("rejects", [False, True])
def test_a_chat_server_is_asked_for_special_tokens(connect, caplog, rejects):
    message = {"content": "5", "reasoning_content": "two and three"}
    sent: list[dict[str, Any]] = []

    def answer(_: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        sent.append(json.loads(body))
        if rejects and "skip_special_tokens" in sent[-1]:
            return (
                400,
                b'{"error": {"message": "Unrecognized request argument supplied: skip_special_tokens"}}',
            )
        return 200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()

    request = SampleRequest(
        "a", PROMPTS[0], SamplingParams(max_tokens=2), 1, messages=({"role": "user", "content": "2 + 3"},)
    )
    with (
        http_server(answer) as port,
        running_engine(connect(api="chat", base_url=f"http://127.0.0.1:{port}/v1")) as one,
    ):
        sample(one, [request])
    assert ("skip_special_tokens" in sent[-1]) is not rejects
    assert ("rejects `skip_special_tokens: false`" in caplog.text) is rejects
    assert caplog.text.count("returns the reasoning of its replies in reasoning_content") == 1


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model": "other"}, "404 .*there is no model 'other'; available: tiny"),
        ({"api_key_env": None}, "401 .*the API key is wrong"),
        ({"base_url": "http://127.0.0.1:1/v1", "retries": 1}, "did not respond in 2 attempts"),
    ],
    ids=["model", "key", "address"],
)
def test_a_server_that_cannot_be_used_is_reported_at_the_start(connect, changes, fault):
    with closing(connect(**changes)) as engine, pytest.raises(EngineLostError, match=fault):
        engine.start()


@pytest.mark.parametrize(
    ("body", "fault"),
    [(b"[" * 100_000, "does not reply with JSON"), (b" " * 2_000_000, "sends more than 1 MB in one reply")],
    ids=["depth", "size"],
)
def test_an_answer_that_is_too_deep_or_too_long_is_reported(connect, monkeypatch, body, fault):
    monkeypatch.setattr(server_client, "_MAX_REPLY_BYTES", 1_000_000)
    with (
        http_server(lambda *_: (200, body)) as port,
        closing(connect(base_url=f"http://127.0.0.1:{port}/v1")) as engine,
        pytest.raises(EngineLostError, match=fault),
    ):
        engine.start()


def test_the_key_must_be_set(connect, monkeypatch):
    monkeypatch.delenv(KEY)
    with pytest.raises(InferenceError, match=f"the environment variable {KEY} is not set"):
        connect()


def test_an_invalid_request_fails_its_call_alone(connect):
    good, bad = requests_for(PROMPTS[:1], SamplingParams(max_tokens=2), samples=2)
    too_long = SampleRequest("long", bad.prompt_ids, SamplingParams(max_tokens=10**6), 0)
    with running_engine(connect()) as engine:
        with pytest.raises(InferenceError, match="the server rejects the request: 400"):
            sample(engine, [too_long])
        with pytest.raises(InferenceError, match="request 'bad': max_tokens is 0"):
            sample(engine, [SampleRequest("bad", bad.prompt_ids, SamplingParams(max_tokens=0), 0)])
        assert len(sample(engine, [good])) == 1


def failing_proxy(port: int, failures: list[int]) -> AbstractContextManager[int]:
    """A server that answers each request with the next of `failures` (0: it hangs up), and then passes them on."""

    def reply(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes] | None:
        if failures:
            status = failures.pop(0)
            return (status, b"busy") if status else None
        headers = {"Authorization": request.headers["Authorization"]}
        forwarded = urllib.request.Request(f"http://127.0.0.1:{port}{request.path}", body, headers)
        with urllib.request.urlopen(forwarded, timeout=LIMIT) as answer:
            return 200, answer.read()

    return http_server(reply)


def test_lost_connections_and_a_busy_server_are_retried_with_the_same_seed(connect, server):
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=8))
    with running_engine(connect()) as engine:
        expected = sample(engine, requests)
    failures: list[int] = []
    with (
        failing_proxy(server.port, failures) as port,
        running_engine(connect(base_url=f"http://127.0.0.1:{port}/v1")) as engine,
    ):
        failures += [0, 503, 429, 500, 0]
        found = sample(engine, requests)
        assert not failures
        failures += [503] * 100
        with pytest.raises(EngineLostError, match=r"did not respond in 6 attempts; the last one: 503 .*busy"):
            sample(engine, requests[:1])
    assert [each.token_ids.tolist() for each in found] == [each.token_ids.tolist() for each in expected]


def request(**sampling: Any) -> SampleRequest:
    return SampleRequest("a", PROMPTS[0], SamplingParams(max_tokens=3, **sampling), 7)


def test_bodies_have_only_parameters_with_an_effect():
    body = completion_body(request(), "m", [2])
    assert body["prompt"] == PROMPTS[0].tolist() and body["stop_token_ids"] == [2]
    sent = {"temperature", "max_tokens", "seed", "model", "prompt", "logprobs", "stop_token_ids"}
    flags = {name for name, value in body.items() if value is True or value is False}
    assert body.keys() == sent | flags
    greedy = completion_body(request(temperature=0, top_p=0.5, min_tokens=1), "m", [])
    assert "seed" not in greedy and "top_p" not in greedy and greedy["min_tokens"] == 1
    spoken = replace(request(), messages=({"role": "user", "content": "x"},))
    chat = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 1.0,
        "max_tokens": 3,
        "seed": 7,
    }
    assert chat_body(spoken, "m", keeps_special_tokens=False) == chat
    assert chat_body(spoken, "m", keeps_special_tokens=True) == {**chat, "skip_special_tokens": False}


def encode(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def reply(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"text": "ab", "finish_reason": "stop", **choice}]}


def test_token_ids_are_a_field_or_the_names_of_the_tokens():
    logprobs = {"token_logprobs": [-1.0, -2.0, -3.0]}
    field = parse_reply(request(), reply(token_ids=[5, 6, 7], logprobs={**logprobs, "tokens": []}), encode, 0)
    names = ["token_id:5", "token_id:6", "token_id:7"]
    named = parse_reply(request(), reply(logprobs={**logprobs, "tokens": names}), encode, 0)
    for completion in (field, named):
        assert completion.token_ids.tolist() == [5, 6, 7]
        assert completion.sampler_logprobs.tolist() == [-1, -2, -3]
    text = parse_reply(request(), reply(logprobs={**logprobs, "tokens": ["x", "y", "z"]}), encode, 0)
    assert text.token_ids.tolist() == [97, 98] and np.isnan(text.sampler_logprobs).all()
    assert parse_reply(request(), reply(text="\ud800"), encode, 0).token_ids.tolist() == [ord("?")]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({}, "not in OpenAI's format"),
        ({"choices": []}, "not in OpenAI's format"),
        ([], "not in OpenAI's format"),
        ({"choices": [{"finish_reason": "stop"}]}, "not in OpenAI's format"),
        (reply(logprobs={"tokens": ["token_id:x"]}), "not in OpenAI's format"),
        (reply(text=5), "not in OpenAI's format"),
        (reply(token_ids=["a"]), "not in OpenAI's format"),
        (reply(token_ids=[2**40]), "not in OpenAI's format"),
        (reply(token_ids=[-1]), "not in OpenAI's format"),
        (reply(token_ids=[[1]]), "not in OpenAI's format"),
        (reply(token_ids=[1], logprobs={"token_logprobs": ["x"]}), "not in OpenAI's format"),
        (reply(token_ids=[1], logprobs={"token_logprobs": [[1.0]]}), "not in OpenAI's format"),
        (reply(finish_reason="abort"), r"ended it early \(abort\)"),
    ],
)
def test_other_replies_are_errors(body, fault):
    with pytest.raises(InferenceError, match=fault):
        parse_reply(request(), body, encode, 0)

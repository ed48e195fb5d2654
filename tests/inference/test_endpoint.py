"""Malformed requests to the endpoint, and clients that are slow, silent or many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from strop.inference.endpoint import connections, server
from strop.inference.endpoint.request import ChatRequest
from strop.inference.endpoint.response import ChatResponse
from strop.workers.waiting import wait_until
from tests.inference.endpoints import CHAT, GOOD, Client, open_endpoint
from tests.inference.small_endpoint import Fixed
from tests.inference.tiny_chat_model import tiny_model


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        tiny_model(tmp_path_factory.mktemp("endpoint") / "model") as model,
        open_endpoint({"tiny": model}) as client,
    ):
        yield client


def call(**function: Any) -> list[dict[str, Any]]:
    """Messages with one tool call."""
    return [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


WRONG_VALUES: list[tuple[str, dict[str, Any]]] = [
    ("messages is 5", {"messages": 5}),
    ("messages is 'text'", {"messages": "text"}),
    ("messages is {}", {"messages": {}}),
    ("messages is []", {"messages": []}),
    ("messages[0] is 5", {"messages": [5]}),
    ("messages[0] is None", {"messages": [None]}),
    ("messages[0].role is None", {"messages": [{"content": "x"}]}),
    ("messages[0].role is ['user']", {"messages": [{"role": ["user"], "content": "x"}]}),
    ("messages[0].content is None", {"messages": user(None)}),
    ("messages[0].content is 5", {"messages": user(5)}),
    ("must begin with data:image", {"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])}),
    ("it must be an object", {"messages": user(["x"])}),
    ("only text and image_url are supported", {"messages": user([{"type": "input_audio"}])}),
    ("text of a part is 5", {"messages": user([{"type": "text", "text": 5}])}),
    ("tool_call_id is {", {"messages": [{"role": "tool", "content": "x", "tool_call_id": {"a": 1}}]}),
    ("tool_calls is 5", {"messages": [{"role": "assistant", "tool_calls": 5}]}),
    ("tool_calls[0] is 'x'", {"messages": [{"role": "assistant", "tool_calls": ["x"]}]}),
    ("function is None", {"messages": [{"role": "assistant", "tool_calls": [{"function": None}]}]}),
    ("function.name is None", {"messages": call(arguments="{}")}),
    ("function.name is 5", {"messages": call(name=5, arguments="{}")}),
    ("arguments is not JSON", {"messages": call(name="f", arguments="{")}),
    ("arguments is [1]", {"messages": call(name="f", arguments="[1]")}),
    ("arguments is nested", {"messages": call(name="f", arguments="[" * 100_000)}),
    ("arguments has a lone surrogate", {"messages": call(name="f", arguments='{"a": "\\ud800"}')}),
    ("tools is 'x'", {"tools": "x"}),
    ("tools is '[]'", {"tools": "[]"}),
    ("tools[0] is 5", {"tools": [5]}),
    ("tools[0].function is None", {"tools": [{"type": "function"}]}),
    ("tools[0].function.name is []", {"tools": [{"type": "function", "function": {"name": []}}]}),
    ("parameters is [1]", {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]}),
    ("stop is 5", {"stop": 5}),
    ("stop is [5]", {"stop": [5]}),
    ("stop is ''", {"stop": ""}),
    ("stop is {", {"stop": {"a": 1}}),
    ("stream_options is 'x'", {"stream_options": "x"}),
    ("include_usage is 'x'", {"stream_options": {"include_usage": "x"}}),
    ("stream is 'x'", {"stream": "x"}),
    ("max_tokens is 0", {"max_tokens": 0}),
    ("max_tokens is -1", {"max_tokens": -1}),
    ("max_tokens is 1.5", {"max_tokens": 1.5}),
    ("max_tokens is True", {"max_tokens": True}),
    ("max_tokens is 1e+308", {"max_tokens": 1e308}),
    ("numbers must be finite", {"max_tokens": float("inf")}),
    ("numbers must be finite", {"temperature": float("nan")}),
    ("temperature is -1", {"temperature": -1}),
    ("temperature is 1e-300", {"temperature": 1e-300}),
    ("temperature is 'warm'", {"temperature": "warm"}),
    ("top_p is 2", {"top_p": 2}),
    ("model is 5", {"model": 5}),
    ("n: 2 is not supported", {"n": 2}),
    ("flavor is not supported", {"flavor": 1}),
    ("logprobs: True is not supported", {"logprobs": True}),
]
BODIES = {
    "nothing": b"",
    "not JSON": b"{",
    "not an object": b"5",
    "null": b"null",
    "not UTF-8": b'{"model": "\xff"}',
    "lone surrogate": json.dumps(GOOD | {"messages": user("\ud800")}).encode(),
    "lone surrogate in a key": b'{"\\udfff": 1}',
    "encoded surrogate": b'{"model": "\xed\xa0\x80"}',
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "nested too deep": b'{"messages":' + b"[" * 70 + b"]" * 70 + b"}",
    "number of many digits": b'{"max_tokens": ' + b"9" * 5000 + b"}",
    "infinite exponent": b'{"temperature": 1e999}',
}


@pytest.mark.parametrize(("message", "changes"), WRONG_VALUES, ids=[message for message, _ in WRONG_VALUES])
def test_wrong_values_are_named(client: Client, message: str, changes: dict[str, Any]) -> None:
    reply = client.ask(**changes)
    assert (reply.status, message in reply.json()["error"]["message"]) == (400, True), reply.content


def test_malformed_bodies_are_rejected(client: Client) -> None:
    replies = {name: client.post(body) for name, body in BODIES.items()}
    assert {name: reply.status for name, reply in replies.items()} == dict.fromkeys(BODIES, 400)
    assert all(reply.json()["error"]["type"] == "invalid_request_error" for reply in replies.values())
    good = json.dumps(GOOD).encode()
    for header in ({"Content-Type": "application/json; charset=klingon"}, {"Content-Encoding": "gzip"}):
        assert client.post(good, headers=header).status == 400
    assert client.ask().status == 200


def test_wrong_keys_are_rejected(client: Client) -> None:
    body = json.dumps(GOOD).encode()
    for key in (b"", b"guess", "ключ".encode(), b"\xff\xfe", b"x" * 5000, client.key.encode() + b"\xff"):
        reply = client.post(body, key=key)
        assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1e-6},
        {"temperature": 0, "top_p": 0},
        {"max_tokens": 10**30},
        {"messages": user([{"type": "text", "text": "two"}])},
        {"messages": [{"role": "assistant", "content": None}, *user("x")]},
        {"stop": ["a", "b"], "stream_options": None, "stream": True},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"messages": [*call(name="f", arguments=""), {"role": "tool", "tool_call_id": "1", "content": "5"}]},
    ],
    ids=str,
)
def test_unusual_valid_requests_are_answered(client: Client, changes: dict[str, Any]) -> None:
    reply = client.ask(**changes)
    assert reply.status == 200, reply.content


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*GOOD, "tools", "stop", "stream", "stream_options", "temperature", "top_p", "max_completion_tokens"]
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool"]) | JSON,
        "content": st.text(max_size=8) | JSON,
        "tool_calls": JSON | st.lists(st.fixed_dictionaries({}, optional={"id": JSON, "function": JSON})),
        "tool_call_id": JSON,
        "name": JSON,
    },
)
BODY = st.one_of(
    JSON,
    st.dictionaries(KEYS, JSON, max_size=4).map(lambda changes: GOOD | changes),
    st.lists(MESSAGE, min_size=1, max_size=3).map(lambda messages: GOOD | {"messages": messages}),
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(BODY, st.integers(0, 50))
def test_no_generated_body_is_an_error_of_the_server(client: Client, body: Any, cut: int) -> None:
    text = json.dumps(body).encode()
    for sent in (text, text[: len(text) * cut // 50]):
        assert client.post(sent).status in (200, 400, 404)  # 404: an unknown model


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=200))
def test_no_bytes_stop_the_server(client: Client, content: bytes) -> None:
    request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n".encode()
    for sent in (content, request + content, client.head(len(content)) + content):
        with client.open() as opened, contextlib.suppress(ConnectionError):
            opened.sendall(sent + b"\r\n\r\n")
    assert client.ask().status == 200


def received_until_closed(
    client: Client, content: bytes, drip: bytes = b"", pause_seconds: float = 0.1
) -> bytes:
    """All that the endpoint sends until it closes the connection, while a byte is sent now and then."""
    with client.open() as opened:
        opened.sendall(content)
        received, began = b"", time.monotonic()
        opened.settimeout(pause_seconds)
        while time.monotonic() < began + 20:
            try:
                chunk = opened.recv(1 << 16)
                if not chunk:
                    return received
                received += chunk
            except TimeoutError:
                with contextlib.suppress(ConnectionError):
                    opened.sendall(drip)
            except ConnectionError:
                return received
    raise AssertionError("the connection is still open")


@pytest.mark.parametrize("content", [b"", b"POST", b"POST /v1/models HTTP/1.1\r\nAuthorization: Bearer "])
@pytest.mark.parametrize("drip", [b"", b"a"], ids=["silent", "slow"])
def test_connections_without_a_key_are_closed(
    client: Client, content: bytes, drip: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "AUTHENTICATION_SECONDS", 0.3)
    assert received_until_closed(client, content, drip)[9:12] in (b"", b"400")
    assert client.ask().status == 200


def test_a_request_on_a_connection_that_was_closed_is_no_error_of_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "AUTHENTICATION_SECONDS", 0.5)
    with (
        contextlib.closing(server.EndpointServer()) as endpoint,
        endpoint.register({"tiny": Fixed()}) as access,
    ):
        client = Client(urlsplit(access.url).port or 0, access.api_key)
        with client.open() as opened:
            assert client.ask().status == 200  # the server has accepted the first connection
            blocked, sent = threading.Event(), threading.Event()
            busy = endpoint._thread.submit(read_late(blocked, sent))
            blocked.wait()
            opened.sendall(client.head(1000))
            sent.set()
            busy.result()
            with contextlib.suppress(ConnectionResetError):
                assert opened.recv(1 << 16) == b""
        assert client.ask().status == 200
    assert not caplog.records


async def read_late(blocked: threading.Event, sent: threading.Event) -> None:
    """Keep the event loop from reading until the request is sent, and then for a second in which it is read."""
    blocked.set()
    sent.wait()
    asyncio.get_running_loop().call_soon(time.sleep, 1.0)


def test_a_body_that_does_not_arrive_times_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_SECONDS", 0.3)
    reply = received_until_closed(client, client.head(1000) + b"{", b" ")
    assert reply.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.3)
    body = json.dumps(GOOD).encode()
    reply = received_until_closed(client, client.head(len(body)) + body + b"POST")
    assert reply.startswith(b"HTTP/1.1 200 ")


class Large:
    """A model whose responses exceed every buffer of a connection."""

    async def chat(self, request: ChatRequest) -> ChatResponse:
        return ChatResponse("1", "four " * (4 << 20), "stop", 1, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_does_not_read_is_dropped(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SEND_SECONDS", 0.5)
    body = json.dumps(GOOD | {"stream": stream}).encode()
    with open_endpoint({"tiny": Large()}) as client, client.open() as opened:
        opened.sendall(client.head(len(body)) + body)
        time.sleep(1.5)
        size = 0
        with contextlib.suppress(ConnectionError):
            while chunk := opened.recv(1 << 20):
                size += len(chunk)
        assert size < 16 << 20


def test_idle_strangers_do_not_keep_clients_out(client: Client) -> None:
    assert client.ask().status == 200  # opens what stays open
    folder = Path("/proc/self/fd")
    files = len(list(folder.iterdir())) if folder.is_dir() else 0
    with contextlib.ExitStack() as opened:
        for _ in range(connections.MAX_UNAUTHENTICATED + 50):
            opened.enter_context(client.open())
        assert client.ask().status == 200
    if files:
        assert wait_until(
            lambda: len(list(folder.iterdir())) <= files,
            "the connections",
            timeout_seconds=20,
            interval_seconds=0.05,
        )


def test_the_clients_of_all_rollouts_may_connect_before_the_first_request() -> None:
    body = json.dumps(GOOD).encode()
    with contextlib.ExitStack() as opened:
        endpoint = opened.enter_context(contextlib.closing(server.EndpointServer()))
        clients = []
        for _ in range(connections.MAX_UNAUTHENTICATED + 50):
            access = opened.enter_context(endpoint.register({"tiny": Fixed()}))
            clients.append(Client(urlsplit(access.url).port or 0, access.api_key))
        sockets = [opened.enter_context(client.open()) for client in clients]
        for client, connection in zip(clients, sockets, strict=True):
            connection.sendall(client.head(len(body)) + body)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_an_endpoint_without_free_files_recovers() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.inference.small_endpoint", "6"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port, key = process.stdout.readline().split()
        client = Client(int(port), key)
        with contextlib.ExitStack() as opened:
            for _ in range(8):
                opened.enter_context(client.open())
            assert client.ask().status == 200
        assert client.ask().status == 200
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0

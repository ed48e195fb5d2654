"""Malformed requests to the endpoint, and clients that are slow, silent or many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from benchmarks.endpoint import CASES, measure
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.inference.endpoint import connections, server
from strop.workers.child_process import start_module
from strop.workers.waiting import wait_until
from tests.inference.endpoints import CHAT, GOOD, Client, Fixed, open_endpoint, tiny_model
from tests.inference.helpers import LIMIT

IMPORTS = ("strop.inference.endpoint.server",)
BODY = json.dumps(GOOD).encode()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("endpoint") / "model"
    with tiny_model(folder) as model, open_endpoint({"tiny": model}) as client:
        yield client


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}
ASSISTANT, TOOL = {"role": "assistant"}, {"role": "tool", "tool_call_id": "1", "content": "5"}
UNUSUAL: list[dict[str, Any]] = [
    {"temperature": 1e-6},
    {"temperature": 0, "top_p": 0},
    {"max_tokens": 10**30},
    {"messages": [user([{"type": "text", "text": "two"}])]},
    {"messages": [ASSISTANT | {"content": None}, user("x")]},
    {"messages": [ASSISTANT | {"tool_calls": [CALL]}, TOOL]},
    {"stop": ["a", "b"], "stream_options": None, "stream": True},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
]


def test_the_server_answers_invalid_requests_with_their_faults(client: Client) -> None:
    for reply, message in (
        (client.ask(temperature=1e-300), "temperature is 1e-300"),  # a fault that the engine finds
        (client.ask(seed=2**64), "the seed is 18446744073709551616; it must be from 0"),
        (client.ask(flavor=1), "flavor is not supported"),
        (client.post(b"{"), "the request is not JSON"),
        (client.post(BODY, headers={"Content-Type": "application/json; charset=klingon"}), "charset"),
        (client.post(BODY, headers={"Content-Encoding": "gzip"}), "cannot be decoded"),
    ):
        error = reply.json()["error"]
        assert (reply.status, error["type"]) == (400, "invalid_request_error")
        assert message in error["message"]
    assert client.ask(model="other").status == 404
    assert client.ask().status == 200


def test_wrong_keys_are_rejected(client: Client) -> None:
    for key in (b"", b"guess", "ключ".encode(), b"\xff\xfe", b"x" * 5000, client.key.encode() + b"\xff"):
        reply = client.post(BODY, key=key)
        assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")


def test_unusual_valid_requests_are_answered(client: Client) -> None:
    for changes in UNUSUAL:
        reply = client.ask(**changes)
        assert reply.status == 200, (changes, reply.content)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=200))
def test_no_bytes_stop_the_server(client: Client, content: bytes) -> None:
    request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n".encode()
    for sent in (content, request + content, client.head(len(content)) + content):
        with client.open() as opened, contextlib.suppress(ConnectionError):
            opened.sendall(sent + b"\r\n\r\n")
    assert client.ask().status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("encode_prompt", CHAT, GOOD),
        ("encode_text", "/v1/completions", {"model": "tiny", "prompt": "two", "max_tokens": 1}),
    ],
)
def test_a_prompt_that_is_encoded_for_long_keeps_nobody_waiting(
    client: Client, method: str, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, is_answered = threading.Event(), threading.Event()
    encode = getattr(TurnEncoder, method)

    def wait(*values: Any) -> Any:
        begun.set()
        assert is_answered.wait(LIMIT)
        return encode(*values)

    monkeypatch.setattr(TurnEncoder, method, wait)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(client.post, json.dumps(body).encode(), path=path)
        assert begun.wait(LIMIT)
        assert client.post(b"{").status == 400
        is_answered.set()
        assert reply.result().status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("encode_prompt", CHAT, GOOD | {"messages": [user("two "), user("o" * 5_000_000)]}),
        (
            "encode_prompt",
            CHAT,
            GOOD | {"messages": [user([{"type": "text", "text": "o" * 5_000_000}])]},
        ),
        ("encode_text", "/v1/completions", {"model": "tiny", "prompt": "o" * 5_000_000}),
        ("encode_text", "/v1/completions", {"model": "tiny", "prompt": ["o" * 2_500] * 2_000}),
    ],
    ids=["chat", "parts", "text", "texts"],
)
def test_a_prompt_beyond_any_context_is_refused_before_it_is_encoded(
    client: Client, method: str, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(TurnEncoder, method)
    reply = client.post(json.dumps(body).encode(), path=path)
    assert (reply.status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "5,000,0" in reply.json()["error"]["message"]


def received_until_closed(client: Client, content: bytes, drip: bytes = b"") -> bytes:
    """All that the endpoint sends until it closes the connection, while bytes are sent now and then."""
    received = b""
    with client.open() as opened, contextlib.suppress(ConnectionError):
        opened.sendall(content)
        if drip:
            opened.settimeout(0.1)
        while True:
            try:
                chunk = opened.recv(1 << 16)
            except TimeoutError:
                opened.sendall(drip)
                continue
            if not chunk:
                break
            received += chunk
    return received


@pytest.mark.parametrize("content", [b"", b"POST", b"POST /v1/models HTTP/1.1\r\nAuthorization: Bearer "])
@pytest.mark.parametrize("drip", [b"", b"a"], ids=["silent", "slow"])
def test_connections_without_a_key_are_closed(
    client: Client, content: bytes, drip: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(connections, "AUTHENTICATION_SECONDS", 0.3)
        assert received_until_closed(client, content, drip)[9:12] in (b"", b"400")
    assert client.ask().status == 200


def test_a_body_that_does_not_arrive_times_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_SECONDS", 0.3)
    reply = received_until_closed(client, client.head(1000) + b"{", b" ")
    assert reply.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.3)
    reply = received_until_closed(client, client.head(len(BODY)) + BODY + b"POST")
    assert reply.startswith(b"HTTP/1.1 200 ")


def test_a_request_on_a_connection_that_was_closed_is_no_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server closes the connection after it has read the request, and before it begins to answer it."""
    with (
        contextlib.closing(server.EndpointServer()) as endpoint,
        endpoint.register({"tiny": Fixed()}) as access,
    ):
        client = Client.of(access)
        with client.open() as opened:
            assert client.ask().status == 200  # the server has accepted the first connection
            blocked, sent = threading.Event(), threading.Event()

            async def read_late() -> None:
                loop, found = asyncio.get_running_loop(), endpoint._connections
                (connection,) = found._unauthenticated
                blocked.set()
                sent.wait()
                # The loop reads in its next round, and in the one after it the request's task begins.
                loop.call_soon(loop.call_soon, loop.call_soon, found._abort, connection)

            busy = endpoint._thread.submit(read_late())
            blocked.wait()
            opened.sendall(client.head(1000))
            sent.set()
            busy.result()
            with contextlib.suppress(ConnectionResetError):
                assert opened.recv(1 << 16) == b""
        assert client.ask().status == 200
    assert not caplog.records


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_does_not_read_is_dropped(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response exceeds every buffer of a connection."""
    ended, sender = threading.Event(), "_send_events" if stream else "_send"
    send = getattr(server, sender)

    async def observed(*arguments: Any) -> Any:
        try:
            return await send(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(server, sender, observed)
    monkeypatch.setattr(server, "_SEND_SECONDS", 0.5)
    body = json.dumps(GOOD | {"stream": stream}).encode()
    with open_endpoint({"tiny": Fixed("four " * (4 << 20))}) as client, client.open() as opened:
        opened.sendall(client.head(len(body)) + body)
        assert ended.wait(LIMIT)
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

    def are_closed() -> bool:
        return len(list(folder.iterdir())) <= files

    if files:
        assert wait_until(are_closed, "the connections", timeout_seconds=LIMIT, interval_seconds=0.05)


def test_the_clients_of_all_rollouts_may_connect_before_the_first_request() -> None:
    with contextlib.ExitStack() as opened:
        endpoint = opened.enter_context(contextlib.closing(server.EndpointServer()))
        clients = [
            Client.of(opened.enter_context(endpoint.register({"tiny": Fixed()})))
            for _ in range(connections.MAX_UNAUTHENTICATED + 50)
        ]
        sockets = [opened.enter_context(client.open()) for client in clients]
        for client, connection in zip(clients, sockets, strict=True):
            connection.sendall(client.head(len(BODY)) + BODY)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_an_endpoint_without_free_files_recovers() -> None:
    process = start_module(
        "tests.inference.endpoints", "6", imports=IMPORTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port, key = process.stdout.readline().decode().split()
        client = Client(int(port), key)
        with contextlib.ExitStack() as opened:
            for _ in range(8):
                opened.enter_context(client.open())
            assert client.ask().status == 200
        assert client.ask().status == 200
        process.stdin.close()
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.stdout.close()


@pytest.mark.slow
def test_200_clients_get_their_responses_and_leave_nothing_behind(tmp_path: Path) -> None:
    """For a moment; `make evidence ARGS=endpoint` takes a minute."""
    load = measure(200, 0.0, tmp_path / "model")
    assert set(load.statuses) == {(case.name, case.status) for case in CASES}
    assert sum(load.statuses.values()) == 400
    assert (load.left_threads, load.left_files) == (0, 0)

"""Answers of foreign servers: limits of bytes and of seconds, whatever comes and however slowly."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from strop.workers.http_fetch import fetch, retry_wait_seconds

HEAD = b"HTTP/1.1 200 OK\r\n"
ERROR = b"HTTP/1.1 503 Busy\r\n"


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Request]]:
    """Function that starts a server, which sends some bytes and then others again and again; a request to it."""
    monkeypatch.setenv("no_proxy", "*")
    over = threading.Event()
    threads = []

    def start(first: bytes, again: bytes = b"", pause: float = 0.0) -> Request:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]

        def answer() -> None:
            with listener, suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    request = b""
                    while not request.endswith(
                        b"{}"
                    ):  # one that closes before it has read all resets the connection
                        request += connection.recv(65536)
                    connection.sendall(first)
                    while again and not over.wait(pause):
                        connection.sendall(again)

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return Request(f"http://127.0.0.1:{port}/", b"{}")

    yield start
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (HEAD + b"\r\n", b" "),
        (HEAD + b"X: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (ERROR + b"\r\n", b" "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["body", "header", "interim answers", "error", "chunks"],
)
def test_an_answer_that_never_ends_has_a_time_limit(answering, first, again):
    with pytest.raises(TimeoutError, match=r"no complete answer in 0\.3 s"):
        fetch(answering(first, again, pause=0.01), timeout_seconds=0.3, max_bytes=1000)


def test_an_answer_has_a_limit_of_bytes(answering):
    length = b"Content-Length: 1000000000000\r\n\r\n"
    for head in (HEAD + b"\r\n", HEAD + length):
        assert fetch(answering(head, b"x" * 5000), timeout_seconds=60, max_bytes=9000) == b"x" * 9000
    with pytest.raises(HTTPError, match="503") as error:
        fetch(answering(ERROR + length, b"x" * 5000), timeout_seconds=60, max_bytes=9)
    assert error.value.read() == b"x" * 10_000


def test_an_answer_that_breaks_off_is_an_error(answering):
    with pytest.raises(http.client.IncompleteRead):
        fetch(answering(HEAD + b"Content-Length: 9\r\n\r\nx"), timeout_seconds=60, max_bytes=1000)
    assert fetch(answering(HEAD + b"Content-Length: 1\r\n\r\nx"), timeout_seconds=60, max_bytes=1000) == b"x"


@pytest.mark.parametrize("retry_after", ["nan", "-5", "0", "Wed, 21 Oct 2026 07:28:00 GMT", "", None])
def test_the_wait_before_another_attempt_is_the_own_one_without_a_valid_header(retry_after):
    for attempt, least in enumerate((2.0, 4.0, 8.0)):
        assert least <= retry_wait_seconds(attempt, 2.0, retry_after) <= 1.2 * least
    assert 60 <= retry_wait_seconds(0, 2.0, "inf") <= 72

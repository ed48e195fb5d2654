"""An MCP server over HTTP that answers the handshake, and one chosen method with whatever a test says."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler", Any], None]
"""Writes the answer to a request, whose JSON-RPC id is the second argument."""
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"
EVENTS = HEAD + b"Content-Type: text/event-stream\r\n\r\n"
PING = b'event: message\ndata: {"jsonrpc": "2.0", "id": "s", "method": "ping"}\n\n'


class Handler(BaseHTTPRequestHandler):
    """One request. Streamable HTTP at /mcp, and the older transport with one stream of events at /sse."""

    server: HostileServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, number = asked.get("method"), asked.get("id")
        self.server.asked.append(method)
        if self.path != "/mcp":
            self.wfile.write(HEAD.replace(b"200 OK", b"202 Accepted") + b"Content-Length: 0\r\n\r\n")
            self.server.events.put((method, number))
        elif method in self.server.answers:
            self.server.answers[method](self, number)
        elif number is None or method is None:
            self.wfile.write(HEAD.replace(b"200 OK", b"202 Accepted") + b"Content-Length: 0\r\n\r\n")
        else:
            body = reply_to(method, number, asked)
            session = b"Mcp-Session-Id: 1\r\n" if method == "initialize" else b""
            self.wfile.write(JSON + session + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def do_GET(self) -> None:
        self.server.asked.append("GET")
        if "GET" in self.server.answers:
            self.server.answers["GET"](self, None)
        elif self.path != "/sse":
            self.wfile.write(HEAD.replace(b"200 OK", b"405 No") + b"Content-Length: 0\r\n\r\n")
        else:
            self.wfile.write(EVENTS + b"event: endpoint\ndata: /messages\n\n")
            while not self.server.is_over.is_set():
                with suppress(queue.Empty):
                    method, number = self.server.events.get(timeout=0.02)
                    if method in self.server.answers:
                        self.server.answers[method](self, number)
                    elif number is not None and method is not None:
                        body = reply_to(method, number, {"params": {"protocolVersion": "2025-06-18"}})
                        self.wfile.write(b"event: message\ndata: " + body + b"\n\n")

    def do_DELETE(self) -> None:
        self.server.asked.append("DELETE")
        if "DELETE" in self.server.answers:
            self.server.answers["DELETE"](self, None)
        else:
            self.wfile.write(HEAD + b"Content-Length: 0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class HostileServer(ThreadingHTTPServer):
    """The server, until the context ends."""

    daemon_threads = True

    def __init__(self, answers: dict[str, Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.asked: list[str | None] = []
        """Methods of MCP, and of HTTP where they are not POST, in the order of the requests."""
        self.events: queue.Queue[tuple[str | None, Any]] = queue.Queue()
        self.is_over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """The client has gone away."""


@contextmanager
def hostile_server(**answers: Answer) -> Iterator[HostileServer]:
    """A server whose methods, with `_` for `/`, have these answers."""
    named = {name.replace("_", "/"): answer for name, answer in answers.items()}
    with HostileServer(named) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.is_over.set()
        server.shutdown()


def reply_to(method: str, number: Any, asked: Any) -> bytes:
    """The answer of an ordinary server."""
    tool = {"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": asked.get("params", {}).get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        },
        "tools/list": {"tools": [tool]},
        "tools/call": {"content": [{"type": "text", "text": "3"}]},
    }
    if method in results:
        return json.dumps({"jsonrpc": "2.0", "id": number, "result": results[method]}).encode()
    error = {"code": -32601, "message": "there is no such method"}
    return json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()


def sends(first: bytes, again: bytes = b"", pause: float = 0.0) -> Answer:
    """An answer of some bytes and then of others again and again, until the client or the test ends."""

    def answer(handler: Handler, number: Any) -> None:
        handler.close_connection = True
        handler.wfile.write(first)
        while again and not handler.server.is_over.wait(pause):
            handler.wfile.write(again)

    return answer


def never(handler: Handler, number: Any) -> None:
    """No answer."""
    handler.server.is_over.wait()


def next_page(handler: Handler, number: Any) -> None:
    """A page of a list without an end."""
    page = {"jsonrpc": "2.0", "id": number, "result": {"tools": [], "nextCursor": "more"}}
    body = json.dumps(page).encode()
    handler.wfile.write(JSON + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)


def next_page_as_event(handler: Handler, number: Any) -> None:
    """A page of a list without an end, in the stream of events."""
    page = {"jsonrpc": "2.0", "id": number, "result": {"tools": [], "nextCursor": "more"}}
    handler.wfile.write(b"event: message\ndata: " + json.dumps(page).encode() + b"\n\n")

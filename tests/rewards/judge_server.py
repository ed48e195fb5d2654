"""Fake judge for tests: a local HTTP server with OpenAI's protocol and configurable replies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]
"""Status, and the body as JSON (text as it is)."""


def says(text: str, tokens: int | None = 10) -> Answer:
    """A reply in OpenAI's form."""
    usage = {} if tokens is None else {"usage": {"total_tokens": tokens}}
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}], **usage}


@dataclass
class JudgeServer:
    """Address of the server, and the requests that it received."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnected after a timeout."""


@contextmanager
def judge_server(answer: Callable[[dict[str, Any], int], Answer]) -> Iterator[JudgeServer]:
    """`answer` gets a request and its number, from 0; several may run at once."""
    lock, under_way = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(body)
                server.headers.append(dict(self.headers))
                under_way[0] += 1
                server.most_at_once = max(server.most_at_once, under_way[0])
            status, content = answer(body, number)
            with lock:
                under_way[0] -= 1
            self._send(status, content)

        def _send(self, status: int, content: Any) -> None:
            raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            if status == 429:
                self.send_header("Retry-After", "0.01")
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None: ...

    http = _Server(("127.0.0.1", 0), Handler)
    server = JudgeServer(f"http://127.0.0.1:{http.server_port}/v1")
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()

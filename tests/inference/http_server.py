"""An HTTP server whose replies a function gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes] | None]
"""Status and content for a request with a body; None closes the connection."""


@contextmanager
def http_server(reply: Reply) -> Iterator[int]:
    """The port of a server on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = reply(self, self.rfile.read(int(self.headers["Content-Length"] or 0)))
            if answer is None:
                self.connection.close()
                return
            status, content = answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()

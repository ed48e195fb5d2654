"""A local HTTP server with the part of the Hugging Face hub's API that `datasets.load_dataset` uses."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

_COMMIT = "a" * 40


@contextmanager
def loopback_hub(repository: str, files: Mapping[str, bytes], silent: str = "none") -> Iterator[str]:
    """Serve one dataset repository; yields the address for HF_ENDPOINT. Paths with `silent` get no answer."""
    over = threading.Event()
    handler = partial(_Handler, repository, files, silent, over)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        over.set()
        server.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(
        self, repository: str, files: Mapping[str, bytes], silent: str, over: threading.Event, *args: Any
    ) -> None:
        self.repository = repository
        self.files = files
        self.silent, self.over = silent, over
        super().__init__(*args)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.silent in path:
            self.over.wait()
            return
        info, resolve = f"/api/datasets/{self.repository}/", f"/datasets/{self.repository}/resolve/"
        if path.startswith(f"{info}tree/"):
            folder = path.removeprefix(f"{info}tree/").partition("/")[2]
            self._answer(json.dumps(self._tree(folder)).encode())
        elif path.startswith(info):
            files = [{"rfilename": file} for file in self.files]
            self._answer(json.dumps({"id": self.repository, "sha": _COMMIT, "siblings": files}).encode())
        elif path.startswith(resolve) and path.removeprefix(resolve).partition("/")[2] in self.files:
            self._answer(self.files[path.removeprefix(resolve).partition("/")[2]])
        else:
            self.send_response(404)
            error = "EntryNotFound" if path.startswith(resolve) else "RepoNotFound"
            self.send_header("X-Error-Code", error)
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def _tree(self, folder: str) -> list[dict[str, Any]]:
        prefix = f"{folder}/" if folder else ""
        inside = [file.removeprefix(prefix) for file in self.files if file.startswith(prefix)]
        here = sorted({prefix + name.split("/")[0] for name in inside})
        return [
            {"type": "file", "path": path, "oid": "b" * 40, "size": len(self.files[path])}
            if path in self.files
            else {"type": "directory", "path": path, "oid": "b" * 40}
            for path in here
        ]

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", _COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""

"""A small stand-in for a SandboxFusion server: `POST /run_code` with the requests, answers and limits of the original.

The schema is that of `sandbox/server/sandbox_api.py` and `sandbox/runners/types.py` in bytedance/SandboxFusion:
a request of the wrong form is a status 422 with a list of faults, an exception a status 500 with `detail` and
`traceback`, and a fault of the sandbox a status 200 with `status: SandboxError`. A program runs as `python FILE` in a
new folder, without isolation. Requests beyond `concurrency` queue.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LANGUAGES = ("python", "cpp", "nodejs", "go", "java", "bash")
"""Some of the server's 29 languages."""
REQUIRED: dict[str, type] = {"code": str, "language": str}
DEFAULTS: dict[str, Any] = {
    "compile_timeout": 10.0,
    "run_timeout": 10.0,
    "memory_limit_MB": -1,
    "stdin": "",
    "files": {},
    "fetch_files": [],
}
TYPES = REQUIRED | {name: type(value) for name, value in DEFAULTS.items()}
OUTPUT_BYTES = 128 * 1024
"""The server answers with what it has read when the program ends, about twice asyncio's buffer of 64 KiB."""


class StandIn(ThreadingHTTPServer):
    """Records the requests, and answers the next ones with `failures`: statuses, or the word SandboxError."""

    daemon_threads = True

    def __init__(self, concurrency: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.failures: list[int | str] = []
        self.slots = threading.Semaphore(concurrency)
        self.running = 0
        self.most_running = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/run_code"


@contextmanager
def serve(concurrency: int = 34) -> Iterator[StandIn]:
    """A server on loopback; 34 is the original's own default."""
    with StandIn(concurrency) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        faults = request_faults(body)
        if self.path != "/run_code":
            self._send(404, {"detail": "Not Found"})
        elif faults:
            self._send(422, {"detail": faults})
        else:
            with self.server.slots:
                self._run(DEFAULTS | body)

    def _run(self, request: dict[str, Any]) -> None:
        with self.server.lock:
            self.server.requests.append(request)
            failure = self.server.failures.pop(0) if self.server.failures else None
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        try:
            if isinstance(failure, int):
                self._send(failure, {"detail": "no \x1b[2J capacity", "traceback": []})
            elif failure is not None:
                message = f"exception on running code {request['code']}: no \x1b[2J memory None"
                self._send(200, _response(failure, message, None, {}))
            else:
                self._send(200, run(request))
        finally:
            with self.server.lock:
                self.server.running -= 1

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def request_faults(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The list `detail` of a status 422; unknown fields are ignored, as by the original."""
    found = {name: "Field required" for name in REQUIRED if name not in body}
    for name in TYPES.keys() & body.keys():
        numbers = (int, float) if TYPES[name] is float else TYPES[name]
        if not isinstance(body[name], numbers) or isinstance(body[name], bool):
            found[name] = f"Input should be {TYPES[name]}"
        elif isinstance(body[name], str) and not _is_encodable(body[name]):
            found[name] = "not valid Unicode"
    if body.get("language", "python") not in LANGUAGES:
        found["language"] = "Input should be 'python'"
    return [{"type": "fault", "loc": ["body", name], "msg": text} for name, text in found.items()]


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run a Python program in a new folder, and describe its end as the server does."""
    assert request["language"] == "python"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in request["files"].items():
            (Path(folder) / name).write_bytes(base64.b64decode(content))
        file = Path(folder) / "tmp0.py"
        file.write_text(request["code"], encoding="utf-8")
        started, limit, text = time.monotonic(), request["run_timeout"], request["stdin"].encode()
        try:
            done = subprocess.run(
                [sys.executable, str(file)], input=text, capture_output=True, cwd=folder, timeout=limit
            )
            status, code, out, err = "Finished", done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as expired:
            status, code, out, err = "TimeLimitExceeded", None, expired.stdout or b"", expired.stderr or b""
        result = {
            "status": status,
            "execution_time": time.monotonic() - started,
            "return_code": code,
            "stdout": _decoded(out[:OUTPUT_BYTES]),
            "stderr": _decoded(err[:OUTPUT_BYTES]),
        }
        found = [Path(folder) / name for name in request["fetch_files"] if (Path(folder) / name).is_file()]
        files = {path.name: base64.b64encode(path.read_bytes()).decode() for path in found}
    return _response("Failed" if code != 0 else "Success", "", result, files)


def _response(status: str, message: str, result: dict[str, Any] | None, files: dict[str, str]) -> Any:
    more = {"compile_result": None, "run_result": result, "executor_pod_name": None, "files": files}
    return {"status": status, "message": message, **more}


def _decoded(output: bytes) -> str:
    try:
        return output.decode()
    except UnicodeDecodeError as error:
        return f"[DecodeError] {error}"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

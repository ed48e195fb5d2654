"""The client of a SandboxFusion server, against a server on loopback that runs programs in a local sandbox."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from strop.config.schema.sandbox import LocalSandboxConfig, SandboxFusionConfig
from strop.errors import SandboxError
from strop.rewards.builtin.code import code_reward
from strop.sandbox import sandbox_fusion
from strop.sandbox.protocol import IsolationLevel, Program
from strop.sandbox.registry import open_sandbox


class Server(BaseHTTPRequestHandler):
    """Answers as SandboxFusion does: `run_code` takes code, stdin and limits."""

    requests: list[dict[str, Any]] = []  # noqa: RUF012
    failures: list[int] = []  # noqa: RUF012

    def do_POST(self) -> None:
        if self.failures:
            self.send_error(self.failures.pop())
            return
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(request)
        if "SANDBOX FAILS" in request["code"]:
            self._answer({"status": "SandboxError", "message": "no \x1b[2J capacity", "run_result": None})
            return
        local = open_sandbox(LocalSandboxConfig(minimum="limited", timeout_seconds=30))
        result = local.run(Program(request["code"], request["stdin"]), request["run_timeout"])
        status = "TimeLimitExceeded" if result.stopped else "Finished"
        ran = {
            "status": status,
            "return_code": result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }
        self._answer(
            {"status": "Failed" if result.exit_code else "Success", "message": "", "run_result": ran}
        )

    def _answer(self, content: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxFusionConfig]:
    monkeypatch.setattr(sandbox_fusion, "_BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    Server.requests.clear()
    Server.failures.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/run_code"
        yield SandboxFusionConfig(url=url, timeout_seconds=20, memory_mb=256, retries=2)
        server.shutdown()


def test_programs_on_a_server(config: SandboxFusionConfig) -> None:
    sandbox = open_sandbox(config)
    assert sandbox.level is IsolationLevel.REMOTE
    result = sandbox.run(Program("print(input())", "a\nb"), 30)
    assert (result.stdout, result.exit_code, result.completed) == ("a\n", 0, True)
    assert Server.requests[0]["run_timeout"] == 20 and Server.requests[0]["memory_limit_MB"] == 256
    result = sandbox.run(Program("print(1); import sys; sys.exit(0)"), 30)
    assert (result.stdout, result.exit_code, result.completed) == ("1\n", 0, False)
    assert sandbox.run(Program("while True: pass"), 0.5).stopped == "time limit"
    assert code_reward("```python\nx = 1\n```", ["assert x == 1"], sandbox=config) == 1.0
    assert code_reward("```python\nx = 2\n```", ["assert x == 1"], sandbox=config) == 0.0


def test_a_server_that_fails(config: SandboxFusionConfig) -> None:
    sandbox = open_sandbox(config)
    Server.failures[:] = [503, 429]
    assert sandbox.run(Program("print(1)"), 30).completed
    Server.failures[:] = [404]
    with pytest.raises(SandboxError, match=r"reward\.sandbox\.url \(http.*does not answer: HTTP status 404"):
        sandbox.run(Program("print(1)"), 30)
    with pytest.raises(SandboxError, match=r"reports no \\x1b\[2J capacity"):
        sandbox.run(Program("# SANDBOX FAILS"), 30)
    unused = SandboxFusionConfig(url="http://127.0.0.1:9/run_code", retries=1)
    with pytest.raises(SandboxError, match="does not answer"):
        open_sandbox(unused).run(Program("print(1)"), 30)

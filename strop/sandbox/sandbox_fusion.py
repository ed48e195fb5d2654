"""Client of a SandboxFusion server (https://github.com/bytedance/SandboxFusion), for its function `run_code`."""

from __future__ import annotations

import functools
import http.client
import json
import secrets
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strop.config.schema.reward import SandboxFusionConfig
from strop.errors import SandboxError
from strop.printable import printable
from strop.sandbox.protocol import IsolationLevel, Program, ProgramResult
from strop.workers.http_fetch import RETRYABLE_STATUSES, fetch, retry_wait_seconds
from strop.workers.json_text import parse_object

_ROUND_TRIP_SECONDS = 5.0
"""Time for the transfer and the server's queue, in addition to the program's own time."""
_MAX_ANSWER_BYTES = 16_000_000
_MAX_REASON_CHARS = 500
_BACKOFF_SECONDS = 0.5
_WRONG_ADDRESS_STATUSES = frozenset({404, 405})
_END = """
import io as _strop_io
with _strop_io.open({name!r}, "w") as _strop_file:
    _strop_file.write({name!r})
"""
"""Last lines of a program. The file shows that they ran; the server can lose the end of a long output."""


_MODULES = (
    "values",
    "peer",
    "landlock",
    "seccomp",
    "confinement",
    "main",
    "program_process",
    "tests_process",
)
_PROCESSES = """
import sys, types
package = types.ModuleType("inside")
package.__path__ = []
sys.modules["inside"] = package
for name, text in {modules!r}.items():
    module = types.ModuleType("inside." + name)
    module.__package__ = "inside"
    sys.modules[module.__name__] = module
    exec(compile(text, name + ".py", "exec"), module.__dict__)
module.main(is_confined=False)
"""


class SandboxFusion:
    """A `Sandbox` that sends programs to a server."""

    name = "sandbox_fusion"
    level = IsolationLevel.REMOTE
    unlimited: tuple[str, ...] = ()

    def __init__(self, config: SandboxFusionConfig) -> None:
        self._config = config

    def run(self, program: Program, timeout_seconds: float) -> ProgramResult:
        """The server's queue and repeated requests take part of `timeout_seconds`."""
        end_file = f"strop-{secrets.token_hex(16)}"
        limit = min(timeout_seconds, self._config.timeout_seconds)
        answer = self._answer(
            {
                "code": _code(program) + _END.format(name=end_file),
                "stdin": _encodable(program.stdin) if program.tests is None else _tests_input(program),
                "language": "python",
                "run_timeout": limit,
                "memory_limit_MB": self._config.memory_mb,
                "fetch_files": [end_file],
            },
            time.monotonic() + max(timeout_seconds, limit + _ROUND_TRIP_SECONDS),
        )
        ended = answer["run_result"]
        is_late = ended.get("status") == "TimeLimitExceeded"
        written = (answer.get("files") or {}).get(end_file) or ""
        return ProgramResult(
            stdout=str(ended.get("stdout") or ""),
            stderr=str(ended.get("stderr") or ""),
            exit_code=None if is_late else ended.get("return_code"),
            completed=b64decode(written) == end_file.encode(),
            stopped="time limit" if is_late else "",
        )

    def _answer(self, request: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """The server's answer about a program that ran.

        Other answers, and none, are requested again until the deadline; then they raise SandboxError.
        """
        reason = "it does not answer in time"
        for attempt in range(self._config.retries + 1):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            retry_after = None
            try:
                answer = self._post(request, remaining)
            except urllib.error.HTTPError as error:
                reason = _status_reason(error)
                if error.code not in RETRYABLE_STATUSES:
                    break
                retry_after = error.headers.get("Retry-After")
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = f"it does not answer ({type(error).__name__}: {error})"
            else:
                if answer.get("status") in ("Success", "Failed") and isinstance(
                    answer.get("run_result"), dict
                ):
                    return answer
                message = str(answer.get("message")).replace(request["code"], "(the program)")
                reason = f"it reports {answer.get('status')}: {message[:_MAX_REASON_CHARS]}"
            if attempt < self._config.retries:
                pause = retry_wait_seconds(attempt, _BACKOFF_SECONDS, retry_after)
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        raise SandboxError(
            f"The SandboxFusion server at reward.sandbox.url ({self._config.url}) runs no program: {printable(reason)}."
        )

    def _post(self, content: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
        request = urllib.request.Request(
            self._config.url, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        return parse_object(fetch(request, timeout_seconds=timeout_seconds, max_bytes=_MAX_ANSWER_BYTES))


def _code(program: Program) -> str:
    """The program, or for a program with tests the code of both processes, which the server starts as one."""
    return _encodable(program.source) if program.tests is None else _processes()


@functools.cache
def _processes() -> str:
    inside = Path(__file__).with_name("inside")
    return _PROCESSES.format(
        modules={name: (inside / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES}
    )


def _tests_input(program: Program) -> str:
    """The standard input of the tests' process: no file on the server has the tests."""
    assert program.tests is not None
    source, tests = program.source.encode(errors="replace"), json.dumps(asdict(program.tests)).encode()
    header = json.dumps({"marker": "", "source_bytes": len(source), "tests_bytes": len(tests)}).encode()
    return (b"%08d%b%b%b" % (len(header), header, source, tests)).decode()


def _encodable(text: str) -> str:
    """The text without lone surrogates, with which the server could not write a file."""
    return text.encode("utf-8", "replace").decode()


def _status_reason(error: urllib.error.HTTPError) -> str:
    """The status, and the field `detail` of the body: a text, or a list of the request's faults."""
    try:
        detail = parse_object(error.read())["detail"]
    except (ValueError, KeyError):
        detail = error.reason
    reason = f"it answers with HTTP status {error.code}: {str(detail)[:_MAX_REASON_CHARS]}"
    if error.code in _WRONG_ADDRESS_STATUSES:
        reason += " (the address of the server's function ends in /run_code)"
    return reason

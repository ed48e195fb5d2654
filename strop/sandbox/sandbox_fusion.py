"""Client of a SandboxFusion server (https://github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import http.client
import json
import secrets
import time
import urllib.error
import urllib.request
from typing import Any

from strop.config.schema.sandbox import SandboxFusionConfig
from strop.errors import SandboxError
from strop.printable import printable
from strop.sandbox.protocol import IsolationLevel, Program, ProgramResult

_ANSWER_SECONDS = 30.0
"""Time in which the server answers, in addition to the program's own time."""
_MAX_ANSWER_BYTES = 16_000_000
_BACKOFF_SECONDS = 0.5
_REPEATED_STATUSES = frozenset({429, 500, 502, 503, 504})


class SandboxFusion:
    """A `Sandbox` that sends programs to a server."""

    name = "sandbox_fusion"
    level = IsolationLevel.REMOTE

    def __init__(self, config: SandboxFusionConfig) -> None:
        self._config = config

    def run(self, program: Program, timeout_seconds: float) -> ProgramResult:
        """See `Sandbox`."""
        marker = secrets.token_hex(16)
        limit = min(timeout_seconds, self._config.timeout_seconds)
        answer = self._post(
            {
                "code": f"{program.source}\nprint({marker!r}, end='', flush=True)\n",
                "stdin": program.stdin,
                "language": "python",
                "run_timeout": limit,
                "memory_limit_MB": self._config.memory_mb,
            },
            limit + _ANSWER_SECONDS,
        )
        if answer.get("status") not in ("Success", "Failed"):
            raise SandboxError(f"{self._where()} reports {printable(str(answer.get('message'))[:500])}.")
        ended = answer.get("run_result") or {}
        stdout, completed, late = str(ended.get("stdout") or "").rpartition(marker)
        late_stop = ended.get("status") == "TimeLimitExceeded"
        return ProgramResult(
            stdout=stdout + late,
            stderr=str(ended.get("stderr") or ""),
            exit_code=None if late_stop else ended.get("return_code"),
            completed=bool(completed),
            stopped="time limit" if late_stop else "",
        )

    def _post(self, content: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        request = urllib.request.Request(
            self._config.url, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        for attempt in range(self._config.retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
                    answer = json.loads(response.read(_MAX_ANSWER_BYTES))
                if isinstance(answer, dict):
                    return answer
                reason = "the answer is no JSON object"
            except urllib.error.HTTPError as error:
                reason = f"HTTP status {error.code}"
                if error.code not in _REPEATED_STATUSES:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
            if attempt < self._config.retries:
                time.sleep(_BACKOFF_SECONDS * 2**attempt)
        raise SandboxError(f"{self._where()} does not answer: {reason}.")

    def _where(self) -> str:
        return f"The SandboxFusion server at reward.sandbox.url ({self._config.url})"

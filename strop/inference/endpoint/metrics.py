"""Counters of the endpoint's requests, in Prometheus's text format (version 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DURATION_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the histogram of durations, in seconds."""


class EndpointMetrics:
    """Counters of an endpoint since its start; for its event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._durations: Counter[float] = Counter()
        self._seconds = 0.0
        self._running = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """A request is being answered inside the block."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def count_request(self, path: str, status: str, seconds: float) -> None:
        """Count a request to a route, its status (`cancelled` for a client that has gone) and its duration."""
        self._requests[path, status] += 1
        self._seconds += seconds
        self._durations[next((bound for bound in _DURATION_BOUNDS if seconds <= bound), float("inf"))] += 1

    def count_tokens(self, model: str, *, prompt: int, completion: int) -> None:
        """Count the tokens of a response."""
        self._tokens["prompt", model] += prompt
        self._tokens["completion", model] += completion

    def exposition(self) -> str:
        """All counters as text."""
        lines = [
            *_header("strop_requests_total", "counter", "Requests by route and status."),
            *(
                f'strop_requests_total{{path="{_escape(path)}",status="{status}"}} {count}'
                for (path, status), count in sorted(self._requests.items())
            ),
            *_header("strop_requests_running", "gauge", "Requests that are being answered."),
            f"strop_requests_running {self._running}",
        ]
        for kind in ("prompt", "completion"):
            name = f"strop_{kind}_tokens_total"
            lines += _header(name, "counter", f"Tokens of {kind}s by model.")
            lines += (
                f'{name}{{model="{_escape(model)}"}} {count}'
                for (of, model), count in sorted(self._tokens.items())
                if of == kind
            )
        lines += _header("strop_request_seconds", "histogram", "Duration of requests.")
        below = 0
        for bound in (*_DURATION_BOUNDS, float("inf")):
            below += self._durations[bound]
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'strop_request_seconds_bucket{{le="{label}"}} {below}')
        lines += [f"strop_request_seconds_sum {self._seconds:.6f}", f"strop_request_seconds_count {below}"]
        return "\n".join(lines) + "\n"


def _header(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

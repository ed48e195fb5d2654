"""Retries of HTTP requests: which responses allow another attempt, and the wait before it."""

from __future__ import annotations

import random

FATAL_STATUSES = (401, 403, 404)
"""Every request will fail: the key, the model or the address is wrong."""
RETRYABLE_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504)
"""Another attempt may succeed."""
_MAX_WAIT_SECONDS = 60.0


def retry_wait_seconds(attempt: int, backoff_seconds: float, retry_after: str | None = None) -> float:
    """Wait after a failed attempt, counted from 0: `backoff_seconds`, doubled with each attempt.

    The server's header `Retry-After` takes precedence if it is a positive number. The wait is up to 20 % longer at
    random, so that concurrent requests do not all come again at the same moment.
    """
    wait = _seconds(retry_after) or backoff_seconds * 2**attempt
    return min(wait, _MAX_WAIT_SECONDS) * random.uniform(1.0, 1.2)


def _seconds(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:  # missing, or a date
        return None
    return seconds if seconds > 0 else None  # neither negative nor NaN

"""The error responses of the endpoint."""

from __future__ import annotations

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's error code for a prompt that exceeds the context length."""


class BadRequest(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        """`status` is the HTTP status, `code` OpenAI's error code."""
        super().__init__(message)
        self.status = status
        self.code = code

"""Choices of a response of the endpoint, with the log-probs of their tokens."""

from __future__ import annotations

from dataclasses import dataclass

from strop.types import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-prob, with the most likely tokens at its position."""

    token: int
    """Token id."""
    text: str
    """Text of the token by itself."""
    logprob: float | None
    """Log-prob in nats; None for the first token of a prompt."""
    top: tuple[tuple[str, float], ...] = ()
    """Texts and log-probs of the most likely tokens, in descending order."""


@dataclass(frozen=True, slots=True)
class TextChoice:
    """One of the texts with which `/v1/completions` answers."""

    text: str
    finish_reason: FinishReason
    tokens: tuple[TokenLogprob, ...]
    """Tokens of the text; with `echo`, of the prompt and the text."""

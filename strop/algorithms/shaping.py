"""What is made of rewards before they are compared."""

from __future__ import annotations

import torch


def overlong_penalty(
    tokens: torch.Tensor, *, max_response_tokens: int, buffer_tokens: int, factor: float
) -> torch.Tensor:
    """[N] of [N], none positive: DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).

        0                                          up to max_response_tokens - buffer_tokens
        -factor (tokens - that) / buffer_tokens    above, down to -factor at the limit

    DAPO's factor is 1. An answer of several turns that is longer than the limit loses `factor`.
    """
    over = tokens.double() - (max_response_tokens - buffer_tokens)
    return -factor * (over / buffer_tokens).clamp(0, 1)

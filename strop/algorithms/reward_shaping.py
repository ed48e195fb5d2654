"""Changes to rewards before advantages are computed."""

from __future__ import annotations

import torch


def overlong_penalty(
    tokens: torch.Tensor, *, max_response_tokens: int, buffer_tokens: int, factor: float
) -> torch.Tensor:
    """[N] penalties at most 0: DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).

        0                                               for tokens <= start
        -factor (tokens - start) / buffer_tokens        above, down to -factor at the limit

    with start = max_response_tokens - buffer_tokens.

    DAPO's factor is 1. A response of several turns that is longer than the limit loses `factor`.
    """
    over = tokens.double() - (max_response_tokens - buffer_tokens)
    return -factor * (over / buffer_tokens).clamp(0, 1)

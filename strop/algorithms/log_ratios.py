"""Bounds of log-ratios of probabilities, so that losses and their gradients are finite."""

from __future__ import annotations

import torch

MAX_EXPONENT = 20.0
"""Bound of a log-ratio whose exponential is used, as in verl. Without it, e^89 overflows float32, and the gradient of
a clipped loss is 0 * infinity."""
MAX_LOG_RATIO = 1e4
"""Bound of a log-ratio that is used as it is. Only infinities and faulty models exceed it."""


def bound_exponent(log_ratio: torch.Tensor) -> torch.Tensor:
    """The log-ratio within +-20. The gradient is 0 outside, and values inside are unchanged."""
    return log_ratio.clamp(-MAX_EXPONENT, MAX_EXPONENT)


def bound_log_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """The log-ratio within +-10,000. The gradient is 0 outside, and values inside are unchanged."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

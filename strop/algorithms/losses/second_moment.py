"""M2PO: importance-weighted policy gradient under a bound on the second moment of log-ratios (Zheng et al., "Prosperity
before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?", arXiv 2510.01161)."""

from __future__ import annotations

from dataclasses import replace

import torch

from strop.algorithms.losses.loss_terms import PolicyLossTerms


def excess_tokens(
    log_ratio: torch.Tensor, advantages: torch.Tensor, *, max_second_moment: float
) -> torch.Tensor:
    """[K] bool: the tokens of one update that M2PO leaves without a gradient.

    Among the tokens that the update moves further away from the old policy (log_ratio and advantage have the same
    sign), those of the largest squared log-ratio, as few as leave a mean of at most `max_second_moment` among the rest.

    Args:
        log_ratio: [K] log(current / old) of all targets of the update.
        advantages: [K]
        max_second_moment: the bound, in nats squared.
    """
    moving = (log_ratio * advantages > 0).nonzero().squeeze(1)
    squares, order = log_ratio[moving].double().square().sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    kept = int((means <= max_second_moment).sum())
    excess = torch.zeros_like(log_ratio, dtype=torch.bool)
    excess[moving[order[kept:]]] = True
    return excess


def m2po(unbounded: PolicyLossTerms, excess: torch.Tensor) -> PolicyLossTerms:
    """M2PO, negated: -A * ratio, with the loss and the gradient 0 of `excess_tokens`."""
    return replace(unbounded, loss=torch.where(excess, 0.0, unbounded.loss))

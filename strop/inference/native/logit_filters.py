"""Repetition penalty and top-k, top-p and min-p filters, as Hugging Face defines them.

Each function changes float32 `scores` [n, V] in place; its option is a column [n, 1], one value per row.
"""

from __future__ import annotations

import torch


def apply_repetition_penalty(scores: torch.Tensor, seen: torch.Tensor, penalty: torch.Tensor) -> None:
    """Make tokens in `seen` [n, V] bool less likely if the penalty is above 1 (arXiv 1909.05858)."""
    penalized = torch.where(scores < 0, scores * penalty, scores / penalty)
    torch.where(seen, penalized, scores, out=scores)


def filter_top_k(scores: torch.Tensor, top_k: torch.Tensor, *, largest: int) -> None:
    """Keep the k most likely tokens, and all that tie with the last of them; `largest` is the largest k."""
    limit = min(largest, scores.shape[1])
    highest = scores.topk(limit, dim=-1).values
    scores.masked_fill_(scores < highest.gather(1, top_k.clamp(max=limit) - 1), -torch.inf)


def filter_top_p(scores: torch.Tensor, tail: torch.Tensor) -> None:
    """Drop the least likely tokens with a total probability of at most `tail` = 1 - top_p (arXiv 1904.09751)."""
    ordered, order = scores.sort(dim=-1)
    dropped = ordered.softmax(dim=-1).cumsum_(dim=-1) <= tail
    dropped[:, -1] = False
    scores.masked_fill_(torch.zeros_like(dropped).scatter_(1, order, dropped), -torch.inf)


def filter_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> None:
    """Drop tokens less likely than `min_p` times the most likely token (arXiv 2407.01082)."""
    probabilities = scores.softmax(dim=-1)
    scores.masked_fill_(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)

"""What reshapes a distribution before a token is drawn, by Hugging Face's definitions.

Each function changes float32 `scores` [n, V] in place; its setting is a column [n, 1], one per row.
"""

from __future__ import annotations

import torch


def penalise_seen(scores: torch.Tensor, seen: torch.Tensor, penalty: torch.Tensor) -> None:
    """Make tokens in `seen` [n, V] bool less likely, for a penalty above 1 (arXiv 1909.05858)."""
    lowered = torch.where(scores < 0, scores * penalty, scores / penalty)
    torch.where(seen, lowered, scores, out=scores)


def cut_top_k(scores: torch.Tensor, top_k: torch.Tensor) -> None:
    """Keep the k likeliest tokens, and whatever ties with the last of them."""
    most = min(int(top_k.max()), scores.shape[1])
    likeliest = scores.topk(most, dim=-1).values
    scores.masked_fill_(scores < likeliest.gather(1, top_k.clamp(max=most) - 1), -torch.inf)


def cut_top_p(scores: torch.Tensor, tail: torch.Tensor) -> None:
    """Drop the least likely tokens that together have at most `tail` = 1 - top_p (arXiv 1904.09751)."""
    ordered, order = scores.sort(dim=-1)
    dropped = ordered.softmax(dim=-1).cumsum_(dim=-1) <= tail
    dropped[:, -1] = False
    scores.masked_fill_(torch.zeros_like(dropped).scatter_(1, order, dropped), -torch.inf)


def cut_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> None:
    """Drop tokens less likely than this share of the likeliest one (arXiv 2407.01082)."""
    shares = scores.softmax(dim=-1)
    scores.masked_fill_(shares < min_p * shares.amax(dim=-1, keepdim=True), -torch.inf)

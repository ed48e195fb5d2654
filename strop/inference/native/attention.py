"""Attention of rows that draw their next token, each to its prompt and to its own tokens so far.

A prompt's keys and values are stored once and read once a step: the queries of all its rows are stacked
against them, as in Hydragen (arXiv 2402.05099). Both parts go through one softmax. Letters:

    R  rows       G  prompts     N  most rows of one prompt
    P  width of the stored prompts     W  width of the rows' own tokens
    K  key-value heads     Q  query heads of each     D  head size
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which rows share which prompt; made anew only when rows come or go."""

    rows_per_prompt: int
    """N"""
    stack: torch.Tensor
    """[G K N] Where in [R K] each prompt's queries are; any row where a prompt has fewer than N."""
    unstack: torch.Tensor
    """[R K] Where in [G K N] each row's results are."""


def sharing_of(slots: torch.Tensor, prompts: int, kv_heads: int) -> Sharing:
    """From the prompt [R] of each row."""
    device = slots.device
    rows = len(slots)
    counts = torch.bincount(slots, minlength=prompts)
    most = int(counts.max())
    by_prompt = torch.argsort(slots, stable=True)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(slots)
    place[by_prompt] = torch.arange(rows, device=device) - starts[slots[by_prompt]]
    heads = torch.arange(kv_heads, device=device)
    unstack = (slots[:, None] * kv_heads + heads) * most + place[:, None]
    stack = torch.zeros(prompts * kv_heads * most, dtype=torch.int64, device=device)
    stack[unstack.flatten()] = torch.arange(rows * kv_heads, device=device)
    return Sharing(most, stack, unstack.flatten())


def visible(
    prompt_tokens: torch.Tensor,
    own_tokens: torch.Tensor,
    prompt_width: int,
    own_width: int,
    window: int | None,
) -> torch.Tensor:
    """[R, 1, P + W] float32 to add to scores: 0 for what a row sees, minus infinity for the rest.

    `prompt_tokens` and `own_tokens` [R] count what is stored; the token just stored is the last own one.
    """
    device = own_tokens.device
    prompt = torch.arange(prompt_width, device=device)
    own = torch.arange(own_width, device=device)
    ends, count = prompt_tokens[:, None], own_tokens[:, None]
    sees_prompt, sees_own = prompt < ends, own < count
    if window is not None:
        oldest = ends + count - window
        sees_prompt &= prompt >= oldest
        sees_own &= ends + own >= oldest
    sees = torch.cat((sees_prompt, sees_own), dim=1)[:, None]
    return torch.zeros(sees.shape, device=device).masked_fill_(~sees, -torch.inf)


def attend(
    queries: torch.Tensor,
    prompt: tuple[torch.Tensor, torch.Tensor],
    own: tuple[torch.Tensor, torch.Tensor],
    sharing: Sharing,
    mask: torch.Tensor,
) -> torch.Tensor:
    """[R, K Q D] from `queries` [R, K Q, D], keys and values [G, K, P, D] and [R, K, W, D]."""
    rows, heads, size = queries.shape
    kv_heads = own[0].shape[1]
    group = heads // kv_heads
    own_keys, own_values = (part.flatten(0, 1) for part in own)
    prompt_keys, prompt_values = (part.flatten(0, 1) for part in prompt)
    width = prompt_keys.shape[1]
    stacked = (len(prompt_keys), sharing.rows_per_prompt * group)

    each = queries.reshape(rows * kv_heads, group, size)
    together = each.index_select(0, sharing.stack).view(*stacked, size)
    prompt_scores = torch.bmm(together, prompt_keys.transpose(1, 2)).view(-1, group, width)
    own_scores = torch.bmm(each, own_keys.transpose(1, 2))
    scores = torch.cat((prompt_scores.index_select(0, sharing.unstack), own_scores), dim=-1)
    shares = torch.add(mask, scores.view(rows, heads, -1), alpha=size**-0.5).softmax(dim=-1)
    shares = shares.to(scores.dtype).view_as(scores)
    prompt_shares = shares[..., :width].index_select(0, sharing.stack).view(*stacked, width)
    answer = torch.bmm(prompt_shares, prompt_values).view(-1, group, size).index_select(0, sharing.unstack)
    answer += torch.bmm(shares[..., width:], own_values)
    return answer.view(rows, heads * size)

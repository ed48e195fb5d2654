"""Attention in a decoding step: each row attends to its prompt, which is shared, and its tokens; the KV cache.

A prompt's keys and values are stored once and read once per step: the queries of all its rows are stacked,
as in Hydragen (arXiv 2402.05099). Scores of prompt and own tokens go through one softmax. Dimensions:

    R  rows       G  prompts     N  largest number of rows of one prompt
    P  width of the stored prompts     W  width of the rows' own tokens
    K  key-value heads     Q  query heads per key-value head     D  head size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strop.inference.native.model.architecture import DecoderArchitecture
from strop.inference.native.model.runner import Compaction
from strop.transfers import to_device


@dataclass(frozen=True, slots=True)
class PromptSharing:
    """Assignment of rows to prompts, rebuilt only when rows change. R, G and N may count some that are not in use."""

    rows_per_prompt: int
    """N"""
    stack: torch.Tensor
    """[G K N] Index in [R K] of each prompt's queries; an arbitrary row for prompts with fewer than N."""
    unstack: torch.Tensor
    """[R K] Index in [G K N] of each row's results."""

    def replaced_by(self, other: PromptSharing) -> PromptSharing:
        """The other assignment, in the memory of this one if it has the same sizes."""
        sizes = [(each.rows_per_prompt, each.stack.shape, each.unstack.shape) for each in (self, other)]
        if sizes[0] != sizes[1]:
            return other
        self.stack.copy_(other.stack)
        self.unstack.copy_(other.unstack)
        return self


def build_prompt_sharing(
    slots: Sequence[int],
    prompts: int,
    kv_heads: int,
    device: torch.device,
    padded_count: Callable[[int], int] = int,
) -> PromptSharing:
    """Build the assignment on the host, from the prompt slot of each row in use.

    `padded_count` gives the numbers R, G and N for those in use. A row that is not in use gets another row's results.
    """
    by_row = np.array(slots, dtype=np.int64)
    counts = np.bincount(by_row, minlength=prompts)
    largest = padded_count(int(counts.max()))
    by_prompt = np.argsort(by_row, kind="stable")
    starts = counts.cumsum() - counts
    index_in_prompt = np.empty_like(by_row)
    index_in_prompt[by_prompt] = np.arange(len(by_row)) - starts[by_row[by_prompt]]
    heads = np.arange(kv_heads)
    used = ((by_row[:, None] * kv_heads + heads) * largest + index_in_prompt[:, None]).ravel()
    stack = np.zeros(padded_count(prompts) * kv_heads * largest, dtype=np.int64)
    stack[used] = np.arange(len(used))
    unstack = np.zeros(padded_count(len(slots)) * kv_heads, dtype=np.int64)
    unstack[: len(used)] = used
    return PromptSharing(largest, to_device(stack, device), to_device(unstack, device))


def attention_mask(
    prompt_tokens: torch.Tensor,
    own_tokens: torch.Tensor,
    prompt_width: int,
    own_width: int,
    window: int | None,
) -> torch.Tensor:
    """[R, 1, P + W] float32 to add to scores: 0 for visible tokens, minus infinity for others.

    `prompt_tokens` and `own_tokens` [R] are numbers of stored tokens, the current token included. A row sees
    the last `window` of them, or all if it is None.
    """
    device = own_tokens.device
    prompt = torch.arange(prompt_width, device=device)
    own = torch.arange(own_width, device=device)
    prompt_count, own_count = prompt_tokens[:, None], own_tokens[:, None]
    sees_prompt, sees_own = prompt < prompt_count, own < own_count
    if window is not None:
        oldest = prompt_count + own_count - window
        sees_prompt &= prompt >= oldest
        sees_own &= prompt_count + own >= oldest
    visible = torch.cat((sees_prompt, sees_own), dim=1)[:, None]
    return torch.zeros(visible.shape, device=device).masked_fill_(~visible, -torch.inf)


def shared_prompt_attention(
    queries: torch.Tensor,
    prompt: tuple[torch.Tensor, torch.Tensor],
    own: tuple[torch.Tensor, torch.Tensor],
    sharing: PromptSharing,
    mask: torch.Tensor,
) -> torch.Tensor:
    """[R, K Q D] from `queries` [R, K Q, D], keys and values [G, K, P, D] and [R, K, W, D]."""
    rows, heads, size = queries.shape
    kv_heads = own[0].shape[1]
    group = heads // kv_heads
    own_keys, own_values = (tensor.flatten(0, 1) for tensor in own)
    prompt_keys, prompt_values = (tensor.flatten(0, 1) for tensor in prompt)
    width = prompt_keys.shape[1]
    stacked_shape = (len(prompt_keys), sharing.rows_per_prompt * group)

    by_row = queries.reshape(rows * kv_heads, group, size)
    stacked = by_row.index_select(0, sharing.stack).view(*stacked_shape, size)
    prompt_scores = torch.bmm(stacked, prompt_keys.transpose(1, 2)).view(-1, group, width)
    own_scores = torch.bmm(by_row, own_keys.transpose(1, 2))
    scores = torch.cat((prompt_scores.index_select(0, sharing.unstack), own_scores), dim=-1)
    weights = torch.add(mask, scores.view(rows, heads, -1), alpha=size**-0.5).softmax(dim=-1)
    weights = weights.to(scores.dtype).view_as(scores)
    prompt_weights = weights[..., :width].index_select(0, sharing.stack).view(*stacked_shape, width)
    output = torch.bmm(prompt_weights, prompt_values).view(-1, group, size).index_select(0, sharing.unstack)
    output += torch.bmm(weights[..., width:], own_values)
    return output.view(rows, heads * size)


def padded_width(tokens: int) -> int:
    """Width of a slot for this many tokens: up to an eighth more, in steps of 16 or a larger power of two.

    Widths then change rarely: a change copies the cache, and makes oneDNN build new kernels.
    """
    step = 1 << max(4, tokens.bit_length() - 4)
    return -(-tokens // step) * step


class KvCache:
    """`count` slots of `width` tokens each; one tensor [2, slots, kv_heads, width, head_dim] per layer.

    Matrix products over strided keys would copy the keys in every step, so the cache is as wide as its
    content and no wider. During a change of size, one layer is held twice. Tokens beyond the length of a
    slot's content are zero or stale: finite numbers, which a mask excludes.
    """

    def __init__(self, architecture: DecoderArchitecture, device: torch.device, dtype: torch.dtype) -> None:
        """An empty cache for this architecture."""
        self._architecture = architecture
        self._device = device
        self._dtype = dtype
        self.clear()

    def clear(self) -> None:
        """Remove all slots, and free the memory."""
        self.count = 0
        self.width = 0
        self._layers = [self._zeros(0, 0) for _ in range(self._architecture.layers)]

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the slots in use: [count, kv_heads, width, head_dim] each."""
        keys_values = self._layers[number][:, : self.count]
        return keys_values[0], keys_values[1]

    def resize(self, count: int, tokens: int) -> None:
        """Resize to `count` slots, new ones at the end, with a width for `tokens`, the longest content."""
        width = padded_width(tokens)
        if width != self.width or count > self._layers[0].shape[1]:
            kept = (slice(None), slice(min(count, self.count)), slice(None), slice(min(width, self.width)))
            for number, old in enumerate(self._layers):
                new = self._zeros(count, width)
                new[kept] = old[kept]
                self._layers[number] = new
        self.count, self.width = count, width

    def compact(self, compaction: Compaction) -> None:
        """Remove slots; their memory stays allocated."""
        self.count = compaction.after
        for tensor in self._layers:
            compaction.apply(tensor, dim=1)

    def _zeros(self, slots: int, width: int) -> torch.Tensor:
        sizes = (2, slots, self._architecture.kv_heads, width, self._architecture.head_dim)
        return torch.zeros(sizes, device=self._device, dtype=self._dtype)

"""The native forward: decoders of the Llama kind, over a cache in which a group's prompt stands once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PretrainedConfig

from strop.inference.native.architecture import Architecture
from strop.inference.native.attention import Sharing, attend, sharing_of, visible
from strop.inference.native.cache import KvStore, stored_width
from strop.inference.native.moves import Moves
from strop.inference.native.rope import RotaryTable, rotate
from strop.inference.native.weights import (
    LayerWeights,
    Matrix,
    check_complete,
    empty_weights,
    load_into,
    shared_share,
)
from strop.types import Ints

PREFILL_TOKENS = 8192
"""Prompts go through the model in portions of about so many tokens."""


@dataclass(slots=True)
class RowState:
    """Where each row stands."""

    slots: torch.Tensor
    """[R] int64 The row's prompt."""
    prompt_tokens: torch.Tensor
    """[R] int64"""
    own_tokens: torch.Tensor
    """[R] int64 How many of its own are in the cache."""


class NativeRunner:
    """A `Runner` for the families in `architecture.FAMILIES`."""

    keeps_prompts = True
    longest: int | None = None

    def __init__(
        self,
        config: PretrainedConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._arch = arch = Architecture.of(config)
        self.vocab_size = arch.vocab_size
        self.device = device
        self._dtype = dtype
        self._family = config.model_type
        self._weights = empty_weights(arch, device, dtype)
        self._by_name = {name: matrix for matrix in self._weights.matrices() for name in matrix.names}
        self.load(weights)
        check_complete(self._weights.matrices())
        self._rope = RotaryTable(config, device, dtype)
        self._sharing: Sharing | None = None
        self._own = KvStore(arch, device, dtype)
        self._prompts = KvStore(arch, device, dtype)
        self.clear()

    def describe(self) -> str:
        """One line for people."""
        return f"native {self._family} forward, {str(self._dtype).removeprefix('torch.')}"

    def shared_share(self) -> float:
        """How much of the weights is the giver's memory, 0 to 1."""
        return shared_share(self._weights.matrices())

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take new weights; those whose memory is shared already cost nothing."""
        load_into(self._by_name, weights, ignore=("lm_head.weight",) if self._arch.tied else ())

    def tokens_needed(self, rows: int, row_tokens: int, prompts: int, prompt_tokens: int) -> int:
        """Rows' own tokens, and each prompt once."""
        return rows * stored_width(row_tokens) + prompts * stored_width(prompt_tokens)

    def joins_well(self, joining: int, under_way: int) -> bool:
        """Always: a new row goes through the model together with the others."""
        return True

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Ints]) -> torch.Tensor:
        """[prompts, V] logits after each prompt."""
        first = self._prompts.count
        lengths = [len(prompt) for prompt in prompts]
        self._prompt_lengths += lengths
        self._prompts.resize(first + len(prompts), max(self._prompt_lengths))
        hidden = [
            self._prefill(prompts[part.start : part.stop], first + part.start)
            for part in _portions(lengths, PREFILL_TOKENS)
        ]
        return F.linear(torch.cat(hidden), self._weights.head.tensor)

    def add_rows(self, slots: Sequence[int]) -> None:
        """New rows at the ends of their prompts."""
        rows = self._rows
        new = torch.tensor(slots, dtype=torch.int64, device=self.device)
        lengths = torch.tensor([self._prompt_lengths[slot] for slot in slots], device=self.device)
        rows.slots = torch.cat((rows.slots, new))
        rows.prompt_tokens = torch.cat((rows.prompt_tokens, lengths))
        rows.own_tokens = torch.cat((rows.own_tokens, torch.zeros_like(new)))
        self._own.resize(len(rows.slots), int(rows.own_tokens.max()) + 1)
        self._sharing = None

    @torch.no_grad()
    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after each row's next token."""
        arch, rows = self._arch, self._rows
        self._own.resize(len(tokens), int(rows.own_tokens.max()) + 1)
        if self._sharing is None:
            self._sharing = sharing_of(rows.slots, self._prompts.count, arch.kv_heads)
        sharing = self._sharing
        positions = rows.prompt_tokens + rows.own_tokens
        cos, sin = self._rope.at(positions, max(self._prompt_lengths) + self._own.width)
        masks = {
            window: visible(
                rows.prompt_tokens, rows.own_tokens + 1, self._prompts.width, self._own.width, window
            )
            for window in set(arch.windows)
        }
        heads = torch.arange(len(tokens) * arch.kv_heads, device=self.device).view(len(tokens), -1)
        places = (heads * self._own.width + rows.own_tokens[:, None]).flatten()
        x = F.embedding(tokens, self._weights.embedding.tensor)
        for number, layer in enumerate(self._weights.layers):
            turned, values = self._project(layer, x, cos, sin)
            own = self._own.layer(number)
            for stored, new in zip(own, (turned[:, arch.heads :], values), strict=True):
                stored.view(-1, arch.head_dim).index_copy_(0, places, new.reshape(-1, arch.head_dim))
            prompt = self._prompts.layer(number)
            attended = attend(turned[:, : arch.heads], prompt, own, sharing, masks[arch.windows[number]])
            x = self._finish(layer, x, attended)
        rows.own_tokens += 1
        return F.linear(self._norm(x, self._weights.norm), self._weights.head.tensor)

    def drop_rows(self, moves: Moves) -> None:
        """Let rows go; the memory too when none is left."""
        rows = self._rows
        for name in ("slots", "prompt_tokens", "own_tokens"):
            column = getattr(rows, name)
            moves.apply(column)
            setattr(rows, name, column[: moves.after])
        self._own.drop(moves)
        self._sharing = None
        if moves.after == 0:
            self._own.clear()

    def drop_prompts(self, moves: Moves) -> None:
        """Let prompts go; rows follow theirs to its new place."""
        moves.apply_to_list(self._prompt_lengths)
        self._prompts.drop(moves)
        self._rows.slots = moves.new_places()[self._rows.slots]
        self._sharing = None
        if moves.after == 0:
            self._prompts.clear()

    def clear(self) -> None:
        """Forget all rows and prompts, and give their memory back."""
        self._own.clear()
        self._prompts.clear()
        none = torch.zeros(0, dtype=torch.int64, device=self.device)
        self._rows = RowState(none, none, none)
        self._prompt_lengths: list[int] = []
        self._sharing = None

    def _prefill(self, prompts: Sequence[Ints], first: int) -> torch.Tensor:
        """[prompts, hidden] of the last tokens; keys and values go to the slots from `first` on."""
        arch = self._arch
        lengths = [len(prompt) for prompt in prompts]
        tokens = torch.from_numpy(np.concatenate(prompts)).to(self.device, torch.int64)
        positions = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        cos, sin = self._rope.at(positions, max(lengths))
        x = F.embedding(tokens, self._weights.embedding.tensor)
        for number, layer in enumerate(self._weights.layers):
            turned, values = self._project(layer, x, cos, sin)
            stored_keys, stored_values = self._prompts.layer(number)
            attended = []
            parts = zip(torch.split(turned, lengths), torch.split(values, lengths), strict=True)
            for slot, (part, own_values) in enumerate(parts, start=first):
                query, key = part[:, : arch.heads], part[:, arch.heads :]
                stored_keys[slot, :, : len(part)] = key.transpose(0, 1)
                stored_values[slot, :, : len(part)] = own_values.transpose(0, 1)
                attended.append(causal(query, key, own_values, arch.windows[number]))
            x = self._finish(layer, x, torch.cat(attended))
        last = torch.tensor(lengths, device=self.device).cumsum(0) - 1
        return self._norm(x[last], self._weights.norm)

    def _norm(self, x: torch.Tensor, weight: Matrix) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], weight.tensor, self._arch.norm_eps)

    def _project(
        self, layer: LayerWeights, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turned queries and keys [n, heads + kv_heads, head_dim], and values [n, kv_heads, head_dim]."""
        arch = self._arch
        qkv = F.linear(self._norm(x, layer.input_norm), layer.qkv.tensor, _tensor(layer.qkv_bias))
        heads = qkv.view(len(x), arch.heads + 2 * arch.kv_heads, arch.head_dim)
        queries_keys, values = heads[:, : arch.heads + arch.kv_heads], heads[:, arch.heads + arch.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            queries = self._norm(queries_keys[:, : arch.heads], layer.q_norm)
            keys = self._norm(queries_keys[:, arch.heads :], layer.k_norm)
            queries_keys = torch.cat((queries, keys), dim=1)
        return rotate(queries_keys, cos, sin), values

    def _finish(self, layer: LayerWeights, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of a layer, after attention."""
        x = x + F.linear(attended, layer.output.tensor, _tensor(layer.output_bias))
        both = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up.tensor, _tensor(layer.gate_up_bias))
        gate, up = both.chunk(2, dim=-1)
        return x.add_(F.linear(F.silu(gate).mul_(up), layer.down.tensor, _tensor(layer.down_bias)))


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """[n, heads head_dim]: one prompt's queries [n, heads, head_dim] over its keys and values."""
    repeats = query.shape[1] // key.shape[1]
    query, key, value = (
        part.repeat_interleave(times, dim=1).transpose(0, 1)[None]
        for part, times in ((query, 1), (key, repeats), (value, repeats))
    )
    length = query.shape[2]
    mask = None
    if window is not None and window < length:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return out[0].transpose(0, 1).flatten(1)


def _tensor(matrix: Matrix | None) -> torch.Tensor | None:
    return None if matrix is None else matrix.tensor


def _portions(lengths: Sequence[int], limit: int) -> Iterator[range]:
    """Consecutive ranges of prompts of at most `limit` tokens together, or one longer prompt alone."""
    start = total = 0
    for place, length in enumerate(lengths):
        if total and total + length > limit:
            yield range(start, place)
            start, total = place, 0
        total += length
    yield range(start, len(lengths))

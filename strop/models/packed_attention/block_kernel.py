"""Attention over packed segments in cache-sized blocks, in plain torch: the CPU's kernel.

A query attends to all tokens of its segment's ancestors, and causally to its own segment; the scores of both
go through one softmax. Scores are not stored: the backward pass recomputes them block by block.

Dimensions, in addition to those of `strop.types`:

    H  query heads     K  key heads     R  query heads per key head (H = K R)     D  head size
    m  segments of a block    r  rows (queries) of each    A  ancestors' tokens    b  visible keys of the segment itself
    n  columns of the scores: A + b, and padding up to a multiple of 32

Measured on an AVX-512 CPU this is faster than torch 2.13's fused attention, in float32 and bfloat16:
a block stays in the cache, and the matrix products run at full speed.

A *run* is a group of segments with the same ancestors (their prefix, its prefix, and so on) and the same length; its
segments are computed together. Segments of similar length are padded to the longest of them, for attention only: a
segment's queries come before its padding and so never see it. Segments are put into the order of their runs: all
without a prefix, then those whose prefix is one of them, and so on; with the same prefix, by length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from strop.models.packed_attention.segments import AttentionOptions, PackedSegments
from strop.transfers import to_device
from strop.types import IndexArray

Values = TypeVar("Values", Tensor, npt.NDArray[np.int64])

SCORES_PER_BLOCK = 2**19
"""Scores per block: as many as fit into a core's cache."""
MIN_ROWS_PER_BLOCK = 64
"""Minimum number of rows per block; matrix products with fewer rows are slow."""
_COLUMN_MULTIPLE = 32
"""Columns of the scores: 32 bfloat16 numbers fill a register of 512 bits, and torch's softmax of another number of them
takes up to three times as long. Blocks of different lengths also share compiled matrix products."""
_TokenRanges = tuple[tuple[int, int], ...]
"""First token and end of each range."""
ALWAYS_MERGE_TOKENS = 64
"""Segments of at most this length make one run for any difference in length: padding costs less than a run."""
_MAX_PADDING_FRACTION = 0.25
"""Maximum padding of longer segments in one run, as a fraction of the longest."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows `first` to `last` of `segments` adjacent segments."""

    start: int
    segments: int
    length: int
    first: int
    last: int
    ancestors: _TokenRanges
    visible: VisibleKeys | None = None
    """Tokens of its own segment that each token sees; None for all up to itself."""

    @property
    def ancestor_tokens(self) -> int:
        return _count(self.ancestors)

    @property
    def own_keys(self) -> int:
        """Number of a segment's tokens that the rows see."""
        if self.visible is None:
            return self.last
        return max(self.last, int(self.of(self.visible.counts, self.first, self.last).max()))

    @property
    def padding(self) -> int:
        """Number of columns without a key, which are the last ones."""
        return -(self.ancestor_tokens + self.own_keys) % _COLUMN_MULTIPLE

    def of(self, values: Values, first: int, last: int) -> Values:
        """[m, rows, ...] View of the block's segments in [T, ...], from row `first` to `last`."""
        tokens = values[self.start : self.start + self.segments * self.length]
        return tokens.reshape(self.segments, self.length, *values.shape[1:])[:, first:last]


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: SegmentLayout, options: AttentionOptions
) -> Tensor:
    """[T, H, D] from query [T, H, D], key and value [T, K, D]."""
    out: Tensor = _Attention.apply(query, key, value, layout, options)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SegmentLayout, options: AttentionOptions
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.layout, ctx.options = layout, options
        query, key, value = map(layout.pad, (query, key, value))
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        for block in _blocks(layout, query):
            p, _ = _probabilities(_rows(query, block, key.shape[1]), _keys(key, block), block, options)
            _write_rows(out, block, p @ _keys(value, block))
        return layout.unpad(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: SegmentLayout = ctx.layout
        query, key, value = map(layout.pad, ctx.saved_tensors)
        grad = layout.pad_with_zeros(grad)
        grad_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        grad_key = torch.zeros_like(key, dtype=torch.float32, memory_format=torch.contiguous_format)
        grad_value = torch.zeros_like(value, dtype=torch.float32, memory_format=torch.contiguous_format)
        for block in _blocks(layout, query):
            q, g = _rows(query, block, key.shape[1]), _rows(grad, block, key.shape[1])
            keys = _keys(key, block)
            p, slope = _probabilities(q, keys, block, ctx.options)
            _add_keys(grad_value, block, p.transpose(-1, -2) @ g)
            dp = g @ _keys(value, block).transpose(-1, -2)
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype)
            if slope is not None:
                ds *= slope
            _write_rows(grad_query, block, _scaled_product(ds, keys, ctx.options.scale))
            _add_keys(grad_key, block, _scaled_product(ds.transpose(-1, -2), q, ctx.options.scale))
        grads = (grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype))
        return *map(layout.unpad, grads), None, None


def _blocks(layout: SegmentLayout, query: Tensor) -> Iterator[_Block]:
    """Split runs into blocks of about `SCORES_PER_BLOCK` scores: several segments, or some rows of one."""
    budget = SCORES_PER_BLOCK // query.shape[1]
    for run in layout.runs:
        keys = _count(run.ancestors) + run.length
        at_once = min(max(budget // (run.length * keys), 1), run.num_segments)
        rows = run.length if at_once > 1 else min(max(budget // keys, MIN_ROWS_PER_BLOCK), run.length)
        for segment in range(0, run.num_segments, at_once):
            start, segments = run.start + segment * run.length, min(at_once, run.num_segments - segment)
            for first in range(0, run.length, rows):
                last = min(first + rows, run.length)
                yield _Block(start, segments, run.length, first, last, run.ancestors, layout.visible)


def _count(ranges: _TokenRanges) -> int:
    return sum(stop - start for start, stop in ranges)


def _rows(tensor: Tensor, block: _Block, key_heads: int) -> Tensor:
    """[K, m, R r, D] A block's rows of a [T, H, D], with the heads that share a key stacked."""
    rows = torch.unflatten(block.of(tensor, block.first, block.last), 2, (key_heads, -1))
    return rows.permute(2, 0, 3, 1, 4).reshape(key_heads, block.segments, -1, tensor.shape[-1])


def _write_rows(tensor: Tensor, block: _Block, rows: Tensor) -> None:
    """The inverse of `_rows`."""
    target = torch.unflatten(block.of(tensor, block.first, block.last), 2, (len(rows), -1)).permute(
        2, 0, 3, 1, 4
    )
    target.copy_(rows.view(target.shape))


def _keys(tensor: Tensor, block: _Block) -> Tensor:
    """[K, m, n, D] Tokens of a [T, K, D] that a block's rows see, ancestors first, then zeros."""
    parts = []
    if block.ancestors:
        above = torch.cat([tensor[start:stop] for start, stop in block.ancestors]).transpose(0, 1)
        parts.append(above[:, None].expand(-1, block.segments, -1, -1))
    parts.append(block.of(tensor, 0, block.own_keys).permute(2, 0, 1, 3))
    zero = tensor.new_zeros(1, 1, 1, 1)
    parts.append(zero.expand(tensor.shape[1], block.segments, block.padding, tensor.shape[2]))
    return torch.cat(parts, dim=2)


def _add_keys(total: Tensor, block: _Block, values: Tensor) -> None:
    """Add [K, m, n, D] to a [T, K, D], at the positions of the keys."""
    count, own = block.ancestor_tokens, block.own_keys
    block.of(total, 0, own).add_(values[:, :, count : count + own].permute(1, 2, 0, 3))
    if not count:
        return
    above = values[:, :, :count].sum(1, dtype=total.dtype).transpose(0, 1)
    done = 0
    for start, stop in block.ancestors:
        total[start:stop] += above[done : done + stop - start]
        done += stop - start


def _probabilities(
    rows: Tensor, keys: Tensor, block: _Block, options: AttentionOptions
) -> tuple[Tensor, Tensor | None]:
    """[K, m, R r, n] Softmax of the scores, and the derivative of their softcap; None without one."""
    scores = _scaled_product(rows, keys.transpose(-1, -2), options.scale)
    slope = None
    if options.softcap is not None:
        tanh = torch.tanh(scores / options.softcap)
        slope = 1 - tanh * tanh
        scores = tanh * options.softcap
    hidden = _hidden(block, options.window, rows.device)
    seen = torch.unflatten(scores, 2, (-1, block.last - block.first))
    seen[..., seen.shape[-1] - hidden.shape[-1] :].masked_fill_(hidden, float("-inf"))
    return torch.softmax(scores, dim=-1), slope


def _scaled_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """scale (left @ right) of [K, m, ...]: the product scales its sums, which saves a pass over the scores."""
    first, second = left.flatten(0, 1), right.flatten(0, 1)
    out = first.new_empty(len(first), first.shape[1], second.shape[2])
    torch.baddbmm(out, first, second, beta=0, alpha=scale, out=out)
    return out.view(*left.shape[:2], *out.shape[1:])


def _hidden(block: _Block, window: int | None, device: torch.device) -> Tensor:
    """[r, c] or [m, 1, r, c] True if a row does not see one of the last c columns; it sees all before them."""
    above, padding = block.ancestor_tokens, block.padding
    if block.visible is None and (window is None or window >= above + block.last):
        return _after_diagonal(block.last - block.first, padding, device)
    rows = torch.arange(above + block.first, above + block.last, device=device)[:, None]
    keys = torch.arange(above + block.own_keys + padding, device=device)
    later = keys > rows
    if block.visible is not None:
        ends = above + block.of(block.visible.on_device, block.first, block.last)[:, None, :, None]
        later = later & (keys >= ends)  # in the padding of a short segment a row sees at least itself
    hidden = later | (keys >= above + block.own_keys)
    return hidden if window is None else hidden | (rows - keys >= window)


@lru_cache(maxsize=128)
def _after_diagonal(rows: int, padding: int, device: torch.device) -> Tensor:
    """[rows, rows + padding] True after the diagonal."""
    return torch.ones(rows, rows + padding, dtype=torch.bool, device=device).triu(1)


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Segments with the same ancestors, padded to one length."""

    start: int
    num_segments: int
    length: int
    ancestors: _TokenRanges
    """Outermost first."""


@dataclass(frozen=True, slots=True)
class VisibleKeys:
    """Number of tokens of its own segment that each token sees, at padded positions, on the host and the device."""

    counts: IndexArray
    """[padded T]"""
    on_device: Tensor
    """[padded T] int64"""


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The runs of a micro-batch, in the order of their positions."""

    runs: tuple[SegmentRun, ...]
    padded_positions: Tensor | None = None
    """[T] Position of each token; None if all stand where they were."""
    source_tokens: Tensor | None = None
    """[padded T] Token at each padded position; in the padding, the segment's last."""
    visible: VisibleKeys | None = None
    """Tokens of its own segment that each token sees; None for all up to itself."""

    def pad(self, values: Tensor) -> Tensor:
        """[padded T, ...] from [T, ...]"""
        return values if self.source_tokens is None else values[self.source_tokens]

    def pad_with_zeros(self, values: Tensor) -> Tensor:
        """[padded T, ...] from [T, ...], with zeros in the padding."""
        if self.padded_positions is None or self.source_tokens is None:
            return values
        return values.new_zeros(len(self.source_tokens), *values.shape[1:]).index_copy_(
            0, self.padded_positions, values
        )

    def unpad(self, values: Tensor) -> Tensor:
        """[T, ...] from [padded T, ...]"""
        return values if self.padded_positions is None else values[self.padded_positions]


def plan_layout(segments: PackedSegments, device: torch.device | str = "cpu") -> SegmentLayout:
    """The layout of a micro-batch's segments."""
    lengths, prefix_of = segments.lengths(), segments.prefix_of
    starts: list[int] = [0] * len(lengths)
    ancestors: list[_TokenRanges] = [()] * len(lengths)
    runs: list[SegmentRun] = []
    tokens: list[IndexArray] = []
    end = 0
    for members in _group_by_length(segments):
        prefix, length = prefix_of[members[-1]], lengths[members[-1]]
        above: _TokenRanges = ()
        if prefix >= 0:
            above = (*ancestors[prefix], (starts[prefix], starts[prefix] + lengths[prefix]))
        runs.append(SegmentRun(end, len(members), length, above))
        for segment in members:
            starts[segment], ancestors[segment] = end, above
            first, stop = segments.bounds[segment : segment + 2]
            tokens.append(np.minimum(np.arange(first, first + length), stop - 1))
            end += length
    positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    source = np.concatenate(tokens)
    if np.array_equal(positions, np.arange(end)):
        return SegmentLayout(tuple(runs), visible=_visible_keys(segments, slice(None), device))
    visible = _visible_keys(segments, source, device)
    return SegmentLayout(tuple(runs), to_device(positions, device), to_device(source, device), visible)


def _visible_keys(
    segments: PackedSegments, tokens: slice | IndexArray, device: torch.device | str
) -> VisibleKeys | None:
    ends = segments.visible_ends()
    if ends is None:
        return None
    counts = (ends - np.repeat(segments.bounds[:-1], segments.lengths()))[tokens]
    return VisibleKeys(counts, to_device(counts, device))


def _group_by_length(segments: PackedSegments) -> Iterator[list[int]]:
    """Numbers of each run's segments, shortest first."""
    lengths, prefix_of = segments.lengths(), segments.prefix_of
    depths = [len(line) for line in segments.lines()]
    order = sorted(range(len(lengths)), key=lambda i: (depths[i], prefix_of[i], lengths[i]))
    run: list[int] = []
    for segment in order:
        shortest, longest = lengths[run[0]] if run else 0, lengths[segment]
        similar = longest <= ALWAYS_MERGE_TOKENS or shortest >= (1 - _MAX_PADDING_FRACTION) * longest
        if run and not (similar and prefix_of[segment] == prefix_of[run[0]]):
            yield run
            run = []
        run.append(segment)
    yield run

"""Packed attention, compared with a dense softmax over a visibility mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strop.models.packed_attention import block_kernel
from strop.models.packed_attention.block_kernel import SegmentLayout, SegmentRun, block_attention, plan_layout
from strop.models.packed_attention.segments import AttentionOptions, PackedSegments


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    prefix_of: Sequence[int],
    options: AttentionOptions,
    images: npt.NDArray[np.bool_],
) -> Tensor:
    image = torch.from_numpy(images)
    number = (~image).cumsum(0)
    same_image = image[:, None] & image & (number[:, None] == number)
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    sees = torch.zeros(len(query), len(query), dtype=torch.bool)
    position = torch.zeros(len(query), dtype=torch.long)
    for segment, length in enumerate(lengths):
        own = slice(bounds[segment], bounds[segment + 1])
        sees[own, own] = torch.ones(length, length).tril().bool() | same_image[own, own]
        above, prefix = 0, prefix_of[segment]
        while prefix >= 0:
            sees[own, bounds[prefix] : bounds[prefix + 1]] = True
            above += lengths[prefix]
            prefix = prefix_of[prefix]
        position[own] = above + torch.arange(length)
    if options.window is not None:
        sees &= position[:, None] - position < options.window
    shared = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(shared, 1)) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    p = scores.masked_fill(~sees, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", p, value.repeat_interleave(shared, 1))


@st.composite
def some_segments(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Lengths of segments, and the prefix of each, -1 for none."""
    count = draw(st.integers(1, 9))
    lengths = [draw(st.integers(1, 7)) for _ in range(count)]
    return lengths, [draw(st.integers(-1, i - 1)) for i in range(count)]


@settings(max_examples=60, deadline=None)
@given(
    segments=some_segments(),
    window=st.none() | st.integers(1, 12),
    softcap=st.none() | st.just(1.5),
    block_scores=st.sampled_from([16, 200, 2**19]),
    shared=st.sampled_from([1, 3]),
    together=st.sampled_from([0, 4, 64]),
    text_every=st.sampled_from([1, 1, 3, 5, 100]),
)
def test_equals_a_dense_softmax(
    segments: tuple[list[int], list[int]],
    window: int | None,
    softcap: float | None,
    block_scores: int,
    shared: int,
    together: int,
    text_every: int,
) -> None:
    """Every token is text, or every n-th one with an image before it."""
    lengths, prefix_of = segments
    options = AttentionOptions(scale=0.4, window=window, softcap=softcap)
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    torch.manual_seed(0)
    query = torch.randn(bounds[-1], 2 * shared, 4, dtype=torch.float64, requires_grad=True)
    key = torch.randn(bounds[-1], 2, 4, dtype=torch.float64, requires_grad=True)
    value = torch.randn(bounds[-1], 2, 6, dtype=torch.float64, requires_grad=True)
    images = np.arange(bounds[-1]) % text_every != 0
    expected = dense(query, key, value, lengths, prefix_of, options, images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_kernel, "SCORES_PER_BLOCK", block_scores)
        patch.setattr(block_kernel, "MIN_ROWS_PER_BLOCK", 2)
        patch.setattr(block_kernel, "ALWAYS_MERGE_TOKENS", together)
        layout = plan_layout(PackedSegments(tuple(bounds), tuple(prefix_of), images))
        result = block_attention(query, key, value, layout, options)
        weights = torch.randn_like(expected)
        ours = torch.autograd.grad(result, (query, key, value), weights)
    theirs = torch.autograd.grad(expected, (query, key, value), weights)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_segment_with_an_image_may_be_padded_beyond_the_window() -> None:
    query = torch.randn(9, 1, 4, requires_grad=True)
    images = np.arange(9) == 8
    layout = plan_layout(PackedSegments((0, 8, 9), (-1, -1), images))
    result = block_attention(query, query, query, layout, AttentionOptions(1, window=3))
    (gradient,) = torch.autograd.grad(result.sum(), query)
    assert gradient.isfinite().all()


def test_segments_of_equal_length_make_one_run() -> None:
    layout = plan_layout(PackedSegments((0, 3, 7, 11, 111, 211), (-1, 0, 0, 0, 0)))
    assert layout == SegmentLayout(
        (SegmentRun(0, 1, 3, ()), SegmentRun(3, 2, 4, ((0, 3),)), SegmentRun(11, 2, 100, ((0, 3),)))
    )


def test_segments_of_similar_length_are_padded_and_ordered_by_length() -> None:
    layout = plan_layout(PackedSegments((0, 2, 5, 6), (-1, 0, 0)))
    assert layout.runs == (SegmentRun(0, 1, 2, ()), SegmentRun(2, 2, 3, ((0, 2),)))
    assert layout.padded_positions is not None
    assert layout.source_tokens is not None
    assert layout.padded_positions.tolist() == [0, 1, 5, 6, 7, 2]
    assert layout.source_tokens.tolist() == [0, 1, 5, 5, 5, 2, 3, 4]


def test_prompts_make_one_run_and_precede_the_responses() -> None:
    """Two prompts of 2 and 3 tokens, each before its two responses."""
    layout = plan_layout(PackedSegments((0, 2, 6, 10, 13, 17, 21), (-1, 0, 0, -1, 3, 3)))
    assert layout.runs == (
        SegmentRun(0, 2, 3, ()),
        SegmentRun(6, 2, 4, ((0, 2),)),
        SegmentRun(14, 2, 4, ((3, 6),)),
    )


def test_segments_in_another_order_than_their_runs_are_moved() -> None:
    """As many tokens as positions, so that only the order says that something moves."""
    layout = plan_layout(PackedSegments((0, 100, 200, 300, 400), (-1, 0, -1, 2)))
    assert layout.source_tokens is not None
    assert layout.source_tokens[::100].tolist() == [0, 200, 100, 300]


def test_long_segments_are_padded_by_a_quarter_at_most() -> None:
    assert [
        run.num_segments for run in plan_layout(PackedSegments((0, 200, 350, 499), (-1, -1, -1))).runs
    ] == [2, 1]


def test_a_prefix_may_have_a_prefix() -> None:
    assert plan_layout(PackedSegments((0, 2, 5, 6), (-1, 0, 1))).runs[-1] == SegmentRun(
        5, 1, 1, ((0, 2), (2, 5))
    )

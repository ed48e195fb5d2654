"""The attention kernels of a GPU, compared with the CPU's: their plans and masks are the same on every device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from strop.errors import ModelError
from strop.models.packed_attention import attention as kernels
from strop.models.packed_attention.attention import (
    PackedLayout,
    TokenBounds,
    VarlenLayout,
    attention,
    choose_kernel,
    flex_attention,
    plan_mask,
    varlen_attention,
)
from strop.models.packed_attention.segments import AttentionOptions, PackedSegments

CPU = torch.device("cpu")


@st.composite
def packed(draw: st.DrawFn, *, images: bool = False) -> PackedSegments:
    """Segments as packing arranges them: those below a prefix are adjacent to it."""
    lengths: list[int] = []
    prefix_of: list[int] = []
    line: list[int] = [-1]
    for number in range(draw(st.integers(1, 9))):
        depth = draw(st.integers(1, len(line)))
        lengths.append(draw(st.integers(1, 7)))
        prefix_of.append(line[depth - 1])
        line = [*line[:depth], number]
    bounds = np.cumsum([0, *lengths])
    is_image = None
    if images:
        every = draw(st.sampled_from([1, 3, 5, 100]))
        is_image = np.arange(bounds[-1]) % every != 0
    return PackedSegments(tuple(bounds.tolist()), tuple(prefix_of), is_image)


def projections(segments: PackedSegments, shared: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(segments.tokens, heads, 8, dtype=dtype, requires_grad=True)
        for heads in (2 * shared, 2, 2)
    ]


def emulated_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor,
    max_queries: int,
    max_keys: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """The definition of torch's `varlen_attn`: for each sequence, causal from its last key backwards."""
    assert (query_bounds.dtype, key_bounds.dtype) == (torch.int32, torch.int32)
    assert int(query_bounds.diff().max()) == max_queries
    assert int(key_bounds.diff().max()) == max_keys
    outputs = []
    for (start, stop), (first, last) in zip(
        pairwise(query_bounds.tolist()), pairwise(key_bounds.tolist()), strict=True
    ):
        queries, keys = stop - start, last - first
        distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
        sees = distance >= -window_size[1]
        if window_size[0] >= 0:
            sees &= distance <= window_size[0]
        q, k, v = (
            each.transpose(0, 1)[None] for each in (query[start:stop], key[first:last], value[first:last])
        )
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=sees, scale=scale, enable_gqa=enable_gqa
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


@settings(max_examples=40, deadline=None)
@given(
    segments=packed(),
    window=st.none() | st.integers(1, 12),
    shared=st.sampled_from([1, 3]),
)
def test_one_varlen_call_equals_blocks(segments: PackedSegments, window: int | None, shared: int) -> None:
    inputs, options = projections(segments, shared), AttentionOptions(scale=0.4, window=window)
    expected = attention(*inputs, PackedLayout(segments, CPU), options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "varlen_attn", emulated_varlen)
        found = varlen_attention(*inputs, VarlenLayout.of(segments, CPU), options)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(each, inputs, weights) for each in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    segments=packed() | packed(images=True),
    window=st.none() | st.integers(1, 12),
    softcap=st.none() | st.just(1.5),
    shared=st.sampled_from([1, 3]),
)
def test_the_scores_and_mask_of_flex_attention_equal_blocks(
    segments: PackedSegments, window: int | None, softcap: float | None, shared: int
) -> None:
    """With a softmax over all scores in place of flex attention's blocks."""
    inputs, options = projections(segments, shared), AttentionOptions(0.4, window, softcap)
    expected = attention(*inputs, PackedLayout(segments, CPU), options)
    query, key, value = inputs[0], *(each.repeat_interleave(shared, 1) for each in inputs[1:])
    scores = torch.einsum("qhd,khd->hqk", query, key) * options.scale
    if softcap is not None:
        scores = kernels._softcap(softcap)(scores)
    p = scores.masked_fill(~visible(segments, window), -torch.inf).softmax(-1)
    torch.testing.assert_close(torch.einsum("hqk,khd->qhd", p, value), expected)


def visible(segments: PackedSegments, window: int | None) -> Tensor:
    """[T, T] Whether a query sees a key, by the function that flex attention gets."""
    sees = kernels._mask_function(TokenBounds.of(segments), window, CPU)
    tokens = torch.arange(segments.tokens)
    return sees(tokens[:0], tokens[:0], tokens[:, None], tokens[None, :])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("window", "softcap", "shared"), [(None, None, 1), (5, 1.5, 3)])
@pytest.mark.parametrize("images", [False, True])
def test_flex_attention_equals_blocks(
    window: int | None, softcap: float | None, shared: int, images: bool
) -> None:
    """Without a gradient: torch's flex attention has no backward pass on the CPU."""
    segments = PackedSegments(
        (0, 4, 7, 12, 14, 20), (-1, 0, 0, 2, -1), np.arange(20) % 3 != 0 if images else None
    )
    inputs = [each.detach() for each in projections(segments, shared, torch.float32)]
    options = AttentionOptions(scale=0.4, window=window, softcap=softcap)
    expected = attention(*inputs, PackedLayout(segments, CPU), options)
    found = flex_attention(*inputs, plan_mask(segments, window, CPU), options)
    torch.testing.assert_close(found, expected)


@settings(max_examples=60, deadline=None)
@given(segments=packed() | packed(images=True), window=st.none() | st.integers(1, 12))
def test_flex_attention_computes_every_block_with_a_visible_score(
    segments: PackedSegments, window: int | None
) -> None:
    """And masks no block of which it says that all scores are visible."""
    bounds = TokenBounds.of(segments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "BLOCK", 3)
        partial, full = kernels._blocks(bounds, window)
    sees = visible(segments, window).numpy()
    for row, column in np.ndindex(partial.shape):
        block = sees[3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
        assert not (partial[row, column] and full[row, column])
        assert block.any() <= (partial[row, column] or full[row, column])
        assert full[row, column] <= block.all()


def test_blocks_of_other_prompts_are_not_computed() -> None:
    segments = PackedSegments((0, 256, 384, 512, 768), (-1, 0, 0, -1))
    mask = plan_mask(segments, None, CPU)
    assert mask.to_dense()[0, 0].tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_a_prefix_apart_from_its_segments_is_refused_by_flex_attention() -> None:
    with pytest.raises(ModelError, match="segment 2 of a micro-batch follows neither its prefix, segment 0"):
        TokenBounds.of(PackedSegments((0, 2, 4, 6), (-1, -1, 0)))


@pytest.mark.parametrize(
    ("device", "dtype", "head", "softcap", "images", "kernel"),
    [
        ("cpu", torch.bfloat16, 64, None, False, "blocks"),
        ("cuda", torch.bfloat16, 64, None, False, "varlen"),
        ("cuda", torch.float16, 128, None, False, "varlen"),
        ("cuda", torch.float32, 64, None, False, "flex"),
        ("cuda", torch.bfloat16, 64, 50.0, False, "flex"),
        ("cuda", torch.bfloat16, 64, None, True, "flex"),
        ("cuda", torch.bfloat16, 512, None, False, "flex"),
        ("cuda", torch.bfloat16, 20, None, False, "flex"),
    ],
)
def test_the_kernel_follows_from_device_and_model(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: torch.dtype,
    head: int,
    softcap: float | None,
    images: bool,
    kernel: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    segments = PackedSegments((0, 4), (-1,), np.ones(4, dtype=np.bool_) if images else None)
    with FakeTensorMode():
        query = torch.empty(4, 2, head, device=device, dtype=dtype)
        assert choose_kernel(query, query, segments, AttentionOptions(1.0, softcap=softcap)) == kernel


def test_a_gpu_before_ampere_has_no_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    with FakeTensorMode():
        query = torch.empty(4, 2, 64, device="cuda", dtype=torch.float16)
        assert choose_kernel(query, query, PackedSegments((0, 4), (-1,)), AttentionOptions(1.0)) == "flex"

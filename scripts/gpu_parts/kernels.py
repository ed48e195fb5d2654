"""Part `kernels`: attention of each kernel against blocks of scores in float32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gpu_parts.measuring import milliseconds, print_table
from gpu_parts.options import Options
from strop.models.packed_attention.attention import PackedLayout, attention, choose_kernel
from strop.models.packed_attention.block_kernel import block_attention
from strop.models.packed_attention.segments import AttentionOptions, PackedSegments

_CASES = (
    (torch.bfloat16, None, None),
    (torch.bfloat16, 256, None),
    (torch.float32, None, None),
    (torch.bfloat16, None, 50.0),
)
"""Data type, window and softcap of each measurement."""
_HEADER = (
    "groups x rollouts, tokens",
    "dtype",
    "window",
    "softcap",
    "kernel",
    "output",
    "dq",
    "dk",
    "dv",
    "ms",
)


def run_kernels(options: Options) -> None:
    """Every kernel on this device against blocks of scores in float32, whose CPU tests are the reference."""
    shapes = [(1, 2, 5, 3)] if options.small else [(4, 8, 512, 512), (1, 16, 2048, 1024)]
    rows = []
    for groups, rollouts, prompt, response in shapes:
        segments = segments_of(groups, rollouts, prompt, response)
        name = f"{groups} x {rollouts}, {prompt} + {response}"
        for dtype, window, softcap in _CASES:
            measured = measure_kernel(
                segments, dtype, AttentionOptions(64**-0.5, window, softcap), options.device
            )
            rows.append((name, str(dtype)[6:], window, softcap, *measured))
    print_table(
        "Attention: relative gap to blocks in float32, and time of forward and backward", _HEADER, rows
    )


def measure_kernel(
    segments: PackedSegments, dtype: torch.dtype, options: AttentionOptions, device: torch.device
) -> tuple[str, ...]:
    """The kernel's name, the gaps of its output and gradients, and its milliseconds, for random inputs."""
    torch.manual_seed(0)
    sizes = [(segments.tokens, heads, 64) for heads in (8, 2, 2)]
    inputs = [torch.randn(size, device=device).requires_grad_() for size in sizes]
    cast = [each.detach().to(dtype).requires_grad_() for each in inputs]
    layout, grad = PackedLayout(segments, device), torch.randn(sizes[0], device=device)
    expected = block_attention(*inputs, layout.blocks, options)
    found = attention(*cast, layout, options)
    theirs = torch.autograd.grad(expected, inputs, grad)
    ours = torch.autograd.grad(found, cast, grad.to(dtype))
    gaps = [relative_gap(one, other) for one, other in zip((found, *ours), (expected, *theirs), strict=True)]
    call = partial(forward_and_backward, cast, layout, options, grad.to(dtype))
    kernel = choose_kernel(cast[0], cast[2], segments, options)
    return kernel, *(f"{gap:.1e}" for gap in gaps), f"{milliseconds(device, call):.2f}"


def segments_of(groups: int, rollouts: int, prompt: int, response: int) -> PackedSegments:
    """Groups of responses to one shared prompt each."""
    lengths, prefix_of = [], []
    for _ in range(groups):
        shared = len(lengths)
        lengths += [prompt, *[response] * rollouts]
        prefix_of += [-1, *[shared] * rollouts]
    return PackedSegments(tuple(np.cumsum([0, *lengths]).tolist()), tuple(prefix_of))


def forward_and_backward(
    inputs: Sequence[Tensor], layout: PackedLayout, options: AttentionOptions, grad: Tensor
) -> None:
    """One call of attention with its gradient."""
    torch.autograd.grad(attention(*inputs, layout, options), inputs, grad)


def relative_gap(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of the expected tensor."""
    one, other = found.detach().float(), expected.detach().float()
    return float((one - other).norm() / other.norm())

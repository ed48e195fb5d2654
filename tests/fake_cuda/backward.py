"""Backward passes on the fake GPU: torch's autograd engine in Python, for the graphs that a forward pass records.

The engine itself starts a thread for each real device, and so refuses fake tensors on `cuda` ("hasPrimaryContext
expects a valid device index"). Each node of the graph is called here in its place; hooks of tensors are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction


@torch.no_grad()
def backward(loss: Tensor) -> None:
    """Add the gradients of a loss to the leaves of its graph, as `loss.backward()` does.

    Raises for a gradient that does not fit the shape or device of its tensor.
    """
    root: Any = loss.grad_fn
    uses = _uses(root)
    grads: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    grads[root][loss.output_nr] = torch.ones_like(loss)
    ready = [root]
    while ready:
        node = ready.pop()
        found = grads.pop(node, {})
        if hasattr(node, "variable"):
            for own in found.values():
                node.variable.grad = own if node.variable.grad is None else node.variable.grad + own
            continue
        for (following, number), grad in _edges(node, found):
            if grad is not None:
                fitting = _validated(grad, following._input_metadata[number])
                known = grads[following].get(number)
                grads[following][number] = fitting if known is None else known + fitting
            uses[following] -= 1
            if uses[following] == 0:
                ready.append(following)


def _uses(root: Any) -> Counter[Any]:
    """The number of edges that lead to each node."""
    uses: Counter[Any] = Counter()
    seen, stack = {root}, [root]
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is None:
                continue
            uses[following] += 1
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return uses


def _edges(node: Any, found: dict[int, Tensor]) -> list[tuple[tuple[Any, int], Tensor | None]]:
    """The node's edges that lead to another node, each with its gradient."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    if not found:
        return [(edge, None) for edge in edges]
    inputs = [found.get(number) for number in range(len(node._input_metadata))]
    if isinstance(node, BackwardCFunction):  # a torch.autograd.Function, whose non-tensor inputs have no edge
        needed = list(compress(_as_tuple(node.apply(*inputs)), node.needs_input_grad))
        return list(zip(edges, needed, strict=True))
    outputs = zip(node.next_functions, _as_tuple(node(*inputs)), strict=True)
    return [(edge, grad) for edge, grad in outputs if edge[0] is not None]


def _validated(grad: Tensor, metadata: Any) -> Tensor:
    """A gradient in the shape and dtype of the tensor it belongs to, as the engine makes it."""
    assert grad.device == metadata.device
    return grad.sum_to_size(metadata.shape).to(metadata.dtype)


def _as_tuple(outputs: Any) -> tuple[Tensor | None, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)

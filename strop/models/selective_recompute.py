"""Selective activation checkpointing: a recomputed layer keeps its products and attention, and computes the rest again.

`torch.utils.checkpoint.create_selective_checkpoint_contexts` does the same for layers that run the same operations in
both passes. Here layers also gather their parameters (FSDP2, ZeRO-3), in the backward pass other ones than in the
forward pass, and an adapter's product is added in place to a product that is kept; so these contexts look at the kept
operations alone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.attention.varlen  # registers its operation
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_ATEN, _COLLECTIVE = torch.ops.aten, torch.ops._c10d_functional
KEPT = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN._grouped_mm.default,
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
        torch.ops.torch_attn._varlen_attn.default,
        _COLLECTIVE.all_reduce.default,
        _COLLECTIVE.all_gather_into_tensor.default,
        _COLLECTIVE.reduce_scatter_tensor.default,
    }
)
"""Operations whose results are kept. Collectives of tensor parallelism are among them: the product that would wait for
a second one is not computed again. Batched products are not among them: on the CPU attention has them for scores."""
_IN_PLACE = frozenset({_ATEN.addmm_.default, _ATEN.add_.Tensor})
"""Operations that may add to a kept result in place, such as a bias or an adapter's product: it then holds the sum."""


class _Results:
    """Results of one layer, by operation in the order of its calls."""

    def __init__(self) -> None:
        self._kept: defaultdict[Any, deque[Any]] = defaultdict(deque)
        self._by_storage: dict[int, Any] = {}

    def keep(self, func: Any, result: Any) -> None:
        kept = tree_map_only(Tensor, torch.Tensor.detach, result)
        self._kept[func].append(kept)
        for leaf in tree_leaves(kept):
            if isinstance(leaf, Tensor):
                self._by_storage[_storage(leaf)] = kept

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor is a kept result, or a view of one."""
        return isinstance(tensor, Tensor) and _storage(tensor) in self._by_storage

    def take(self, func: Any) -> Any:
        """The next result of an operation."""
        return self._kept[func].popleft()


def _storage(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()._cdata


def selective_contexts() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Contexts of one layer's forward pass and of its second computation, as `torch.utils.checkpoint` takes them."""
    results = _Results()
    return _Keep(results), _Reuse(results)


class _LayerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operations of a layer, but not those in a kernel of torch.compile, which flex attention is on a GPU."""

    def __init__(self, results: _Results) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._results = results

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class _Keep(_LayerMode):  # type: ignore[no-untyped-call]
    """Keeps the results of `KEPT`. Raises RuntimeError for one that is changed otherwise than by `_IN_PLACE`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable and func not in _IN_PLACE and self._results.holds(args[0]):
            raise RuntimeError(
                f"{func} changes a product in place, which selective checkpointing keeps; write "
                "model.gradient_checkpointing: true"
            )
        result = func(*args, **(kwargs or {}))
        if func in KEPT:
            self._results.keep(func, result)
        return result


class _Reuse(_LayerMode):  # type: ignore[no-untyped-call]
    """Returns the kept results in the same order, and computes everything else."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in KEPT:
            return self._results.take(func)
        if func in _IN_PLACE and self._results.holds(args[0]):
            return args[0]
        return func(*args, **(kwargs or {}))

"""Selective checkpointing gives the gradient of a model that keeps everything, and computes its products once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from strop.algorithms.registry import LossSpec
from strop.models.selective_recompute import selective_contexts
from strop.models.tiny import make_model
from strop.training.engine import local_policy
from tests.training.test_local_engine import batch_of, make_run

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
OTHER = torch.ops.aten.rsqrt.default
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "bfloat16": ("qwen2", {"compute_dtype": "bfloat16"}),
    "fused LoRA": ("qwen2", {"lora": {"rank": 4}}),
    "LoRA with dropout": ("qwen2", {"lora": {"rank": 4, "dropout": 0.2}}),
    "experts": ("mixtral", {}),
}


class CountCalls(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


def train(
    folder: Path, model: dict[str, Any], checkpointing: object
) -> tuple[dict[str, Tensor], Counter[Any]]:
    """The weights after an update, and the operations of its passes."""
    run = make_run(folder, {**model, "gradient_checkpointing": checkpointing})
    engine = local_policy(run)
    with CountCalls() as counted:
        engine.forward_backward(batch_of(), LossSpec(run.algorithm, 64))
    engine.set_lr(0.01)
    engine.step()
    return {name: weight.clone() for name, weight in engine.iter_weights()}, counted.calls


def products(calls: Counter[Any]) -> int:
    return sum(calls[each] for each in PRODUCTS)


@pytest.mark.parametrize("case", CASES, ids=CASES)
def test_updates_are_equal_and_products_are_computed_once(case: str, tmp_path: Path) -> None:
    family, model = CASES[case]
    folder = make_model(
        tmp_path / "model", ["one and one is two"], family=family, vocab_size=280, hidden_size=32
    )
    expected, once = train(folder, model, False)
    found, calls = train(folder, model, "selective")
    again, twice = train(folder, model, True)
    assert found.keys() == expected.keys() == again.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # The embeddings under an adapter get a gradient where layers are recomputed.
    of_input = 0 if "lora" not in model else products(calls) - products(once)
    assert products(calls) == products(once) + of_input < products(twice)
    assert of_input < (products(twice) - products(once)) / 2
    assert once[OTHER] < calls[OTHER] == twice[OTHER]


def test_a_bias_that_is_added_in_place_is_added_once() -> None:
    weight, bias = torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return torch.sigmoid((x @ weight).add_(bias))

    def gradient(**options: Any) -> tuple[Tensor, ...]:
        x = torch.arange(8.0).view(2, 4).requires_grad_()
        out = checkpoint(layer, x, use_reentrant=False, **options)
        return torch.autograd.grad(out.square().sum(), (x, weight, bias))

    for found, expected in zip(gradient(context_fn=selective_contexts), gradient(), strict=True):
        assert torch.equal(found, expected)


def test_a_product_that_is_changed_otherwise_is_refused() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.ones(2, 4, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return torch.sigmoid((x @ weight).mul_(2))

    with pytest.raises(RuntimeError, match="gradient_checkpointing: true"):
        checkpoint(layer, x, use_reentrant=False, context_fn=selective_contexts)

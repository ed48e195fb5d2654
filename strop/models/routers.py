"""Routers of a mixture of experts: their logits over a micro-batch, and which models have them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.errors import ModelError
from strop.models.packed_attention.forward import packed_outputs
from strop.types import MicroBatch


def router_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The router of each layer with experts, which stands next to them as `gate` or `router` in every family."""
    for module in model.modules():
        if hasattr(module, "experts"):
            yield from (child for name, child in module.named_children() if name in ("gate", "router"))


def experts_per_token(base: PreTrainedModel) -> int:
    """Number of experts that a router gives a token to.

    Raises ModelError for a model without routers, and for one whose experts are not those of the largest logits, which
    transformers has no load-balancing loss for.
    """
    count: int | None = getattr(base.config.get_text_config(), "num_experts_per_tok", None)
    if count is None or not hasattr(sys.modules[type(base).__module__], "load_balancing_loss_func"):
        raise ModelError(
            f"trainer.router_loss is a loss of mixtures of experts whose routers choose by softmax, such as Mixtral "
            f"and Qwen3-MoE; {type(base).__name__} is none of them. Remove trainer.router_loss."
        )
    return count


def router_logits(model: nn.Module, micro_batch: MicroBatch) -> tuple[Tensor, ...]:
    """[T, E] Logits of the router of each layer with experts."""
    _, logits = packed_outputs(model, micro_batch, router_logits=True)
    return logits

"""Weights of a loaded model, for an inference engine in the same process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from transformers import PreTrainedModel

from strop.protocols import ImageProcessor, SharedWeights


def model_weights(
    model: PreTrainedModel,
    *,
    dtype: torch.dtype | None = None,
    image_processor: Callable[[], ImageProcessor] | None = None,
) -> SharedWeights:
    """Handle of a model's weights, without those of its adapters; `dtype` None is the model's own."""
    return SharedWeights(
        config=model.config,
        generation_config=getattr(model, "generation_config", None),
        device=model.device,
        dtype=dtype or model.dtype,
        tensors=partial(named_weights, model),
        image_processor=image_processor,
    )


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's tensors under Hugging Face's names, without those of an adapter."""
    get_base_model = getattr(model, "get_base_model", lambda: model)
    for name, tensor in get_base_model().state_dict().items():
        if ".lora_" not in name:
            yield plain_name(name), tensor


def plain_name(name: str) -> str:
    """Hugging Face's name of a weight that PEFT has wrapped, once or several times."""
    return ".".join(part for part in name.split(".") if part != "base_layer")

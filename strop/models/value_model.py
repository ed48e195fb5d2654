"""Value model: a decoder with a head that predicts one number per token position."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.models.dtensor import whole_parameter
from strop.models.loading import load_decoder
from strop.models.lora import add_lora
from strop.models.packed_attention.forward import packed_forward
from strop.models.packed_attention.targets import target_rows
from strop.types import MicroBatch

HeadInit = Literal["zero", "normal"]
_STANDARD_RANGE = 0.02
"""Standard deviation where a model's configuration has no `initializer_range`."""


class ValueModel(nn.Module):
    """A causal decoder, optionally with an adapter, and a new linear head.

    With a head of zeros, a new critic predicts 0, and its first advantages are plain returns.
    """

    def __init__(
        self,
        decoder: nn.Module,
        config: PretrainedConfig,
        head: HeadInit,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Add a head to a decoder of this configuration; a random one depends on torch's initial seed only."""
        super().__init__()
        self.decoder = decoder
        text = config.get_text_config()
        self.head = nn.Linear(text.hidden_size, 1, dtype=dtype, device=device)
        nn.init.zeros_(self.head.bias)
        weight = torch.zeros_like(self.head.weight, dtype=torch.float32, device="cpu")
        if head == "normal":
            generator = torch.Generator().manual_seed(torch.initial_seed())
            weight.normal_(std=getattr(text, "initializer_range", _STANDARD_RANGE), generator=generator)
        with torch.no_grad():
            self.head.weight.copy_(weight)


def load_value_model(section: ModelConfig, *, head: HeadInit = "zero", device: torch.device) -> ValueModel:
    """Load the decoder of `section.path`, without its language-model head, and add a new value head.

    Raises `ModelError` as `load_model` does.
    """
    decoder: PreTrainedModel = load_decoder(section, device=device)
    dtype = getattr(torch, section.dtype)
    lora = section.lora and section.lora.model_copy(update={"adapter": None})  # which is the policy's
    adapted = lora and add_lora(decoder, lora, dtype)
    return ValueModel(adapted or decoder, decoder.config, head, dtype, device)


def token_values(model: ValueModel, micro_batch: MicroBatch) -> Tensor:
    """[T] float32 Value of the state before each target; 0 where `loss_mask` is False. Differentiable.

    The state is all tokens before the target, so its value comes from the hidden state at `t - 1`, as the
    target's log-prob does.
    """
    hidden = packed_forward(model.decoder, micro_batch)
    found = target_rows(model.decoder, micro_batch)
    states = hidden[found.rows.on_device].float()
    weight, bias = (whole_parameter(p).float() for p in (model.head.weight, model.head.bias))
    values = nn.functional.linear(states, weight, bias)[:, 0]
    return found.spread(values)

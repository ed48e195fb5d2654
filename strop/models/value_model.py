"""Value model: a decoder with a head that predicts one number per token position."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.models.loading import load_decoder
from strop.models.lora import add_lora
from strop.models.packed_attention.forward import packed_forward
from strop.types import MicroBatch


class ValueModel(nn.Module):
    """A causal decoder, optionally with an adapter, and a linear head that is initialized to zero.

    A new critic therefore predicts 0, and its first advantages are plain returns.
    """

    def __init__(self, decoder: nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> None:
        """Add a head to a decoder with hidden states of this width."""
        super().__init__()
        self.decoder = decoder
        self.head = nn.Linear(width, 1, dtype=dtype, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


def load_value_model(section: ModelConfig, *, device: torch.device) -> ValueModel:
    """Load the decoder of `section.path`, without its language-model head, and add a new value head.

    Raises `ModelError` as `load_model` does.
    """
    decoder: PreTrainedModel = load_decoder(section, device=device)
    dtype = getattr(torch, section.dtype)
    width = decoder.config.get_text_config().hidden_size
    adapted = section.lora and add_lora(decoder, section.lora, dtype)
    return ValueModel(adapted or decoder, width, dtype, device)


def token_values(model: ValueModel, micro_batch: MicroBatch) -> Tensor:
    """[T] float32 Value of the state before each target; 0 where `loss_mask` is False. Differentiable.

    The state is all tokens before the target, so its value comes from the hidden state at `t - 1`, as the
    target's log-prob does.
    """
    hidden = packed_forward(model.decoder, micro_batch)
    targets = micro_batch.loss_mask.nonzero()[:, 0]
    states = hidden[targets - 1].float()
    values = nn.functional.linear(states, model.head.weight.float(), model.head.bias.float())[:, 0]
    return values.new_zeros(len(hidden)).index_copy(0, targets, values)

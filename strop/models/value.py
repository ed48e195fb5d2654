"""A value model: a decoder with a head of one number for each state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.config.schema.model import Model
from strop.models.attention import packed_forward
from strop.models.load import load_decoder
from strop.models.lora import add_lora
from strop.types import MicroBatch


class ValueModel(nn.Module):
    """A causal decoder, perhaps with an adapter, and a linear head that starts at zero.

    So a fresh critic says 0 of every state, and its first advantages are plain returns.
    """

    def __init__(self, decoder: nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = nn.Linear(width, 1, dtype=dtype, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


def load_value_model(section: Model, *, device: torch.device) -> ValueModel:
    """The decoder of `section.path` (a language-model head in it is left out) with a new value head.

    Raises ModelError as `load_model` does.
    """
    decoder: PreTrainedModel = load_decoder(section, device=device)
    dtype = getattr(torch, section.dtype)
    width = decoder.config.get_text_config().hidden_size
    adapted = section.lora and add_lora(decoder, section.lora, dtype)
    return ValueModel(adapted or decoder, width, dtype, device)


def token_values(model: ValueModel, micro_batch: MicroBatch) -> Tensor:
    """[T] float32, 0 where `loss_mask` is False: the value of the state that each target was drawn in.

    That state is all that comes before the target, so its value comes from the hidden state at
    `t - 1`, as the target's log-prob does. The gradient flows through.
    """
    hidden = packed_forward(model.decoder, micro_batch)
    targets = micro_batch.loss_mask.nonzero()[:, 0]
    states = hidden[targets - 1].float()
    values = nn.functional.linear(states, model.head.weight.float(), model.head.bias.float())[:, 0]
    return values.new_zeros(len(hidden)).index_copy(0, targets, values)

"""Value model: a decoder with a head that predicts one number per token position."""

from __future__ import annotations

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.errors import ModelError
from strop.models.dtensor import whole_parameter
from strop.models.loading import load_decoder
from strop.models.lora import add_lora
from strop.models.meta_loading import MetaLoadingUnsupported, local_folder, tensor_files
from strop.models.packed_attention.forward import packed_forward, target_rows
from strop.models.value_head import SCORE, init_head, wrong_head
from strop.types import MicroBatch


class ValueModel(nn.Module):
    """A causal decoder, optionally with an adapter, and a linear head.

    With a head of zeros, a new critic predicts 0, and its first advantages are plain returns.
    """

    def __init__(
        self,
        decoder: nn.Module,
        config: PretrainedConfig,
        head: HeadInit,
        section: ModelConfig,
        device: torch.device,
    ) -> None:
        """Add a head to the decoder of a section. Raises `ModelError` under `score` for a folder without one."""
        super().__init__()
        self.decoder = decoder
        dtype = getattr(torch, section.dtype)
        self.head = nn.Linear(config.get_text_config().hidden_size, 1, dtype=dtype, device=device)
        init_head(self.head, head, config)
        if head == "score":
            _read_head(self.head, section.path)


def load_value_model(section: ModelConfig, *, head: HeadInit = "zero", device: torch.device) -> ValueModel:
    """Load the decoder of `section.path`, without its language-model head, and add a value head.

    Raises `ModelError` as `load_model` does, and under `score` for a folder without such a head.
    """
    decoder: PreTrainedModel = load_decoder(section, device=device)
    lora = section.lora and section.lora.model_copy(update={"adapter": None})  # which is the policy's
    adapted = lora and add_lora(decoder, lora, getattr(torch, section.dtype))
    return ValueModel(adapted or decoder, decoder.config, head, section, device)


@torch.no_grad()
def _read_head(head: nn.Linear, path: str) -> None:
    """Set a head to that of the reward model in a folder; a bias that it lacks is 0."""
    try:
        files = tensor_files(local_folder(path))
    except MetaLoadingUnsupported as error:
        raise ModelError(wrong_head(path, f"cannot be read ({error})")) from error
    if f"{SCORE}.weight" not in files:
        raise ModelError(wrong_head(path, f"has no tensor {SCORE}.weight"))
    nn.init.zeros_(head.bias)
    for name, parameter in head.named_parameters():
        stored_name = f"{SCORE}.{name}"
        if stored_name not in files:
            continue
        with safe_open(files[stored_name], framework="pt") as opened:
            stored = opened.get_tensor(stored_name)
        if stored.shape != parameter.shape:
            raise ModelError(wrong_head(path, f"has a head of the shape {list(stored.shape)}"))
        parameter.copy_(stored)


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

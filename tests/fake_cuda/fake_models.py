"""Models and micro-batches on the fake GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from strop.config.schema.model import LoraConfig
from strop.config.units import Amount
from strop.data.packing import pack
from strop.models.fused_layers import fuse_layers
from strop.models.lora import add_lora
from strop.models.packed_attention.forward import enable_packed_attention
from strop.types import Experience, MicroBatch, TrainingBatch
from tests.models.models import OPTIONS, coefficients, some_experiences

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}


def fake_model(family: str, dtype: torch.dtype = torch.bfloat16, **options: Any) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **(SIZES | OPTIONS.get(family, {}) | options))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    enable_packed_attention(model)
    fuse_layers(model)
    return model


def fake_adapted(model: PreTrainedModel, targets: str | list[str]) -> PeftModel:
    """The model with a new adapter, which is made on its device in its dtype: PEFT cannot move a fake one there."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(model.dtype)
    try:
        with patch.object(nn.Module, "to", lambda module, *_args, **_kwargs: module):
            return add_lora(model, LoraConfig(rank=4, targets=targets), model.dtype)
    finally:
        torch.set_default_dtype(default)


def check_gradients(model: nn.Module) -> None:
    """Assert that each trained parameter, and no other, has a gradient on the fake GPU."""
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.device.type == "cuda"


def fake_micro_batch(
    experiences: list[Experience] | None = None, *, old: bool = True, share_prompts: bool = True
) -> MicroBatch:
    """One micro-batch with everything that a loss may read."""
    chosen = some_experiences() if experiences is None else experiences
    per_token = [np.zeros(len(each.token_ids), dtype=np.float32) for each in chosen]
    batch = TrainingBatch(
        chosen,
        advantages=coefficients(chosen),
        old_logprobs=per_token if old else None,
        ref_logprobs=per_token,
        teacher_logprobs=per_token,
        values=per_token,
        returns=per_token,
        selected=[each > 0 for each in per_token],
    )
    (micro_batch,) = pack(batch, Amount(10_000, "tokens"), share_prompts=share_prompts, device="cuda")
    return micro_batch

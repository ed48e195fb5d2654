"""The backward pass of the fake GPU, on real tensors of the host, against torch's own."""

from __future__ import annotations

import torch

from strop.models.fused_layers import fuse_layers
from strop.models.logprobs import token_outputs
from strop.models.packed_attention.forward import enable_packed_attention
from tests.fake_cuda.backward import backward
from tests.models.models import distance, gradients, make, packed, some_experiences


def test_gradients_are_those_of_torch() -> None:
    model = make("qwen2")
    enable_packed_attention(model)
    fuse_layers(model)
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    found = []
    for run in (torch.Tensor.backward, backward):
        model.zero_grad()
        outputs = token_outputs(model, micro_batch, entropy=True)
        assert outputs.entropy is not None
        run((micro_batch.advantages * (outputs.logprobs + outputs.entropy)).sum())
        found.append(gradients(model))
    assert distance(found[1], found[0]) < 1e-6

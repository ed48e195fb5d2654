"""Divergence from a reference over the whole vocabulary, compared with torch in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from strop.models import chunked_head, logprobs
from strop.models.chunked_head import FrozenStates
from strop.models.logprobs import frozen_states, logit_transform, token_outputs
from strop.models.packed_attention.forward import enable_packed_attention
from strop.transfers import Positions
from strop.types import MicroBatch
from tests.models.models import make, packed, some_experiences
from tests.models.test_logprobs import Loud


def plain(model: nn.Module, hidden: Tensor, temperature: Tensor) -> Tensor:
    """[N, V] Log-probs without chunks."""
    transform = logit_transform(model)
    logits = model.get_output_embeddings()(hidden) * transform.scale
    if transform.softcap:
        logits = torch.tanh(logits / transform.softcap) * transform.softcap
    return torch.log_softmax(logits / temperature[:, None], -1)


@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize("family", ["qwen2", "gemma2", "cohere", "phi", "loud"])
@pytest.mark.parametrize("weights", [(0.0, 0.0, 1.0), (0.7, -0.4, 0.3)])
def test_values_and_gradients(
    family: str, chunk: int, weights: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_head, "CHUNK_ROWS", chunk)
    model = make("qwen2" if family == "loud" else family)
    if family == "loud":
        model.set_output_embeddings(Loud(32, 61))
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    torch.manual_seed(0)
    hidden = torch.randn(len(micro_batch.token_ids), 32, requires_grad=True)
    reference = FrozenStates(
        torch.randn(len(hidden), 32), make("phi").get_output_embeddings(), logit_transform(model)
    )
    monkeypatch.setattr(logprobs, "packed_outputs", lambda *_, **__: (hidden, ()))
    outputs = token_outputs(model, micro_batch, entropy=True, reference=reference)

    targets = micro_batch.loss_mask.nonzero()[:, 0]
    temperature = micro_batch.temperature[targets]
    every = plain(model, hidden[targets - 1], temperature)
    with torch.no_grad():
        other = reference.logprobs(Positions.of(targets.numpy() - 1, "cpu"), temperature)
    expected = (
        every.gather(-1, micro_batch.token_ids[targets, None])[:, 0],
        -(every.exp() * every).sum(-1),
        kl_div(other, every, reduction="none", log_target=True).sum(-1),
    )
    assert outputs.divergence is not None and outputs.entropy is not None
    found = tuple(each[targets] for each in (outputs.logprobs, outputs.entropy, outputs.divergence))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not outputs.divergence[~micro_batch.loss_mask].any()
    assert expected[2].min() > 0.01

    scale = torch.randn(len(targets))

    def loss(parts: tuple[Tensor, ...]) -> Tensor:
        return torch.stack([w * (scale * part).sum() for w, part in zip(weights, parts, strict=True)]).sum()

    inputs = (hidden, *model.get_output_embeddings().parameters())
    ours, theirs = (torch.autograd.grad(loss(parts), inputs) for parts in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def outputs_of(model: nn.Module, reference: nn.Module, batches: list[MicroBatch]) -> list[Tensor]:
    found = []
    for batch in batches:
        states = frozen_states(reference, batch)
        divergence = token_outputs(model, batch, entropy=False, reference=states).divergence
        assert divergence is not None
        found.append(divergence[batch.loss_mask])
    return found


def test_divergence_from_itself_is_zero() -> None:
    model = make("qwen2")
    enable_packed_attention(model)
    batches = packed(some_experiences(), share_prompts=True)
    assert torch.cat(outputs_of(model, model, batches)).abs().max() < 1e-6


def test_the_reference_has_no_gradient() -> None:
    model, reference = make("qwen2"), make("qwen2")
    for parameter in reference.parameters():
        parameter.data *= 1.1
    enable_packed_attention(model)
    enable_packed_attention(reference)
    batches = packed(some_experiences(), share_prompts=True, tokens=40)
    assert len(batches) > 1
    torch.cat(outputs_of(model, reference, batches)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(p.grad is None for p in reference.parameters())

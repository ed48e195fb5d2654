"""Chunked log-probs and entropies, compared with plain torch in values and gradients."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from strop.errors import ModelError
from strop.models import chunked_head, logprobs
from strop.models.logprobs import (
    check_logits,
    expected_entropy_effects,
    logit_transform,
    squared_probabilities,
    token_outputs,
)
from strop.models.packed_attention.forward import enable_packed_attention, packed_forward
from tests.models.models import distance, gradients, make, packed, packed_gradient, some_experiences


class Loud(nn.Linear):
    """A head that is not a plain linear layer."""

    def forward(self, states: Tensor) -> Tensor:
        return 2 * super().forward(states)


def plain(model: nn.Module, hidden: Tensor, labels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    transform = logit_transform(model)
    logits = model.get_output_embeddings()(hidden) * transform.scale
    if transform.softcap:
        logits = torch.tanh(logits / transform.softcap) * transform.softcap
    every = torch.log_softmax(logits / temperature[:, None], -1)
    return every.gather(-1, labels[:, None])[:, 0], -(every.exp() * every).sum(-1)


@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize("family", ["qwen2", "gemma2", "cohere", "phi", "loud"])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -0.4)])
def test_values_and_gradients(
    family: str, chunk: int, weights: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_head, "CHUNK_ROWS", chunk)
    model = make("qwen2" if family == "loud" else family)
    if family == "loud":
        model.set_output_embeddings(Loud(32, 61))
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    torch.manual_seed(0)
    hidden = torch.randn(len(micro_batch.token_ids), 32, requires_grad=True)
    monkeypatch.setattr(logprobs, "packed_outputs", lambda *_, **__: (hidden, ()))
    outputs = token_outputs(model, micro_batch, entropy=True)
    targets = micro_batch.loss_mask.nonzero()[:, 0]
    expected = plain(
        model, hidden[targets - 1], micro_batch.token_ids[targets], micro_batch.temperature[targets]
    )
    assert outputs.entropy is not None
    for ours, theirs in zip((outputs.logprobs, outputs.entropy), expected, strict=True):
        torch.testing.assert_close(ours[targets], theirs, atol=1e-5, rtol=1e-5)
        assert not ours[~micro_batch.loss_mask].any()
    inputs = (hidden, *model.get_output_embeddings().parameters())
    scale = torch.randn(len(targets))
    losses = (
        weights[0] * (scale * outputs.logprobs[targets]).sum()
        + weights[1] * (scale * outputs.entropy[targets]).sum(),
        weights[0] * (scale * expected[0]).sum() + weights[1] * (scale * expected[1]).sum(),
    )
    ours, theirs = (torch.autograd.grad(loss, inputs) for loss in losses)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_a_case_by_hand() -> None:
    """Logits 0 and ln 3 at temperature 1: probabilities 1/4 and 3/4."""
    logits = torch.tensor([[0.0, math.log(3.0)]])
    logprob, entropy, _ = chunked_head._statistics(logits, torch.tensor([1]), True)
    assert math.isclose(logprob.item(), math.log(0.75), rel_tol=1e-6)
    assert math.isclose(entropy.item(), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), rel_tol=1e-6)


@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
def test_sums_over_the_vocabulary(family: str) -> None:
    """Squared probabilities, and p^2 (H + log p), against the whole distribution of every next token."""
    model = make(family)
    enable_packed_attention(model)
    (micro_batch,) = packed(some_experiences(), share_prompts=False)
    found = squared_probabilities(model, micro_batch)
    targets = micro_batch.loss_mask.nonzero()[:, 0]
    hidden = packed_forward(model, micro_batch)[targets - 1]
    transform = logit_transform(model)
    logits = model.get_output_embeddings()(hidden) * transform.scale
    if transform.softcap:
        logits = torch.tanh(logits / transform.softcap) * transform.softcap
    probabilities = torch.softmax(logits / micro_batch.temperature[targets, None], -1)
    expected = probabilities.square().sum(-1).detach()
    torch.testing.assert_close(found[targets], expected)
    assert found[~micro_batch.loss_mask].count_nonzero() == 0
    surprise = probabilities.log() - (probabilities * probabilities.log()).sum(-1, keepdim=True)
    effects = expected_entropy_effects(model, micro_batch)[targets]
    torch.testing.assert_close(effects, (probabilities.square() * surprise).sum(-1).detach())


def test_entropy_is_optional() -> None:
    model = make("qwen2")
    enable_packed_attention(model)
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    assert token_outputs(model, micro_batch, entropy=False).entropy is None


def test_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[3000.0, -3000.0], [-4000.0, -4001.0]])
    logprob, entropy, _ = chunked_head._statistics(logits, torch.tensor([0, 0]), True)
    torch.testing.assert_close(logprob, torch.tensor([0.0, -math.log1p(math.exp(-1))]))
    assert torch.isfinite(entropy).all()


def test_a_frozen_head_gets_no_gradient() -> None:
    model = make("qwen2", tie_word_embeddings=False)
    enable_packed_attention(model)
    micro_batches = packed(some_experiences(), share_prompts=True)
    _, whole = packed_gradient(model, micro_batches)
    model.lm_head.requires_grad_(False)
    _, frozen = packed_gradient(model, micro_batches)
    assert "lm_head.weight" not in frozen
    assert distance(frozen, {name: whole[name] for name in frozen}) < 1e-6


def test_a_tied_head_adds_to_the_embeddings() -> None:
    tied = make("qwen2", tie_word_embeddings=True)
    untied = copy.deepcopy(tied)
    untied.lm_head.weight = nn.Parameter(tied.lm_head.weight.detach().clone())
    micro_batches = packed(some_experiences(), share_prompts=True)
    for model in (tied, untied):
        enable_packed_attention(model)
        packed_gradient(model, micro_batches)
    both = gradients(untied)
    expected = both["model.embed_tokens.weight"] + both["lm_head.weight"]
    torch.testing.assert_close(gradients(tied)["model.embed_tokens.weight"], expected)


def test_an_unknown_transform_of_logits_is_rejected() -> None:
    model = make("qwen2")
    check_logits(model)
    original = model.forward

    def forward(**inputs: object) -> object:
        output = original(**inputs)
        output.logits = output.logits + 3.0 * output.logits.square()
        return output

    model.forward = forward
    with pytest.raises(ModelError, match="not its head's output"):
        check_logits(model)

"""Chunked log-probs, entropies and divergences from a reference, compared with plain torch in values and gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from strop.errors import ModelError
from strop.models import chunked_head, logprobs
from strop.models.chunked_head import FrozenStates
from strop.models.logprobs import (
    check_logits,
    expected_entropy_effects,
    frozen_states,
    logit_transform,
    squared_probabilities,
    token_outputs,
)
from strop.models.packed_attention.forward import enable_packed_attention, packed_forward
from strop.transfers import Positions
from strop.types import MicroBatch
from tests.models.models import distance, gradients, make, packed, packed_gradient, some_experiences


class Loud(nn.Linear):
    """A head that is not a plain linear layer."""

    def forward(self, states: Tensor) -> Tensor:
        return 2 * super().forward(states)


def plain_logprobs(model: nn.Module, hidden: Tensor, temperature: Tensor) -> Tensor:
    """[N, V] Log-probs without chunks."""
    transform = logit_transform(model)
    logits = model.get_output_embeddings()(hidden) * transform.scale
    if transform.softcap:
        logits = torch.tanh(logits / transform.softcap) * transform.softcap
    return torch.log_softmax(logits / temperature[:, None], -1)


def with_states(
    family: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[nn.Module, MicroBatch, Tensor]:
    """A model, a micro-batch, and random states [T, 32], which take the place of the model's last hidden states."""
    monkeypatch.setattr(chunked_head, "CHUNK_ROWS", chunk)
    model = make("qwen2" if family == "loud" else family)
    if family == "loud":
        model.set_output_embeddings(Loud(32, 61))
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    torch.manual_seed(0)
    hidden = torch.randn(len(micro_batch.token_ids), 32, requires_grad=True)
    monkeypatch.setattr(logprobs, "packed_outputs", lambda *_, **__: (hidden, ()))
    return model, micro_batch, hidden


def check_gradients(model: nn.Module, hidden: Tensor, losses: Sequence[Tensor]) -> None:
    """Two losses have the same gradients of states and head."""
    inputs = (hidden, *model.get_output_embeddings().parameters())
    ours, theirs = (torch.autograd.grad(loss, inputs) for loss in losses)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize("family", ["qwen2", "gemma2", "cohere", "phi", "loud"])
@pytest.mark.parametrize("weights", [(1, 0), (0, 1), (0.7, -0.4), (0, 0, 1), (0.7, -0.4, 0.3)], ids=str)
def test_values_and_gradients(
    family: str, chunk: int, weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probs and entropies, and with a third weight the divergence from a reference."""
    model, micro_batch, hidden = with_states(family, chunk, monkeypatch)
    reference = None
    if len(weights) == 3:
        head = make("phi").get_output_embeddings()
        reference = FrozenStates(torch.randn(len(hidden), 32), head, logit_transform(model))
    outputs = token_outputs(model, micro_batch, entropy=True, reference=reference)
    targets = micro_batch.loss_mask.nonzero()[:, 0]
    temperature = micro_batch.temperature[targets]
    every = plain_logprobs(model, hidden[targets - 1], temperature)
    expected = [
        every.gather(-1, micro_batch.token_ids[targets, None])[:, 0],
        -(every.exp() * every).sum(-1),
    ]
    found = [outputs.logprobs, outputs.entropy]
    if reference is not None:
        with torch.no_grad():
            other = reference.logprobs(Positions.of(targets.numpy() - 1, "cpu"), temperature)
        expected.append(kl_div(other, every, reduction="none", log_target=True).sum(-1))
        assert expected[2].min() > 0.01
        found.append(outputs.divergence)
    else:
        assert outputs.divergence is None
    assert not any(each[~micro_batch.loss_mask].any() for each in found)
    found = [each[targets] for each in found]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    scale = torch.randn(len(targets))
    losses = [
        torch.stack(
            [weight * (scale * part).sum() for weight, part in zip(weights, parts, strict=True)]
        ).sum()
        for parts in (found, expected)
    ]
    check_gradients(model, hidden, losses)


def divergences_from(reference: nn.Module, model: nn.Module, batches: list[MicroBatch]) -> Tensor:
    found = []
    for batch in batches:
        states = frozen_states(reference, batch)
        divergence = token_outputs(model, batch, entropy=False, reference=states).divergence
        assert divergence is not None
        found.append(divergence[batch.loss_mask])
    return torch.cat(found)


def test_divergence_from_itself_is_zero() -> None:
    model = make("qwen2")
    enable_packed_attention(model)
    batches = packed(some_experiences(), share_prompts=True)
    assert divergences_from(model, model, batches).abs().max() < 1e-6


def test_the_reference_has_no_gradient() -> None:
    model, reference = make("qwen2"), make("qwen2")
    for parameter in reference.parameters():
        parameter.data *= 1.1
    enable_packed_attention(model)
    enable_packed_attention(reference)
    batches = packed(some_experiences(), share_prompts=True, tokens=40)
    assert len(batches) > 1
    divergences_from(reference, model, batches).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(p.grad is None for p in reference.parameters())


@pytest.mark.parametrize("bias", [True, False])
def test_log_probs_of_a_frozen_head_include_its_bias(bias: bool) -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(6, 32), nn.Linear(32, 61, bias=bias)
    rows = Positions.of(np.array([4, 1]), "cpu")
    found = FrozenStates(hidden, head).logprobs(rows, torch.tensor([0.5, 2.0]))
    expected = (head(hidden[[4, 1]]) / torch.tensor([[0.5], [2.0]])).log_softmax(-1)
    torch.testing.assert_close(found, expected)


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
    probabilities = plain_logprobs(model, hidden, micro_batch.temperature[targets]).exp()
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

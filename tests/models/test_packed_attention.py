"""Forward pass over packed sequences, compared with Hugging Face on one sequence at a time."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from strop.data.packing import unpack
from strop.errors import ModelError
from strop.models.logprobs import token_outputs
from strop.models.packed_attention.forward import can_share_prompts, enable_packed_attention, packed_forward
from tests.models.models import (
    FAMILIES,
    VOCAB,
    distance,
    experience,
    make,
    packed,
    packed_gradient,
    plain_gradient,
    some_experiences,
)


def check_equal(model: PreTrainedModel, plain: PreTrainedModel, *, share_prompts: bool) -> None:
    """The packed model has the log-probs and the gradient of the plain one on each sequence."""
    experiences = some_experiences()
    expected, expected_gradient = plain_gradient(plain, experiences)
    micro_batches = packed(experiences, share_prompts=share_prompts)
    values, gradient = packed_gradient(model, micro_batches)
    for ours, theirs in zip(unpack(micro_batches, values, experiences), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5, rtol=0)
    assert distance(gradient, expected_gradient) < 1e-5


@pytest.mark.parametrize("share_prompts", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_one_sequence_at_a_time(family: str, share_prompts: bool) -> None:
    plain = make(family)
    model = copy.deepcopy(plain)
    enable_packed_attention(model)
    assert can_share_prompts(model) == (True, "")
    check_equal(model, plain, share_prompts=share_prompts)


def test_a_shared_prompt_is_packed_once() -> None:
    experiences = [experience(range(3, 43), [n, n]) for n in range(5, 13)]
    (shared,), (repeated,) = (packed(experiences, share_prompts=share) for share in (True, False))
    assert len(shared.token_ids) == 39 + 8 * 3
    assert len(repeated.token_ids) == 8 * 42


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_leaks_from_one_sequence_into_another(family: str) -> None:
    model = make(family)
    enable_packed_attention(model)
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    before = token_outputs(model, micro_batch, entropy=False).logprobs
    segment_of = micro_batch.segment_of_token()
    for segment, experience_number in enumerate(micro_batch.experience):
        if experience_number < 0:
            continue
        inside = segment_of == segment
        changed = torch.where(inside, (micro_batch.token_ids + 1) % VOCAB, micro_batch.token_ids)
        after = token_outputs(model, replace(micro_batch, token_ids=changed), entropy=False).logprobs
        assert torch.equal(after[~inside], before[~inside])
        assert not torch.equal(after[inside], before[inside])


def test_transformers_itself_would_leak() -> None:
    """With a default mask or cache, transformers silently treats packed sequences as one."""
    model = make("qwen2", attn_implementation="sdpa")
    (micro_batch,) = packed(some_experiences(), share_prompts=False)
    inputs = {"input_ids": micro_batch.token_ids[None], "position_ids": micro_batch.position_ids[None]}
    apart = model(**inputs, use_cache=False).logits
    assert (model(**inputs).logits - apart).abs().max() > 0.1
    enable_packed_attention(model)
    hidden = packed_forward(model, micro_batch)
    torch.testing.assert_close(model.lm_head(hidden), apart[0], atol=1e-5, rtol=1e-5)


def test_a_packed_model_rejects_other_inputs() -> None:
    model = make("qwen2")
    enable_packed_attention(model)
    with pytest.raises(ModelError, match="supports only packed micro-batches"):
        model(input_ids=torch.tensor([[3, 4, 5]]))


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("bloom", {"n_head": 4, "n_layer": 2}, "attention interface"),
        ("qwen2", {"attention_dropout": 0.1}, "dropout"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}, ""),
    ],
)
def test_other_models_are_padded(family: str, options: dict[str, object], reason: str) -> None:
    model = make(family, **options)
    enable_packed_attention(model)
    can, why = can_share_prompts(model)
    assert not can
    assert reason in why
    check_equal(model, model, share_prompts=False)
    with pytest.raises(ModelError, match="share_prompts=False"):
        packed_forward(model, packed(some_experiences(), share_prompts=True)[0])


@pytest.mark.parametrize("tokens", [20, 35, 60])
def test_the_gradient_does_not_depend_on_the_micro_batches(tokens: int) -> None:
    model = make("qwen3")
    enable_packed_attention(model)
    experiences = some_experiences()
    _, whole = packed_gradient(model, packed(experiences, share_prompts=True))
    micro_batches = packed(experiences, share_prompts=True, tokens=tokens)
    assert len(micro_batches) > 1
    _, in_parts = packed_gradient(model, micro_batches)
    assert distance(in_parts, whole) < 1e-5
    _, backwards = packed_gradient(model, micro_batches[::-1])
    assert distance(backwards, whole) < 1e-5


def test_gradient_checkpointing_changes_nothing() -> None:
    model = make("llama")
    enable_packed_attention(model)
    micro_batches = packed(some_experiences(), share_prompts=True)
    model.train()
    values, gradient = packed_gradient(model, micro_batches)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again, recomputed = packed_gradient(model, micro_batches)
    assert torch.equal(values[0], again[0])
    assert all(torch.equal(gradient[name], recomputed[name]) for name in gradient)


def test_bfloat16_stays_near_float32() -> None:
    model = make("qwen2")
    enable_packed_attention(model)
    micro_batches = packed(some_experiences(), share_prompts=True)
    (exact,), _ = packed_gradient(model, micro_batches)
    (rounded,), _ = packed_gradient(model.to(torch.bfloat16), micro_batches)
    assert rounded.dtype == torch.float32
    assert (exact - rounded).abs().max() < 0.2

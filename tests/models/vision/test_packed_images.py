"""Packed micro-batches with images against Hugging Face's forward pass on each sequence alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.units import Amount
from strop.data.packing import build_micro_batch, pack, plan_micro_batches, unpack
from strop.errors import DataError, ModelError
from strop.models.loading import load_model
from strop.models.lora import add_lora
from strop.models.packed_attention.forward import base_model, can_share_prompts
from strop.models.tiny import make_model
from strop.models.vision.embedding import vision_modules
from strop.protocols import ImageProcessor
from strop.types import Experience, MicroBatch, TrainingBatch
from tests.cases import nightly
from tests.models.models import coefficients, gradients, packed_gradient
from tests.models.vision.images import (
    FAMILIES,
    experiences_with_images,
    loaded,
    processor_of,
    transformers_inputs,
)

Gradients = dict[str, Tensor]


def some_in_ci(*chosen: str) -> list[Any]:
    return [*chosen, *nightly(*(family for family in FAMILIES if family not in chosen))]


def packed(
    experiences: Sequence[Experience], processor: ImageProcessor, *, share_prompts: bool = True
) -> list[MicroBatch]:
    return pack(
        TrainingBatch(experiences, advantages=coefficients(experiences)),
        Amount(80, "tokens"),
        share_prompts=share_prompts,
        device="cpu",
        image_processor=processor,
    )


def plain_gradient(
    model: nn.Module, experiences: Sequence[Experience], processor: ImageProcessor
) -> tuple[list[Tensor], Gradients]:
    """Log-probs [L] of each experience and the gradient of `packed_gradient`, by transformers alone."""
    model.zero_grad()
    base = base_model(model)
    attention = base.config.get_text_config()._attn_implementation
    base.set_attn_implementation({"text_config": "eager"})
    logprobs = []
    for one, weights in zip(experiences, coefficients(experiences), strict=True):
        tokens = torch.from_numpy(one.token_ids).long()
        inputs = transformers_inputs(base.config.model_type, processor, tokens[None], one.media)
        logits = base(input_ids=tokens[None], use_cache=False, **inputs).logits[0, :-1]
        every = torch.log_softmax(logits.float(), -1)
        taken = every.gather(-1, tokens[1:, None])[:, 0]
        entropy = -(every.exp() * every).sum(-1)
        mask = torch.from_numpy(one.loss_mask)[1:]
        (torch.from_numpy(weights)[1:] * (taken + 0.5 * entropy))[mask].sum().backward()
        logprobs.append(nn.functional.pad(taken.detach() * mask, (1, 0)))
    base.set_attn_implementation({"text_config": attention})
    return logprobs, gradients(model)


def check_equal(
    model: nn.Module, experiences: Sequence[Experience], processor: ImageProcessor, *, share_prompts: bool
) -> Gradients:
    expected, expected_gradient = plain_gradient(model, experiences, processor)
    micro_batches = packed(experiences, processor, share_prompts=share_prompts)
    assert len(micro_batches) > 1
    found, gradient = packed_gradient(model, micro_batches)
    for ours, theirs in zip(unpack(micro_batches, found, experiences), expected, strict=True):
        assert np.abs(ours - theirs.numpy()).max() < 2e-5
    assert gradient.keys() == expected_gradient.keys()
    for name, value in expected_gradient.items():
        assert (gradient[name] - value).norm() <= 2e-4 * value.norm() + 1e-5, name
    return gradient


@pytest.mark.parametrize("family", some_in_ci("qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3"))
def test_packed_images_have_the_log_probs_and_gradients_of_transformers(family: str, tmp_path: Path) -> None:
    model, processor = loaded(family), processor_of(family)
    assert can_share_prompts(model) == (True, "")
    experiences = experiences_with_images(family, tmp_path)
    gradient = check_equal(model, experiences, processor, share_prompts=True)
    tower = {id(p) for module in vision_modules(model) for p in module.parameters()}
    names = {name for name, p in model.named_parameters() if id(p) in tower}
    assert any(gradient[name].norm() > 1e-4 for name in names & gradient.keys())


def test_an_image_is_encoded_once_for_its_group(tmp_path: Path) -> None:
    processor = processor_of("qwen2_5_vl")
    experiences = experiences_with_images("qwen2_5_vl", tmp_path)
    batch = TrainingBatch(experiences[:5])
    (plan,) = plan_micro_batches(batch.experiences, Amount(10_000, "tokens"), share_prompts=True)
    micro_batch = build_micro_batch(plan, batch, "cpu", processor)
    assert micro_batch.images is not None
    assert len(micro_batch.images.media) == 3  # two of one group, one of the other
    assert micro_batch.images.is_image.sum() == sum(
        processor.feature_count(i.width, i.height) for i in micro_batch.images.media
    )


@pytest.mark.parametrize("family", ["qwen3_vl", *nightly("smolvlm", "gemma3")])
def test_a_model_that_must_be_padded_gives_the_same(family: str, tmp_path: Path) -> None:
    model, processor = (
        loaded(family, override={"text_config": {"attention_dropout": 0.1}}),
        processor_of(family),
    )
    supported, reason = can_share_prompts(model)
    assert not supported and "dropout" in reason
    check_equal(model, experiences_with_images(family, tmp_path), processor, share_prompts=False)


@pytest.mark.parametrize("exclude", [None, ()])
@pytest.mark.parametrize("family", some_in_ci("qwen2_5_vl", "gemma3"))
def test_lora_leaves_the_vision_tower_out_unless_asked(
    family: str, exclude: tuple[str, ...] | None, tmp_path: Path
) -> None:
    lora = LoraConfig(rank=4, alpha=8, exclude=exclude)
    model = add_lora(loaded(family, lora=lora), lora, torch.float32)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)
    gradient = check_equal(
        model, experiences_with_images(family, tmp_path), processor_of(family), share_prompts=True
    )
    assert gradient and all(".lora_" in name for name in gradient)
    in_tower = [name for name in gradient if any(part in name for part in ("visual", "vision_"))]
    assert bool(in_tower) == (exclude is not None)


def test_a_frozen_tower_has_no_gradient(tmp_path: Path) -> None:
    model = loaded("qwen3_vl", freeze_vision=True)
    micro_batches = packed(experiences_with_images("qwen3_vl", tmp_path), processor_of("qwen3_vl"))
    _, gradient = packed_gradient(model, micro_batches)
    assert gradient and not any("visual" in name for name in gradient)


def test_gradient_checkpointing_includes_the_tower(tmp_path: Path) -> None:
    processor = processor_of("qwen2_5_vl")
    micro_batches = packed(experiences_with_images("qwen2_5_vl", tmp_path), processor)
    _, expected = packed_gradient(loaded("qwen2_5_vl"), micro_batches)
    model = loaded("qwen2_5_vl", gradient_checkpointing=True).train()
    assert all(block.gradient_checkpointing for block in model.model.visual.blocks)
    _, gradient = packed_gradient(model, micro_batches)
    for name, value in expected.items():
        assert torch.allclose(gradient[name], value, atol=1e-5, rtol=1e-4), name


def test_a_pad_token_that_was_sampled_is_no_image(tmp_path: Path) -> None:
    processor = processor_of("qwen2_5_vl")
    one = experiences_with_images("qwen2_5_vl", tmp_path)[0]
    tokens = one.token_ids.copy()
    tokens[-2] = processor.image_token_id
    (micro_batch,) = packed([replace(one, token_ids=tokens)], processor)
    assert micro_batch.images is not None and not micro_batch.images.is_image[-2]
    # Like the text around it, it has one position for all three dimensions.
    assert micro_batch.position_ids[:, -3:].diff().tolist() == [[1, 1]] * 3


def test_bad_batches_are_named(tmp_path: Path) -> None:
    processor = processor_of("qwen2_5_vl")
    one = experiences_with_images("qwen2_5_vl", tmp_path)[0]
    with pytest.raises(DataError, match=r"Experience e has \d+ image tokens, but its 1 images have"):
        packed([replace(one, media=one.media[:1])], processor)
    with pytest.raises(ModelError, match="freeze_vision"):
        text = ModelConfig(path=str(make_model(tmp_path / "text", ["some text"] * 5)), freeze_vision=True)
        load_model(text, device="cpu")

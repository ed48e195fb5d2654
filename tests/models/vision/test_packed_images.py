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
from transformers import PreTrainedModel

from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.units import Amount
from strop.data.packing import build_micro_batch, pack, plan_micro_batches, unpack
from strop.errors import DataError, ModelError
from strop.models.loading import load_model
from strop.models.lora import add_lora
from strop.models.packed_attention.forward import base_model, can_share_prompts
from strop.models.tiny import make_model
from strop.models.vision.embedding import vision_modules
from strop.models.vision.image_processor import load_image_processor
from strop.protocols import ImageProcessor
from strop.types import Experience, MicroBatch, TrainingBatch
from tests.models.models import coefficients, experience, packed_gradient
from tests.models.vision.images import (
    FAMILIES,
    image,
    prompt,
    tokenizer_of,
    transformers_inputs,
    vision_model,
)

Gradients = dict[str, Tensor]


def processor_of(family: str) -> ImageProcessor:
    return load_image_processor(str(vision_model(family)), tokenizer_of(family))


def section(family: str, **fields: Any) -> ModelConfig:
    return ModelConfig(path=str(vision_model(family)), **fields)


def loaded(family: str, **fields: Any) -> PreTrainedModel:
    """A model whose weights are large enough for images and attention to matter."""
    model = load_model(section(family, **fields), device="cpu")
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model


def experiences_with_images(family: str, folder: Path) -> list[Experience]:
    """A group with two images, one with one, a text-only one, and a rollout with an image in its second turn."""
    tokenizer, processor = tokenizer_of(family), processor_of(family)
    random = np.random.default_rng(0)

    def answer(count: int) -> list[int]:
        return random.integers(5, 60, count).tolist()

    two = [image(folder, 40, 30), image(folder, 100, 50)]
    one = [image(folder, 60, 60)]
    found = []
    for group, media, lengths in (("two", two, (5, 3, 8)), ("one", one, (4, 4)), ("none", [], (3, 2))):
        ids = prompt(tokenizer, processor, media) if media else np.arange(20, 30)
        found += [experience(ids, answer(n), group=group, media=tuple(media)) for n in lengths]
    first, second = prompt(tokenizer, processor, one), prompt(tokenizer, processor, two[:1])
    tokens = np.concatenate([first, answer(4), second, answer(3)])
    mask = np.zeros(len(tokens), dtype=bool)
    mask[len(first) : len(first) + 4] = mask[-3:] = True
    tools = experience(tokens[:-3], tokens[-3:], group="tools", loss_mask=mask, media=(one[0], two[0]))
    return [*found, tools]


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


def gradients(model: nn.Module) -> Gradients:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


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


@pytest.mark.parametrize("family", FAMILIES)
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


@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm", "gemma3"])
def test_a_model_that_must_be_padded_gives_the_same(family: str, tmp_path: Path) -> None:
    model, processor = (
        loaded(family, override={"text_config": {"attention_dropout": 0.1}}),
        processor_of(family),
    )
    supported, reason = can_share_prompts(model)
    assert not supported and "dropout" in reason
    check_equal(model, experiences_with_images(family, tmp_path), processor, share_prompts=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("exclude", [None, ()])
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

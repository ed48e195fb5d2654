"""Images on the fake GPU: the trainer's forward and backward pass, and the native sampler's prefill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel
from transformers.initialization import no_init_weights

from strop.config.units import Amount
from strop.data.packing import pack
from strop.inference.native.model.decoder import NativeModelRunner
from strop.inference.native.model.runner import Prompt
from strop.models.fused_layers import fuse_layers
from strop.models.logprobs import token_outputs
from strop.models.packed_attention.forward import enable_packed_attention
from strop.models.shared_weights import named_weights
from strop.models.vision.embedding import vision_tower
from strop.protocols import ImageProcessor
from strop.types import Experience, MicroBatch, TrainingBatch
from tests.fake_cuda.conftest import on_the_host
from tests.fake_cuda.fake_models import check_gradients, fake_adapted
from tests.models.vision.images import (
    FAMILIES,
    GRID_FAMILIES,
    experiences_with_images,
    image,
    processor_of,
    prompt,
    tokenizer_of,
    vision_model,
)


class HostProcessor:
    """An image processor, which computes with real tensors; its pixels become fake ones of the host."""

    def __init__(self, processor: ImageProcessor) -> None:
        self._processor = processor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def process(self, media: Any) -> Any:
        inputs = on_the_host(self._processor.process)(media)
        fake = torch.empty(inputs.pixel_values.shape, device="cpu")
        return type(inputs)(fake, grid=inputs.grid, pixel_mask=inputs.pixel_mask)


def real_inputs(family: str, folder: Path) -> tuple[list[Experience], ImageProcessor, Any]:
    """Experiences with images, the processor, and a prompt with its images; made on the host."""
    processor = processor_of(family)
    media = [image(folder, 40, 30), image(folder, 100, 50)]
    token_ids = prompt(tokenizer_of(family), processor, media)
    return experiences_with_images(family, folder), processor, Prompt(token_ids, tuple(media))


def fake_vision_model(family: str) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(vision_model(family))
    with no_init_weights():
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    enable_packed_attention(model)
    fuse_layers(model)
    return model


def with_images(experiences: list[Experience], processor: ImageProcessor) -> MicroBatch:
    batch = TrainingBatch(experiences, advantages=[1.0] * len(experiences))
    processor = HostProcessor(processor)  # type: ignore[assignment]
    (packed,) = pack(
        batch, Amount(10_000, "tokens"), share_prompts=True, device="cuda", image_processor=processor
    )
    return packed


@pytest.mark.parametrize("family", FAMILIES)
def test_token_outputs(gpu: torch.device, family: str, tmp_path: Path) -> None:
    experiences, processor, _ = on_the_host(real_inputs)(family, tmp_path)
    model = fake_vision_model(family)
    found = token_outputs(model, with_images(experiences, processor), entropy=True)
    found.logprobs.sum().backward()
    assert all(parameter.grad is not None for parameter in vision_tower(model).parameters())


def test_token_outputs_with_an_adapter(gpu: torch.device, tmp_path: Path) -> None:
    experiences, processor, _ = on_the_host(real_inputs)("qwen2_5_vl", tmp_path)
    model = fake_adapted(fake_vision_model("qwen2_5_vl"), "all-linear")
    token_outputs(model, with_images(experiences, processor), entropy=True).logprobs.sum().backward()
    check_gradients(model)


@pytest.mark.parametrize("family", GRID_FAMILIES)
def test_prefill(gpu: torch.device, family: str, tmp_path: Path) -> None:
    _, processor, prompt_with_images = on_the_host(real_inputs)(family, tmp_path)
    model = fake_vision_model(family)
    runner = NativeModelRunner(
        model.config,
        named_weights(model),
        device=gpu,
        dtype=torch.bfloat16,
        image_processor=lambda: HostProcessor(processor),  # type: ignore[arg-type,return-value]
    )
    assert runner.prefill([prompt_with_images]).logits.device.type == "cuda"

"""Sampling from prompts with images: greedy completions of `generate`, log-probs of the trainer, and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel

from strop.config.schema.inference_engine import NativeEngineConfig
from strop.config.schema.model import ModelConfig
from strop.config.units import Amount
from strop.data.packing import pack, unpack
from strop.errors import InferenceError
from strop.inference.native.engine import NativeEngine
from strop.models.loading import load_model, load_tokenizer
from strop.models.logprobs import token_outputs
from strop.models.shared_weights import model_weights
from strop.models.tiny import make_model
from strop.protocols import ImageProcessor
from strop.types import Completion, ImageReference, IntArray, SampleRequest, SamplingParams, TrainingBatch
from tests.models.models import experience
from tests.models.vision.images import FAMILIES, image, prompt, tokenizer_of, transformers_inputs
from tests.models.vision.test_packed_images import loaded, processor_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def engine_of(family: str, model: PreTrainedModel) -> NativeEngine:
    weights = model_weights(model, image_processor=lambda: processor_of(family))
    return NativeEngine.from_weights(weights, NativeEngineConfig(), tokenizer_of(family))


def sample(engine: NativeEngine, requests: list[SampleRequest]) -> list[Completion]:
    return asyncio.run(engine.sample(requests))


def prompts(family: str, folder: Path) -> list[tuple[IntArray, tuple[ImageReference, ...]]]:
    """One and two images, the same tokens with another image, and text only."""
    tokenizer, processor = tokenizer_of(family), processor_of(family)
    lists = [
        [image(folder, 40, 30)],
        [image(folder, 100, 50), image(folder, 20, 60)],
        [image(folder, 40, 30, seed=1)],
    ]
    found = [(prompt(tokenizer, processor, media), tuple(media)) for media in lists]
    return [*found, (np.arange(20, 30, dtype=np.int32), ())]


def generated(
    model: PreTrainedModel, processor: ImageProcessor, ids: IntArray, media: tuple[ImageReference, ...]
) -> list[int]:
    """Greedy completion by transformers."""
    tokens = torch.from_numpy(ids)[None].long()
    inputs = transformers_inputs(model.config.model_type, processor, tokens, media)
    output = model.generate(  # type: ignore[operator]
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=8,
        min_new_tokens=8,
        do_sample=False,
        **inputs,
    )
    return output[0, len(ids) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_sampling_is_that_of_generate(family: str, tmp_path: Path) -> None:
    model, processor = loaded(family), processor_of(family)
    found = prompts(family, tmp_path)
    requests = [SampleRequest(str(i), ids, GREEDY, 0, media) for i, (ids, media) in enumerate(found)]
    engine = engine_of(family, model)
    assert engine.capabilities.images
    completions = sample(engine, [requests[0], *requests])
    plain = AutoModelForImageTextToText.from_config(model.config, attn_implementation="eager").eval()
    plain.load_state_dict(model.state_dict())
    plain.generation_config.eos_token_id = None
    for (ids, media), completion in zip(found, completions[1:], strict=True):
        # There is no end token here, which min_new_tokens would ban.
        assert completion.token_ids.tolist() == generated(plain, processor, ids, media)
    assert completions[0].token_ids.tolist() == completions[1].token_ids.tolist()
    assert completions[1].policy_logprobs.tolist() != completions[3].policy_logprobs.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_the_trainer(family: str, tmp_path: Path) -> None:
    model, processor = loaded(family), processor_of(family)
    sampling = SamplingParams(temperature=0.7, max_tokens=12, ignore_eos=True)
    found = prompts(family, tmp_path)
    requests = [SampleRequest(str(i), *found[i // 2][:1], sampling, i, found[i // 2][1]) for i in range(8)]
    completions = sample(engine_of(family, model), requests)
    experiences = [
        experience(r.prompt_ids, c.token_ids, group=str(i // 2), media=r.media, temperature=0.7)
        for i, (r, c) in enumerate(zip(requests, completions, strict=True))
    ]
    micro_batches = pack(
        TrainingBatch(experiences),
        Amount(400, "tokens"),
        share_prompts=True,
        device="cpu",
        image_processor=processor,
    )
    with torch.no_grad():
        values = [token_outputs(model, each, entropy=False).logprobs for each in micro_batches]
    for completion, logprobs in zip(completions, unpack(micro_batches, values, experiences), strict=True):
        assert completion.policy_logprobs is not None
        assert np.abs(logprobs[-12:] - completion.policy_logprobs).max() < 2e-5


def test_images_that_do_not_fit_the_prompt_are_refused(tmp_path: Path) -> None:
    engine = engine_of("qwen2_5_vl", loaded("qwen2_5_vl"))
    ids, media = prompts("qwen2_5_vl", tmp_path)[1]
    with pytest.raises(InferenceError, match="image tokens, but its 1 images have"):
        sample(engine, [SampleRequest("a", ids, GREEDY, 0, media[:1])])


def test_a_text_model_refuses_images(tmp_path: Path) -> None:
    section = ModelConfig(path=str(make_model(tmp_path / "text", ["some text"] * 5)))
    model = load_model(section, device="cpu")
    engine = NativeEngine.from_model(model, NativeEngineConfig(), load_tokenizer(section))
    assert not engine.capabilities.images
    request = SampleRequest("a", np.arange(5, dtype=np.int32), GREEDY, 0, (image(tmp_path, 20, 20),))
    with pytest.raises(InferenceError, match="does not take for this model"):
        sample(engine, [request])

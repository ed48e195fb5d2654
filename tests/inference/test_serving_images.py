"""Images in vLLM and SGLang: log-probs and greedy tokens of the trainer's model, before and after a load."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from strop.config.schema.data import ImagesConfig
from strop.config.schema.inference_engine import (
    NativeEngineConfig,
    SglangEngineConfig,
    VllmEngineConfig,
)
from strop.config.schema.model import ModelConfig
from strop.config.units import Amount
from strop.data.packing import pack, unpack
from strop.errors import InferenceError
from strop.inference.native import NativeEngine
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import load_engine, running_engine
from strop.models.loading import load_model
from strop.models.logprobs import token_outputs
from strop.models.shared_weights import model_weights
from strop.models.vision.image_processor import load_image_processor
from strop.models.vision.tiny import make_vision_model
from strop.protocols import ImageProcessor, InferenceEngine
from strop.types import Completion, FloatArray, SampleRequest, SamplingParams, TrainingBatch
from strop.workers.start import LocalPlacement
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM, sample
from tests.models.models import experience
from tests.models.vision.images import image, prompt

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@cache
def folder_of(family: str) -> Path:
    """A tiny model whose attention heads are wide enough for vLLM, and whose patches have the size of SGLang's."""
    corpus = ["What is shown here? The number is 34."] * 20
    return make_vision_model(
        Path(mkdtemp()) / family,
        corpus,
        family=family,
        hidden_size=128,
        patch_size=14,
        min_pixels=56 * 56,
        max_pixels=112 * 112,
    )


@dataclass(frozen=True)
class Factory:
    """Builds a serving engine on a model folder, in another process."""

    folder: Path
    section: VllmEngineConfig | SglangEngineConfig

    def __call__(self) -> InferenceEngine:
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        model = ModelConfig(path=str(self.folder))
        limits = ImagesConfig(max_images=3)
        return load_engine(self.section, model, tokenizer, torch.device("cpu"), limits)


@dataclass(frozen=True)
class Subject:
    """A started engine, and the model of its weights in this process."""

    engine: InferenceEngine
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    processor: ImageProcessor
    requests: list[SampleRequest]
    """Two for each prompt: one image, two images, the first tokens with another image, and text only."""


SECTIONS: dict[str, VllmEngineConfig | SglangEngineConfig] = {
    "vllm": VllmEngineConfig(
        max_model_len=512,
        enforce_eager=True,
        engine_kwargs={"kv_cache_memory_bytes": 2**26, "block_size": 32},
    ),
    "sglang": SglangEngineConfig(context_length=512, max_total_tokens=4096),
}
ENGINES = [
    pytest.param(("vllm", family), marks=NEEDS_VLLM, id=f"vllm-{family}")
    for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
] + [pytest.param(("sglang", "qwen2_5_vl"), marks=NEEDS_SGLANG, id="sglang-qwen2_5_vl")]


@pytest.fixture(scope="module", params=ENGINES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name, family = request.param
    folder, files = folder_of(family), tmp_path_factory.mktemp("images")
    section = ModelConfig(path=str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = load_image_processor(str(folder), tokenizer)
    media = [
        [image(files, 40, 30)],
        [image(files, 100, 50), image(files, 20, 60)],
        [image(files, 40, 30, seed=1)],
    ]
    prompts = [(prompt(tokenizer, processor, each), tuple(each)) for each in media]
    prompts.append((np.arange(20, 30, dtype=np.int32), ()))
    sampling = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True)
    requests = [
        SampleRequest(str(n), *prompts[n // 2][:1], sampling, n, prompts[n // 2][1]) for n in range(8)
    ]
    spec = EngineSpec("engine-0", Factory(folder, SECTIONS[name]))
    with running_engine(EnginePool([spec], LocalPlacement(), max_restarts=0)) as engine:
        yield Subject(engine, load_model(section, device="cpu"), tokenizer, processor, requests)


def gap(subject: Subject, model: PreTrainedModel, completions: list[Completion]) -> float:
    """Largest difference of the completions' log-probs from the model's, in the trainer's packed forward pass."""
    experiences = [
        experience(
            r.prompt_ids.tolist(), c.token_ids.tolist(), group=str(n // 2), media=r.media, temperature=0.8
        )
        for n, (r, c) in enumerate(zip(subject.requests, completions, strict=True))
    ]
    batches = pack(
        TrainingBatch(experiences),
        Amount(400, "tokens"),
        share_prompts=True,
        device="cpu",
        image_processor=subject.processor,
    )
    with torch.no_grad():
        values = [token_outputs(model, each, entropy=False).logprobs for each in batches]
    differences: list[FloatArray] = []
    for completion, logprobs in zip(completions, unpack(batches, values, experiences), strict=True):
        assert completion.policy_logprobs is not None
        differences.append(np.abs(logprobs[-12:] - completion.policy_logprobs))
    return float(np.concatenate(differences).max())


def test_log_probs_are_those_of_the_trainer(subject: Subject) -> None:
    assert subject.engine.capabilities.images
    assert gap(subject, subject.model, sample(subject.engine, subject.requests)) < 2e-5


def test_greedy_tokens_are_those_of_the_native_engine(subject: Subject) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    requests = [SampleRequest(r.id, r.prompt_ids, greedy, 0, r.media) for r in subject.requests]
    weights = model_weights(subject.model, image_processor=lambda: subject.processor)
    native = NativeEngine.from_weights(weights, NativeEngineConfig(), subject.tokenizer)
    for mine, expected in zip(sample(subject.engine, requests), sample(native, requests), strict=True):
        assert mine.token_ids.tolist() == expected.token_ids.tolist()


def test_features_of_images_are_computed_again_after_a_load(subject: Subject) -> None:
    sample(subject.engine, subject.requests)
    other = copy.deepcopy(subject.model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    subject.engine.load(other.named_parameters(), 1)
    completions = sample(subject.engine, subject.requests)
    assert gap(subject, other, completions) < 2e-5
    assert gap(subject, subject.model, completions) > 1e-3
    subject.engine.load(subject.model.named_parameters(), 2)


def test_images_that_do_not_fit_the_prompt_are_refused(subject: Subject) -> None:
    two = subject.requests[2]
    request = SampleRequest("a", two.prompt_ids, two.sampling, 0, two.media[:1])
    with pytest.raises(InferenceError, match="image tokens, but its 1 images have"):
        sample(subject.engine, [request])

"""Sampling from prompts with images, by the native engine, vLLM and SGLang: the trainer's log-probs, and refusals."""

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
from transformers import AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig
from strop.config.units import Amount
from strop.data.packing import pack, unpack
from strop.errors import InferenceError
from strop.inference.native import NativeEngine
from strop.inference.registry import load_engine, running_engine
from strop.models.loading import load_model, load_tokenizer
from strop.models.logprobs import token_outputs
from strop.models.shared_weights import model_weights
from strop.models.tiny import make_model
from strop.models.vision.image_processor import load_image_processor
from strop.models.vision.tiny import make_vision_model
from strop.protocols import ImageProcessor, InferenceEngine
from strop.types import ImageReference, IntArray, SampleRequest, SamplingParams, TrainingBatch
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM, pool_of, sample
from tests.models.models import experience
from tests.models.vision.images import (
    FAMILIES,
    image,
    loaded,
    processor_of,
    prompt,
    tokenizer_of,
    transformers_inputs,
)

Prompts = list[tuple[IntArray, tuple[ImageReference, ...]]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@dataclass(frozen=True)
class Subject:
    """A started engine, and the model of its weights in this process."""

    engine: InferenceEngine
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    processor: ImageProcessor
    prompts: Prompts
    """One image, two images, the first tokens with another image, and text only."""

    def native(self) -> NativeEngine:
        weights = model_weights(self.model, image_processor=lambda: self.processor)
        return NativeEngine.from_weights(weights, NativeEngineConfig(), self.tokenizer)

    def requests(self, sampling: SamplingParams, samples: int = 1) -> list[SampleRequest]:
        return [
            SampleRequest(f"{number}.{seed}", ids, sampling, seed, media)
            for number, (ids, media) in enumerate(self.prompts)
            for seed in range(samples)
        ]


def prompts_with_images(
    tokenizer: PreTrainedTokenizerBase, processor: ImageProcessor, folder: Path
) -> Prompts:
    lists = [
        [image(folder, 40, 30)],
        [image(folder, 100, 50), image(folder, 20, 60)],
        [image(folder, 40, 30, seed=1)],
    ]
    found: Prompts = [(prompt(tokenizer, processor, media), tuple(media)) for media in lists]
    return [*found, (np.arange(20, 30, dtype=np.int32), ())]


@cache
def serving_folder(family: str) -> Path:
    """A tiny model whose attention heads are wide enough for vLLM, and whose patches have the size of SGLang's."""
    return make_vision_model(
        Path(mkdtemp()) / family,
        ["What is shown here? The number is 34."] * 20,
        family=family,
        hidden_size=128,
        patch_size=14,
        min_pixels=56 * 56,
        max_pixels=112 * 112,
    )


@dataclass(frozen=True)
class ServingFactory:
    """Builds a serving engine on a model folder, in another process."""

    folder: Path
    section: VllmEngineConfig | SglangEngineConfig

    def __call__(self) -> InferenceEngine:
        tokenizer, model = AutoTokenizer.from_pretrained(self.folder), ModelConfig(path=str(self.folder))
        return load_engine(self.section, model, tokenizer, torch.device("cpu"), ImagesConfig(max_images=3))


CACHE = {"kv_cache_memory_bytes": 2**26, "block_size": 32}
VLLM = VllmEngineConfig(max_model_len=512, enforce_eager=True, engine_kwargs=CACHE)
SGLANG = SglangEngineConfig(context_length=512, max_total_tokens=4096)
SERVING = [pytest.mark.engines, pytest.mark.timeout(600)]
IN_CI = ("qwen2_5_vl", "gemma3", "idefics3")
"""A grid of patches, whole images, and tiles."""
SUBJECTS = [
    *(
        pytest.param((None, family), marks=() if family in IN_CI else pytest.mark.nightly, id=family)
        for family in FAMILIES
    ),
    *(
        pytest.param((VLLM, family), marks=[*SERVING, NEEDS_VLLM], id=f"vllm-{family}")
        for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
    ),
    pytest.param((SGLANG, "qwen2_5_vl"), marks=[*SERVING, NEEDS_SGLANG], id="sglang-qwen2_5_vl"),
]


def native_subject(family: str, folder: Path) -> Subject:
    model, tokenizer, processor = loaded(family), tokenizer_of(family), processor_of(family)
    prompts = prompts_with_images(tokenizer, processor, folder)
    engine = Subject(None, model, tokenizer, processor, prompts).native()  # type: ignore[arg-type]
    return Subject(engine, model, tokenizer, processor, prompts)


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    section, family = request.param
    images = tmp_path_factory.mktemp("images")
    if section is None:
        yield native_subject(family, images)
        return
    folder = serving_folder(family)
    model, tokenizer = (
        load_model(ModelConfig(path=str(folder)), device="cpu"),
        AutoTokenizer.from_pretrained(folder),
    )
    processor = load_image_processor(str(folder), tokenizer)
    with running_engine(pool_of(ServingFactory(folder, section))) as engine:
        yield Subject(engine, model, tokenizer, processor, prompts_with_images(tokenizer, processor, images))


def gap(subject: Subject, model: PreTrainedModel) -> float:
    """Largest difference of completions' log-probs from the model's, in the trainer's packed forward pass."""
    sampling = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True)
    requests = subject.requests(sampling, samples=2)
    completions = sample(subject.engine, requests)
    experiences = [
        experience(r.prompt_ids, c.token_ids, group=r.id.split(".")[0], media=r.media, temperature=0.8)
        for r, c in zip(requests, completions, strict=True)
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
    differences = [
        np.abs(logprobs[-12:] - completion.policy_logprobs)
        for completion, logprobs in zip(completions, unpack(batches, values, experiences), strict=True)
    ]
    return float(np.concatenate(differences).max())


def test_log_probs_are_those_of_the_trainer_before_and_after_a_load(subject: Subject) -> None:
    """Features of images are computed again after a load."""
    assert subject.engine.capabilities.images
    assert gap(subject, subject.model) < 2e-5
    other = copy.deepcopy(subject.model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    before = {name: value.clone() for name, value in subject.model.named_parameters()}
    subject.engine.load(other.named_parameters(), 1)
    assert gap(subject, other) < 2e-5
    subject.engine.load(before.items(), 2)
    assert gap(subject, other) > 1e-3


@pytest.mark.engines
def test_greedy_tokens_of_serving_libraries_are_those_of_the_native_engine(subject: Subject) -> None:
    if isinstance(subject.engine, NativeEngine):
        pytest.skip("for serving libraries")
    requests = subject.requests(GREEDY)
    for mine, expected in zip(
        sample(subject.engine, requests), sample(subject.native(), requests), strict=True
    ):
        assert mine.token_ids.tolist() == expected.token_ids.tolist()


def test_images_that_do_not_fit_the_prompt_are_refused(subject: Subject) -> None:
    ids, media = subject.prompts[1]
    with pytest.raises(InferenceError, match="image tokens, but its 1 images have"):
        sample(subject.engine, [SampleRequest("a", ids, GREEDY, 0, media[:1])])


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(each, marks=pytest.mark.slow if each in IN_CI else pytest.mark.nightly)
        for each in FAMILIES
    ],
)
def test_greedy_tokens_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    subject = native_subject(family, tmp_path)
    requests = subject.requests(GREEDY)
    completions = sample(subject.engine, [requests[0], *requests])
    plain = AutoModelForImageTextToText.from_config(subject.model.config, attn_implementation="eager").eval()
    plain.load_state_dict(subject.model.state_dict())
    plain.generation_config.eos_token_id = None  # which min_new_tokens would ban
    lengths = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    for (ids, media), completion in zip(subject.prompts, completions[1:], strict=True):
        tokens = torch.from_numpy(ids)[None].long()
        inputs = transformers_inputs(family, subject.processor, tokens, media)
        output = plain.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), **lengths, **inputs)  # type: ignore[operator]
        assert completion.token_ids.tolist() == output[0, len(ids) :].tolist()
    assert completions[0].token_ids.tolist() == completions[1].token_ids.tolist()
    assert completions[1].policy_logprobs.tolist() != completions[3].policy_logprobs.tolist()


def test_a_text_model_refuses_images(tmp_path: Path) -> None:
    section = ModelConfig(path=str(make_model(tmp_path / "text", ["some text"] * 5)))
    model = load_model(section, device="cpu")
    engine = NativeEngine.from_model(model, NativeEngineConfig(), load_tokenizer(section))
    assert not engine.capabilities.images
    request = SampleRequest("a", np.arange(5, dtype=np.int32), GREEDY, 0, (image(tmp_path, 20, 20),))
    with pytest.raises(InferenceError, match="does not take for this model"):
        sample(engine, [request])

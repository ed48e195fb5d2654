"""The contract of a model family: sampler, trainer and Hugging Face agree, before and after an update."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.algorithms.loss_spec import LossSpec
from strop.config.schema.group_baselines import GrpoConfig
from strop.config.schema.inference_engine import NativeEngineConfig
from strop.errors import InferenceError, ModelError
from strop.inference.native import NativeEngine
from strop.models.tiny import make_model
from strop.training.backends.local import LocalEngine
from strop.types import Completion, Experience, SampleRequest, SamplingParams, TrainingBatch
from tests.inference.helpers import random_prompts, requests_for, sample
from tests.models.families import FAMILIES, family_folder
from tests.models.models import experience
from tests.training.test_local_engine import make_run

PROMPTS = random_prompts(3, 12, 7, 12)
EXPERTS = ("qwen3_moe", "mixtral", "olmoe", "glm4_moe", "qwen3_next")
"""Families whose experts `all-linear` adapts."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def engines(folder: Path, model: dict[str, object]) -> tuple[LocalEngine, NativeEngine]:
    trainer = {"optimizer": {"type": "adamw", "lr": 0.01}, "engine": {"device": "cpu"}}
    trained = LocalEngine(make_run(folder, model, trainer=trainer, algorithm="grpo"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return trained, NativeEngine.from_weights(trained.shared_weights(), NativeEngineConfig(), tokenizer)


def experiences_of(requests: Sequence[SampleRequest], completions: Sequence[Completion]) -> list[Experience]:
    return [
        replace(
            experience(request.prompt_ids, completion.token_ids, group=request.id.split(".")[0]),
            temperature=request.sampling.temperature,
        )
        for request, completion in zip(requests, completions, strict=True)
    ]


def check_logprobs(trained: LocalEngine, sampler: NativeEngine) -> list[Experience]:
    """The trainer's log-probs of sampled completions are the sampler's; returns the experiences."""
    requests = requests_for(PROMPTS, SamplingParams(temperature=0.8, max_tokens=12), samples=2)
    completions = sample(sampler, requests)
    experiences = experiences_of(requests, completions)
    for computed, completion in zip(trained.logprobs(experiences), completions, strict=True):
        ours = computed[-len(completion.token_ids) :]
        np.testing.assert_allclose(completion.policy_logprobs, ours, atol=1e-4, rtol=0)
    return experiences


def check_greedy(folder: Path, sampler: NativeEngine, max_tokens: int = 16) -> None:
    # The attention that honors every option of a model.
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    completions = sample(sampler, requests_for(PROMPTS, SamplingParams(temperature=0, max_tokens=max_tokens)))
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        tokens = torch.from_numpy(prompt).long()[None]
        generated = model.generate(tokens, do_sample=False, max_new_tokens=max_tokens, pad_token_id=0)
        assert completion.token_ids.tolist() == generated[0, len(prompt) :].tolist()


def update(trained: LocalEngine, sampler: NativeEngine, experiences: list[Experience]) -> None:
    """One GRPO step, and its weights in the sampler."""
    advantages = np.random.default_rng(0).normal(size=len(experiences)).tolist()
    logprobs = trained.logprobs(experiences)
    batch = TrainingBatch(
        [replace(e, policy_logprobs=p) for e, p in zip(experiences, logprobs, strict=True)],
        advantages=advantages,
    )
    trained.forward_backward(batch, LossSpec(GrpoConfig(), 64))
    assert trained.step() > 0
    sampler.load(trained.iter_weights(), version=1)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_trainer_and_hugging_face_agree(family, root):
    folder = family_folder(root, family)
    trained, sampler = engines(folder, {})
    check_greedy(folder, sampler)
    update(trained, sampler, check_logprobs(trained, sampler))
    check_logprobs(trained, sampler)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_adapter_is_trained_sampled_and_exported(family, root, tmp_path):
    folder = family_folder(root, family)
    trained, sampler = engines(folder, {"lora": {"rank": 4, "alpha": 8}})
    names = {name for name, p in trained.policy.master.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in names)
    assert any(".experts." in name for name in names) == (family in EXPERTS)
    experiences = check_logprobs(trained, sampler)
    update(trained, sampler, experiences)
    update(trained, sampler, check_logprobs(trained, sampler))
    experiences = check_logprobs(trained, sampler)
    trained.export(tmp_path / "out")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    merged = copy.deepcopy(trained.policy.master).merge_and_unload().state_dict()
    for name, weight in exported.state_dict().items():
        torch.testing.assert_close(weight, merged[name], atol=1e-6, rtol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    adapted = PeftModel.from_pretrained(plain, tmp_path / "out" / "adapter")
    tokens = torch.from_numpy(PROMPTS[1]).long()[None]
    torch.testing.assert_close(adapted(tokens).logits, exported(tokens).logits, atol=1e-4, rtol=1e-4)


def test_dropout_of_experts_is_refused(root):
    with pytest.raises(ModelError, match=r"model\.lora\.dropout \(0\.1\) must be 0"):
        engines(family_folder(root, "qwen3_moe"), {"lora": {"dropout": 0.1}})


LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 24}
ROPE = {
    "longrope": ("phi3", LONGROPE | {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}, 24),
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}, 48),
}


@pytest.mark.parametrize("kind", ROPE)
def test_rotary_embeddings_that_depend_on_the_batch_are_refused(kind, tmp_path):
    """Within the original length they are constant; beyond, a sequence would change with its batch."""
    family, parameters, limit = ROPE[kind]
    folder = make_model(
        tmp_path / kind,
        ["max 1 2"],
        family=family,
        hidden_size=32,
        max_tokens=48,
        original_max_position_embeddings=24,
        rope_parameters=parameters,
    )
    data = {"train": {"path": "tasks.jsonl"}, "max_prompt_tokens": 12, "max_response_tokens": limit - 12}
    run = make_run(folder, trainer={"engine": {"device": "cpu"}}, data=data, algorithm="grpo")
    trained = LocalEngine(run)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sampler = NativeEngine.from_weights(trained.shared_weights(), NativeEngineConfig(), tokenizer)
    check_greedy(folder, sampler, max_tokens=limit - 12)
    check_logprobs(trained, sampler)
    long = experience(PROMPTS[0], np.arange(3, limit + 3) % 200)
    with pytest.raises(ModelError, match=f"rope_type '{kind}'.*more than {limit} tokens"):
        trained.logprobs([long])
    with pytest.raises(InferenceError, match=f"only {limit} positions"):
        sample(sampler, requests_for(PROMPTS[1:2], SamplingParams(max_tokens=limit - 11)))
    data["max_response_tokens"] += 1
    with pytest.raises(ModelError, match=f"of at most {limit}"):
        LocalEngine(make_run(folder, trainer={"engine": {"device": "cpu"}}, data=data, algorithm="grpo"))


def test_the_page_lists_what_the_families_do(root):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "| `" in line
    ]
    listed = {row[0].strip("`"): row[1:] for row in rows[1:]}
    found = {}
    for family in FAMILIES:
        trained, sampler = engines(family_folder(root, family), {})
        native = sampler.describe().startswith("native")
        found[family] = [
            "native" if native else "Hugging Face",
            "shared" if trained.supports_shared_prompts else "repeated",
            "yes" if family in EXPERTS else "",
        ]
    assert listed == found

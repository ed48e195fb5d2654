"""The contract of a model family: sampler, trainer and Hugging Face agree, before and after an update.

CI runs a family for each kernel path and each kind of cache, the nightly run all of them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import strop
from strop.algorithms.registry import LossSpec
from strop.config.schema.algorithm import GrpoConfig
from strop.config.schema.rollout import NativeEngineConfig
from strop.errors import InferenceError, ModelError
from strop.inference.native import NativeEngine
from strop.models.tiny import make_model
from strop.training.engine import PolicyEngine, local_policy
from strop.types import Completion, Experience, SampleRequest, SamplingParams, TrainingBatch
from tests.cases import nightly
from tests.inference.helpers import random_prompts, requests_for, sample
from tests.models.families import EXPERTS, FAMILIES, NATIVE, VARIANTS, family_folder, perturbed_folder
from tests.models.models import experience
from tests.training.test_local_engine import make_run

PROMPTS = random_prompts(3, 12, 7, 12)
END = 1
IN_CI = {
    "qwen2": "the native forward pass: grouped queries, biases of queries, keys and values",
    "qwen3": "norms of queries and keys",
    "mistral": "a sliding window in the native cache",
    "gemma2": "softcaps of scores and logits, and Hugging Face's cache of a window",
    "phi": "a head with a bias, attention and MLP in parallel",
    "cohere": "scaled logits",
    "qwen3_moe": "experts",
    "llama4_text": "attention in chunks, one expert for each token",
    "lfm2": "states of convolutions",
    "qwen3_next": "linear attention, gated attention, experts with a shared one",
    "jamba": "states of Mamba layers between attention and experts",
    "mamba": "states and no attention",
    "tied": "a head that is the embeddings",
    "attention bias": "biases of outputs and MLP",
    "one kv head": "one head of keys and values for all queries",
    "large heads": "heads that are wider than the model divided by their number",
    "sliding by type": "layers with and without a window",
    "yarn": "rotary embeddings that scale attention",
    "gpt2": "learned positions",
    "another activation": "a native family with an option that only Hugging Face's forward pass has",
}
ADAPTED_IN_CI = ("qwen2", "phi", "qwen3_moe", "lfm2", "mamba")
REASONS = {"another activation": "the activation 'gelu' is not native"}
"""Why Hugging Face's forward pass samples; otherwise because the family has no native one."""


def some_in_ci(cases: Iterable[str], in_ci: Iterable[str]) -> list[Any]:
    chosen = set(in_ci)
    return [
        pytest.param(case, marks=pytest.mark.slow if case in chosen else pytest.mark.nightly)
        for case in cases
    ]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def engines(folder: Path, model: dict[str, object], **sections: Any) -> tuple[PolicyEngine, NativeEngine]:
    trainer = {"optimizer": {"type": "adamw", "lr": 0.01}, "engine": {"device": "cpu"}}
    trained = local_policy(make_run(folder, model, trainer=trainer, algorithm="grpo", **sections))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return trained, NativeEngine.from_weights(trained.shared_weights(), NativeEngineConfig(), tokenizer)


def hugging_face(folder: Path) -> PreTrainedModel:
    """The model with the attention that honors each of its options."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def experiences_of(requests: Sequence[SampleRequest], completions: Sequence[Completion]) -> list[Experience]:
    return [
        replace(
            experience(request.prompt_ids, completion.token_ids, group=request.id.split(".")[0]),
            temperature=request.sampling.temperature,
        )
        for request, completion in zip(requests, completions, strict=True)
    ]


def check_logprobs(trained: PolicyEngine, sampler: NativeEngine) -> list[Experience]:
    """The trainer's log-probs of sampled completions are the sampler's; returns the experiences."""
    requests = requests_for(PROMPTS, SamplingParams(temperature=0.8, max_tokens=12), samples=2)
    completions = sample(sampler, requests)
    experiences = experiences_of(requests, completions)
    for computed, completion in zip(trained.token_values(experiences, "logprobs"), completions, strict=True):
        ours = computed[-len(completion.token_ids) :]
        np.testing.assert_allclose(completion.policy_logprobs, ours, atol=1e-4, rtol=0)
        np.testing.assert_array_equal(completion.sampler_logprobs, completion.policy_logprobs)
    return experiences


def check_greedy(folder: Path, sampler: NativeEngine, max_tokens: int = 20) -> None:
    """Greedy completions, whose end tokens end some of them early, are those of `generate` for one prompt."""
    model = hugging_face(folder)
    free = sample(sampler, requests_for(PROMPTS, SamplingParams(temperature=0, max_tokens=max_tokens)))
    ends = {
        int(completion.token_ids[min(4 * n, len(completion.token_ids) - 1)])
        for n, completion in enumerate(free)
    }
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens, stop_token_ids=tuple(ends))
    completions = sample(sampler, requests_for(PROMPTS, greedy))
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        tokens = torch.from_numpy(prompt).long()[None]
        options = {"do_sample": False, "max_new_tokens": max_tokens, "pad_token_id": 0}
        expected = model.generate(tokens, eos_token_id=[END, *ends], **options)[0, len(prompt) :].tolist()
        assert completion.token_ids.tolist() == expected
        assert completion.finish_reason == ("stop" if expected[-1] in (END, *ends) else "length")
        assert not completion.sampler_logprobs.any()
    assert len({len(completion.token_ids) for completion in completions}) > 1


def update(trained: PolicyEngine, sampler: NativeEngine, experiences: list[Experience]) -> None:
    """One GRPO step, and its weights in the sampler."""
    advantages = np.random.default_rng(0).normal(size=len(experiences)).tolist()
    logprobs = trained.token_values(experiences, "logprobs")
    batch = TrainingBatch(
        [replace(e, policy_logprobs=p) for e, p in zip(experiences, logprobs, strict=True)],
        advantages=advantages,
    )
    trained.forward_backward(batch, LossSpec(GrpoConfig(), 64))
    assert trained.step() > 0
    sampler.load(trained.iter_weights(), version=1)


@pytest.mark.parametrize("case", some_in_ci([*FAMILIES, *VARIANTS], IN_CI))
def test_sampler_trainer_and_hugging_face_agree(case: str, root: Path) -> None:
    folder = perturbed_folder(root, case)
    trained, sampler = engines(folder, {})
    family = VARIANTS[case][0] if case in VARIANTS else case
    if family in NATIVE and case not in REASONS:
        assert sampler.describe().startswith(f"native {family} forward, float32")
    else:
        assert sampler.describe().endswith(f"({REASONS.get(case, f'{family} has no native forward')})")
    check_greedy(folder, sampler)
    update(trained, sampler, check_logprobs(trained, sampler))
    check_logprobs(trained, sampler)


@pytest.mark.parametrize("family", some_in_ci(FAMILIES, ADAPTED_IN_CI))
def test_the_default_adapter_is_trained_sampled_and_exported(family: str, root: Path, tmp_path: Path) -> None:
    folder = family_folder(root, family)
    trained, sampler = engines(folder, {"lora": {"rank": 4, "alpha": 8}})
    names = {name for name, p in trained.policy.master.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in names)
    assert any(".experts." in name for name in names) == (family in EXPERTS)
    for _ in range(2):
        update(trained, sampler, check_logprobs(trained, sampler))
    check_logprobs(trained, sampler)
    trained.export(tmp_path / "out")
    exported = hugging_face(tmp_path / "out")
    merged = copy.deepcopy(trained.policy.master).merge_and_unload().state_dict()
    for name, weight in exported.state_dict().items():
        torch.testing.assert_close(weight, merged[name], atol=1e-6, rtol=1e-5)
    adapted = PeftModel.from_pretrained(hugging_face(folder), tmp_path / "out" / "adapter")
    tokens = torch.from_numpy(PROMPTS[1]).long()[None]
    torch.testing.assert_close(adapted(tokens).logits, exported(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "model", "least", "most"),
    [
        pytest.param("lfm2", {}, 0, 1e-4, marks=pytest.mark.slow),
        pytest.param("qwen2", {"compute_dtype": "bfloat16"}, 1e-6, 0.1, marks=pytest.mark.slow),
        *nightly(*((family, {}, 0, 1e-4) for family in FAMILIES if family != "lfm2")),
        *nightly(*((family, {"lora": {"rank": 4}}, 0, 1e-4) for family in EXPERTS)),
    ],
)
def test_sampler_and_trainer_agree_in_a_run(
    family: str, model: dict[str, object], least: float, most: float, root: Path, tmp_path: Path
) -> None:
    """CI's family samples with Hugging Face's forward pass and trains with repeated prompts; bfloat16 rounds."""
    rows = [{"prompt": f"max {a} {b}", "answer": str(max(a, b))} for a in range(4) for b in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lengths = {"max_prompt_tokens": 32, "max_response_tokens": 8}
    steps = {"duration": "2 steps", "tasks_per_step": 8, "tasks_per_update": 4}
    run = {
        "name": "family",
        "output": str(tmp_path / "runs"),
        "model": {"path": str(family_folder(root, family)), **model},
        "data": {"train": {"path": str(tmp_path / "tasks.jsonl")}, **lengths},
        "reward": f"{Path(__file__).parents[1] / 'run' / 'rewards.py'}:digit_share",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4},
        "trainer": {**steps, "optimizer": {"type": "adamw", "lr": 1e-3}},
        "record": {"monitors": [], "report": False},
    }
    result = strop.train(strop.load(run))
    metrics = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()][1:]
    assert len(metrics) == 2
    for row in metrics:
        assert row["grad_norm"] > 0 and row["rollouts/error_fraction"] == 0
        assert least <= row["logprob_diff/mean_abs"] < most


def test_dropout_of_experts_is_refused(root: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.lora\.dropout \(0\.1\) must be 0"):
        engines(family_folder(root, "qwen3_moe"), {"lora": {"dropout": 0.1}})


LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 24}
ROPE = {
    "longrope": ("phi3", LONGROPE | {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}, 24),
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}, 48),
}


@pytest.mark.parametrize("kind", ROPE)
def test_rotary_embeddings_that_depend_on_the_batch_are_refused(kind: str, tmp_path: Path) -> None:
    """Within the original length they are constant; beyond, a sequence would change with its batch."""
    family, parameters, limit = ROPE[kind]
    folder = make_model(
        tmp_path / kind,
        ["max 1 2"],
        family=family,
        hidden_size=32,
        max_tokens=48,
        initializer_range=0.2,
        original_max_position_embeddings=24,
        rope_parameters=parameters,
    )
    data = {"train": {"path": "tasks.jsonl"}, "max_prompt_tokens": 12, "max_response_tokens": limit - 12}
    trained, sampler = engines(folder, {}, data=data)
    if kind == "dynamic":
        assert "rotary embeddings of type 'dynamic' are not native" in sampler.describe()
    check_greedy(folder, sampler, max_tokens=limit - 12)
    check_logprobs(trained, sampler)
    with pytest.raises(ModelError, match=f"rope_type '{kind}'.*more than {limit} tokens"):
        trained.token_values([experience(PROMPTS[0], np.arange(3, limit + 3) % 200)], "logprobs")
    with pytest.raises(InferenceError, match=f"only {limit} positions"):
        sample(sampler, requests_for(PROMPTS[1:2], SamplingParams(max_tokens=limit - 11)))
    with pytest.raises(ModelError, match=f"of at most {limit}"):
        engines(folder, {}, data=data | {"max_response_tokens": limit - 11})


@pytest.mark.slow
def test_the_page_lists_what_the_families_do(root: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\|(.*)\|$", page, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    listed = {
        family: row[1:] for row in rows for family in re.findall(r"`(\w+)`", row[0]) if family in FAMILIES
    }
    found = {}
    for family in FAMILIES:
        trained, _ = engines(family_folder(root, family), {})
        found[family] = [
            "native" if family in NATIVE else "Hugging Face",
            "shared" if trained.supports_shared_prompts else "repeated",
            "yes" if family in EXPERTS else "",
        ]
    assert listed == found

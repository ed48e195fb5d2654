"""Tiny random models and experiences, and reference computations of their log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from strop.config.units import Amount
from strop.data.packing import pack
from strop.models.logprobs import token_outputs
from strop.types import Experience, MicroBatch, TrainingBatch

VOCAB = 61
FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "granite",
    "cohere",
)
"""All of them can share prompts. Gemma 2 bends scores and logits, Cohere and Granite scale logits, Phi's
head has a bias, and Gemma 2 and 3 and Mistral have a window of 6 tokens here."""
OPTIONS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 6},
    "gemma2": {"sliding_window": 6, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.5},
    "gemma3_text": {"sliding_window": 6},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.3},
}


def make(family: str, **options: Any) -> PreTrainedModel:
    """A model of two layers with large weights, so that attention affects the outputs."""
    config = AutoConfig.for_model(
        family,
        **{
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "initializer_range": 0.2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "attn_implementation": "eager",
        }
        | OPTIONS.get(family, {})
        | options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape)
    return model.eval()


def experience(
    prompt: Sequence[int] | np.ndarray,
    answer: Sequence[int] | np.ndarray,
    *,
    group: str = "g",
    **fields: object,
) -> Experience:
    """An experience whose targets are the completion's tokens."""
    tokens = np.array([*prompt, *answer], dtype=np.int32)
    zeros = np.zeros(len(tokens), dtype=np.float32)
    plain = Experience(
        id="e",
        task_id="t",
        group=group,
        index=0,
        turn=0,
        token_ids=tokens,
        loss_mask=np.arange(len(tokens)) >= len(prompt),
        sampler_logprobs=zeros,
        policy_logprobs=zeros,
        reward=0.0,
        status="ok",
        temperature=1.0,
        versions=(0,),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def some_experiences(seed: int = 0) -> list[Experience]:
    """Groups with shared prompts, a prompt of one token, a single experience, and a rollout of two turns."""
    random = np.random.default_rng(seed)

    def tokens(count: int) -> list[int]:
        return random.integers(3, VOCAB, count).tolist()

    first, second = tokens(9), tokens(4)
    result = [experience(first, tokens(n), group="first") for n in (5, 8, 5, 1)]
    result += [experience(second, tokens(n), group="second", temperature=0.7) for n in (3, 12)]
    result += [experience([7], tokens(4), group="short"), experience([7], tokens(2), group="short")]
    result.append(experience(tokens(5), tokens(6), group="alone"))
    holes = np.array([False] * 9 + [True] * 3 + [False] * 4 + [True] * 2)
    result.append(experience(first, tokens(9), group="first", loss_mask=holes))
    return result


def coefficients(experiences: Sequence[Experience]) -> list[np.ndarray]:
    """[L] each: a different weight for every target."""
    random = np.random.default_rng(5)
    return [random.normal(size=len(e.token_ids)).astype(np.float32) for e in experiences]


def packed(
    experiences: Sequence[Experience], *, share_prompts: bool, tokens: int = 10_000
) -> list[MicroBatch]:
    return pack(
        TrainingBatch(experiences, advantages=coefficients(experiences)),
        Amount(tokens, "tokens"),
        share_prompts=share_prompts,
        device="cpu",
    )


def packed_gradient(
    model: nn.Module, micro_batches: Sequence[MicroBatch]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Log-probs [T] of each micro-batch, and the gradient of a weighted sum of log-probs and entropies."""
    model.zero_grad()
    logprobs = []
    for micro_batch in micro_batches:
        outputs = token_outputs(model, micro_batch, entropy=True)
        assert outputs.entropy is not None
        (micro_batch.advantages * (outputs.logprobs + 0.5 * outputs.entropy)).sum().backward()
        logprobs.append(outputs.logprobs.detach())
    return logprobs, gradients(model)


def plain_gradient(
    model: PreTrainedModel, experiences: Sequence[Experience]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """`packed_gradient` by Hugging Face's forward pass on one sequence at a time, with log-probs [L] each."""
    model.zero_grad()
    logprobs = []
    for one, weights in zip(experiences, coefficients(experiences), strict=True):
        tokens = torch.from_numpy(one.token_ids).long()
        logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1] / one.temperature
        every = torch.log_softmax(logits.float(), -1)
        taken = every.gather(-1, tokens[1:, None])[:, 0]
        entropy = -(every.exp() * every).sum(-1)
        mask = torch.from_numpy(one.loss_mask)[1:]
        (torch.from_numpy(weights)[1:] * (taken + 0.5 * entropy))[mask].sum().backward()
        logprobs.append(nn.functional.pad(taken.detach() * mask, (1, 0)))
    return logprobs, gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Relative difference of two gradients."""
    assert one.keys() == other.keys()
    difference = torch.stack([(one[name] - other[name]).norm() for name in one]).norm()
    return float(difference / torch.stack([g.norm() for g in other.values()]).norm())

"""Heads of one output, of a critic and of a trained reward model, and the scores of sequences by such a classifier."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from strop.config.schema.policy_gradient import HeadInit
from strop.errors import ModelError
from strop.models.dtensor import whole_parameter
from strop.models.packed_attention.forward import base_model, packed_outputs
from strop.models.packed_attention.model_ranks import SequenceGroup
from strop.transfers import to_device
from strop.types import MicroBatch, TokenOutputs

SCORE = "score"
"""Name of the head in transformers' classifiers with a decoder (`*ForSequenceClassification`)."""
_STANDARD_RANGE = 0.02
"""Standard deviation where a model's configuration has no `initializer_range`."""


@torch.no_grad()
def init_head(head: nn.Linear, init: HeadInit, config: PretrainedConfig) -> None:
    """Set the weights of a head under `zero`, or under `normal` to random ones, which depend on torch's initial seed
    only; under `score` they stay as they are."""
    if init == "score":
        return
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    weight = torch.zeros_like(head.weight, dtype=torch.float32, device="cpu")
    if init == "normal":
        generator = torch.Generator().manual_seed(torch.initial_seed())
        std = getattr(config.get_text_config(), "initializer_range", _STANDARD_RANGE)
        weight.normal_(std=std, generator=generator)
    head.weight.copy_(weight)


def is_classifier(model: nn.Module) -> bool:
    """Whether a model is a classifier with such a head."""
    return type(model).__name__.endswith("ForSequenceClassification")


def head_of(classifier: PreTrainedModel) -> nn.Linear:
    """The head of a classifier with one output. Raises `ModelError` for a model without the usual one."""
    head = getattr(classifier, SCORE, None)
    if type(head) is not nn.Linear or head.out_features != 1 or head.bias is not None:
        raise ModelError(
            f"algorithm.type reward_model trains a decoder with a head `{SCORE}` of one output, and "
            f"{type(classifier).__name__} of transformers has none. Write a model of another family."
        )
    return head


def wrong_head(path: str, found: str) -> str:
    """Message about a folder whose head `head: score` cannot use; `found` says what it has."""
    return (
        f"head is score, but {path} {found}, so that it is no reward model of one output. Write head: zero for a new "
        "head, or the folder of a reward model."
    )


def classifier_outputs(
    model: nn.Module, micro_batch: MicroBatch, *, router_logits: bool = False
) -> TokenOutputs:
    """The score of each sequence, differentiable, at its last target; the log-probs are 0.

    As in transformers, it is the output of the head at the last token that is not the padding token of config.json. A
    sequence of labeled steps has the output at each target instead.
    """
    hidden, routers = packed_outputs(model, micro_batch, router_logits=router_logits)
    base = base_model(model)
    group, tokens = SequenceGroup.of_model(base), len(micro_batch.token_ids)
    targets, pooled = _scored_positions(micro_batch, base)
    if group is not None:
        first, end = group.bounds(tokens)
        own = (pooled >= first) & (pooled < end)
        pooled, targets = pooled[own] - first, targets[own]
    weight = whole_parameter(head_of(base).weight).float()
    scores = nn.functional.linear(hidden.index_select(0, pooled).float(), weight)[:, 0]
    spread = scores.new_zeros(tokens).index_copy(0, targets, scores)
    if group is not None:
        spread = group.sum(spread)
    return TokenOutputs(torch.zeros_like(spread), router_logits=routers, scores=spread)


def _scored_positions(micro_batch: MicroBatch, base: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Targets that have a score, and the tokens whose outputs are these scores."""
    device, last = micro_batch.token_ids.device, micro_batch.last_targets()
    stepwise = np.array([role == "stepwise" for role in micro_batch.role])
    segments = np.flatnonzero((last >= 0) & ~stepwise)
    ends = to_device(
        micro_batch.targets[stepwise[micro_batch.segment_numbers()[micro_batch.targets]]], device
    )
    targets = torch.cat([to_device(last[segments], device), ends])
    pooled = _last_tokens(micro_batch, base)[to_device(segments, device)]
    return targets, torch.cat([pooled, ends])


def _last_tokens(micro_batch: MicroBatch, base: PreTrainedModel) -> Tensor:
    """[S] int64 Position of the last token of each segment that is no padding token; of one with padding only, its last
    position."""
    ends = to_device(micro_batch.cu_seqlens[1:] - 1, micro_batch.token_ids.device)
    padding = base.config.get_text_config().pad_token_id
    if padding is None:
        return ends
    positions = torch.arange(len(micro_batch.token_ids), device=ends.device)
    content = torch.where(micro_batch.token_ids == padding, -1, positions)
    found = torch.full_like(ends, -1).scatter_reduce(0, micro_batch.segment_of_token(), content, "amax")
    return torch.where(found < 0, ends, found)

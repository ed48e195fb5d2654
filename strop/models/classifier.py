"""Scores of sequences by a classifier of one output, over packed micro-batches."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.models.dtensor import whole_parameter
from strop.models.packed_attention.forward import base_model, packed_outputs
from strop.models.packed_attention.sequence_parallel import SequenceGroup
from strop.models.value_head import head_of
from strop.transfers import to_device
from strop.types import MicroBatch, TokenOutputs


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

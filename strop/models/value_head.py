"""Heads of one output: of a critic, and of a reward model that is trained."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from strop.config.schema.policy_gradient import HeadInit
from strop.errors import ModelError

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

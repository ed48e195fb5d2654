"""Which functions an algorithm's section means. A new algorithm is a new case here."""

from __future__ import annotations

import torch

from strop.algorithms.advantages import grpo
from strop.algorithms.objective import GrpoLoss
from strop.config.schema.algorithm import Algorithm, Grpo
from strop.protocols import LossFn


def advantages(config: Algorithm, rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """[N] float32 for [N] rewards, where equal integers in `group` [N] belong to one group."""
    match config:
        case Grpo():
            return grpo(rewards, group, divide_by_std=config.divide_by_std, epsilon=config.std_epsilon)


def loss_fn(config: Algorithm, *, max_response_tokens: int) -> LossFn:
    """What an update minimises. `max_response_tokens` is `data.max_response_tokens`."""
    match config:
        case Grpo():
            return GrpoLoss(config, max_response_tokens)


def needs_reference(config: Algorithm) -> bool:
    """Whether micro-batches must carry `ref_logprobs`."""
    match config:
        case Grpo():
            return config.kl_loss is not None


def needs_entropy_gradient(config: Algorithm) -> bool:
    """Whether `TokenOutputs.entropy` must be there, with its gradient."""
    match config:
        case Grpo():
            return config.entropy_coef > 0

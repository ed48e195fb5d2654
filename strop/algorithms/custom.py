"""A user's own advantage and loss functions (`algorithm.type: custom`): loading, checks, calls.

    def advantages(batch: RolloutBatch) -> torch.Tensor                      # [N] per rollout, or [K] per token
    def loss(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput

Functions travel by name (`file.py:name`), so that every rank of a trainer loads them itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from strop.algorithms.advantages import grpo
from strop.algorithms.algorithm import RolloutAlgorithm, RolloutBatch
from strop.config.schema.algorithm import CustomConfig
from strop.config.user_code import ImportPath
from strop.errors import ConfigError, StropError, TrainingError
from strop.protocols import LossFn
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs

ADVANTAGES_KEY, LOSS_KEY = "algorithm.advantages", "algorithm.loss"
_SIGNATURES = {
    ADVANTAGES_KEY: "f(batch: RolloutBatch) -> torch.Tensor",
    LOSS_KEY: "f(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput",
}


@dataclass(frozen=True, slots=True)
class CustomLoss:
    """A user's loss function as a `LossFn`; its metrics get the prefix `custom/`."""

    name: str
    """`file.py:name` or dotted path."""

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises TrainingError for an error in the function, and for a result that is not a `LossOutput`."""
        result = _compute_loss(self.name, (micro_batch, outputs, counts), TrainingError)
        return replace(result, metrics={f"custom/{name}": value for name, value in result.metrics.items()})


class Custom(RolloutAlgorithm[CustomConfig]):
    """A user's functions; GRPO's advantages, or the policy's objective, in place of one that is not named."""

    def check(self) -> None:
        """Load the functions again and call them on a small example.

        Raises ConfigError for a function that cannot be loaded, has another signature, or returns something else.
        """
        section = self.section
        _load.cache_clear()
        if section.advantages is not None:
            _check_signature(ADVANTAGES_KEY, section.advantages, parameters=1)
            _compute_advantages(section.advantages, _example_rollouts(section), ConfigError)
        if section.loss is not None:
            _check_signature(LOSS_KEY, section.loss, parameters=3)
            for first_update in (True, False):
                _check_loss(section, section.loss, first_update=first_update)

    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        """Raises TrainingError for an error in the user's function."""
        if self.section.advantages is None:
            return grpo(scored.penalized_rewards(), scored.group)
        return _compute_advantages(self.section.advantages, scored, TrainingError)

    def loss(self, max_response_tokens: int) -> LossFn:
        return (
            super().loss(max_response_tokens) if self.section.loss is None else CustomLoss(self.section.loss)
        )


@cache
def _load(key: str, name: str) -> Callable[..., Any]:
    return ImportPath(name, f"{key} {name!r}", "function", (), ConfigError).load()


def _check_signature(key: str, name: str, parameters: int) -> None:
    try:
        signature = inspect.signature(_load(key, name))
    except ValueError:
        return  # a function without a readable signature is checked by the call alone
    try:
        signature.bind(*[None] * parameters)
    except TypeError as error:
        raise ConfigError(
            f"{key} {name!r} has the signature {signature}, which does not fit ({error}). Write "
            f"{_SIGNATURES[key]}; see `strop help algorithms#custom-algorithms`."
        ) from None


def _compute_advantages(name: str, scored: RolloutBatch, error_type: type[StropError]) -> torch.Tensor:
    found = _call(ADVANTAGES_KEY, name, (scored,), error_type)
    rollouts, targets = len(scored.rewards), scored.num_targets
    if not isinstance(found, torch.Tensor) or found.shape not in ((rollouts,), (targets,)):
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else _kind(found)
        raise error_type(
            f"{ADVANTAGES_KEY} {name!r} returned {what}. Return a tensor with one value for each of the "
            f"{rollouts} rollouts, or for each of their {targets} tokens."
        )
    if not bool(torch.isfinite(found).all()):
        raise error_type(f"{ADVANTAGES_KEY} {name!r} returned values that are NaN or infinite.")
    return found if found.shape == (targets,) else scored.expand_to_tokens(found)


def _compute_loss(
    name: str, arguments: tuple[MicroBatch, TokenOutputs, GlobalCounts], error_type: type[StropError]
) -> LossOutput:
    found = _call(LOSS_KEY, name, arguments, error_type)
    if not isinstance(found, LossOutput):
        raise error_type(
            f"{LOSS_KEY} {name!r} returned {_kind(found)}. Return strop.types.LossOutput(loss, metrics)."
        )
    if not isinstance(found.loss, torch.Tensor) or found.loss.dim():
        raise error_type(f"{LOSS_KEY} {name!r}: LossOutput.loss must be a tensor with a single number.")
    if not isinstance(found.metrics, Mapping) or not all(
        isinstance(value, torch.Tensor) and not value.dim() for value in found.metrics.values()
    ):
        raise error_type(
            f"{LOSS_KEY} {name!r}: LossOutput.metrics must map names to tensors with a single number each."
        )
    return found


def _call(key: str, name: str, arguments: tuple[Any, ...], error_type: type[StropError]) -> Any:
    function = _load(key, name)
    try:
        return function(*arguments)
    except StropError:
        raise
    except Exception as error:
        where = inspect.trace()[-1]
        raise error_type(
            f"{key} {name!r} raised {type(error).__name__}: {error} ({where.filename}:{where.lineno}). "
            f"It is called as {_SIGNATURES[key]}; see `strop help algorithms#custom-algorithms`."
        ) from error


def _check_loss(config: CustomConfig, name: str, *, first_update: bool) -> None:
    logprobs = torch.full((6,), -1.5, requires_grad=True)
    outputs = TokenOutputs(logprobs=logprobs, entropy=torch.ones(6))
    micro_batch = _example_micro_batch(config, first_update=first_update)
    result = _compute_loss(name, (micro_batch, outputs, GlobalCounts(tokens=4, sequences=2)), ConfigError)
    if not bool(torch.isfinite(result.loss)):
        raise ConfigError(f"{LOSS_KEY} {name!r} returned a loss that is NaN or infinite for a small example.")
    if not result.loss.requires_grad:
        raise ConfigError(
            f"{LOSS_KEY} {name!r} returned a loss without a gradient. Compute it from `outputs.logprobs`."
        )


def _example_rollouts(config: CustomConfig) -> RolloutBatch:
    """Two groups of rollouts with one to three tokens each."""
    size = min(config.rollouts_per_task, 4)
    rollouts = 2 * size
    return RolloutBatch(
        rewards=torch.linspace(0, 1, rollouts),
        group=torch.arange(2).repeat_interleave(size),
        tokens=1 + torch.arange(rollouts) % 3,
    )


def _example_micro_batch(config: CustomConfig, *, first_update: bool) -> MicroBatch:
    """Two sequences of three tokens, two of them targets; old log-probs are None in a step's first update."""
    values = torch.tensor([0.0, -1.4, -1.4] * 2)
    return MicroBatch(
        token_ids=torch.arange(6),
        position_ids=torch.arange(3).repeat(2),
        cu_seqlens=np.array([0, 3, 6]),
        prefix_of=(-1, -1),
        experience=(0, 1),
        role=("rl", "rl"),
        source=("", ""),
        weight=torch.ones(2),
        targets=np.array([1, 2, 4, 5]),
        temperature=torch.ones(6),
        sampler_logprobs=values,
        policy_logprobs=values,
        advantages=torch.tensor([0.0, 1, 1, 0, -1, -1]),
        old_logprobs=None if first_update else values,
        ref_logprobs=values if config.ref_logprobs or config.kl_reward is not None else None,
        teacher_logprobs=values if config.distillation is not None else None,
    )


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"

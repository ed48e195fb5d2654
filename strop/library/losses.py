"""Losses of `Policy.forward_backward`: by name, by a section of the run file, or by a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch
from pydantic import TypeAdapter, ValidationError

from strop.algorithms.registry import AnyLossSpec, LossSpec
from strop.config.schema.algorithm import AlgorithmConfig, GrpoConfig
from strop.config.schema.base import Section
from strop.config.schema.distillation import DivergenceConfig
from strop.config.schema.policy_loss import PolicyLossConfig
from strop.errors import ConfigError, TrainingError
from strop.printable import did_you_mean
from strop.protocols import LossFn
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs

LossFunction = Callable[[MicroBatch, TokenOutputs, GlobalCounts], LossOutput | torch.Tensor]
"""Loss of one micro-batch: a sum over targets divided by the counts of the whole batch."""
Loss = str | Section | LossFunction
"""A loss's name, an `algorithm` section, or a function."""

_POLICY_LOSSES = frozenset(kind.model_fields["type"].default for kind in get_args(PolicyLossConfig))
_UNNAMED = {"custom", "distillation", "reward_model"}
"""Algorithms whose loss is a function, needs teachers, or belongs to a classifier."""
_ALGORITHM: TypeAdapter[AlgorithmConfig] = TypeAdapter(AlgorithmConfig)


def loss_names() -> list[str]:
    """Names that `Policy.forward_backward` accepts: types of `algorithm`, and of `algorithm.policy_loss`."""
    return sorted({*_algorithms(), *_POLICY_LOSSES} - _UNNAMED)


def find_loss(loss: Loss, max_response_tokens: int) -> AnyLossSpec:
    """The loss of a name, a section or a function. Raises ConfigError for any other value."""
    if isinstance(loss, Section):
        loss = _as_algorithm(loss)
        return LossSpec(cast(AlgorithmConfig, loss), max_response_tokens)
    if isinstance(loss, str):
        return LossSpec(_named(loss), max_response_tokens)
    if callable(loss):
        return cast(AnyLossSpec, FunctionLoss(loss))
    raise ConfigError(
        f"loss is of type {type(loss).__name__}. Write a name such as 'grpo', a section such as strop.Grpo(), or a "
        "function of (micro_batch, outputs, counts) that returns a tensor or a strop.LossOutput."
    )


@dataclass(frozen=True, slots=True)
class FunctionLoss:
    """Loss of a Python function, in this process."""

    function: LossFunction
    needs_entropy: bool = True
    needs_divergence: bool = False
    teacher_divergence: DivergenceConfig | None = None

    def build(self) -> LossFn:
        """The function, with its result checked."""
        return self._compute

    def _compute(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        found: Any = self.function(micro_batch, outputs, counts)
        result = LossOutput(found, {}) if isinstance(found, torch.Tensor) else found
        name = getattr(self.function, "__name__", type(self.function).__name__)
        if not isinstance(result, LossOutput):
            raise TrainingError(
                f"The loss {name} returned a {type(found).__name__}. Return a tensor with one number, or "
                "strop.LossOutput(loss, metrics)."
            )
        if result.loss.dim():
            raise TrainingError(
                f"The loss {name} returned a tensor of shape {tuple(result.loss.shape)}. Return one number: the sum "
                "over the targets, divided by counts.tokens."
            )
        if not result.loss.requires_grad:
            raise TrainingError(
                f"The loss {name} returned a number without a gradient. Compute it from outputs.logprobs."
            )
        return result


def _algorithms() -> set[str]:
    schema = _ALGORITHM.json_schema()
    return set(schema["discriminator"]["mapping"])


def _as_algorithm(section: Section) -> Section:
    """The section, or the algorithm whose policy loss it is."""
    if isinstance(section, get_args(PolicyLossConfig)):
        return GrpoConfig(policy_loss=cast(PolicyLossConfig, section))
    if getattr(section, "type", None) not in _algorithms():
        raise ConfigError(
            f"loss is a {type(section).__name__}, which is no section of an algorithm or a policy loss."
        )
    return section


def _named(name: str) -> AlgorithmConfig:
    if name in {*_algorithms()} - _UNNAMED:
        try:
            return _ALGORITHM.validate_python({"type": name})
        except ValidationError as error:
            fields = ", ".join(sorted({".".join(map(str, each["loc"][1:])) for each in error.errors()}))
            raise ConfigError(
                f"loss {name!r} needs values that have no default ({fields}). Write the section with them in place of "
                "the name."
            ) from None
    if name in _POLICY_LOSSES:
        return GrpoConfig.model_validate({"policy_loss": {"type": name}})
    raise ConfigError(
        f"There is no loss {name!r}{did_you_mean(name, loss_names())}; the losses are {', '.join(loss_names())}. Pass "
        "a function for a loss of your own."
    )

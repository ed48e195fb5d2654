"""Losses of Tinker's `forward_backward`: sums over the targets of all data, as its page on losses defines them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from strop.config.schema.distillation import DivergenceConfig
from strop.errors import DataError
from strop.printable import did_you_mean
from strop.protocols import LossFn
from strop.types import FloatArray, GlobalCounts, LossOutput, MicroBatch, TokenOutputs

Terms = Callable[[Tensor, Tensor, Tensor, Tensor, Mapping[str, float]], Tensor]
"""Loss of each target [N], from its log-prob, its weight or advantage, the log-prob with which it was sampled, and the
mean log-ratio of its sequence, with the options of the loss."""


def _cross_entropy(logprobs: Tensor, weights: Tensor, *_: object) -> Tensor:
    return -logprobs * weights


def _importance_sampling(logprobs: Tensor, advantages: Tensor, sampled: Tensor, *_: object) -> Tensor:
    return -(logprobs - sampled).exp() * advantages


def _ppo(
    logprobs: Tensor, advantages: Tensor, sampled: Tensor, _: Tensor, options: Mapping[str, float]
) -> Tensor:
    return _clipped((logprobs - sampled).exp(), advantages, options)


def _cispo(
    logprobs: Tensor, advantages: Tensor, sampled: Tensor, _: Tensor, options: Mapping[str, float]
) -> Tensor:
    ratio = (logprobs.detach() - sampled).exp()
    return -_clip(ratio, options) * logprobs * advantages


def _gspo(
    logprobs: Tensor, advantages: Tensor, _: Tensor, means: Tensor, options: Mapping[str, float]
) -> Tensor:
    return _clipped((means + logprobs - logprobs.detach()).exp(), advantages, options)


def _dro(
    logprobs: Tensor, advantages: Tensor, sampled: Tensor, _: Tensor, options: Mapping[str, float]
) -> Tensor:
    return -logprobs * advantages + 0.5 * options["beta"] * (logprobs - sampled) ** 2


def _stable_reinforce(
    logprobs: Tensor, advantages: Tensor, sampled: Tensor, _: Tensor, options: Mapping[str, float]
) -> Tensor:
    weight = (logprobs.detach() - sampled).exp().clamp(max=1.0)
    return -weight * logprobs * advantages + 0.5 * options["kl_coeff"] * (logprobs - sampled) ** 2


def _clip(ratio: Tensor, options: Mapping[str, float]) -> Tensor:
    return ratio.clamp(options["clip_low_threshold"], options["clip_high_threshold"])


def _clipped(ratio: Tensor, advantages: Tensor, options: Mapping[str, float]) -> Tensor:
    return -torch.minimum(ratio * advantages, _clip(ratio, options) * advantages)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A loss: what it reads of a datum, its formula and its options with their defaults."""

    weight: str
    """Input that weights the targets."""
    terms: Terms
    options: Mapping[str, float] = field(default_factory=dict)
    needs: tuple[str, ...] = ("logprobs",)
    """Further inputs."""


_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_GSPO_CLIP = {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4}
"""Clipping range of the paper's experiments (arXiv 2507.18071)."""
LOSSES: Mapping[str, _Kind] = {
    "cross_entropy": _Kind("weights", _cross_entropy, needs=()),
    "importance_sampling": _Kind("advantages", _importance_sampling),
    "ppo": _Kind("advantages", _ppo, _CLIP),
    "cispo": _Kind("advantages", _cispo, _CLIP),
    "gspo": _Kind("advantages", _gspo, _GSPO_CLIP, ("logprobs", "sequence_ratio_mask")),
    "dro": _Kind("advantages", _dro, {"beta": 0.05}),
    "stable_reinforce": _Kind("advantages", _stable_reinforce, {"kl_coeff": 0.0}),
}
_NOT_SERVED = (
    "'custom' (a loss that the server runs) is not served; forward_backward_custom runs it in the client"
)


@dataclass(slots=True)
class NamedLoss:
    """A loss as a training engine takes it, which keeps the log-probs that it was computed from."""

    kind: _Kind
    options: Mapping[str, float]
    weights: Sequence[FloatArray] | None = None
    """[L, K] of each experience, for targets with several tokens per position; None if they are the advantages."""
    logprobs: list[tuple[MicroBatch, Tensor]] = field(default_factory=list)
    """[T] or [T, K] log-probs of each micro-batch so far."""
    needs_entropy: ClassVar[bool] = False
    needs_divergence: ClassVar[bool] = False
    teacher_divergence: ClassVar[DivergenceConfig | None] = None

    @classmethod
    def of(cls, name: str, options: Mapping[str, float | str]) -> NamedLoss:
        """Raises DataError for a loss or an option that does not exist."""
        if (kind := LOSSES.get(name)) is None:
            reason = (
                _NOT_SERVED if name == "custom" else f"there is no loss {name!r}{did_you_mean(name, LOSSES)}"
            )
            raise DataError(f"{reason}; the losses are {', '.join(LOSSES)}")
        for option, value in options.items():
            if option not in kind.options:
                known = ", ".join(kind.options) or "none"
                raise DataError(f"loss_fn_config of {name} has {option!r}; its options are {known}")
            if isinstance(value, str) or not np.isfinite(value):
                raise DataError(f"loss_fn_config[{option!r}] of {name} is {value!r}; write a number")
        return cls(kind, {**kind.options, **{key: float(value) for key, value in options.items()}})

    def build(self) -> LossFn:
        """The function of a micro-batch."""
        return self._compute

    def _compute(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        logprobs, weights = outputs.logprobs, micro_batch.advantages
        if self.weights is not None:
            weights = _packed(self.weights, micro_batch, logprobs)
        elif logprobs.dim() == 2:
            logprobs = logprobs[:, 0]
        self.logprobs.append((micro_batch, logprobs.detach()))
        sampled = logprobs.detach() if micro_batch.old_logprobs is None else micro_batch.old_logprobs
        means = torch.zeros_like(sampled)
        if micro_batch.values is not None:
            means = _segment_means(logprobs.detach() - sampled, micro_batch.values, micro_batch.cu_seqlens)
        targets = torch.from_numpy(micro_batch.targets).to(logprobs.device)
        terms = self.kind.terms(
            logprobs[targets],
            weights[targets],
            sampled[targets],
            means[targets],
            self.options,
        )
        return LossOutput(terms.sum(), {})


def _packed(weights: Sequence[FloatArray], micro_batch: MicroBatch, logprobs: Tensor) -> Tensor:
    """[T, K] The weights of each experience, at its segment; 0 in shared prompts."""
    packed = torch.zeros_like(logprobs)
    bounds = itertools.pairwise(micro_batch.cu_seqlens.tolist())
    for experience, (first, end) in zip(micro_batch.experience, bounds, strict=True):
        if experience >= 0:
            packed[first:end] = torch.from_numpy(weights[experience][first - end :])
    return packed


def _segment_means(values: Tensor, mask: Tensor, bounds: Iterable[int]) -> Tensor:
    """[T] Mean of the values where `mask` is not 0, over the own segment of each token."""
    means = torch.zeros_like(values)
    for first, end in itertools.pairwise(bounds):
        chosen = values[first:end][mask[first:end] != 0]
        if len(chosen):
            means[first:end] = chosen.mean()
    return means

"""The adapter of one training client, with its optimizer: losses, updates and checkpoints."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from tinker.types import AdamParams, LoraConfig

from strop.compat.tinker.adapter_engine import AdamStep, AdapterEngines
from strop.compat.tinker.losses import NamedLoss
from strop.compat.tinker.wire import LossDatum, LossRequest
from strop.config.schema import Run
from strop.config.schema import model as schema
from strop.config.schema.algorithm import ReinforceConfig
from strop.config.schema.data import DataConfig, TrainTasksetConfig
from strop.config.schema.optimizer import AdamWConfig
from strop.config.schema.rollout import RolloutConfig
from strop.config.schema.trainer import TrainerConfig, TrainingEngineConfig
from strop.config.units import Amount
from strop.errors import DataError
from strop.types import Experience, FloatArray, IntArray, TrainingBatch

log = logging.getLogger("strop.tinker")
_ALPHA = 32
"""Numerator of an adapter's scale, as in Tinker's service."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_MICROBATCH_TOKENS = 16384
_ADAM_RANGES = {
    "learning_rate": math.inf,
    "weight_decay": math.inf,
    "eps": math.inf,
    "grad_clip_norm": math.inf,
    "beta1": 1.0,
    "beta2": 1.0,
}
"""Exclusive upper limit of each setting of an update; the lower one is 0."""


class TrainedAdapter:
    """A LoRA adapter that one client trains. Its methods run one at a time."""

    def __init__(
        self,
        model: schema.ModelConfig,
        lora: LoraConfig,
        context_tokens: int,
        vocab_size: int,
        engines: AdapterEngines,
    ) -> None:
        """Raises DataError for an adapter without modules, ModelError for a model that cannot be trained."""
        targets = (_ATTENTION if lora.train_attn else ()) + (_MLP if lora.train_mlp else ())
        if not targets:
            raise DataError(
                "train_attn and train_mlp are false; this server adapts attention and MLP layers only"
            )
        if lora.train_unembed:
            log.info("train_unembed has no effect: the output layer gets no adapter.")
        mixed = {"dtype": "float32", "compute_dtype": model.dtype} if model.dtype != "float32" else {}
        section = model.model_copy(
            update=mixed | {"lora": schema.LoraConfig(rank=lora.rank, alpha=_ALPHA, targets=targets)}
        )
        self.run = _run(section, engines.section, context_tokens, 1 if lora.seed is None else lora.seed)
        """Configuration of the engine."""
        self.engine = engines.open(self.run)
        """Engine of the adapter."""
        self._context_tokens = context_tokens
        self._vocab_size = vocab_size
        self.has_gradient = False

    def compute(self, request: LossRequest) -> tuple[list[FloatArray], dict[str, float]]:
        """Log-probs of each datum's targets, in their shape, and the loss; adds its gradient unless `forward_only`.

        Of a loss with advantages, the log-prob is 0 where the target is not the next token and its advantage is 0, and
        at the first targets, of which neither advantage nor sampled log-prob is given: those of a prompt, which
        sequences with the same one share. Raises DataError for data that do not fit the loss or the model,
        TrainingError for a loss that is not finite.
        """
        loss = NamedLoss.of(request.loss, request.options)
        batch = self._batch(request.data, loss)
        if not request.forward_only:
            self.has_gradient = False  # a loss that is not finite drops the gradient so far
        total, values = self.engine.compute(batch, loss, backward=not request.forward_only)
        self.has_gradient |= not request.forward_only
        found = []
        for datum, logprobs in zip(request.data, values, strict=True):
            shape = datum.inputs["target_tokens"].shape
            own = logprobs[1:].reshape(len(logprobs) - 1, -1)
            found.append(own[:, : math.prod(shape[1:])].reshape(shape))
        return found, {"loss:sum": total}

    def step(self, params: AdamParams) -> dict[str, float]:
        """Update the adapter with the gradient so far.

        Raises DataError for settings that are out of range, and TrainingError for a norm that is not finite.
        """
        for name, upper in _ADAM_RANGES.items():
            value = getattr(params, name)
            if not 0 <= value < upper:
                below = "" if upper == math.inf else f" and less than {upper:g}"
                raise DataError(f"adam_params.{name} is {value}; write 0 or more{below}")
        step = AdamStep(
            lr=params.learning_rate,
            weight_decay=params.weight_decay,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            max_grad_norm=params.grad_clip_norm or None,
        )
        self.has_gradient = False
        return {"unclipped_grad_l2:mean": self.engine.update(step)}

    def write_state(self, folder: Path) -> None:
        """Write the adapter and its optimizer's state, from which `load_state` continues exactly."""
        folder.mkdir(parents=True, exist_ok=True)
        self.engine.snapshot().begin_write(folder)()

    def load_state(self, folder: Path) -> None:
        """Restore what `write_state` wrote. Raises CheckpointError for the state of another adapter."""
        self.engine.load(folder)
        self.has_gradient = False

    def reset_optimizer(self) -> None:
        """Start again with new moments."""
        self.engine.reset_optimizer()

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format into an empty folder."""
        self.engine.write_adapter(folder)

    def _batch(self, data: Sequence[LossDatum], loss: NamedLoss) -> TrainingBatch:
        sequences = [
            self._sequence(datum, loss.kind.weight, f"Datum {number}") for number, datum in enumerate(data)
        ]
        target_tokens = None
        weights = [each.weights for each in sequences]
        if any(each.names_targets for each in sequences):
            width = max(each.targets.shape[1] for each in sequences)
            target_tokens = [_widened(each.targets, width) for each in sequences]
            if any(each.ndim == 2 for each in weights):
                loss.weights = [_widened(each.reshape(len(each), -1), width) for each in weights]
        columns: dict[str, list[FloatArray]] = {name: [] for name in ("logprobs", "masks")}
        for number, datum in enumerate(data):
            for need in loss.kind.needs:
                if need not in datum.inputs:
                    raise DataError(f"Datum {number}: the loss needs loss_fn_inputs[{need!r}]")
                column = "logprobs" if need == "logprobs" else "masks"
                columns[column].append(_shifted(datum.inputs[need]))
        return TrainingBatch(
            [each.experience for each in sequences],
            advantages=weights if loss.weights is None else None,
            old_logprobs=columns["logprobs"] or None,
            values=columns["masks"] or None,
            target_tokens=target_tokens,
        )

    def _sequence(self, datum: LossDatum, weight: str, where: str) -> _Sequence:
        targets = datum.inputs.get("target_tokens")
        if targets is None:
            raise DataError(f"{where}: loss_fn_inputs has no 'target_tokens'")
        weights = datum.inputs.get(weight)
        if weights is None:
            if weight != "weights":
                raise DataError(f"{where}: the loss needs loss_fn_inputs[{weight!r}]")
            weights = np.ones(targets.shape, np.float32)
        for name, values in datum.inputs.items():
            if values.shape != targets.shape:
                raise DataError(
                    f"{where}: loss_fn_inputs[{name!r}] has the shape {list(values.shape)}, and 'target_tokens' has "
                    f"{list(targets.shape)}; give all the same"
                )
        if targets.ndim == 2 and weight != "weights":
            raise DataError(f"{where}: targets with several tokens per position are those of cross_entropy")
        columns = targets.reshape(len(targets), -1)
        first = columns[:, 0]
        token_ids = np.concatenate([datum.token_ids, first[-1:]]).astype(np.int32)
        is_next = np.concatenate([first[:-1] == datum.token_ids[1:], [True]])
        names_targets = targets.ndim == 2 or not is_next[(weights != 0) | (weight == "weights")].all()
        if len(token_ids) > self._context_tokens:
            raise DataError(
                f"{where}: {len(token_ids)} tokens with the last target; a sequence may have {self._context_tokens}"
            )
        every = np.concatenate([token_ids, targets.ravel()]) if names_targets else token_ids
        if every.min() < 0 or every.max() >= self._vocab_size:
            raise DataError(f"{where}: a token is outside the vocabulary of {self._vocab_size} tokens")
        is_target = is_next | names_targets
        if "logprobs" in datum.inputs and weight != "weights":
            given = (weights != 0) | (datum.inputs["logprobs"] != 0)
            is_target &= np.arange(len(given)) >= (given.argmax() if given.any() else len(given) - 1)
        mask = np.concatenate([[False], is_target])
        zeros = np.zeros(len(token_ids), np.float32)
        experience = Experience(where, where, "", 0, 0, token_ids, mask, zeros, None, 0.0, "ok", 1.0, ())
        return _Sequence(
            experience, np.pad(columns, [(1, 0), (0, 0)]).astype(np.int32), _shifted(weights), names_targets
        )


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The sequence of a datum: its input and one token more."""

    experience: Experience
    targets: IntArray
    """[L, K] Tokens that are predicted, with K = 1 for one per position."""
    weights: FloatArray
    """[L] or [L, K]"""
    names_targets: bool
    """Whether there are targets that are not the next token of the sequence."""


_Values = TypeVar("_Values", IntArray, FloatArray)


def _widened(values: _Values, width: int) -> _Values:
    """[L, width] Values [L, K], and 0 in further columns."""
    return np.pad(values, [(0, 0), (0, width - values.shape[1])])


def _shifted(values: np.ndarray) -> FloatArray:
    """[L, ...] The values [N, ...] of predictions at the tokens that they predict."""
    return np.concatenate([np.zeros_like(values[:1]), values], dtype=np.float32)


def _run(model: schema.ModelConfig, engine: TrainingEngineConfig, context_tokens: int, seed: int) -> Run:
    """The configuration from which the engine is built."""
    return Run(
        model=model,
        data=DataConfig(
            train=TrainTasksetConfig(path="memory"),
            max_prompt_tokens=context_tokens,
            max_response_tokens=context_tokens,
        ),
        algorithm=ReinforceConfig(),
        rollout=RolloutConfig.model_validate({"max_sequence_tokens": context_tokens}),
        trainer=TrainerConfig(
            engine=engine,
            optimizer=AdamWConfig(),
            microbatch=Amount(_MICROBATCH_TOKENS, "tokens"),
            max_grad_norm=None,
        ),
        seed=seed,
    )

"""Advice on values that are allowed and may be mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.paths import existing_path
from strop.config.peft_adapter import adapter_options
from strop.config.schema import Run
from strop.config.schema.optimizer import BaseOptimizerConfig

_MAX_USUAL_LR = {"sgd": 10.0, "schedule_free_sgd": 10.0}
_MAX_USUAL_ADAPTIVE_LR = 0.1
"""Above it, an optimizer that divides by the gradient's size moves each weight by more than its own size."""


def unusual_values(run: Run) -> Iterator[str]:
    """Yield one sentence for each value that would most likely ruin the run, or that replaces one of an adapter."""
    lora = run.model.lora
    if lora is not None and lora.adapter is not None and existing_path(lora.adapter):
        saved = adapter_options(lora).dropout
        if saved != lora.dropout:
            yield (
                f"model.lora.adapter: the lora_dropout {saved:g} with which it was trained has no effect; "
                f"model.lora.dropout is {lora.dropout:g}."
            )
    optimizers: dict[str, BaseOptimizerConfig] = {"trainer.optimizer": run.trainer.optimizer}
    critic = getattr(run.algorithm, "critic", None)
    if critic is not None:
        optimizers["algorithm.critic.optimizer"] = critic.optimizer
    for key, optimizer in optimizers.items():
        kind = str(getattr(optimizer, "type", ""))
        if optimizer.lr > _MAX_USUAL_LR.get(kind, _MAX_USUAL_ADAPTIVE_LR):
            yield (
                f"warning: {key}.lr is {optimizer.lr:g}. Usual learning rates of {kind} are 1e-6 to 1e-3, and this one "
                f"will most likely destroy the weights. Was {optimizer.lr:g}e-6 meant?"
            )

"""TRL's RLOO: RLOOConfig with the arguments of `trl rloo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    NUMBER,
    ForeignValues,
    Ledger,
    mapped,
    nullable,
    refused,
    written_by,
)
from strop.compat.trl.grpo import ROLLOUT_ROWS
from strop.compat.trl.training_arguments import update_batch
from strop.config.schema import Run
from strop.config.schema.algorithm import RlooConfig
from strop.config.schema.policy_loss import ClippedLossConfig
from strop.errors import ConfigError

_OF_GRPO = ("max_tool_calling_iterations", "log_completions_hub_repo")
"""Keys of GRPOConfig that RLOOConfig does not have."""


def write_loss(run: Run) -> Mapping[str, Any]:
    """Write the loss and the KL penalty. Raises ConfigError for an algorithm or a loss that RLOOConfig lacks."""
    algorithm, trainer = run.algorithm, run.trainer
    if not isinstance(algorithm, RlooConfig) or not isinstance(algorithm.policy_loss, ClippedLossConfig):
        raise ConfigError(f"TRL's RLOOConfig has no algorithm {algorithm.type} with this policy loss.")
    if trainer.tasks_per_update not in (None, trainer.tasks_per_step) or trainer.epochs_per_step != 1:
        raise ConfigError(
            "TRL's RLOOConfig has ratios of whole responses, which differ from the run's ratios of tokens where a step "
            "has several updates."
        )
    section, penalty = algorithm.policy_loss, algorithm.kl_reward
    return {
        "normalize_advantages": False,
        "epsilon": section.clip_low,
        "epsilon_high": None if section.clip_high == section.clip_low else section.clip_high,
        "beta": 0.0 if penalty is None else penalty.coef,
        "mask_truncated_completions": algorithm.mask_truncated,
    }


@written_by(write_loss)
def loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the loss and the KL penalty in the reward; both ratios, of responses and of tokens, are 1 where a step has
    one update, and the loss of a response is then the sum over its tokens."""
    if foreign["normalize_advantages"]:
        raise foreign.error_for(
            "normalize_advantages",
            "normalize_advantages=True divides the advantages by the standard deviation of the batch, which Strop's "
            "rloo does not; leave it False, or write a GRPOConfig with scale_rewards batch.",
        )
    if foreign["mask_truncated_completions"] and foreign["beta"] != 0:
        raise foreign.error_for(
            "mask_truncated_completions",
            "mask_truncated_completions also takes the KL penalty of truncated completions out of their rewards, which "
            "Strop does not; write a beta of 0, or leave it False.",
        )
    several = foreign["steps_per_generation"] not in (None, foreign["gradient_accumulation_steps"])
    sampled = foreign["generation_batch_size"]
    key = "generation_batch_size" if sampled is not None else "steps_per_generation"
    if several or foreign["num_iterations"] != 1 or sampled not in (None, update_batch(foreign)):
        raise foreign.error_for(
            "num_iterations" if foreign["num_iterations"] != 1 else key,
            "several updates on the same completions need RLOOConfig's ratio of a whole response, the product of its "
            "tokens' ratios, which Strop does not have; leave num_iterations at 1, and steps_per_generation at "
            "gradient_accumulation_steps, so that each step is one update.",
        )
    low, high = foreign["epsilon"], foreign["epsilon_high"]
    settings: dict[str, Any] = {
        "algorithm.type": "rloo",
        "algorithm.aggregation": "seq-mean-token-sum",
        "algorithm.policy_loss.type": "clip",
        "algorithm.policy_loss.clip_low": low,
        "algorithm.policy_loss.clip_high": low if high is None else high,
        "algorithm.policy_loss.dual_clip": None,
        "algorithm.mask_truncated": foreign["mask_truncated_completions"],
    }
    if foreign["beta"] == 0:
        return settings
    return settings | {"algorithm.kl_reward.estimator": "k1", "algorithm.kl_reward.coef": foreign["beta"]}


def _one_update(foreign: ForeignValues) -> str | None:
    """A notice on the clip range."""
    return "each step is one update, in which all ratios are 1, so that nothing is clipped"


_row = partial(mapped, read=loss)
_LOSS = (
    _row(
        "beta",
        0.05,
        "algorithm.kl_reward.coef",
        note="coefficient of the KL penalty in the reward; 0 for none",
    ),
    _row("epsilon", 0.2, "algorithm.policy_loss.clip_low", warn=_one_update),
    _row(
        "epsilon_high",
        None,
        "algorithm.policy_loss.clip_high",
        value_type=nullable(NUMBER),
        note="null means epsilon",
        warn=_one_update,
    ),
    _row("normalize_advantages", False, "algorithm.type", note="only False"),
    refused("reward_clip_range", None, "clip the reward in the reward function"),
    _row("mask_truncated_completions", False, "algorithm.mask_truncated", note="with a beta of 0"),
)


_SHARED = tuple(
    replace(row, default=2) if row.key == "num_generations" else row
    for row in ROLLOUT_ROWS
    if row.key not in _OF_GRPO
)
RLOO_LEDGER = Ledger("trl-rloo", (*_SHARED, *_LOSS))

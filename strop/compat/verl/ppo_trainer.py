"""Ledger and reader of verl's RL configuration: `ppo_trainer.yaml` with `key=value` overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.compat.hydra.selection import ConfigSelection, select
from strop.compat.ledger.key_mapping import aliases, unset_by_null
from strop.compat.ledger.reader import read_dialect
from strop.compat.ledger.table import KeyOwnerHint, Ledger, no_key_owner
from strop.compat.verl import (
    actor,
    algorithm,
    async_training,
    critic,
    data,
    distillation,
    gpus,
    model,
    multi_turn,
    optim,
    policy_loss,
    reward,
    rollout,
    rollout_correction,
    trainer,
)
from strop.compat.verl.hydra import PPO, read_command_line
from strop.compat.verl.versions import OTHER_NAMES, dated
from strop.config.load.loader import LoadedRun
from strop.config.machine import here_requested

NULL_IS_UNSET = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "reward_model.micro_batch_size_per_gpu",
    "reward_model.model.path",
    "reward_model.model.trust_remote_code",
    "reward_model.reward_manager",
    "data.seed",
    *(
        f"{at}.optim.{name}"
        for at in ("actor_rollout_ref.actor", "critic")
        for name in ("warmup_style", "min_lr_ratio")
    ),
)
"""Keys that are null in verl's files, where verl takes a default or does not read them."""
_SECTIONS = (
    *(data, async_training, model, actor, policy_loss, rollout, optim, critic, reward, algorithm, trainer),
    *(distillation, rollout_correction, multi_turn),
)
_ROWS = unset_by_null((row for section in _SECTIONS for row in section.ROWS), NULL_IS_UNSET)
_ALIASES = aliases(_ROWS, OTHER_NAMES)
LEDGER = Ledger("verl", dated(map(gpus.with_gpus, (*_ROWS, *_ALIASES))))


def read_verl(
    overrides: Sequence[str],
    *,
    config: Path | None = None,
    selection: ConfigSelection | None = None,
    here: bool = False,
    key_owner: KeyOwnerHint = no_key_owner,
) -> LoadedRun:
    """Read the arguments of `python -m verl.trainer.main_ppo`: overrides, applied to `config` if it is given.

    Raises ConfigError for a key or value that is not accepted, and PlacementError for hardware and engines
    that this machine does not have, unless `here` or STROP_HERE overrides them.
    """
    selection = select(config, selection)
    tree = read_command_line(LEDGER, PPO, "ppo_trainer", overrides, selection, key_owner)
    return read_dialect(LEDGER, tree, here=here_requested(here), key_owner=key_owner)

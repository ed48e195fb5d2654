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
    critic,
    data,
    engine_settings,
    file_keys,
    fully_async,
    gpus,
    later_keys,
    later_reward_keys,
    megatron_optimizer,
    misplaced_keys,
    model,
    multi_turn,
    one_step_off,
    prime,
    reference_model,
    reward,
    rollout,
    trainer,
)
from strop.compat.verl.hydra import read_command_line
from strop.compat.verl.shipped import PPO
from strop.compat.verl.versions import OTHER_NAMES, dated
from strop.config.load.loader import LoadedRun
from strop.config.load.placement import here_requested

_ROWS = unset_by_null(
    (
        *data.ROWS,
        *one_step_off.ROWS,
        *fully_async.ROWS,
        *model.ROWS,
        *actor.ROWS,
        *reference_model.ROWS,
        *rollout.ROWS,
        *megatron_optimizer.ROWS,
        *critic.ROWS,
        *reward.REWARD_MODEL,
        *reward.CUSTOM_REWARD,
        *algorithm.ROWS,
        *trainer.ROWS,
        *engine_settings.ROWS,
        *file_keys.ROWS,
        *later_keys.ROWS,
        *later_reward_keys.ROWS,
        *prime.ROWS,
        *multi_turn.ROWS,
        *misplaced_keys.ROWS,
    ),
    file_keys.NULL_IS_UNSET,
)
_ALIASES = aliases(_ROWS, OTHER_NAMES | misplaced_keys.NAMES)
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

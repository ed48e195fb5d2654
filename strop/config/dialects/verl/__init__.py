"""verl's PPO configuration: `ppo_trainer.yaml` and `key=value` lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.config.dialects.lines import draft_of
from strop.config.dialects.read import read_dialect
from strop.config.dialects.theirs import Ledger
from strop.config.dialects.verl import (
    actor,
    algorithm,
    critic,
    data,
    megatron,
    model,
    ref,
    reward,
    rollout,
    trainer,
)
from strop.config.load import Loaded
from strop.config.placement import wants_here

LEDGER = Ledger(
    "verl",
    (
        *data.ROWS,
        *model.ROWS,
        *actor.ROWS,
        *ref.ROWS,
        *rollout.ROWS,
        *megatron.ROWS,
        *critic.ROWS,
        *reward.REWARD_MODEL,
        *reward.CUSTOM_REWARD,
        *algorithm.ROWS,
        *trainer.ROWS,
    ),
)


def read_verl(overrides: Sequence[str], *, config: Path | None = None, here: bool = False) -> Loaded:
    """Read what `python -m verl.trainer.main_ppo` is given: overrides, over a whole YAML if there is one.

    Raises ConfigError for a key or value that cannot be taken, PlacementError for hardware and
    engines that are not here, unless `here` or STROP_HERE sets them aside.
    """
    return read_dialect(LEDGER, draft_of(LEDGER, overrides, config), here=wants_here(here))

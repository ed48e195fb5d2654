"""Hydra overrides (`key=value`) applied to an optional YAML file, as verl's programs accept them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.config.load.config_tree import ConfigTree
from strop.config.load.overrides import apply_override, parse_overrides
from strop.config.load.yaml_file import read_yaml
from strop.dialects.ledger.table import KeyOwnerHint, Ledger, no_key_owner


def config_tree_from_overrides(
    ledger: Ledger,
    overrides: Sequence[str],
    config: Path | None = None,
    *,
    key_owner: KeyOwnerHint = no_key_owner,
) -> ConfigTree:
    """The file's values with the overrides applied. Raises ConfigError for a key that the ledger lacks."""
    tree = ConfigTree() if config is None else read_yaml(config)
    for override in parse_overrides(overrides):
        apply_override(
            tree,
            override,
            known=lambda keys: ledger.has(".".join(keys)),
            suggest=lambda dotted: ledger.unknown_key_hint(dotted, key_owner),
        )
    return tree

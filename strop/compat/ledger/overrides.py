"""Hydra overrides (`key=value`) applied to a configuration's values, as verl's programs accept them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strop.compat.ledger.table import KeyOwnerHint, Ledger, no_key_owner
from strop.config.load.config_tree import ConfigTree
from strop.config.load.overrides import apply_override, override_source, parse_valid_overrides
from strop.config.load.yaml_file import read_yaml
from strop.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


def config_tree_from_overrides(
    ledger: Ledger,
    overrides: Sequence[str],
    config: Path | None = None,
    *,
    key_owner: KeyOwnerHint = no_key_owner,
) -> ConfigTree:
    """The file's values with the overrides applied; the tree has the faults of the overrides."""
    tree = ConfigTree() if config is None else read_yaml(config)
    parsed = parse_valid_overrides(overrides, tree.faults)
    return apply_overrides(ledger, tree, parsed, key_owner=key_owner)


def apply_overrides(
    ledger: Ledger,
    tree: ConfigTree,
    overrides: Sequence[Override],
    *,
    key_owner: KeyOwnerHint = no_key_owner,
) -> ConfigTree:
    """Apply the overrides to the tree. Overrides that Hydra would reject are faults of the tree."""
    for override in overrides:
        try:
            if not _delete_default(ledger, tree, override):
                apply_override(
                    tree,
                    override,
                    known=lambda keys: ledger.has(".".join(keys)),
                    suggest=lambda dotted: ledger.unknown_key_hint(dotted, key_owner),
                )
        except ConfigError as error:
            tree.faults += error.faults
            tree.faulty |= ledger.possibly_meant(override.key_or_group)
    return tree


def _delete_default(ledger: Ledger, tree: ConfigTree, override: Override) -> bool:
    """Whether the override deletes a key that only has its default: the key is then null.

    Raises ConfigError for a key that cannot be null.
    """
    dotted = override.key_or_group
    row = ledger.find_exact(dotted)
    if not override.is_delete() or row is None or tree.has(tuple(dotted.split("."))):
        return False
    source = override_source(override)
    if not row.value_type.accepts(None):
        raise ConfigError(f"{source}: {ledger.dialect} needs the key {dotted}, so it cannot be removed.")
    tree.set(tuple(dotted.split(".")), None, source)
    return True

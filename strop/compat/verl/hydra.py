"""Reading of the command lines of verl's programs, which are Hydra applications."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strop.compat.hydra.compose import compose
from strop.compat.hydra.selection import ConfigSelection, ShippedConfigs
from strop.compat.ledger.overrides import apply_overrides
from strop.compat.ledger.table import KeyOwnerHint, Ledger
from strop.config.load.config_tree import ConfigTree
from strop.errors import ConfigError

_PLACEHOLDER = re.compile(r"([^=]+)=(<[^<>']*>)")
"""A value that the reader of a launch script is to fill in, such as `<path to the model>`."""


def read_command_line(
    ledger: Ledger,
    shipped: ShippedConfigs,
    default: str,
    overrides: Sequence[str],
    selection: ConfigSelection,
    key_owner: KeyOwnerHint,
) -> ConfigTree:
    """The values that a program of verl would be started with. Raises ConfigError."""
    if any(not text.strip() for text in overrides):
        raise ConfigError(
            "a word of the command is blank: in a script, a backslash followed by a space ends the command, so that "
            "the lines after it are not part of it. Remove the space, or the comment, after the backslash."
        )
    tree, left = compose(selection, default, [_quote_placeholder(text) for text in overrides], shipped)
    return apply_overrides(ledger, tree, left, key_owner=key_owner)


def _quote_placeholder(override: str) -> str:
    found = _PLACEHOLDER.fullmatch(override)
    return f"{found[1]}='{found[2]}'" if found else override

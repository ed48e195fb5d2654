"""`key=value` lines over a whole file: how verl's programs are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.config.dialects.theirs import Ledger
from strop.config.draft import Draft
from strop.config.overrides import apply_override, parse_overrides
from strop.config.yaml_file import read_yaml


def draft_of(ledger: Ledger, overrides: Sequence[str], config: Path | None = None) -> Draft:
    """What was written, by Hydra's grammar. Raises ConfigError for a key that the ledger does not have."""
    draft = Draft() if config is None else read_yaml(config)
    for override in parse_overrides(overrides):
        apply_override(draft, override, known=lambda keys: ledger.has(".".join(keys)), suggest=ledger.suggest)
    return draft

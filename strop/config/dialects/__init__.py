"""Other tools' configurations, each a table of rows."""

from __future__ import annotations

from strop.config.dialects.component import COMPONENTS
from strop.config.dialects.theirs import Ledger
from strop.config.dialects.trinity import LEDGER as TRINITY
from strop.config.dialects.verl import LEDGER as VERL
from strop.config.dialects.verl.evaluation import LEDGER as VERL_EVAL
from strop.config.dialects.verl.generation import LEDGER as VERL_GENERATE
from strop.config.dialects.verl.merging import LEDGER as VERL_MERGE
from strop.config.dialects.verl.sft import LEDGER as VERL_SFT
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError

LEDGERS = {
    "verl": VERL,
    "verl-sft": VERL_SFT,
    "verl-eval": VERL_EVAL,
    "verl-generate": VERL_GENERATE,
    "verl-merge": VERL_MERGE,
    "trinity": TRINITY,
    **{name: component.ledger for name, component in COMPONENTS.items()},
}


def ledger_of(dialect: str) -> Ledger:
    """A dialect's ledger by name, a component's also by AzureML's. Raises ConfigError where there is none."""
    names = {part.asset: part.name for part in COMPONENTS.values()}
    name = names.get(dialect, dialect)
    if name not in LEDGERS:
        hint = did_you_mean(dialect, LEDGERS) or "."
        raise ConfigError(
            f"There is no dialect {dialect!r}{hint} There is a ledger for: {', '.join(LEDGERS)}."
        )
    return LEDGERS[name]

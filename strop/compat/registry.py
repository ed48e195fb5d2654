"""Registry of the supported dialects: each dialect's name and its ledger."""

from __future__ import annotations

from collections.abc import Mapping

from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.table import Ledger
from strop.compat.trinity.reader import LEDGER as TRINITY
from strop.compat.trl.reader import LEDGERS as TRL
from strop.compat.verl.evaluation import LEDGER as VERL_EVAL
from strop.compat.verl.generation import LEDGER as VERL_GENERATE
from strop.compat.verl.model_merger import LEDGER as VERL_MERGE
from strop.compat.verl.ppo_trainer import LEDGER as VERL
from strop.compat.verl.sft import LEDGER as VERL_SFT
from strop.compat.verl.sft_engine import LEDGER as VERL_SFT_ENGINE
from strop.errors import ConfigError
from strop.printable import did_you_mean

LEDGERS: Mapping[str, Ledger] = {
    "verl": VERL,
    "verl-sft": VERL_SFT,
    "verl-sft-engine": VERL_SFT_ENGINE,
    "verl-eval": VERL_EVAL,
    "verl-generate": VERL_GENERATE,
    "verl-merge": VERL_MERGE,
    "trinity": TRINITY,
    "trl": TRL["grpo"],
    "trl-rloo": TRL["rloo"],
    "trl-sft": TRL["sft"],
    "trl-dpo": TRL["dpo"],
    "trl-kto": TRL["kto"],
    "trl-reward": TRL["reward"],
    "trl-cpo": TRL["cpo"],
    "trl-orpo": TRL["orpo"],
    **{name: component.ledger for name, component in COMPONENTS.items()},
}


def ledger_of(dialect: str) -> Ledger:
    """The ledger of a dialect; AzureML components are also found by their AzureML name.

    Raises ConfigError for an unknown dialect.
    """
    names = {component.azureml_name: component.name for component in COMPONENTS.values()}
    name = names.get(dialect, dialect)
    if name not in LEDGERS:
        hint = did_you_mean(dialect, LEDGERS) or "."
        raise ConfigError(f"Unknown dialect {dialect!r}{hint} Known dialects: {', '.join(LEDGERS)}.")
    return LEDGERS[name]

"""Registry of the supported dialects, and hints for unknown keys: which other configurations have a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.key_mapping import Ledger
from strop.compat.trinity.reader import LEDGER as TRINITY
from strop.compat.trl.reader import LEDGERS as TRL
from strop.compat.verl.evaluation import LEDGER as VERL_EVAL
from strop.compat.verl.generation import LEDGER as VERL_GENERATE
from strop.compat.verl.model_merger import LEDGER as VERL_MERGE
from strop.compat.verl.ppo_trainer import LEDGER as VERL
from strop.compat.verl.sft import LEDGER as VERL_SFT
from strop.compat.verl.sft_engine import LEDGER as VERL_SFT_ENGINE
from strop.config.load.config_tree import split_key
from strop.config.load.schema_faults import OwnerHint
from strop.config.schema.run import all_keys
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


RUN_FILE = "strop"
"""Name of Strop's run file among the dialect names."""


def key_owner_hint(dotted: str, not_of: str, *, by_last_name: bool = True) -> str:
    """` It is a key of ...` for a key that other configurations have; else an empty string.

    `not_of` is the dialect in which the key was written. `by_last_name` also finds configurations that have
    a key with the same last name in another section.
    """
    owners = list(_owners(dotted, not_of))
    if owners:
        return f" It is a key of {_names(owners)}."
    return _same_last_name(split_key(dotted)[-1], not_of) if by_last_name else ""


def run_file_key_owner(dotted: str, by_last_name: bool) -> OwnerHint:
    """The `KeyOwner` of run files, which also names the run file's field of the same meaning."""
    owners = list(_owners(dotted, RUN_FILE))
    rows = [row for name in owners if (row := LEDGERS[name].find_exact(dotted))]
    field = next((row.fields[0] for row in rows if row.fields), None)
    if field is None:
        return OwnerHint(key_owner_hint(dotted, RUN_FILE, by_last_name=by_last_name))
    return OwnerHint(f" It is a key of {_names(owners)}.", field)


def _names(owners: list[str]) -> str:
    return ", ".join("Strop's run file" if name == RUN_FILE else name for name in owners)


def _owners(dotted: str, not_of: str) -> Iterator[str]:
    if not_of != RUN_FILE and "." in dotted and dotted in all_keys():
        yield RUN_FILE
    for name, ledger in LEDGERS.items():
        if name != not_of and (ledger.find_exact(dotted) or ledger.is_section(dotted)):
            yield name


def _same_last_name(last: str, not_of: str) -> str:
    keys = ((name, row.key) for name, ledger in LEDGERS.items() if name != not_of for row in ledger.rows)
    near = next((f"{name} has {key}" for name, key in keys if split_key(key)[-1] == last), None)
    return f" In other configurations, {near}." if near else ""

"""Readers of TRL's configurations: a file, the command line of `trl grpo`, `trl dpo` and TRL's other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from strop.compat.ledger.key_mapping import BOOLEAN, KeyOwnerHint, Ledger, no_key_owner
from strop.compat.ledger.reader import CompleteFunction, read_dialect
from strop.compat.trl.grpo import GRPO_LEDGER
from strop.compat.trl.offline import SFT_LEDGER
from strop.compat.trl.preferences import CPO_LEDGER, DPO_LEDGER, KTO_LEDGER, ORPO_LEDGER
from strop.compat.trl.reward_modeling import REWARD_LEDGER
from strop.compat.trl.rloo import RLOO_LEDGER
from strop.config.load.config_tree import ConfigTree, Source
from strop.config.load.loader import LoadedRun
from strop.config.load.yaml_file import YamlLimitError, parse_yaml, read_yaml
from strop.config.machine import here_requested
from strop.config.redact import redacted_repr
from strop.errors import ConfigError, FaultKind

TrlProgram = Literal["grpo", "rloo", "sft", "dpo", "kto", "reward", "cpo", "orpo"]
"""TRL's programs; of CPO and ORPO, which are experimental, it has scripts only."""
LEDGERS: Mapping[TrlProgram, Ledger] = {
    "grpo": GRPO_LEDGER,
    "rloo": RLOO_LEDGER,
    "sft": SFT_LEDGER,
    "dpo": DPO_LEDGER,
    "kto": KTO_LEDGER,
    "reward": REWARD_LEDGER,
    "cpo": CPO_LEDGER,
    "orpo": ORPO_LEDGER,
}
IDENTIFYING_KEYS: Mapping[str, tuple[str, ...]] = {
    "trl": ("scale_rewards",),
    "trl-rloo": ("normalize_advantages",),
    "trl-sft": ("assistant_only_loss", "completion_only_loss"),
    "trl-kto": ("desirable_weight", "undesirable_weight"),
    "trl-reward": ("center_rewards_coefficient",),
    "trl-cpo": ("cpo_alpha", "simpo_gamma"),
    "trl-orpo": ("padding_value",),
    "trl-dpo": ("label_smoothing",),  # after that of CPO, which has it too
}
"""Keys that only one program has, by its dialect, tried in this order; a converted file has one of them."""
_MAX_SHOWN = 60
"""Maximum number of characters of an option's text in a message."""


def find_program(name: str) -> TrlProgram:
    """The program of a name. Raises ConfigError for one that Strop does not have."""
    program = next((known for known in LEDGERS if known == name), None)
    if program is None:
        raise ConfigError(f"TRL's program {name!r} is not supported; write one of {', '.join(LEDGERS)}.")
    return program


def read_trl_file(
    program: TrlProgram,
    path: Path,
    arguments: Sequence[str] = (),
    *,
    here: bool = False,
    key_owner: KeyOwnerHint = no_key_owner,
) -> LoadedRun:
    """Read a YAML or JSON file of keyword arguments, as `trl grpo --config FILE` does, with the arguments of a
    command line over it. Raises ConfigError and PlacementError."""
    tree = read_yaml(path)
    _set_arguments(LEDGERS[program], tree, arguments)
    return read_trl_tree(program, tree, here=here, key_owner=key_owner)


def read_trl_arguments(
    program: TrlProgram,
    arguments: Sequence[str],
    *,
    here: bool = False,
    key_owner: KeyOwnerHint = no_key_owner,
) -> LoadedRun:
    """Read `--key value ...` and `--config FILE`. Raises ConfigError and PlacementError."""
    config, rest = take_config(list(arguments))
    if config is not None:
        return read_trl_file(program, Path(config), rest, here=here, key_owner=key_owner)
    tree = ConfigTree()
    _set_arguments(LEDGERS[program], tree, rest)
    return read_trl_tree(program, tree, here=here, key_owner=key_owner)


def read_trl_tree(
    program: TrlProgram,
    tree: ConfigTree,
    *,
    here: bool,
    key_owner: KeyOwnerHint = no_key_owner,
    complete: CompleteFunction | None = None,
) -> LoadedRun:
    """Read keyword arguments; `complete` may change the run-file values. Raises ConfigError and PlacementError."""
    return read_dialect(
        LEDGERS[program], tree, here=here_requested(here), key_owner=key_owner, complete=complete
    )


def take_config(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of `--config`, and the other arguments."""
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == "--config" and equals:
            return value, arguments[:index] + arguments[index + 1 :]
        if name == "--config" and index + 1 < len(arguments):
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
    return None, arguments


def _set_arguments(ledger: Ledger, tree: ConfigTree, arguments: Sequence[str]) -> None:
    """Set the options of a command line; one without a value is a switch that is on."""
    for name, texts in _options(arguments):
        key = name.replace("-", "_")
        switch = key.removeprefix("no_")
        if not texts and switch != key and _is_switch(ledger, switch):
            tree.set((switch,), False, Source("override", f"--{name}"))
            continue
        shown = " ".join(texts)[:_MAX_SHOWN]
        source = Source("override", f"--{name} {shown}".strip())
        try:
            values = [_value(text) for text in texts]
        except ConfigError:
            got = redacted_repr(shown, key)
            message = f"{source}: {key} cannot be read as a YAML value, got {got}; write it in quotes."
            tree.add_fault(FaultKind.WRONG_TYPE, message, (key,))
            continue
        tree.set((key,), True if not values else values[0] if len(values) == 1 else values, source)


def _is_switch(ledger: Ledger, key: str) -> bool:
    row = ledger.find_exact(key)
    return row is not None and (row.value_type is BOOLEAN or isinstance(row.default, bool))


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The name and the values of each option, written `--name value ...` or `--name=value`."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"{word!r} has no option before it; write --key value, or --config FILE.")
        name, equals, value = word[2:].partition("=")
        texts = [value] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            texts.append(rest.pop(0))
        yield name, texts


def _value(text: str) -> Any:
    try:
        return parse_yaml(text)[1] if text else ""
    except (yaml.YAMLError, YamlLimitError) as error:
        raise ConfigError(" ".join(str(error).split())) from None

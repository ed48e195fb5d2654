"""Ledger and reader of the options of verl's model merger, written as `--name value` or `name=value`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.compat.ledger.key_mapping import (
    NUMBER,
    STRING,
    UNSET,
    KeyOwnerHint,
    Ledger,
    mapped,
    no_key_owner,
    not_on_page,
    nullable,
    one_of,
    placement,
    refused,
)
from strop.compat.ledger.reader import ForeignConfig, apply_converters, check_values
from strop.config.load.config_tree import ConfigTree, Source
from strop.config.paths import expand_user
from strop.errors import ConfigError

_FLAGS = ("tie-word-embedding", "is-value-model", "use_cpu_initialization", "private")
_OF_MEGATRON = (
    "it applies only to Megatron's shards; for other shards the model's config.json decides; remove it"
)
_NO_UPLOAD = "Strop does not upload; run `hf upload` after you have checked the folder"
LEDGER = Ledger(
    "verl-merge",
    not_on_page(
        refused(
            "backend",
            "fsdp",
            "Strop does not read Megatron's shards; merge them with verl's model_merger",
            value_type=one_of("fsdp", "megatron"),
        ),
        mapped(
            "local_dir",
            UNSET,
            "local_dir",
            value_type=STRING,
            note="a Strop run folder or checkpoint, or a folder of verl's FSDP shards",
        ),
        mapped("target_dir", "tmp", "target_dir"),
        mapped(
            "hf_model_path",
            None,
            "hf_model_path",
            value_type=nullable(STRING),
            note="folder of the model's config.json and tokenizer, if it is not the shards' folder",
        ),
        mapped(
            "lora_alpha",
            None,
            "lora_alpha",
            value_type=nullable(NUMBER),
            note="Strop's own key: alpha of the adapter in shards, if their files do not record it",
        ),
        refused("tie-word-embedding", False, _OF_MEGATRON),
        refused("is-value-model", False, _OF_MEGATRON),
        placement("use_cpu_initialization", False, "the merger always uses the CPU"),
        refused("hf_upload_path", None, _NO_UPLOAD, value_type=nullable(STRING)),
        refused("private", False, _NO_UPLOAD),
    ),
)


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Options of merging a checkpoint's shards into a Hugging Face folder."""

    local_dir: Path
    target_dir: Path
    hf_model_path: Path | None
    lora_alpha: float | None


def read_verl_merge(arguments: Sequence[str], *, key_owner: KeyOwnerHint = no_key_owner) -> MergeOptions:
    """Read the arguments of `python -m verl.model_merger merge`.

    Raises ConfigError for an option or value that is not accepted, and for a target folder that is not empty.
    """
    tree = ConfigTree()
    for name, value, where in _pairs(arguments, key_owner):
        if tree.has((name,)):
            raise ConfigError(f"{where}: {name} is given twice.")
        tree.set((name,), value, Source("override", where))
    foreign = ForeignConfig(LEDGER, tree, key_owner=key_owner)
    check_values(foreign)
    if not foreign.is_set("local_dir"):
        raise ConfigError(
            "strop verl merge: local_dir is missing; write --local_dir FOLDER --target_dir FOLDER."
        )
    values = apply_converters(foreign).values
    target = expand_user(values["target_dir"])
    try:
        is_used = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise ConfigError(
            f"{foreign.source('target_dir')}: {str(target)[:100]} cannot be a folder: {error.strerror}."
        ) from None
    if is_used:
        raise ConfigError(f"{foreign.source('target_dir')}: {target} is not empty; name a new folder.")
    config_at = values["hf_model_path"]
    return MergeOptions(
        expand_user(values["local_dir"]),
        target,
        None if config_at is None else expand_user(config_at),
        values["lora_alpha"],
    )


def _pairs(
    arguments: Sequence[str], key_owner: KeyOwnerHint
) -> Iterator[tuple[str, str | float | bool, str]]:
    """Name, value and argument of each `--name value`, `--name=value`, `--flag` and `name=value`."""
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, text = argument.removeprefix("--").partition("=")
        if not equals and name in _FLAGS:
            yield name, True, argument
            continue
        if not equals and argument.startswith("--") and rest:
            text, equals = rest.pop(0), " "
        if not equals:
            hint = LEDGER.unknown_key_hint(name, key_owner)
            raise ConfigError(f"{argument}: write options as --name value or name=value{hint}")
        yield name, _number(text) if name == "lora_alpha" else text, argument


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text

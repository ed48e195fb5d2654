"""What verl's model merger is given: options, or the same as key=value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.config.dialects.read import check_written, convert
from strop.config.dialects.row import (
    NUMBER,
    TEXT,
    UNSET,
    always,
    beyond_the_page,
    mapped,
    one_of,
    only,
    or_null,
    placement,
    refused,
)
from strop.config.dialects.theirs import Ledger, Theirs
from strop.config.draft import Draft, Source
from strop.errors import ConfigError

_FLAGS = ("tie-word-embedding", "is-value-model", "use_cpu_initialization", "private")
_OF_MEGATRON = "it is for Megatron's shards alone; of others the model's config.json says it"
_NO_UPLOAD = "nothing is uploaded; do it with `hf upload` when you have looked at the folder"
LEDGER = Ledger(
    "verl-merge",
    beyond_the_page(
        refused(
            "backend",
            "fsdp",
            "Megatron's shards are not read; merge them with verl's own model_merger",
            can=only("fsdp"),
            kind=one_of("fsdp", "megatron"),
        ),
        mapped(
            "local_dir",
            UNSET,
            "local_dir",
            kind=TEXT,
            note="a run folder or checkpoint of Strop's, or shards",
        ),
        mapped("target_dir", "tmp", "target_dir"),
        mapped(
            "hf_model_path",
            None,
            "hf_model_path",
            kind=or_null(TEXT),
            note="where the model's config.json and tokenizer are, if not beside the shards",
        ),
        mapped(
            "lora_alpha",
            None,
            "lora_alpha",
            kind=or_null(NUMBER),
            note="Strop's own: of shards with an adapter whose files do not say it",
        ),
        refused("tie-word-embedding", False, _OF_MEGATRON),
        refused("is-value-model", False, _OF_MEGATRON),
        placement("use_cpu_initialization", False, "the model is put together on the CPU", can=always),
        refused("hf_upload_path", None, _NO_UPLOAD, kind=or_null(TEXT)),
        refused("private", False, _NO_UPLOAD),
    ),
)


@dataclass(frozen=True, slots=True)
class Merging:
    """A checkpoint, and the folder that its model goes to."""

    local_dir: Path
    target_dir: Path
    hf_model_path: Path | None
    lora_alpha: float | None


def read_verl_merge(words: Sequence[str]) -> Merging:
    """Read what `python -m verl.model_merger merge` is given.

    Raises ConfigError for what cannot be taken, and for a target that holds something already.
    """
    draft = Draft()
    for name, value, where in _pairs(words):
        if draft.has((name,)):
            raise ConfigError(f"{where}: {name} is given twice.")
        draft.set((name,), value, Source("override", where))
    theirs = Theirs(LEDGER, draft)
    if not theirs.wrote("local_dir"):
        raise ConfigError("strop verl merge: say what is merged: --local_dir FOLDER --target_dir FOLDER.")
    check_written(theirs)
    values = convert(theirs).values
    target = Path(values["target_dir"]).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{theirs.source('target_dir')}: {target} is not empty; name a new folder.")
    config_at = values["hf_model_path"]
    return Merging(
        Path(values["local_dir"]).expanduser(),
        target,
        None if config_at is None else Path(config_at).expanduser(),
        values["lora_alpha"],
    )


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | float | bool, str]]:
    """Name, value and where it was said, of `--name value`, `--name=value`, `--flag` and `name=value`."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not equals and name in _FLAGS:
            yield name, True, word
            continue
        if not equals and word.startswith("--") and rest:
            text, equals = rest.pop(0), " "
        if not equals:
            raise ConfigError(f"{word}: an option is --name value, or name=value.{LEDGER.suggest(name)}")
        yield name, _number(text) if name == "lora_alpha" else text, word


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text

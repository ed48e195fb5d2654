"""Which split of a dataset a file belongs to, by the Hugging Face hub's naming of files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strop.errors import DataError

_SHARD = re.compile(r"^(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}")
_WORDS = "training|train|validation|valid|val|dev|testing|test|evaluation|eval"
_WORD = re.compile(rf"(?:^|[-._ 0-9])(?P<split>{_WORDS})(?=[-._ 0-9])")
_CANONICAL = {
    "training": "train",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "testing": "test",
    "evaluation": "test",
    "eval": "test",
}


def split_of(filename: str) -> str | None:
    """`train` for `train.parquet`, `gsm8k_train.jsonl` or `train-00000-of-00002.parquet`; None where unsaid.

    As the `datasets` library does: any word before a shard's numbers, else the first of the usual words,
    of which `val` and `dev` mean `validation` and `eval` means `test`.
    """
    match = _SHARD.match(filename) or _WORD.search(filename)
    return canonical(match["split"]) if match else None


def canonical(split: str) -> str:
    """The split that a word stands for."""
    return _CANONICAL.get(split, split)


def say_which(splits: Sequence[str]) -> str:
    """What to write where several splits are there and none is chosen."""
    example = "train" if "train" in splits else splits[0]
    return f"Which to use is not said: write `split: {example}` beside the path"


def files_of_split(files: Sequence[str], split: str | None, folder: str) -> list[str]:
    """The files, given by name, that make up `split`; all of them where their names say no split.

    Raises `DataError` where the names leave it open which files are meant.
    """
    by_split: dict[str | None, list[str]] = {}
    for file in sorted(files):
        by_split.setdefault(split_of(file), []).append(file)
    named = sorted(key for key in by_split if key is not None)
    if split is None:
        if len(by_split) == 1:
            return sorted(files)
        unnamed = ", ".join(by_split.get(None, []))
        beside = f", and files that belong to none of them ({unnamed})" if unnamed else ""
        raise DataError(
            f"{folder} holds files of these splits: {', '.join(named)}{beside}. {say_which(named)}, or name "
            "the files."
        )
    if not named:
        raise DataError(
            f"{folder} has no splits: none of its files is named after one, as train.parquet or "
            f"train-00000-of-00001.parquet would be. Leave out `split: {split}`, or name the files."
        )
    if canonical(split) not in by_split:
        raise DataError(f"{folder} has no split {split!r}; it has {', '.join(named)}.")
    return by_split[canonical(split)]

"""Splits of a dataset by file name, following the naming rules of the Hugging Face hub."""

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
    """`train` for `train.parquet`, `gsm8k_train.jsonl` or `train-00000-of-00002.parquet`; None if not named.

    Like the `datasets` library: any word before a shard's numbers, else the first of the usual words, of
    which `val` and `dev` mean `validation` and `eval` means `test`.
    """
    match = _SHARD.match(filename) or _WORD.search(filename)
    return canonical_split(match["split"]) if match else None


def canonical_split(split: str) -> str:
    """The standard name of a split."""
    return _CANONICAL.get(split, split)


def choose_split_hint(splits: Sequence[str]) -> str:
    """Advice for the case that there are several splits and none is selected."""
    example = "train" if "train" in splits else splits[0]
    return f"Select one: write `split: {example}` next to the path"


def files_of_split(files: Sequence[str], split: str | None, folder: str) -> list[str]:
    """The names of the files of `split`; all files if their names have no split.

    Raises `DataError` if the names do not determine which files to use.
    """
    by_split: dict[str | None, list[str]] = {}
    for file in sorted(files):
        by_split.setdefault(split_of(file), []).append(file)
    named = sorted(key for key in by_split if key is not None)
    if split is None:
        if len(by_split) == 1:
            return sorted(files)
        unnamed = ", ".join(by_split.get(None, []))
        others = f", and files of no split ({unnamed})" if unnamed else ""
        raise DataError(
            f"{folder} holds files of these splits: {', '.join(named)}{others}. {choose_split_hint(named)}, "
            "or name "
            "the files."
        )
    if not named:
        raise DataError(
            f"{folder} has no splits: none of its files is named after one, such as train.parquet or "
            f"train-00000-of-00001.parquet. Remove `split: {split}`, or name the files."
        )
    if canonical_split(split) not in by_split:
        raise DataError(f"{folder} has no split {split!r}; it has {', '.join(named)}.")
    return by_split[canonical_split(split)]

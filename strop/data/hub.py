"""Datasets through the `datasets` library: folders that it saved, and names on the hub."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from strop.config.redact import redact_text
from strop.data.rows import HfDataset
from strop.data.splits import say_which
from strop.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def read_saved(url: str, shown: str, split: str | None, subset: str | None) -> HfDataset:
    """A folder written by `save_to_disk`. Raises `DataError` where split or subset do not fit it."""
    from datasets import load_from_disk

    if subset is not None:
        raise DataError(f"{shown} was saved by `datasets` and has no subsets: leave out `subset: {subset}`.")
    try:
        with _bars_on_terminals_only():
            loaded = load_from_disk(url)
    except IndexError:  # what this library raises for a dataset saved without rows
        raise _empty(shown) from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{shown} looks like a saved `datasets` folder but cannot be read: {_one_line(error)}"
        ) from None
    return _one_split(loaded, shown, split)


def read_hub(name: str, split: str | None, subset: str | None) -> HfDataset:
    """A dataset on the hub, or in its cache. Raises `DataError` where it cannot be loaded."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        with _bars_on_terminals_only():
            loaded = load_dataset(name, subset, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"There is no file or directory {name}, and as a dataset on the Hugging Face hub it cannot be "
            f"loaded: {_one_line(error)}"
        ) from None
    if split is None:
        return _one_split(loaded, name, split)
    return HfDataset(f"{name} ({split})", loaded)


def _one_split(loaded: Dataset | DatasetDict, name: str, split: str | None) -> HfDataset:
    if isinstance(loaded, dict):
        splits = sorted(loaded)
        if split is None and len(splits) > 1:
            raise DataError(f"{name} has the splits {', '.join(splits)}. {say_which(splits)}.")
        if split is not None and split not in loaded:
            raise DataError(f"{name} has no split {split!r}; it has {', '.join(splits)}.")
        chosen = splits[0] if split is None else split
        name, loaded = f"{name} ({chosen})", loaded[chosen]
    elif split is not None:
        raise DataError(f"{name} is a dataset without splits: leave out `split: {split}`.")
    if not len(loaded):
        raise _empty(name)
    return HfDataset(name, loaded)


def _empty(name: str) -> DataError:
    return DataError(f"{name} is empty: it holds no rows.")


def _one_line(error: Exception) -> str:
    return redact_text(" ".join(str(error).split()))


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()

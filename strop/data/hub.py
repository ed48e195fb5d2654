"""Datasets through the `datasets` library: folders that it saved, and names on the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.data.rows import HfDataset
from strop.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def read_saved(url: str, shown: str, split: str | None, subset: str | None) -> HfDataset:
    """A folder written by `save_to_disk`. Raises `DataError` where split or subset do not fit it."""
    from datasets import load_from_disk

    if subset is not None:
        raise DataError(f"{shown} was saved by `datasets` and has no subsets: leave out `subset: {subset}`.")
    try:
        loaded = load_from_disk(url)
    except IndexError:  # what this library raises for a dataset saved without rows
        raise _empty(shown) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{shown} looks like a saved `datasets` folder but cannot be read: {error}") from None
    return _one_split(loaded, shown, split)


def read_hub(name: str, split: str | None, subset: str | None) -> HfDataset:
    """A dataset on the hub, or in its cache. Raises `DataError` where it cannot be loaded."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        loaded = load_dataset(name, subset, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"There is no file or directory {name}, and as a dataset on the Hugging Face hub it cannot be "
            f"loaded: {error}"
        ) from None
    if split is None:
        return _one_split(loaded, name, split)
    return HfDataset(f"{name} ({split})", loaded)


def _one_split(loaded: Dataset | DatasetDict, name: str, split: str | None) -> HfDataset:
    if isinstance(loaded, dict):
        splits = sorted(loaded)
        if split is None and len(splits) > 1:
            raise DataError(
                f"{name} has the splits {', '.join(splits)}, and the run file does not say which to use. "
                f"Write `split: {splits[0]}` beside the path."
            )
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

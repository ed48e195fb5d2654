"""Datasets of the `datasets` library: folders that it saved, and datasets on the Hugging Face hub."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from strop.config.redact import redact_text
from strop.data.sources.columns import TableRow
from strop.data.sources.files import choose_split_hint
from strop.data.sources.rows import HfDatasetRows, Row
from strop.errors import DataError
from strop.workers.hub_requests import hub_fault, limit_hub_requests, warn_of_cache

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def read_saved_dataset(url: str, shown: str, split: str | None, subset: str | None) -> HfDatasetRows:
    """Read a folder written by `save_to_disk`. Raises `DataError` if it does not have the split or subset."""
    from datasets import load_from_disk

    if subset is not None:
        raise DataError(f"{shown} was saved by `datasets` and has no subsets: remove `subset: {subset}`.")
    try:
        with _bars_on_terminals_only():
            loaded = load_from_disk(url)
        found = _one_split(loaded, shown, split)
        found.require_valid()
    except DataError:
        raise
    except IndexError:  # raised by this library for a dataset that was saved without rows
        raise _empty(shown) from None
    except Exception as error:  # noqa: BLE001  (the library reads the values of damaged files without checks)
        raise DataError(
            f"{shown} looks like a saved `datasets` folder but cannot be read: {type(error).__name__}: "
            f"{_one_line(error).rstrip('.')}. Save it again, or restore the folder."
        ) from None
    return found


def read_hub_dataset(name: str, split: str | None, subset: str | None) -> HfDatasetRows:
    """Load a dataset from the hub or its cache. Raises `DataError` if it cannot be loaded."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    limit_hub_requests()
    try:
        with _bars_on_terminals_only(), _cache_without_hub(name) as fault:
            loaded = load_dataset(name, subset, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"There is no file or directory {name}, and it cannot be loaded as a dataset from the Hugging Face hub: "
            f"{fault or _one_line(error).rstrip('.')}. Write the path of a file or folder, or a name of the hub "
            "(owner/name) that this machine can reach or has in its cache."
        ) from None
    found = _one_split(loaded, name, split) if split is None else HfDatasetRows(f"{name} ({split})", loaded)
    try:
        found.require_valid()
    except ValueError as error:  # ArrowInvalid
        raise DataError(
            f"{name} is damaged in the cache of `datasets`: {_one_line(error).rstrip('.')}. Delete its folder there, "
            "and it is loaded again."
        ) from None
    return found


def stream_hub_dataset(name: str, split: str | None, subset: str | None) -> Iterator[tuple[str, Row]]:
    """Location and values of each row of a dataset on the hub, read as it is downloaded. Raises `DataError`."""
    from datasets import IterableDataset, load_dataset
    from datasets.exceptions import DatasetsError

    limit_hub_requests()
    try:
        with _cache_without_hub(name) as fault:
            loaded = load_dataset(name, subset, split=split, streaming=True)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"There is no file or directory {name}, and it cannot be streamed as a dataset from the Hugging Face hub: "
            f"{fault or _one_line(error)}"
        ) from None
    if not isinstance(loaded, IterableDataset):
        splits = sorted(map(str, loaded))
        if len(splits) > 1:
            raise DataError(f"{name} has the splits {', '.join(splits)}. {choose_split_hint(splits)}.")
        loaded = loaded[splits[0]]
    for number, row in enumerate(loaded):
        yield f"{name} row {number} (counting from 0)", TableRow(row)


def _one_split(loaded: Dataset | DatasetDict, name: str, split: str | None) -> HfDatasetRows:
    if isinstance(loaded, dict):
        splits = sorted(loaded)
        if split is None and len(splits) > 1:
            raise DataError(f"{name} has the splits {', '.join(splits)}. {choose_split_hint(splits)}.")
        if split is not None and split not in loaded:
            raise DataError(f"{name} has no split {split!r}; it has {', '.join(splits)}.")
        chosen = splits[0] if split is None else split
        name, loaded = f"{name} ({chosen})", loaded[chosen]
    elif split is not None:
        raise DataError(f"{name} is a dataset without splits: remove `split: {split}`.")
    if not len(loaded):
        raise _empty(name)
    return HfDatasetRows(name, loaded)


def _empty(name: str) -> DataError:
    return DataError(f"{name} is empty: it has no rows.")


def _one_line(error: Exception) -> str:
    return redact_text(" ".join(str(error).split()))


@contextmanager
def _cache_without_hub(name: str) -> Iterator[str | None]:
    """Read the cache alone where the hub does not answer; yields the fault of the hub."""
    from datasets import config

    reason = None if config.HF_HUB_OFFLINE else hub_fault(config.HF_ENDPOINT)
    if reason is None:
        yield None
        return
    warn_of_cache(name, config.HF_ENDPOINT, reason)
    config.HF_HUB_OFFLINE = True
    try:
        yield f"{config.HF_ENDPOINT} cannot be reached ({reason})"
    finally:
        config.HF_HUB_OFFLINE = False


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

"""Custom dataset classes of the user, called like verl calls them: torch `Dataset`s over a list of files.

Items are mappings. For rollouts an item has verl's `raw_prompt` (messages) or the prompt column, and may
have the prompt's tokens as `raw_prompt_ids`, or as `input_ids` with an `attention_mask` for the padding.
Answers are `input_ids` with a `loss_mask`, which is 1 at t if the token after t is trained on (as in the
version of verl that the dialect describes), or columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import TasksetConfig
from strop.config.user_code import ImportPath
from strop.data.encoding.conversation_encoder import EncodedSequence
from strop.data.sources.columns import TableRow
from strop.data.sources.rows import DatasetRows, Row
from strop.errors import ConfigError, DataError
from strop.types import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENS = ("input_ids", "attention_mask", "position_ids", "loss_mask", "raw_prompt_ids", "raw_prompt")
"""Keys of an item that are for verl's trainer; all other keys are columns."""


class CustomDataset:
    """A `RowSource` of the user's class. Raises ConfigError if the class cannot be instantiated."""

    def __init__(self, section: TasksetConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        assert section.dataset is not None
        self._section = section
        self._tokenizer = tokenizer
        self._name = section.dataset.name
        make = ImportPath(self._name, f"data dataset {self._name!r}", "Class", (), ConfigError).load()
        paths = [section.path] if isinstance(section.path, str) else list(section.path)
        files = [path if "://" in path else str(Path(path).expanduser()) for path in paths]
        self.folder = ""
        self._items = _instantiate(make, self._name, files, tokenizer, section.dataset.config)
        if not len(self):
            raise DataError(f"The dataset {self._name} is empty: it has no items.")

    def rows(self) -> DatasetRows:
        """All rows, or the first `limit_tasks`."""
        return DatasetRows([self], self._section.limit_tasks)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Row:
        item = self._item(index)
        row = TableRow({key: _plain(value) for key, value in item.items() if key not in _TOKENS})
        if self._section.prompt not in row:
            row[self._section.prompt] = self._messages(item, index)
        return row

    def where(self, index: int) -> str:
        return f"the dataset {self._name}, item {index} (counting from 0)"

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    @property
    def has_prompt_tokens(self) -> bool:
        """Whether the items have the prompts' tokens."""
        return "loss_mask" not in self._item(0) and not {"raw_prompt_ids", "input_ids"}.isdisjoint(
            self._item(0)
        )

    @property
    def has_answer_tokens(self) -> bool:
        """Whether the items have the tokens of answers to imitate."""
        return {"input_ids", "loss_mask"} <= set(self._item(0))

    def prompts(self) -> Iterator[IntArray]:
        """[P] The tokens of each prompt."""
        return (self._prompt_ids(self._item(index), index) for index in range(len(self)))

    def answers(self) -> Iterator[EncodedSequence]:
        """The tokens and the loss mask of each answer."""
        for index in range(len(self)):
            item = self._item(index)
            real = _array(item.get("attention_mask", np.ones_like(_array(item["input_ids"])))).astype(bool)
            ids, after = _array(item["input_ids"])[real], _array(item["loss_mask"])[real].astype(bool)
            mask = np.concatenate([[False], after[:-1]])
            if not mask.any():
                raise DataError(f"{self.where(index)}: its loss_mask selects no token to train on.")
            yield EncodedSequence(ids.astype(np.int32), mask)

    def _item(self, index: int) -> Mapping[str, Any]:
        try:
            item = self._items[index]
        except Exception as error:
            raise DataError(f"{self.where(index)} raised {type(error).__name__}: {error}") from error
        if not isinstance(item, Mapping):
            raise DataError(f"{self.where(index)} is a {type(item).__name__}; an item must be a mapping.")
        return item

    def _prompt_ids(self, item: Mapping[str, Any], index: int) -> IntArray:
        if "raw_prompt_ids" in item:
            ids = _array(item["raw_prompt_ids"])
        else:
            ids = _array(item["input_ids"])
            ids = ids[_array(item.get("attention_mask", np.ones_like(ids))).astype(bool)]
        if not len(ids):
            raise DataError(f"{self.where(index)}: the prompt is empty: it has no tokens.")
        return ids.astype(np.int32)

    def _messages(self, item: Mapping[str, Any], index: int) -> Any:
        """The prompt as the reward gets it: the messages, or else the text of the tokens."""
        if "raw_prompt" in item:
            return _plain(item["raw_prompt"])
        if {"raw_prompt_ids", "input_ids"}.isdisjoint(item):
            raise DataError(
                f"{self.where(index)} has no prompt: neither {self._section.prompt!r} nor raw_prompt, "
                f"raw_prompt_ids or input_ids. It has {', '.join(item)}."
            )
        return str(self._tokenizer.decode(self._prompt_ids(item, index)))


def _instantiate(
    make: Callable[..., Any],
    name: str,
    files: list[str],
    tokenizer: PreTrainedTokenizerBase,
    config: Mapping[str, Any],
) -> Any:
    """Call the class with those of verl's arguments that it has: verl's SFT classes take `parquet_files`."""
    from omegaconf import OmegaConf

    parameters = inspect.signature(make).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = {"tokenizer": tokenizer, "config": OmegaConf.create(dict(config)), "processor": None}
    taken = {key: value for key, value in given.items() if key in parameters or open_ended}
    taken["parquet_files" if "parquet_files" in parameters else "data_files"] = files
    try:
        items = make(**taken)
    except Exception as error:
        raise ConfigError(
            f"The dataset class {name} could not be instantiated: {type(error).__name__}: {error}. It is "
            "called like in verl, with data_files (parquet_files under sft), tokenizer, config and processor."
        ) from error
    if not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise ConfigError(
            f"The dataset class {name} returns a {type(items).__name__} without __len__ and __getitem__; it "
            "must be a map-style torch Dataset."
        )
    return items


def _array(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values).reshape(-1)


def _plain(value: Any) -> Any:
    """The value without NumPy and torch types, which rewards and Parquet do not support."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value

"""A dataset class of the user's own, as verl calls it: a torch `Dataset` over the files that it is given.

Items are mappings. For rollouts they hold verl's `raw_prompt` (messages) or the prompt's column, and may
hold its tokens as `raw_prompt_ids`, or as `input_ids` with an `attention_mask` over the padding. Answers
are `input_ids` with a `loss_mask`, 1 at t where the token after t is learned (verl's at the page's time),
or columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.imports import Named
from strop.config.schema.data import Taskset
from strop.data.conversation import Encoded
from strop.data.rows import Row, Rows
from strop.errors import ConfigError, DataError
from strop.types import Ints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENS = ("input_ids", "attention_mask", "position_ids", "loss_mask", "raw_prompt_ids", "raw_prompt")
"""What an item holds for the trainer that verl is; all else are columns."""


class OwnDataset:
    """One part of a taskset's rows, made by the class. Raises ConfigError where it cannot be."""

    def __init__(self, section: Taskset, tokenizer: PreTrainedTokenizerBase) -> None:
        assert section.dataset is not None
        self._section = section
        self._tokenizer = tokenizer
        self._name = section.dataset.name
        make = Named(self._name, f"data dataset {self._name!r}", "Class", (), ConfigError).load()
        paths = [section.path] if isinstance(section.path, str) else list(section.path)
        files = [path if "://" in path else str(Path(path).expanduser()) for path in paths]
        self._items = _made(make, self._name, files, tokenizer, section.dataset.config)
        if not len(self):
            raise DataError(f"The dataset {self._name} is empty: it holds no items.")

    def rows(self) -> Rows:
        """All of it, or the first so many."""
        return Rows([self], self._section.limit_tasks)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Row:
        item = self._item(index)
        row = {key: _plain(value) for key, value in item.items() if key not in _TOKENS}
        if self._section.prompt not in row:
            row[self._section.prompt] = self._messages(item, index)
        return row

    def where(self, index: int) -> str:
        return f"the dataset {self._name}, item {index} (counting from 0)"

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    @property
    def has_prompt_tokens(self) -> bool:
        """Whether its items are encoded already."""
        return "loss_mask" not in self._item(0) and not {"raw_prompt_ids", "input_ids"}.isdisjoint(
            self._item(0)
        )

    @property
    def has_answer_tokens(self) -> bool:
        """Whether its items are answers to imitate, encoded."""
        return {"input_ids", "loss_mask"} <= set(self._item(0))

    def prompts(self) -> Iterator[Ints]:
        """[P] The tokens of each prompt."""
        return (self._prompt_ids(self._item(index), index) for index in range(len(self)))

    def answers(self) -> Iterator[Encoded]:
        """Each answer's tokens, and which are learned."""
        for index in range(len(self)):
            item = self._item(index)
            real = _array(item.get("attention_mask", np.ones_like(_array(item["input_ids"])))).astype(bool)
            ids, after = _array(item["input_ids"])[real], _array(item["loss_mask"])[real].astype(bool)
            mask = np.concatenate([[False], after[:-1]])
            if not mask.any():
                raise DataError(f"{self.where(index)}: its loss_mask leaves nothing to learn.")
            yield Encoded(ids.astype(np.int32), mask)

    def _item(self, index: int) -> Mapping[str, Any]:
        try:
            item = self._items[index]
        except Exception as error:
            raise DataError(f"{self.where(index)} raised {type(error).__name__}: {error}") from error
        if not isinstance(item, Mapping):
            raise DataError(f"{self.where(index)} is a {type(item).__name__}; an item is a mapping.")
        return item

    def _prompt_ids(self, item: Mapping[str, Any], index: int) -> Ints:
        if "raw_prompt_ids" in item:
            ids = _array(item["raw_prompt_ids"])
        else:
            ids = _array(item["input_ids"])
            ids = ids[_array(item.get("attention_mask", np.ones_like(ids))).astype(bool)]
        if not len(ids):
            raise DataError(f"{self.where(index)}: the prompt is empty, it has no tokens.")
        return ids.astype(np.int32)

    def _messages(self, item: Mapping[str, Any], index: int) -> Any:
        """What the reward sees: the messages, or else the tokens' text."""
        if "raw_prompt" in item:
            return _plain(item["raw_prompt"])
        if {"raw_prompt_ids", "input_ids"}.isdisjoint(item):
            raise DataError(
                f"{self.where(index)} has no prompt: neither {self._section.prompt!r} nor raw_prompt, "
                f"raw_prompt_ids or input_ids. It has {', '.join(item)}."
            )
        return str(self._tokenizer.decode(self._prompt_ids(item, index)))


def _made(
    make: Callable[..., Any],
    name: str,
    files: list[str],
    tokenizer: PreTrainedTokenizerBase,
    config: Mapping[str, Any],
) -> Any:
    """Called by the names of its own parameters: verl's SFT classes call the files `parquet_files`."""
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
            f"The dataset class {name} could not be made: {type(error).__name__}: {error}. It is called as "
            "verl does, with data_files (parquet_files under sft), tokenizer, config and processor."
        ) from error
    if not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise ConfigError(
            f"The dataset class {name} gives a {type(items).__name__} without __len__ and __getitem__; it "
            "must be a map-style torch Dataset."
        )
    return items


def _array(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values).reshape(-1)


def _plain(value: Any) -> Any:
    """Without NumPy and torch, which rewards and Parquet would stumble over."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value

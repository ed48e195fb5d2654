"""Offline datasets: rows with demonstrations or preferences, as training sequences and pairs of them.

A text column holds plain text, which is trained on from its second token on; answer columns are in `offline_rows.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import DataConfig, EvalTasksetConfig, TasksetConfig
from strop.config.schema.task_order import ColumnOrderConfig
from strop.data.encoding.chat_template import require_encodable
from strop.data.encoding.conversation_encoder import (
    ConversationEncoder,
    EncodedSequence,
)
from strop.data.encoding.truncation import OverlongRule, require_whole_images
from strop.data.epoch_order import TaskOrder
from strop.data.images.prompt_images import RunImages
from strop.data.images.row_images import read_row_images
from strop.data.offline_rows import ConversationRow, conversation_rows
from strop.data.progress_bar import with_progress_bar
from strop.data.sources.columns import value_at
from strop.data.sources.custom_dataset import CustomDataset
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.data.task_order import make_task_order
from strop.errors import DataError
from strop.types import Experience, ExperienceGroup, SegmentRole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ROWS_PER_CHUNK = 256


class OfflineDataset:
    """Encoded demonstrations or preference pairs, in an order that a seed determines and one number resumes."""

    def __init__(
        self, name: str, groups: Sequence[ExperienceGroup], num_filtered: int, order: TaskOrder
    ) -> None:
        self.name = name
        self.num_filtered = num_filtered
        """Number of rows that are not used because they are too long."""
        self._groups = tuple(groups)
        self._order = order

    def __len__(self) -> int:
        return len(self._groups)

    def __str__(self) -> str:
        """`train: 17 rows; 2 of 19 filtered, because they are too long`"""
        text = f"{self.name}: {len(self)} rows"
        if self.num_filtered:
            total = len(self) + self.num_filtered
            return f"{text}; {self.num_filtered} of {total} filtered, because they are too long"
        return text

    @property
    def position(self) -> int:
        """The position in the order, which is all the state to save and to restore. See `EpochOrder`."""
        return self._order.position

    @position.setter
    def position(self, position: int) -> None:
        self._order.position = position

    def rewound_copy(self) -> OfflineDataset:
        """A copy at position 0, for a second reader."""
        answers = OfflineDataset(self.name, self._groups, self.num_filtered, copy(self._order))
        answers.position = 0
        return answers

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` rows in one epoch. Raises `DataError` if there is none."""
        return self._order.steps_per_epoch(n)

    def take(self, n: int) -> list[ExperienceGroup]:
        """The next `n` rows, one group each; fewer only at an epoch's end with `incomplete_batch: keep`."""
        return [self._groups[index] for index in self._order.take(n).tolist()]

    def all_groups(self) -> tuple[ExperienceGroup, ...]:
        """Every row once, in the order of the dataset; does not change the position."""
        return self._groups


def load_offline_dataset(
    section: TasksetConfig,
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    seed: int,
    shuffle: bool,
    order: ColumnOrderConfig | None = None,
    images: RunImages | None = None,
) -> OfflineDataset:
    """Read, check and encode every row of a taskset with a column `response`, or `chosen` and `rejected`.

    `order` is `data.order`; `images` are those of a model that reads images. Raises `DataError`, which names the row,
    for a row without an answer or an assistant turn, for an image that cannot be used, and for a row that is too long
    under `overlong: error`; `ModelError` for a tokenizer that cannot be used.
    """
    rows, encoded = _rows_and_answers(section, tokenizer, data, images, name)
    pad = None if images is None else images.processor.image_token_id
    limit = data.max_prompt_tokens + data.max_response_tokens
    groups: list[ExperienceGroup] = []
    numbers, num_filtered = [], 0
    for number, of_row in enumerate(with_progress_bar(encoded, len(rows), f"Encoding the answers of {name}")):
        where = rows.where(number)
        fitted = [_fit(one, data.overlong, limit, where, pad) for one in of_row]
        kept = [one for one in fitted if one is not None]
        if len(kept) == len(fitted):
            groups.append(_group(f"{name}:{number}", where, kept))
            numbers.append(number)
        else:
            num_filtered += 1
    if not groups:
        raise DataError(
            f"All {len(rows)} rows of {name} are longer than data.max_prompt_tokens + max_response_tokens "
            f"({limit} tokens), so there is nothing to train on. Write a higher limit."
        )
    task_order = make_task_order(
        order,
        rows,
        np.array(numbers, dtype=np.int64),
        seed=seed,
        shuffle=shuffle,
        incomplete=data.incomplete_batch,
        name=name,
    )
    return OfflineDataset(name, groups, num_filtered, task_order)


def mixed_dataset(members: Sequence[OfflineDataset], order: TaskOrder) -> OfflineDataset:
    """One dataset of all rows, in an order over the rows of the first one, then the second one, and so on."""
    groups = [group for member in members for group in member.all_groups()]
    return OfflineDataset("train", groups, sum(member.num_filtered for member in members), order)


def check_offline_images(
    section: TasksetConfig, data: DataConfig, images: RunImages | None, name: str
) -> None:
    """Read every row's conversations and their images. Raises `DataError` for the first that cannot be used."""
    rows = read_rows(section)
    for _ in conversation_rows(rows, section, read_row_images(rows, section, data.images, images, name)):
        pass


def is_offline_taskset(section: EvalTasksetConfig) -> bool:
    """Whether an eval taskset is evaluated by its loss on demonstrations."""
    return not section.is_sampled


def _rows_and_answers(
    section: TasksetConfig,
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    images: RunImages | None,
    name: str,
) -> tuple[DatasetRows, Iterator[list[EncodedSequence]]]:
    """The rows, and for each one training sequence or a pair of them."""
    if section.text is not None:
        rows = read_rows(section)
        return rows, ([sequence] for sequence in _texts(rows, section.text, tokenizer))
    custom = None if section.dataset is None else CustomDataset(section, tokenizer)
    rows = read_rows(section) if custom is None else custom.rows()
    if custom is not None and custom.has_answer_tokens:
        return rows, ([answer] for answer in islice(custom.answers(), len(rows)))
    row_images = read_row_images(rows, section, data.images, images, name)
    processor = None if images is None else images.processor
    encoder = ConversationEncoder(tokenizer, data.chat_template, data.chat_template_args, processor)
    return rows, _encoded(conversation_rows(rows, section, row_images), encoder)


def _texts(rows: DatasetRows, column: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[EncodedSequence]:
    """The texts of a column with the tokenizer's own special tokens; the first token has no token before it."""
    for start in range(0, len(rows), _ROWS_PER_CHUNK):
        numbers = range(start, min(start + _ROWS_PER_CHUNK, len(rows)))
        texts = [_text(rows[number], column, rows.where(number)) for number in numbers]
        encoded = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
        for number, ids in zip(numbers, encoded, strict=True):
            if len(ids) < 2:
                raise DataError(
                    f"{rows.where(number)}: the text in the column {column!r} has {len(ids)} tokens; a text needs "
                    "two, because no token precedes the first one. Remove the row."
                )
            loss_mask = np.ones(len(ids), dtype=np.bool_)
            loss_mask[0] = False
            yield EncodedSequence(np.array(ids, dtype=np.int32), loss_mask)


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = value_at(row, column, where)
    if not isinstance(value, str):
        raise DataError(
            f"{where}: the column {column!r} has {value!r:.60}; data.train.text names a column of text."
        )
    require_encodable(value, where)
    return value


def _encoded(
    rows: Iterator[ConversationRow], encoder: ConversationEncoder
) -> Iterator[list[EncodedSequence]]:
    while chunk := list(islice(rows, _ROWS_PER_CHUNK)):
        encoded = iter(encoder.encode_all([c for row in chunk for c in row.conversations]))
        yield from ([next(encoded) for _ in row.conversations] for row in chunk)


def _fit(
    encoded: EncodedSequence, rule: OverlongRule, limit: int, where: str, image_token_id: int | None
) -> EncodedSequence | None:
    """The sequence, truncated at its beginning or end under the rules `left` and `right`; None for a row that is
    filtered, or has no trained token left."""
    if len(encoded.token_ids) <= limit:
        return encoded
    if rule == "filter":
        return None
    if rule in ("left", "right"):
        kept = slice(-limit, None) if rule == "left" else slice(limit)
        numbers = np.arange(len(encoded.token_ids), dtype=np.int32)
        require_whole_images(encoded.token_ids, numbers[kept], image_token_id, where)
        shorter = EncodedSequence(encoded.token_ids[kept], encoded.loss_mask[kept].copy(), encoded.media)
        shorter.loss_mask[0] = False  # no token precedes it
        return shorter if shorter.loss_mask.any() else None
    raise DataError(
        f"{where}: prompt and answer have {len(encoded.token_ids)} tokens, more than "
        f"data.max_prompt_tokens + max_response_tokens ({limit}). Write a higher limit, or data.overlong: "
        "filter to skip such rows, or right or left to truncate their end or their beginning."
    )


def _group(task_id: str, where: str, encoded: Sequence[EncodedSequence]) -> ExperienceGroup:
    if len(encoded) == 1:
        return ExperienceGroup(task_id, (_experience(task_id, 0, encoded[0], "sft"),))
    better = _experience(task_id, 0, encoded[0], "chosen")
    worse = _experience(task_id, 1, encoded[1], "rejected")
    shared = better.prompt_tokens
    if not np.array_equal(better.token_ids[:shared], worse.token_ids[: worse.prompt_tokens]):
        raise DataError(
            f"{where}: the chat template renders the prompts of the chosen and of the rejected answer "
            "differently, so the answers cannot be compared. Write another template under data.chat_template."
        )
    return ExperienceGroup(task_id, (better, worse))


def _experience(task_id: str, index: int, encoded: EncodedSequence, role: SegmentRole) -> Experience:
    nothing = np.zeros(len(encoded.token_ids), dtype=np.float32)
    return Experience(
        id=f"{task_id}-{index}",
        task_id=task_id,
        group=task_id,
        index=index,
        turn=0,
        token_ids=encoded.token_ids,
        loss_mask=encoded.loss_mask,
        sampler_logprobs=nothing,
        policy_logprobs=nothing,
        reward=0.0,
        status="ok",
        temperature=1.0,
        versions=(),
        role=role,
        pair=None if role == "sft" else task_id,
        media=encoded.media,
    )

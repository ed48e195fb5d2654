"""Offline datasets: rows with demonstrations, preferences or labels, as training sequences and pairs of them.

A text column holds plain text, which is trained on from its second token on; answer columns are in `offline_rows.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import ColumnOrderConfig, DataConfig, EvalTasksetConfig, TasksetConfig
from strop.config.schema.preference import RewardModelingConfig
from strop.data.encoding.chat_template import encode_plain, require_encodable
from strop.data.encoding.conversation_encoder import (
    ConversationEncoder,
    EncodedSequence,
    TrainingConversation,
    turn_ends,
)
from strop.data.encoding.model_tokens import ModelTokens
from strop.data.encoding.truncation import fit_answers
from strop.data.encoding.turn_encoder import TurnEnds
from strop.data.images.prompt_images import RunImages, read_row_images
from strop.data.offline_rows import (
    ConversationRow,
    contradictions,
    conversation_rows,
    read_labels,
    row_target,
    step_labels,
    unpair,
)
from strop.data.progress_bar import with_progress_bar
from strop.data.row_keys import RowKeys
from strop.data.row_packing import pack_rows
from strop.data.sources.columns import value_at
from strop.data.sources.custom_dataset import CustomDataset
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows, Row
from strop.data.task_order import TaskOrder, make_task_order
from strop.errors import DataError
from strop.types import Experience, ExperienceGroup, SegmentRole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ROWS_PER_CHUNK = 256


@dataclass(frozen=True, slots=True)
class OfflineCounts:
    """Numbers of rows and turns that are not used, or not as they are written."""

    too_long: int = 0
    """Rows that are filtered because they are too long, or have nothing left to train on after truncation."""
    truncated: int = 0
    """Rows that are truncated."""
    equal: int = 0
    """Pairs that are filtered because their responses are equal."""
    contradictory: int = 0
    """Rows that are filtered because equal responses have both labels."""
    turns: int = 0
    """Trained turns before truncation."""
    unended: int = 0
    """Trained turns without a token at their end at which sampling stops."""
    packed: int = 0
    """Rows that `data.packing` puts into sequences."""

    def __add__(self, other: OfflineCounts) -> OfflineCounts:
        return OfflineCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class OfflineDataset:
    """Encoded demonstrations, preference pairs or labeled responses, in an order that a seed determines and one number
    resumes."""

    def __init__(
        self,
        name: str,
        groups: Sequence[ExperienceGroup],
        counts: OfflineCounts,
        order: TaskOrder,
        key_notes: Sequence[str] = (),
    ) -> None:
        """`key_notes` say which keys of the rows are not read, without the name."""
        self.name = name
        self.counts = counts
        self.key_notes = tuple(key_notes)
        self._groups = tuple(groups)
        self._order = order

    def __len__(self) -> int:
        return len(self._groups)

    def __str__(self) -> str:
        """`train: 17 rows; 2 of 19 filtered, because they are too long`"""
        counts, used = self.counts, self.counts.packed or len(self)
        text = f"{self.name}: {used} rows" + (f" in {len(self)} sequences" if counts.packed else "")
        total = used + counts.too_long + counts.equal + counts.contradictory
        if counts.too_long:
            text += f"; {counts.too_long} of {total} filtered, because they are too long"
        if counts.equal:
            text += f"; {counts.equal} of {total} filtered, because chosen and rejected are equal"
        if counts.contradictory:
            text += f"; {counts.contradictory} of {total} filtered, because equal responses have both labels"
        return f"{text}; {counts.truncated} of them truncated" if counts.truncated else text

    def notes(self) -> Iterator[str]:
        """The dataset in one line, a warning about turns that the model is not trained to end, and a line for each kind
        of key of its rows that is not read."""
        yield str(self)
        yield from unended_note(self.name, self.counts)
        yield from (f"{self.name}: {note}" for note in self.key_notes)

    def require_different_labels(self) -> None:
        """Raise `DataError` if all responses have the same label or score."""
        require_different_labels(self._groups, self.name)

    @property
    def position(self) -> int:
        """The position in the order, which is all the state to save and to restore. See `EpochOrder`."""
        return self._order.position

    @position.setter
    def position(self, position: int) -> None:
        self._order.position = position

    def rewound_copy(self) -> OfflineDataset:
        """A copy at position 0, for a second reader."""
        answers = OfflineDataset(self.name, self._groups, self.counts, copy(self._order))
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
    tokens: ModelTokens | None = None,
    unpaired: bool = False,
    reward_model: RewardModelingConfig | None = None,
) -> OfflineDataset:
    """Read, check and encode every row of a taskset with a column `response`, or `chosen` and `rejected`.

    `order` is `data.order`; `images` are those of a model that reads images; `tokens` are the model's, by default those
    of the folder of the tokenizer; `unpaired` makes a desirable and an undesirable row of each pair; `reward_model`
    is the algorithm that trains one. Raises `DataError`, which names the row, for a row without an answer, a label, a
    score or an assistant turn, for an image that cannot be used, and for a row that is too long under
    `overlong: error`; `ModelError` for a tokenizer that cannot be used.
    """
    also_read = [] if order is None else [order.column]
    found = encode_offline_rows(
        section,
        data,
        tokenizer,
        name=name,
        seed=seed,
        images=images,
        tokens=tokens,
        also_read=also_read,
        reward_model=reward_model,
    )
    found.require_some(data, name)
    groups, numbers = found.groups, found.numbers
    if unpaired and section.chosen is not None:
        sides = unpair(groups)
        groups = tuple(group for _, group in sides)
        numbers = tuple(found.numbers[number] for number, _ in sides)
    task_order = make_task_order(
        order,
        found.rows,
        np.array(numbers, dtype=np.int64),
        seed=seed,
        shuffle=shuffle,
        incomplete=data.incomplete_batch,
        name=name,
    )
    return OfflineDataset(name, groups, found.counts, task_order, found.key_notes)


def require_different_labels(groups: Sequence[ExperienceGroup], name: str) -> None:
    """Raise `DataError` if all responses have the same label or score, or all steps of responses the same label."""
    every = [experience for group in groups for experience in group.experiences]
    roles = {experience.role for experience in every}
    if roles == {"stepwise"}:
        found = {label for experience in every for label in experience.turn_rewards or ()}
        if len(found) < 2:
            raise DataError(
                f"All steps of the {len(groups)} rows of {name} have the label {found.pop():g}, from which a "
                "classifier learns nothing but that label. Add rows with steps of the other label."
            )
    elif roles == {"scored"}:
        scores = {experience.reward for experience in every}
        if len(scores) < 2:
            raise DataError(
                f"All {len(groups)} rows of {name} have the score {scores.pop():g}, from which a classifier learns "
                "nothing but that score. Add rows with other scores."
            )
    elif len(roles) < 2:
        raise DataError(
            f"All {len(groups)} rows of {name} are labeled {roles.pop()}. The loss compares the two labels, "
            "and with one of them alone it falls the more, the further the model moves from the reference. Add rows "
            "with the other label, or train on desirable responses alone with algorithm sft."
        )


@dataclass(frozen=True, slots=True)
class OfflineRows:
    """Encoded rows of a taskset."""

    rows: DatasetRows
    numbers: tuple[int, ...]
    """Number of each group's row; of packed sequences their own."""
    groups: tuple[ExperienceGroup, ...]
    counts: OfflineCounts
    key_notes: tuple[str, ...]
    """Keys of the rows that are not read, without the name of the taskset."""

    def require_some(self, data: DataConfig, name: str) -> None:
        """Raise `DataError` if all rows are filtered."""
        if self.groups:
            return
        limit = data.max_prompt_tokens + data.max_response_tokens
        equal, contradictory = self.counts.equal, self.counts.contradictory
        raise DataError(
            f"All {len(self.rows)} rows of {name} are filtered: {self.counts.too_long} are longer than "
            f"data.max_prompt_tokens + max_response_tokens ({limit} tokens)"
            f"{f', and {equal} are pairs of equal responses' if equal else ''}"
            f"{f', and {contradictory} are equal responses with both labels' if contradictory else ''}, so there is "
            "nothing to train on. Write "
            "a higher limit, or other rows."
        )


def encode_offline_rows(
    section: TasksetConfig,
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    seed: int,
    images: RunImages | None = None,
    tokens: ModelTokens | None = None,
    also_read: Sequence[str] = (),
    reward_model: RewardModelingConfig | None = None,
) -> OfflineRows:
    """Read, check, encode and pack every row; see `load_offline_dataset`. `also_read` are columns that others read."""
    tokens = tokens or ModelTokens.of_tokenizer(tokenizer)
    keys = RowKeys(section, also_read)
    rows, encoded, encoder = _rows_and_answers(
        section, tokenizer, data, images, name, keys, tokens, reward_model
    )
    pad = None if images is None else images.processor.image_token_id
    limit = data.max_prompt_tokens + data.max_response_tokens
    packing, counts = data.packing, Counter[str]()
    cuts_rows = packing is not None and packing.strategy != "bfd"
    used: list[list[EncodedSequence]] = []
    numbers: list[int] = []
    labels: list[bool | None] = []
    row_labels = read_labels(rows, section)
    for number, of_row in enumerate(with_progress_bar(encoded, len(rows), f"Encoding the answers of {name}")):
        where = rows.where(number)
        for one in of_row:
            tokens.require_known(one.token_ids, where, tokenizer)
        if reward_model is not None:
            _mark_after_shared_tokens(of_row)
        _check_pair(of_row, where)
        for one in of_row if reward_model is None else ():
            last = _last_tokens(one)
            counts["turns"] += len(last)
            counts["unended"] += sum(token not in tokens.end_ids for token in last)
        if packing is not None and any(one.media for one in of_row):
            raise DataError(f"{where} has an image, and data.packing packs text only. Remove data.packing.")
        kept = of_row if cuts_rows else fit_answers(of_row, data.overlong, limit, where, pad)
        if kept is None:
            counts["too_long"] += 1
            continue
        is_truncated = any(len(a.token_ids) < len(b.token_ids) for a, b in zip(kept, of_row, strict=True))
        if _is_equal_pair(kept):
            _require_filter(section, where, is_truncated)
            counts["equal"] += 1
            continue
        counts["truncated"] += is_truncated
        used.append(kept)
        numbers.append(number)
        labels.append(None if row_labels is None else row_labels[number])
    if contrary := contradictions(used, labels):
        _require_filtered_labels(
            section, *(rows.where(numbers[each]) for each in next(iter(contrary.items())))
        )
        counts["contradictory"] = len(contrary)
        left = [position for position in range(len(used)) if position not in contrary]
        used = [used[position] for position in left]
        numbers, labels = [numbers[position] for position in left], [labels[position] for position in left]
    groups = [
        _group(f"{name}:{number}", each, label)
        for number, each, label in zip(numbers, used, labels, strict=True)
    ]
    if reward_model is not None:
        with_target = _with_target if section.steps is None else _with_step_labels
        groups = [
            with_target(group, rows[number], section, rows.where(number))
            for number, group in zip(numbers, groups, strict=True)
        ]
    if packing is not None:
        counts["packed"] = len(used)
        packed = pack_rows(
            [one for (one,) in used],
            packing,
            limit=limit,
            seed=seed,
            trains_first=section.text is not None or section.train_on_prompt,
        )
        groups = [_packed_group(f"{name}:sequence-{number}", each) for number, each in enumerate(packed)]
        numbers = [*range(len(groups))]
    template = encoder.template if encoder is not None and keys.need_template else None
    key_notes = tuple(keys.notes(template))
    return OfflineRows(rows, tuple(numbers), tuple(groups), OfflineCounts(**counts), key_notes)


def unended_note(name: str, counts: OfflineCounts) -> Iterator[str]:
    """A warning about the trained turns of a dataset that have no end token."""
    if counts.unended:
        yield (
            f"warning: {name}: {counts.unended} of {counts.turns} trained turns do not end with a token at which "
            "sampling stops (eos_token_id of generation_config.json or config.json, and the tokenizer's eos_token), so "
            "the model is not trained to end them. Write, under data.chat_template, a template that ends each response "
            "with such a token, or add the token that the template writes to eos_token_id of generation_config.json."
        )


def _last_tokens(encoded: EncodedSequence) -> list[int]:
    """The last token of each trained turn."""
    mask = encoded.loss_mask
    last: list[int] = encoded.token_ids[mask & ~np.append(mask[1:], False)].tolist()
    return last


def _is_equal_pair(encoded: Sequence[EncodedSequence]) -> bool:
    if len(encoded) == 1:
        return False
    better, worse = encoded
    return np.array_equal(better.token_ids, worse.token_ids) and better.media == worse.media


def _require_filter(section: TasksetConfig, where: str, is_truncated: bool) -> None:
    """Raise `DataError` for a pair of equal responses, unless the taskset filters them."""
    if section.equal_pairs == "error":
        after, limit = (" after truncation", "write a higher limit, ") if is_truncated else ("", "")
        raise DataError(
            f"{where}: {section.chosen!r} and {section.rejected!r} are equal{after}; a pair needs two different "
            f"answers. Remove the row, {limit}or write equal_pairs: filter in the taskset to drop and count such pairs."
        )


def _require_filtered_labels(section: TasksetConfig, first: str, second: str) -> None:
    """Raise `DataError` for equal responses with both labels, unless the taskset filters them."""
    if section.equal_pairs == "error":
        raise DataError(
            f"{first} and {second} have the same prompt and response with both labels, so that their gradients cancel. "
            "Remove one of them, or write equal_pairs: filter in the taskset to drop and count all such rows."
        )


def _check_pair(encoded: Sequence[EncodedSequence], where: str) -> None:
    """Raise `DataError` for a pair whose sequences do not begin with the same prompt."""
    prompts = [one.token_ids[: int(one.loss_mask.argmax())] for one in encoded]
    if not np.array_equal(prompts[0], prompts[-1]):
        raise DataError(
            f"{where}: the chat template renders the prompts of the chosen and of the rejected answer "
            "differently, so the answers cannot be compared. Write another template under data.chat_template."
        )


def mixed_dataset(members: Sequence[OfflineDataset], order: TaskOrder) -> OfflineDataset:
    """One dataset of all rows, in an order over the rows of the first one, then the second one, and so on."""
    groups = [group for member in members for group in member.all_groups()]
    key_notes = [f"{member.name}: {note}" for member in members for note in member.key_notes]
    counts = sum((member.counts for member in members), OfflineCounts())
    return OfflineDataset("train", groups, counts, order, key_notes)


def check_offline_images(
    section: TasksetConfig, data: DataConfig, images: RunImages | None, name: str
) -> None:
    """Read every row's conversations and their images. Raises `DataError` for the first that cannot be used."""
    rows = read_rows(section)
    row_images = read_row_images(rows, section, data.images, images, name)
    for _ in conversation_rows(rows, section, data, row_images, RowKeys(section)):
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
    keys: RowKeys,
    tokens: ModelTokens,
    reward_model: RewardModelingConfig | None,
) -> tuple[DatasetRows, Iterator[list[EncodedSequence]], ConversationEncoder | None]:
    """The rows, for each one training sequence or a pair, and their encoder; `keys` counts what is not read."""
    if section.text is not None:
        rows, ends = read_rows(section), turn_ends(tokenizer, tokens)
        return rows, ([sequence] for sequence in _texts(rows, section.text, tokenizer, keys, ends)), None
    custom = None if section.dataset is None else CustomDataset(section, tokenizer)
    rows = read_rows(section) if custom is None else custom.rows()
    if custom is not None and custom.has_answer_tokens:
        return rows, ([answer] for answer in islice(custom.answers(), len(rows))), None
    row_images = read_row_images(rows, section, data.images, images, name)
    processor = None if images is None else images.processor
    encoder = ConversationEncoder(
        tokenizer,
        data.chat_template,
        data.chat_template_args,
        processor,
        raw_text=data.text_prompts == "raw",
        tokens=tokens,
    )
    encode = encoder.encode_all
    if reward_model is not None and section.steps is not None:
        encode = partial(
            encoder.encode_steps, separator=section.step_separator, append_eos=reward_model.append_eos
        )
    elif reward_model is not None:
        encode = partial(encoder.encode_whole, append_eos=reward_model.append_eos)
    return rows, _encoded(conversation_rows(rows, section, data, row_images, keys), encode), encoder


def _texts(
    rows: DatasetRows, column: str, tokenizer: PreTrainedTokenizerBase, keys: RowKeys, ends: TurnEnds
) -> Iterator[EncodedSequence]:
    """The texts of a column, each with the tokens that the tokenizer writes before a text, and one end token; the first
    token has no token before it."""
    for start in range(0, len(rows), _ROWS_PER_CHUNK):
        numbers = range(start, min(start + _ROWS_PER_CHUNK, len(rows)))
        texts = [_text(rows[number], column, rows.where(number), keys) for number in numbers]
        encoded = encode_plain(tokenizer, list(map(ends.closed, texts)))
        for number, ids in zip(numbers, encoded, strict=True):
            if len(ids) < 2:
                raise DataError(
                    f"{rows.where(number)}: the text in the column {column!r} has {len(ids)} tokens; a text needs "
                    "two, because no token precedes the first one. Remove the row."
                )
            loss_mask = np.ones(len(ids), dtype=np.bool_)
            loss_mask[0] = False
            yield EncodedSequence(np.array(ids, dtype=np.int32), loss_mask)


def _text(row: Mapping[str, Any], column: str, where: str, keys: RowKeys) -> str:
    value = value_at(row, column, where)
    keys.add_trained(row, where)
    if not isinstance(value, str):
        raise DataError(
            f"{where}: the column {column!r} has {value!r:.60}; data.train.text names a column of text."
        )
    if not value:
        raise DataError(f"{where}: the text in the column {column!r} is empty. Remove the row.")
    require_encodable(value, where)
    return value


def _encoded(
    rows: Iterator[ConversationRow],
    encode: Callable[[Sequence[TrainingConversation]], list[EncodedSequence]],
) -> Iterator[list[EncodedSequence]]:
    while chunk := list(islice(rows, _ROWS_PER_CHUNK)):
        encoded = iter(encode([c for row in chunk for c in row.conversations]))
        yield from ([next(encoded) for _ in row.conversations] for row in chunk)


def _mark_after_shared_tokens(encoded: Sequence[EncodedSequence]) -> None:
    """Make the tokens with which both sequences of a pair begin their prompt, which a micro-batch holds once."""
    if len(encoded) == 1:
        return
    shorter = min(len(one.token_ids) for one in encoded)
    first, second = (one.token_ids[:shorter] for one in encoded)
    differ = np.flatnonzero(first != second)
    shared = min(int(differ[0]) if len(differ) else shorter, shorter - 1)
    for one in encoded:
        one.loss_mask[:shared] = False


def _with_step_labels(
    group: ExperienceGroup, row: Row, section: TasksetConfig, where: str
) -> ExperienceGroup:
    """The group with the labels of the steps that truncation has left."""
    (one,) = group.experiences
    labels = step_labels(row, section, where)[: one.response_tokens]
    return replace(group, experiences=(replace(one, role="stepwise", turn_rewards=labels),))


def _with_target(group: ExperienceGroup, row: Row, section: TasksetConfig, where: str) -> ExperienceGroup:
    """The group with what a reward model learns as the reward of its first sequence: a score, or the margin over the
    second one, whose reward is 0."""
    first, *others = group.experiences
    target = row_target(row, section, where)
    role: SegmentRole = "chosen" if others else "scored"
    return replace(group, experiences=(replace(first, role=role, reward=target), *others))


def _group(task_id: str, encoded: Sequence[EncodedSequence], label: bool | None) -> ExperienceGroup:
    roles: tuple[SegmentRole, ...] = ("sft",) if len(encoded) == 1 else ("chosen", "rejected")
    if label is not None:
        roles = ("desirable" if label else "undesirable",)
    return ExperienceGroup(
        task_id,
        tuple(
            _experience(task_id, i, one, role)
            for i, (one, role) in enumerate(zip(encoded, roles, strict=True))
        ),
    )


def _packed_group(task_id: str, rows: Sequence[EncodedSequence]) -> ExperienceGroup:
    return ExperienceGroup(
        task_id, tuple(_experience(task_id, index, row, "sft") for index, row in enumerate(rows))
    )


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
        pair=task_id if role in ("chosen", "rejected") else None,
        media=encoded.media,
    )

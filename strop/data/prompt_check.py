"""Check of every row of a taskset before the start: columns, prompts, images, and prompts that are too long.

Only prompts that may be too long are encoded. The result for large files is cached by the contents of the file, the
settings and the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.messages import to_messages, to_tools
from strop.data.encoding.model_tokens import ModelTokens
from strop.data.encoding.prompt_bounds import plain_roles
from strop.data.encoding.prompt_store import PromptStore, encode_prompts
from strop.data.encoding.truncation import KeptRows, kept_rows
from strop.data.few_shot import read_examples, with_examples
from strop.data.images.prompt_images import RowImages
from strop.data.progress_bar import with_progress_bar
from strop.data.prompt_columns import prompt_columns, prompt_value
from strop.data.row_keys import RowKeys
from strop.data.sources.cache import cache_key, find_entry, new_entry
from strop.data.sources.columns import row_tools, system_message, value_at
from strop.data.sources.custom_dataset import CustomDataset
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.types import IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED_FROM_ROWS = 20_000
"""Number of rows from which the result of the check is cached."""
_LAYOUT = 2
_FILE = "rows.npy"


@dataclass(frozen=True, slots=True)
class CheckedPrompts:
    """Rows whose prompts can be used."""

    kept: KeptRows
    digest: str
    """Hash of the prompts of all rows, before encoding."""
    notes: tuple[str, ...] = ()
    """Keys of the rows that are not read, or not as their own."""


def check_prompts(
    rows: DatasetRows,
    section: TasksetConfig,
    data: DataConfig,
    row_images: RowImages,
    encoder: PromptEncoder,
    store: PromptStore,
    name: str,
) -> CheckedPrompts:
    """Check all rows; `store` keeps the prompts that had to be encoded. Raises `DataError`, which names the row."""
    key = _cache_key(rows, section, data, row_images, encoder)
    if key is not None and (found := find_entry(key)) is not None:
        folder, facts = found
        kept = KeptRows(np.load(folder / _FILE), facts["num_overlong"])
        return CheckedPrompts(kept, facts["digest"], tuple(facts["notes"]))
    digest = hashlib.sha256()
    images = row_images.images
    keys = RowKeys(section)
    prompts = _prompts(rows, section, row_images, digest, keys)
    encoded = encode_prompts(encoder, prompts, data.tokenize_workers, limit=data.max_prompt_tokens)
    kept = kept_rows(
        _stored(with_progress_bar(encoded, len(rows), f"Checking the prompts of {name}"), store),
        data.overlong,
        data.max_prompt_tokens,
        rows.where,
        None if images is None else images.processor.image_token_id,
    )
    checked = CheckedPrompts(kept, digest.hexdigest(), prompt_notes(keys, encoder))
    if key is not None:
        _write(key, checked)
    return checked


def prompt_notes(keys: RowKeys, encoder: PromptEncoder) -> tuple[str, ...]:
    """Keys of rows that are not read, or not as their own, by the encoder's template."""
    return keys.notes(encoder.template if keys.need_template else None)


def check_token_prompts(
    rows: DatasetRows,
    custom: CustomDataset,
    data: DataConfig,
    store: PromptStore,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    tokens: ModelTokens | None,
) -> CheckedPrompts:
    """Check the prompts of a dataset class that encodes them itself, and keep all of them in `store`."""
    digest = hashlib.sha256()

    def prompts() -> Iterator[IntArray]:
        for number, prompt in enumerate(islice(custom.prompts(), len(rows))):
            if tokens is not None:
                tokens.require_known(prompt, rows.where(number), tokenizer)
            digest.update(len(prompt).to_bytes(4, "little") + prompt.tobytes())
            yield prompt

    shown = with_progress_bar(prompts(), len(rows), f"Reading the prompts of {name}")
    kept = kept_rows(_stored(shown, store), data.overlong, data.max_prompt_tokens, rows.where)
    return CheckedPrompts(kept, digest.hexdigest())


def to_prompt(row: Mapping[str, Any], where: str, section: TasksetConfig) -> ChatPrompt:
    """The prompt of a row, whose images have no places yet. Raises `DataError` if a column is missing."""
    value = prompt_value(row, where, section)
    messages = to_messages(value, where, system=system_message(row, where, section))
    messages = _with_final_turn(messages, where, section)
    if section.few_shot is not None:
        messages = with_examples(messages, section.few_shot, where)
    tools = () if section.tools is None else to_tools(row_tools(row, where, section), where)
    return ChatPrompt(where, messages, tools, section.reply_prefix, is_text=isinstance(value, str))


def _with_final_turn(
    messages: tuple[Message, ...], where: str, section: TasksetConfig
) -> tuple[Message, ...]:
    """The messages, of which a last one by the assistant is continued or dropped. Raises `DataError` for others."""
    last = messages[-1]
    if last["role"] != "assistant":
        return messages
    if last.get("prefix") is True or section.final_assistant == "continue":
        return (*messages[:-1], {key: value for key, value in last.items() if key != "prefix"})
    if section.final_assistant == "drop" and len(messages) > 1:
        return _with_final_turn(messages[:-1], where, section)
    raise DataError(
        f"{where}: the prompt ends with a message of the assistant, {str(last['content'])[:60]!r}. Write "
        "final_assistant: drop in the taskset if that is an answer that was left in, or final_assistant: continue (in "
        "the row, prefix: true in that message) if the sampled response continues it."
    )


def answer_and_source(row: Mapping[str, Any], where: str, section: TasksetConfig) -> tuple[Any, str]:
    """The reference answer and the data source of a row. Raises `DataError` if a column is missing."""
    answer = None if section.answer is None else value_at(row, section.answer, where)
    source = "" if section.source is None else value_at(row, section.source, where)
    if not isinstance(source, str):
        raise DataError(f"{where}: the source, column {section.source!r}, is {source!r} and not text.")
    return answer, source


def _prompts(
    rows: DatasetRows, section: TasksetConfig, row_images: RowImages, digest: hashlib._Hash, keys: RowKeys
) -> Iterator[ChatPrompt]:
    """The prompt of each row; also checks the other columns of the row, and counts keys that are not read."""
    wanted = [
        *prompt_columns(section),
        *(path for path in (section.answer, section.source) if path is not None),
    ]
    wanted += keys.sampled_columns(rows[0]) if len(rows) else []
    for number, (where, row) in enumerate(zip(rows.locations(), rows.scan(wanted), strict=False)):
        answer_and_source(row, where, section)
        prompt = to_prompt(row, where, section)
        keys.add_sampled(row)
        keys.add_messages(prompt.messages)
        keys.add_variables(prompt.tools)
        _add_to(digest, prompt)
        for image in row_images.of_column(number) or ():
            digest.update(image.digest.encode())
        yield row_images.place(prompt, number)


def _add_to(digest: hashlib._Hash, prompt: ChatPrompt) -> None:
    if not prompt.tools and plain_roles(prompt.messages) is not None:
        text = "\x1e".join([f"{message['role']}\x1f{message['content']}" for message in prompt.messages])
    else:
        text = json.dumps([prompt.messages, prompt.tools], sort_keys=True, default=str)
    digest.update(text.encode("utf-8", "surrogatepass") + b"\x1d")


def _stored(
    prompts: Iterator[IntArray | None] | Iterator[IntArray], store: PromptStore
) -> Iterator[IntArray | None]:
    for row, prompt in enumerate(prompts):
        if prompt is not None:
            store.keep(row, prompt)
        yield prompt


def _cache_key(
    rows: DatasetRows, section: TasksetConfig, data: DataConfig, row_images: RowImages, encoder: PromptEncoder
) -> str | None:
    """The name of the result; None for rows that are few, have images, or may differ at the next start."""
    fingerprint = rows.fingerprint
    if fingerprint is None or len(rows) < CACHED_FROM_ROWS or row_images.images is not None:
        return None
    if section.images is not None:
        return None
    settings = section.model_dump(mode="json", exclude={"path"})
    limits: list[Any] = [data.max_prompt_tokens, data.overlong, data.images.marker]
    if section.few_shot is not None:
        limits.append([*read_examples(section.few_shot)])
    return cache_key("prompts", _LAYOUT, version("strop"), fingerprint, settings, limits, encoder.fingerprint)


def _write(key: str, checked: CheckedPrompts) -> None:
    with new_entry(key) as new:
        np.save(Path(new.folder) / _FILE, checked.kept.rows)
        facts = {"num_overlong": checked.kept.num_overlong, "digest": checked.digest, "notes": checked.notes}
        new.facts |= facts

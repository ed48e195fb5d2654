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
from typing import Any

import numpy as np

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.messages import to_messages, to_tools
from strop.data.encoding.parallel_encoding import encode_prompts
from strop.data.encoding.prompt_store import PromptStore
from strop.data.encoding.template_bound import plain_roles
from strop.data.encoding.truncation import KeptRows, kept_rows
from strop.data.few_shot import read_examples, with_examples
from strop.data.images.row_images import RowImages
from strop.data.progress_bar import with_progress_bar
from strop.data.sources.cache import cache_key, find_entry, new_entry
from strop.data.sources.columns import row_tools, system_message, value_at
from strop.data.sources.custom_dataset import CustomDataset
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.types import IntArray

CACHED_FROM_ROWS = 20_000
"""Number of rows from which the result of the check is cached."""
_LAYOUT = 1
_FILE = "rows.npy"


@dataclass(frozen=True, slots=True)
class CheckedPrompts:
    """Rows whose prompts can be used."""

    kept: KeptRows
    digest: str
    """Hash of the prompts of all rows, before encoding."""


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
        return CheckedPrompts(KeptRows(np.load(folder / _FILE), facts["num_overlong"]), facts["digest"])
    digest = hashlib.sha256()
    images = row_images.images
    prompts = _prompts(rows, section, row_images, digest)
    encoded = encode_prompts(encoder, prompts, data.tokenize_workers, limit=data.max_prompt_tokens)
    kept = kept_rows(
        _stored(with_progress_bar(encoded, len(rows), f"Checking the prompts of {name}"), store),
        data.overlong,
        data.max_prompt_tokens,
        rows.where,
        None if images is None else images.processor.image_token_id,
    )
    checked = CheckedPrompts(kept, digest.hexdigest())
    if key is not None:
        _write(key, checked)
    return checked


def check_token_prompts(
    rows: DatasetRows, custom: CustomDataset, data: DataConfig, store: PromptStore, name: str
) -> CheckedPrompts:
    """Check the prompts of a dataset class that encodes them itself, and keep all of them in `store`."""
    digest = hashlib.sha256()

    def prompts() -> Iterator[IntArray]:
        for prompt in islice(custom.prompts(), len(rows)):
            digest.update(len(prompt).to_bytes(4, "little") + prompt.tobytes())
            yield prompt

    shown = with_progress_bar(prompts(), len(rows), f"Reading the prompts of {name}")
    kept = kept_rows(_stored(shown, store), data.overlong, data.max_prompt_tokens, rows.where)
    return CheckedPrompts(kept, digest.hexdigest())


def to_prompt(row: Mapping[str, Any], where: str, section: TasksetConfig) -> ChatPrompt:
    """The prompt of a row, whose images have no places yet. Raises `DataError` if a column is missing."""
    system = system_message(row, where, section)
    messages = to_messages(value_at(row, section.prompt, where), where, system=system)
    if section.few_shot is not None:
        messages = with_examples(messages, section.few_shot, where)
    tools = () if section.tools is None else to_tools(row_tools(row, where, section), where)
    return ChatPrompt(where, messages, tools, section.reply_prefix)


def answer_and_source(row: Mapping[str, Any], where: str, section: TasksetConfig) -> tuple[Any, str]:
    """The reference answer and the data source of a row. Raises `DataError` if a column is missing."""
    answer = None if section.answer is None else value_at(row, section.answer, where)
    source = "" if section.source is None else value_at(row, section.source, where)
    if not isinstance(source, str):
        raise DataError(f"{where}: the source, column {section.source!r}, is {source!r} and not text.")
    return answer, source


def _prompts(
    rows: DatasetRows, section: TasksetConfig, row_images: RowImages, digest: hashlib._Hash
) -> Iterator[ChatPrompt]:
    """The prompt of each row; also checks the other columns of the row."""
    paths = (section.prompt, section.tools, section.answer, section.source, section.system_column)
    wanted = [path for path in paths if path is not None]
    for number, (where, row) in enumerate(zip(rows.locations(), rows.scan(wanted), strict=False)):
        answer_and_source(row, where, section)
        prompt = to_prompt(row, where, section)
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
        new.facts |= {"num_overlong": checked.kept.num_overlong, "digest": checked.digest}

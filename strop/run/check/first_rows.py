"""First rows of a run's tasksets, encoded by `strop check` as the run encodes them; loads no weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from strop.config.model_files import folder_takes_images
from strop.config.paths import existing_path
from strop.config.schema import Run
from strop.config.schema.data import TasksetConfig
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.errors import StropError
from strop.models.tokenizer_file import read_tokenizer_file
from strop.printable import counted
from strop.run.check.findings import Findings
from strop.run.template_notes import template_notes
from strop.run.tokenizer import load_training_tokens, with_run_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.data.encoding.chat_template import PromptEncoder
    from strop.data.encoding.model_tokens import ModelTokens

_ROWS = 100
"""Rows of each taskset that are encoded; the run checks all of them."""


def check_first_rows(run: Run) -> Findings:
    """Encode the first rows of each taskset on this machine; models and tasksets elsewhere are not read.

    Its advice are notices on keys of rows that are not read, on turns without an end token, and on tools that the chat
    template does not render. Rows with images are not encoded. Raises `ModelError` for a tokenizer that cannot be
    loaded or has no chat template, and `DataError` for a row that the template cannot render, that has a token which
    the model lacks, that is too long under `overlong: error`, or that is a pair of equal responses under
    `equal_pairs: error`.
    """
    if not existing_path(run.model.tokenizer or run.model.path):
        model = run.model.tokenizer or run.model.path
        return Findings(
            unchecked=[f"prompts and their tokens: the tokenizer of {model} is not on this machine"]
        )
    if (tokenizer := read_tokenizer_file(run.model)) is not None:
        with suppress(StropError):  # the run's own tokenizer, which imports torch, decides about a fault
            return _check_rows(run, with_run_template(tokenizer, run))
    from strop.run.tokenizer import load_run_tokenizer

    return _check_rows(run, load_run_tokenizer(run))


def _check_rows(run: Run, tokenizer: PreTrainedTokenizerBase) -> Findings:
    from strop.data.encoding.chat_template import PromptEncoder

    if folder_takes_images(run.model.path):
        unchecked = "tokens of the prompts: the model reads images, which are placed at the start of the run"
        return Findings(unchecked=[unchecked])  # `strop.run.prompt_images` reads their rows
    tokens = load_training_tokens(run, tokenizer, only_local=True)
    tasksets = _tasksets(run)
    encoder = None
    if any(section.text is None for _, section in tasksets):
        encoder = PromptEncoder.of(tokenizer, run.data, tokens=tokens)
    found = Findings()
    for name, section in tasksets:
        rows = read_rows(section)
        if section.is_offline:
            found.advice += _check_demonstrations(run, name, section, tokenizer, tokens)
        else:
            assert encoder is not None
            found.advice += _check_prompts(run, name, section, rows, encoder)
        size = len(rows)
        found.checked.append(f"{name}: columns, template and tokens of {_portion(min(size, _ROWS), size)}")
        if size > _ROWS:
            found.unchecked.append(
                f"{name}: template and tokens of the {counted(size - _ROWS, 'row')} after these"
            )
    found.advice += template_notes(run, tokenizer, tokens)
    return found


def _portion(first: int, size: int) -> str:
    """`all 8 rows`, `the first 100 of 7473 rows`."""
    if first < size:
        return f"the first {first} of {counted(size, 'row')}"
    return "its only row" if size == 1 else f"all {size} rows"


def _check_prompts(
    run: Run, name: str, section: TasksetConfig, rows: DatasetRows, encoder: PromptEncoder
) -> Iterator[str]:
    from strop.data.encoding.truncation import kept_rows
    from strop.data.prompt_check import prompt_notes, to_prompt
    from strop.data.row_keys import RowKeys

    limit = run.data.max_prompt_tokens
    first = range(min(len(rows), _ROWS))
    found = [to_prompt(rows[number], rows.where(number), section) for number in first]
    keys = RowKeys(section)
    keys.sampled_columns(rows[0])
    for number, prompt in zip(first, found, strict=True):
        keys.add_sampled(rows[number])
        keys.add_messages(prompt.messages)
        keys.add_variables(prompt.tools)
    prompts = encoder.encode_longer(found, limit)
    if run.data.overlong == "error":
        kept_rows(prompts, run.data.overlong, limit, rows.where)
    yield from (f"{name}, first {counted(len(first), 'row')}: {note}" for note in prompt_notes(keys, encoder))


def _check_demonstrations(
    run: Run, name: str, section: TasksetConfig, tokenizer: PreTrainedTokenizerBase, tokens: ModelTokens
) -> Iterator[str]:
    from strop.data.offline_dataset import encode_offline_rows, require_both_labels, unended_note

    limit = min(_ROWS, section.limit_tasks or _ROWS)
    first = section.model_copy(update={"limit_tasks": limit})
    found = encode_offline_rows(
        first,
        run.data,
        tokenizer,
        name=name,
        seed=run.seed,
        tokens=tokens,
        reward_model=run.algorithm.reward_model,
    )
    if len(found.rows) < _ROWS:  # otherwise the run finds whether a later row is left
        found.require_some(run.data, name)
        if section.label is not None and name == "train" and not run.data.mixture:
            require_both_labels(found.groups, name)
    where = f"{name}, first {counted(len(found.rows), 'row')}"
    yield from unended_note(where, found.counts)
    yield from (f"{where}: {note}" for note in found.key_notes)


def _tasksets(run: Run) -> list[tuple[str, TasksetConfig]]:
    """Names and tasksets whose rows are files of this machine, as they are."""
    data = run.data
    sections: list[tuple[str, TasksetConfig]] = []
    if not data.is_prepared and data.stream is None and data.queue is None:
        sections += [(key.removeprefix("data."), each) for key, each in data.training_tasksets().items()]
    sections += [(each.name, each) for each in data.demonstrations]
    sections += [(each.name, each) for each in data.eval]
    return [
        (name, section)
        for name, section in sections
        if section.dataset is None
        and section.images is None
        and all(map(existing_path, (section.path,) if isinstance(section.path, str) else section.path))
    ]

"""First rows of a run's tasksets, encoded by `strop check` as the run encodes them; loads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.image_families import folder_takes_images
from strop.config.paths import existing_path
from strop.config.schema import Run
from strop.config.schema.data import TasksetConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_ROWS = 100
"""Rows of each taskset that are encoded; the run checks all of them."""


def check_first_rows(run: Run) -> None:
    """Encode the first rows of each taskset on this machine; models and tasksets elsewhere are not read.

    Rows with images are not encoded. Raises `ModelError` for a tokenizer that cannot be loaded or has no chat
    template, and `DataError` for a row that the template cannot render, or that is too long under `overlong: error`.
    """
    if not existing_path(run.model.tokenizer or run.model.path):
        return
    from strop.run.tokenizer import load_run_tokenizer

    tokenizer = load_run_tokenizer(run)
    if folder_takes_images(run.model.path):
        return  # `strop.run.prompt_images` reads their rows
    for name, section in _tasksets(run):
        if section.is_offline:
            _check_demonstrations(run, name, section, tokenizer)
        else:
            _check_prompts(run, section, tokenizer)


def _check_prompts(run: Run, section: TasksetConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    from strop.data.encoding.chat_template import PromptEncoder
    from strop.data.encoding.truncation import kept_rows
    from strop.data.prompt_check import to_prompt
    from strop.data.sources.reader import read_rows

    encoder = PromptEncoder(tokenizer, run.data.chat_template, run.data.chat_template_args)
    rows, limit = read_rows(section), run.data.max_prompt_tokens
    first = range(min(len(rows), _ROWS))
    found = [to_prompt(rows[number], rows.where(number), section) for number in first]
    prompts = encoder.encode_longer(found, limit)
    if run.data.overlong == "error":
        kept_rows(prompts, run.data.overlong, limit, rows.where)


def _check_demonstrations(
    run: Run, name: str, section: TasksetConfig, tokenizer: PreTrainedTokenizerBase
) -> None:
    from strop.data.encoding.chat_template import PromptEncoder

    if section.text is None:
        PromptEncoder(tokenizer, run.data.chat_template, run.data.chat_template_args)
    if run.data.overlong != "error":
        return  # the first rows may all be filtered
    from strop.data.offline_dataset import load_offline_dataset

    limit = min(_ROWS, section.limit_tasks or _ROWS)
    first = section.model_copy(update={"limit_tasks": limit})
    load_offline_dataset(first, run.data, tokenizer, name=name, seed=run.seed, shuffle=False)


def _tasksets(run: Run) -> list[tuple[str, TasksetConfig]]:
    """Names and tasksets whose rows are files of this machine, as they are."""
    data = run.data
    sections: list[tuple[str, TasksetConfig]] = [(each.name, each) for each in data.eval]
    sections += [(each.name, each) for each in data.demonstrations]
    if not data.is_prepared and data.stream is None and data.queue is None:
        sections += [(key.removeprefix("data."), each) for key, each in data.training_tasksets().items()]
    return [
        (name, section)
        for name, section in sections
        if section.dataset is None
        and section.images is None
        and all(map(existing_path, (section.path,) if isinstance(section.path, str) else section.path))
    ]

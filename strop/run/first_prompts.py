"""First prompts of a run's tasksets, encoded by `strop check` as the run encodes them; loads no weights."""

from __future__ import annotations

from strop.config.image_families import folder_takes_images
from strop.config.paths import existing_path
from strop.config.schema import Run
from strop.config.schema.algorithm import DpoConfig, SftConfig
from strop.config.schema.data import TasksetConfig

_PROMPTS = 100
"""Prompts of each taskset that are encoded; the run checks all of them."""


def check_first_prompts(run: Run) -> None:
    """Encode the first prompts of each taskset on this machine; models and tasksets elsewhere are not read.

    Prompts with images are not encoded. Raises `ModelError` for a tokenizer that cannot be loaded or has no chat
    template, and `DataError` for a prompt that the template cannot render, or that is too long under `overlong: error`.
    """
    if not existing_path(run.model.tokenizer or run.model.path):
        return
    from strop.data.encoding.chat_template import PromptEncoder
    from strop.data.encoding.truncation import kept_rows
    from strop.data.prompt_check import to_prompt
    from strop.data.sources.reader import read_rows
    from strop.run.tokenizer import load_run_tokenizer

    data = run.data
    encoder = PromptEncoder(load_run_tokenizer(run), data.chat_template, data.chat_template_args)
    if folder_takes_images(run.model.path):
        return  # `strop.run.prompt_images` reads their prompts
    for section in _tasksets(run):
        rows = read_rows(section)
        first = range(min(len(rows), _PROMPTS))
        found = [to_prompt(rows[number], rows.where(number), section) for number in first]
        prompts = encoder.encode_longer(found, data.max_prompt_tokens)
        if data.overlong == "error":
            kept_rows(prompts, data.overlong, data.max_prompt_tokens, rows.where)


def _tasksets(run: Run) -> list[TasksetConfig]:
    """Tasksets of prompts whose rows are files of this machine, as they are."""
    sections: list[TasksetConfig] = [*run.data.eval]
    is_read_later = run.data.is_prepared or run.data.stream is not None or run.data.queue is not None
    if not is_read_later and not isinstance(run.algorithm, SftConfig | DpoConfig):
        sections += run.data.training_tasksets().values()
    return [
        section
        for section in sections
        if section.dataset is None
        and section.images is None
        and section.response is None
        and section.chosen is None
        and all(map(existing_path, (section.path,) if isinstance(section.path, str) else section.path))
    ]

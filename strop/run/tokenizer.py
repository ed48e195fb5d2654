"""The tokenizer of a run, with the chat template that the run file names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.data.encoding.chat_template import read_template
from strop.models.loading import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_run_tokenizer(run: Run) -> PreTrainedTokenizerBase:
    """The model's tokenizer with the chat template of `data.chat_template`.

    The exported model gets the same template, because it is prompted in the form that it was trained on.
    Raises ModelError, or ConfigError for the template's file.
    """
    tokenizer = load_tokenizer(run.model)
    if run.data.chat_template not in ("tokenizer", "none"):
        tokenizer.chat_template = read_template(run.data.chat_template)
    return tokenizer

"""The tokenizer of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.data.chat import read_template
from strop.models.load import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenizer_of(run: Run) -> PreTrainedTokenizerBase:
    """The model's, with the chat template that `data.chat_template` names: the model that the run leaves is
    to be asked in the form it was trained in. Raises ModelError, or ConfigError for the template's file."""
    tokenizer = load_tokenizer(run.model)
    if run.data.chat_template not in ("tokenizer", "none"):
        tokenizer.chat_template = read_template(run.data.chat_template)
    return tokenizer

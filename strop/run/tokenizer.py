"""The tokenizer of a run, with the chat template that the run file names, and the tokens of its models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from strop.config.paths import existing_path
from strop.config.schema import Run
from strop.config.schema.model import ModelConfig
from strop.data.encoding.chat_template import read_template
from strop.data.encoding.model_tokens import ModelTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_run_tokenizer(run: Run) -> PreTrainedTokenizerBase:
    """The model's tokenizer with the chat template of `data.chat_template`.

    The exported model gets the same template, because it is prompted in the form that it was trained on.
    Raises ModelError, or ConfigError for the template's file.
    """
    from strop.models.loading import load_tokenizer  # imports torch, which `strop check` does not need

    return with_run_template(load_tokenizer(run.model), run)


def with_run_template(tokenizer: PreTrainedTokenizerBase, run: Run) -> PreTrainedTokenizerBase:
    """The tokenizer, with the chat template of `data.chat_template`. Raises ConfigError for the template's file."""
    if run.data.chat_template not in ("tokenizer", "none"):
        tokenizer.chat_template = read_template(run.data.chat_template)
    return tokenizer


def load_policy_tokens(run: Run, tokenizer: PreTrainedTokenizerBase) -> ModelTokens:
    """The tokens of the policy, of which `rollout.sampling.stop_token_ids` end a response too.

    Raises ModelError for a model without them.
    """
    tokens = load_model_tokens(run.model, tokenizer)
    return replace(tokens, end_ids=tokens.end_ids | {*run.rollout.sampling.stop_token_ids})


def load_training_tokens(
    run: Run, tokenizer: PreTrainedTokenizerBase, *, only_local: bool = False
) -> ModelTokens:
    """The tokens of the policy that each model which reads them has a row of its embedding for; with `only_local`, of
    the models on this machine. Raises ModelError for a model without them.
    """
    tokens = load_policy_tokens(run, tokenizer)
    for model in _other_readers(run):
        if only_local and not existing_path(model.path):
            continue
        other = load_model_tokens(model, tokenizer)
        if other.vocab_size is not None and other.vocab_size < (tokens.vocab_size or other.vocab_size + 1):
            tokens = replace(other, end_ids=tokens.end_ids)
    return tokens


def load_model_tokens(model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> ModelTokens:
    """The tokens of a model, without torch if its folder says enough. Raises ModelError for a model without them."""
    if not model.override and (found := ModelTokens.of_folder(model.path, tokenizer)) is not None:
        return found
    from strop.models.loading import load_config, load_generation_config

    return ModelTokens.of(model.path, load_config(model), load_generation_config(model), tokenizer)


def _other_readers(run: Run) -> Iterator[ModelConfig]:
    """Models that read the policy's tokens: teachers, the critic, the process reward model."""
    yield from (teacher.model for teacher in run.algorithm.teachers)
    yield from (section.model for section in run.algorithm.trained_models.values() if section.model)

"""Checks that a second model (a critic, a process reward model, a teacher) reads the policy's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.loading import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_same_vocabulary(key: str, model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for the model of section `key` if its tokenizer has another vocabulary than the policy's."""
    own = _vocabulary(key, model)
    if own != tokenizer.get_vocab():
        raise ModelError(
            f"{key}.model: the model reads the policy's tokens, but the tokenizer of "
            f"{model.tokenizer or model.path} has another vocabulary ({len(own)} tokens, the "
            f"policy's has {len(tokenizer)}). Name a model of the policy's family. If the tokens are the same "
            f"and only the tokenizer's files differ, set {key}.model.tokenizer to the policy's folder."
        )


def check_same_ids(key: str, model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for the teacher at `key` if its tokenizer gives a token of the policy another id.

    It may have further tokens.
    """
    own, policy = _vocabulary(key, model), tokenizer.get_vocab()
    different = [token for token, number in policy.items() if own.get(token) != number]
    if not different:
        return
    found = own.get(different[0])
    raise ModelError(
        f"{key}: the teacher reads the policy's tokens, but {len(different)} of the policy's {len(policy)} tokens are "
        f"not in the vocabulary of {model.tokenizer or model.path} under the same id: {different[0]!r} is "
        f"{policy[different[0]]} in the policy's and {'missing' if found is None else found} there. Name a "
        "teacher of the policy's family. If the tokens are the same and only the tokenizer's files differ, set "
        "the teacher's `tokenizer` to the policy's folder."
    )


def _vocabulary(key: str, model: ModelConfig) -> dict[str, int]:
    """Ids of a model's tokens. Raises ModelError, with the key, for a model without a tokenizer."""
    try:
        return load_tokenizer(model).get_vocab()
    except ModelError as error:
        raise ModelError(f"{key}: {error}") from error

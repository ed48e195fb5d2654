"""Encoding of plain text, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_plain(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of texts that a response or nothing follows, with those that the tokenizer writes before a text.

    A text that begins with these tokens itself, as one that a template has rendered, gets no second ones. Tokens that
    the tokenizer writes after a text (an end token, for some) are left out: a text has its own end, or continues.
    """
    if not texts:
        return []
    first = tokenizer("a", return_attention_mask=False, return_special_tokens_mask=True, verbose=False)
    own = first["special_tokens_mask"].index(0)
    before: list[int] = first["input_ids"][:own]
    encoded: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    )["input_ids"]
    return [ids if ids[:own] == before else [*before, *ids] for ids in encoded]

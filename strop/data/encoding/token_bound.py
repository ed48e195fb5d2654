"""Upper bound on the number of tokens of a text, without encoding it, for tokenizers where it can be proved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NFC_GROWTH = 3
"""Largest factor by which NFC lengthens a text in UTF-8 (Unicode Standard Annex 15, section 12.1)."""


class TokenBound:
    """Bound for byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): at most one token per byte of UTF-8.

    Byte-level BPE begins with one symbol per byte, and merges symbols; a special token in the text replaces at least
    one byte. Only the normalizer, a prefix space and the tokens that are added around the text can add to that.
    """

    def __init__(self, growth: int, added: int) -> None:
        self._growth = growth
        self._added = added

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, *, adds_special_tokens: bool) -> TokenBound | None:
        """The bound of a tokenizer; None where there is no proof."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        facts = json.loads(backend.to_str())
        normalizer, model = facts.get("normalizer"), facts.get("model") or {}
        if normalizer is not None and normalizer.get("type") != "NFC":
            return None
        if model.get("type") != "BPE" or not _is_byte_level(facts.get("pre_tokenizer")):
            return None
        # Templates write special tokens themselves; a post-processor adds tokens only where it is asked to.
        added = tokenizer.num_special_tokens_to_add() if adds_special_tokens else 0
        return cls(1 if normalizer is None else _NFC_GROWTH, added)

    def __call__(self, text: str) -> int:
        """A number of tokens that the text does not exceed."""
        if text.isascii():
            return self.of_length(len(text), is_ascii=True)
        return self.of_length(len(text.encode("utf-8", "surrogatepass")), is_ascii=False)

    def of_length(self, num_bytes: int, *, is_ascii: bool) -> int:
        """A number of tokens that no text of at most `num_bytes` bytes of UTF-8 exceeds; NFC keeps ASCII as it is."""
        return num_bytes * (1 if is_ascii else self._growth) + self._added


def _is_byte_level(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether the text is split into pieces and these are written as bytes, without a prefix space."""
    steps = [] if pre_tokenizer is None else pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [step.get("type") for step in steps]
    prefixed = any(step.get("add_prefix_space") for step in steps)
    return (
        "ByteLevel" in kinds and {*kinds} <= {"ByteLevel", "Split", "Digits", "Punctuation"} and not prefixed
    )

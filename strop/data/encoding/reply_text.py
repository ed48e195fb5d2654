"""Text of sampled tokens: special tokens that belong to an answer are text, those that end a turn are not.

A tokenizer may hold the tags of an answer, such as <think>, <answer> and <tool_call>, as special tokens. Rewards,
parsers of tool calls, tables and pages read them, so `skip_special_tokens`, with which other tools decode, is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.reasoning import REASONING_MARKS
from strop.errors import DataError
from strop.types import BoolArray, IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TEXT = "strop-text-7be320"
"""Placeholder of the contents in a rendering, to find what the template writes around them."""
_USER: Message = {"role": "user", "content": _TEXT}
_ASSISTANT: Message = {"role": "assistant", "content": _TEXT}


class ReplyDecoder:
    """Decodes the replies of one model."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompts: PromptEncoder, eos_ids: Iterable[int] = ()
    ) -> None:
        """`prompts` has the chat template of the replies; `eos_ids` are the end tokens of the model's files."""
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(eos_ids)
        self._prompts = prompts
        if prompts.template is None and tokenizer.chat_template:
            # Without a template in the prompts, a model that was trained with one still ends its turns by its mark.
            self._prompts = PromptEncoder(tokenizer, "tokenizer")

    def decode(self, ids: IntArray, sampled: BoolArray | None = None) -> str:
        """The text of the tokens of a reply.

        Without its end tokens: those of the model, the mark with which the chat template ends a turn, the
        tokenizer's own end, beginning and padding tokens. All others are text, also a token that begins another turn.

        `sampled` [L] marks the replies in the tokens after a prompt; what the template writes between them comes
        without the special tokens of its headers.
        """
        kept = ~np.isin(ids, self._ends)
        if sampled is not None:
            kept &= sampled | ~np.isin(ids, self._headers)
        return str(self._tokenizer.decode(ids[kept].tolist(), skip_special_tokens=False))

    def decode_content(self, ids: IntArray) -> str:
        """The text of a reply as the content of a message that the template renders again.

        Without the special tokens of its headers, which would begin another turn there, and which gpt-oss's template
        refuses.
        """
        return self.decode(ids, np.zeros(len(ids), bool))

    def reply_start(self, prompt_ids: IntArray) -> str:
        """The text with which a prompt begins the reply after it: what follows its last end token or header."""
        marks = np.flatnonzero(np.isin(prompt_ids, [*self._ends, *self._headers]))
        return self.decode(prompt_ids[marks[-1] + 1 :] if len(marks) else prompt_ids)

    @cached_property
    def _ends(self) -> list[int]:
        tokenizer = self._tokenizer
        own = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        _, found, after = self._render(_USER, _ASSISTANT).rpartition(_TEXT)
        mark = self._added_tokens(after) if found else []
        return [*self._eos_ids, *(token for token in own if token is not None), *mark]

    @cached_property
    def _headers(self) -> list[int]:
        """Special tokens that the template writes before and after messages, without the marks of reasoning."""
        special = {token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special}
        written = self._added_tokens(self._render(_USER, _ASSISTANT, _USER))
        reasoning = {self._tokenizer.convert_tokens_to_ids(mark) for pair in REASONING_MARKS for mark in pair}
        return sorted(special & {*written} - reasoning)

    def _added_tokens(self, text: str) -> list[int]:
        """Tokens of a text that the tokenizer holds as added tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        added = self._tokenizer.added_tokens_decoder
        return [token for token in ids if token in added]

    def _render(self, *messages: Message) -> str:
        """Rendered messages; empty without a template, and for one that takes no such conversation, whose ends are
        those of the model."""
        if self._prompts.template is None:
            return ""
        try:
            return self._prompts.render("The chat template", messages, (), prompt=False)
        except DataError:
            return ""

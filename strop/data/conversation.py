"""Conversations as training sequences: which of their tokens are the assistant's own.

The text of a conversation is cut where an assistant's turn begins and ends, and the parts are encoded
each by itself, so that an answer begins at the very token where sampling would have begun it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strop.data.chat import PromptEncoder, Tools
from strop.errors import DataError, ModelError
from strop.types import Bools, Ints, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
Span = tuple[int, int]
"""Characters of a rendered conversation, from and up to."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and from which one on the assistant's are learned."""

    where: str
    """The row it came from, for messages."""
    messages: tuple[Message, ...]
    first: int
    """Assistant messages before this one are only read."""
    tools: Tools = ()

    def learned(self) -> list[int]:
        """The places of the messages that are learned."""
        return [i for i, m in enumerate(self.messages) if i >= self.first and m["role"] == "assistant"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation's tokens, up to the last that is learned."""

    token_ids: Ints
    """[L]"""
    loss_mask: Bools
    """[L] True for the assistant's tokens, with each turn's end token."""


class ConversationEncoder:
    """Turns conversations into tokens and a mask, with the template that prompts are encoded with."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template: str) -> None:
        """`chat_template` is `data.chat_template`. Raises like `PromptEncoder`, and `ModelError` for a
        tokenizer without an end token."""
        self._prompts = PromptEncoder(tokenizer, chat_template)
        self._tokenizer = tokenizer
        if tokenizer.eos_token is None:
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} names no end token (eos_token), so the end of "
                "an answer cannot be learned. Name one in its tokenizer_config.json."
            )
        self._marked = bool(_MARK.search(self._prompts.template or ""))
        special = tokenizer.added_tokens_decoder.values()
        self._special = tuple({tokenizer.eos_token, *(str(t) for t in special if t.special)})

    def encode_all(self, conversations: Sequence[Conversation]) -> list[Encoded]:
        """All of them at once. Raises `DataError`, which names the row, for one without an assistant's
        turn to learn, or that the template cannot render turn by turn."""
        parts = [self._parts(conversation) for conversation in conversations]
        # Only plain text, without a template, gets the special tokens that the tokenizer puts before any.
        firsts = self._encode([of_one[0][0] for of_one in parts], special=self._prompts.template is None)
        others = iter(self._encode([text for of_one in parts for text, _ in of_one[1:]], special=False))
        encoded = []
        for first, of_one in zip(firsts, parts, strict=True):
            ids = [first, *(next(others) for _ in of_one[1:])]
            owns = [own for _, own in of_one]
            encoded.append(_join(ids, owns))
        for conversation, one in zip(conversations, encoded, strict=True):
            if not one.loss_mask.any() or one.loss_mask[0]:
                raise DataError(f"{conversation.where}: the prompt or the answer is empty, it has no tokens.")
        return encoded

    def _encode(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=special, return_attention_mask=False, verbose=False
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _parts(self, conversation: Conversation) -> list[tuple[str, bool]]:
        """The text in parts, and which of them are learned; what comes after the last is left out."""
        if not conversation.learned():
            raise DataError(
                f"{conversation.where}: there is no assistant's turn to learn from. The conversation has "
                f"messages of {', '.join(m['role'] for m in conversation.messages)}."
            )
        if self._prompts.template is None:
            return self._plain(conversation)
        text, spans = self._marked_spans(conversation) if self._marked else self._prefix_spans(conversation)
        parts, end = [], 0
        for start, stop in (self._with_end_token(text, span) for span in spans):
            parts += [(text[end:start], False), (text[start:stop], True)]
            end = stop
        return parts

    def _plain(self, conversation: Conversation) -> list[tuple[str, bool]]:
        messages = conversation.messages
        roles = [message["role"] for message in messages]
        if roles != ["user", "assistant"] or conversation.tools:
            raise DataError(
                f"{conversation.where}: data.chat_template: none encodes a plain prompt and a plain answer "
                f"as they are, but this row has messages of {', '.join(roles)}, or tools. Write "
                "data.chat_template: tokenizer, or name a Jinja file."
            )
        prompt, answer = (str(message["content"]) for message in messages)
        return [(prompt, False), (answer + str(self._tokenizer.eos_token), True)]

    def _marked_spans(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """By the template's own {% generation %} marks."""
        text, spans = self._prompts.render_marked(
            conversation.where, conversation.messages, conversation.tools
        )
        turns = [i for i, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        if len(spans) != len(turns):
            raise DataError(
                f"{conversation.where}: the chat template marks {len(spans)} parts as generated, of "
                f"{len(turns)} assistant turns, so it cannot be told which turn is which. Correct its "
                "{% generation %} marks: one pair round each assistant turn."
            )
        return text, [span for turn, span in zip(turns, spans, strict=True) if turn >= conversation.first]

    def _prefix_spans(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """By what each turn adds to the text before it: the conversation is rendered up to there and on."""
        where, messages, tools = conversation.where, conversation.messages, conversation.tools
        learned = conversation.learned()
        whole = self._prompts.render(where, messages[: learned[-1] + 1], tools, prompt=False)
        spans = []
        for turn in learned:
            before = self._prompts.render(where, messages[:turn], tools, prompt=True) if turn else ""
            after = self._prompts.render(where, messages[: turn + 1], tools, prompt=False)
            if not (whole.startswith(after) and after.startswith(before)):
                raise DataError(
                    f"{where}: the chat template renders the conversation up to message {turn + 1} in "
                    "another way when it stands alone than when more follows, so the assistant's tokens "
                    "cannot be told apart. Name, under data.chat_template, a Jinja file that marks them with "
                    "{% generation %} and {% endgeneration %}."
                )
            spans.append((len(before), len(after)))
        return whole, spans

    def _with_end_token(self, text: str, span: Span) -> Span:
        """With the end token, and without the line break that templates write after it."""
        start, stop = span
        trimmed = len(text[:stop].rstrip())
        if trimmed > start and text[:trimmed].endswith(self._special):
            return start, trimmed
        end = str(self._tokenizer.eos_token)
        return start, stop + len(end) if text.startswith(end, stop) else stop


def _join(parts: Sequence[Sequence[int]], owns: Sequence[bool]) -> Encoded:
    token_ids = np.array([token for part in parts for token in part], dtype=np.int32)
    return Encoded(token_ids, np.repeat(np.array(owns, dtype=np.bool_), [len(part) for part in parts]))

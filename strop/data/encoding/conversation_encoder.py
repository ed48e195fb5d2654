"""Encoding of conversations as training sequences, with a loss mask on the assistant's tokens.

The text of a conversation is split where an assistant turn begins and ends, and each part is encoded
separately, so that an answer begins at the token at which sampling would have begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.data.encoding.chat_template import NO_TEMPLATE_ARGS, PromptEncoder, require_encodable
from strop.data.encoding.messages import Tools
from strop.data.images.messages import media_of
from strop.errors import DataError, ModelError
from strop.types import BoolArray, ImageReference, IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.protocols import ImageProcessor

_GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
CharSpan = tuple[int, int]
"""Start and end of a span of characters in a rendered conversation."""


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    """Messages, and the index from which on assistant messages are trained on."""

    where: str
    """The location of its row, for error messages."""
    messages: tuple[Message, ...]
    first_trained_message: int
    """Index of the first trained message; earlier assistant messages are context."""
    tools: Tools = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """The row's own variables of the chat template."""

    def trained_messages(self) -> list[int]:
        """Indices of the messages that are trained on."""
        return [
            i
            for i, m in enumerate(self.messages)
            if i >= self.first_trained_message and m["role"] == "assistant"
        ]


@dataclass(frozen=True, slots=True)
class EncodedSequence:
    """The tokens of a conversation, up to the last that is trained on."""

    token_ids: IntArray
    """[L]"""
    loss_mask: BoolArray
    """[L] True for the trained assistant tokens, including the end token of each turn."""
    media: tuple[ImageReference, ...] = ()
    """Images, in the order of their tokens in `token_ids`."""


class ConversationEncoder:
    """Encodes conversations as tokens and a loss mask, with the same template as prompts."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str,
        args: Mapping[str, Any] = NO_TEMPLATE_ARGS,
        images: ImageProcessor | None = None,
    ) -> None:
        """The arguments are those of `PromptEncoder`. Raises like it, and `ModelError` for a tokenizer without an
        end token."""
        self._prompts = PromptEncoder(tokenizer, chat_template, args, images)
        self._images = images
        self._tokenizer = tokenizer
        if tokenizer.eos_token is None:
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} has no end token (eos_token), so the model "
                "cannot be trained to end an answer. Add one to its tokenizer_config.json."
            )
        self._marked = bool(_GENERATION_MARK.search(self._prompts.template or ""))
        special = tokenizer.added_tokens_decoder.values()
        self._special = tuple({tokenizer.eos_token, *(str(t) for t in special if t.special)})

    def encode_all(self, conversations: Sequence[TrainingConversation]) -> list[EncodedSequence]:
        """Encode conversations. Raises `DataError`, which names the row, for a conversation without an
        assistant turn to train on, or that the template cannot render turn by turn."""
        parts = [self._parts(conversation) for conversation in conversations]
        for conversation, of_one in zip(conversations, parts, strict=True):
            require_encodable("".join(text for text, _ in of_one), conversation.where)
        # The tokenizer's own special tokens are added to plain text only: templates write them themselves.
        firsts = self._encode([of_one[0][0] for of_one in parts], special=self._prompts.template is None)
        others = iter(self._encode([text for of_one in parts for text, _ in of_one[1:]], special=False))
        encoded = []
        for first, of_one in zip(firsts, parts, strict=True):
            ids = [first, *(next(others) for _ in of_one[1:])]
            owns = [own for _, own in of_one]
            encoded.append(_join(ids, owns))
        encoded = [self._expand(one, c) for one, c in zip(encoded, conversations, strict=True)]
        for conversation, one in zip(conversations, encoded, strict=True):
            if not one.loss_mask.any() or one.loss_mask[0]:
                raise DataError(f"{conversation.where}: the prompt or the answer is empty: it has no tokens.")
        return encoded

    def _expand(self, encoded: EncodedSequence, conversation: TrainingConversation) -> EncodedSequence:
        """The sequence with all tokens of its images, which are no targets."""
        messages = conversation.messages[: conversation.trained_messages()[-1] + 1]
        media = media_of(messages, conversation.where)
        token_ids = self._prompts.expand_images(encoded.token_ids, messages, conversation.where)
        if self._images is None or not media:
            return encoded
        lengths = np.ones(len(encoded.token_ids), dtype=np.int64)
        pads = encoded.token_ids == self._images.image_token_id
        lengths[pads] = [self._images.token_count(image.width, image.height) for image in media]
        return EncodedSequence(token_ids, np.repeat(encoded.loss_mask, lengths), media)

    def _encode(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=special, return_attention_mask=False, verbose=False
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _parts(self, conversation: TrainingConversation) -> list[tuple[str, bool]]:
        """The parts of the text, each with whether it is trained on, up to the last that is."""
        if not conversation.trained_messages():
            raise DataError(
                f"{conversation.where}: there is no assistant turn to train on. The conversation has "
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

    def _plain(self, conversation: TrainingConversation) -> list[tuple[str, bool]]:
        messages = conversation.messages
        roles = [message["role"] for message in messages]
        texts = all(isinstance(message["content"], str) for message in messages)
        if roles != ["user", "assistant"] or conversation.tools or not texts:
            raise DataError(
                f"{conversation.where}: data.chat_template: none encodes a plain prompt and a plain answer "
                f"without a template, but this row has messages of {', '.join(roles)}, tools or images. Write "
                "data.chat_template: tokenizer, or the path of a Jinja file."
            )
        prompt, answer = (str(message["content"]) for message in messages)
        return [(prompt, False), (answer + str(self._tokenizer.eos_token), True)]

    def _marked_spans(self, conversation: TrainingConversation) -> tuple[str, list[CharSpan]]:
        """The text, and the spans of the trained turns by the template's {% generation %} marks."""
        text, spans = self._prompts.render_marked(
            conversation.where, conversation.messages, conversation.tools, conversation.template_args
        )
        turns = [i for i, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        if len(spans) != len(turns):
            raise DataError(
                f"{conversation.where}: the chat template marks {len(spans)} parts as generated for "
                f"{len(turns)} assistant turns, so the turns cannot be identified. Correct its "
                "{% generation %} marks: one pair around each assistant turn."
            )
        return text, [
            span
            for turn, span in zip(turns, spans, strict=True)
            if turn >= conversation.first_trained_message
        ]

    def _prefix_spans(self, conversation: TrainingConversation) -> tuple[str, list[CharSpan]]:
        """The text, and the span that each trained turn adds to the rendered text before it."""
        where, messages = conversation.where, conversation.messages
        trained = conversation.trained_messages()

        def render(end: int, prompt: bool) -> str:
            args = conversation.template_args
            return self._prompts.render(where, messages[:end], conversation.tools, prompt=prompt, args=args)

        whole = render(trained[-1] + 1, False)
        spans = []
        for turn in trained:
            before = render(turn, True) if turn else ""
            after = render(turn + 1, False)
            if not (whole.startswith(after) and after.startswith(before)):
                raise DataError(
                    f"{where}: the chat template renders the conversation up to message {turn + 1} "
                    "differently if more messages follow, so the assistant's tokens cannot be identified. "
                    "Write, under "
                    "data.chat_template, the path of a Jinja file that marks them with {% generation %} and "
                    "{% endgeneration %}."
                )
            spans.append((len(before), len(after)))
        return whole, spans

    def _with_end_token(self, text: str, span: CharSpan) -> CharSpan:
        """The span with its end token, and without the line break that templates write after it."""
        start, stop = span
        trimmed = len(text[:stop].rstrip())
        if trimmed > start and text[:trimmed].endswith(self._special):
            return start, trimmed
        end = str(self._tokenizer.eos_token)
        return start, stop + len(end) if text.startswith(end, stop) else stop


def _join(parts: Sequence[Sequence[int]], owns: Sequence[bool]) -> EncodedSequence:
    token_ids = np.array([token for part in parts for token in part], dtype=np.int32)
    return EncodedSequence(
        token_ids, np.repeat(np.array(owns, dtype=np.bool_), [len(part) for part in parts])
    )

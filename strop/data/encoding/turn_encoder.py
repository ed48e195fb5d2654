"""Incremental encoding of multi-turn conversations: existing tokens are kept, and new tokens are appended.

The tokens of a reply are those that the model sampled. Rendering and encoding the whole conversation again
could give other tokens, and the model would be trained on tokens that it never sampled. So only the text
that the chat template writes between one reply and the next is rendered and encoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.data.encoding.chat_template import NO_TEMPLATE_ARGS, PromptEncoder
from strop.data.encoding.messages import Tools
from strop.errors import DataError, ModelError
from strop.printable import encodable
from strop.types import IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.data.images.prompt_images import RunImages

_REPLY = "strop-reply-2f6b41"
"""Placeholder of the last reply in a rendering, to find the text after it."""
_NEW = "strop-new-9d07c3-{}"
"""Placeholder of a new message's content, to check that the template renders it."""


class TurnEncoder:
    """Encodes prompts, and the messages between the model's replies."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str,
        args: Mapping[str, Any] = NO_TEMPLATE_ARGS,
        images: RunImages | None = None,
    ) -> None:
        """`chat_template` and `args` are those of `PromptEncoder`; `images` are those of a model that reads them.

        Raises like `PromptEncoder`.
        """
        processor = None if images is None else images.processor
        self.prompts = PromptEncoder(tokenizer, chat_template, args, processor)
        self._images = images
        self.tokenizer = tokenizer
        self._added = frozenset({*tokenizer.added_tokens_decoder, tokenizer.eos_token_id})
        self._checked: set[tuple[str, ...]] = set()

    def read_images(self, messages: Sequence[Message], where: str) -> tuple[Message, ...]:
        """The messages with all their images read and stored; for a model that reads text, unchanged.

        Raises `DataError` for an image that cannot be used.
        """
        return tuple(messages) if self._images is None else self._images.read_parts(messages, where)

    def encode_prompt(
        self, messages: Sequence[Message], tools: Tools = (), reply_prefix: str = ""
    ) -> IntArray:
        """[P] The tokens before the model's first reply, with the text that starts it. Raises `DataError`."""
        return self.prompts.encode(messages, tools, reply_prefix)

    def encode_text(self, text: str) -> IntArray:
        """[P] The tokens of a prompt that is plain text, with the tokenizer's own special tokens."""
        return np.array(self.tokenizer(encodable(text), verbose=False)["input_ids"], np.int32)

    def encode_continuation(
        self, messages: Sequence[Message], new: Sequence[Message], tools: Tools, reply_ids: IntArray
    ) -> IntArray:
        """[N] The tokens after a reply, up to the start of the next reply.

        Args:
            messages: the conversation so far; the reply is its last message.
            new: the messages after the reply, perhaps none.
            reply_ids: [C] the tokens that the model sampled for the reply.

        Raises `ModelError` for a template with which they cannot be determined, `DataError` for messages that
        it cannot render.
        """
        self._check(messages, new, tools)
        text = self._after_reply(messages, new, tools)
        closing = self._drawn_end(reply_ids)
        if closing and text.lstrip().startswith(closing):
            # The model has ended its turn itself.
            ids = self._encode(text.lstrip())
            ids = ids[1:] if len(ids) and ids[0] == reply_ids[-1] else self._encode(text)
        else:
            ids = self._encode(text)
        return self.prompts.expand_images(ids, new, "The conversation")

    def decode(self, ids: IntArray) -> str:
        """The text of a reply, without special tokens."""
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def decode_with_marks(self, ids: IntArray) -> str:
        """The text of a reply, with its special tokens except the one at its end."""
        text = str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=False))
        return text.removesuffix(self._drawn_end(ids))

    def _drawn_end(self, reply_ids: IntArray) -> str:
        """The text of the special token at the end of a reply; empty if there is none."""
        if len(reply_ids) == 0 or int(reply_ids[-1]) not in self._added:
            return ""
        return str(self.tokenizer.decode([int(reply_ids[-1])], skip_special_tokens=False))

    def _encode(self, text: str) -> IntArray:
        encoded = self.tokenizer(
            encodable(text), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        return np.array(encoded["input_ids"], np.int32)

    def _check(self, messages: Sequence[Message], new: Sequence[Message], tools: Tools) -> None:
        """Check that the template renders every new message; once for each sequence of roles."""
        roles = (str(messages[0]["role"]), *(str(message["role"]) for message in new))
        if roles in self._checked:
            return
        probes = [{**message, "content": _NEW.format(i)} for i, message in enumerate(new)]
        shown = self._after_reply(messages, probes, tools)
        for probe in probes:
            if probe["content"] not in shown:
                raise ModelError(
                    f"The chat template does not render messages of the role {probe['role']!r} after a "
                    "reply, so the conversation cannot continue with one. Write, under data.chat_template, "
                    "the path of a Jinja file that renders them, or let the workflow send them with another "
                    "role."
                )
        self._checked.add(roles)

    def _after_reply(self, messages: Sequence[Message], new: Sequence[Message], tools: Tools) -> str:
        if self.prompts.template is None:
            raise ModelError(
                "data.chat_template: none encodes one plain text, so a conversation cannot continue after "
                "its first reply. Write data.chat_template: tokenizer, or the path of a Jinja file."
            )
        reply = {"role": "assistant", "content": _REPLY}
        where = "The conversation"
        try:
            text = self.prompts.render(where, [*messages[:-1], reply, *new], tools, prompt=True)
        except DataError as error:
            roles = ", ".join(message["role"] for message in (*messages, *new))
            raise DataError(f"{error} (messages of {roles})") from None
        if text.count(_REPLY) != 1:
            fault = "omits replies" if _REPLY not in text else "repeats replies"
            raise ModelError(
                f"The chat template {fault} when the conversation continues, so the text after a reply "
                "cannot be determined. Write, under data.chat_template, the path of a Jinja file that "
                "renders each message once."
            )
        return text.partition(_REPLY)[2]

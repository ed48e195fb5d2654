"""Conversations that go on, as tokens: what stood there stays as it is, and what is new is added.

A reply's tokens are those that the model drew. Rendering the whole conversation again and encoding it
anew could give others, and the model would be trained on what it never said. So only what the chat
template puts between one reply and the next is rendered and encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from strop.data.chat import PromptEncoder, Tools
from strop.errors import DataError, ModelError
from strop.types import Ints, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLY = "strop-reply-2f6b41"
"""Stands for the last reply in a rendering, so that what comes after it is found."""
_NEW = "strop-new-9d07c3-{}"
"""Stands for a new message's content, to see whether the template shows it at all."""


class TurnEncoder:
    """Encodes prompts, and what is said between the model's replies."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template: str) -> None:
        """`chat_template` is `data.chat_template`. Raises like `PromptEncoder`."""
        self.prompts = PromptEncoder(tokenizer, chat_template)
        self._tokenizer = tokenizer
        self._added = frozenset({*tokenizer.added_tokens_decoder, tokenizer.eos_token_id})
        self._checked: set[tuple[str, ...]] = set()

    def prompt(self, messages: Sequence[Message], tools: Tools = ()) -> Ints:
        """[P] All that the model is shown before its first reply. Raises `DataError`."""
        return self.prompts.encode(messages, tools)

    def between(self, said: Sequence[Message], new: Sequence[Message], tools: Tools, reply_ids: Ints) -> Ints:
        """[N] The tokens after a reply, up to where the next one begins.

        Args:
            said: the conversation so far; the reply is its last message.
            new: what is answered to the reply, perhaps nothing.
            reply_ids: [C] the tokens that the model drew for the reply.

        Raises `ModelError` for a template from which they cannot be told, `DataError` for messages that
        it cannot render.
        """
        self._check(said, new, tools)
        text = self._after_reply(said, new, tools)
        closing = self._drawn_end(reply_ids)
        if closing and text.lstrip().startswith(closing):
            # The model has closed its turn itself.
            ids = self._encode(text.lstrip())
            return ids[1:] if len(ids) and ids[0] == reply_ids[-1] else self._encode(text)
        return self._encode(text)

    def text(self, ids: Ints) -> str:
        """A reply as text, without special tokens."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def _drawn_end(self, reply_ids: Ints) -> str:
        """The text of the token that the model ended its reply with; empty where it did not."""
        if len(reply_ids) == 0 or int(reply_ids[-1]) not in self._added:
            return ""
        return str(self._tokenizer.decode([int(reply_ids[-1])], skip_special_tokens=False))

    def _encode(self, text: str) -> Ints:
        encoded = self._tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return np.array(encoded["input_ids"], np.int32)

    def _check(self, said: Sequence[Message], new: Sequence[Message], tools: Tools) -> None:
        """That the template shows every new message, once for messages of these roles."""
        roles = (str(said[0]["role"]), *(str(message["role"]) for message in new))
        if roles in self._checked:
            return
        probes = [{**message, "content": _NEW.format(i)} for i, message in enumerate(new)]
        shown = self._after_reply(said, probes, tools)
        for probe in probes:
            if probe["content"] not in shown:
                raise ModelError(
                    f"The chat template does not show messages of the role {probe['role']!r} after a reply, "
                    "so the conversation cannot go on with one. Name, under data.chat_template, a Jinja file "
                    "with one that does, or have the workflow send it under another role."
                )
        self._checked.add(roles)

    def _after_reply(self, said: Sequence[Message], new: Sequence[Message], tools: Tools) -> str:
        if self.prompts.template is None:
            raise ModelError(
                "data.chat_template: none encodes one plain text, so a conversation cannot go on after its "
                "first reply. Write data.chat_template: tokenizer, or name a Jinja file."
            )
        reply = {"role": "assistant", "content": _REPLY}
        where = "The conversation"
        try:
            text = self.prompts.render(where, [*said[:-1], reply, *new], tools, prompt=True)
        except DataError as error:
            roles = ", ".join(message["role"] for message in (*said, *new))
            raise DataError(f"{error} (messages of {roles})") from None
        if text.count(_REPLY) != 1:
            how = "leaves replies out" if _REPLY not in text else "repeats them"
            raise ModelError(
                f"The chat template {how} when the conversation goes on, so it cannot be told what it puts "
                "after one. Name, under data.chat_template, a Jinja file that renders each message once."
            )
        return text.partition(_REPLY)[2]

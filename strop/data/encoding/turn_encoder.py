"""Incremental encoding of multi-turn conversations: existing tokens are kept, and new tokens are appended.

The tokens of a reply are those that the model sampled. Rendering and encoding the whole conversation again
could give other tokens, and the model would be trained on tokens that it never sampled. So only the text
that the chat template writes between one reply and the next is rendered and encoded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.data.encoding.chat_template import NO_TEMPLATE_ARGS, PromptEncoder, encode_plain
from strop.data.encoding.messages import Tools
from strop.data.encoding.reply import ReplyDecoder, ends_in_reasoning
from strop.errors import DataError, ModelError
from strop.printable import encodable
from strop.types import IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.data.images.prompt_images import RunImages


log = logging.getLogger("strop.data")
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
        eos_ids: Iterable[int] = (),
        *,
        raw_text: bool = False,
    ) -> None:
        """`chat_template`, `args` and `raw_text` are those of `PromptEncoder`; `images` are those of a model that reads
        them; `eos_ids` are the end tokens of the model's files.

        Raises like `PromptEncoder`.
        """
        processor = None if images is None else images.processor
        self.prompts = PromptEncoder(tokenizer, chat_template, args, processor, raw_text=raw_text)
        self.replies = ReplyDecoder(tokenizer, self.prompts, eos_ids)
        self._images = images
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._added = frozenset({*added, tokenizer.eos_token_id})
        special = [re.escape(str(token)) for token in added.values() if token.special]
        self._special = re.compile("|".join(special) or "(?!)")
        self._checked: set[tuple[str, ...]] = set()
        self._warned = False

    def read_images(self, messages: Sequence[Message], where: str) -> tuple[Message, ...]:
        """The messages with all their images read and stored; for a model that reads text, unchanged.

        Raises `DataError` for an image that cannot be used.
        """
        return tuple(messages) if self._images is None else self._images.read_parts(messages, where)

    def encode_prompt(
        self, messages: Sequence[Message], tools: Tools = (), reply_prefix: str = ""
    ) -> IntArray:
        """[P] The tokens before the model's first reply, with the text that starts it. Raises `DataError`.

        Logs once that the template does not render tools, which for an agent only its requests name.
        """
        if tools and not self._warned and not self.prompts.renders_tools:
            self._warned = True
            log.warning(
                "The chat template does not render tools, so the model is not told of those of a conversation (%s). "
                "Write, under data.chat_template, a template that renders them.",
                ", ".join(str(tool.get("function", tool).get("name")) for tool in tools),
            )
        return self.prompts.encode(messages, tools, reply_prefix)

    def encode_text(self, text: str) -> IntArray:
        """[P] The tokens of a prompt that is plain text, with the tokenizer's own special tokens."""
        return np.array(encode_plain(self.tokenizer, [encodable(text)])[0], np.int32)

    def decode_tokens(self, ids: Iterable[int]) -> str:
        """Text of tokens with all special tokens."""
        return str(self.tokenizer.decode([int(token) for token in ids], skip_special_tokens=False))

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

    def opens_reasoning(self, prompt_ids: IntArray) -> bool:
        """Whether a prompt ends inside reasoning, which its template or the given start of the reply opens."""
        return ends_in_reasoning(self.replies.reply_start(prompt_ids))

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
        # gpt-oss's template refuses special tokens in a content; only what follows the last reply is used.
        earlier = [
            {**message, "content": self._special.sub("", message["content"])}
            if message["role"] == "assistant" and isinstance(message["content"], str)
            else message
            for message in messages[:-1]
        ]
        try:
            text = self.prompts.render(where, [*earlier, reply, *new], tools, prompt=True)
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


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """End of a turn in a rendered conversation."""

    stop: int
    """End of what is trained on, after the turn's end token."""
    resume: int
    """Start of the text that follows: behind `stop`, and behind repetitions of the end token, which are removed."""
    has_end_token: bool


class TurnEnds:
    """Finds the end tokens of turns in rendered text."""

    def __init__(self, end_texts: Sequence[str], special_texts: Iterable[str]) -> None:
        """`end_texts` are the tokens at which sampling stops, of which the first one is written where a text has none;
        `special_texts` are the tokenizer's special tokens, behind which templates write no more than white space."""
        self._default = end_texts[0] if end_texts else ""
        self._special = tuple(special_texts)
        either = "|".join(sorted(map(re.escape, end_texts), key=len, reverse=True)) or r"(?!)"
        # Sampling stops at the first of several end tokens.
        self._repeated = re.compile(rf"(?P<end>{either})(?:\s*(?:{either}))*\s*")
        self._next = re.compile(rf"\s*(?P<end>{either})")

    def of_turn(self, text: str, start: int, stop: int) -> TurnEnd:
        """The end of the turn at `text[start:stop]`.

        The end token is the one that the turn ends with; or the one that follows, which is the header of the next turn
        in templates without an end mark; or another special token that the turn ends with.
        """
        found = self._last(text, start, stop) or self._next.match(text, stop)
        if found is not None:
            repeated = re.compile(rf"(?:\s*{re.escape(found['end'])})*")
            rest = repeated.match(text, found.end("end"))
            assert rest is not None
            return TurnEnd(found.end("end"), rest.end(), True)
        trimmed = len(text[:stop].rstrip())
        if trimmed > start and text[:trimmed].endswith(self._special):
            return TurnEnd(trimmed, trimmed, False)
        return TurnEnd(stop, stop, False)

    def at_start(self, text: str) -> str:
        """The end token with which a text begins, with the white space before it; empty if it begins with none."""
        found = self._next.match(text)
        return "" if found is None else found.group()

    def closed(self, text: str) -> str:
        """A text without a template up to its end token; one is added where it has none."""
        found = self._last(text, 0, len(text))
        return text + self._default if found is None else text[: found.end("end")]

    def _last(self, text: str, start: int, stop: int) -> re.Match[str] | None:
        """The end tokens that a text ends with; `end` is the first of them."""
        return next((run for run in self._repeated.finditer(text, start, stop) if run.end() == stop), None)

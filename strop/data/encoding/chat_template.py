"""Prompts: encoding of messages with the chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import is_template
from strop.data.encoding.messages import Tools
from strop.data.encoding.template_bound import TemplateBound, plain_roles
from strop.data.encoding.token_bound import TokenBound
from strop.data.images.messages import media_of
from strop.errors import ConfigError, DataError, ModelError
from strop.printable import encodable
from strop.types import IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.protocols import ImageProcessor

_PROBE = "strop-probe-51c8e0"
"""Content that shows whether a template renders contents that are text."""
NO_TEMPLATE_ARGS: Mapping[str, Any] = {}
"""No variables beyond those that every template gets."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt before encoding."""

    where: str
    """The location of its row, for messages."""
    messages: tuple[Message, ...]
    tools: Tools = ()
    reply_prefix: str = ""
    """Text with which the answer begins."""


def require_encodable(text: str, where: str) -> None:
    """Raise `DataError` for text with half of a surrogate pair, which no tokenizer accepts."""
    if encodable(text) != text:
        raise DataError(
            f"{where}: the text contains half of a surrogate pair (\\ud800 to \\udfff); remove it."
        )


class PromptEncoder:
    """Encodes messages as the tokens of a prompt."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str,
        args: Mapping[str, Any] = NO_TEMPLATE_ARGS,
        images: ImageProcessor | None = None,
    ) -> None:
        """`chat_template` is `data.chat_template`: `tokenizer`, `none`, a Jinja file, or its text; `args` are
        the template's variables; `images` is the processor of a model that reads images.

        Raises `ModelError` for a tokenizer without a template, `ConfigError` for a file that cannot be read.
        """
        self._tokenizer = tokenizer
        self._template = None if chat_template in ("tokenizer", "none") else read_template(chat_template)
        self._plain = chat_template == "none"
        self._args = dict(args)
        self._images = images
        self._needs_parts = False
        if chat_template == "tokenizer" and not tokenizer.chat_template:
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} has no chat template, so messages cannot be "
                "converted to a prompt. Write data.chat_template: none if the prompts are plain text without "
                "a template, or the path of a file with a Jinja template."
            )
        self._bound = TokenBound.of(tokenizer, adds_special_tokens=self._plain)
        self._template_bound: TemplateBound | None = None
        # Templates of some models that read images render lists of parts only, and drop contents that are text.
        probe = ({"role": "user", "content": _PROBE},)
        self._needs_parts = images is not None and not self._plain and _PROBE not in self._render_probe(probe)

    def encode(self, messages: Sequence[Message], tools: Tools = (), reply_prefix: str = "") -> IntArray:
        """[P] The tokens of the prompt, up to the start of the answer, or to the end of `reply_prefix`.

        Raises `DataError` if the template cannot render the messages.
        """
        return self.encode_all([ChatPrompt("The prompt", tuple(messages), tools, reply_prefix)])[0]

    def encode_all(self, prompts: Sequence[ChatPrompt]) -> list[IntArray]:
        """Encode many prompts; an error names the row of its prompt."""
        return self._encode_texts(prompts, self._texts(prompts))

    def encode_longer(self, prompts: Sequence[ChatPrompt], limit: int) -> list[IntArray | None]:
        """Encode many prompts like `encode_all`; None for one that provably has at most `limit` tokens."""
        if self._bound is None or self._images is not None:
            return [*self.encode_all(prompts)]
        found: list[IntArray | None] = [None] * len(prompts)
        unsure = [i for i, prompt in enumerate(prompts) if not self._is_short(prompt, limit, self._bound)]
        texts = self._texts([prompts[i] for i in unsure])
        rendered = [
            (i, text) for i, text in zip(unsure, texts, strict=True) if not text or self._bound(text) > limit
        ]
        encoded = self._encode_texts([prompts[i] for i, _ in rendered], [text for _, text in rendered])
        for (i, _), token_ids in zip(rendered, encoded, strict=True):
            found[i] = token_ids
        return found

    def _is_short(self, prompt: ChatPrompt, limit: int, bound: TokenBound) -> bool:
        """Whether the prompt provably is valid text of at most `limit` tokens, by the lengths of its contents."""
        if self._plain or prompt.tools or (roles := plain_roles(prompt.messages)) is None:
            return False
        if self._template_bound is None:
            self._template_bound = TemplateBound(
                self.template or "", {**self._tokenizer.special_tokens_map, **self._args}
            )
        length = self._template_bound(roles)
        if length is None:
            return False
        num_bytes, is_ascii = length.fixed_bytes, length.fixed_is_ascii
        texts = [message["content"] for message in prompt.messages]
        for text, times in zip([*texts, prompt.reply_prefix], length.times, strict=True):
            if text.isascii():
                num_bytes += times * len(text)
            elif encodable(text) == text:
                num_bytes, is_ascii = num_bytes + times * len(text.encode()), False
            else:
                return False
        return bound.of_length(num_bytes, is_ascii=is_ascii) <= limit

    @property
    def fingerprint(self) -> str:
        """Hash of the tokenizer, the template and its variables."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        facts = backend.to_str() if backend is not None else self._tokenizer.name_or_path
        settings = [facts, self.template, self._args, sorted(self._tokenizer.special_tokens_map.items())]
        text = json.dumps([type(self._tokenizer).__name__, *settings], default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _texts(self, prompts: Sequence[ChatPrompt]) -> list[str]:
        """The rendered prompts. Raises `DataError`, which names the row, also for text that cannot be encoded."""
        texts = self._rendered_together(prompts) or [self._text(prompt) for prompt in prompts]
        for prompt, text in zip(prompts, texts, strict=True):
            if not text.isascii():
                require_encodable(text, prompt.where)
        return texts

    def _rendered_together(self, prompts: Sequence[ChatPrompt]) -> list[str] | None:
        """Prompts without tools, rendered by one call; None where each needs its own, or one fails."""
        if self._plain or len(prompts) < 2 or any(prompt.tools for prompt in prompts):
            return None
        try:
            rendered: Any = self._tokenizer.apply_chat_template(
                [self._as_rendered(prompt.messages) for prompt in prompts],
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=False,
                **self._args,
            )
        except Exception:  # noqa: BLE001  (the template is the user's code; rendered one by one, the row is named)
            return None
        written = map(self._write_images, rendered)
        return [text + prompt.reply_prefix for text, prompt in zip(written, prompts, strict=True)]

    def _encode_texts(self, prompts: Sequence[ChatPrompt], texts: Sequence[str]) -> list[IntArray]:
        if not prompts:
            return []
        # A template writes the special tokens itself; to plain text the tokenizer adds its own.
        encoded = self._tokenizer(
            list(texts), add_special_tokens=self._plain, return_attention_mask=False, verbose=False
        )["input_ids"]
        for prompt, ids in zip(prompts, encoded, strict=True):
            if not ids:
                raise DataError(f"{prompt.where}: the prompt is empty: it has no tokens.")
        return [
            self.expand_images(np.array(ids, np.int32), prompt.messages, prompt.where)
            for prompt, ids in zip(prompts, encoded, strict=True)
        ]

    def expand_images(self, token_ids: IntArray, messages: Sequence[Message], where: str) -> IntArray:
        """[L] The tokens of rendered messages, in which each image has all of its tokens. Raises `DataError`."""
        media = media_of(messages, where)
        if self._images is None:
            return token_ids
        try:
            return self._images.expand(token_ids, media)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None

    def _text(self, prompt: ChatPrompt) -> str:
        if not self._plain:
            shown = self.render(prompt.where, prompt.messages, prompt.tools, prompt=True)
            return shown + prompt.reply_prefix
        roles = [message["role"] for message in prompt.messages]
        if roles != ["user"] or not isinstance(prompt.messages[0]["content"], str) or prompt.tools:
            what = "tools" if prompt.tools else f"messages of {', '.join(roles)}"
            what = "content in parts" if roles == ["user"] and not prompt.tools else what
            raise DataError(
                f"{prompt.where}: data.chat_template: none encodes one plain text without a template, but "
                f"this prompt has {what}. Write data.chat_template: tokenizer, or the path of a Jinja file."
            )
        return prompt.messages[0]["content"] + prompt.reply_prefix

    @property
    def template(self) -> str | None:
        """The Jinja template that renders messages; None for plain text without a template."""
        return None if self._plain else str(self._tokenizer.get_chat_template(self._template))

    def render(
        self,
        where: str,
        messages: Sequence[Message],
        tools: Tools,
        *,
        prompt: bool,
        args: Mapping[str, Any] = NO_TEMPLATE_ARGS,
    ) -> str:
        """Render messages as text; with `prompt`, up to the start of the next answer.

        `args` are further variables of the template, which take precedence. Raises `DataError` if the template
        cannot render the messages.
        """
        with _rendering(where):
            text = self._tokenizer.apply_chat_template(
                self._as_rendered(messages),
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._template,
                add_generation_prompt=prompt,
                tokenize=False,
                **{**self._args, **args},
            )
        return self._write_images(str(text))

    def render_marked(
        self,
        where: str,
        messages: Sequence[Message],
        tools: Tools,
        args: Mapping[str, Any] = NO_TEMPLATE_ARGS,
    ) -> tuple[str, list[tuple[int, int]]]:
        """Render messages as text; returns it with the spans of characters that the template marks as
        generated."""
        from transformers.utils.chat_template_utils import render_jinja_template

        with _rendering(where):
            options: dict[str, Any] = {**self._tokenizer.special_tokens_map, **self._args, **args}
            rendered: Any = render_jinja_template(
                conversations=[self._as_rendered(messages)],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self.template,
                return_assistant_tokens_mask=True,
                **options,
            )
        (text,), (spans,) = rendered

        def moved(end: int) -> int:
            return len(self._write_images(text[:end]))

        return self._write_images(text), [(moved(start), moved(end)) for start, end in spans]

    def _write_images(self, text: str) -> str:
        return text if self._images is None else self._images.write_images(text)

    def _render_probe(self, messages: Sequence[Message]) -> str:
        """The rendered messages; empty for a template that refuses them."""
        try:
            return self.render("The chat template", messages, (), prompt=False)
        except DataError:
            return ""

    def _as_rendered(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        if not self._needs_parts:
            return [dict(message) for message in messages]
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else dict(message)
            for message in messages
        ]


@contextmanager
def _rendering(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  (a template is the user's or the model's code)
        raise DataError(f"{where}: the chat template cannot render this prompt: {error}") from None


def read_template(chat_template: str) -> str:
    """The Jinja template in a text or in a file. Raises `ConfigError` if the file cannot be read."""
    if is_template(chat_template):
        return chat_template
    try:
        return Path(chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"data.chat_template: {chat_template} cannot be read ({error}). Write `tokenizer` for the "
            "tokenizer's template, `none` for plain text without a template, a Jinja template, or the path "
            "of a Jinja file."
        ) from None

"""Prompts: from a row's value to messages, and from messages to tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import is_template
from strop.errors import ConfigError, DataError, ModelError
from strop.types import Ints, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tools = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is shown, before it is tokens."""

    where: str
    """The row it came from, for messages."""
    messages: tuple[Message, ...]
    tools: Tools = ()
    reply_prefix: str = ""
    """What the answer begins with."""


def to_messages(value: Any, where: str, *, system: str | None = None) -> tuple[Message, ...]:
    """A prompt column's value as messages; plain text becomes one user message.

    `system` is put before messages that have no system message. Keys that are null, as Parquet
    fills them in, are left out. Raises `DataError` for anything that is neither text nor messages.
    """
    if isinstance(value, str):
        messages = [{"role": "user", "content": value}]
    elif isinstance(value, Sequence) and value:
        messages = [_message(message, f"{where}, message {i + 1}") for i, message in enumerate(value)]
    else:
        raise DataError(
            f"{where}: the prompt is {_brief(value)}. A prompt is plain text, or a list of messages such as "
            '[{"role": "user", "content": "..."}].'
        )
    if system is not None and all(message["role"] != "system" for message in messages):
        messages.insert(0, {"role": "system", "content": system})
    return tuple(messages)


def _message(value: Any, where: str) -> dict[str, Any]:
    calls = isinstance(value, Mapping) and value.get("tool_calls")
    if calls and value.get("content") is None:
        value = {**value, "content": ""}  # A message that calls tools need not say anything.
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str) or "content" not in value:
        raise DataError(
            f"{where} is {_brief(value)}. A message has a role and a content, such as "
            '{"role": "user", "content": "..."}.'
        )
    content = value["content"]
    if isinstance(content, Sequence) and not isinstance(content, str):
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind != "text":
                raise DataError(
                    f"{where} has a part that is no text ({_brief(part)}); Strop's models read text."
                )
    return {"role": value["role"], "content": content} | {
        key: _without_nulls(item)
        for key, item in value.items()
        if key not in ("role", "content") and item is not None
    }


def to_tools(value: Any, where: str) -> Tools:
    """A tools column's value, a list of JSON schemas or its JSON text. Raises `DataError` for all else."""
    if value is None:
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"{where}: the tools are text that is not JSON ({error}).") from None
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(
            f"{where}: the tools are {_brief(value)}, not a list of objects such as "
            '{"type": "function", "function": {"name": ..., "parameters": {...}}}.'
        )
    return tuple(_without_nulls(tool) for tool in value)


def _without_nulls(value: Any) -> Any:
    """A Parquet column gives every row the keys of all rows; those that a row does not have are null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _brief(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class PromptEncoder:
    """Turns messages into the tokens that a model is shown before it answers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template: str) -> None:
        """`chat_template` is `data.chat_template`: `tokenizer`, `none`, a Jinja file, or its text.

        Raises `ModelError` for a tokenizer without a template, `ConfigError` for a file that is not there.
        """
        self._tokenizer = tokenizer
        self._template = None if chat_template in ("tokenizer", "none") else read_template(chat_template)
        self._plain = chat_template == "none"
        if chat_template == "tokenizer" and not tokenizer.chat_template:
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} has no chat template, so messages cannot be "
                "turned into a prompt. Write data.chat_template: none if the prompts are plain text that is "
                "to be encoded as it is, or name a file with a Jinja template."
            )

    def encode(self, messages: Sequence[Message], tools: Tools = ()) -> Ints:
        """[P] The prompt's tokens, up to where the answer begins.

        Raises `DataError` where the template cannot render the messages.
        """
        return self.encode_all([Prompt("The prompt", tuple(messages), tools)])[0]

    def encode_all(self, prompts: Sequence[Prompt]) -> list[Ints]:
        """`encode` for many prompts at once; an error names the row of its prompt."""
        texts = [self._text(prompt) for prompt in prompts]
        # A template writes the special tokens itself; plain text gets those that the tokenizer adds to any.
        encoded = self._tokenizer(
            texts, add_special_tokens=self._plain, return_attention_mask=False, verbose=False
        )["input_ids"]
        for prompt, ids in zip(prompts, encoded, strict=True):
            if not ids:
                raise DataError(f"{prompt.where}: the prompt is empty, it has no tokens.")
        return [np.array(ids, np.int32) for ids in encoded]

    def _text(self, prompt: Prompt) -> str:
        if not self._plain:
            shown = self.render(prompt.where, prompt.messages, prompt.tools, prompt=True)
            return shown + prompt.reply_prefix
        roles = [message["role"] for message in prompt.messages]
        if roles != ["user"] or not isinstance(prompt.messages[0]["content"], str) or prompt.tools:
            what = "tools" if prompt.tools else f"messages of {', '.join(roles)}"
            raise DataError(
                f"{prompt.where}: data.chat_template: none encodes one plain text as it is, but this prompt "
                f"has {what}. Write data.chat_template: tokenizer, or name a Jinja file."
            )
        return prompt.messages[0]["content"] + prompt.reply_prefix

    @property
    def template(self) -> str | None:
        """The Jinja text that messages are rendered with; None for plain text as it is."""
        return None if self._plain else str(self._tokenizer.get_chat_template(self._template))

    def render(self, where: str, messages: Sequence[Message], tools: Tools, *, prompt: bool) -> str:
        """The text of messages; with `prompt`, up to where the next answer begins.

        Raises `DataError` where the template cannot render them.
        """
        with _rendering(where):
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._template,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        return str(text)

    def render_marked(
        self, where: str, messages: Sequence[Message], tools: Tools
    ) -> tuple[str, list[tuple[int, int]]]:
        """The same, and which of its characters the template marks as generated, from and up to."""
        from transformers.utils.chat_template_utils import render_jinja_template

        with _rendering(where):
            options: dict[str, Any] = dict(self._tokenizer.special_tokens_map)
            rendered: Any = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self.template,
                return_assistant_tokens_mask=True,
                **options,
            )
        (text,), (spans,) = rendered
        return text, spans


@contextmanager
def _rendering(where: str) -> Iterator[None]:
    from jinja2 import TemplateError

    try:
        yield
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(f"{where}: the chat template cannot render this prompt: {error}") from None


def read_template(said: str) -> str:
    """The Jinja text that is said, or that is in the file of that name. Raises `ConfigError` where it
    cannot be read."""
    if is_template(said):
        return said
    try:
        return Path(said).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"data.chat_template: {said} cannot be read ({error}). Write `tokenizer` for the tokenizer's "
            "own, `none` for plain text as it is, a Jinja template itself, or name a file with one."
        ) from None

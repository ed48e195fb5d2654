"""Prompts: encoding of messages with the chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import DataConfig, is_template
from strop.data.encoding.messages import Tools, with_json_values
from strop.data.encoding.model_tokens import ModelTokens
from strop.data.encoding.prompt_bounds import TemplateBound, TokenBound, plain_roles
from strop.data.encoding.template_limits import MAX_CHARACTERS, MAX_SECONDS, limited_rendering, template_fault
from strop.data.images.messages import media_of
from strop.errors import ConfigError, DataError, ModelError
from strop.printable import encodable, shorten
from strop.types import IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.protocols import ImageProcessor

_MARKUP = ("<s>", "</s>")
"""Special tokens that are also markup of ordinary text."""
_PROBE = "strop-probe-51c8e0"
"""Content that shows whether a template renders contents that are text."""
_PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "strop_probe",
        "description": _PROBE,
        "parameters": {"type": "object", "properties": {}},
    },
}
_PROBE_CALL: Mapping[str, Any] = {
    "id": "strop0000",
    "type": "function",
    "function": {"name": "strop_probe", "arguments": {"strop": _PROBE}},
}
_SECONDS_EACH = 0.1
"""CPU time of one of many prompts that are rendered together, in addition to that of a rendering."""
NO_TEMPLATE_ARGS: Mapping[str, Any] = {}
"""No variables beyond those that every template gets."""


@dataclass(frozen=True, slots=True)
class RenderedText:
    """Text and tokens of a chat template around a user's message, by which a text that it rendered is known."""

    tokens: tuple[str, ...]
    """Special tokens that the template writes for every conversation, except at its beginning."""
    first: str
    """The tokenizer's token at the beginning of a text; empty for none."""
    before: str
    after: str
    """Text of the template before and after the content, without `first` and white space at its ends."""

    @classmethod
    def of(cls, render: Callable[..., str], tokenizer: PreTrainedTokenizerBase) -> RenderedText:
        """`render` renders messages, with `prompt` up to the start of the answer."""
        whole = render(({"role": "user", "content": _PROBE},), prompt=True)
        before, _, after = whole.partition(_PROBE)
        first = tokenizer.bos_token or ""
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        written = sorted(token for token in special - {first, *_MARKUP} if token in whole)
        return cls(tuple(written), first, before.removeprefix(first).strip(), after.strip())

    def find(self, text: str) -> str | None:
        """A token that only the template writes, or the end of a text that is rendered as a whole; None for others."""
        found = next((token for token in self.tokens if token in text), None)
        if found is not None or not (self.before and self.after and text.rstrip().endswith(self.after)):
            return found
        begun = text.lstrip().removeprefix(self.first).lstrip()
        return self.after if begun.startswith(self.before) else None


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


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt before encoding."""

    where: str
    """The location of its row, for messages."""
    messages: tuple[Message, ...]
    tools: Tools = ()
    reply_prefix: str = ""
    """Text with which the answer begins."""
    is_text: bool = False
    """Whether the row has plain text, of which `messages` is the form for templates, rewards and records."""


def require_encodable(text: str, where: str) -> None:
    """Raise `DataError` for text with half of a surrogate pair, which no tokenizer accepts, and for text that would
    take too long to tokenize."""
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            f"{where}: the text has {len(text):,} characters, and Strop reads {MAX_CHARACTERS:,}, about a million "
            "tokens. Shorten it, or remove the row."
        )
    if encodable(text) != text:
        raise DataError(
            f"{where}: the text contains half of a surrogate pair (\\ud800 to \\udfff); remove it."
        )


class PromptEncoder:
    """Encodes messages as the tokens of a prompt. A last message of the assistant is the beginning of the answer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str,
        args: Mapping[str, Any] = NO_TEMPLATE_ARGS,
        images: ImageProcessor | None = None,
        *,
        raw_text: bool = False,
        tokens: ModelTokens | None = None,
    ) -> None:
        """`chat_template` is `data.chat_template`: `tokenizer`, `none`, a Jinja file, or its text; `args` are
        the template's variables; `images` is the processor of a model that reads images; with `raw_text`, prompts
        that are plain text are encoded without the template; `tokens` are those of the model, to refuse others, and
        None where its engine does that.

        Raises `ModelError` for a tokenizer without a template, `ConfigError` for a file that cannot be read.
        """
        self._tokenizer = tokenizer
        self._template = None if chat_template in ("tokenizer", "none") else read_template(chat_template)
        self._plain = chat_template == "none"
        self._args = dict(args)
        self._images = images
        self._raw_text = raw_text
        self._needs_parts = False
        if chat_template == "tokenizer" and not tokenizer.chat_template and not raw_text:
            raise ModelError(self._no_template)
        self._require_usable_template(chat_template)
        # A token that the model lacks is found by encoding only.
        self._checked = tokens if tokens is not None and tokens.has_unknown(tokenizer) else None
        adds_special_tokens = self._plain or raw_text
        self._bound = (
            None if self._checked else TokenBound.of(tokenizer, adds_special_tokens=adds_special_tokens)
        )
        self._template_bound: TemplateBound | None = None
        self._rendered: RenderedText | None = None
        # Templates of some models that read images render lists of parts only, and drop contents that are text.
        probe = ({"role": "user", "content": _PROBE},)
        self._needs_parts = images is not None and not self._plain and _PROBE not in self._render_probe(probe)

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        images: ImageProcessor | None = None,
        tokens: ModelTokens | None = None,
    ) -> PromptEncoder:
        """The encoder of a run's prompts. Raises like `__init__`."""
        raw_text, args = data.text_prompts == "raw", data.chat_template_args
        return cls(tokenizer, data.chat_template, args, images, raw_text=raw_text, tokens=tokens)

    def _require_usable_template(self, chat_template: str) -> None:
        if (template := self.template) is None or (fault := template_fault(template)) is None:
            return
        reason = f"is not a template that can be rendered: {fault.rstrip('.')}."
        if chat_template == "tokenizer":
            raise ModelError(f"the chat template of {self._tokenizer.name_or_path} {reason}")
        raise ConfigError(f"data.chat_template: {shorten(chat_template)} {reason}")

    @property
    def _no_template(self) -> str:
        return (
            f"The tokenizer of {self._tokenizer.name_or_path} has no chat template, so messages cannot be "
            "converted to a prompt. Write data.chat_template: none if the prompts are plain text without "
            "a template, or the path of a file with a Jinja template."
        )

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
        if self._is_plain(prompt) or prompt.tools or (roles := plain_roles(prompt.messages)) is None:
            return False
        if roles[-1] == "assistant" or (prompt.is_text and self._rendered_mark(prompt.messages)):
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
        settings.append(self._raw_text)
        if self._checked is not None:
            settings.append(self._checked.vocab_size)
        text = json.dumps([type(self._tokenizer).__name__, *settings], default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _texts(self, prompts: Sequence[ChatPrompt]) -> list[str]:
        """The rendered prompts. Raises `DataError`, which names the row, also for text that cannot be encoded."""
        texts = self._rendered_together(prompts) or [self._text(prompt) for prompt in prompts]
        for prompt, text in zip(prompts, texts, strict=True):
            if not text.isascii() or len(text) > MAX_CHARACTERS:
                require_encodable(text, prompt.where)
        return texts

    def _rendered_together(self, prompts: Sequence[ChatPrompt]) -> list[str] | None:
        """Prompts without tools, rendered by one call; None where each needs its own, or one fails."""
        if self._plain or len(prompts) < 2 or any(map(self._needs_own_rendering, prompts)):
            return None
        try:
            with limited_rendering(MAX_SECONDS + _SECONDS_EACH * len(prompts)):
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

    def _needs_own_rendering(self, prompt: ChatPrompt) -> bool:
        if prompt.tools or self._is_plain(prompt) or prompt.messages[-1]["role"] == "assistant":
            return True
        return prompt.is_text and self._rendered_mark(prompt.messages) is not None

    def _encode_texts(self, prompts: Sequence[ChatPrompt], texts: Sequence[str]) -> list[IntArray]:
        if not prompts:
            return []
        # A template writes the special tokens itself; to plain text the tokenizer adds its own.
        plain = [self._is_plain(prompt) for prompt in prompts]
        encoded: list[list[int]] = [[] for _ in prompts]
        for is_text in dict.fromkeys(plain):
            chosen = [i for i, each in enumerate(plain) if each is is_text]
            rendered = [texts[i] for i in chosen]
            ids = (
                encode_plain(self._tokenizer, rendered)
                if is_text
                else self._tokenizer(
                    rendered, add_special_tokens=False, return_attention_mask=False, verbose=False
                )["input_ids"]
            )
            for i, tokens in zip(chosen, ids, strict=True):
                encoded[i] = tokens
        found = []
        for prompt, ids in zip(prompts, encoded, strict=True):
            if not ids:
                raise DataError(f"{prompt.where}: the prompt is empty: it has no tokens.")
            found.append(self.expand_images(np.array(ids, np.int32), prompt.messages, prompt.where))
            if self._checked is not None:
                self._checked.require_known(found[-1], prompt.where, self._tokenizer)
        return found

    def expand_images(self, token_ids: IntArray, messages: Sequence[Message], where: str) -> IntArray:
        """[L] The tokens of rendered messages, in which each image has all of its tokens. Raises `DataError`."""
        media = media_of(messages, where)
        if self._images is None:
            return token_ids
        try:
            return self._images.expand(token_ids, media)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None

    def _is_plain(self, prompt: ChatPrompt) -> bool:
        """Whether the prompt is encoded without the template."""
        return self._plain or (self._raw_text and prompt.is_text)

    def _text(self, prompt: ChatPrompt) -> str:
        if not self._is_plain(prompt):
            return self._templated(prompt)
        roles = [message["role"] for message in prompt.messages]
        if roles != ["user"] or not isinstance(prompt.messages[0]["content"], str) or prompt.tools:
            what = "tools" if prompt.tools else f"messages of {', '.join(roles)}"
            what = "content in parts" if roles == ["user"] and not prompt.tools else what
            setting = "data.chat_template: none encodes one plain text without a template"
            advice = "Write data.chat_template: tokenizer, or the path of a Jinja file."
            if not self._plain:
                setting = "data.text_prompts: raw encodes a prompt that is plain text without the template"
                advice = "Write data.text_prompts: template, or the prompts as messages."
            raise DataError(f"{prompt.where}: {setting}, but this prompt has {what}. {advice}")
        return prompt.messages[0]["content"] + prompt.reply_prefix

    def _templated(self, prompt: ChatPrompt) -> str:
        where, messages, begun = prompt.where, prompt.messages, ""
        if prompt.is_text:
            self.require_unrendered(messages, where)
        if messages[-1]["role"] == "assistant" and len(messages) > 1:
            begun = messages[-1]["content"]
            if not isinstance(begun, str) or messages[-1].get("tool_calls"):
                raise DataError(
                    f"{where}: the last message, of the assistant, has tool calls or images, and cannot be continued."
                )
            messages = messages[:-1]
        return self.render(where, messages, prompt.tools, prompt=True) + begun + prompt.reply_prefix

    def require_unrendered(self, messages: Sequence[Message], where: str) -> None:
        """Raise `DataError` for a text, the user's message of a prompt, that the template has rendered before."""
        if (mark := self._rendered_mark(messages)) is not None:
            raise DataError(
                f"{where}: the prompt is text with {mark!r}, which the chat template writes itself: it is rendered "
                "already, and would be rendered twice. Write data.chat_template: none, which encodes text as it is "
                "(data.text_prompts: raw where other rows have messages), or the messages of the prompt."
            )

    def _rendered_mark(self, messages: Sequence[Message]) -> str | None:
        if self._rendered is None:
            self._rendered = RenderedText.of(self._render_probe, self._tokenizer)
        content = next(message["content"] for message in messages if message["role"] == "user")
        return self._rendered.find(content) if isinstance(content, str) else None

    @property
    def template(self) -> str | None:
        """The Jinja template that renders messages; None without one."""
        if self._plain or not (self._template or self._tokenizer.chat_template):
            return None
        return str(self._tokenizer.get_chat_template(self._template))

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
        cannot render the messages, and `ModelError` without a template.
        """
        if not (self._template or self._tokenizer.chat_template):
            raise ModelError(self._no_template)
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

    @cached_property
    def renders_tools(self) -> bool:
        """Whether a prompt differs with and without tools; also true for a template that refuses them by an error."""
        messages = ({"role": "user", "content": _PROBE},)
        return self._differs((messages, ()), (messages, (_PROBE_TOOL,)), prompt=True)

    @cached_property
    def renders_tool_calls(self) -> bool:
        """Whether an assistant's message differs with and without tool calls; also true for a template that refuses
        them by an error."""
        user, reply = {"role": "user", "content": _PROBE}, {"role": "assistant", "content": ""}
        calls = {**reply, "tool_calls": [_PROBE_CALL]}
        tools = (_PROBE_TOOL,)
        return self._differs(((user, reply), tools), ((user, calls), tools), prompt=False)

    def _differs(
        self,
        first: tuple[tuple[Message, ...], Tools],
        second: tuple[tuple[Message, ...], Tools],
        *,
        prompt: bool,
    ) -> bool:
        """Whether two conversations have different texts; true for one that cannot be rendered."""
        try:
            one, other = (
                self.render("The chat template", messages, tools, prompt=prompt)
                for messages, tools in (first, second)
            )
        except DataError:  # a row that needs this raises the error with its name
            return True
        return one != other

    def _write_images(self, text: str) -> str:
        return text if self._images is None else self._images.write_images(text)

    def _render_probe(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """The rendered messages; empty for a template that refuses them."""
        try:
            return self.render("The chat template", messages, (), prompt=prompt)
        except DataError:
            return ""

    def _as_rendered(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        if not self._needs_parts:
            return [with_json_values(message) for message in messages]
        return [
            {**with_json_values(message), "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else with_json_values(message)
            for message in messages
        ]


@contextmanager
def _rendering(where: str) -> Iterator[None]:
    try:
        with limited_rendering():
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

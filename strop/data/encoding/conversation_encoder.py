"""Encoding of conversations as training sequences, with a loss mask on the assistant's tokens.

The text of a conversation is split where an assistant turn begins and ends, and each part is encoded
separately, so that an answer begins at the token at which sampling would have begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.data.encoding.chat_template import NO_TEMPLATE_ARGS, PromptEncoder, encode_plain, require_encodable
from strop.data.encoding.messages import Tools
from strop.data.encoding.model_tokens import ModelTokens
from strop.data.encoding.turn_encoder import TurnEnds
from strop.data.images.messages import media_of
from strop.errors import DataError, ModelError
from strop.printable import counted
from strop.types import BoolArray, ImageReference, IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.protocols import ImageProcessor

_GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
CharSpan = tuple[int, int]
"""Start and end of a span of characters in a rendered conversation."""


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    """Messages, and which of the assistant's are trained on."""

    where: str
    """The location of its row, for error messages."""
    messages: tuple[Message, ...]
    first_trained_message: int
    """Index of the first trained message; earlier assistant messages are context."""
    tools: Tools = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """The row's own variables of the chat template."""
    untrained: frozenset[int] = frozenset()
    """Indices of later assistant messages that are marked as context too."""
    prompt_is_text: bool = False
    """Whether the row has its prompt as plain text."""
    steps: tuple[str, ...] = ()
    """Steps of the last message, where they have labels."""
    trains_prompt: bool = False
    """Whether all tokens are trained after the first, and not only those of the assistant's messages."""

    def trained_messages(self) -> list[int]:
        """Indices of the messages that are trained on."""
        return [
            i
            for i, m in enumerate(self.messages)
            if i >= self.first_trained_message and m["role"] == "assistant" and i not in self.untrained
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
        *,
        raw_text: bool = False,
        tokens: ModelTokens | None = None,
    ) -> None:
        """The arguments are those of `PromptEncoder`; with `raw_text`, prompts and answers that are plain text are
        encoded without the template; `tokens` has the end tokens, by default those of the tokenizer's folder. Raises
        like it, and `ModelError` for a tokenizer without an end token."""
        self._prompts = PromptEncoder(tokenizer, chat_template, args, images, raw_text=raw_text)
        self._plain = chat_template == "none"
        self._raw_text = raw_text
        self._images = images
        self._tokenizer = tokenizer
        if tokenizer.eos_token is None:
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} has no end token (eos_token), so the model "
                "cannot be trained to end an answer. Add one to its tokenizer_config.json."
            )
        self._marked = bool(_GENERATION_MARK.search(self._prompts.template or ""))
        self._ends = turn_ends(tokenizer, tokens or ModelTokens.of_tokenizer(tokenizer))
        self._next_headers: dict[bool, str] = {}
        """End token that the template writes after the last turn when a message follows, for turns with and without
        tool calls."""

    @property
    def template(self) -> str | None:
        """The chat template; None for plain text without one."""
        return self._prompts.template

    def encode_all(self, conversations: Sequence[TrainingConversation]) -> list[EncodedSequence]:
        """Encode conversations. Raises `DataError`, which names the row, for a conversation without an
        assistant turn to train on, or that the template cannot render turn by turn."""
        parts = [self._parts(conversation) for conversation in conversations]
        for conversation, of_one in zip(conversations, parts, strict=True):
            require_encodable("".join(text for text, _ in of_one), conversation.where)
        # The tokenizer's own special tokens are added to plain text only: templates write them themselves.
        plain = [self._is_plain(conversation) for conversation in conversations]
        begin = [of_one[0][0] for of_one in parts]
        texts = iter(encode_plain(self._tokenizer, list(compress(begin, plain))))
        rendered = iter(
            self._encode([text for text, is_text in zip(begin, plain, strict=True) if not is_text])
        )
        others = iter(self._encode([text for of_one in parts for text, _ in of_one[1:]]))
        encoded = []
        for is_plain, of_one in zip(plain, parts, strict=True):
            ids = [next(texts if is_plain else rendered), *(next(others) for _ in of_one[1:])]
            owns = [own for _, own in of_one]
            encoded.append(_join(ids, owns))
        for conversation, one in zip(conversations, encoded, strict=True):
            if conversation.trains_prompt:
                one.loss_mask[:1] = False  # no token precedes it
        encoded = [self._expand(one, c) for one, c in zip(encoded, conversations, strict=True)]
        for conversation, one in zip(conversations, encoded, strict=True):
            if not one.loss_mask.any() or one.loss_mask[0]:
                raise DataError(f"{conversation.where}: the prompt or the answer is empty: it has no tokens.")
        return encoded

    def encode_whole(
        self, conversations: Sequence[TrainingConversation], *, append_eos: bool
    ) -> list[EncodedSequence]:
        """Encode conversations as a reward model reads them (`strop.inference.reward_model`): each as one text, with
        all that the template writes after the last message. All tokens but the first are targets.

        `append_eos` is whether the tokenizer's end token follows a text without a template. Raises `DataError`, which
        names the row.
        """
        texts = []
        for conversation in conversations:
            text = self._scored_text(conversation, append_eos)
            require_encodable(text, conversation.where)
            if media_of(conversation.messages, conversation.where):
                raise DataError(
                    f"{conversation.where} has an image, and a reward model reads text. Remove the row."
                )
            texts.append(text)
        encoded = [_join([ids], [True]) for ids in self._encode(texts)]
        for conversation, one in zip(conversations, encoded, strict=True):
            one.loss_mask[:1] = False  # no token precedes it
            if not one.loss_mask.any():
                raise DataError(f"{conversation.where}: the prompt or the answer is empty: it has no tokens.")
        return encoded

    def encode_steps(
        self, conversations: Sequence[TrainingConversation], separator: str, *, append_eos: bool
    ) -> list[EncodedSequence]:
        """Encode conversations as `encode_whole` does, each cut after a step's separator. The targets are the last
        tokens of the steps; of the last step, it is that of the whole text. Raises `DataError`, which names the row."""
        parts = []
        for conversation in conversations:
            text = self._scored_text(conversation, append_eos)
            require_encodable(text, conversation.where)
            parts.append(_cut_after_steps(text, conversation, separator))
        ids = iter(self._encode([part for of_one in parts for part in of_one]))
        encoded = []
        for conversation, of_one in zip(conversations, parts, strict=True):
            steps = [next(ids) for _ in of_one]
            for number, tokens in enumerate(steps, 1):
                if len(tokens) < 2:
                    raise DataError(
                        f"{conversation.where}: step {number} of {len(steps)}, {of_one[number - 1]!r:.40}, has "
                        f"{len(tokens)} tokens with its separator, and needs two to be told from the one before it. "
                        "Join it with that step, and write one label for both."
                    )
            one = _join(steps, [False] * len(steps))
            one.loss_mask[np.cumsum([len(tokens) for tokens in steps]) - 1] = True
            encoded.append(one)
        return encoded

    def _scored_text(self, conversation: TrainingConversation, append_eos: bool) -> str:
        if self._is_plain(conversation):
            return "".join(self._plain_texts(conversation)) + self._tokenizer.eos_token * append_eos
        if conversation.prompt_is_text:
            self._prompts.require_unrendered(conversation.messages, conversation.where)
        return self._prompts.render(
            conversation.where,
            conversation.messages,
            conversation.tools,
            prompt=False,
            args=conversation.template_args,
        )

    def _expand(self, encoded: EncodedSequence, conversation: TrainingConversation) -> EncodedSequence:
        """The sequence with all tokens of its images, which are no targets."""
        if conversation.trains_prompt:
            if media_of(conversation.messages, conversation.where):
                raise DataError(
                    f"{conversation.where} has an image, and train_on_prompt trains tokens of text. Remove it, and the "
                    "assistant's turns are trained."
                )
            return encoded
        messages = conversation.messages[: conversation.trained_messages()[-1] + 1]
        media = media_of(messages, conversation.where)
        token_ids = self._prompts.expand_images(encoded.token_ids, messages, conversation.where)
        if self._images is None or not media:
            return encoded
        lengths = np.ones(len(encoded.token_ids), dtype=np.int64)
        pads = encoded.token_ids == self._images.image_token_id
        lengths[pads] = [self._images.token_count(image.width, image.height) for image in media]
        return EncodedSequence(token_ids, np.repeat(encoded.loss_mask, lengths), media)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _parts(self, conversation: TrainingConversation) -> list[tuple[str, bool]]:
        """The parts of the text, each with whether it is trained on, up to the last that is."""
        if conversation.trains_prompt:
            return [(self._whole_text(conversation), True)]
        if not conversation.trained_messages():
            raise DataError(
                f"{conversation.where}: there is no assistant turn to train on. The conversation has "
                f"messages of {', '.join(m['role'] for m in conversation.messages)}"
                f"{_marked(len(conversation.untrained))}."
            )
        if self._is_plain(conversation):
            return self._plain_parts(conversation)
        if conversation.prompt_is_text:
            self._prompts.require_unrendered(conversation.messages, conversation.where)
        self._require_tool_calls(
            conversation, [conversation.messages[i] for i in conversation.trained_messages()]
        )
        text, spans = self._marked_spans(conversation) if self._marked else self._prefix_spans(conversation)
        parts, resume = [], 0
        for start, stop in spans:
            end = self._ends.of_turn(text, start, stop)
            parts += [(text[resume:start], False), (text[start : end.stop], True)]
            resume = end.resume
        is_open = not end.has_end_token and not text[end.stop :].strip()
        if is_open and (header := self._next_header(conversation, text)):
            parts[-1] = (text[start:] + header, True)
        return parts

    def _whole_text(self, conversation: TrainingConversation) -> str:
        """The text of all messages, with one end token."""
        if self._is_plain(conversation):
            return "".join(text for text, _ in self._plain_parts(conversation))
        self._require_tool_calls(conversation, conversation.messages)
        return self._ends.closed(
            self._prompts.render(
                conversation.where,
                conversation.messages,
                conversation.tools,
                prompt=False,
                args=conversation.template_args,
            )
        )

    def _require_tool_calls(self, conversation: TrainingConversation, trained: Sequence[Message]) -> None:
        """Raise `DataError` for trained messages with calls that the template does not render."""
        if any(message.get("tool_calls") for message in trained) and not self._prompts.renders_tool_calls:
            raise DataError(
                f"{conversation.where}: a trained message has tool_calls, which the chat template does not render, so "
                "the model would be trained on the rest of the message only. Write, under data.chat_template, a "
                "template that renders them, or write the calls into the content."
            )

    def _next_header(self, conversation: TrainingConversation, text: str) -> str:
        """The end token with which the template begins the message after the last turn; empty if that is no end token.

        A template without an end mark ends a turn with the header of the next one, and sampling stops there (GLM-4's
        `<|user|>` and `<|observation|>`).
        """
        last = conversation.trained_messages()[-1]
        calls = bool(conversation.messages[last].get("tool_calls"))
        if calls not in self._next_headers:
            message = {"role": "tool" if calls else "user", "content": "strop"}
            messages = (*conversation.messages[: last + 1], message)
            try:
                longer = self._prompts.render(
                    conversation.where,
                    messages,
                    conversation.tools,
                    prompt=False,
                    args=conversation.template_args,
                )
            except DataError:  # a template that refuses such a message has no header for it
                longer = ""
            following = longer.removeprefix(text) if longer.startswith(text) else ""
            self._next_headers[calls] = self._ends.at_start(following)
        return self._next_headers[calls]

    def _is_plain(self, conversation: TrainingConversation) -> bool:
        """Whether the conversation is encoded without the template."""
        return self._plain or (self._raw_text and conversation.prompt_is_text)

    def _plain_parts(self, conversation: TrainingConversation) -> list[tuple[str, bool]]:
        prompt, answer = self._plain_texts(conversation)
        return [(prompt, False), (self._ends.closed(answer), True)]

    def _plain_texts(self, conversation: TrainingConversation) -> tuple[str, str]:
        messages = conversation.messages
        roles = [message["role"] for message in messages]
        texts = all(isinstance(message["content"], str) for message in messages)
        if roles != ["user", "assistant"] or conversation.tools or not texts:
            setting = "data.chat_template: none" if self._plain else "data.text_prompts: raw"
            advice = "data.chat_template: tokenizer, or the path of a Jinja file"
            raise DataError(
                f"{conversation.where}: {setting} encodes a plain prompt and a plain answer without a template, but "
                f"this row has messages of {', '.join(roles)}, tools or images. Write "
                f"{advice if self._plain else 'data.text_prompts: template, or the prompt as messages'}."
            )
        prompt, answer = (str(message["content"]) for message in messages)
        return prompt, answer

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
        trained = conversation.trained_messages()
        return text, [span for turn, span in zip(turns, spans, strict=True) if turn in trained]

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
                    "{% endgeneration %}; or trained_turns: last in the taskset, to train on the last turn alone."
                )
            spans.append((len(before), len(after)))
        return whole, spans


def turn_ends(tokenizer: PreTrainedTokenizerBase, tokens: ModelTokens) -> TurnEnds:
    """The end tokens of turns; a text without one gets the tokenizer's own."""
    texts = tokens.end_texts(tokenizer)
    own = texts.pop(tokenizer.eos_token_id, None)
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    return TurnEnds([*([] if own is None else [own]), *texts.values()], special)


def _marked(count: int) -> str:
    return "" if not count else f", and {counted(count, 'turn')} of the assistant marked as not trained on"


def _cut_after_steps(text: str, conversation: TrainingConversation, separator: str) -> list[str]:
    """The text in one piece for each step, the first with what is before it and the last with what follows. Raises
    `DataError` where the template has changed the steps."""
    start = text.rfind(separator.join(conversation.steps))
    if start < 0:
        raise DataError(
            f"{conversation.where}: the chat template changes the text of the steps, such as white space at an end, "
            "so that a step's end is not found. Remove that white space, or write another template under "
            "data.chat_template."
        )
    ends = [start]
    for step in conversation.steps:
        ends.append(ends[-1] + len(step) + len(separator))
    bounds = [0, *ends[1:-1], len(text)]
    return [text[begin:end] for begin, end in pairwise(bounds)]


def _join(parts: Sequence[Sequence[int]], owns: Sequence[bool]) -> EncodedSequence:
    token_ids = np.array([token for part in parts for token in part], dtype=np.int32)
    return EncodedSequence(
        token_ids, np.repeat(np.array(owns, dtype=np.bool_), [len(part) for part in parts])
    )

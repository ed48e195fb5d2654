"""Record of a rollout's calls of the model: prompts and completions, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from strop.data.encoding.messages import Tools
from strop.data.encoding.reply import (
    ChatReply,
    ChatReplyParser,
    ParsedReply,
    ToolCallFormat,
    first_content,
    parse_reply,
)
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.data.images.messages import media_of
from strop.errors import EngineLostError
from strop.protocols import Sampler
from strop.seeds import derive_seed
from strop.types import BoolArray, ImageReference, IntArray, Message, SampleRequest, SamplingParams, Turn
from strop.workflows.result import ContextLengthExceeded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation up to some message. It is immutable: each further message gives a new object."""

    messages: tuple[Message, ...]
    token_ids: IntArray
    """[P] The entire conversation, as the exact tokens that the model read and sampled."""
    prompt_tokens: int
    """Number of tokens before the first reply."""
    tools: Tools = ()
    """Tools in the prompt."""
    turn: Turn | None = None
    """Call that sampled the last message; None if the last message is not the model's."""
    max_new_tokens: int | None = None
    """Maximum number of tokens after the prompt; None for `rollout.max_sequence_tokens` alone."""
    replies: tuple[slice, ...] = ()
    """Positions of the sampled replies in `token_ids`."""

    @property
    def sampled(self) -> BoolArray:
        """[P] Whether the model sampled a token."""
        found = np.zeros(len(self.token_ids), bool)
        for reply in self.replies:
            found[reply] = True
        return found

    @property
    def media(self) -> tuple[ImageReference, ...]:
        """Images, in the order of their tokens in `token_ids`."""
        return media_of(self.messages)


class RolloutSession:
    """Calls the model for one rollout, and records every call as a turn.

    For one event loop. The first call has the rollout's seed, and each later one a seed derived from it, so
    that samples depend on the call's position only.
    """

    def __init__(
        self,
        name: str,
        engine: Sampler,
        encoder: TurnEncoder,
        sampling: SamplingParams,
        seed: int,
        max_sequence_tokens: int,
        *,
        multi_turn: bool = True,
    ) -> None:
        """`multi_turn` says that a call may be followed by another one that continues its tokens."""
        self.turns: list[Turn] = []
        """Turns in the order of completion."""
        self.conversations: list[Conversation] = []
        """Conversation after each `reply`, in the order of completion."""
        self.truncated = False
        """Whether a call was rejected because the conversation is too long."""
        self.engine_error: EngineLostError | None = None
        """Loss of the inference engine, even if the workflow caught the error."""
        self.sampling = sampling
        self.name = name
        """Name of the rollout."""
        self._engine = engine
        self._encoder = encoder
        self._seed = seed
        self._limit = max_sequence_tokens
        self._multi_turn = multi_turn
        self._calls = 0
        self._decoded: tuple[Turn | None, str] = (None, "")
        """Turn that was decoded last, and its text."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the policy."""
        return self._encoder.tokenizer

    @property
    def template(self) -> str | None:
        """Jinja text of the chat template; None if prompts are plain text."""
        return self._encoder.prompts.template

    def decode(self, turn: Turn) -> str:
        """Text of a turn's completion: see `ReplyDecoder.decode`."""
        last, text = self._decoded
        if last is not turn:
            text = self._encoder.replies.decode(turn.completion_ids)
            self._decoded = (turn, text)
        return text

    def content(self, turn: Turn) -> str:
        """Text of a turn's completion after its reasoning."""
        text = self.decode(turn)
        return text[first_content(text, is_open=self._encoder.opens_reasoning(turn.prompt_ids)) :].strip()

    def decode_token(self, token: int) -> str:
        """Text of one token."""
        return self._encoder.decode_tokens([token])

    def decode_response(self, ids: IntArray, sampled: BoolArray) -> str:
        """Text of the tokens [L] after a prompt: replies, where `sampled` is true, and the messages between them."""
        return self._encoder.replies.decode(ids, sampled)

    def parse(self, turn: Turn, parser: ChatReplyParser, tools: Tools) -> ChatReply:
        """Reasoning, content and tool calls of a turn's completion."""
        is_open = self._encoder.opens_reasoning(turn.prompt_ids)
        return parser.parse(self.decode(turn), tools, self.template, in_reasoning=is_open)

    def parse_calls(self, turn: Turn, form: ToolCallFormat, tools: Tools) -> ParsedReply:
        """Content and tool calls of a turn's completion in a given format, with the error of each broken call."""
        is_open = self._encoder.opens_reasoning(turn.prompt_ids)
        return parse_reply(self.decode(turn), form, tools, in_reasoning=is_open)

    def encode_text(self, text: str) -> IntArray:
        """[P] The tokens of a prompt that is plain text."""
        return self._encoder.encode_text(text)

    def encode_prompt(self, messages: Sequence[Message], tools: Tools, reply_prefix: str) -> IntArray:
        """[P] The tokens of a prompt whose reply starts with given text."""
        return self._encoder.encode_prompt(messages, tools, reply_prefix)

    def read_images(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with their images read and stored. Raises `DataError` for one that cannot be used."""
        return self._encoder.read_images(messages, "A message of the workflow")

    def start(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        prompt_ids: IntArray | None = None,
        max_new_tokens: int | None = None,
    ) -> Conversation:
        """Start a conversation; `prompt_ids` are its tokens if they are known already.

        Images in the messages are read and stored. Raises `DataError` for one that cannot be used.
        """
        messages = self.read_images(messages)
        ids = self._encoder.encode_prompt(messages, tools) if prompt_ids is None else prompt_ids
        return Conversation(messages, ids, len(ids), tools, max_new_tokens=max_new_tokens)

    def extend(self, conversation: Conversation, messages: Sequence[Message]) -> Conversation:
        """The conversation with new messages after the model's last one."""
        if conversation.turn is None:
            return self.start(
                (*conversation.messages, *messages),
                conversation.tools,
                max_new_tokens=conversation.max_new_tokens,
            )
        messages = self.read_images(messages)
        new = self._encoder.encode_continuation(
            conversation.messages, messages, conversation.tools, conversation.turn.completion_ids
        )
        ids = np.concatenate([conversation.token_ids, new])
        return replace(conversation, messages=(*conversation.messages, *messages), token_ids=ids, turn=None)

    def remaining_tokens(self, conversation: Conversation) -> int:
        """Maximum number of tokens of another reply."""
        return self._length_limit(conversation) - len(conversation.token_ids)

    def _length_limit(self, conversation: Conversation) -> int:
        if conversation.max_new_tokens is None:
            return self._limit
        return min(self._limit, conversation.prompt_tokens + conversation.max_new_tokens)

    async def reply(
        self, conversation: Conversation, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Conversation:
        """The conversation with the model's reply. Raises `ContextLengthExceeded` if no token fits.

        `max_tokens` replaces `data.max_response_tokens`.
        """
        limit = self._length_limit(conversation)
        messages = () if conversation.tools or conversation.media else conversation.messages
        turn = await self._sample(
            conversation.token_ids, conversation.media, limit, max_tokens, stop, messages
        )
        message = {"role": "assistant", "content": self.decode(turn)}
        prompt = len(conversation.token_ids)
        answered = replace(
            conversation,
            messages=(*conversation.messages, message),
            token_ids=np.concatenate([conversation.token_ids, turn.completion_ids]),
            turn=turn,
            replies=(*conversation.replies, slice(prompt, prompt + len(turn.completion_ids))),
        )
        self.conversations.append(answered)
        return answered

    async def sample(
        self,
        prompt_ids: IntArray,
        *,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        media: tuple[ImageReference, ...] = (),
    ) -> Turn:
        """Call the model once, with a prompt of tokens, and the images whose tokens are in it."""
        return await self._sample(prompt_ids, media, self._limit, max_tokens, stop)

    async def _sample(
        self,
        prompt_ids: IntArray,
        media: tuple[ImageReference, ...],
        length_limit: int,
        max_tokens: int | None,
        stop: tuple[str, ...],
        messages: tuple[Message, ...] = (),
    ) -> Turn:
        remaining = length_limit - len(prompt_ids)
        if remaining < 1:
            self.truncated = True
            key = "rollout.max_sequence_tokens" if length_limit == self._limit else "max_new_tokens"
            raise ContextLengthExceeded(
                f"the conversation has {len(prompt_ids)} tokens; the limit is {length_limit} ({key})"
            )
        limit = min(remaining, self.sampling.max_tokens if max_tokens is None else max_tokens)
        sampling = replace(
            self.sampling,
            max_tokens=limit,
            min_tokens=min(self.sampling.min_tokens, limit - 1),
            stop=(*self.sampling.stop, *stop),
        )
        seed = self._seed if self._calls == 0 else derive_seed(self._seed, "call", self._calls)
        self._calls += 1
        request = SampleRequest(
            self.name, prompt_ids, sampling, seed, media, messages, may_continue=self._multi_turn
        )
        try:
            (completion,) = await self._engine.sample([request])
        except EngineLostError as lost:
            self.engine_error = lost
            raise
        turn = Turn(
            prompt_ids=prompt_ids,
            completion_ids=completion.token_ids,
            sampler_logprobs=completion.sampler_logprobs,
            policy_logprobs=completion.policy_logprobs,
            finish_reason=completion.finish_reason,
            version=completion.version,
            media=media,
        )
        self.turns.append(turn)
        return turn

"""The policy as a chat model of the endpoint: every call is recorded as a turn of one rollout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from strop.data.encoding.messages import Tools
from strop.data.encoding.reply import ChatReplyParser
from strop.data.images.messages import mentions_images
from strop.errors import DataError, ModelError
from strop.inference.endpoint.completions import CompletionRequest, CompletionResponse
from strop.inference.endpoint.request import CONTEXT_LENGTH_EXCEEDED, BadRequest, ChatRequest
from strop.inference.endpoint.response import ChatChoice, ChatResponse, TextCallback, TextChoice, TokenLogprob
from strop.types import Message
from strop.workflows.result import ContextLengthExceeded
from strop.workflows.session import Conversation, RolloutSession

T = TypeVar("T")
_Key = tuple[str, ...]
"""Identity of a conversation: tools and message contents, without fields that a client adds."""


class RecordedConversations:
    """Conversations of one rollout by their messages, so that messages that come back continue their exact tokens."""

    def __init__(self, session: RolloutSession) -> None:
        self._session = session
        self._by_key: dict[_Key, Conversation] = {}

    def find(self, messages: Sequence[Message], tools: Tools = ()) -> Conversation | None:
        """The recorded conversation that ends with the last of these messages, a reply of the model."""
        return self._by_key.get(_key(self._session.read_images(messages), tools))

    def open(self, messages: Sequence[Message], tools: Tools = ()) -> Conversation:
        """A conversation of these messages: the longest recorded one that they continue, or a new one.

        A last message of the assistant is the start of the reply that is sampled.
        """
        messages = self._session.read_images(messages)
        if messages[-1]["role"] == "assistant":
            ids = self._session.encode_prompt(messages[:-1], tools, str(messages[-1]["content"]))
            return self._session.start(messages[:-1], tools, ids)
        for end in range(len(messages) - 1, 0, -1):
            known = self.find(messages[:end], tools)
            if known is not None:
                return self._session.extend(known, messages[end:])
        return self._session.start(messages, tools)

    def add(self, messages: Sequence[Message], reply: Message, answered: Conversation) -> None:
        """Record a conversation, which a client continues with `messages` and its form of the reply."""
        messages = self._session.read_images(messages)
        for form in (reply, answered.messages[-1]):
            self._by_key[_key([*messages, form], answered.tools)] = answered


class RecordedPolicy:
    """An `EndpointModel`: a request that continues an earlier reply continues that reply's exact tokens.

    `rollout.max_sequence_tokens` limits a reply, and so does the request's `max_tokens`. The run file sets the
    sampling parameters, because training must know them: a request's temperature, top_p and seed are ignored. A reply
    is one turn of the rollout, so `n` is 1.
    """

    def __init__(
        self,
        session: RolloutSession,
        conversations: RecordedConversations,
        loop: asyncio.AbstractEventLoop,
        parser: ChatReplyParser,
    ) -> None:
        """`loop` is the event loop in which the session's engine samples; `parser` splits its replies."""
        self._parser = parser
        self._session = session
        self._conversations = conversations
        self._loop = loop
        self._pending: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def chat(self, request: ChatRequest, on_text: TextCallback | None = None) -> ChatResponse:
        """Raises `BadRequest` if the conversation cannot continue, or is too long."""
        return await self._start(self._respond(request))

    async def complete(
        self, request: CompletionRequest, on_text: TextCallback | None = None
    ) -> CompletionResponse:
        """Raises `BadRequest` for a prompt that is too long."""
        return await self._start(self._complete(request))

    def close(self) -> None:
        """End the rollout: pending requests are cancelled. Call it in the session's event loop."""
        self._closed = True
        for task in self._pending:
            task.cancel()

    async def _start(self, response: Coroutine[Any, Any, T]) -> T:
        """Await a response that is computed in the session's event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._track(response), self._loop))

    async def _track(self, response: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            response.close()
            raise BadRequest("this rollout is over", status=401)
        task = self._loop.create_task(response)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return await task

    async def _respond(self, request: ChatRequest) -> ChatResponse:
        session = self._session
        _refuse({"n": request.n > 1, "logprobs": request.logprobs})
        try:
            messages = await self._with_images(request.messages)
            conversation = self._conversations.open(messages, request.tools)
            limit = request.max_tokens or max(1, session.remaining_tokens(conversation))
            answered = await session.reply(conversation, max_tokens=limit, stop=request.stop)
        except ContextLengthExceeded as error:
            raise BadRequest(str(error), code=CONTEXT_LENGTH_EXCEEDED) from error
        except (DataError, ModelError) as error:
            raise BadRequest(str(error)) from error
        assert answered.turn is not None
        parsed = session.parse(answered.turn, self._parser, request.tools)
        choice = ChatChoice(parsed.content, answered.turn.finish_reason, parsed.calls, parsed.reasoning)
        reply = ChatResponse(
            id=f"{session.name}-{len(session.turns)}",
            choices=(choice,),
            prompt_tokens=len(answered.turn.prompt_ids),
            completion_tokens=len(answered.turn.completion_ids),
        )
        self._conversations.add(messages, choice.message(reply.call_prefix(0)), answered)
        return reply

    async def _with_images(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with their images read and stored, in a thread: a large image takes seconds to decode, and a
        URL's server may be slow, while this event loop serves all rollouts."""
        if not mentions_images(messages, None):
            return messages
        return await asyncio.to_thread(self._session.read_images, messages)

    async def _complete(self, request: CompletionRequest) -> CompletionResponse:
        session = self._session
        (prompt, *others) = request.prompts
        _refuse({"n": request.n > 1, "several prompts": bool(others), "echo": request.echo})
        if isinstance(prompt, str):
            raise BadRequest("prompt must be a list of token ids here: a text would leave its tokens open")
        try:
            turn = await session.sample(
                prompt, max_tokens=request.sampling.max_tokens, stop=request.sampling.stop
            )
        except ContextLengthExceeded as error:
            raise BadRequest(str(error), code=CONTEXT_LENGTH_EXCEEDED) from error
        ids, logprobs = turn.completion_ids.tolist(), turn.sampler_logprobs.tolist()
        tokens = tuple(
            TokenLogprob(token, session.decode_token(token), logprob)
            for token, logprob in zip(ids, logprobs, strict=True)
        )
        choice = TextChoice(session.decode(turn), turn.finish_reason, tokens)
        return CompletionResponse(f"{session.name}-{len(session.turns)}", (choice,), len(prompt), len(ids))


def _refuse(asked: Mapping[str, bool]) -> None:
    """Raise `BadRequest` for features that a recorded rollout does not have."""
    for name, is_asked in asked.items():
        if is_asked:
            raise BadRequest(
                f"{name}: a reply of a run's policy is one recorded turn; send one request for each reply, without it"
            )


def _key(messages: Sequence[Message], tools: Tools) -> _Key:
    return (json.dumps(tools, sort_keys=True, default=str), *map(_identity, messages))


def _identity(message: Message) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    named = [[function["name"], _object(function["arguments"])] for function in calls]
    fields = [message["role"], message.get("content") or "", named, message.get("tool_call_id")]
    return json.dumps(fields, sort_keys=True, default=str)


def _object(arguments: str | Mapping[str, object]) -> object:
    return json.loads(arguments) if isinstance(arguments, str) else arguments

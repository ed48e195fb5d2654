"""The model that is trained, as a client of the endpoint sees it: in one rollout, every call recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from strop.data.chat import Tools
from strop.data.tool_calls import read_answer
from strop.errors import DataError, ModelError
from strop.inference.endpoint.reply import ChatReply
from strop.inference.endpoint.request import TOO_LONG, BadRequest, ChatRequest
from strop.types import Message
from strop.workflows.outcome import OutOfRoom
from strop.workflows.session import Dialogue, Session

_Key = tuple[str, ...]
"""A conversation by what was said, whatever a client adds to its messages."""


class Recorded:
    """An `Answerer`: a request that goes on from an earlier reply continues with that one's tokens.

    Only `rollout.max_sequence_tokens` bounds a reply, and `max_tokens` where the request has it. How tokens
    are drawn is the run's to say, because training must know it: a request's temperature and top_p are
    set aside.
    """

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is the one that the session's engine samples in."""
        self._session = session
        self._loop = loop
        self._said: dict[_Key, Dialogue] = {}
        self._under_way: set[asyncio.Task[ChatReply]] = set()
        self._closed = False

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Raises `BadRequest` where the conversation cannot go on, or has become too long."""
        answered = asyncio.run_coroutine_threadsafe(self._watched(request), self._loop)
        return await asyncio.wrap_future(answered)

    def close(self) -> None:
        """The rollout is over: whoever still waits is let go. To be called in the session's loop."""
        self._closed = True
        for task in self._under_way:
            task.cancel()

    async def _watched(self, request: ChatRequest) -> ChatReply:
        if self._closed:
            raise BadRequest("this rollout is over", status=401)
        task = self._loop.create_task(self._answer(request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await task

    async def _answer(self, request: ChatRequest) -> ChatReply:
        session = self._session
        try:
            dialogue = self._dialogue(request)
            most = request.max_tokens or max(1, session.room(dialogue))
            answered = await session.reply(dialogue, max_tokens=most, stop=request.stop)
        except OutOfRoom as error:
            raise BadRequest(str(error), code=TOO_LONG) from error
        except (DataError, ModelError) as error:
            raise BadRequest(str(error)) from error
        assert answered.turn is not None
        read = read_answer(str(answered.messages[-1]["content"]), request.tools, session.template)
        reply = ChatReply(
            id=f"{session.name}-{len(session.turns)}",
            content=read.content,
            finish=answered.turn.finish,
            prompt_tokens=len(answered.turn.prompt_ids),
            completion_tokens=len(answered.turn.completion_ids),
            calls=read.calls,
        )
        self._said[_key([*request.messages, reply.message()], request.tools)] = answered
        return reply

    def _dialogue(self, request: ChatRequest) -> Dialogue:
        """The longest conversation that the request goes on from; a new one where there is none."""
        for end in range(len(request.messages) - 1, 0, -1):
            known = self._said.get(_key(request.messages[:end], request.tools))
            if known is not None:
                return self._session.go_on(known, request.messages[end:])
        return self._session.begin(request.messages, request.tools)


def _key(messages: Sequence[Message], tools: Tools) -> _Key:
    return (json.dumps(tools, sort_keys=True, default=str), *map(_said, messages))


def _said(message: Message) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    named = [[function["name"], _object(function["arguments"])] for function in calls]
    said = [message["role"], message.get("content") or "", named, message.get("tool_call_id")]
    return json.dumps(said, sort_keys=True, default=str)


def _object(arguments: str | Mapping[str, object]) -> object:
    return json.loads(arguments) if isinstance(arguments, str) else arguments

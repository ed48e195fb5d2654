"""What a workflow talks to: the model that is trained, in one rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from strop.data.chat import Tools, to_messages
from strop.inference.endpoint.request import ChatRequest
from strop.inference.endpoint.server import Access
from strop.types import Ints, Message, Turn
from strop.workflows.recorded import Recorded
from strop.workflows.services import Services
from strop.workflows.session import Dialogue, Session
from strop.workflows.threads import Abandoned

P = ParamSpec("P")
T = TypeVar("T")


class Chat:
    """A conversation with the model, that begins with the task's prompt; for `async` workflows.

    Whatever the model says is kept, and learned from. Its tokens are carried from turn to turn.
    """

    def __init__(self, session: Session, dialogue: Dialogue, services: Services) -> None:
        self._session = session
        self._dialogue = dialogue
        self._services = services
        self._loop = asyncio.get_running_loop()

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said so far, the prompt included."""
        return self._dialogue.messages

    @property
    def tools(self) -> Tools:
        """The tools that the model was told of."""
        return self._dialogue.tools

    @property
    def room(self) -> int:
        """Tokens that are left of `rollout.max_sequence_tokens`."""
        return self._session.room(self._dialogue)

    @property
    def turn(self) -> Turn | None:
        """The last reply as tokens with their log-probs; None before the first."""
        return self._dialogue.turn

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call of the model in this rollout so far, its other conversations' and its endpoint's too,
        in the order in which they ended: what is learned from, unless `Outcome.turns` chooses of them."""
        return tuple(self._session.turns)

    @property
    def template(self) -> str | None:
        """The Jinja text of the chat template; None for plain text as it is."""
        return self._session.template

    def start(self, messages: str | Sequence[Message], tools: Tools = ()) -> Self:
        """Another conversation in the same rollout; text is one user message."""
        prompt = to_messages(messages, "The workflow's prompt")
        other = copy(self)
        other._dialogue = self._session.begin(prompt, tools)
        return other

    async def reply(
        self, *new: str | Message, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> str:
        """Say something, if anything, and have the model answer; text is a user message.

        `max_tokens` counts in place of `data.max_response_tokens`. Raises `OutOfRoom` where no reply fits
        any more; a workflow that lets it pass has ended its conversation, cut short.
        """
        dialogue = self._dialogue
        if new or dialogue.turn is not None:
            messages = [to_messages(m if isinstance(m, str) else [m], "A new message")[0] for m in new]
            dialogue = self._session.go_on(dialogue, messages)
        self._dialogue = await self._session.reply(dialogue, max_tokens=max_tokens, stop=stop)
        return str(self._dialogue.messages[-1]["content"])

    @contextmanager
    def serve(self) -> Iterator[Access]:
        """Inside, the model answers OpenAI's protocol at an address and with a key of this rollout's own;
        every call is a turn of it. Auxiliary models answer there too, by their names."""
        recorded = Recorded(self._session, self._loop)
        try:
            with self._services.admit(recorded) as access:
                yield access
        finally:
            self._loop.call_soon_threadsafe(recorded.close)

    async def ask(
        self,
        model: str,
        messages: str | Sequence[Message],
        *,
        temperature: float = 0.0,
        max_tokens: int | None = None,
    ) -> str:
        """What one of `auxiliary_models` says; nothing of it is recorded or trained on."""
        prompt = to_messages(messages, "The question to an auxiliary model")
        request = ChatRequest(model, prompt, temperature=temperature, max_tokens=max_tokens)
        return (await self._services.auxiliary(model).chat(request)).content

    async def sample(
        self, prompt_ids: Ints, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Turn:
        """One call of the model, tokens in and tokens out, beside the conversation."""
        return await self._session.sample(prompt_ids, max_tokens=max_tokens, stop=stop)


class Bridge:
    """From a workflow's thread to the event loop, until the rollout is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way: set[Future[Any]] = set()
        self._closed = False

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine gives, run in the loop."""
        if self._closed:
            coroutine.close()
            raise Abandoned
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._under_way.add(future)
        try:
            return future.result()
        except CancelledError:
            raise Abandoned from None
        finally:
            self._under_way.discard(future)

    def close(self) -> None:
        """Forget what is under way; from now on nothing is let through."""
        self._closed = True
        for future in tuple(self._under_way):
            future.cancel()


def _blocking(
    method: Callable[Concatenate[Chat, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncChat, P], T]:
    """The same method for another thread than the event loop's."""

    def wait(self: SyncChat, /, *args: P.args, **named: P.kwargs) -> T:
        return self._bridge.wait(method(self._chat, *args, **named))

    wait.__doc__ = method.__doc__
    return wait


class SyncChat:
    """The same for workflows without `async`, which run in a thread: its methods wait."""

    def __init__(self, chat: Chat, bridge: Bridge) -> None:
        self._chat = chat
        self._bridge = bridge

    messages = property(lambda self: self._chat.messages, doc=Chat.messages.__doc__)
    tools = property(lambda self: self._chat.tools, doc=Chat.tools.__doc__)
    room = property(lambda self: self._chat.room, doc=Chat.room.__doc__)
    turn = property(lambda self: self._chat.turn, doc=Chat.turn.__doc__)
    turns = property(lambda self: self._chat.turns, doc=Chat.turns.__doc__)
    template = property(lambda self: self._chat.template, doc=Chat.template.__doc__)

    def start(self, messages: str | Sequence[Message], tools: Tools = ()) -> SyncChat:
        """Another conversation in the same rollout; text is one user message."""
        return SyncChat(self._chat.start(messages, tools), self._bridge)

    def serve(self) -> AbstractContextManager[Access]:
        """The endpoint, for this rollout: see `Chat.serve`."""
        return self._chat.serve()

    reply = _blocking(Chat.reply)
    ask = _blocking(Chat.ask)
    sample = _blocking(Chat.sample)

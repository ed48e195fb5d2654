"""Chat interface of a workflow to the policy, within one rollout."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from strop.data.encoding.messages import Tools, listed, to_messages
from strop.data.encoding.reply import ParsedReply, ToolCallFormat
from strop.inference.endpoint.request import ChatRequest
from strop.inference.endpoint.server import EndpointAccess
from strop.types import BoolArray, IntArray, Message, SamplingParams, Turn
from strop.workflows.recorded_policy import RecordedConversations, RecordedPolicy
from strop.workflows.services import WorkflowServices
from strop.workflows.session import Conversation, RolloutSession
from strop.workflows.threads import WorkflowCancelled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

P = ParamSpec("P")
T = TypeVar("T")


class Chat:
    """Conversation with the policy that begins with the task's prompt; for `async` workflows.

    Every reply is recorded and trained on. Later turns contain the exact tokens of earlier ones.
    """

    def __init__(
        self, session: RolloutSession, conversation: Conversation, services: WorkflowServices
    ) -> None:
        self._session = session
        self._conversation = conversation
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._recorded = RecordedConversations(session)

    @property
    def name(self) -> str:
        """Name of the rollout, unique in the run."""
        return self._session.name

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the policy."""
        return self._session.tokenizer

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far, including the prompt."""
        return self._conversation.messages

    @property
    def tools(self) -> Tools:
        """Tools in the model's prompt."""
        return self._conversation.tools

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens left of `rollout.max_sequence_tokens`."""
        return self._session.remaining_tokens(self._conversation)

    @property
    def room(self) -> int:
        """Deprecated name of `remaining_tokens`."""
        _warn_of_room()
        return self.remaining_tokens

    @property
    def turn(self) -> Turn | None:
        """Last reply as tokens with their log-probs; None before the first."""
        return self._conversation.turn

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All calls of the model in this rollout so far, in the order of completion, including those of other
        conversations and of the endpoint. All are trained on, unless `WorkflowResult.turns` selects some."""
        return tuple(self._session.turns)

    @property
    def response(self) -> str:
        """Text after the prompt: all replies, and the messages between them."""
        prompt, found = self._conversation.prompt_tokens, self._conversation
        return self._session.decode_response(found.token_ids[prompt:], found.sampled[prompt:])

    @property
    def content(self) -> str:
        """Text of the last reply after its reasoning."""
        assert self.turn is not None, "reply() comes first"
        return self._session.content(self.turn)

    @property
    def sampling(self) -> SamplingParams:
        """Sampling of the rollout, from the run file."""
        return self._session.sampling

    @property
    def is_truncated(self) -> bool:
        """Whether a call was rejected, because the conversation is too long."""
        return self._session.truncated

    @property
    def policy_name(self) -> str:
        """Name of the policy at the endpoint."""
        return self._services.policy_name

    @property
    def auxiliary_names(self) -> tuple[str, ...]:
        """Names of the auxiliary models, in the order of the run file."""
        return self._services.auxiliary_names

    @property
    def template(self) -> str | None:
        """Jinja text of the chat template; None if prompts are plain text."""
        return self._session.template

    def start(
        self, messages: str | Sequence[Message], tools: Tools = (), max_new_tokens: int | None = None
    ) -> Self:
        """Start another conversation in the same rollout; text is one user message.

        `max_new_tokens` limits everything after the prompt: replies, and the messages between them.
        """
        prompt = to_messages(listed(messages), "The workflow's prompt")
        other = copy(self)
        other._conversation = self._session.start(prompt, tools, max_new_tokens=max_new_tokens)
        return other

    async def reply(
        self, *new: str | Message, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> str:
        """Add messages, if any, and sample the model's reply; text is a user message.

        `max_tokens` replaces `data.max_response_tokens`. Raises `ContextLengthExceeded` if no reply fits; a
        workflow that does not catch it ends its rollout, truncated.
        """
        conversation = self._conversation
        if new or conversation.turn is not None:
            messages = [to_messages(listed(m), "A new message")[0] for m in new]
            conversation = self._session.extend(conversation, messages)
        self._conversation = await self._session.reply(conversation, max_tokens=max_tokens, stop=stop)
        return str(self._conversation.messages[-1]["content"])

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        *,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
    ) -> tuple[str, Turn]:
        """Sample a reply to complete messages, as a request to the endpoint would; returns its text and tokens.

        Messages that continue an earlier reply of this rollout continue that reply's exact tokens.
        """
        prompt = to_messages(messages, "The workflow's prompt")
        conversation = self._recorded.open(prompt, tools)
        answered = await self._session.reply(conversation, max_tokens=max_tokens, stop=stop)
        assert answered.turn is not None
        self._recorded.add(prompt, answered.messages[-1], answered)
        return str(answered.messages[-1]["content"]), answered.turn

    async def complete_text(
        self, prompt: str, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> tuple[str, Turn]:
        """Sample a continuation of plain text, without a chat template; returns its text and tokens."""
        turn = await self.sample(self._session.encode_text(prompt), max_tokens=max_tokens, stop=stop)
        return self._session.decode(turn), turn

    def decode(self, turn: Turn) -> str:
        """Text of a call's completion, with its special tokens except those that end a turn."""
        return self._session.decode(turn)

    def decode_response(self, ids: IntArray, sampled: BoolArray) -> str:
        """Text of the tokens [L] after a prompt: replies, where `sampled` is true, and the messages between them."""
        return self._session.decode_response(ids, sampled)

    def parse_calls(self, form: ToolCallFormat) -> ParsedReply:
        """Content and tool calls of the last reply; a call that cannot be parsed has its error."""
        assert self.turn is not None, "reply() comes first"
        return self._session.parse_calls(self.turn, form, self.tools)

    def count_tokens(self, messages: Sequence[Message], tools: Tools = ()) -> int:
        """Number of tokens of the prompt that `complete` would sample from."""
        return len(self._recorded.open(to_messages(messages, "The workflow's prompt"), tools).token_ids)

    def recorded_tokens(self, messages: Sequence[Message], tools: Tools = ()) -> IntArray | None:
        """[L] Exact tokens of messages that end with a reply of this rollout; None if they do not."""
        known = self._recorded.find(to_messages(messages, "The conversation"), tools)
        return None if known is None else known.token_ids

    @contextmanager
    def serve(self) -> Iterator[EndpointAccess]:
        """Serve the policy, and the auxiliary models by their names, over OpenAI's protocol.

        The address and the key are valid inside the context and for this rollout only; every call of the
        policy is a turn of the rollout.
        """
        recorded = RecordedPolicy(self._session, self._recorded, self._loop, self._services.parser)
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
        """Reply of one of `rollout.auxiliary_models`; it is neither recorded nor trained on."""
        prompt = to_messages(listed(messages), "The prompt of an auxiliary model")
        request = ChatRequest(model, prompt, temperature=temperature, max_tokens=max_tokens)
        (choice,) = (await self._services.auxiliary(model).chat(request)).choices
        return choice.content

    async def sample(
        self, prompt_ids: IntArray, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Turn:
        """Call the model once, outside the conversation, with a prompt of tokens."""
        return await self._session.sample(prompt_ids, max_tokens=max_tokens, stop=stop)


class EventLoopBridge:
    """Runs coroutines in the event loop for a workflow's thread, until the rollout is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: set[Future[Any]] = set()
        self._closed = False

    def run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop and return its result."""
        if self._closed:
            coroutine.close()
            raise WorkflowCancelled
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._pending.add(future)
        try:
            return future.result()
        except CancelledError:
            raise WorkflowCancelled from None
        finally:
            self._pending.discard(future)

    def close(self) -> None:
        """Cancel all pending coroutines, and reject later ones."""
        self._closed = True
        for future in tuple(self._pending):
            future.cancel()


def _warn_of_room() -> None:
    message = "Chat.room is deprecated; use Chat.remaining_tokens."
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _blocking(
    method: Callable[Concatenate[Chat, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncChat, P], T]:
    """Blocking variant of a method, for a thread other than the event loop's."""

    def wait(self: SyncChat, /, *args: P.args, **named: P.kwargs) -> T:
        return self._bridge.run_coroutine(method(self._chat, *args, **named))

    wait.__doc__ = method.__doc__
    return wait


class SyncChat:
    """`Chat` for workflows without `async`, which run in a thread: its methods block."""

    def __init__(self, chat: Chat, bridge: EventLoopBridge) -> None:
        self._chat = chat
        self._bridge = bridge

    name = property(lambda self: self._chat.name, doc=Chat.name.__doc__)
    tokenizer = property(lambda self: self._chat.tokenizer, doc=Chat.tokenizer.__doc__)
    messages = property(lambda self: self._chat.messages, doc=Chat.messages.__doc__)
    tools = property(lambda self: self._chat.tools, doc=Chat.tools.__doc__)
    remaining_tokens = property(lambda self: self._chat.remaining_tokens, doc=Chat.remaining_tokens.__doc__)
    room = property(lambda self: self._chat.room, doc=Chat.room.__doc__)
    turn = property(lambda self: self._chat.turn, doc=Chat.turn.__doc__)
    turns = property(lambda self: self._chat.turns, doc=Chat.turns.__doc__)
    response = property(lambda self: self._chat.response, doc=Chat.response.__doc__)
    template = property(lambda self: self._chat.template, doc=Chat.template.__doc__)

    def start(
        self, messages: str | Sequence[Message], tools: Tools = (), max_new_tokens: int | None = None
    ) -> SyncChat:
        """Start another conversation in the same rollout: see `Chat.start`."""
        return SyncChat(self._chat.start(messages, tools, max_new_tokens), self._bridge)

    def serve(self) -> AbstractContextManager[EndpointAccess]:
        """Serve this rollout's endpoint: see `Chat.serve`."""
        return self._chat.serve()

    reply = _blocking(Chat.reply)
    ask = _blocking(Chat.ask)
    sample = _blocking(Chat.sample)

"""Chat interface of a workflow to the policy, within one rollout.

An agent that is a program of its own talks to the endpoint instead; a `RecordedPolicy` records each of its calls as a
turn of the rollout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from strop.data.encoding.messages import Tools, listed, to_messages
from strop.data.encoding.reply import ChatReplyParser, ParsedReply, ToolCallFormat
from strop.data.images.messages import mentions_images
from strop.errors import ConfigError, DataError, ModelError
from strop.inference.endpoint.completions import CompletionRequest, CompletionResponse
from strop.inference.endpoint.request import CONTEXT_LENGTH_EXCEEDED, BadRequest, ChatRequest
from strop.inference.endpoint.response import ChatChoice, ChatResponse, TextCallback, TextChoice, TokenLogprob
from strop.inference.endpoint.server import EndpointAccess, EndpointModel, EndpointServer
from strop.types import BoolArray, IntArray, Message, SamplingParams, Turn
from strop.workers.json_text import parse_json
from strop.workflows.result import ContextLengthExceeded
from strop.workflows.session import Conversation, RolloutSession
from strop.workflows.threads import WorkflowCancelled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


P = ParamSpec("P")
T = TypeVar("T")
_Key = tuple[str, ...]
"""Identity of a conversation: tools and message contents, without fields that a client adds."""


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
            # In a thread, as a prompt of megabytes takes seconds, while this event loop serves all rollouts.
            conversation = await asyncio.to_thread(self._conversations.open, messages, request.tools)
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
    return parse_json(arguments) if isinstance(arguments, str) else arguments


class WorkflowServices:
    """Endpoint and auxiliary models of a run. Any thread may call."""

    def __init__(
        self,
        endpoint: EndpointServer,
        policy: str,
        auxiliary: Mapping[str, EndpointModel] | None = None,
        parser: ChatReplyParser | None = None,
    ) -> None:
        """`policy` is the policy's name at the endpoint, and `parser` splits its replies (by default, tool calls in
        the chat template's format); `auxiliary` are the auxiliary models by name."""
        self.parser = parser or ChatReplyParser()
        self._endpoint = endpoint
        self._policy = policy
        self._auxiliary = dict(auxiliary or {})

    @property
    def policy_name(self) -> str:
        """Name of the policy at the endpoint."""
        return self._policy

    @property
    def auxiliary_names(self) -> tuple[str, ...]:
        """Names of the auxiliary models, in the order of the run file."""
        return tuple(self._auxiliary)

    def admit(self, policy: EndpointModel | None = None) -> AbstractContextManager[EndpointAccess]:
        """Register a key for the auxiliary models and, if given, for the policy."""
        models = {} if policy is None else {self._policy: policy}
        return self._endpoint.register({**models, **self._auxiliary})

    def auxiliary(self, name: str) -> EndpointModel:
        """Auxiliary model of that name. Raises `ConfigError` if there is none."""
        if name not in self._auxiliary:
            names = ", ".join(self._auxiliary) or "none"
            raise ConfigError(f"rollout.auxiliary_models has no model {name!r}; configured models: {names}.")
        return self._auxiliary[name]

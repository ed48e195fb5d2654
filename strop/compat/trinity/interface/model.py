"""`trinity.common.models.model.ModelWrapper`: the policy as a workflow written for Trinity-RFT calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

from strop.compat.trinity.interface.experience import (
    TrinityExperience,
    experience_of_turn,
    experience_of_turns,
    turns_of,
)
from strop.errors import MissingExtraError
from strop.inference.endpoint.server import EndpointAccess
from strop.types import SamplingParams
from strop.workflows.chat import Chat, EventLoopBridge
from strop.workflows.result import InvalidWorkflowResult

T = TypeVar("T")
_NO_EFFECT = frozenset({"logprobs", "seed", "return_token_ids", "lora_request", "extra_body"})
"""Arguments of a call that change nothing: log-probs and tokens are always recorded, and the run sets the seed."""


class ModelWrapper:
    """The policy in one rollout. Every call is recorded with its tokens and log-probs.

    `bind` begins a rollout and `close` ends it, so that a workflow that Trinity would reset keeps its wrapper.
    """

    enable_history = True
    """All calls are recorded; `extract_experience_from_history` returns them."""

    def __init__(self, name: str, shared_clients: dict[str, Any]) -> None:
        """`name` is the policy's name at the endpoint; `shared_clients` holds OpenAI clients whose connections
        all rollouts share."""
        self.model_name = name
        self.model_path = name
        self._shared_clients = shared_clients
        self._opened = ExitStack()
        self._access: EndpointAccess | None = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._extracted = 0
        self._state: dict[str, Any] = {}

    def bind(self, chat: Chat, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a rollout; `loop` is the event loop in which the policy samples."""
        self._chat, self._loop = chat, loop
        self._bridge = EventLoopBridge(loop)
        self._extracted = 0
        self._state = {}
        for client in self._clients.values():
            access = self._serve()
            client.base_url, client.api_key = access.url, access.api_key

    def close(self) -> None:
        """End the rollout: calls that are under way or come later are cancelled."""
        self._bridge.close()
        self._opened.close()
        self._access = None

    def chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[TrinityExperience]:
        """Sample `n` replies to messages."""
        return self._wait(self._chat_replies(messages, kwargs))

    async def chat_async(
        self, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> list[TrinityExperience]:
        """Sample `n` replies to messages."""
        return await self._in_loop(self._chat_replies(messages, kwargs))

    def generate(self, prompts: Sequence[str], **kwargs: Any) -> list[TrinityExperience]:
        """Sample `n` continuations of each plain text."""
        return self._wait(self._continuations(prompts, kwargs))

    async def generate_async(self, prompts: Sequence[str], **kwargs: Any) -> list[TrinityExperience]:
        """Sample `n` continuations of each plain text."""
        return await self._in_loop(self._continuations(prompts, kwargs))

    def convert_messages_to_experience(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, temperature: Any = None
    ) -> TrinityExperience:
        """The recorded tokens and log-probs of a conversation, up to its last reply.

        Raises `InvalidWorkflowResult` if a reply is not as the model wrote it: such tokens were never sampled.
        """
        messages = list(messages)
        while messages and messages[-1].get("role") != "assistant":
            messages.pop()
        ids = self._chat.recorded_tokens(messages, tuple(tools or ())) if messages else None
        if ids is None:
            raise InvalidWorkflowResult(
                "the messages of an experience do not end with a reply of this rollout, or change an earlier one. "
                "Only tokens that the model sampled are trained on: pass the replies on as the model wrote them"
            )
        whole = TrinityExperience(tokens=ids, prompt_length=0)
        turns = [self._chat.turns[number] for number in turns_of(whole, self._chat.turns)]
        return experience_of_turns(turns, messages)

    async def convert_messages_to_experience_async(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, temperature: Any = None
    ) -> TrinityExperience:
        """See `convert_messages_to_experience`."""
        return self.convert_messages_to_experience(messages, tools, temperature)

    def extract_experience_from_history(self, clear_history: bool = True) -> list[TrinityExperience]:
        """All calls since the last extraction, including those of the OpenAI clients."""
        turns = self._chat.turns
        new = turns[self._extracted :]
        if clear_history:
            self._extracted = len(turns)
        return [experience_of_turn(turn, self._chat.decode(turn)) for turn in new]

    async def get_message_token_len(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Number of tokens of the prompt that these messages become."""
        return await self._in_loop(self._count_tokens([dict(message) for message in messages]))

    def get_openai_client(self) -> Any:
        """An `openai.OpenAI` for this rollout's endpoint, with `model_path`, the name to send as `model`."""
        return self.client("OpenAI", self.model_path)

    def get_openai_async_client(self) -> Any:
        """An `openai.AsyncOpenAI` for this rollout's endpoint, with `model_path`."""
        return self.client("AsyncOpenAI", self.model_path)

    def client(self, kind: str, model_path: str) -> Any:
        """A client of that class of `openai`, which calls a model of this rollout's endpoint."""
        if (kind, model_path) not in self._clients:
            access = self._serve()
            if kind not in self._shared_clients:
                make = getattr(_openai(), kind)
                self._shared_clients[kind] = make(base_url=access.url, api_key=access.api_key, timeout=None)
            client = self._shared_clients[kind].with_options(base_url=access.url, api_key=access.api_key)
            client.model_path = model_path
            self._clients[kind, model_path] = client
        return self._clients[kind, model_path]

    @property
    def base_url(self) -> str:
        """Address of this rollout's endpoint."""
        return self._serve().url

    @property
    def api_key(self) -> str:
        """Key of this rollout at the endpoint."""
        return self._serve().api_key

    @property
    def model_version(self) -> int:
        """Trainer step of the weights that sampled the last reply; 0 before the first."""
        return self._chat.turns[-1].version if self._chat.turns else 0

    @property
    async def model_version_async(self) -> int:
        """See `model_version`."""
        return self.model_version

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Sampling arguments for an OpenAI client."""
        sampling = self._chat.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }

    def logprobs(self, tokens: Sequence[int], temperature: float | None = None) -> Any:
        """Not available: the sampler gives log-probs of the tokens that it samples."""
        raise NotImplementedError(
            "model.logprobs: Strop's sampler gives the log-probs of the tokens that it samples, and no others. "
            "They are in the experiences that chat, generate and convert_messages_to_experience return."
        )

    async def logprobs_async(self, tokens: Sequence[int], temperature: float | None = None) -> Any:
        """See `logprobs`."""
        return self.logprobs(tokens, temperature)

    async def set_workflow_state(self, state: Mapping[str, Any]) -> None:
        """Add to the state of the rollout."""
        self._state.update(state)

    async def get_workflow_state(self) -> dict[str, Any]:
        """State of the rollout."""
        return dict(self._state)

    async def clean_workflow_state(self) -> None:
        """Clear the state of the rollout."""
        self._state = {}

    def set_api_key(self, key: str) -> None:
        """No effect: a rollout has its own key."""

    async def _chat_replies(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]
    ) -> list[TrinityExperience]:
        n, tools, limits = _options(kwargs, self._chat.sampling)
        prompt = [dict(message) for message in messages]
        calls = [self._chat.complete(prompt, tools, **limits) for _ in range(n)]
        return [experience_of_turn(turn, text, prompt) for text, turn in await asyncio.gather(*calls)]

    async def _continuations(
        self, prompts: Sequence[str], kwargs: Mapping[str, Any]
    ) -> list[TrinityExperience]:
        n, _, limits = _options(kwargs, self._chat.sampling)
        texts = [prompt for prompt in prompts for _ in range(n)]
        replies = await asyncio.gather(*[self._chat.complete_text(text, **limits) for text in texts])
        found = [experience_of_turn(turn, reply) for reply, turn in replies]
        for experience, prompt in zip(found, texts, strict=True):
            experience.prompt_text = prompt
        return found

    async def _count_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return self._chat.count_tokens(messages)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from a thread of a workflow without `async`."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            coroutine.close()
            raise RuntimeError(
                "a workflow with is_async = True called the model without `await`, which would block all "
                "rollouts; call chat_async, generate_async or an async client."
            )
        return self._bridge.run_coroutine(coroutine)

    async def _in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from the policy's event loop, or from another one."""
        if asyncio.get_running_loop() is self._loop:
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def _serve(self) -> EndpointAccess:
        if self._access is None:
            self._access = self._opened.enter_context(self._chat.serve())
        return self._access


class AuxiliaryModelWrapper:
    """A model that is not trained, through the endpoint of a rollout."""

    def __init__(self, name: str, policy: ModelWrapper) -> None:
        self.model_name = self.model_path = name
        self._policy = policy

    def get_openai_client(self) -> Any:
        """An `openai.OpenAI` whose `model_path` is this model's name."""
        return self._policy.client("OpenAI", self.model_path)

    def get_openai_async_client(self) -> Any:
        """An `openai.AsyncOpenAI` whose `model_path` is this model's name."""
        return self._policy.client("AsyncOpenAI", self.model_path)


def _options(
    kwargs: Mapping[str, Any], sampling: SamplingParams
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """Number of replies, tools, and limits of a reply. Raises `ValueError` for what a run cannot vary."""
    options = {name: value for name, value in kwargs.items() if name not in _NO_EFFECT and value is not None}
    n, tools = int(options.pop("n", 1)), tuple(options.pop("tools", ()))
    stop = options.pop("stop", ())
    limits = {
        "max_tokens": options.pop("max_tokens", None),
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
    }
    if options.get("top_k") == -1:
        options["top_k"] = 0
    for name, value in options.items():
        if not hasattr(sampling, name):
            raise ValueError(
                f"the workflow passes {name}={value!r} to the model; Strop supports n, tools, max_tokens and stop"
            )
        if replace(sampling, **{name: value}) != sampling:
            raise ValueError(
                f"the workflow samples with {name}={value!r}, and the run with {getattr(sampling, name)!r}: "
                "training must know how tokens were sampled, so one value holds for all; set it in the "
                "configuration, or do not pass it to the model"
            )
    return n, tools, limits


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise MissingExtraError(
            "The workflow asks for an OpenAI client, of the package openai. Install it: pip install 'strop[agents]'"
        ) from error
    return openai

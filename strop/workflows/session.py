"""Record of a rollout's calls of the model: prompts and completions, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from strop.data.encoding.chat_template import Tools
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.errors import EngineLostError
from strop.protocols import InferenceEngine
from strop.seeds import derive_seed
from strop.types import IntArray, Message, SampleRequest, SamplingParams, Turn
from strop.workflows.result import ContextLengthExceeded


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation up to some message. It is immutable: each further message gives a new object."""

    messages: tuple[Message, ...]
    token_ids: IntArray
    """[P] The entire conversation, as the exact tokens that the model read and sampled."""
    tools: Tools = ()
    """Tools in the prompt."""
    turn: Turn | None = None
    """Call that sampled the last message; None if the last message is not the model's."""


class RolloutSession:
    """Calls the model for one rollout, and records every call as a turn.

    For one event loop. The first call has the rollout's seed, and each later one a seed derived from it, so
    that samples depend on the call's position only.
    """

    def __init__(
        self,
        name: str,
        engine: InferenceEngine,
        encoder: TurnEncoder,
        sampling: SamplingParams,
        seed: int,
        max_sequence_tokens: int,
    ) -> None:
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
        self._calls = 0

    @property
    def template(self) -> str | None:
        """Jinja text of the chat template; None if prompts are plain text."""
        return self._encoder.prompts.template

    def decode(self, turn: Turn) -> str:
        """Text of a turn's completion."""
        return self._encoder.decode(turn.completion_ids)

    def start(
        self, messages: Sequence[Message], tools: Tools = (), prompt_ids: IntArray | None = None
    ) -> Conversation:
        """Start a conversation; `prompt_ids` are its tokens if they are known already."""
        ids = self._encoder.encode_prompt(messages, tools) if prompt_ids is None else prompt_ids
        return Conversation(tuple(messages), ids, tools)

    def extend(self, conversation: Conversation, messages: Sequence[Message]) -> Conversation:
        """The conversation with new messages after the model's last one."""
        if conversation.turn is None:
            return self.start((*conversation.messages, *messages), conversation.tools)
        new = self._encoder.encode_continuation(
            conversation.messages, messages, conversation.tools, conversation.turn.completion_ids
        )
        ids = np.concatenate([conversation.token_ids, new])
        return Conversation((*conversation.messages, *messages), ids, conversation.tools)

    def remaining_tokens(self, conversation: Conversation) -> int:
        """Maximum number of tokens of another reply."""
        return self._limit - len(conversation.token_ids)

    async def reply(
        self, conversation: Conversation, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Conversation:
        """The conversation with the model's reply. Raises `ContextLengthExceeded` if no token fits.

        `max_tokens` replaces `data.max_response_tokens`.
        """
        turn = await self.sample(conversation.token_ids, max_tokens=max_tokens, stop=stop)
        message = {"role": "assistant", "content": self._encoder.decode(turn.completion_ids)}
        answered = Conversation(
            (*conversation.messages, message),
            np.concatenate([conversation.token_ids, turn.completion_ids]),
            conversation.tools,
            turn,
        )
        self.conversations.append(answered)
        return answered

    async def sample(
        self, prompt_ids: IntArray, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Turn:
        """Call the model once, with a prompt of tokens."""
        remaining = self._limit - len(prompt_ids)
        if remaining < 1:
            self.truncated = True
            raise ContextLengthExceeded(
                f"the conversation has {len(prompt_ids)} tokens; the limit is {self._limit} "
                "(rollout.max_sequence_tokens)"
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
        try:
            (completion,) = await self._engine.sample([SampleRequest(self.name, prompt_ids, sampling, seed)])
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
        )
        self.turns.append(turn)
        return turn

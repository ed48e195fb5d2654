"""One rollout's calls of the model: what it was shown and what it drew, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from strop.data.chat import Tools
from strop.data.turns import TurnEncoder
from strop.errors import EngineLost
from strop.protocols import InferenceEngine
from strop.seeds import derive_seed
from strop.types import Ints, Message, SampleRequest, Sampling, Turn
from strop.workflows.outcome import OutOfRoom


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation up to some point. It never changes: going on gives another one."""

    messages: tuple[Message, ...]
    token_ids: Ints
    """[P] All of it, as the model saw it and drew it."""
    tools: Tools = ()
    turn: Turn | None = None
    """The call that gave the last message; None where the model is to speak next."""


class Session:
    """Calls the model for one rollout, and keeps every call as a turn.

    For one event loop. The first call has the rollout's seed, and each one after it a seed derived from
    that, so that draws depend on nothing but their place.
    """

    def __init__(
        self,
        name: str,
        engine: InferenceEngine,
        encoder: TurnEncoder,
        sampling: Sampling,
        seed: int,
        max_sequence_tokens: int,
    ) -> None:
        self.turns: list[Turn] = []
        """In the order in which they ended."""
        self.dialogues: list[Dialogue] = []
        """After each call, its conversation, in the same order."""
        self.cut = False
        """A reply was wanted for which there was no room."""
        self.lost: EngineLost | None = None
        """There is nobody to ask any more, whatever the workflow made of that."""
        self.sampling = sampling
        self.name = name
        """The rollout's."""
        self._engine = engine
        self._encoder = encoder
        self._seed = seed
        self._limit = max_sequence_tokens
        self._calls = 0

    @property
    def template(self) -> str | None:
        """The Jinja text of the chat template; None for plain text as it is."""
        return self._encoder.prompts.template

    def text(self, turn: Turn) -> str:
        """What the model said in a turn."""
        return self._encoder.text(turn.completion_ids)

    def begin(
        self, messages: Sequence[Message], tools: Tools = (), prompt_ids: Ints | None = None
    ) -> Dialogue:
        """A new conversation; `prompt_ids` where its tokens are known already."""
        ids = self._encoder.prompt(messages, tools) if prompt_ids is None else prompt_ids
        return Dialogue(tuple(messages), ids, tools)

    def go_on(self, dialogue: Dialogue, messages: Sequence[Message]) -> Dialogue:
        """The conversation with what is answered to the model's last message, its turn to speak next."""
        if dialogue.turn is None:
            whole = (*dialogue.messages, *messages)
            return self.begin(whole, dialogue.tools)
        new = self._encoder.between(dialogue.messages, messages, dialogue.tools, dialogue.turn.completion_ids)
        ids = np.concatenate([dialogue.token_ids, new])
        return Dialogue((*dialogue.messages, *messages), ids, dialogue.tools)

    def room(self, dialogue: Dialogue) -> int:
        """Tokens that a reply could have."""
        return self._limit - len(dialogue.token_ids)

    async def reply(
        self, dialogue: Dialogue, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Dialogue:
        """The conversation with the model's reply. Raises `OutOfRoom` where nothing more fits.

        `max_tokens` counts in place of `data.max_response_tokens`.
        """
        turn = await self.sample(dialogue.token_ids, max_tokens=max_tokens, stop=stop)
        message = {"role": "assistant", "content": self._encoder.text(turn.completion_ids)}
        answered = Dialogue(
            (*dialogue.messages, message),
            np.concatenate([dialogue.token_ids, turn.completion_ids]),
            dialogue.tools,
            turn,
        )
        self.dialogues.append(answered)
        return answered

    async def sample(
        self, prompt_ids: Ints, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Turn:
        """One call of the model, with tokens as they are."""
        room = self._limit - len(prompt_ids)
        if room < 1:
            self.cut = True
            raise OutOfRoom(
                f"the conversation has {len(prompt_ids)} tokens, and {self._limit} are the most "
                "(rollout.max_sequence_tokens)"
            )
        most = min(room, self.sampling.max_tokens if max_tokens is None else max_tokens)
        sampling = replace(
            self.sampling,
            max_tokens=most,
            min_tokens=min(self.sampling.min_tokens, most - 1),
            stop=(*self.sampling.stop, *stop),
        )
        seed = self._seed if self._calls == 0 else derive_seed(self._seed, "call", self._calls)
        self._calls += 1
        try:
            (drawn,) = await self._engine.sample([SampleRequest(self.name, prompt_ids, sampling, seed)])
        except EngineLost as lost:
            self.lost = lost
            raise
        turn = Turn(
            prompt_ids=prompt_ids,
            completion_ids=drawn.token_ids,
            sampler_logprobs=drawn.sampler_logprobs,
            policy_logprobs=drawn.policy_logprobs,
            finish=drawn.finish,
            version=drawn.version,
        )
        self.turns.append(turn)
        return turn

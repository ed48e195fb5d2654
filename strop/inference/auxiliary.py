"""A model that helps: it answers chats, and is not trained."""

from __future__ import annotations

import hashlib

import torch

from strop.config.schema.model import Model
from strop.config.schema.rollout import AuxiliaryModel as Section
from strop.data.tool_calls import read_answer
from strop.data.turns import TurnEncoder
from strop.errors import ModelError, StropError
from strop.inference.endpoint.reply import ChatReply
from strop.inference.endpoint.request import TOO_LONG, BadRequest, ChatRequest
from strop.inference.loop_thread import LoopThread
from strop.inference.native import NativeEngine
from strop.models.load import load_model, load_tokenizer
from strop.seeds import derive_seed
from strop.types import Ints, SampleRequest, Sampling


class AuxiliaryModel:
    """An `Answerer` with an engine in a thread of its own. The same question gives the same answer."""

    def __init__(self, section: Section, device: torch.device, *, seed: int) -> None:
        """Raises `ModelError` for a model or a tokenizer that cannot be used."""
        self._section = section
        self._seed = seed
        files = Model(
            path=section.path,
            tokenizer=section.tokenizer,
            dtype=section.dtype,
            trust_remote_code=section.trust_remote_code,
        )
        try:
            tokenizer = load_tokenizer(files)
            self._encoder = TurnEncoder(tokenizer, section.chat_template)
            model = load_model(files, device=device, trainable=False)
        except ModelError as error:
            raise ModelError(f"rollout.auxiliary_models ({section.name}): {error}") from error
        self._engine = NativeEngine.from_model(model, section.engine, tokenizer)
        positions = model.config.get_text_config().max_position_embeddings
        self._limit = min(positions, section.engine.kv_cache_tokens)
        self._thread = LoopThread(f"auxiliary model {section.name}")

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Raises `BadRequest` where the question is too long, or cannot be rendered."""
        try:
            prompt = self._encoder.prompt(request.messages, request.tools)
            asked = SampleRequest(self._section.name, prompt, self._sampling(request, prompt), 0)
            seed = derive_seed(self._seed, self._section.name, _fingerprint(asked))
            asked = SampleRequest(asked.id, prompt, asked.sampling, seed)
            (drawn,) = await self._thread.call(self._engine.sample([asked]))
        except StropError as error:
            raise BadRequest(f"{self._section.name}: {error}") from error
        text = self._encoder.text(drawn.token_ids)
        read = read_answer(text, request.tools, self._encoder.prompts.template)
        return ChatReply(
            id=f"{seed:x}",
            content=read.content,
            finish=drawn.finish,
            prompt_tokens=len(prompt),
            completion_tokens=len(drawn.token_ids),
            calls=read.calls,
        )

    def close(self) -> None:
        """End its thread."""
        self._thread.close()

    def _sampling(self, request: ChatRequest, prompt: Ints) -> Sampling:
        room = self._limit - len(prompt)
        if room < 1:
            raise BadRequest(
                f"{self._section.name}: the question has {len(prompt)} tokens, and it takes {self._limit}",
                code=TOO_LONG,
            )
        return Sampling(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=request.top_p or 1.0,
            max_tokens=min(room, request.max_tokens or self._section.max_response_tokens),
            stop=request.stop,
        )


def _fingerprint(asked: SampleRequest) -> str:
    """Of what is asked: so that the draws of an answer depend on the question, and not on its place."""
    content = asked.prompt_ids.tobytes() + repr(asked.sampling).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()

"""Auxiliary models: models that are not trained and answer chat requests of workflows and judges."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from strop.config.schema.inference_engine import AuxiliaryEngineConfig, NativeEngineConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import AuxiliaryModelConfig
from strop.data.encoding.chat_reply import ChatReplyParser
from strop.data.encoding.model_tokens import eos_token_ids
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.errors import ModelError, StropError
from strop.inference.endpoint.errors import CONTEXT_LENGTH_EXCEEDED, BadRequest
from strop.inference.endpoint.request import ChatRequest
from strop.inference.endpoint.response import ChatResponse
from strop.inference.endpoint.token_completions import TokenRequest, TokenResponse
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import load_engine
from strop.models.loading import load_config, load_generation_config, load_tokenizer
from strop.protocols import InferenceEngine
from strop.seeds import derive_seed
from strop.types import Completion, IntArray, SampleRequest, SamplingParams
from strop.workers.event_loop_thread import EventLoopThread
from strop.workers.start import LOCAL, WorkerPlacement


class AuxiliaryModel:
    """An `EndpointModel` whose engine runs in its own thread. Equal requests get equal responses."""

    def __init__(
        self,
        section: AuxiliaryModelConfig,
        device: torch.device,
        *,
        seed: int,
        placement: WorkerPlacement = LOCAL,
        max_restarts: int = 0,
    ) -> None:
        """Load the model; an engine of a serving library does so in a process of its own, at `placement`.

        Raises `ModelError` for a model or a tokenizer that cannot be used, and what `InferenceEngine.start` raises.
        """
        self._section = section
        self._seed = seed
        create = AuxiliaryEngineFactory(section, device)
        try:
            tokenizer = load_tokenizer(create.files)
            config = load_config(create.files)
            ends = eos_token_ids(config, load_generation_config(create.files), tokenizer)
            self._encoder = TurnEncoder(tokenizer, section.chat_template, eos_ids=ends)
            positions = config.get_text_config().max_position_embeddings
            self._context_tokens = min(positions, _engine_context(section.engine) or positions)
            self._engine = (
                create()
                if isinstance(section.engine, NativeEngineConfig)
                else _own_process(create, placement, max_restarts)
            )
            self._engine.start()
        except ModelError as error:
            raise ModelError(f"rollout.auxiliary_models ({section.name}): {error}") from error
        self._thread = EventLoopThread(f"auxiliary model {section.name}")

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """Raises `BadRequest` for a conversation that is too long or cannot be rendered."""
        try:
            prompt = self._encoder.encode_prompt(request.messages, request.tools)
        except StropError as error:
            raise BadRequest(f"{self._section.name}: {error}") from error
        completion, seed = await self._complete(prompt, self._sampling(request, prompt), None)
        encoder = self._encoder
        text, is_open = encoder.replies.decode(completion.token_ids), encoder.opens_reasoning(prompt)
        parsed = ChatReplyParser().parse(text, request.tools, encoder.prompts.template, in_reasoning=is_open)
        return ChatResponse(
            id=f"{seed:x}",
            content=parsed.content,
            finish=completion.finish_reason,
            prompt_tokens=len(prompt),
            completion_tokens=len(completion.token_ids),
            calls=parsed.calls,
        )

    async def complete(self, request: TokenRequest) -> TokenResponse:
        """Raises `BadRequest` for a prompt that is too long or has other tokens than the model."""
        completion, seed = await self._complete(request.prompt_ids, request.sampling, request.seed)
        return TokenResponse(f"{seed:x}", self._encoder.replies.decode(completion.token_ids), completion)

    async def _complete(
        self, prompt: IntArray, sampling: SamplingParams, seed: int | None
    ) -> tuple[Completion, int]:
        """The completion, and its seed: a hash of the request if None is given."""
        if seed is None:
            unseeded = SampleRequest(self._section.name, prompt, sampling, 0)
            seed = derive_seed(self._seed, self._section.name, _request_hash(unseeded))
        request = SampleRequest(self._section.name, prompt, sampling, seed)
        try:
            (completion,) = await self._thread.run_async(self._engine.sample([request]))
        except StropError as error:
            raise BadRequest(f"{self._section.name}: {error}") from error
        return completion, seed

    def close(self) -> None:
        """Stop the engine and its thread."""
        self._thread.close()
        self._engine.close()

    def _sampling(self, request: ChatRequest, prompt: IntArray) -> SamplingParams:
        remaining_tokens = self._context_tokens - len(prompt)
        if remaining_tokens < 1:
            raise BadRequest(
                f"{self._section.name}: the prompt has {len(prompt)} tokens; the model's context has "
                f"{self._context_tokens}",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        return SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=request.top_p or 1.0,
            max_tokens=min(remaining_tokens, request.max_tokens or self._section.max_response_tokens),
            stop=request.stop,
        )


@dataclass(frozen=True, slots=True)
class AuxiliaryEngineFactory:
    """Builds the engine of an auxiliary model, in the process that runs it."""

    section: AuxiliaryModelConfig
    device: torch.device

    @property
    def files(self) -> ModelConfig:
        """The model's files."""
        section = self.section
        return ModelConfig(
            path=section.path,
            tokenizer=section.tokenizer,
            dtype=section.dtype,
            trust_remote_code=section.trust_remote_code,
        )

    def __call__(self) -> InferenceEngine:
        """Load the tokenizer and the model."""
        return load_engine(self.section.engine, self.files, load_tokenizer(self.files), self.device)


def _own_process(
    create: AuxiliaryEngineFactory, placement: WorkerPlacement, max_restarts: int
) -> InferenceEngine:
    engine = create.section.engine
    return EnginePool(
        [EngineSpec(f"auxiliary-{create.section.name}", create)],
        placement,
        max_restarts,
        hang_timeout_seconds=engine.hang_timeout_seconds,
        start_timeout_seconds=engine.start_timeout_seconds,
    )


def _engine_context(engine: AuxiliaryEngineConfig) -> int | None:
    """Maximum length of a prompt with its completion that the engine's section sets; None if it sets none."""
    return engine.kv_cache_tokens if isinstance(engine, NativeEngineConfig) else engine.sequence_limit


def _request_hash(request: SampleRequest) -> str:
    """Hash of prompt and sampling, so that the seed depends on the request and not on the order of requests."""
    content = request.prompt_ids.tobytes() + repr(request.sampling).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()

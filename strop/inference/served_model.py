"""Models behind the endpoint that an inference engine samples from: chats and completions, with log-probs."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import AuxiliaryEngineConfig, NativeEngineConfig
from strop.data.encoding.model_tokens import eos_token_ids
from strop.data.encoding.reply import ChatReplyParser
from strop.data.encoding.template_limits import MAX_CHARACTERS
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.data.images.messages import content_text, media_of
from strop.data.images.prompt_images import RunImages
from strop.errors import StropError
from strop.inference.completion import REPLACEMENT_CHARACTER
from strop.inference.endpoint.completions import CompletionRequest, CompletionResponse
from strop.inference.endpoint.request import CONTEXT_LENGTH_EXCEEDED, BadRequest, ChatRequest
from strop.inference.endpoint.response import ChatChoice, ChatResponse, TextCallback, TextChoice, TokenLogprob
from strop.inference.native import NativeEngine
from strop.inference.request_validation import validate_request
from strop.models.loading import load_config, load_generation_config, load_tokenizer
from strop.protocols import InferenceEngine
from strop.seeds import derive_seed
from strop.types import (
    Completion,
    FloatArray,
    IntArray,
    SampleRequest,
    SamplingParams,
    TopTokens,
)
from strop.workers.threads import EventLoopThread

_TOKENS_PER_DECODING = 64
"""A growing reply is decoded again after one token, and after one more for each of these tokens that it has."""


@dataclass(frozen=True, slots=True)
class ServedModelSettings:
    """Name, files, prompts and limits of a served model."""

    name: str
    """Name in messages."""
    files: ModelConfig
    engine: AuxiliaryEngineConfig
    max_response_tokens: int
    """Maximum length of a chat's reply, in tokens, for requests without their own limit."""
    chat_template: str = "tokenizer"
    template_args: Mapping[str, Any] = field(default_factory=dict)
    parser: ChatReplyParser = field(default_factory=ChatReplyParser)
    """Parsers that split replies."""
    images: RunImages | None = None
    """Images of a model that reads them."""
    seed: int | None = None
    """Seed from which a request without one gets its own, by a hash of the request: equal requests get equal
    responses. None gives each such request a random one."""


class ServedModel:
    """An `EndpointModel` whose engine runs in its own thread. Equal requests with equal seeds get equal responses."""

    def __init__(self, settings: ServedModelSettings, create: Callable[[], InferenceEngine]) -> None:
        """Create and start the engine, which `close` closes.

        Raises `ModelError` for a model or a tokenizer that cannot be used, and what `InferenceEngine.start` raises.
        """
        self._settings = settings
        tokenizer = load_tokenizer(settings.files)
        config = load_config(settings.files)
        ends = eos_token_ids(config, load_generation_config(settings.files), tokenizer)
        self._encoder = TurnEncoder(
            tokenizer, settings.chat_template, settings.template_args, settings.images, eos_ids=ends
        )
        text = config.get_text_config()
        positions = text.max_position_embeddings
        self._vocab_size = int(text.vocab_size)
        self._context_tokens = min(positions, _engine_context(settings.engine) or positions)
        longest_token = max(map(len, tokenizer.get_vocab()))
        self._max_characters = min(MAX_CHARACTERS, self._context_tokens * longest_token)
        """Characters of a prompt beyond which it is not encoded."""
        self._engine = create()
        self._engine.start()
        self._thread = EventLoopThread(f"model {settings.name}")

    async def chat(self, request: ChatRequest, on_text: TextCallback | None = None) -> ChatResponse:
        """Raises `BadRequest` for a conversation that is too long or cannot be rendered.

        `on_text` gets the content while it grows, on the native engine, of requests without tools and log-probs, and
        without a parser of reasoning, for which only a complete reply shows what is content.
        """
        try:
            # In threads, as a prompt of megabytes takes seconds, in which the endpoint answers others.
            messages = await asyncio.to_thread(self._encoder.read_images, request.messages, "messages")
            contents = [str(content_text(message.get("content")) or "") for message in messages]
            self._require_room(sum(map(len, contents)), self._max_characters)
            prompt = await asyncio.to_thread(self._encoder.encode_prompt, messages, request.tools)
        except StropError as error:
            raise BadRequest(f"{self._settings.name}: {error}") from error
        sampling = SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=request.top_p or 1.0,
            max_tokens=request.max_tokens or self._settings.max_response_tokens,
            stop=request.stop,
        )
        asked = SampleRequest(
            self._settings.name,
            prompt,
            sampling,
            0,
            media=tuple(media_of(messages)),
            top_logprobs=request.top_logprobs or 0,
        )
        seed = self._seed(request.seed, asked)
        is_plain = not (request.tools or request.logprobs) and self._settings.parser.reasoning == "none"
        completions = await self._sample(
            self._choices(asked, seed, request.n), on_text if is_plain else None, request.stop
        )
        in_reasoning = self._encoder.opens_reasoning(prompt)
        return ChatResponse(
            id=f"{seed:x}",
            choices=tuple(self._chat_choice(request, each, in_reasoning) for each in completions),
            prompt_tokens=len(prompt),
            completion_tokens=sum(len(each.token_ids) for each in completions),
        )

    async def complete(
        self, request: CompletionRequest, on_text: TextCallback | None = None
    ) -> CompletionResponse:
        """Raises `BadRequest` for a prompt that is too long, alone or with `max_tokens`, or has other tokens than the
        model.

        `on_text` gets the texts while they grow, on the native engine, of requests without echo and log-probs.
        """
        lengths = [len(prompt) for prompt in request.prompts if isinstance(prompt, str)]
        self._require_room(max(lengths, default=0), self._max_characters)
        self._require_room(sum(lengths), MAX_CHARACTERS)
        prompts = await asyncio.to_thread(lambda: [self._encode(prompt) for prompt in request.prompts])
        wanted = request.sampling.max_tokens if request.samples else 0
        if (longest := max(map(len, prompts))) + wanted > self._context_tokens:
            raise BadRequest(
                f"{self._settings.name}: the prompt has {longest} tokens and max_tokens is {wanted}; the model's "
                f"context has {self._context_tokens}, with the completion",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        asked: list[SampleRequest] = []
        for prompt in prompts:
            one = SampleRequest(
                self._settings.name,
                prompt,
                request.sampling,
                0,
                prompt_logprobs=request.echo and request.logprobs is not None and len(prompt) > 1,
                top_logprobs=request.logprobs or 0,
            )
            asked += self._choices(one, self._seed(request.seed, one), request.n)
        is_plain = request.samples and not request.echo and request.logprobs is None
        stops = () if request.keeps_stop else request.sampling.stop
        completions = await self._sample(asked, on_text if is_plain else None, stops)
        choices = tuple(
            self._text_choice(request, each.prompt_ids, completion)
            for each, completion in zip(asked, completions, strict=True)
        )
        sampled = sum(len(each.token_ids) for each in completions) if request.samples else 0
        return CompletionResponse(f"{asked[0].seed:x}", choices, sum(map(len, prompts)), sampled)

    def close(self) -> None:
        """Stop the engine and its thread."""
        self._thread.close()
        self._engine.close()

    def _require_room(self, characters: int, limit: int) -> None:
        if characters > limit:
            raise BadRequest(
                f"{self._settings.name}: the prompt has {characters:,} characters, and {limit:,} are read; the model's "
                f"context has {self._context_tokens} tokens",
                code=CONTEXT_LENGTH_EXCEEDED,
            )

    def _encode(self, prompt: str | IntArray) -> IntArray:
        if not isinstance(prompt, str):
            return prompt
        ids = self._encoder.encode_text(prompt)
        if len(ids) == 0:
            raise BadRequest(f"{self._settings.name}: prompt {prompt!r} has no tokens; write some text")
        return ids

    def _seed(self, given: int | None, request: SampleRequest) -> int:
        if given is not None:
            return given
        seed = self._settings.seed
        return secrets.randbits(63) if seed is None else derive_seed(seed, request.id, _request_hash(request))

    def _choices(self, request: SampleRequest, seed: int, count: int) -> list[SampleRequest]:
        """The requests of all choices, which fit into the context. Raises `BadRequest`."""
        settings, prompt = self._settings, request.prompt_ids
        remaining_tokens = self._context_tokens - len(prompt)
        if remaining_tokens < 1:
            raise BadRequest(
                f"{settings.name}: the prompt has {len(prompt)} tokens; the model's context has "
                f"{self._context_tokens}, with the completion",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        capabilities = self._engine.capabilities
        if request.top_logprobs and not capabilities.top_logprobs:
            raise BadRequest(
                f"{settings.name}: this engine does not report the most likely tokens; write top_logprobs: 0 "
                "(logprobs: 0 for a text completion), or serve with --engine native"
            )
        if request.prompt_logprobs and not capabilities.prompt_logprobs:
            raise BadRequest(
                f"{settings.name}: this engine does not compute log-probs of prompts; leave out echo or logprobs"
            )
        sampling = replace(request.sampling, max_tokens=min(remaining_tokens, request.sampling.max_tokens))
        requests = [
            replace(request, sampling=sampling, seed=derive_seed(seed, number) if number else seed)
            for number in range(count)
        ]
        try:
            validate_request(replace(requests[0], media=()), self._vocab_size, None)
        except StropError as error:
            raise BadRequest(str(error)) from error
        return requests

    async def _sample(
        self, requests: Sequence[SampleRequest], on_text: TextCallback | None, stops: Sequence[str]
    ) -> list[Completion]:
        """Completions of valid requests; an error is one of the engine, except for images.

        The native engine calls `on_text` with the texts before these stop texts, in its thread.
        """
        engine = self._engine
        on_token = None
        if on_text is not None:
            texts = [GrowingText(self._encoder.replies.decode, stops) for _ in requests]

            def on_token(index: int, token: int) -> None:
                if text := texts[index].add(token):
                    on_text(index, text)

        sampling = (
            engine.sample(requests, on_token) if isinstance(engine, NativeEngine) else engine.sample(requests)
        )
        try:
            return await self._thread.run_async(sampling)
        except StropError as error:
            status = 400 if any(request.media for request in requests) else 500
            raise BadRequest(f"{self._settings.name}: {error}", status=status) from error

    def _chat_choice(self, request: ChatRequest, completion: Completion, in_reasoning: bool) -> ChatChoice:
        template = self._encoder.prompts.template
        text = before_stop(self._encoder.replies.decode(completion.token_ids), request.stop)
        parsed = self._settings.parser.parse(text, request.tools, template, in_reasoning=in_reasoning)
        return ChatChoice(
            content=parsed.content,
            finish=completion.finish_reason,
            calls=parsed.calls,
            reasoning=parsed.reasoning,
            tokens=self._sampled_tokens(completion) if request.logprobs else None,
        )

    def _text_choice(
        self, request: CompletionRequest, prompt: IntArray, completion: Completion
    ) -> TextChoice:
        tokens: list[TokenLogprob] = []
        text = ""
        if request.echo:
            text += self._encoder.decode_tokens(prompt)
            nothing = np.full(len(prompt) - 1, np.nan, dtype=np.float32)
            logprobs = nothing if completion.prompt_logprobs is None else completion.prompt_logprobs
            tokens.append(TokenLogprob(int(prompt[0]), self._encoder.decode_tokens(prompt[:1]), None))
            tokens += self._tokens(prompt[1:], logprobs, completion.prompt_top_tokens)
        if request.samples:
            stops = () if request.keeps_stop else request.sampling.stop
            text += before_stop(self._encoder.replies.decode(completion.token_ids), stops)
            tokens += self._sampled_tokens(completion)
        finish = completion.finish_reason if request.samples else "length"
        return TextChoice(text, finish, tuple(tokens))

    def _sampled_tokens(self, completion: Completion) -> tuple[TokenLogprob, ...]:
        """Log-probs under softmax(logits / temperature), from an engine that has them."""
        own = completion.policy_logprobs
        logprobs = completion.sampler_logprobs if own is None else own
        return tuple(self._tokens(completion.token_ids, logprobs, completion.top_tokens))

    def _tokens(self, ids: IntArray, logprobs: FloatArray, top: TopTokens | None) -> list[TokenLogprob]:
        found = []
        for position, (token, logprob) in enumerate(zip(ids.tolist(), logprobs.tolist(), strict=True)):
            best: list[tuple[str, float]] = []
            if top is not None:
                pairs = zip(top.token_ids[position].tolist(), top.logprobs[position].tolist(), strict=True)
                # The sampled token has one value in a response, whatever the roundings of the two computations.
                best = [
                    (self._encoder.decode_tokens([other]), logprob if other == token else value)
                    for other, value in pairs
                ]
            reported = None if np.isnan(logprob) else logprob
            found.append(TokenLogprob(token, self._encoder.decode_tokens([token]), reported, tuple(best)))
        return found


class GrowingText:
    """Text of a reply whose tokens come one after the other."""

    def __init__(self, decode: Callable[[IntArray], str], stops: Sequence[str]) -> None:
        self._decode, self._stops = decode, stops
        self._held = max(map(len, stops), default=1) - 1
        """Characters at the end that may be the start of a stop text."""
        self._ids: list[int] = []
        self._sent = 0
        self._due = 1
        """Number of tokens at which the text is decoded again: the whole of it, and therefore less often in the end."""

    def add(self, token: int) -> str:
        """Add a token; returns the text that no later token can change, and that was not returned before."""
        self._ids.append(token)
        if len(self._ids) < self._due:
            return ""
        self._due += 1 + len(self._ids) // _TOKENS_PER_DECODING
        text = self._decode(np.array(self._ids, np.int32))
        cut = before_stop(text, self._stops)
        if cut == text:
            cut = text.rstrip(REPLACEMENT_CHARACTER)
            cut = cut[: len(cut) - self._held] if self._held else cut
        new, self._sent = cut[self._sent :], max(self._sent, len(cut))
        return new


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first of these stop texts in it."""
    found = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(found)] if found else text


def _engine_context(engine: AuxiliaryEngineConfig) -> int | None:
    """Maximum length of a prompt with its completion that the engine's section sets; None if it sets none."""
    return engine.kv_cache_tokens if isinstance(engine, NativeEngineConfig) else engine.sequence_limit


def _request_hash(request: SampleRequest) -> str:
    """Hash of prompt and sampling, so that the seed depends on the request and not on the order of requests."""
    content = request.prompt_ids.tobytes() + repr(request.sampling).encode()
    content += "".join(image.digest for image in request.media).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()

"""Sampling from one base model with adapters of training clients: an engine for each, over the same base weights."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from tinker.types import SampleRequest as TinkerSampleRequest
from transformers import PreTrainedTokenizerBase

from strop.compat.tinker.wire import chunk_tokens
from strop.config.schema.rollout import NativeEngineConfig
from strop.errors import DataError
from strop.inference.native import NativeEngine
from strop.inference.request_validation import validate_request
from strop.models.lora import with_adapter
from strop.protocols import SharedWeights
from strop.seeds import derive_seed
from strop.types import Completion, SampleRequest, SamplingParams
from strop.workers.threads import EventLoopThread

_OPEN_ENGINES = 4
"""Number of adapters with an open engine; others are opened again when a client samples from them."""
_MAX_TOP = 20


class AdapterSamplers:
    """Engines that sample from the base model and from adapters, in one thread."""

    def __init__(
        self, weights: SharedWeights, tokenizer: PreTrainedTokenizerBase, context_tokens: int
    ) -> None:
        self._weights = weights
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._vocab_size = int(weights.config.get_text_config().vocab_size)
        self._engines: OrderedDict[Path | None, NativeEngine] = OrderedDict()
        self._running: dict[Path | None, int] = {}
        """Number of requests of each adapter that an engine has."""
        self._thread = EventLoopThread("tinker sampling")

    async def sample(self, adapter: Path | None, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions from the model with an adapter in PEFT's format; None is the base model."""
        return await self._thread.run_async(self._sample(adapter, requests))

    def requests(self, request: TinkerSampleRequest, seed: int) -> list[SampleRequest]:
        """One request for each sequence. Raises DataError for what is not served, and for a prompt that is too long."""
        prompt = chunk_tokens(request.prompt.chunks)
        params = request.sampling_params
        for name, given in (
            ("target_prompt_logprobs", request.target_prompt_logprobs is not None),
            ("prompt_alt_tokens_k", request.prompt_alt_tokens_k > 0),
        ):
            if given:
                raise DataError(f"{name} is not served")
        space = self._context_tokens - len(prompt)
        if space < 1:
            raise DataError(f"the prompt has {len(prompt)} tokens, and the context {self._context_tokens}")
        stops = [params.stop] if isinstance(params.stop, str) else list(params.stop or ())
        sampling = SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(params.top_k, 0),
            max_tokens=min(space, space if params.max_tokens is None else params.max_tokens),
            stop=tuple(stop for stop in stops if isinstance(stop, str)),
            stop_token_ids=tuple(stop for stop in stops if isinstance(stop, int)),
            ignore_eos=params.stop is not None and not stops,
        )
        top = max(request.topk_prompt_logprobs, request.topk_sample_logprobs)
        if top > _MAX_TOP:
            raise DataError(f"topk_prompt_logprobs and topk_sample_logprobs may be {_MAX_TOP}, not {top}")
        if params.seed is not None:
            seed = derive_seed(params.seed, hashlib.blake2b(prompt.tobytes(), digest_size=16).hexdigest())
        found = [
            SampleRequest(
                "sample",
                prompt,
                sampling,
                derive_seed(seed, number),
                prompt_logprobs=bool(request.prompt_logprobs or request.topk_prompt_logprobs)
                and len(prompt) > 1,
                top_logprobs=top,
            )
            for number in range(request.num_samples)
        ]
        if not found:
            raise DataError(f"num_samples is {request.num_samples}; write 1 or more")
        validate_request(found[0], self._vocab_size, None)
        return found

    def close(self) -> None:
        """Close all engines."""
        self._thread.close()
        for engine in self._engines.values():
            engine.close()

    async def _sample(self, adapter: Path | None, requests: Sequence[SampleRequest]) -> list[Completion]:
        engine = self._engine(adapter)
        self._running[adapter] = self._running.get(adapter, 0) + 1
        try:
            return await engine.sample(requests)
        finally:
            self._running[adapter] -= 1

    def _engine(self, adapter: Path | None) -> NativeEngine:
        if adapter not in self._engines:
            weights = self._weights
            if adapter is not None:
                weights = with_adapter(weights, adapter, str(adapter))
            idle = [each for each in self._engines if not self._running.get(each)]
            for each in idle[: max(0, len(self._engines) + 1 - _OPEN_ENGINES)]:
                self._engines.pop(each).close()
            engine = NativeEngine.from_weights(weights, NativeEngineConfig(merge_lora=False), self._tokenizer)
            engine.start()
            self._engines[adapter] = engine
        self._engines.move_to_end(adapter)
        return self._engines[adapter]

"""The native sampler: an inference engine in the trainer's process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from strop.config.schema.rollout import NativeEngine as NativeSection
from strop.errors import InferenceError
from strop.inference.native.architecture import why_not_native
from strop.inference.native.check import check_request
from strop.inference.native.ends import end_token_ids
from strop.inference.native.forward import NativeRunner
from strop.inference.native.huggingface import HuggingFaceRunner
from strop.inference.native.rows import Rows
from strop.inference.native.runner import Runner
from strop.inference.native.scheduler import Scheduler, Stats
from strop.inference.native.stops import StopTexts
from strop.inference.native.ticket import Call, Ticket
from strop.inference.native.weights import named_weights
from strop.types import Completion, SampleRequest


class NativeEngine:
    """Answers many requests at once, each in its own time: an `InferenceEngine`.

    Calls of `sample` from one event loop go through the model together. The same requests in the same
    order give the same completions, bit for bit. `weights` are Hugging Face's names and tensors: where
    dtype, device and layout allow, these very tensors are used, so that what an optimizer does to
    them in place is seen at once; they must not change in any other way behind the engine's back.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        section: NativeSection,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        generation_config: GenerationConfig | None = None,
    ) -> None:
        """`dtype` counts where `section.dtype` is `model`. Raises `ModelError` for unfit weights."""
        if section.dtype != "model":
            dtype = getattr(torch, section.dtype)
        self._reason = why_not_native(config)
        make = NativeRunner if self._reason is None else HuggingFaceRunner
        runner: Runner = make(config, weights, device=torch.device(device), dtype=dtype)
        self._runner = runner
        ends = end_token_ids(config, generation_config, tokenizer)
        stops = StopTexts(tokenizer)
        rows = Rows(self._runner.vocab_size, self._runner.device, ends, stops)
        self._scheduler = Scheduler(self._runner, rows, section.kv_cache_tokens, section.max_sequences)
        self._cache_tokens = section.kv_cache_tokens
        self._paused = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that the latest call of `sample` runs in."""
        self._driver: asyncio.Task[None] | None = None

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        section: NativeSection,
        tokenizer: PreTrainedTokenizerBase,
        *,
        dtype: torch.dtype | None = None,
    ) -> NativeEngine:
        """Sample from a Hugging Face model, on its weights where possible. `dtype`: the model's own if None.

        Adapters are not seen: merged weights arrive by `load`.
        """
        return cls(
            model.config,
            named_weights(model),
            section,
            tokenizer,
            device=model.device,
            dtype=dtype or model.dtype,
            generation_config=getattr(model, "generation_config", None),
        )

    @property
    def description(self) -> str:
        """One line: which forward, which dtype, what is shared, and why it is not the native forward."""
        shared = f"{100 * self._runner.shared_share():.0f} % of the weights shared"
        return f"{self._runner.describe()}, {shared}{self._why}"

    @property
    def device(self) -> torch.device:
        """Where it computes, and so where new weights are best given to it."""
        return self._runner.device

    @property
    def forward(self) -> str:
        """The same without what is shared."""
        return f"{self._runner.describe()}{self._why}"

    @property
    def _why(self) -> str:
        return "" if self._reason is None else f" ({self._reason})"

    @property
    def stats(self) -> Stats:
        """Tokens drawn so far, completions under way and waiting: for a display to poll."""
        return self._scheduler.stats

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises `InferenceError`, and answers none of them, when one cannot be taken as it is or would not
        fit into the cache even alone. When the awaiting task is cancelled, its requests are forgotten.
        """
        if not requests:
            return []
        self._loop = asyncio.get_running_loop()
        call = Call(len(requests), self._loop.create_future())
        tickets = [
            Ticket(request, call, place, request.prompt_ids.astype(np.int32, copy=False).tobytes())
            for place, request in enumerate(requests)
        ]
        for ticket in tickets:
            check_request(ticket.request, self._runner.vocab_size, self._runner.longest)
            if not self._scheduler.fits(ticket):
                raise self._too_large(ticket)
        self._scheduler.put(tickets)
        self._drive()
        try:
            return await call.future
        except asyncio.CancelledError:
            if not call.forgotten:
                self._scheduler.forget_cancelled()
            raise

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights. Rows under way go on with them, and keep the version they began with."""
        self._runner.load(weights)
        self._scheduler.forget_prompts()
        self._scheduler.version = version

    def pause(self) -> None:
        """Stop drawing tokens; what is under way keeps its state."""
        self._paused = True

    def resume(self) -> None:
        """Go on drawing."""
        self._paused = False
        if self._scheduler.busy:
            self._drive()

    def _drive(self) -> None:
        """See to it that somebody steps, in the loop that the waiting calls run in."""
        if self._paused or self._loop is None:
            return
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not self._loop:
            self._driver = self._loop.create_task(self._run(), name="native sampler")
            self._driver.add_done_callback(self._fail_waiting)

    async def _run(self) -> None:
        """Step while there is work, giving way to the event loop in between."""
        while self._scheduler.busy and not self._paused:
            self._scheduler.step()
            await asyncio.sleep(0)

    def _fail_waiting(self, driver: asyncio.Task[None]) -> None:
        """Where a step broke, everyone who waits hears of it, and the engine is empty again."""
        error = None if driver.cancelled() else driver.exception()
        if error is None:
            return
        calls = self._scheduler.calls()
        self._scheduler.clear()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)

    def _too_large(self, ticket: Ticket) -> InferenceError:
        sampling = ticket.request.sampling
        return InferenceError(
            f"request {ticket.request.id!r}: a prompt of {ticket.prompt_tokens} tokens and max_tokens "
            f"{sampling.max_tokens} do not fit into rollout.engine.kv_cache_tokens ({self._cache_tokens}) "
            "even alone; make the cache larger or the request shorter"
        )

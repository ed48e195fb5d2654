"""Comparison of an inference engine's log-probs with the trainer's after each load of weights.

With both in one process, the engine samples a probe. A separate trainer publishes the log-probs of a fixed text with
each version of its weights, and the explorer's engine computes those of the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from strop.errors import InferenceError
from strop.inference.interruptible_sampler import InterruptibleSampler
from strop.inference.weight_transfer import ANNOTATION_PREFIX
from strop.protocols import InferenceEngine, TrainingEngine
from strop.sync.transport import PublishedVersion
from strop.types import Experience, FloatArray, IntArray, SampleRequest, SamplingParams
from strop.workers.threads import EventLoopThread

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE_TEXT = "One and two make three, three and four make seven: what do"
_PROBE_TOKENS = 16
PROBE_TENSOR = f"{ANNOTATION_PREFIX}probe_logprobs"
"""Name, among the published weights, of the log-probs of the probe's tokens."""


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """Samples a probe and compares its log-probs with the trainer's.

    An engine that converts the weights can keep an old copy of some of them without an error; the difference is
    then far larger than rounding.
    """

    trainer: TrainingEngine
    engine: InferenceEngine
    event_loop: EventLoopThread
    """Event loop in which the engine samples."""
    tokenizer: PreTrainedTokenizerBase
    max_sequence_tokens: int
    """Maximum length of a prompt with its completion, in tokens; the probe is shortened to it."""
    max_gap: float
    """Maximum mean difference, in nats."""

    def __call__(self, version: int) -> dict[str, float]:
        """Metric `engine/logprob_gap`. Raises `InferenceError` above the maximum."""
        tokens = min(_PROBE_TOKENS, self.max_sequence_tokens // 2)
        prompt = _encode_probe(self.tokenizer, self.max_sequence_tokens - tokens)
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        request = SampleRequest("probe", prompt, sampling, seed=0)
        (completion,) = self.event_loop.run(self.engine.sample([request]))
        token_ids = np.concatenate([prompt, completion.token_ids])
        (expected,) = self.trainer.token_values([_experience(token_ids, len(prompt))], "logprobs")
        return _checked_gap(completion.sampler_logprobs, expected[len(prompt) :], version, self.max_gap)


@dataclass(frozen=True, slots=True)
class ProbedWeights:
    """The trainer's weights to publish, with the log-probs of the probe's tokens under them."""

    trainer: TrainingEngine
    token_ids: IntArray
    """[L] Tokens of the probe."""

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full weights, and `PROBE_TENSOR` [L - 1]."""
        yield from self.trainer.iter_weights()
        (logprobs,) = self.trainer.token_values([_experience(self.token_ids, 1)], "logprobs")
        yield PROBE_TENSOR, torch.from_numpy(logprobs[1:].copy())


class ProbedLoader:
    """Loads published weights into the sampler, and checks each version that has the log-probs of the probe."""

    def __init__(
        self,
        sampler: InterruptibleSampler,
        event_loop: EventLoopThread,
        token_ids: IntArray,
        max_gap: float | None,
    ) -> None:
        """`token_ids` [L] are the probe's; `max_gap` is the maximum mean difference, in nats, or None for no check."""
        self._sampler = sampler
        self._event_loop = event_loop
        self._token_ids = token_ids
        self._max_gap = max_gap
        self.metrics: dict[str, float] = {}
        """Metrics of the last load."""

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load the weights as this version. Raises `InferenceError` if the difference is above the maximum."""
        published: list[torch.Tensor] = []
        self._sampler.load(_split(weights, published), version)
        for expected in published:
            self._check(expected, version)

    @property
    def joins_process_groups(self) -> bool:
        """Whether the engine's processes can receive weights from the trainer themselves."""
        return "process_group" in self._sampler.capabilities.weight_transports

    def load_published(self, published: PublishedVersion, version: int) -> None:
        """Have the engine receive a version from the trainer, and compare its log-probs; see `load`.

        Raises `WeightTransferError` if the weights do not arrive.
        """
        self._sampler.load_process_group(published.trainer, version)
        if (expected := published.annotations.get(PROBE_TENSOR)) is not None:
            self._check(expected, version)

    def _check(self, expected: torch.Tensor, version: int) -> None:
        """Set the metric `engine/logprob_gap`, unless there is no check."""
        if self._max_gap is None:
            return
        request = SampleRequest(
            "probe", self._token_ids, SamplingParams(max_tokens=1), seed=0, prompt_logprobs=True
        )
        (completion,) = self._event_loop.run(self._sampler.sample([request]))
        assert completion.prompt_logprobs is not None
        self.metrics = _checked_gap(completion.prompt_logprobs, expected.numpy(), version, self._max_gap)


def probe_tokens(tokenizer: PreTrainedTokenizerBase, max_sequence_tokens: int) -> IntArray:
    """[L] Tokens of the probe that a separate trainer publishes the log-probs of; one more token can be sampled."""
    return _encode_probe(tokenizer, max_sequence_tokens - 1)


def _encode_probe(tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> IntArray:
    return np.array(tokenizer.encode(_PROBE_TEXT)[:max_tokens], dtype=np.int32)


def _split(
    weights: Iterable[tuple[str, torch.Tensor]], published: list[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights without the log-probs of the probe, which are appended to `published`."""
    for name, tensor in weights:
        if name == PROBE_TENSOR:
            published.append(tensor.cpu())
        else:
            yield name, tensor


def _checked_gap(found: FloatArray, expected: FloatArray, version: int, max_gap: float) -> dict[str, float]:
    """Metric `engine/logprob_gap`. Raises `InferenceError` above the maximum."""
    gap = float(np.abs(found - expected).mean())
    if not gap <= max_gap:
        raise InferenceError(
            f"After the load of version {version} of the weights, the log-probs of the inference engine differ "
            f"from the trainer's by {gap:.3g} nats on average over {len(found)} probe tokens "
            f"(rollout.engine.max_logprob_gap: {max_gap:g}). It samples from other weights than those that "
            "are trained, or rounds far more coarsely. Write `rollout.engine: native` for this model, or a "
            "larger limit if the data type or quantization explains the difference."
        )
    return {"engine/logprob_gap": gap}


def _experience(token_ids: IntArray, prompt_tokens: int) -> Experience:
    unknown: FloatArray = np.zeros(len(token_ids), dtype=np.float32)
    return Experience(
        id="probe",
        task_id="probe",
        group="probe",
        index=0,
        turn=0,
        token_ids=token_ids,
        loss_mask=np.arange(len(token_ids)) >= prompt_tokens,
        sampler_logprobs=unknown,
        policy_logprobs=None,
        reward=0.0,
        status="ok",
        temperature=1.0,
        versions=(0,),
    )

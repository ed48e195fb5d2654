"""Comparison of an inference engine's log-probs with the trainer's after each load of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strop.errors import InferenceError
from strop.protocols import InferenceEngine, TrainingEngine
from strop.types import Completion, Experience, FloatArray, IntArray, SampleRequest, SamplingParams
from strop.workers.event_loop_thread import EventLoopThread

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE_TEXT = "One and two make three, three and four make seven: what do"
_PROBE_TOKENS = 16


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
        encoded = self.tokenizer.encode(_PROBE_TEXT)[: self.max_sequence_tokens - tokens]
        prompt = np.array(encoded, dtype=np.int32)
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        request = SampleRequest("probe", prompt, sampling, seed=0)
        (completion,) = self.event_loop.run(self.engine.sample([request]))
        (expected,) = self.trainer.logprobs([_experience(prompt, completion)])
        gap = float(np.abs(completion.sampler_logprobs - expected[len(prompt) :]).mean())
        if not gap <= self.max_gap:
            raise InferenceError(
                f"After the load of version {version} of the weights, the log-probs of the inference engine differ "
                f"from the trainer's by {gap:.3g} nats on average over {tokens} probe tokens "
                f"(rollout.engine.max_logprob_gap: {self.max_gap:g}). It samples from other weights than those that "
                "are trained, or rounds far more coarsely. Write `rollout.engine: native` for this model, or a "
                "larger limit if the data type or quantization explains the difference."
            )
        return {"engine/logprob_gap": gap}


def _experience(prompt: IntArray, completion: Completion) -> Experience:
    token_ids = np.concatenate([prompt, completion.token_ids])
    unknown: FloatArray = np.zeros(len(token_ids), dtype=np.float32)
    return Experience(
        id="probe",
        task_id="probe",
        group="probe",
        index=0,
        turn=0,
        token_ids=token_ids,
        loss_mask=np.arange(len(token_ids)) >= len(prompt),
        sampler_logprobs=unknown,
        policy_logprobs=None,
        reward=0.0,
        status="ok",
        temperature=1.0,
        versions=(completion.version,),
    )

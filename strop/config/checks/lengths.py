"""Checks of token limits against each other: prompts, responses and sequences."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.schema.algorithm import OfflineAlgorithmConfig
from strop.config.schema.run import Run


def length_faults(run: Run) -> Iterator[str]:
    """Faults in token limits and in the buffer's capacity; each names its key."""
    data = run.data
    for where, sampling in (
        ("rollout.sampling", run.rollout.sampling),
        *((f"data.eval ({taskset.name}).sampling", taskset.sampling) for taskset in data.eval),
    ):
        if sampling.min_response_tokens >= data.max_response_tokens:
            yield (
                f"{where}.min_response_tokens ({sampling.min_response_tokens}) must be below "
                f"data.max_response_tokens ({data.max_response_tokens})"
            )
    penalty = None if isinstance(run.algorithm, OfflineAlgorithmConfig) else run.algorithm.overlong_penalty
    if penalty is not None and penalty.buffer_tokens > data.max_response_tokens:
        yield (
            f"algorithm.overlong_penalty.buffer_tokens ({penalty.buffer_tokens}) must not exceed "
            f"data.max_response_tokens ({data.max_response_tokens})"
        )
    capacity = getattr(run.buffer, "capacity_groups", None)
    if capacity is not None and capacity < run.trainer.tasks_per_step:
        yield (
            f"buffer.capacity_groups ({capacity}) is less than one step; write at least "
            f"trainer.tasks_per_step ({run.trainer.tasks_per_step})"
        )
    yield from _sequence(run)


def _sequence(run: Run) -> Iterator[str]:
    longest = run.rollout.max_sequence_tokens
    if longest is not None and longest <= run.data.max_prompt_tokens:
        yield (
            f"rollout.max_sequence_tokens ({longest}) leaves no tokens for a response after a prompt of "
            f"data.max_prompt_tokens ({run.data.max_prompt_tokens}); write a larger value"
        )

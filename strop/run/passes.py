"""Passes through the policy: batches of experiences, cut as the run file says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from strop.algorithms import table
from strop.config.schema import Run
from strop.data.pack import pack, unpack
from strop.protocols import TrainingEngine
from strop.training.learner import summed
from strop.types import Experience, Floats, GlobalCounts, MicroBatch, TokenOutputs


class Passes:
    """Packs experiences, and asks the training engine about them. Nothing is learned here."""

    def __init__(self, engine: TrainingEngine, run: Run) -> None:
        self._engine = engine
        self._trainer = run.trainer
        self._loss_fn = table.loss_fn(run.algorithm, max_response_tokens=run.data.max_response_tokens)

    @torch.no_grad()
    def measure(
        self, experiences: Sequence[Experience], reference: Sequence[Floats] | None
    ) -> dict[str, float]:
        """The loss and its metrics as they are, without learning from anything."""
        counts = counts_of(experiences)
        micro_batches = self.pack(experiences, [0.0] * len(experiences), None, reference)
        logprobs = self._engine.logprobs(micro_batches)
        results = [
            self._loss_fn(micro_batch, TokenOutputs(said), counts)
            for micro_batch, said in zip(micro_batches, logprobs, strict=True)
        ]
        return summed(
            {name: float(share) for name, share in {"loss": r.loss, **r.metrics}.items()} for r in results
        )

    def logprobs(
        self,
        experiences: Sequence[Experience],
        *,
        reference: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> list[Floats]:
        """[L] of each, without gradient; `check` is called between micro-batches."""
        micro_batches = self.pack(experiences, [0.0] * len(experiences), None, None)
        values = self._engine.logprobs(micro_batches, reference=reference, check=check)
        return unpack(micro_batches, values, experiences)

    def divergences(self, experiences: Sequence[Experience]) -> list[Floats]:
        """[L] of each: KL(policy || reference) over the whole vocabulary, without gradient."""
        micro_batches = self.pack(experiences, [0.0] * len(experiences), None, None)
        return unpack(micro_batches, self._engine.divergences(micro_batches), experiences)

    def pack(
        self,
        experiences: Sequence[Experience],
        advantages: Sequence[float | Floats],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
    ) -> list[MicroBatch]:
        """Micro-batches of the size that the run file says."""
        return pack(
            experiences,
            advantages,
            self._trainer.microbatch,
            share_prompts=self._engine.shares_prompts,
            device=self._engine.device,
            old_logprobs=old,
            ref_logprobs=reference,
        )


def counts_of(experiences: Sequence[Experience]) -> GlobalCounts:
    """What the losses of one update are divided by; an expert's answers beside rollouts are counted apart."""
    kinds = {experience.role for experience in experiences}
    mixed = "sft" in kinds and "rl" in kinds
    counted = [e for e in experiences if not (mixed and e.role == "sft")]
    tokens = sum(e.response_tokens for e in counted)
    return GlobalCounts(
        tokens=tokens,
        sequences=len(counted),
        expert_tokens=sum(e.response_tokens for e in experiences) - tokens,
        pairs=sum(e.role == "chosen" for e in experiences),
    )

"""The critic of a run: says values before a step's updates, and learns from the returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strop.algorithms.value_losses import ValueLoss, explained_variance
from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo
from strop.config.schema.critic import Critic as Section
from strop.data.pack import pack, unpack
from strop.errors import ModelError
from strop.models.load import load_tokenizer
from strop.protocols import CriticEngine, Snapshot
from strop.run.length import Length
from strop.run.scoring import targets_of
from strop.run.updates import learning_rate, plan_updates, shuffle_seed
from strop.training.table import Engines
from strop.types import Experience, ExperienceGroup, Floats, GlobalCounts, MicroBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FOLDER = "critic"
"""Where its state stands in a checkpoint."""


class Critic:
    """Drives a value engine through a step's updates."""

    def __init__(self, engine: CriticEngine, run: Run, section: Section, length: Length) -> None:
        trainer = run.trainer
        self._engine = engine
        self._section = section
        self._microbatch = section.microbatch or trainer.microbatch
        self._per_update = section.tasks_per_update or trainer.tasks_per_update or trainer.tasks_per_step
        self._passes = section.passes or trainer.passes
        self._seed = shuffle_seed(run) if trainer.shuffle_passes else None
        self._loss_fn = ValueLoss(section.value_clip)
        updates = -(-trainer.tasks_per_step // self._per_update) * self._passes
        # It learns from the first step on, and its updates are its own.
        self._length = replace(
            length, critic_steps=0, updates=length.steps * updates, updates_per_step=updates
        )

    def values(self, experiences: Sequence[Experience]) -> list[Floats]:
        """[L] of each: what it expects of the state before each target, 0 elsewhere."""
        micro_batches = self._pack(experiences, None, None)
        return unpack(micro_batches, self._engine.values(micro_batches), experiences)

    def learn(
        self,
        groups: Sequence[ExperienceGroup],
        values: Sequence[Floats],
        returns: Sequence[Floats],
        *,
        step: int,
    ) -> dict[str, float]:
        """One step's updates. `values` and `returns` [L] go by experience, in the groups' order."""
        experiences = [experience for group in groups for experience in group.experiences]
        said, earned = targets_of(values, experiences), targets_of(returns, experiences)
        batches = plan_updates(
            groups,
            per_update=self._per_update,
            passes=self._passes,
            shuffle_seed=None if self._seed is None else (self._seed, step),
        )
        first = (step - 1) * self._length.updates_per_step
        rows = []
        for number, batch in enumerate(batches):
            picked = [experiences[i] for i in batch]
            micro_batches = self._pack(picked, [values[i] for i in batch], [returns[i] for i in batch])
            rows.append(self._update(micro_batches, picked, step, first + number))
        metrics = {f"critic/{name}": float(np.mean([row[name] for row in rows])) for name in rows[0]}
        explained = explained_variance(said, earned)
        if explained is not None:
            metrics["critic/explained_variance"] = explained
        return metrics | {
            "critic/values": float(said.mean()),
            "critic/returns": float(earned.mean()),
        }

    def snapshot(self) -> Snapshot:
        """Its weights and its optimizer's state, for a checkpoint."""
        return self._engine.snapshot()

    def _update(
        self, micro_batches: Sequence[MicroBatch], picked: Sequence[Experience], step: int, update: int
    ) -> dict[str, float]:
        counts = GlobalCounts(tokens=sum(e.response_tokens for e in picked), sequences=len(picked))
        lr = learning_rate(
            self._section.optimizer, self._section.schedule, self._length, step=step, update=update
        )
        self._engine.set_lr(lr)
        metrics = {"lr": lr, **self._engine.forward_backward(micro_batches, self._loss_fn, counts)}
        metrics["grad_norm"] = self._engine.step()
        return metrics

    def _pack(
        self,
        experiences: Sequence[Experience],
        values: Sequence[Floats] | None,
        returns: Sequence[Floats] | None,
    ) -> list[MicroBatch]:
        return pack(
            experiences,
            [0.0] * len(experiences),
            self._microbatch,
            share_prompts=self._engine.shares_prompts,
            device=self._engine.device,
            values=values,
            returns=returns,
        )


def open_critic(
    run: Run,
    engines: Engines,
    tokenizer: PreTrainedTokenizerBase,
    length: Length,
    checkpoint: Path | None,
) -> Critic | None:
    """The critic that the algorithm wants, with a checkpoint's weights in it; None where it wants none.

    Raises ModelError where its model cannot be used, or reads other tokens than the policy's.
    """
    if not isinstance(run.algorithm, Ppo):
        return None
    section = run.algorithm.critic
    if section.model is not None:
        _check_vocabulary(section, tokenizer)
    engine = engines.critic(section)
    if checkpoint is not None:
        engine.load(checkpoint / FOLDER)
    return Critic(engine, run, section, length)


def _check_vocabulary(section: Section, tokenizer: PreTrainedTokenizerBase) -> None:
    assert section.model is not None
    try:
        own = load_tokenizer(section.model)
    except ModelError as error:
        raise ModelError(f"algorithm.critic: {error}") from error
    if own.get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            f"algorithm.critic.model: the critic reads the policy's tokens, and the tokenizer of "
            f"{section.model.tokenizer or section.model.path} has others ({len(own)} of them, the policy's "
            f"{len(tokenizer)}). Name a model of the policy's family; if its tokens are the same and only "
            "its tokenizer's files differ, name the policy's folder under algorithm.critic.model.tokenizer."
        )

"""The trainer: a step's experiences become new weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from strop.algorithms import table
from strop.algorithms.kl import divergence, mean_over_rollouts
from strop.algorithms.schedules import lr_at
from strop.config.schema import Run
from strop.data.pack import pack, unpack
from strop.run.length import Length
from strop.run.scoring import by_experience, score, targets_of
from strop.run.seeds import derive_seed
from strop.training.single import SingleEngine
from strop.types import Experience, ExperienceGroup, Floats, GlobalCounts, MicroBatch


@dataclass(frozen=True, slots=True)
class Trained:
    """What one step of training gave."""

    updates: int
    """Optimizer updates of this step."""
    metrics: dict[str, float]


class Trainer:
    """Computes advantages, and drives the training engine through a step's updates."""

    def __init__(self, engine: SingleEngine, run: Run, length: Length, kl_coef: float | None = None) -> None:
        """`kl_coef` is what the KL penalty in the reward had come to, where a run is resumed."""
        self._engine = engine
        self._run = run
        self._length = length
        self._kl = table.kl_controller(run.algorithm, kl_coef)
        self._loss_fn = table.loss_fn(run.algorithm, max_response_tokens=run.data.max_response_tokens)

    @property
    def kl_coef(self) -> float | None:
        """The coefficient of the KL penalty in the reward, for the checkpoint; None where there is none."""
        return None if self._kl is None else self._kl.coef

    def step(
        self,
        groups: Sequence[ExperienceGroup],
        *,
        step: int,
        updates_done: int,
        baselines: Mapping[str, float] | None = None,
    ) -> Trained:
        """Train on all groups of one step. Without any experience it does no update at all.

        `baselines` are the rewards of the tasks' greedy answers, by group, where the algorithm needs them.
        """
        experiences = [experience for group in groups for experience in group.experiences]
        if not experiences:
            return Trained(0, {})
        batches = self._updates(groups, step)[: self._length.updates - updates_done]
        started = time.perf_counter()
        reference = self._reference(experiences)
        old = self._old(experiences, batches)
        prepared = time.perf_counter()
        advantages, metrics = self._advantages(experiences, old, reference, baselines)
        rows = [
            self._update(
                experiences,
                advantages,
                batch,
                old if number else None,
                reference,
                step,
                updates_done + number,
            )
            for number, batch in enumerate(batches)
        ]
        metrics |= {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        metrics |= {
            "updates": float(len(rows)),
            "time/logprobs_seconds": prepared - started,
            "time/update_seconds": time.perf_counter() - prepared,
        }
        return Trained(len(rows), metrics)

    def _advantages(
        self,
        experiences: Sequence[Experience],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
        baselines: Mapping[str, float] | None,
    ) -> tuple[list[Floats], dict[str, float]]:
        """[L] of each experience, and what is measured on the way."""
        algorithm, metrics = self._run.algorithm, {}
        scored = score(experiences, baselines=baselines)
        if self._kl is not None and algorithm.kl_reward is not None:
            assert old is not None and reference is not None
            drawn, wanted = targets_of(old, experiences), targets_of(reference, experiences)
            kl = divergence(drawn, wanted, algorithm.kl_reward.estimator)
            scored = replace(scored, penalties=self._kl.coef * kl)
            metrics["kl_reward/kl"] = mean_over_rollouts(kl, scored.tokens)
            metrics["kl_reward/coef"] = self._kl.coef
            self._kl = self._kl.update(metrics["kl_reward/kl"], len(scored.rewards))
        limit = self._run.data.max_response_tokens
        values = table.advantages(algorithm, scored, max_response_tokens=limit)
        metrics["advantages/mean"] = float(values.mean())
        metrics["advantages/std"] = float(values.std(correction=0))
        return by_experience(values, experiences), metrics

    def _updates(self, groups: Sequence[ExperienceGroup], step: int) -> list[list[int]]:
        """Which experiences, by number, each update trains on, in order."""
        numbers: list[list[int]] = []
        count = 0
        for group in groups:
            numbers.append(list(range(count, count + len(group.experiences))))
            count += len(group.experiences)
        trainer = self._run.trainer
        per_update = trainer.tasks_per_update or trainer.tasks_per_step
        updates = []
        for repeat in range(trainer.passes):
            order = np.arange(len(groups))
            if trainer.shuffle_passes:
                key = derive_seed(self._run.seed, "pass", step, repeat)
                order = np.random.Generator(np.random.Philox(key)).permutation(len(groups))
            for start in range(0, len(groups), per_update):
                update = [n for i in order[start : start + per_update] for n in numbers[i]]
                if update:
                    updates.append(update)
        return updates

    def _reference(self, experiences: Sequence[Experience]) -> list[Floats] | None:
        if not table.needs_reference(self._run.algorithm):
            return None
        return self._logprobs(experiences, range(len(experiences)), reference=True)

    def _old(
        self, experiences: Sequence[Experience], updates: Sequence[Sequence[int]]
    ) -> list[Floats] | None:
        """The log-probs at the start of the step, for what is trained on after the first update;
        in the first one they are the current ones, and no pass is spent on them, unless the KL
        penalty in the reward wants them all."""
        chosen = sorted({number for update in updates[1:] for number in update})
        if self._kl is not None:
            chosen = list(range(len(experiences)))
        return self._logprobs(experiences, chosen, reference=False) if chosen else None

    def _logprobs(
        self, experiences: Sequence[Experience], chosen: Sequence[int], *, reference: bool
    ) -> list[Floats]:
        """[L] for each chosen experience, and zeros for the others."""
        picked = [experiences[i] for i in chosen]
        micro_batches = self._pack(picked, [0.0] * len(picked), None, None)
        values = [self._engine.logprobs(batch, reference=reference) for batch in micro_batches]
        found = dict(zip(chosen, unpack(micro_batches, values, picked), strict=True))
        return [found.get(i, np.zeros(len(e.token_ids), np.float32)) for i, e in enumerate(experiences)]

    def _update(
        self,
        experiences: Sequence[Experience],
        advantages: Sequence[Floats],
        batch: Sequence[int],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
        step: int,
        update: int,
    ) -> dict[str, float]:
        picked = [experiences[i] for i in batch]
        micro_batches = self._pack(
            picked,
            [advantages[i] for i in batch],
            [old[i] for i in batch] if old else None,
            [reference[i] for i in batch] if reference else None,
        )
        counts = GlobalCounts(tokens=sum(e.response_tokens for e in picked), sequences=len(picked))
        entropy = table.needs_entropy_gradient(self._run.algorithm)
        metrics: dict[str, float] = {}
        for micro_batch in micro_batches:
            shares = self._engine.forward_backward(micro_batch, self._loss_fn, counts, entropy=entropy)
            for name, share in shares.items():
                metrics[name] = metrics.get(name, 0.0) + share
        metrics["lr"] = self._lr(step, update)
        self._engine.set_lr(metrics["lr"])
        metrics["grad_norm"] = self._engine.step()
        return metrics

    def _pack(
        self,
        experiences: Sequence[Experience],
        advantages: Sequence[float | Floats],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
    ) -> list[MicroBatch]:
        return pack(
            experiences,
            advantages,
            self._run.trainer.microbatch,
            share_prompts=self._engine.shares_prompts,
            device=self._engine.device,
            old_logprobs=old,
            ref_logprobs=reference,
        )

    def _lr(self, step: int, update: int) -> float:
        """The rate of one update: `step` counts from 1, `update` from 0."""
        trainer, length = self._run.trainer, self._length
        schedule = trainer.schedule
        by_step = schedule.counts == "steps"
        return lr_at(
            schedule,
            trainer.optimizer.lr,
            position=step - 1 if by_step else update,
            total=length.steps if by_step else length.updates,
            warmup=length.in_unit(schedule.warmup, schedule.counts),
        )

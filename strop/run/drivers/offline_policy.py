"""The model of a run on given responses, and its evaluation by loss and by the reward of sampled completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strop.algorithms.losses.reward_modeling import held_out_pairs, held_out_scores, held_out_steps
from strop.algorithms.reference_point import ReferencePoint
from strop.algorithms.registry import LossSpec, make_algorithm
from strop.config.schema.preference import RewardModelingConfig
from strop.config.schema.run import Run
from strop.data.offline_dataset import OfflineDataset, is_offline_taskset, load_offline_dataset
from strop.protocols import TrainingEngine
from strop.python_rewards import PythonRewards
from strop.run.check.refusals import is_evaluated_by_reward
from strop.run.distributed.placement import open_rank_placement
from strop.run.drivers.evaluation import Evaluation, evaluate
from strop.run.optimize.logprobs import ReferenceLogprobs, reference_logprobs
from strop.run.prompt_images import load_prompt_images
from strop.run.rollout.inference_engines import (
    ColocatedPolicy,
    make_colocated_policy,
    open_colocated_engine,
    restore_engine,
)
from strop.run.rollout.rollout_services import open_rollout_services, reward_sources
from strop.run.rollout.tasks import EvalTasksets, load_eval_tasks
from strop.run.state.run_state import RunState
from strop.run.tokenizer import load_policy_tokens
from strop.runs.folder import RunFolder
from strop.runs.held_out_scores import HeldOutScores
from strop.training.backend import open_training_engines
from strop.types import Experience, FloatArray, GlobalCounts, RolloutGroup, TrainingBatch
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class HeldOutData:
    """Eval tasksets of a run on given responses."""

    answers: tuple[OfflineDataset, ...]
    """Tasksets with given responses, evaluated by their loss."""
    sampled: EvalTasksets
    """Tasksets evaluated by the reward of sampled completions; empty without a reward."""


@dataclass(frozen=True, slots=True)
class OfflinePolicy:
    """The model of a run on given responses."""

    engine: TrainingEngine
    loss: LossSpec
    state: RunState
    """State that the weights were restored from."""
    reference: ReferenceLogprobs | None
    """Reference log-probs of all rows, for DPO, KTO and BCO; None too where the reference changes."""
    reference_changes: bool
    """Whether the reference's log-probs are computed at each use, because its weights change."""
    reference_point: ReferencePoint | None
    """Reference point of labeled responses; None for an algorithm without labels."""
    policy: ColocatedPolicy | None
    """Samples from the model; None where no taskset is evaluated by a reward."""

    def reference_of(self, experiences: Sequence[Experience]) -> list[FloatArray] | None:
        """[L] Reference log-probs of each experience; None where the algorithm needs none."""
        if self.reference_changes:
            return self.engine.token_values(experiences, "reference_logprobs")
        if self.reference is None:
            return None
        return [self.reference[experience.id] for experience in experiences]

    def evaluate(self, run: Run, held_out: HeldOutData, *, step: int) -> Evaluation:
        """Loss (and the margin and accuracy of preferences) on held-out rows, and the reward of sampled completions."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        groups: Mapping[str, list[RolloutGroup]] = {}
        scores: list[HeldOutScores] = []
        for answers in held_out.answers:
            experiences = [experience for group in answers.all_groups() for experience in group.experiences]
            if (section := run.algorithm.reward_model) is not None:
                found, of_rows = measure_rewards(section, self.engine, experiences)
                scores.append(HeldOutScores(answers.name, step, *of_rows))
                metrics |= {f"eval/{answers.name}/{name}": value for name, value in found.items()}
                continue
            batch = TrainingBatch(experiences, ref_logprobs=self.reference_of(experiences))
            counts = GlobalCounts.of(experiences)
            if self.reference_point is not None:
                counts = replace(counts, reference_point=self.reference_point.of_evaluation(experiences))
            measured = self.engine.evaluate_loss(batch, self.loss, counts)
            metrics |= {
                f"eval/{answers.name}/{name}": measured[name] for name in _EVAL_METRICS if name in measured
            }
        if self.policy is not None:
            self.policy.publisher.publish(step)
            sampled = evaluate(run, self.policy.explorer, held_out.sampled, step=step)
            metrics, groups = metrics | sampled.metrics, sampled.groups
        if metrics:
            metrics["time/evaluate_seconds"] = time.perf_counter() - started
        return Evaluation(metrics, groups, scores)


def measure_rewards(
    config: RewardModelingConfig, engine: TrainingEngine, experiences: Sequence[Experience]
) -> tuple[dict[str, float], tuple[Mapping[str, Sequence[float]], Sequence[float]]]:
    """Measures of a reward model on held-out rows: loss, accuracy and calibration on pairs or steps, or errors of
    scores; with the scores and probabilities of `HeldOutScores`."""
    if config.loss == "cross_entropy":
        ends = [
            (scores[e.turn_ends], e.turn_rewards)
            for scores, e in zip(engine.token_values(experiences, "scores"), experiences, strict=True)
        ]
        found, labels = (np.concatenate(each, dtype=np.float32) for each in zip(*ends, strict=True))
        kinds = {"correct": found[labels > 0.5].tolist(), "wrong": found[labels <= 0.5].tolist()}
        of_labels = _sigmoid(np.where(labels > 0.5, found, -found))
        return held_out_steps(found, labels), (kinds, of_labels)
    every = engine.token_values(experiences, "scores")
    rewards = np.array([scores.sum() for scores in every])  # one score, and zeros
    wanted = np.array([experience.reward for experience in experiences], dtype=np.float32)
    if config.loss == "squared_error":
        return held_out_scores(rewards, wanted), ({"scored": rewards.tolist()}, ())
    chosen, rejected = rewards[::2], rewards[1::2]
    metrics = held_out_pairs(config, chosen, rejected, wanted[::2] - wanted[1::2])
    kinds = {"chosen": chosen.tolist(), "rejected": rejected.tolist()}
    return metrics, (kinds, _sigmoid(chosen - rejected))


def _sigmoid(values: FloatArray) -> list[float]:
    found: list[float] = (0.5 * (1 + np.tanh(values / 2))).tolist()
    return found


_EVAL_METRICS = ("loss", "pairs/margin", "pairs/accuracy", "labels/margin", "labels/accuracy")
"""Metrics of the loss that are reported for held-out rows."""


def load_held_out(run: Run, tokenizer: PreTrainedTokenizerBase, reward: PythonRewards | None) -> HeldOutData:
    """Read and check the eval tasksets."""
    images = load_prompt_images(run, tokenizer) if run.data.eval else None
    tokens = load_policy_tokens(run, tokenizer)
    answers = tuple(
        load_offline_dataset(
            section,
            run.data,
            tokenizer,
            name=section.name,
            seed=run.seed,
            shuffle=False,
            images=images,
            tokens=tokens,
            unpaired=run.algorithm.rows == "labels",
            reward_model=run.algorithm.reward_model,
        )
        for section in run.data.eval
        if is_offline_taskset(section)
    )
    sampled = [taskset for taskset in run.data.eval if is_evaluated_by_reward(run, taskset, reward)]
    return HeldOutData(answers, load_eval_tasks(run, tokenizer, sampled))


@contextmanager
def open_offline_policy(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: PythonRewards | None,
    checkpoint: Path | None,
    held_out: HeldOutData,
    stop: StopSignal,
    train: OfflineDataset | None = None,
) -> Iterator[OfflinePolicy]:
    """Load the model, compute the reference log-probs of an algorithm that needs them, and load a checkpoint's weights.

    The reference log-probs come first because the reference is the initial model. A request to `stop`
    interrupts them with `Interrupted`.
    """
    with ExitStack() as stack:
        placement = stack.enter_context(open_rank_placement(run))
        engine = stack.enter_context(open_training_engines(run, placement)).policy()
        reference = None
        changes = run.algorithm.changed_reference is not None
        if run.algorithm.needs_initial_logprobs:
            datasets = held_out.answers if train is None else (train, *held_out.answers)
            cache = RunFolder.of(run).path / "reference"
            reference = reference_logprobs(datasets, engine, run.model, cache, stop.check)
        state = restore_engine(engine, checkpoint)
        longest = run.data.max_prompt_tokens + run.data.max_response_tokens
        point = make_algorithm(run.algorithm).reference_point(engine, longest)
        if point is not None:
            point.load_state(state.mean_log_ratio)
        policy = None
        if held_out.sampled:
            services = stack.enter_context(open_rollout_services(run, reward_sources(run, reward)))
            sampler = stack.enter_context(open_colocated_engine(run, engine, tokenizer))
            policy = make_colocated_policy(run, engine, state, sampler, tokenizer, services, stop)
        yield OfflinePolicy(engine, LossSpec.of(run), state, reference, changes, point, policy)

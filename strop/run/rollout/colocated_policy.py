"""The policy in one process: its training engine, and the explorer that samples from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.protocols import InferenceEngine, TrainingEngine
from strop.run.rollout.explorer import Explorer
from strop.run.rollout.inference_engines import engine_notes, max_logprob_gap, open_colocated_engine
from strop.run.rollout.load_check import LoadCheck
from strop.run.rollout.rollout_metrics import engine_metrics
from strop.run.rollout.rollout_services import RewardSource, RolloutServices, open_rollout_services
from strop.run.rollout.workflow_runners import make_workflow_runners
from strop.run.state.run_state import RunState
from strop.sync.local import AdapterLoad, InPlaceLoad, LocalSynchronizer, TensorLoad
from strop.training.backends.registry import TrainingBackend
from strop.workers.event_loop_thread import EventLoopThread
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class ColocatedPolicy:
    """The policy in one process: `engine` trains it, `explorer` samples from it."""

    engine: TrainingEngine
    explorer: Explorer
    sampler: InferenceEngine
    """Engine that the explorer samples from."""
    synchronizer: LocalSynchronizer
    state: RunState
    """State of the run whose weights the policy has."""
    stop: StopSignal
    """Stop requests, which end every wait."""
    notes: tuple[str, ...]
    """Notes for the console: how sampling and training compute."""


@contextmanager
def open_colocated_policy(
    run: Run,
    engines: TrainingBackend,
    tokenizer: PreTrainedTokenizerBase,
    rewards: Mapping[str, RewardSource],
    checkpoint: Path | None = None,
    stop: StopSignal | None = None,
) -> Iterator[ColocatedPolicy]:
    """Open the rewards and the workflow, load the model and a checkpoint's weights, and publish them.

    Inside the context, SIGINT, SIGTERM and a request to `stop` raise `Interrupted` at the next safe point.
    """
    with stop or StopSignal() as stop, open_rollout_services(run, rewards) as helpers:
        engine = engines.policy()
        state = restore_engine(engine, checkpoint)
        with open_colocated_engine(run, engine, tokenizer) as sampler:
            yield make_colocated_policy(run, engine, state, sampler, tokenizer, helpers, stop)


def restore_engine(engine: TrainingEngine, checkpoint: Path | None) -> RunState:
    """Load a checkpoint into an engine; without a checkpoint, return the initial state."""
    if checkpoint is None:
        return RunState()
    engine.load(checkpoint)
    return RunState.load(checkpoint)


def make_colocated_policy(
    run: Run,
    engine: TrainingEngine,
    state: RunState,
    sampler: InferenceEngine,
    tokenizer: PreTrainedTokenizerBase,
    helpers: RolloutServices,
    stop: StopSignal,
) -> ColocatedPolicy:
    """An explorer on the sampler, with the engine's weights published to it."""
    runners = make_workflow_runners(run, sampler, tokenizer, helpers.services)
    policy = ColocatedPolicy(
        engine=engine,
        explorer=Explorer(runners, helpers.rewards, helpers.event_loop, stop, seed=run.seed),
        sampler=sampler,
        synchronizer=_synchronizer(run, engine, sampler, tokenizer, helpers.event_loop),
        state=state,
        stop=stop,
        notes=_notes(run, engine, sampler),
    )
    policy.synchronizer.publish(state.step)
    return policy


def _synchronizer(
    run: Run,
    engine: TrainingEngine,
    sampler: InferenceEngine,
    tokenizer: PreTrainedTokenizerBase,
    event_loop: EventLoopThread,
) -> LocalSynchronizer:
    """The synchronizer, with a check of each load into an engine that converts the weights."""
    max_gap = max_logprob_gap(run)
    if max_gap is None or not sampler.capabilities.converts_weights:
        in_place = sampler.capabilities.adapter_in_place
        load = InPlaceLoad(sampler) if in_place else TensorLoad(engine, sampler)
        return LocalSynchronizer(load, lambda version: engine_metrics(sampler))
    check = LoadCheck(engine, sampler, event_loop, tokenizer, run.max_sequence_tokens, max_gap)

    def report(version: int) -> Mapping[str, float]:
        return engine_metrics(sampler) | check(version)

    if run.model.lora is not None and sampler.capabilities.adapters:
        return LocalSynchronizer(AdapterLoad(engine, sampler), report)
    return LocalSynchronizer(TensorLoad(engine, sampler), report)


def _notes(run: Run, engine: TrainingEngine, sampler: InferenceEngine) -> tuple[str, ...]:
    shared = (
        "a group's shared prompt is encoded once"
        if engine.supports_shared_prompts
        else f"each response's prompt is encoded separately ({engine.shared_prompts_obstacle})"
    )
    training = f"training: {engine.description}; {shared}"
    return (*engine_notes(run), f"sampling: {sampler.describe()}", training)

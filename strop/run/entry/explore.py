"""Exploration in this process for a separate trainer: samples, scores and puts groups into the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from strop.buffer.factory import clear_buffer, open_buffer
from strop.config.load.loader import LoadedRun
from strop.config.preflight import require_reward
from strop.config.save import save_resolved
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.buffer import FixedStyleConfig, MemorySyncConfig
from strop.config.schema.run import Run
from strop.errors import StoreError
from strop.inference.interruptible_sampler import InterruptibleSampler
from strop.protocols import Buffer, InferenceEngine
from strop.python_rewards import PythonRewards
from strop.rewards.scorable_tasks import require_scorable_tasks
from strop.run.distributed.peers import describe_rendezvous, rendezvous
from strop.run.distributed.placement import local_address
from strop.run.drivers.explorer_loop import (
    ContinuousExplorer,
    ExplorerProgress,
    StepwiseExplorer,
    TrainerEnded,
    explore_to_end,
)
from strop.run.entry.prepare_data import prepare_data
from strop.run.recording.recorder import Recorder
from strop.run.rollout.collector import Collector, GroupSettings
from strop.run.rollout.explorer import Explorer
from strop.run.rollout.inference_engines import engine_notes, max_logprob_gap, open_separate_engine
from strop.run.rollout.load_check import ProbedLoader, probe_tokens
from strop.run.rollout.rollout_metrics import engine_metrics
from strop.run.rollout.rollout_services import open_rollout_services, reward_sources
from strop.run.rollout.tasks import TrainTaskSource, load_tasks
from strop.run.state.horizon import compute_horizon
from strop.run.state.identity import run_identity, save_identity
from strop.run.state.resume import StartPoint, find_start
from strop.run.state.run_state import ExplorerState, RunState
from strop.run.tokenizer import load_run_tokenizer
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.sync.factory import CrossProcessSync, clear_versions, open_weight_receiver
from strop.sync.subscribe import Subscriber
from strop.sync.transport import WeightReceiver
from strop.workers.cleanup import closing
from strop.workers.memory import startup_objects_frozen
from strop.workers.signals import StopSignal
from strop.workers.threads import EventLoopThread

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

EXPLORER_MEMBER = "explorer-0"
"""Name under which the explorer registers in the buffer."""


def explore(
    loaded: LoadedRun, reward: PythonRewards | None = None, stop: StopSignal | None = None
) -> ExplorerState:
    """Explore to the end of the run, or resume an earlier start that was stopped or killed.

    Raises `Interrupted` after SIGINT, SIGTERM or a request to `stop`; the state is saved.
    """
    run = loaded.run
    stop = stop or StopSignal()
    algorithm, section = run.rollout_algorithm, run.synchronizer
    assert not isinstance(section, MemorySyncConfig)
    require_reward(run, reward)
    require_scorable_tasks(run, reward)
    folder = RunFolder.of(run)
    own = folder.explorer
    identity = None if run.is_launched_in_roles else run_identity(run, reward)  # that of roles: `launch`
    has_explored = (explored := ExplorerState.load(own)) is not None and explored.groups_written > 0
    find_start(
        run, own, identity if has_explored else None
    )  # only for its checks: an explorer has no checkpoints
    own.create()
    if not run.is_launched_in_roles:
        prepare_data(run, reward, stop)
    tokenizer = load_run_tokenizer(run)
    tasks = load_tasks(run, tokenizer)
    horizon = compute_horizon(run, tasks.train.steps_per_epoch(run.tasks_sampled_per_step))
    with (
        rendezvous(run, tasks.train.fingerprint, "explorer"),
        stop,
        open_rollout_services(run, reward_sources(run, reward, horizon)) as services,
        open_separate_engine(run, tokenizer) as sampler,
    ):
        interruptible = _interruptible(section, sampler, services.event_loop, tokenizer, stop)
        probe = probe_tokens(tokenizer, run.max_sequence_tokens)
        loader = ProbedLoader(interruptible, services.event_loop, probe, max_logprob_gap(run))
        explorer = Explorer.of(run, interruptible, tokenizer, services, stop)
        state = ExplorerState.load(own) or _start_new_run(run, section, folder)
        with reporting_write_errors(own.path):
            save_resolved(run, own.run_file)
            if identity is not None:
                save_identity(identity, own.path)
        notes = (
            *tasks.notes(),
            *describe_rendezvous(run),
            *engine_notes(run),
            f"sampling: {sampler.describe()}",
        )
        start = StartPoint(RunState(step=state.step), None, notes)
        with (
            _open_exchange(run, section, folder, sampler.device, stop, horizon.steps) as (receiver, buffer),
            Recorder(own, loaded, horizon, start, decode=tokenizer.decode) as recorder,
        ):
            _require_written_groups(buffer, state, own)
            subscriber = Subscriber(
                loader,
                section.style,
                receiver,
                timeout_seconds=section.timeout_seconds,
                check=stop.check,
                warmup_steps=run.trainer.warmup_steps,
            )
            progress = ExplorerProgress(
                run,
                explorer,
                tasks.eval,
                state,
                horizon,
                own,
                recorder,
                lambda: engine_metrics(sampler) | loader.metrics,
            )
            with startup_objects_frozen():
                return explore_to_end(
                    progress,
                    _explorer_loop(run, algorithm, progress, explorer, tasks.train, buffer, subscriber),
                    buffer,
                    subscriber,
                    last=horizon.steps,
                    evaluates=bool(tasks.eval) and run.evaluate.at_end,
                    warmup_steps=run.trainer.warmup_steps,
                )


def _interruptible(
    section: CrossProcessSync,
    sampler: InferenceEngine,
    event_loop: EventLoopThread,
    tokenizer: PreTrainedTokenizerBase,
    stop: StopSignal,
) -> InterruptibleSampler:
    """The sampler whose requests a load of weights interrupts as the synchronizer's style says."""
    return InterruptibleSampler(
        sampler,
        event_loop,
        tokenizer,
        "keep" if isinstance(section.style, FixedStyleConfig) else section.style.pause_mode,
        timeout_seconds=section.timeout_seconds,
        check=stop.check,
    )


@contextmanager
def _open_exchange(
    run: Run, section: CrossProcessSync, folder: RunFolder, device: torch.device, stop: StopSignal, last: int
) -> Iterator[tuple[WeightReceiver, Buffer]]:
    """Open what the explorer shares with the trainer: the source of weights, and the buffer, whose waits end with the
    trainer."""
    host = local_address(run)
    with closing(
        open_weight_receiver(section, folder.path, host=host, device=device, check=stop.check)
    ) as receiver:
        check = partial(_check_stop_and_trainer, stop, receiver, last)
        with closing(
            open_buffer(run.buffer, folder.path, role="writer", member_name=EXPLORER_MEMBER, check=check)
        ) as buffer:
            yield receiver, buffer


def _explorer_loop(
    run: Run,
    algorithm: RolloutAlgorithmConfig,
    progress: ExplorerProgress,
    explorer: Explorer,
    tasks: TrainTaskSource,
    buffer: Buffer,
    subscriber: Subscriber,
) -> StepwiseExplorer | ContinuousExplorer:
    """The loop of the synchronizer's style."""
    section = run.synchronizer
    if not isinstance(section, MemorySyncConfig) and isinstance(section.style, FixedStyleConfig):
        return StepwiseExplorer(
            progress,
            Collector(run, algorithm, explorer, tasks),
            tasks,
            buffer,
            subscriber,
            tasks_per_step=run.trainer.tasks_per_step,
            warmup_steps=run.trainer.warmup_steps,
        )
    return ContinuousExplorer(
        progress,
        GroupSettings.of(run, algorithm, explorer),
        explorer,
        tasks,
        buffer,
        subscriber,
        warmup_steps=run.trainer.warmup_steps,
    )


def _check_stop_and_trainer(stop: StopSignal, receiver: WeightReceiver, last: int) -> None:
    stop.check()
    if receiver.final_version() >= last:
        raise TrainerEnded


def _start_new_run(run: Run, section: CrossProcessSync, folder: RunFolder) -> ExplorerState:
    """Empty the buffer and delete the published weights of an older run."""
    clear_versions(section, folder.path)
    with closing(open_buffer(run.buffer, folder.path, role="writer", member_name=EXPLORER_MEMBER)) as buffer:
        used = _is_used(buffer)
    if used:
        clear_buffer(run.buffer, folder.path, member_name=EXPLORER_MEMBER)
    state = ExplorerState()
    state.save(folder.explorer)
    return state


def _require_written_groups(buffer: Buffer, state: ExplorerState, folder: RunFolder) -> None:
    """Raise `StoreError` if the buffer lacks groups that the explorer has written."""
    counts = buffer.counts()
    kept = counts.queued + counts.leased + counts.done + counts.evicted
    if kept < state.groups_written:
        raise StoreError(
            f"The buffer lacks {state.groups_written - kept} of the {state.groups_written} groups that the explorer of "
            f"{folder.path} has written. Restore its files or rows from a backup, or write `resume: never` to archive "
            "the folder and start from the beginning."
        )


def _is_used(buffer: Buffer) -> bool:
    counts = buffer.counts()
    return bool(counts.queued or counts.leased or counts.done)

"""Training in this process, from a loaded run file to the exported model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from strop.algorithms.custom import check_custom_functions
from strop.config.checks.advice import unusual_values
from strop.config.load.loader import LoadedRun
from strop.config.load.preflight import require_reward
from strop.config.plan.bfloat16 import slow_bfloat16
from strop.config.plan.table import machine_of
from strop.config.save import save_resolved
from strop.config.schema import Run
from strop.config.schema.algorithm import CustomConfig, OfflineAlgorithmConfig
from strop.errors import Interrupted
from strop.python_rewards import PythonRewards
from strop.rewards.scorable_tasks import require_scorable_tasks
from strop.run.check.refusals import require_eval_data
from strop.run.drivers.callbacks import CallbackList
from strop.run.drivers.train_loop import TrainLoop, TrainSetup
from strop.run.entry.prepare_data import prepare_data
from strop.run.entry.train_setup import (
    open_distributed_setup,
    open_offline_setup,
    open_rollout_setup,
)
from strop.run.recording.recorder import Recorder
from strop.run.state.best_checkpoint import BestCheckpointRule, best_checkpoint_folder
from strop.run.state.checkpoint_manager import CheckpointManager, ExportModel
from strop.run.state.checkpoint_mirror import CheckpointMirror
from strop.run.state.early_stop import EarlyStopRule
from strop.run.state.identity import run_identity, save_identity
from strop.run.state.resume import StartPoint, find_start
from strop.run.state.run_state import RunState
from strop.run.template_notes import template_notes
from strop.run.tokenizer import load_policy_tokens, load_run_tokenizer
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.training_examples import write_training_examples
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a training."""

    state: RunState
    model_step: int
    """Step of the exported weights: the last step, or under `checkpoint.best` the best one."""
    stopped: bool = False
    """Whether `StopSignal.request_stop` ended the training early."""


def train(
    loaded: LoadedRun,
    reward: PythonRewards | None = None,
    *,
    stop: StopSignal | None = None,
    callbacks: Sequence[Any] = (),
) -> TrainResult:
    """Train to the end, or until a stop is requested, and export the model.

    Faults that can be found without the model are found before it is loaded. Raises `Interrupted` after a
    signal; the state is saved and no model is exported.
    """
    run = loaded.run
    stop = stop or StopSignal()
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        require_eval_data(run, reward)
        require_scorable_tasks(run, reward)
    elif not run.is_distributed:
        require_reward(run, reward)
        require_scorable_tasks(run, reward)
    if isinstance(run.algorithm, CustomConfig):
        check_custom_functions(run.algorithm)
    folder = RunFolder.of(run)
    identity = None if run.is_launched_in_roles else run_identity(run, reward)  # that of roles: `launch`
    start = find_start(run, folder, identity)
    folder.create()
    if not run.is_launched_in_roles:
        prepare_data(run, reward, stop)
    tokenizer = load_run_tokenizer(run)
    with _open_setup(run, tokenizer, reward, start, folder, stop) as setup:
        with reporting_write_errors(folder.path):
            save_resolved(run, folder.run_file)
            if identity is not None:
                save_identity(identity, folder.path)
            if setup.examples:
                write_training_examples(folder.training_examples, setup.examples)
        export = partial(setup.engine.export, add_files=tokenizer.save_pretrained)
        templates = template_notes(run, tokenizer, load_policy_tokens(run, tokenizer))
        advice = (*templates, *unusual_values(run), *slow_bfloat16(run, machine_of(run)))
        notes = (*start.notes, *setup.notes, *advice)
        stopped = False
        try:
            with Recorder(
                folder, loaded, setup.horizon, replace(start, notes=notes), decode=tokenizer.decode
            ) as recorder:
                loop = _make_loop(run, setup, folder, export, recorder, CallbackList(callbacks))
                state = loop.run()
                model_step = _export_best(state, setup, folder, export)
        except Interrupted:
            if not stop.requested_by_code:
                raise
            state, stopped = loop.state, True
            model_step = _export_best(state, setup, folder, export)
    return TrainResult(state, model_step, stopped)


def _open_setup(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: PythonRewards | None,
    start: StartPoint,
    folder: RunFolder,
    stop: StopSignal,
) -> AbstractContextManager[TrainSetup]:
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return open_offline_setup(run, tokenizer, reward, start, stop)
    if run.is_distributed:
        return open_distributed_setup(run, tokenizer, start, folder, stop)
    return open_rollout_setup(run, tokenizer, reward, start, folder, stop)


def _make_loop(
    run: Run,
    setup: TrainSetup,
    folder: RunFolder,
    export: ExportModel,
    recorder: Recorder,
    callbacks: CallbackList,
) -> TrainLoop:
    checkpoints = CheckpointManager(
        run,
        folder,
        setup.snapshot,
        mirror=CheckpointMirror.of(run),
        export=export if run.checkpoint.export else None,
        saved=setup.state,
    )
    return TrainLoop(
        setup,
        evaluate=run.evaluate,
        record=run.record,
        best=BestCheckpointRule.of(run),
        early_stop=EarlyStopRule.of(run),
        checkpoint_every=run.checkpoint.every,
        checkpoints=checkpoints,
        recorder=recorder,
        callbacks=callbacks,
    )


def _export_best(state: RunState, setup: TrainSetup, folder: RunFolder, export: ExportModel) -> int:
    """Export the last step's weights, or under `checkpoint.best` the best step's; returns that step."""
    best = state.best
    if best is not None and best.step != state.step:
        setup.engine.load(best_checkpoint_folder(best, folder.checkpoints))
    export(folder.model)
    return best.step if best else state.step

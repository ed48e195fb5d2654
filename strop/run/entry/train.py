"""Training in this process, from a loaded run file to the exported model.

A setup composes a batch source, updaters, a publisher and an evaluation: for own rollouts, for offline data, or for a
separate explorer. Inside its context, SIGINT, SIGTERM and a request to `stop` raise `Interrupted` between two updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from strop.algorithms.registry import LossSpec, make_algorithm
from strop.buffer.factory import clear_buffer, open_buffer
from strop.config.checks.run import unusual_values
from strop.config.load.loader import LoadedRun
from strop.config.preflight import require_reward
from strop.config.save import save_resolved
from strop.config.schema.algorithm import (
    RolloutAlgorithmConfig,
    SftConfig,
)
from strop.config.schema.buffer import MemorySyncConfig
from strop.config.schema.data import ColumnOrderConfig
from strop.config.schema.run import Run
from strop.config.schema.trainer import WarmupSelectionConfig
from strop.data.mixture import run_mixture_order
from strop.data.offline_dataset import load_offline_dataset, mixed_dataset
from strop.errors import Interrupted
from strop.plan.placement import machine_of
from strop.plan.request import slow_bfloat16
from strop.protocols import EngineSnapshot, TrainingEngine
from strop.python_rewards import PythonRewards
from strop.rewards.scorable_tasks import require_scorable_tasks
from strop.run.check.refusals import require_eval_data, require_tasks_taken
from strop.run.distributed.peers import describe_rendezvous, rendezvous
from strop.run.distributed.placement import local_address, open_rank_placement
from strop.run.drivers.batch_source import (
    BatchSource,
    OfflineSource,
    RolloutSource,
    WarmUpSource,
    open_buffer_source,
)
from strop.run.drivers.callbacks import CallbackList
from strop.run.drivers.evaluation import evaluate
from strop.run.drivers.offline_policy import load_held_out, open_offline_policy
from strop.run.drivers.train_loop import (
    TrainLoop,
    TrainPhase,
    TrainSetup,
)
from strop.run.entry.prepare_data import prepare_data
from strop.run.optimize.logprobs import check_vocabularies, require_teachers
from strop.run.optimize.minibatches import ExpertData
from strop.run.optimize.offline_updater import OfflineUpdater
from strop.run.optimize.policy_optimizer import LrSchedule, PolicyOptimizer
from strop.run.optimize.rollout_updater import RolloutUpdater
from strop.run.optimize.second_models import SecondModels, open_second_models
from strop.run.prepared_data import data_notes, train_section
from strop.run.prompt_images import load_prompt_images
from strop.run.recording.recorder import Recorder, training_examples
from strop.run.rollout.collector import Collector
from strop.run.rollout.inference_engines import max_logprob_gap, open_colocated_policy, restore_engine
from strop.run.rollout.load_check import ProbedWeights, probe_tokens
from strop.run.rollout.rollout_services import reward_sources
from strop.run.rollout.tasks import RunTasks, load_tasks
from strop.run.state.checkpoint_manager import (
    CheckpointManager,
    CompositeSnapshot,
    ExportModel,
    saves_engines_in_parallel,
)
from strop.run.state.checkpoint_mirror import CheckpointMirror
from strop.run.state.horizon import Horizon, compute_horizon
from strop.run.state.identity import run_identity, save_identity
from strop.run.state.resume import StartPoint, find_start
from strop.run.state.run_state import ExplorerState, RunState
from strop.run.state.tracked_metric import BestCheckpointRule, EarlyStopRule, best_checkpoint_folder
from strop.run.tokenizer import load_policy_tokens, load_run_tokenizer, template_notes
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.training_examples import write_training_examples
from strop.sync.factory import SYNC_FOLDER, open_weight_sender
from strop.sync.publish import RemotePublisher, WeightSource
from strop.training.backend import open_training_engines
from strop.training.device import find_device
from strop.workers.cleanup import closing
from strop.workers.memory import startup_objects_frozen
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_EXAMPLES = 3
"""Number of rows of SFT and DPO that are recorded for the report."""
TRAINER_MEMBER = "trainer"
"""Name under which the trainer of a distributed run registers in the buffer."""


@contextmanager
def open_rollout_setup(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: PythonRewards | None,
    start: StartPoint,
    folder: RunFolder,
    stop: StopSignal,
) -> Iterator[TrainSetup]:
    """Training on rollouts that this process samples."""
    algorithm = run.rollout_algorithm
    require_tasks_taken(run, start.state, start.checkpoint)
    tasks = load_tasks(run, tokenizer)
    _check_teachers(algorithm, tokenizer, tasks)
    horizon = compute_horizon(run, tasks.train.steps_per_epoch(run.tasks_sampled_per_step))
    clear_buffer(run.buffer, folder.path)
    with (
        open_rank_placement(run) as placement,
        open_training_engines(run, placement) as engines,
        open_colocated_policy(
            run, engines, tokenizer, reward_sources(run, reward, horizon), start.checkpoint, stop
        ) as policy,
        closing(open_buffer(run.buffer, folder.path, check=stop.check)) as buffer,
    ):
        second = open_second_models(run, engines, tokenizer, horizon, start.checkpoint)
        collector = Collector(run, algorithm, policy.explorer, tasks.train)
        lr_schedule = LrSchedule(run.trainer, horizon, run.data.eval)
        source = RolloutSource(collector, tasks.train, buffer)
        yield TrainSetup(
            engine=policy.engine,
            state=policy.state,
            horizon=horizon,
            phases=_phases(run, algorithm, policy.engine, second, tasks, horizon, lr_schedule, source),
            lr_schedule=lr_schedule,
            snapshot=partial(_snapshot, run, policy.engine, second),
            publisher=policy.publisher,
            evaluate=partial(evaluate, run, policy.explorer, tasks.eval) if tasks.eval else None,
            stop=stop,
            notes=(*tasks.notes(), *policy.notes),
        )


@contextmanager
def open_offline_setup(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: PythonRewards | None,
    start: StartPoint,
    stop: StopSignal,
) -> Iterator[TrainSetup]:
    """Training on demonstrations, preference pairs, labeled or scored responses."""
    data, trainer = run.data, run.trainer
    unpaired = run.algorithm.rows == "labels"
    reward_model = run.algorithm.reward_model
    assert data.order is None or isinstance(data.order, ColumnOrderConfig)
    images = load_prompt_images(run, tokenizer)
    load = partial(
        load_offline_dataset,
        data=data,
        tokenizer=tokenizer,
        seed=run.seed,
        shuffle=data.shuffle,
        images=images,
        tokens=load_policy_tokens(run, tokenizer),
        unpaired=unpaired,
        reward_model=reward_model,
    )
    train = load(train_section(run), name="train", order=data.order)
    if data.mixture:
        others = [load(section, name=f"mixture.{number}") for number, section in enumerate(data.mixture)]
        members = [train, *others]
        train = mixed_dataset(members, run_mixture_order(run, [len(member) for member in members]))
    if run.algorithm.rows in ("labels", "scores", "steps"):
        train.require_different_labels()
    held_out = load_held_out(run, tokenizer, reward)
    horizon = compute_horizon(run, train.steps_per_epoch(trainer.tasks_per_step))
    with (
        stop,
        open_offline_policy(run, tokenizer, reward, start.checkpoint, held_out, stop, train) as policy,
    ):
        lr_schedule = LrSchedule(trainer, horizon, data.eval)
        updater = OfflineUpdater(
            PolicyOptimizer(policy.engine, LossSpec.of(run), lr_schedule),
            tasks_per_update=trainer.tasks_per_update or trainer.tasks_per_step,
            max_updates=horizon.updates,
            reference=policy.reference_of,
            reference_point=policy.reference_point,
            reference_sync=run.algorithm.changed_reference,
            learns_rewards=reward_model is not None,
        )
        source = OfflineSource(train, trainer.tasks_per_step)
        notes = [note for dataset in (train, *held_out.answers) for note in dataset.notes()]
        notes += [note for _, taskset in held_out.sampled for note in taskset.notes()]
        yield TrainSetup(
            engine=policy.engine,
            state=policy.state,
            horizon=horizon,
            phases=[TrainPhase(source, updater, horizon.steps)],
            lr_schedule=lr_schedule,
            snapshot=policy.engine.snapshot,
            publisher=None,
            evaluate=lambda step: policy.evaluate(run, held_out, step=step),
            stop=stop,
            notes=(*data_notes(run), *notes, *(policy.policy.notes if policy.policy else ())),
            examples=training_examples(train.all_groups()[:_EXAMPLES], tokenizer),
        )


@contextmanager
def open_distributed_setup(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    start: StartPoint,
    folder: RunFolder,
    stop: StopSignal,
) -> Iterator[TrainSetup]:
    """Training on rollouts that a separate explorer process samples and scores; it also evaluates."""
    algorithm, section = run.rollout_algorithm, run.synchronizer
    assert not isinstance(section, MemorySyncConfig)
    tasks = load_tasks(run, tokenizer)
    _check_teachers(algorithm, tokenizer, tasks)
    horizon = compute_horizon(run, tasks.train.steps_per_epoch(run.tasks_sampled_per_step))
    host, device = local_address(run), find_device(run.trainer.engine.device)
    explored = ExplorerState.load(folder.explorer)
    with (
        rendezvous(run, tasks.train.fingerprint, "trainer"),
        stop,
        open_rank_placement(run) as placement,
        open_training_engines(run, placement) as engines,
        closing(
            open_weight_sender(section, folder.path, host=host, device=device, checkpoint=start.checkpoint)
        ) as sender,
    ):
        engine = engines.policy()
        state = restore_engine(engine, start.checkpoint)
        second = open_second_models(run, engines, tokenizer, horizon, start.checkpoint)
        pinned = explored.next_version if explored else None
        publisher = RemotePublisher(
            _published_weights(run, engine, tokenizer),
            section.style,
            sender,
            last_step=horizon.steps,
            warmup_steps=run.trainer.warmup_steps,
            pinned_version=pinned,
        )

        def check() -> None:  # called while the trainer waits, when no update is in progress
            stop.check()
            publisher.serve_request()

        with closing(
            open_buffer(run.buffer, folder.path, role="reader", member_name=TRAINER_MEMBER, check=check)
        ) as buffer:
            lr_schedule = LrSchedule(run.trainer, horizon, run.data.eval)
            source = open_buffer_source(run, buffer, folder, publisher.report_shortfall)
            yield TrainSetup(
                engine=engine,
                state=state,
                horizon=horizon,
                phases=_phases(run, algorithm, engine, second, tasks, horizon, lr_schedule, source),
                lr_schedule=lr_schedule,
                snapshot=partial(_snapshot, run, engine, second, publisher),
                publisher=publisher,
                evaluate=None,
                stop=stop,
                notes=(*tasks.notes(), *describe_rendezvous(run), *off_policy_note(run)),
            )


_OFF_POLICY_NOTE = (
    "rollouts may be of older weights, and nothing corrects for it: write algorithm.importance_correction: {} or "
    "algorithm.old_policy: sampler, unless an update changes the log-probs little (logprob_diff/mean_abs)"
)


def off_policy_note(run: Run) -> tuple[str, ...]:
    """A note if the synchronizer's style admits rollouts of older weights, which the algorithm takes for those of the
    trainer's; else none."""
    section = run.synchronizer
    if run.algorithm.is_offline or isinstance(section, MemorySyncConfig):
        return ()
    algorithm = run.rollout_algorithm
    is_corrected = (
        algorithm.old_policy == "sampler"
        or algorithm.importance_correction is not None
        or bool(algorithm.rejection)
    )
    return () if is_corrected or section.style.max_buffered_steps == 1 else (_OFF_POLICY_NOTE,)


def _published_weights(run: Run, engine: TrainingEngine, tokenizer: PreTrainedTokenizerBase) -> WeightSource:
    """The weights for the explorer, with the log-probs of a probe if its engine converts them."""
    if max_logprob_gap(run) is None:
        return engine
    return ProbedWeights(engine, probe_tokens(tokenizer, run.max_sequence_tokens))


def _check_teachers(
    algorithm: RolloutAlgorithmConfig, tokenizer: PreTrainedTokenizerBase, tasks: RunTasks
) -> None:
    """Raise ModelError for a teacher with another vocabulary, and DataError for tasks without a teacher."""
    if algorithm.distillation is not None:
        check_vocabularies(algorithm.distillation, tokenizer)
        require_teachers(algorithm.distillation, tasks.train.sources())


def _phases(
    run: Run,
    algorithm: RolloutAlgorithmConfig,
    engine: TrainingEngine,
    second: SecondModels,
    tasks: RunTasks,
    horizon: Horizon,
    lr_schedule: LrSchedule,
    source: BatchSource,
) -> list[TrainPhase]:
    """The SFT warm-up, where `trainer.batch_selection` asks for one, and the steps with rollouts."""
    expert = None
    if (added := algorithm.added_demonstrations) is not None:
        demonstrations = tasks.auxiliary[run.data.demonstrations_named(added.name).name]
        expert = ExpertData(demonstrations, run)
    updater = RolloutUpdater(
        PolicyOptimizer(engine, LossSpec.of(run), lr_schedule),
        algorithm,
        run.trainer,
        horizon,
        max_response_tokens=run.data.max_response_tokens,
        seed=run.seed,
        second_models=second,
        expert=expert,
    )
    rollouts = TrainPhase(source, updater, horizon.steps)
    selection = run.trainer.batch_selection
    if not isinstance(selection, WarmupSelectionConfig):
        return [rollouts]
    tasks_per_update = run.trainer.tasks_per_update or run.trainer.tasks_per_step
    per_update = selection.demonstrations_per_update or tasks_per_update * algorithm.rollouts_per_task
    demonstrations = tasks.auxiliary[run.data.demonstrations_named(selection.demonstrations).name]
    warm_up = TrainPhase(
        WarmUpSource(demonstrations, per_update=per_update, updates_per_step=horizon.updates_per_step),
        OfflineUpdater(
            PolicyOptimizer(engine, LossSpec(SftConfig(), run.data.max_response_tokens), lr_schedule),
            tasks_per_update=per_update,
        ),
        run.trainer.warmup_steps,
    )
    return [warm_up, rollouts]


def _snapshot(
    run: Run, engine: TrainingEngine, second: SecondModels, publisher: RemotePublisher | None = None
) -> CompositeSnapshot:
    """Snapshot of the policy, the second models, and the published versions that the explorer still needs."""
    parts: dict[str, EngineSnapshot] = {
        ".": engine.snapshot(),
        **{each.name: each.snapshot() for each in second},
    }
    versions = None if publisher is None else publisher.snapshot()
    if versions is not None:
        parts[SYNC_FOLDER] = versions
    return CompositeSnapshot(parts, parallel=saves_engines_in_parallel(run))


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
    if run.algorithm.is_offline:
        require_eval_data(run, reward)
        require_scorable_tasks(run, reward)
    elif not run.is_distributed:
        require_reward(run, reward)
        require_scorable_tasks(run, reward)
    make_algorithm(run.algorithm).check()
    folder = RunFolder.of(run)
    identity = None if run.is_launched_in_roles else run_identity(run, reward)  # that of roles: `launch`
    start = find_start(run, folder, identity)
    folder.create()
    if not run.is_launched_in_roles:
        prepare_data(run, reward, stop)
    tokenizer = load_run_tokenizer(run)
    with _open_setup(run, tokenizer, reward, start, folder, stop) as setup, startup_objects_frozen():
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
    if run.algorithm.is_offline:
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

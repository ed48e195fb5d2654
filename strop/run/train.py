"""Training, from a loaded run file to the model it leaves: in one process, or as the trainer of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from strop.buffer.table import clear_buffer, open_buffer
from strop.config.check import require_reward
from strop.config.load import Loaded, save_resolved
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.parts import is_apart
from strop.config.schema.synchronizer import MemorySync
from strop.errors import CheckpointError
from strop.run.apart.explore_state import ExploreState
from strop.run.apart.host import own_host
from strop.run.apart.intake import open_intake
from strop.run.apart.meeting import meeting_place, met
from strop.run.apart.place import ranks_place
from strop.run.apart.train_driver import TrainDriver
from strop.run.best import checkpoint_of
from strop.run.critic import open_critic
from strop.run.driver import Driver
from strop.run.folder import RunFolder, RunState
from strop.run.learning import Learning
from strop.run.length import length_of
from strop.run.offline_train import open_offline
from strop.run.policy import open_policy, restore
from strop.run.prepared import Prepared
from strop.run.pupil import require_measures
from strop.run.records.record import Recorder
from strop.run.resume import Start, find_start
from strop.run.stopping import StopSignal
from strop.run.tasks import load_tasks
from strop.run.tokenizer import tokenizer_of
from strop.sync.publish import Publisher
from strop.sync.table import open_outbox
from strop.training.device import find_device
from strop.training.table import open_engines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MEMBER = "trainer"
"""Its name in the buffer, where the explorer is a process of its own."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a finished training leaves."""

    state: RunState
    model_step: int
    """Whose weights the model has: the last one's, or under `checkpoint.best` the best one's."""


def train(loaded: Loaded, reward: Callable[..., Any] | None = None) -> Trained:
    """Run to the end. What can be found wrong without the model is found before it is loaded."""
    run = loaded.run
    offline, apart = isinstance(run.algorithm, Sft | Dpo), is_apart(run)
    if not apart:
        (require_measures if offline else require_reward)(run, reward)
    opener = open_offline if offline else _open_trainer if apart else _open_rollouts
    folder = RunFolder.of(run)
    start = find_start(run, folder)
    folder.create()
    tokenizer = tokenizer_of(run)
    with opener(run, tokenizer, reward, start, folder) as prepared:
        save_resolved(run, folder.run_file)
        notes = (*start.notes, *prepared.notes)
        with Recorder(folder, loaded, prepared.length, replace(start, notes=notes)) as recorder:
            export = partial(prepared.engine.export, tokenizer)
            state = prepared.driver(recorder).run(export if run.checkpoint.export else None)
            best = state.best
            if best is not None and best.step != state.step:
                prepared.engine.load(checkpoint_of(best, folder.checkpoints))
            export(folder.model)
    return Trained(state, best.step if best else state.step)


@contextmanager
def _open_rollouts(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: Callable[..., Any] | None,
    start: Start,
    folder: RunFolder,
) -> Iterator[Prepared]:
    """What every algorithm needs that learns from rollouts of its own."""
    algorithm = run.algorithm
    assert not isinstance(algorithm, Sft | Dpo)
    if start.state.step > run.trainer.warm_up_steps and not start.state.position:
        raise CheckpointError(
            f"{start.checkpoint} is of a trainer whose explorer was a process of its own, so it does not say "
            "which tasks come next. To begin with its weights, name that run's `model` folder as model.path."
        )
    tasks = load_tasks(run, tokenizer)
    length = length_of(run, tasks.train.steps_per_epoch(run.trainer.tasks_per_step))
    clear_buffer(run.buffer, folder.path)
    with (
        open_engines(run) as engines,
        open_policy(run, engines, tokenizer, reward, start.checkpoint) as policy,
        closing(open_buffer(run.buffer, folder.path, check=policy.stop.check)) as buffer,
    ):
        critic = open_critic(run, engines, tokenizer, length, start.checkpoint)

        def driver(recorder: Recorder) -> Driver:
            return Driver(
                run,
                algorithm,
                policy=policy,
                critic=critic,
                buffer=buffer,
                tasks=tasks,
                length=length,
                folder=folder,
                recorder=recorder,
            )

        yield Prepared(policy.engine, length, (*tasks.notes(), *policy.notes), driver)


@contextmanager
def _open_trainer(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: Callable[..., Any] | None,
    start: Start,
    folder: RunFolder,
) -> Iterator[Prepared]:
    """What learns from the rollouts of an explorer that is a process of its own, which scores them too."""
    algorithm, section = run.algorithm, run.synchronizer
    assert not isinstance(algorithm, Sft | Dpo) and not isinstance(section, MemorySync)
    tasks = load_tasks(run, tokenizer)
    length = length_of(run, tasks.train.steps_per_epoch(run.trainer.tasks_per_step))
    host, device = own_host(run), find_device(run.trainer.engine.device)
    explored = ExploreState.load(folder.explorer)
    with (
        met(run, tasks.train, "trainer"),
        StopSignal() as stop,
        open_engines(run, ranks_place(run)) as engines,
        closing(
            open_outbox(section, folder.path, host=host, device=device, checkpoint=start.checkpoint)
        ) as outbox,
    ):
        engine = engines.policy()
        state = restore(engine, start.checkpoint)
        critic = open_critic(run, engines, tokenizer, length, start.checkpoint)
        pinned = explored.version if explored else None
        publisher = Publisher(engine, section.style, outbox, first=run.trainer.warm_up_steps, pinned=pinned)
        learning = Learning(run, algorithm, engine, critic, tasks.auxiliary, length, state)

        def check() -> None:  # while it waits, no update is under way
            stop.check()
            publisher.answer()

        with closing(
            open_buffer(run.buffer, folder.path, part="reader", member=MEMBER, check=check)
        ) as buffer:

            def driver(recorder: Recorder) -> TrainDriver:
                intake = open_intake(run, buffer, publisher.tell_shift)
                return TrainDriver(run, learning, intake, publisher, state, length, folder, recorder)

            yield Prepared(engine, length, (*tasks.notes(), *meeting_place(run)), driver)

"""`strop train`, from a loaded run file to the model it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from strop.buffer.table import clear_buffer, open_buffer
from strop.config.load import Loaded, save_resolved
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft
from strop.run.best import checkpoint_of
from strop.run.critic import open_critic
from strop.run.driver import Driver
from strop.run.folder import RunFolder, RunState
from strop.run.length import length_of
from strop.run.offline_train import open_offline
from strop.run.policy import open_policy, require_reward
from strop.run.prepared import Prepared
from strop.run.pupil import require_measures
from strop.run.record import Recorder
from strop.run.resume import Start, find_start
from strop.run.tasks import load_tasks
from strop.run.tokenizer import tokenizer_of
from strop.training.table import open_engines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run leaves."""

    folder: RunFolder
    state: RunState
    model_step: int
    """Whose weights the model has: the last one's, or under `checkpoint.best` the best one's."""
    metrics: dict[str, float]
    """Of the last step."""


def train(loaded: Loaded, reward: Callable[..., Any] | None = None) -> Outcome:
    """Run to the end. What can be found wrong without the model is found before it is loaded."""
    run = loaded.run
    offline = isinstance(run.algorithm, Sft | Dpo)
    (require_measures if offline else require_reward)(run, reward)
    folder = RunFolder.of(run)
    start = find_start(run, folder)
    folder.create()
    tokenizer = tokenizer_of(run)
    with (open_offline if offline else _open_rollouts)(run, tokenizer, reward, start, folder) as prepared:
        save_resolved(run, folder.run_file)
        notes = (*start.notes, *prepared.notes)
        with Recorder(folder, loaded, prepared.length, replace(start, notes=notes)) as recorder:
            export = partial(prepared.engine.export, tokenizer)
            state = prepared.driver(recorder).run(export if run.checkpoint.export else None)
            best = state.best
            if best is not None and best.step != state.step:
                prepared.engine.load(checkpoint_of(best, folder.checkpoints))
            export(folder.model)
    return Outcome(folder, state, best.step if best else state.step, recorder.last)


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

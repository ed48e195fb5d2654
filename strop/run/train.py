"""`strop train`, from a loaded run file to the model it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from strop.config.load import Loaded, save_resolved
from strop.models.export import export_model
from strop.models.load import load_tokenizer
from strop.run.driver import Driver
from strop.run.folder import RunFolder, RunState
from strop.run.length import length_of
from strop.run.policy import open_policy, require_reward
from strop.run.record import Recorder
from strop.run.resume import find_start
from strop.run.tasks import load_tasks


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run leaves."""

    folder: RunFolder
    state: RunState
    metrics: dict[str, float]
    """Of the last step."""


def train(loaded: Loaded, reward: Callable[..., Any] | None = None) -> Outcome:
    """Run to the end. What can be found wrong without the model is found before it is loaded."""
    run = loaded.run
    require_reward(run, reward)
    folder = RunFolder.of(run)
    start = find_start(run, folder)
    folder.create()
    tokenizer = load_tokenizer(run.model)
    tasks = load_tasks(run, tokenizer)
    length = length_of(run, tasks.train.steps_per_epoch(run.trainer.tasks_per_step))
    with open_policy(run, tokenizer, reward, start.checkpoint) as policy:
        save_resolved(run, folder.run_file)
        notes = (*start.notes, *tasks.notes(), *policy.notes)
        with Recorder(folder, loaded, length, replace(start, notes=notes)) as recorder:
            state = Driver(run, policy, tasks, length, folder, recorder).run()
            export_model(policy.engine.model, tokenizer, folder.model)
    return Outcome(folder, state, recorder.last)

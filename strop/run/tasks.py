"""The tasksets of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strop.config.schema import Run
from strop.config.schema.data import EvalTaskset
from strop.data.answers import AnswerSet, load_answers
from strop.data.taskset import TaskSet, load_taskset
from strop.run.task_queue import TaskQueue
from strop.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EvalTasks = tuple[tuple[EvalTaskset, TaskSet], ...]


class TrainTasks(Protocol):
    """What is trained on: all of it there from the start, or coming as the run goes on."""

    position: int
    """All there is to save, and to set for an exact resume."""

    @property
    def contents(self) -> str:
        """What two halves of a run must have alike."""
        ...

    def steps_per_epoch(self, n: int) -> int:
        """Steps of `n` tasks in one epoch."""
        ...

    def take(self, n: int) -> list[Task]:
        """The next step of `n` tasks; none where they are yet to come: then ask again."""
        ...


@dataclass(frozen=True, slots=True)
class Tasks:
    """What is trained on, and what is measured."""

    train: TrainTasks
    eval: EvalTasks
    auxiliary: Mapping[str, AnswerSet]
    """Given answers that are learned before the rollouts or beside them, by name."""

    def notes(self) -> tuple[str, ...]:
        """How many tasks there are of each, and how many were left out or cut."""
        others = (*self.auxiliary.values(), *(taskset for _, taskset in self.eval))
        return tuple(map(str, (self.train, *others)))


def load_tasks(run: Run, tokenizer: PreTrainedTokenizerBase) -> Tasks:
    """Read and check all tasksets."""
    data = run.data
    train: TrainTasks
    if data.queue is None:
        train = load_taskset(data.train, data, tokenizer, seed=run.seed, shuffle=data.shuffle)
    else:
        train = TaskQueue(run, data.queue, tokenizer)
    auxiliary = {
        section.name: load_answers(
            section, data, tokenizer, name=section.name, seed=run.seed, shuffle=data.shuffle
        )
        for section in data.auxiliary
    }
    return Tasks(train, load_eval_tasks(run, tokenizer, data.eval), auxiliary)


def load_eval_tasks(
    run: Run, tokenizer: PreTrainedTokenizerBase, sections: Sequence[EvalTaskset]
) -> EvalTasks:
    """Read and check what is measured."""
    return tuple(
        (section, load_taskset(section, run.data, tokenizer, seed=run.seed, shuffle=False))
        for section in sections
    )

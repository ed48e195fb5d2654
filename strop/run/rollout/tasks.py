"""Training tasks, eval tasksets and demonstrations of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from strop.config.schema import Run
from strop.config.schema.data import EvalTasksetConfig
from strop.data.encoding.model_tokens import ModelTokens
from strop.data.images.prompt_images import RunImages
from strop.data.mixture import MixedTaskSet, run_mixture_order
from strop.data.offline_dataset import OfflineDataset, load_offline_dataset
from strop.data.taskset import TaskSet, load_taskset
from strop.run.prepared_data import data_notes, train_section
from strop.run.prompt_images import load_prompt_images
from strop.run.rollout.task_queue import TaskQueue
from strop.run.rollout.task_stream import TaskStream
from strop.run.tokenizer import load_policy_tokens, load_training_tokens
from strop.types import RolloutGroup, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EvalTasksets = tuple[tuple[EvalTasksetConfig, TaskSet], ...]


class TrainTaskSource(Protocol):
    """Source of training tasks: a taskset that is complete from the start, or a queue that grows."""

    @property
    def position(self) -> int:
        """Number of tasks taken so far, over all epochs; saved, with `order_state`, for an exact resume."""
        ...

    @property
    def order_state(self) -> Mapping[str, Any] | None:
        """State of an order that follows the results, as JSON values; None for one that `position` determines."""
        ...

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position and `order_state`."""

    @property
    def fingerprint(self) -> str:
        """Identity of the tasks; explorer and trainer of one run must have the same."""
        ...

    def notes(self) -> Iterable[str]:
        """The source in one line, and notes about its rows."""
        ...

    def sources(self) -> frozenset[str]:
        """Data sources of the tasks that are known at the start."""
        ...

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks in one epoch."""
        ...

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks; an empty list if they are not there yet and the caller has to ask again."""
        ...

    def observe(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Report the results of groups, in the order in which their tasks were taken; returns metrics of the draws."""
        ...


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Training tasks, eval tasksets and demonstrations."""

    train: TrainTaskSource
    eval: EvalTasksets
    auxiliary: Mapping[str, OfflineDataset]
    """Demonstrations that are trained on before or together with rollouts, by name."""
    pipeline_notes: tuple[str, ...] = ()
    """Notes about the pipeline that prepared the training tasks."""

    def notes(self) -> tuple[str, ...]:
        """One line per taskset: its number of tasks, and how many were filtered or truncated; and further notes."""
        answers = (note for each in self.auxiliary.values() for note in each.notes())
        evaluated = (note for _, taskset in self.eval for note in taskset.notes())
        return (*self.pipeline_notes, *self.train.notes(), *answers, *evaluated)


def load_tasks(run: Run, tokenizer: PreTrainedTokenizerBase) -> RunTasks:
    """Read and check all tasksets."""
    data = run.data
    images, tokens = load_prompt_images(run, tokenizer), load_training_tokens(run, tokenizer)
    train: TrainTaskSource
    if data.stream is not None:
        train = TaskStream(run, data.stream, tokenizer, images)
    elif data.queue is None:
        train = _load_training_tasks(run, tokenizer, images, tokens)
    else:
        train = TaskQueue(run, data.queue, tokenizer, images)
    auxiliary = {
        section.name: load_offline_dataset(
            section,
            data,
            tokenizer,
            name=section.name,
            seed=run.seed,
            shuffle=data.shuffle,
            images=images,
            tokens=tokens,
        )
        for section in data.demonstrations
    }
    return RunTasks(train, load_eval_tasks(run, tokenizer, data.eval), auxiliary, data_notes(run))


def _load_training_tasks(
    run: Run, tokenizer: PreTrainedTokenizerBase, images: RunImages | None, tokens: ModelTokens
) -> TaskSet | MixedTaskSet:
    """The training taskset, or the mixture of all of them."""
    data = run.data
    load = partial(
        load_taskset,
        data=data,
        tokenizer=tokenizer,
        seed=run.seed,
        shuffle=data.shuffle,
        images=images,
        tokens=tokens,
    )
    first = load(train_section(run), order=data.order)
    if not data.mixture:
        return first
    others = [load(section, name=f"mixture.{number}") for number, section in enumerate(data.mixture)]
    members = [first, *others]
    return MixedTaskSet(members, run_mixture_order(run, [len(member) for member in members]))


def load_eval_tasks(
    run: Run, tokenizer: PreTrainedTokenizerBase, sections: Sequence[EvalTasksetConfig]
) -> EvalTasksets:
    """Read and check eval tasksets."""
    if not sections:
        return ()
    load = partial(
        load_taskset,
        data=run.data,
        tokenizer=tokenizer,
        seed=run.seed,
        shuffle=False,
        images=load_prompt_images(run, tokenizer),
        tokens=load_policy_tokens(run, tokenizer),
    )
    return tuple((section, load(section)) for section in sections)

"""Answers to every prompt of a file, written beside its rows as verl's evaluation reads them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from strop.config.load import Loaded
from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.data import Taskset
from strop.config.schema.generation import Generation
from strop.config.schema.reward import Reward
from strop.data.files import place_of
from strop.data.taskset import load_taskset
from strop.errors import DataError
from strop.inference.native import NativeEngine
from strop.models.fuse import fuse_storage
from strop.models.load import load_model, load_tokenizer
from strop.run.explorer import Explorer, check_errors
from strop.run.policy import open_policy
from strop.run.rewards import Rewards
from strop.run.sampling import sampling_of
from strop.run.stopping import StopSignal
from strop.run.tokenizer import tokenizer_of
from strop.training import checkpoint as checkpoints
from strop.training.device import find_device
from strop.training.table import open_engines
from strop.types import Group, Task
from strop.workflows.table import make_workflow


def generate(loaded: Loaded, prompts: Path, out: Path, checkpoint: Path | None) -> int:
    """By a run's model and its `rollout.sampling`; the prompts' columns are those of `data.train`."""
    run = loaded.run
    if checkpoint is not None:
        checkpoints.verify(checkpoint)
    section = run.data.train.model_copy(
        update={"path": str(prompts), "split": None, "subset": None, "answer": None, "source": None}
    )
    tokenizer = tokenizer_of(run)
    tasks = load_taskset(section, run.data, tokenizer, seed=run.seed, shuffle=False).all_tasks()
    unscored = run.model_copy(update={"reward": Reward()})
    with open_engines(run) as engines, open_policy(unscored, engines, tokenizer, None, checkpoint) as policy:
        groups = policy.explorer.sample(
            tasks,
            1 if isinstance(run.algorithm, Sft | Dpo) else run.algorithm.rollouts_per_task,
            sampling_of(run.rollout.sampling, run.data.max_response_tokens),
            purpose="generate",
            step=policy.state.step,
        )
    check_errors(groups, run.rollout.max_error_share)
    write_answers(str(out), section, groups)
    return len(groups)


def answer_file(section: Generation) -> int:
    """By a model as it is; returns how many prompts were answered.

    Raises `Interrupted` between two batches, `RolloutError` where too many answers broke.
    """
    device = find_device("auto")
    tokenizer = load_tokenizer(section.model)
    data = section.data
    tasks = load_taskset(data.train, data, tokenizer, seed=section.seed, shuffle=False).all_tasks()
    model = load_model(section.model, device=device, trainable=False)
    fuse_storage(model)
    sampler = NativeEngine.from_model(model, section.rollout.engine, tokenizer)
    workflow = make_workflow(section.rollout.workflow, sampler, tokenizer)
    with StopSignal() as stop, Rewards(Reward(), replies=Path()) as unscored, torch.inference_mode():
        explorer = Explorer(workflow, unscored, stop, seed=section.seed)
        groups = list(_answered(explorer, section, tasks))
    check_errors(groups, section.rollout.max_error_share)
    write_answers(section.output, data.train, groups)
    return len(groups)


def _answered(explorer: Explorer, section: Generation, tasks: Sequence[Task]) -> Iterator[Group]:
    """Batch after batch; a draw's seed is of its prompt's place in the file."""
    sampling = sampling_of(section.rollout.sampling, section.data.max_response_tokens)
    for first in range(0, len(tasks), section.tasks_at_once):
        yield from explorer.sample(
            tasks[first : first + section.tasks_at_once],
            section.rollouts_per_task,
            sampling,
            purpose="generate",
            step=0,
            first=first,
        )


def write_answers(out: str, section: Taskset, groups: Sequence[Group]) -> None:
    """The rows that the groups' tasks came from, each with its answers, as one Parquet file."""
    rows = [
        {section.prompt: [dict(message) for message in group.task.messages]}
        | dict(group.task.extra)
        | {"responses": [rollout.text for rollout in group.rollouts]}
        for group in groups
    ]
    place = place_of(out)
    try:
        place.files.makedirs(posixpath.dirname(place.path), exist_ok=True)
        with place.files.open(place.path, "wb") as file:
            pq.write_table(pa.Table.from_pylist(rows), file)
    except OSError as error:
        raise DataError(f"{place.shown} cannot be written: {error.strerror or error}.") from error

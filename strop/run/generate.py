"""Answers to every prompt of a file, written beside its rows as verl's evaluation reads them."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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
from strop.run.explorer import check_errors
from strop.run.policy import open_policy
from strop.run.sampling import sampling_of
from strop.run.stopping import StopSignal
from strop.run.tokenizer import tokenizer_of
from strop.seeds import derive_seed
from strop.training import checkpoint as checkpoints
from strop.training.device import find_device
from strop.training.table import open_engines
from strop.types import SampleRequest, Task


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
    unmeasured = run.data.model_copy(update={"eval": ()})
    unscored = run.model_copy(update={"reward": Reward(), "data": unmeasured})
    with open_engines(run) as engines, open_policy(unscored, engines, tokenizer, None, checkpoint) as policy:
        groups = policy.explorer.sample(
            tasks,
            1 if isinstance(run.algorithm, Sft | Dpo) else run.algorithm.rollouts_per_task,
            sampling_of(run.rollout.sampling, run.data.max_response_tokens),
            purpose="generate",
            step=policy.state.step,
        )
    check_errors(groups, run.rollout.max_error_share)
    answers = [[rollout.text for rollout in group.rollouts] for group in groups]
    _write(str(out), section, tasks, answers)
    return len(groups)


def answer_file(section: Generation) -> int:
    """By a model as it is, one turn to each prompt; returns how many prompts were answered.

    Raises `Interrupted` between two batches.
    """
    tokenizer = load_tokenizer(section.model)
    data = section.data
    tasks = load_taskset(data.train, data, tokenizer, seed=section.seed, shuffle=False).all_tasks()
    model = load_model(section.model, device=find_device("auto"), trainable=False)
    fuse_storage(model)
    engine = NativeEngine.from_model(model, section.engine, tokenizer)
    answers: list[list[str]] = []
    with StopSignal() as stop:
        for first in range(0, len(tasks), section.tasks_at_once):
            requests = list(_requests(section, tasks, first))
            completions = asyncio.run(engine.sample(requests))
            texts = [str(tokenizer.decode(c.token_ids, skip_special_tokens=True)) for c in completions]
            each = section.rollouts_per_task
            answers += [texts[start : start + each] for start in range(0, len(texts), each)]
            stop.check()
    _write(section.output, data.train, tasks, answers)
    return len(tasks)


def _requests(section: Generation, tasks: Sequence[Task], first: int) -> Iterator[SampleRequest]:
    """Of one batch; a draw's seed is of its prompt's place in the file."""
    sampling = sampling_of(section.sampling, section.data.max_response_tokens)
    for number, task in enumerate(tasks[first : first + section.tasks_at_once], start=first):
        for index in range(section.rollouts_per_task):
            seed = derive_seed(section.seed, "generate", number, index)
            yield SampleRequest(f"{number}-{index}", task.prompt_ids, sampling, seed)


def _write(out: str, section: Taskset, tasks: Sequence[Task], answers: Sequence[Sequence[str]]) -> None:
    """The rows that the tasks came from, each with its answers, as one Parquet file."""
    rows = [
        {section.prompt: [dict(message) for message in task.messages]}
        | dict(task.extra)
        | {"responses": list(texts)}
        for task, texts in zip(tasks, answers, strict=True)
    ]
    place = place_of(out)
    try:
        place.files.makedirs(posixpath.dirname(place.path), exist_ok=True)
        with place.files.open(place.path, "wb") as file:
            pq.write_table(pa.Table.from_pylist(rows), file)
    except OSError as error:
        raise DataError(f"{place.shown} cannot be written: {error.strerror or error}.") from error

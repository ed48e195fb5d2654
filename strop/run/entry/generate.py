"""Completions for every prompt of a file, written as a column `responses` that verl's evaluation reads."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.load.loader import LoadedRun
from strop.config.schema.data import TasksetConfig
from strop.config.schema.generation import GenerationConfig
from strop.config.schema.run import Run
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.reply import ReplyDecoder
from strop.data.images.messages import content_text
from strop.data.sources.data_path import resolve_path
from strop.data.taskset import load_taskset
from strop.errors import ConfigError, DataError
from strop.inference.registry import load_engine, running_engine
from strop.models.loading import load_tokenizer
from strop.run.entry.trained_policy import policy_only
from strop.run.prompt_images import load_generation_images, load_prompt_images
from strop.run.rollout.explorer import Explorer, check_error_fraction
from strop.run.rollout.inference_engines import (
    open_colocated_policy,
    open_server_explorer,
    samples_from_server,
)
from strop.run.rollout.rollout_services import UNSCORED, sampling_params
from strop.run.tokenizer import load_model_tokens, load_policy_tokens, load_run_tokenizer
from strop.seeds import derive_seed
from strop.training.backend import open_training_engines
from strop.training.checkpoints import checkpoint as checkpoints
from strop.training.device import find_device
from strop.types import SampleRequest, Task
from strop.workers.signals import StopSignal
from strop.workers.threads import run_coroutine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def generate(loaded: LoadedRun, prompts: Path, out: Path, checkpoint: Path | None) -> int:
    """Sample with a run's model and workflow; returns the number of prompts.

    `rollout.sampling` says how, and `data.train` names the columns of the prompts.
    """
    run = loaded.run
    if checkpoint is not None:
        _check_checkpoint(run, checkpoint)
    section = run.data.train.model_copy(
        update={"path": str(prompts), "split": None, "subset": None, "answer": None, "source": None}
    )
    tokenizer = load_run_tokenizer(run)
    images = load_prompt_images(run, tokenizer)
    tokens = load_policy_tokens(run, tokenizer)
    taskset = load_taskset(
        section, run.data, tokenizer, seed=run.seed, shuffle=False, images=images, tokens=tokens
    )
    tasks = taskset.all_tasks()
    with _open_explorer(run, tokenizer, checkpoint) as (explorer, step):
        groups = explorer.sample(
            tasks,
            run.algorithm.rollouts_per_task,
            sampling_params(run.rollout.sampling, run.data.max_response_tokens),
            purpose="generate",
            step=step,
        )
    check_error_fraction(groups, run.rollout.max_error_fraction)
    responses = [[rollout.text for rollout in group.rollouts] for group in groups]
    _write(str(out), section, tasks, responses)
    return len(groups)


def _check_checkpoint(run: Run, checkpoint: Path) -> None:
    if samples_from_server(run):
        raise ConfigError(
            f"{checkpoint} cannot be sampled on a server (rollout.engine.type openai), which has weights of its own. "
            "Write `rollout.engine: native`."
        )
    checkpoints.verify(checkpoint)


@contextmanager
def _open_explorer(
    run: Run, tokenizer: PreTrainedTokenizerBase, checkpoint: Path | None
) -> Iterator[tuple[Explorer, int]]:
    """The explorer, and the step of the weights that it samples with."""
    if samples_from_server(run):
        with open_server_explorer(run, tokenizer, UNSCORED) as explorer:
            yield explorer, 0
        return
    with (
        open_training_engines(policy_only(run)) as engines,
        open_colocated_policy(run, engines, tokenizer, UNSCORED, checkpoint) as policy,
    ):
        yield policy.explorer, policy.state.step


def generate_file(section: GenerationConfig) -> int:
    """Sample with a model alone, one turn per prompt; returns the number of prompts.

    Raises `Interrupted` between two batches.
    """
    tokenizer = load_tokenizer(section.model)
    data = section.data
    images = load_generation_images(section, tokenizer)
    tokens = load_model_tokens(section.model, tokenizer)
    taskset = load_taskset(
        data.train, data, tokenizer, seed=section.seed, shuffle=False, images=images, tokens=tokens
    )
    tasks = taskset.all_tasks()
    prompts = PromptEncoder.of(tokenizer, data)
    replies = ReplyDecoder(tokenizer, prompts, tokens.end_ids)
    engine = load_engine(section.engine, section.model, tokenizer, find_device("auto"), data.images)
    responses: list[list[str]] = []
    with running_engine(engine), StopSignal() as stop:
        for first in range(0, len(tasks), section.tasks_per_batch):
            requests = list(_requests(section, tasks, first))
            completions = run_coroutine(engine.sample(requests))
            texts = [replies.decode(completion.token_ids) for completion in completions]
            each = section.rollouts_per_task
            responses += [texts[start : start + each] for start in range(0, len(texts), each)]
            stop.check()
    _write(section.output, data.train, tasks, responses)
    return len(tasks)


def _requests(section: GenerationConfig, tasks: Sequence[Task], first: int) -> Iterator[SampleRequest]:
    """Requests of one batch. A completion's seed depends on its prompt's position in the file."""
    sampling = sampling_params(section.sampling, section.data.max_response_tokens)
    for number, task in enumerate(tasks[first : first + section.tasks_per_batch], start=first):
        for index in range(section.rollouts_per_task):
            seed = derive_seed(section.seed, "generate", number, index)
            yield SampleRequest(f"{number}-{index}", task.prompt_ids, sampling, seed, task.media)


def _write(
    out: str, section: TasksetConfig, tasks: Sequence[Task], responses: Sequence[Sequence[str]]
) -> None:
    """Write the rows of the tasks with their completions, as one Parquet file.

    Prompts are text if all of them are, and else messages. Images are `<image>` in them, and paths in their column.
    """
    are_texts = all(isinstance(task.prompt_value, str) for task in tasks)
    rows = [
        {
            section.prompt: task.prompt_value
            if are_texts
            else [{**message, "content": content_text(message["content"])} for message in task.messages]
        }
        | dict(task.extra)
        | {"responses": list(texts)}
        for task, texts in zip(tasks, responses, strict=True)
    ]
    location = resolve_path(out)
    try:
        with location.access(), TemporaryDirectory(prefix="strop-") as folder:
            location.filesystem.makedirs(posixpath.dirname(location.path), exist_ok=True)
            file = Path(folder) / "rows.parquet"
            pq.write_table(pa.Table.from_pylist(rows), file)
            location.put(file)
    except OSError as error:
        raise DataError(f"{location.display_path} cannot be written: {error.strerror or error}.") from error

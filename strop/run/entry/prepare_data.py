"""Running of `data.pipeline` before a run, or alone, with the services of a run for its operators: tokenizer, inference
engine, workflow and reward."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.redact import safe_text
from strop.config.schema.run import RayClusterConfig, Run, effective_reward
from strop.config.schema.task_pipeline import EngineModelConfig, PassRateConfig
from strop.config.user_code import callable_digest, code_digest
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.reply import ReplyDecoder
from strop.pipelines.tasks.difference import preview
from strop.pipelines.tasks.execution import OpenExecutor, Tick, local_processes
from strop.pipelines.tasks.operator import ROW_ID, Rewards, RowNumbers
from strop.pipelines.tasks.pipeline import PipelineResult, PipelineRun, Progress
from strop.python_rewards import PythonRewards, list_rewards
from strop.rewards.scorable_tasks import require_scorable_tasks
from strop.run.prepared_data import SOURCE_FIELDS, cache_folder, prepared_run, rows_at, write_pointer
from strop.seeds import derive_seed
from strop.types import IntArray, RolloutGroup, SampleRequest, SamplingParams
from strop.workers.signals import StopSignal
from strop.workers.threads import run_coroutine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.protocols import InferenceEngine
    from strop.run.rollout.explorer import Explorer


_STEP = 0


class RunServices:
    """Services of one run. Engines start when an operator needs them, one at a time, and end with the context.

    Torch is imported by the first operator that needs a model.
    """

    def __init__(self, run: Run, reward: PythonRewards | None, stop: StopSignal) -> None:
        self._run = run
        self._reward = reward
        self._stop = stop
        self._opened = ExitStack()
        self._open_key: tuple[str, str | None] | None = None
        self._open: Any = None

    def __enter__(self) -> RunServices:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def count_tokens(self, texts: Sequence[str]) -> RowNumbers:
        """[texts] The number of tokens of each text."""
        encoded = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return np.array([len(ids) for ids in encoded], np.int64)

    def model_fingerprint(self, path: str | None) -> str:
        """Identity of the weights of a model."""
        from strop.models.fingerprint import model_fingerprint

        return model_fingerprint(path or self._run.model.path)

    def rollout_fingerprint(self) -> str:
        """Identity of workflow, reward and prompt encoding, which decide the rewards of a task."""
        run = self._run
        content = {
            "data": run.data.model_dump(mode="json", include={*_ENCODING}),
            "train": run.data.train.model_dump(mode="json", exclude={"path", *SOURCE_FIELDS}),
            "reward": effective_reward(run).model_dump(mode="json"),
            "files": [code_digest(part.function) for part in effective_reward(run).functions],
            "workflow": run.rollout.workflow.model_dump(mode="json"),
            "sampling": run.rollout.sampling.model_dump(mode="json"),
            "seed": run.seed,
            "python": [
                [part.name, part.weight, callable_digest(part.function)]
                for part in list_rewards(self._reward)
            ],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def complete(self, model: EngineModelConfig, prompts: Sequence[str], seed: int) -> list[str]:
        """The reply of a model to each prompt."""
        tokenizer, replies, engine = self._engine(model.path)
        sampling = SamplingParams(temperature=model.temperature, max_tokens=model.max_tokens)
        requests = [
            SampleRequest(
                f"pipeline-{number}",
                _chat_ids(tokenizer, prompt),
                sampling,
                derive_seed(seed, "pipeline", prompt),
            )
            for number, prompt in enumerate(prompts)
        ]
        completions = run_coroutine(engine.sample(requests))
        self._stop.check()
        return [replies.decode(each.token_ids) for each in completions]

    def rewards(self, section: PassRateConfig, table: pa.Table, numbers: Sequence[int]) -> list[Rewards]:
        """The rewards of answers to each row."""
        from strop.data.taskset import load_taskset
        from strop.run.prompt_images import load_prompt_images
        from strop.run.rollout.rollout_services import sampling_params

        run = self._run_with(section.model)
        explorer = self._explorer(section.model)
        with TemporaryDirectory(prefix="strop-") as folder:
            file = Path(folder) / "rows.parquet"
            pq.write_table(table.drop_columns([ROW_ID]) if ROW_ID in table.column_names else table, file)
            data = (
                run.data
                if run.data.overlong != "error"
                else run.data.model_copy(update={"overlong": "filter"})
            )
            images = load_prompt_images(run, self._tokenizer)
            tasks = load_taskset(
                rows_at(run, file), data, self._tokenizer, seed=run.seed, shuffle=False, images=images
            ).all_tasks()
        rows = [int(task.id.rpartition(":")[2]) for task in tasks]
        sampling = sampling_params(run.rollout.sampling, run.data.max_response_tokens)
        explored = explorer.run(
            tasks,
            section.rollouts_per_task,
            replace(sampling, temperature=section.temperature),
            purpose="train",
            step=_STEP,
            numbers=[numbers[row] for row in rows],
        )
        found = dict(zip(rows, map(_rewards, explored.groups), strict=True))
        too_long = Rewards(
            (), fault=f"its prompt has more than data.max_prompt_tokens {run.data.max_prompt_tokens}"
        )
        return [found.get(row, too_long) for row in range(table.num_rows)]

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        from strop.run.tokenizer import load_run_tokenizer

        return load_run_tokenizer(self._run)

    def _run_with(self, path: str | None) -> Run:
        if path is None:
            return self._run
        model = self._run.model.model_copy(update={"path": path, "lora": None})
        return self._run.model_copy(update={"model": model})

    def _explorer(self, path: str | None) -> Explorer:
        """An explorer with the run's workflow and reward, on an engine that loads the model."""
        from strop.run.rollout.inference_engines import open_server_explorer
        from strop.run.rollout.rollout_services import reward_sources

        if self._open_key != ("explorer", path):
            self._close()
            run = self._run_with(path)
            opened = open_server_explorer(run, self._tokenizer, reward_sources(run, self._reward), self._stop)
            self._open = self._opened.enter_context(opened)
            self._open_key = ("explorer", path)
        return self._open

    def _engine(self, path: str | None) -> tuple[PreTrainedTokenizerBase, ReplyDecoder, InferenceEngine]:
        """An engine that loads a model, the model's tokenizer, and the decoder of its replies."""
        from strop.run.rollout.inference_engines import open_separate_engine
        from strop.run.tokenizer import load_model_tokens, load_run_tokenizer

        if self._open_key != ("engine", path):
            self._close()
            run = self._run_with(path)
            tokenizer = load_run_tokenizer(run)
            prompts = PromptEncoder(tokenizer, "tokenizer" if tokenizer.chat_template else "none")
            replies = ReplyDecoder(tokenizer, prompts, load_model_tokens(run.model, tokenizer).end_ids)
            engine = self._opened.enter_context(open_separate_engine(run, tokenizer))
            self._open = (tokenizer, replies, engine)
            self._open_key = ("engine", path)
        return self._open

    def _close(self) -> None:
        self._opened.close()
        self._opened = ExitStack()


_ENCODING = (
    "max_prompt_tokens",
    "max_response_tokens",
    "overlong",
    "chat_template",
    "chat_template_args",
    "images",
)


def _rewards(group: RolloutGroup) -> Rewards:
    scored = tuple(float(rollout.reward) for rollout in group.rollouts if rollout.reward is not None)
    return Rewards(scored, len(group.rollouts) - len(scored))


def _chat_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> IntArray:
    """[P] A prompt as one user message, or as plain text for a tokenizer without a chat template."""
    if tokenizer.chat_template is None:
        return np.array(tokenizer(prompt)["input_ids"], np.int32)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return np.array(tokenizer(str(text), add_special_tokens=False)["input_ids"], np.int32)


def prepare_data(
    run: Run, reward: PythonRewards | None = None, stop: StopSignal | None = None
) -> PipelineResult | None:
    """Run the pipeline, or find its result in the cache; None for a run without one, or with a queue or a stream, whose
    rows pass through the operators as they are read.

    Raises DataError for rows that an operator cannot use, ConfigError for an operator that cannot be made.
    """
    if not run.data.is_prepared:
        return None
    stop = stop or StopSignal()
    with RunServices(run, reward, stop) as services, progress_bars(stop) as progress:
        result = PipelineRun(run.data, cache_folder(run), services, progress, say, _open_executor(run))()
    write_pointer(run, result)
    require_scorable_tasks(prepared_run(run), reward)
    return result


def _open_executor(run: Run) -> OpenExecutor:
    """Opens processes of this machine, or workers of the cluster that the run names."""
    if not isinstance(run.cluster, RayClusterConfig) or run.cluster.address is None:
        return local_processes
    from strop.run.distributed.ray_cluster import ray_workers

    return partial(ray_workers, run, run.cluster)


def preview_data(run: Run, rows: int) -> Iterator[str]:
    """Lines about the first rows before and after each operator of a run's pipeline."""
    with RunServices(run, None, StopSignal()) as services:
        yield from preview(run.data, services, cache_folder(run), say, rows)


def say(message: str) -> None:
    """Print a message while a pipeline waits."""
    print(safe_text(f"strop: {message}"), file=sys.stderr, flush=True)


@contextmanager
def progress_bars(stop: StopSignal) -> Iterator[Progress]:
    """Bars on stderr for the stages of a pipeline, on a terminal. A requested stop raises `Interrupted` at the next
    part."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def start(text: str, total: int) -> Tick:
            bar = bars.add_task(escape(safe_text(text)), total=total)

            def tick(rows: int) -> None:
                bars.update(bar, advance=rows)
                stop.check()

            return tick

        yield start

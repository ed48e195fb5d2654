"""Check of a run before it starts, one stage after the other: why it cannot start, and what of it was checked. First
rows of its tasksets are encoded as the run encodes them; no weights are loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strop.buffer.factory import require_buffer
from strop.config.checks.run import unusual_values
from strop.config.checks.topology import one_node_fault
from strop.config.load.loader import LoadedRun
from strop.config.model_files import folder_takes_images
from strop.config.paths import existing_path
from strop.config.preflight import hub_names, missing_files, second_model
from strop.config.redact import set_environment
from strop.config.schema.data import ColumnOrderConfig, DifficultyOrderConfig, TasksetConfig
from strop.config.schema.rollout import ServerConnectionConfig
from strop.config.schema.run import RayClusterConfig, Run, configured_rewards
from strop.data.inspection import inspect_data, steps_per_epoch
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.errors import ConfigError, ModelError, RewardError, StropError
from strop.models.tokenizer_file import read_tokenizer_file
from strop.plan.placement import machine_of
from strop.plan.request import slow_bfloat16
from strop.printable import counted
from strop.rewards.registry import unknown_reward
from strop.run.check.refusals import Findings, eval_data_faults, require_tasks_taken, turn_states_fault
from strop.run.check.user_code import check_user_code
from strop.run.prompt_images import image_faults
from strop.run.state.checkpoint_mirror import CheckpointMirror
from strop.run.state.horizon import compute_horizon
from strop.run.state.identity import run_identity
from strop.run.state.resume import check_start
from strop.run.tokenizer import load_training_tokens, template_notes, with_run_template
from strop.runs.folder import RunFolder
from strop.runs.lock import require_unlocked
from strop.training.checkpoints.file_writer import WEIGHTS_FILE
from strop.workers.torchrun import torchrun_process

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.data.encoding.chat_template import PromptEncoder
    from strop.data.encoding.model_tokens import ModelTokens


_ROWS = 100
"""Rows of each taskset that are encoded; the run checks all of them."""


def check_first_rows(run: Run) -> Findings:
    """Encode the first rows of each taskset on this machine; models and tasksets elsewhere are not read.

    Its advice are notices on keys of rows that are not read, on turns without an end token, and on tools that the chat
    template does not render. Rows with images are not encoded. Raises `ModelError` for a tokenizer that cannot be
    loaded or has no chat template, and `DataError` for a row that the template cannot render, that has a token which
    the model lacks, that is too long under `overlong: error`, or that is a pair of equal responses under
    `equal_pairs: error`.
    """
    if not existing_path(run.model.tokenizer or run.model.path):
        model = run.model.tokenizer or run.model.path
        return Findings(
            unchecked=[f"prompts and their tokens: the tokenizer of {model} is not on this machine"]
        )
    if (tokenizer := read_tokenizer_file(run.model)) is not None:
        with suppress(StropError):  # the run's own tokenizer, which imports torch, decides about a fault
            return _check_rows(run, with_run_template(tokenizer, run))
    from strop.run.tokenizer import load_run_tokenizer

    return _check_rows(run, load_run_tokenizer(run))


def _check_rows(run: Run, tokenizer: PreTrainedTokenizerBase) -> Findings:
    from strop.data.encoding.chat_template import PromptEncoder

    if folder_takes_images(run.model.path):
        unchecked = "tokens of the prompts: the model reads images, which are placed at the start of the run"
        return Findings(unchecked=[unchecked])  # `strop.run.prompt_images` reads their rows
    tokens = load_training_tokens(run, tokenizer, only_local=True)
    tasksets = _tasksets(run)
    encoder = None
    if any(section.text is None for _, section in tasksets):
        encoder = PromptEncoder.of(tokenizer, run.data, tokens=tokens)
    found = Findings()
    for name, section in tasksets:
        rows = read_rows(section)
        if section.is_offline:
            found.advice += _check_demonstrations(run, name, section, tokenizer, tokens)
        else:
            assert encoder is not None
            found.advice += _check_prompts(run, name, section, rows, encoder)
        size = len(rows)
        found.checked.append(f"{name}: columns, template and tokens of {_portion(min(size, _ROWS), size)}")
        if size > _ROWS:
            found.unchecked.append(
                f"{name}: template and tokens of the {counted(size - _ROWS, 'row')} after these"
            )
    found.advice += template_notes(run, tokenizer, tokens)
    return found


def _portion(first: int, size: int) -> str:
    """`all 8 rows`, `the first 100 of 7473 rows`."""
    if first < size:
        return f"the first {first} of {counted(size, 'row')}"
    return "its only row" if size == 1 else f"all {size} rows"


def _check_prompts(
    run: Run, name: str, section: TasksetConfig, rows: DatasetRows, encoder: PromptEncoder
) -> Iterator[str]:
    from strop.data.encoding.truncation import kept_rows
    from strop.data.prompt_check import prompt_notes, to_prompt
    from strop.data.row_keys import RowKeys

    limit = run.data.max_prompt_tokens
    first = range(min(len(rows), _ROWS))
    found = [to_prompt(rows[number], rows.where(number), section) for number in first]
    keys = RowKeys(section)
    keys.sampled_columns(rows[0])
    for number, prompt in zip(first, found, strict=True):
        keys.add_sampled(rows[number])
        keys.add_messages(prompt.messages)
        keys.add_variables(prompt.tools)
    prompts = encoder.encode_longer(found, limit)
    if run.data.overlong == "error":
        kept_rows(prompts, run.data.overlong, limit, rows.where)
    yield from (f"{name}, first {counted(len(first), 'row')}: {note}" for note in prompt_notes(keys, encoder))


def _check_demonstrations(
    run: Run, name: str, section: TasksetConfig, tokenizer: PreTrainedTokenizerBase, tokens: ModelTokens
) -> Iterator[str]:
    from strop.data.offline_dataset import encode_offline_rows, require_different_labels, unended_note

    limit = min(_ROWS, section.limit_tasks or _ROWS)
    first = section.model_copy(update={"limit_tasks": limit})
    found = encode_offline_rows(
        first,
        run.data,
        tokenizer,
        name=name,
        seed=run.seed,
        tokens=tokens,
        reward_model=run.algorithm.reward_model,
    )
    if len(found.rows) < _ROWS:  # otherwise the run finds whether a later row is left
        found.require_some(run.data, name)
        if (section.label or section.score) is not None and name == "train" and not run.data.mixture:
            require_different_labels(found.groups, name)
    where = f"{name}, first {counted(len(found.rows), 'row')}"
    yield from unended_note(where, found.counts)
    yield from (f"{where}: {note}" for note in found.key_notes)


def _tasksets(run: Run) -> list[tuple[str, TasksetConfig]]:
    """Names and tasksets whose rows are files of this machine, as they are."""
    data = run.data
    sections: list[tuple[str, TasksetConfig]] = []
    if not data.is_prepared and data.stream is None and data.queue is None:
        sections += [(key.removeprefix("data."), each) for key, each in data.training_tasksets().items()]
    sections += [(each.name, each) for each in data.demonstrations]
    sections += [(each.name, each) for each in data.eval]
    return [
        (name, section)
        for name, section in sections
        if section.dataset is None
        and section.images is None
        and all(map(existing_path, (section.path,) if isinstance(section.path, str) else section.path))
    ]


_VALUES = "the values, and the files and folders on this machine that they name"


@dataclass(frozen=True, slots=True)
class StageCheck:
    """Result of the check of a stage, which can start as far as it was checked."""

    stage: LoadedRun
    run: Run
    """The run of the stage, with models that can be read now."""
    data: tuple[str, ...]
    """One line per taskset."""
    findings: Findings


def check_stages(loaded: LoadedRun) -> list[StageCheck]:
    """Check the stages of a run, or the run itself; loads no weights, and asks no server.

    Raises ConfigError for a file, name, key or function that cannot be used; DataError if the data cannot be read, or
    one of the first rows cannot be used; ModelError for a tokenizer without a chat template, or another vocabulary;
    RewardError and SandboxError for rewards that cannot be called; RunFolderError and CheckpointError for a folder in
    which the run cannot start.
    """
    readable = _readable_runs(loaded)
    written: set[Path] = set()
    faults: list[str] = []
    code: list[Findings] = []
    for stage, run in zip(loaded.runs, readable, strict=True):
        with set_environment(stage.environment):
            found = list(_file_faults(stage, written)) or list(_model_faults(stage, run))
            if not found:
                code.append(check_user_code(run, stage.rewards or None))
                found = code[-1].faults
        faults += found
        written.add(stage.run.folder_path / "model")
    if faults:
        raise ConfigError(*faults)
    pairs = zip(loaded.runs, readable, code, strict=True)
    return [_stage_check(stage, run, found) for stage, run, found in pairs]


def _readable_runs(loaded: LoadedRun) -> list[Run]:
    """The runs of the stages, with models that can be read now: for the model that an earlier stage will write, that
    stage's own model, and for a name on the hub its folder in the cache of this machine."""
    found: list[Run] = []
    sources = {stage.run.folder_path / "model": number for number, stage in enumerate(loaded.runs)}
    for stage in loaded.runs:
        run, path = stage.run, Path(stage.run.model.path)
        number = sources.get(path, len(found))
        if number < len(found) and existing_path(path) is None:
            earlier = found[number]
            changes = {
                "path": earlier.model.path,
                "tokenizer": run.model.tokenizer or earlier.model.tokenizer,
            }
            run = _with_second_model(
                run.model_copy(update={"model": run.model.model_copy(update=changes)}), path
            )
            if run.data.chat_template == "tokenizer" and earlier.data.chat_template != "none":
                data = run.data.model_copy(update={"chat_template": earlier.data.chat_template})
                run = run.model_copy(update={"data": data})
        elif (cached := _cached_folder(run.model.path)) is not None:
            model = run.model.model_copy(update={"path": str(cached)})
            run = run.model_copy(update={"model": model})
        found.append(run)
    return found


def _with_second_model(run: Run, path: Path) -> Run:
    """The run, whose critic or process reward model at `path` is at the path of the policy's model."""
    second = second_model(run)
    if second is None or Path(second[1].path) != path:
        return run
    key = second[0].rpartition(".")[2]
    section = getattr(run.algorithm, key)
    model = second[1].model_copy(update={"path": run.model.path})
    changed = section.model_copy(update={"model": model})
    return run.model_copy(update={"algorithm": run.algorithm.model_copy(update={key: changed})})


def _cached_folder(path: str) -> Path | None:
    """The folder of a name on the hub in the cache of this machine; None where it has none, and for a local path."""
    if path not in hub_names({"model": path}).values():
        return None
    from strop.models.hub import cached_folder

    return cached_folder(path)


def _file_faults(stage: LoadedRun, written_before: Collection[Path]) -> Iterator[str]:
    """Yield an error for what the values name and this machine lacks, and for values that do not go together."""
    run = stage.run
    yield from missing_files(stage, written_before)
    for key, reward in configured_rewards(run).items():
        for index, part in enumerate(reward.functions):
            if fault := unknown_reward(part.function):
                yield f"{stage.sources[f'{key}.functions.{index}.function']}: {fault}"
    if run.algorithm.needs_turn_states and run.rollout.workflow.name in ("single_turn", "math"):
        yield turn_states_fault()
    if run.algorithm.is_offline:
        yield from eval_data_faults(run, stage.rewards or None)
    yield from _judge_faults(run)
    yield from _hub_faults(run)


def _judge_faults(run: Run) -> Iterator[str]:
    """Yield an error for each judge whose prompt or pattern cannot be used."""
    for key, reward in configured_rewards(run).items():
        for judge in reward.judges:
            from strop.rewards.judges.judge import JudgePrompt

            try:
                JudgePrompt(judge)
            except RewardError as error:
                yield f"{key}: {error}"


def _hub_faults(run: Run) -> Iterator[str]:
    """Yield an error for each name on the hub that the cache lacks while the environment forbids to ask the hub."""
    for key, name in hub_names(_model_names(run)).items():
        from strop.models.hub import offline_fault

        if (fault := offline_fault(key, name)) is not None:
            yield fault


def _model_names(run: Run) -> dict[str, str]:
    """The models of a run by their keys."""
    found = {"model.path": run.model.path}
    if run.model.tokenizer is not None:
        found["model.tokenizer"] = run.model.tokenizer
    if (second := second_model(run)) is not None:
        found[f"{second[0]}.model.path"] = second[1].path
    for number, teacher in enumerate(run.algorithm.teachers):
        found[f"algorithm.distillation.teachers.{number}.path"] = teacher.path
    for key, reward in configured_rewards(run).items():
        found |= {f"{key}.models.{index}.path": model.path for index, model in enumerate(reward.models)}
    for index, auxiliary in enumerate(run.rollout.auxiliary_models):
        found[f"rollout.auxiliary_models.{index}.path"] = auxiliary.path
    return found


def _model_faults(stage: LoadedRun, run: Run) -> Iterator[str]:
    """Yield an error for a second model with another vocabulary than the policy, and for images that the run cannot
    use; models on the hub are not read."""
    algorithm, model = run.algorithm, run.model
    yield from image_faults(run)
    teachers = () if algorithm.is_offline else algorithm.distillation
    second = second_model(run)
    named = [each.tokenizer or each.path for each in (teachers.teachers if teachers else ())]
    if second is not None and second[1].path not in (stage.run.model.path, model.path):
        named.append(second[1].tokenizer or second[1].path)
    if not named or not all(map(existing_path, [model.tokenizer or model.path, *named])):
        return
    from strop.models.loading import load_tokenizer
    from strop.run.optimize.logprobs import check_same_vocabulary, check_vocabularies

    try:
        tokenizer = load_tokenizer(model)
        if teachers:
            check_vocabularies(teachers, tokenizer)
        if second is not None and second[1].path not in (stage.run.model.path, model.path):
            check_same_vocabulary(*second, tokenizer)
    except ModelError as error:
        yield str(error)


def _stage_check(stage: LoadedRun, run: Run, code: Findings) -> StageCheck:
    """The findings of a stage without faults."""
    found = Findings(checked=[_VALUES])
    require_buffer(run.buffer)
    if run.data.queue is not None:
        _check_queue(run.data.train)
    found.add(_check_folder(stage))
    data = tuple(inspect_data(run))
    if (steps := steps_per_epoch(run)) is not None:
        compute_horizon(run, steps)
    _check_order(run)
    _check_teachers(run)
    found.add(check_first_rows(run))
    found.add(code)
    if (fault := one_node_fault(run, is_launched=torchrun_process() is not None)) is not None:
        found.advice.append(f"warning: unless torchrun starts it, the run is refused: {fault}.")
    found.advice += [*unusual_values(run), *slow_bfloat16(run, machine_of(run))]
    found.unchecked[:0] = _not_contacted(stage.run, run)
    return StageCheck(stage, run, data, found)


def _check_folder(stage: LoadedRun) -> Findings:
    """Whether the run can start in its folder, which stays as it is."""
    run, folder = stage.run, RunFolder.of(stage.run)
    require_unlocked(folder, mode=run.mode, is_distributed=run.is_distributed)
    if (mirror := CheckpointMirror.of(run)) is not None:
        mirror.check()
    own = folder.explorer if run.mode == "explore" else folder
    if run.mode == "bench":
        return Findings()
    identity = run_identity(run, stage.rewards or None) if own.run_file.exists() else None
    start = check_start(run, own, identity)
    if start.checkpoint is None:
        return Findings()
    if not run.algorithm.is_offline and not run.is_distributed:
        require_tasks_taken(run, start.state, start.checkpoint)
    for part in run.algorithm.trained_models:
        from strop.training.checkpoints.tensors import ShardedTensors

        ShardedTensors(start.checkpoint / part, WEIGHTS_FILE)
    return Findings(
        checked=[f"the run folder: the run continues after step {start.state.step}"],
        unchecked=[f"the weights in {start.checkpoint}: not loaded"],
    )


def _check_queue(section: TasksetConfig) -> None:
    """Raise DataError for a task queue that is no table; a database that is not a file of this machine is not asked."""
    from strop.data.sources.sql_table import read_table_slice, require_queue_url

    assert isinstance(section.path, str)
    require_queue_url(section.path)
    if section.path.startswith("sqlite"):
        read_table_slice(section.path, section.table, first=0, count=1)


def _check_order(run: Run) -> None:
    """Raise DataError for a row by whose column the tasks cannot be ordered."""
    order, section = run.data.order, run.data.train
    if not isinstance(order, ColumnOrderConfig | DifficultyOrderConfig) or steps_per_epoch(run) is None:
        return
    import numpy as np

    from strop.data.sources.reader import read_rows
    from strop.data.task_order import column_ranks, reference_rates

    rows = read_rows(section)
    numbers = np.arange(len(rows))
    if isinstance(order, ColumnOrderConfig):
        column_ranks(order, rows, numbers)
    else:
        reference_rates(order, rows, numbers)


def _check_teachers(run: Run) -> None:
    """Raise DataError for training rows of a source that no teacher has."""
    distillation = run.algorithm.distillation
    if distillation is None:
        return
    if run.data.train.source is None or steps_per_epoch(run) is None:
        return
    from strop.data.sources.columns import value_at
    from strop.data.sources.reader import read_rows
    from strop.run.optimize.logprobs import require_teachers

    for section in run.data.training_tasksets().values():
        if section.source is not None:
            rows = read_rows(section).scan([section.source])
            require_teachers(distillation, {value_at(row, section.source, "train") for row in rows})


def _not_contacted(run: Run, readable: Run) -> Iterator[str]:
    """Yield a line for each part of the run that the check does not load, start or contact."""
    names = hub_names(_model_names(run))
    if "model.path" in names:
        from strop.models.hub import is_cached

        where = "in the cache" if is_cached(run.model.path) else "the hub was not asked"
        yield f"the model {run.model.path} of the Hugging Face hub: not loaded; {where}"
    elif run.model.path != readable.model.path:
        yield (
            f"the model {run.model.path}, which an earlier stage writes: not there yet; {readable.model.path} was read "
            "in its place"
        )
    else:
        yield f"the weights of {run.model.path}: not loaded"
    yield from (
        f"{key} ({name}): the hub was not asked" for key, name in names.items() if key != "model.path"
    )
    engine = run.rollout.engine
    if isinstance(engine, ServerConnectionConfig):
        yield f"rollout.engine: {engine.base_url} was not contacted"
    elif engine.type != "native" and not run.algorithm.is_offline:
        yield f"rollout.engine: {engine.type} was not started"
    if getattr(run.buffer, "url", None) is not None:
        yield "buffer.url: the database was not opened"
    if run.checkpoint.mirror is not None:
        yield "checkpoint.mirror: the location was not opened"
    if isinstance(run.cluster, RayClusterConfig):
        yield "cluster: Ray was not contacted, and files of its other nodes were not looked at"
    services = [name for name in run.record.monitors if name not in ("console", "tensorboard")]
    yield from (f"record.monitors: {name} was not contacted" for name in services)
    if run.data.queue is not None or run.data.stream is not None:
        yield f"data.{'queue' if run.data.queue else 'stream'}: the rows, which are read during the run"
    if run.data.is_prepared:
        yield "data.pipeline: no operator was run, and its rows do not exist yet"

"""Ledger rows of Trinity's `buffer` section: batch sizes, duration and the experience buffer, which has rollouts or the
offline data of sft, cpt and dpo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil
from typing import Any

from strop.compat.ledger.key_mapping import (
    INTEGER,
    NUMBER,
    STRING,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    also_inactive,
    any_inactive,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    placement,
    unless,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity import formats, synchronizer
from strop.compat.trinity.formats import EXPERIENCE, write_answer_columns, write_columns, write_source
from strop.compat.trinity.model import template
from strop.compat.trinity.presets import (
    MIXED,
    advantage,
    algorithm_type,
    is_offline,
    only_offline,
    only_sampled,
    only_types,
    repeat_times,
)
from strop.compat.trinity.workflows import TRAINS_ON_VERDICTS
from strop.config.schema import Run
from strop.config.schema.algorithm import MixConfig, OfflineAlgorithmConfig, SftConfig
from strop.config.schema.buffer import (
    DEFAULT_BUFFER_NAME,
    FileBufferConfig,
    PriorityBufferConfig,
    QueueBufferConfig,
    SqlBufferConfig,
)
from strop.config.schema.preference import DpoConfig
from strop.config.schema.run import to_steps

_EXPERT_FRACTION = "algorithm.sample_strategy_args.expert_data_ratio"


def write_batches(run: Run) -> Mapping[str, Any]:
    """Write the tasks per step (rows under sft, cpt and dpo), the rollouts of an update where a step has several, and
    the fraction of expert data."""
    step, update = run.trainer.tasks_per_step, run.trainer.tasks_per_update
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return {"buffer.train_batch_size": step}
    values: dict[str, Any] = {"buffer.batch_size": step}
    if isinstance(run.algorithm, MixConfig):
        values["algorithm.sample_strategy_args.expert_data_ratio"] = run.algorithm.expert_fraction
    elif update is not None and update < step and step % update == 0:
        values["buffer.train_batch_size"] = update * run.algorithm.rollouts_per_task
    return values


@written_by(write_batches)
def batches(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the number of tasks per step; under sft, cpt and dpo, `train_batch_size` is the number of rows per
    step."""
    tasks, experiences = foreign["buffer.batch_size"], foreign["buffer.train_batch_size"]
    if is_offline(foreign):
        return {"trainer.tasks_per_step": tasks if experiences is None else experiences}
    repeat, fraction = repeat_times(foreign), foreign[_EXPERT_FRACTION]
    if algorithm_type(foreign) not in MIXED:
        return _task_counts(foreign, experiences, tasks, repeat)
    if experiences is None:
        return {"trainer.tasks_per_step": tasks, "algorithm.expert_fraction": fraction}
    demonstrations = ceil(fraction * experiences)
    settings = _task_counts(foreign, experiences - demonstrations, tasks, repeat, demonstrations)
    return {**settings, "algorithm.expert_fraction": demonstrations / experiences}


def _task_counts(
    foreign: ForeignValues, experiences: int | None, tasks: int, repeat: int, demonstrations: int = 0
) -> dict[str, Any]:
    """The tasks per step and per update, so that an update trains on `experiences` rollouts.

    Raises ConfigError where a number of whole tasks and steps does not give that number.
    """
    rollouts = tasks * repeat
    if (
        not experiences
        or experiences == rollouts
        or _counts_turns(foreign)
        or _has_other_experiences(foreign)
    ):
        return {"trainer.tasks_per_step": tasks}
    if experiences % rollouts == 0 and not demonstrations:
        return {"trainer.tasks_per_step": experiences // repeat}
    if rollouts % experiences == 0 and experiences % repeat == 0 and not demonstrations:
        return {"trainer.tasks_per_step": tasks, "trainer.tasks_per_update": experiences // repeat}
    added = f" with {demonstrations} expert responses ({_EXPERT_FRACTION})" if demonstrations else ""
    expected = rollouts + (round(rollouts * demonstrations / experiences) if demonstrations else 0)
    raise foreign.error_for(
        "buffer.train_batch_size",
        f"buffer.train_batch_size ({experiences + demonstrations}){added} does not match batch_size x repeat_times "
        f"({tasks} x {repeat} = {rollouts}), the number of rollouts per step: an update trains on whole tasks. Write "
        f"{expected}, or remove it.",
    )


def _has_other_experiences(foreign: ForeignValues) -> bool:
    """Whether the workflow trains on more than the rollouts of a task, such as on the verdicts of a judge."""
    return foreign["buffer.explorer_input.default_workflow_type"] in TRAINS_ON_VERDICTS


def _counts_turns(foreign: ForeignValues) -> bool:
    """Whether an experience is a turn, of which a rollout has any number."""
    return advantage(foreign) in ("step_wise_grpo", "multi_step_grpo", "gigpo")


def _turns(foreign: ForeignValues) -> str | None:
    if foreign["buffer.train_batch_size"] and _has_other_experiences(foreign):
        return "the workflow decides how many experiences a task gives, and a step trains on those of batch_size tasks"
    if is_offline(foreign) or not _counts_turns(foreign) or not foreign["buffer.train_batch_size"]:
        return None
    return "it counts turns, and Strop's step trains on all turns of the rollouts of batch_size tasks"


def write_duration(run: Run) -> Mapping[str, Any]:
    """Write the duration in steps or epochs; a duration in updates must be a whole number of steps."""
    length = to_steps(run, run.trainer.duration)
    keys = {"steps": "buffer.total_steps", "epochs": "buffer.total_epochs"}
    if length is None or length.unit not in keys:
        return {}
    return {keys[length.unit]: length.count}


@written_by(write_duration)
def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration; `trainer.total_steps` takes precedence over `buffer.total_steps`, and both over the
    epochs."""
    steps = foreign["trainer.total_steps"]
    steps = foreign["buffer.total_steps"] if steps is None else steps
    return {
        "trainer.duration": f"{foreign['buffer.total_epochs']} epochs" if steps is None else f"{steps} steps"
    }


def _unless_set(*keys: str) -> InactiveCheck:
    """Check that finds a key inactive where one of the given keys is set; the first one counts."""

    def inactive(foreign: ForeignValues) -> str | None:
        written = next((key for key in keys if foreign[key] is not None), None)
        return written and f"{written} is {foreign[written]} and takes precedence"

    return inactive


def _rows_counted(foreign: ForeignValues) -> str | None:
    if is_offline(foreign) and foreign["buffer.train_batch_size"] is not None:
        return f"under {algorithm_type(foreign)}, train_batch_size is the number of rows per step"
    return None


_batches_row = partial(mapped, read=batches)
ROWS = (
    *unstated_defaults(
        _batches_row(
            "buffer.batch_size", 1, "trainer.tasks_per_step", inactive=_rows_counted, note="counts tasks"
        ),
        _batches_row(
            "buffer.train_batch_size",
            None,
            "trainer.tasks_per_step",
            "trainer.tasks_per_update",
            value_type=nullable(INTEGER),
            warn=_turns,
            note="counts experiences: rollouts and, under mix, expert responses; more than those of batch_size tasks "
            "are a larger step, fewer are several updates per step",
        ),
        mapped(
            "buffer.total_epochs",
            1,
            "trainer.duration",
            read=duration,
            inactive=_unless_set("trainer.total_steps", "buffer.total_steps"),
        ),
        mapped(
            "buffer.total_steps",
            None,
            "trainer.duration",
            read=duration,
            value_type=nullable(INTEGER),
            inactive=_unless_set("trainer.total_steps"),
            note="takes precedence over total_epochs",
        ),
    ),
    *not_on_page(
        _batches_row(
            _EXPERT_FRACTION,
            0.5,
            "algorithm.expert_fraction",
            inactive=any_inactive(only_sampled, only_types(*MIXED)),
            note="fraction of train_batch_size; without train_batch_size, fraction of all sequences of a step",
        ),
        *no_effects("buffer", ("explorer_output.*", "tokenizer_path", "cache_dir"), "Trinity sets it itself"),
        *versions(no_effect("buffer.pad_token_id", UNSET, "Trinity sets it itself"), until="0.4"),
    ),
)


_DEFAULT_CAPACITY = 4096
"""Default capacity of a buffer, in groups."""


def write_storage(run: Run) -> Mapping[str, Any]:
    """Write the experience buffer of rollouts."""
    buffer = run.buffer
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return {}
    values: dict[str, Any] = {"max_read_timeout": buffer.read_timeout_seconds}
    match buffer:
        case FileBufferConfig():
            values |= {"storage_type": "file", "path": buffer.path}
        case SqlBufferConfig():
            values |= {"storage_type": "sql", "path": buffer.url, "name": buffer.name}
        case QueueBufferConfig() | PriorityBufferConfig():
            name = None if buffer.name == DEFAULT_BUFFER_NAME else buffer.name
            values |= {"path": buffer.backup, "name": name}
    if not isinstance(buffer, FileBufferConfig):
        values["capacity"] = buffer.capacity_groups
    if isinstance(buffer, PriorityBufferConfig):
        values |= {"use_priority_queue": True, "reuse_cooldown_time": buffer.reuse_cooldown_seconds}
        values["replay_buffer.priority_fn_args.decay"] = buffer.use_penalty
        if buffer.max_uses is not None:
            values["replay_buffer.priority_fn"] = "decay_limit_randomization"
            values["replay_buffer.priority_fn_args.use_count_limit"] = buffer.max_uses
            values["replay_buffer.priority_fn_args.sigma"] = buffer.noise
    return {f"{EXPERIENCE}.{name}": value for name, value in values.items()}


@written_by(write_storage)
def storage(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the buffer between explorer and trainer."""
    if is_offline(foreign):
        return {}
    settings: dict[str, Any] = {
        "buffer.read_timeout_seconds": foreign[f"{EXPERIENCE}.max_read_timeout"],
        "buffer.on_timeout": "train",
    }
    path, groups = foreign[f"{EXPERIENCE}.path"] or None, foreign[f"{EXPERIENCE}.capacity"]
    groups = _required_capacity(foreign) if groups is None else groups
    capacity = {} if groups is None else {"buffer.capacity_groups": groups}
    name = foreign[f"{EXPERIENCE}.name"] or None
    match _storage_kind(foreign, path):
        case "file":
            folder = {} if path is None else {"buffer.path": path}
            return {**settings, "buffer.type": "file", **folder}
        case "sql":
            url = None if path is None else formats.database_url(path)
            return {
                **settings,
                "buffer.type": "sql",
                "buffer.url": url,
                **({} if url is None or _is_absolute(url) else {"buffer.relative_to": "working_directory"}),
                "buffer.name": name,
                **capacity,
            }
    backup = None if path is None else path.removeprefix("sqlite:///")
    settings |= {"buffer.backup": backup, **capacity, **({} if name is None else {"buffer.name": name})}
    if not synchronizer.uses_priority_queue(foreign):
        return {**settings, "buffer.type": "queue"}
    cooldown = foreign[f"{EXPERIENCE}.replay_buffer.reuse_cooldown_time"]
    cooldown = foreign[f"{EXPERIENCE}.reuse_cooldown_time"] if cooldown is None else cooldown
    cooldown = cooldown if synchronizer.is_distributed(foreign) else None
    return {
        **settings,
        "buffer.type": "priority",
        "buffer.reuse_cooldown_seconds": cooldown,
        **_priority_rule(foreign),
    }


def _required_capacity(foreign: ForeignValues) -> int | None:
    """The required buffer capacity in groups, where it is more than the default; else None."""
    ahead = foreign["synchronizer.sync_interval"] + foreign["synchronizer.sync_offset"]
    needed = ahead * int(foreign["buffer.batch_size"])
    return needed if synchronizer.is_distributed(foreign) and needed > _DEFAULT_CAPACITY else None


def _is_absolute(url: str) -> bool:
    """Whether a database is one of a server, or a file with an absolute path."""
    return not url.startswith("sqlite:///") or url.startswith(("sqlite:////", "sqlite:///~"))


def _priority_rule(foreign: ForeignValues) -> dict[str, Any]:
    """The priority of `replay_buffer`: version minus decay times uses; one of its functions adds noise and a
    maximum number of uses."""
    at = f"{EXPERIENCE}.replay_buffer"
    earlier = foreign[f"{EXPERIENCE}.replay_buffer_kwargs.decay"]
    settings = {"buffer.use_penalty": foreign[f"{at}.priority_fn_args.decay"] if earlier is None else earlier}
    if foreign[f"{at}.priority_fn"] == "decay_limit_randomization":
        settings["buffer.max_uses"] = foreign[f"{at}.priority_fn_args.use_count_limit"]
        settings["buffer.noise"] = foreign[f"{at}.priority_fn_args.sigma"]
    return settings


def _storage_kind(foreign: ForeignValues, path: str | None) -> str:
    """The storage type of the buffer. A queue becomes a database where explorer and trainer are started
    separately."""
    kind = storage_type(foreign)
    if kind != "queue" or not synchronizer.is_distributed(foreign):
        return kind
    if synchronizer.uses_priority_queue(foreign) and synchronizer.is_single_role(foreign):
        raise foreign.error_for(
            f"{EXPERIENCE}.use_priority_queue",
            f"{EXPERIENCE}.use_priority_queue is True, but a priority queue is supported only in mode both. "
            f"In mode {foreign['mode']}, explorer and trainer exchange rollouts through a database: remove "
            "use_priority_queue, or write mode: both.",
        )
    in_database = path is not None and path.startswith("postgres")
    return "sql" if synchronizer.is_single_role(foreign) or in_database else "queue"


def storage_type(foreign: ForeignValues) -> str:
    """The storage type that is set, or the default of the algorithm type."""
    written = foreign[f"{EXPERIENCE}.storage_type"]
    return str(written or ("file" if is_offline(foreign) else "queue"))


def write_offline_data(run: Run) -> Mapping[str, Any]:
    """Write the training data of sft, cpt and dpo, which Trinity has in the experience buffer."""
    if isinstance(run.algorithm, SftConfig) and run.data.train.text is not None:
        text = {"prompt_type": "plaintext", "prompt_key": run.data.train.text}
        written = {f"{EXPERIENCE}.format.{key}": value for key, value in text.items()}
        return {f"{EXPERIENCE}.storage_type": "file", **write_source(EXPERIENCE, run.data.train), **written}
    if isinstance(run.algorithm, SftConfig):
        return {f"{EXPERIENCE}.storage_type": "file", **write_answer_columns(EXPERIENCE, run.data.train)}
    if not isinstance(run.algorithm, DpoConfig):
        return {}
    train, form = run.data.train, f"{EXPERIENCE}.format"
    values = {f"{EXPERIENCE}.storage_type": "file", **write_columns(EXPERIENCE, train)}
    return {**values, f"{form}.chosen_key": train.chosen, f"{form}.rejected_key": train.rejected}


_COLUMNS = {"sft": formats.answer_columns, "cpt": formats.text_columns, "dpo": formats.pair_columns}
"""Columns of the training data of each type that has no rollouts."""


@written_by(write_offline_data)
def offline_data(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the training data of sft, cpt and dpo, which Trinity has in the experience buffer."""
    if not is_offline(foreign):
        return {}
    columns = _COLUMNS[algorithm_type(foreign)](foreign, EXPERIENCE)
    settings = {**formats.row_source(foreign, EXPERIENCE), **columns}
    return {f"data.train.{name}": value for name, value in settings.items()}


_queue = any_inactive(
    only_sampled,
    lambda foreign: None if storage_type(foreign) == "queue" else f"storage_type is {storage_type(foreign)}",
)
_priority = any_inactive(
    _queue,
    lambda foreign: None if synchronizer.uses_priority_queue(foreign) else "the buffer is no priority queue",
)
_reused = any_inactive(
    _priority,
    lambda foreign: (
        None
        if synchronizer.is_distributed(foreign)
        else "explorer and trainer alternate, and each step trains on the rollouts it has just sampled"
    ),
)
_limited = any_inactive(
    _priority, unless(f"{EXPERIENCE}.replay_buffer.priority_fn", "decay_limit_randomization")
)
_of_answers = any_inactive(only_offline, only_types("sft", "dpo"))


def _row(name: str, default: Any, *fields: str, **more: Any) -> KeyMapping:
    """The row of a key of rollout storage."""
    return mapped(f"{EXPERIENCE}.{name}", default, *fields, read=storage, **more)


def _offline_row(name: str, field: str, inactive: InactiveCheck = only_offline, note: str = "") -> KeyMapping:
    """The row of a key of offline data."""
    key, read, text = f"{EXPERIENCE}.{name}", offline_data, nullable(STRING)
    return mapped(key, None, f"data.train.{field}", read=read, value_type=text, inactive=inactive, note=note)


_OF_TEXT = [f"{EXPERIENCE}.format.{name}" for name in ("prompt_type", "prompt_key", "messages_key")]
"""Keys of the format that also count for plain text."""
_OF_TASKSETS = (
    *("data_selector.*", "default_workflow_type", "default_eval_workflow_type", "default_reward_fn_type"),
    *("is_eval", "mm_data_kwargs", "repeat_times", "rollout_args.*", "workflow_args", "reward_fn_args"),
    *("format.workflow_key", "format.reward_fn_key", "format.video_key"),
)
"""Keys of a storage that the experience buffer does not use."""
_COOLDOWN = "null means that each is trained on once"
_DECAY = "buffer.use_penalty"
EXPERIENCE_BUFFER = (
    placement(
        f"{EXPERIENCE}.name",
        None,
        "the queue's actor name on a cluster; the table name for an sql buffer or offline data in a database",
        value_type=nullable(STRING),
        fields=("buffer.name",),
        read=storage,
    ),
    _row(
        "storage_type",
        None,
        "buffer.type",
        value_type=nullable(one_of("queue", "sql", "file")),
        note="null means queue, or file under sft, cpt and dpo; a queue becomes a database where explorer and trainer "
        "are started separately",
    ),
    _row(
        "path",
        None,
        "buffer.backup",
        "buffer.url",
        "buffer.path",
        "data.train.path",
        value_type=nullable(STRING),
        note="under sft, cpt and dpo, the data; else the backup of a queue, a database, or a folder; a relative "
        "path of a database is relative to the working directory, as in Trinity; a queue's backup, which belongs "
        "to the run, and a folder are in the run folder",
    ),
    _offline_row("subset_name", "subset"),
    _offline_row("split", "split", note="ignored for a single file"),
    *(
        also_inactive(row, only_offline if row.key in _OF_TEXT else _of_answers)
        for row in formats.format_rows(EXPERIENCE, offline_data, "data.train", answer="response")
    ),
    _offline_row("format.chosen_key", "chosen", only_types("dpo"), "null means chosen"),
    _offline_row("format.rejected_key", "rejected", only_types("dpo"), "null means rejected"),
    formats.turns_row(EXPERIENCE, offline_data, "data.train", only_types("sft")),
    mapped(
        f"{EXPERIENCE}.format.chat_template",
        None,
        "data.chat_template",
        read=template,
        value_type=nullable(STRING),
        inactive=only_offline,
        note="Jinja; null means model.custom_chat_template",
    ),
    _row(
        "max_read_timeout",
        1800,
        "buffer.read_timeout_seconds",
        "buffer.on_timeout",
        value_type=NUMBER,
        inactive=only_sampled,
        note="an incomplete batch is trained on; for a batch without a group the trainer waits once more",
    ),
    _row("use_priority_queue", False, "buffer.type", inactive=_queue),
    _row(
        "reuse_cooldown_time",
        None,
        "buffer.reuse_cooldown_seconds",
        value_type=nullable(NUMBER),
        inactive=_reused,
        note=_COOLDOWN,
    ),
    *not_on_page(
        _offline_row("format.image_key", "images", note=formats.UNMARKED_IMAGES),
        _row(
            "capacity",
            None,
            "buffer.capacity_groups",
            value_type=nullable(INTEGER),
            inactive=any_inactive(
                only_sampled,
                lambda foreign: "storage_type is file" if storage_type(foreign) == "file" else None,
            ),
            note="counts groups, the rollouts of one task; null means 4096",
        ),
        _row(
            "replay_buffer_kwargs.decay",
            None,
            _DECAY,
            value_type=nullable(NUMBER),
            inactive=_priority,
            note="0.3's name of replay_buffer.priority_fn_args.decay",
        ),
        _row(
            "replay_buffer_kwargs.priority_fn",
            "linear_decay",
            _DECAY,
            value_type=one_of("linear_decay"),
            inactive=_priority,
        ),
        _row(
            "replay_buffer.enable",
            False,
            "buffer.type",
            inactive=_queue,
            note="the same as use_priority_queue of earlier versions",
        ),
        _row(
            "replay_buffer.reuse_cooldown_time",
            None,
            "buffer.reuse_cooldown_seconds",
            value_type=nullable(NUMBER),
            inactive=_reused,
            note=_COOLDOWN,
        ),
        _row(
            "replay_buffer.priority_fn",
            "linear_decay",
            "buffer.max_uses",
            value_type=one_of("linear_decay", "decay_limit_randomization"),
            inactive=_priority,
        ),
        _row("replay_buffer.priority_fn_args.decay", 2.0, _DECAY, inactive=_priority),
        _row("replay_buffer.priority_fn_args.use_count_limit", 3, "buffer.max_uses", inactive=_limited),
        _row("replay_buffer.priority_fn_args.sigma", 0.0, "buffer.noise", inactive=_limited),
        no_effect(f"{EXPERIENCE}.enable_progress_bar", False, "data are read without a progress bar"),
        no_effect(
            f"{EXPERIENCE}.format.reply_prefix",
            None,
            "only workflows read it; responses that are given have none",
            value_type=nullable(STRING),
        ),
        *formats.retry_rows(EXPERIENCE),
        *no_effects(
            EXPERIENCE,
            (
                *("schema_type", "index", "batch_size", "tokenizer_path", "total_epochs", "total_steps"),
                "ray_namespace",
            ),
            "Trinity sets it itself",
        ),
        *no_effects(EXPERIENCE, _OF_TASKSETS, "the experience buffer does not use it"),
        placement(f"{EXPERIENCE}.wrap_in_ray", True, "a queue is always an actor on a cluster"),
    ),
)

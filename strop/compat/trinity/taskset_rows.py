"""Ledger rows of Trinity's `buffer.explorer_input`: training and evaluation tasksets, their workflows and
rewards."""

from __future__ import annotations

from functools import partial

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    also_inactive,
    always,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    unless,
)
from strop.compat.ledger.value_types import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAPPING,
    MAPPING_LIST,
    NUMBER,
    STRING,
    STRING_LIST,
    nullable,
    one_of,
)
from strop.compat.trinity import formats, rewards, workflows
from strop.compat.trinity.buffer_writer import EVAL, TASKSET
from strop.compat.trinity.presets import only_sampled, repeat_times
from strop.compat.trinity.selectors import DIFFICULTY_BASED, EASY_TO_HARD, SECTIONS, SELECTORS
from strop.compat.trinity.tasksets import tasks
from strop.compat.trinity.workflows import INPUT

_SET_BY_TRINITY = (
    "index",
    "is_eval",
    "batch_size",
    "total_epochs",
    "total_steps",
    "ray_namespace",
    "capacity",
)
_text = partial(mapped, read=tasks, value_type=nullable(STRING))


def _drawn(foreign: ForeignValues) -> str | None:
    kinds = {foreign[f"{TASKSET}.{name}.selector_type"] for name in SECTIONS}
    if "random" in kinds:
        return "Strop draws each task once in an epoch, in a random order"
    if DIFFICULTY_BASED in kinds:
        return "Strop updates the estimates after each step, not once per sync_interval, and keeps them in checkpoints"
    return None


def _in_order(foreign: ForeignValues) -> str:
    return "evaluations read all tasks in their order"


def _without_columns(section: str) -> InactiveCheck:
    """Check that finds the columns of a selector inactive where it reads none."""
    return unless(f"{section}.selector_type", EASY_TO_HARD, DIFFICULTY_BASED)


def _overwritten(foreign: ForeignValues) -> str | None:
    return f"Trinity overwrites it by algorithm.repeat_times, which is {repeat_times(foreign)}"


def _rows(at: str, field: str, sampling: str, repeat: str) -> tuple[KeyMapping, ...]:
    """The rows of the taskset at the key `at`. `field`, `sampling` and `repeat` are the run-file fields of its
    rows, its sampling parameters and its number of rollouts per task."""
    is_trained = field == "data.train"
    workflow = "rollout.workflow" if is_trained else f"{field}.workflow"
    function = "reward.functions.0" if is_trained else f"{field}.reward.functions.0"
    return (
        *_source_rows(at, field, is_trained),
        mapped(
            f"{at}.repeat_times",
            None,
            repeat,
            read=tasks,
            value_type=nullable(INTEGER),
            inactive=_overwritten if is_trained else None,
        ),
        *formats.rows(at, tasks, field, answer="answer"),
        mapped(
            f"{at}.rollout_args.temperature",
            None,
            f"{sampling}.temperature",
            read=tasks,
            value_type=nullable(NUMBER),
            note="null means 1.0",
        ),
        workflows.type_row(at, workflow, tasks),
        _text(f"{at}.default_reward_fn_type", None, f"{function}.function"),
        workflows.args_row(at, workflow, tasks),
        *formats.prefix_row(at, tasks, field),
        *not_on_page(
            no_effect(
                f"{at}.enable_progress_bar",
                False,
                "tasks are read without a progress bar",
                value_type=nullable(BOOLEAN),
            ),
            mapped(
                f"{at}.default_eval_workflow_type",
                None,
                workflow,
                read=tasks,
                value_type=nullable(STRING),
                inactive=(lambda foreign: "the taskset is trained on") if is_trained else None,
            ),
            *_column_rows(at, field, is_trained),
            *_order_rows(at, is_trained),
            *_rows_without_effect(at),
            *_rollout_rows(at, sampling, repeat),
            mapped(
                f"{at}.reward_fn_args",
                None,
                f"{function}.args",
                read=tasks,
                value_type=nullable(MAPPING),
                note="keyword arguments of the reward function",
            ),
        ),
    )


def _source_rows(at: str, field: str, is_trained: bool) -> tuple[KeyMapping, ...]:
    """The location of the taskset's rows."""
    return (
        _text(
            f"{at}.name",
            None,
            f"{field}.table",
            inactive=unless(f"{at}.storage_type", "sql", "queue"),
            note="the table name for tasks in a database",
        )
        if is_trained
        else _text(
            f"{at}.name",
            None,
            f"{field}.name",
            f"{field}.table",
            note="also the table name for tasks in a database",
        ),
        mapped(
            f"{at}.storage_type",
            None,
            f"{field}.path",
            *(("data.queue",) if is_trained else ()),
            read=tasks,
            value_type=nullable(one_of("file", "sql", "queue")),
            note="sql is a table of a SQLite or PostgreSQL database; queue is a table that other processes fill during "
            "the run",
        ),
        _text(f"{at}.path", None, f"{field}.path"),
        _text(f"{at}.subset_name", None, f"{field}.subset"),
        _text(
            f"{at}.split",
            None,
            f"{field}.split",
            inactive=formats.single_file(at),
            note="ignored for a single file",
        ),
    )


def _column_rows(at: str, field: str, is_trained: bool) -> tuple[KeyMapping, ...]:
    """The columns of `format` that the page does not have."""
    return (
        _text(
            f"{at}.format.image_key",
            None,
            f"{field}.images",
            *(("data.images.unmarked",) if is_trained else ()),
            note="images without a marker <image> stand at the start of the prompt",
        ),
        *(
            refused(f"{at}.format.{name}", default, why, supported=only(None, ""))
            for name, default, why in (
                ("video_key", None, "Strop trains on text and images; remove it"),
                ("workflow_key", "", "a taskset has one workflow; write one taskset for each"),
                ("reward_fn_key", "", "a taskset has one reward; write one that chooses by the row"),
            )
        ),
    )


def _order_rows(at: str, is_trained: bool) -> tuple[KeyMapping, ...]:
    """The order of the tasks."""
    return (
        *(
            mapped(
                f"{at}.{section}.selector_type",
                None,
                "data.shuffle",
                "data.order",
                read=tasks,
                value_type=nullable(one_of(*SELECTORS)),
                warn=_drawn,
                inactive=None if is_trained else _in_order,
                note="sequential; shuffle and random give each epoch an order of its own; offline_easy2hard sorts by "
                "the column of feature_keys, the largest value first; difficulty_based is data.order: {type: "
                "difficulty}",
            )
            for section in SECTIONS
        ),
        *(
            mapped(
                f"{at}.{section}.feature_keys",
                [],
                "data.order.column",
                "data.order.columns",
                read=tasks,
                value_type=STRING_LIST,
                inactive=_without_columns(f"{at}.{section}") if is_trained else _in_order,
            )
            for section in SECTIONS
        ),
        *(
            mapped(
                f"{at}.{section}.kwargs",
                {},
                "data.order",
                read=tasks,
                value_type=nullable(MAPPING),
                inactive=unless(f"{at}.{section}.selector_type", DIFFICULTY_BASED)
                if is_trained
                else _in_order,
                note="m, lamb, rho, adaptive_rho, target_reward, tau and do_sample of difficulty_based",
            )
            for section in SECTIONS
        ),
        *(
            no_effect(f"{at}.{section}.seed", UNSET, "an order is drawn from the run's seed", value_type=ANY)
            for section in SECTIONS
        ),
    )


def _rows_without_effect(at: str) -> tuple[KeyMapping, ...]:
    return (
        *(
            no_effect(f"{at}.{name}", default, "a database is read with Strop's own retries", value_type=ANY)
            for name, default in (("max_retry_times", 3), ("max_retry_interval", 1))
        ),
        *(
            no_effect(f"{at}.{name}", UNSET, "Trinity sets it itself", value_type=ANY)
            for name in _SET_BY_TRINITY
        ),
    )


def _rollout_rows(at: str, sampling: str, repeat: str) -> tuple[KeyMapping, ...]:
    """The keys of `rollout_args` that the page does not have."""
    return (
        refused(
            f"{at}.rollout_args.max_tokens",
            None,
            "write model.max_response_tokens, with the same value",
            supported=lambda foreign, value: value in (None, foreign["model.max_response_tokens"]),
        ),
        mapped(
            f"{at}.rollout_args.top_p", None, f"{sampling}.top_p", read=tasks, value_type=nullable(NUMBER)
        ),
        mapped(
            f"{at}.rollout_args.top_k", None, f"{sampling}.top_k", read=tasks, value_type=nullable(INTEGER)
        ),
        placement(
            f"{at}.rollout_args.logprobs",
            None,
            "log-probs are always recorded",
            supported=always,
            value_type=ANY,
        ),
        mapped(
            f"{at}.rollout_args.n",
            None,
            repeat,
            read=tasks,
            value_type=nullable(INTEGER),
            inactive=_overwritten if at == TASKSET else None,
            note="older name of repeat_times",
        ),
    )


ROWS: tuple[KeyMapping, ...] = (
    *(
        also_inactive(row, only_sampled)
        for row in _rows(TASKSET, "data.train", "rollout.sampling", "algorithm.rollouts_per_task")
    ),
    mapped(EVAL, None, "data.eval", read=tasks, value_type=nullable(MAPPING_LIST)),
    *_rows(f"{EVAL}.0", "data.eval.0", "data.eval.0.sampling", "data.eval.0.rollouts_per_task"),
)
REWARD = mapped(
    "buffer.default_reward_fn_type",
    None,
    "reward.functions.0.function",
    read=tasks,
    value_type=nullable(STRING),
    note=f"{', '.join(rewards.REWARDS)}, or file.py:function",
)
WORKFLOW = workflows.type_row("buffer", "rollout.workflow", tasks)
DEFAULTS = not_on_page(
    workflows.type_row(INPUT, "rollout.workflow", tasks),
    mapped(
        f"{INPUT}.default_eval_workflow_type",
        None,
        "data.eval.0.workflow",
        read=tasks,
        value_type=nullable(STRING),
        note="of evaluation tasksets without their own",
    ),
    mapped(
        f"{INPUT}.default_reward_fn_type",
        None,
        "reward.functions.0.function",
        read=tasks,
        value_type=nullable(STRING),
    ),
    _text(f"{INPUT}.system_prompt", None, "data.train.system"),
    _text(f"{INPUT}.reply_prefix", None, "data.train.reply_prefix"),
    refused(
        f"{INPUT}.tasksets",
        [],
        "each item has a workflow, a reward and a selector of its own, and a run of Strop has one of each; write one "
        "taskset and convert: a list under data.train of the run file is a mixture (`strop help data`), whose reward "
        "may depend on the data source",
        supported=lambda foreign, value: not value,
    ),
)

"""Trinity's `buffer.explorer_input`: training and evaluation tasksets, their order, workflows and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    BOOLEAN,
    INTEGER,
    MAPPING,
    MAPPING_LIST,
    NUMBER,
    STRING,
    STRING_LIST,
    UNSET,
    ForeignValues,
    KeyMapping,
    ValueType,
    also_inactive,
    falsy,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    unless,
    written_by,
)
from strop.compat.trinity import formats, workflows
from strop.compat.trinity.formats import (
    EVAL,
    INPUT,
    TASKSET,
    UNMARKED_IMAGES,
    format_rows,
    retry_rows,
    source_rows,
    write_columns,
)
from strop.compat.trinity.presets import is_later, is_offline, only_sampled, repeat_times
from strop.compat.trinity.workflows import (
    reward_name,
    write_overlong_penalty,
    write_unscored_workflow,
    write_workflow,
)
from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig, OfflineAlgorithmConfig
from strop.config.schema.data import ColumnOrderConfig, DifficultyOrderConfig
from strop.config.schema.reward import RewardFunctionConfig
from strop.config.schema.rollout import SamplingConfig

_SELECTORS = ("task_selector", "data_selector")
"""Both names of the section with the order of the tasks."""
_EASY_TO_HARD = "offline_easy2hard"
"""Selector that sorts the tasks by a column, the largest value first."""
_DIFFICULTY_BASED = "difficulty_based"
"""Selector that estimates the pass rates of the tasks, and takes those near a target."""
_KINDS = ("sequential", "shuffle", "random", _EASY_TO_HARD, _DIFFICULTY_BASED)
"""Names of the orders of the tasks."""
OPERATORS = "data_processor.experience_pipeline.operators"
PASS_RATES = "pass_rate_calculator"
"""Operator of the experience pipeline that gives a selector the pass rates."""
_KWARGS: Mapping[str, tuple[str, Any]] = {
    "m": ("counts_per_group", 16),
    "lamb": ("forgetting", 0.2),
    "rho": ("interpolation_weight", 0.2),
    "adaptive_rho": ("halve_weight", False),
    "target_reward": ("target", 1.0),
    "tau": ("temperature", 1.0),
    "do_sample": ("thompson_sampling", False),
}
"""Field of `data.order` and Trinity's default for each argument of the selector `difficulty_based`."""


def _read_selector(foreign: ForeignValues, taskset: str) -> dict[str, Any]:
    """The order of the tasks of a file. Trinity reads the rows in their order, unless a selector says otherwise."""
    sections = [f"{taskset}.{name}" for name in _SELECTORS]
    section = next((at for at in sections if foreign[f"{at}.selector_type"]), sections[-1])
    kind = foreign[f"{section}.selector_type"]
    if kind == _DIFFICULTY_BASED:
        order = _difficulty(foreign, section)
    elif kind == _EASY_TO_HARD:
        column = _columns(
            foreign, section, 1, f"{_EASY_TO_HARD} sorts by one; write one, or sort the file and write"
        )
        order = {"type": "column", "column": column[0], "descending": True}
    else:
        return {"data.shuffle": kind in ("shuffle", "random")}
    return {"data.shuffle": False, **{f"data.order.{name}": value for name, value in order.items()}}


def _write_selector(run: Run, at: str) -> dict[str, Any]:
    """Write the selector `at` of the run's order; an ascending order by a column has none."""
    order = run.data.order
    match order:
        case ColumnOrderConfig(descending=True) if not (order.values or run.data.shuffle):
            return {f"{at}.selector_type": _EASY_TO_HARD, f"{at}.feature_keys": [order.column]}
        case DifficultyOrderConfig():
            return {
                f"{at}.selector_type": _DIFFICULTY_BASED,
                f"{at}.feature_keys": [*order.columns],
                f"{at}.kwargs": {name: getattr(order, field) for name, (field, _) in _KWARGS.items()},
            }
        case _:
            return {f"{at}.selector_type": "shuffle" if run.data.shuffle else None}


def _columns(foreign: ForeignValues, section: str, count: int, instead: str) -> list[str]:
    columns: list[str] = foreign[f"{section}.feature_keys"]
    if len(columns) != count:
        raise foreign.error_for(
            f"{section}.feature_keys",
            f"{section}.feature_keys has {len(columns)} columns, and {instead} selector_type: sequential.",
        )
    return columns


def _difficulty(foreign: ForeignValues, section: str) -> dict[str, Any]:
    instead = f"{_DIFFICULTY_BASED} interpolates between the pass rates of two models; write two columns, or"
    columns = _columns(foreign, section, 2, instead)
    kwargs = foreign[f"{section}.kwargs"] or {}
    unknown = [name for name in kwargs if name not in _KWARGS]
    if unknown:
        raise foreign.error_for(
            f"{section}.kwargs",
            f"{section}.kwargs has {', '.join(unknown)}; {_DIFFICULTY_BASED} has {', '.join(_KWARGS)}.",
        )
    operators = [operator.get("name") for operator in (foreign[OPERATORS] or {}).values()]
    if PASS_RATES not in operators:
        raise foreign.error_for(
            f"{section}.selector_type",
            f"{section}.selector_type is {_DIFFICULTY_BASED}, whose estimates Trinity updates only by the operator "
            f"{PASS_RATES}; add `- name: {PASS_RATES}` to {OPERATORS}, or write selector_type: random.",
        )
    if operators[0] != PASS_RATES:
        raise foreign.error_for(
            OPERATORS,
            f"{OPERATORS} has {PASS_RATES} after {operators[0]}, and Strop takes the pass rates before all operators; "
            "write it first.",
        )
    values = {field: kwargs.get(name, default) for name, (field, default) in _KWARGS.items()}
    return {"type": "difficulty", "columns": columns, **values}


def write_tasks(run: Run) -> Mapping[str, Any]:
    """Write the training taskset, the evaluation tasksets that are sampled, and their workflows and
    rewards."""
    values: dict[str, Any] = {}
    evaluated = [taskset for taskset in run.data.eval if taskset.is_sampled]
    sampled = not isinstance(run.algorithm, OfflineAlgorithmConfig)
    if sampled:
        values |= write_columns(TASKSET, run.data.train) | _write_sampling(TASKSET, run.rollout.sampling)
        values |= _write_selector(run, f"{TASKSET}.task_selector")
        if run.data.queue is not None:
            values[f"{TASKSET}.storage_type"] = "queue"
        if run.data.overlong == "left":
            values["model.enable_prompt_truncation"] = True
    samplings = [*([run.rollout.sampling] if sampled else []), *(taskset.sampling for taskset in evaluated)]
    if samplings:
        values["model.min_response_tokens"] = samplings[0].min_response_tokens
    for index, taskset in enumerate(evaluated):
        at = f"{EVAL}.{index}"
        values |= write_columns(at, taskset) | _write_sampling(at, taskset.sampling)
        workflow = write_workflow(at, taskset.workflow or run.rollout.workflow)
        values |= workflow if taskset.workflow else {f"{at}.workflow_args": workflow[f"{at}.workflow_args"]}
        values |= {f"{at}.name": taskset.name, f"{at}.repeat_times": taskset.rollouts_per_task}
    main = write_workflow(TASKSET, run.rollout.workflow)
    if isinstance(run.algorithm, DistillationOnlyConfig) and run.reward.is_empty:
        main |= write_unscored_workflow(TASKSET, run.rollout.workflow, run.algorithm.distillation.temperature)
    values["buffer.default_workflow_type"] = main[f"{TASKSET}.default_workflow_type"]
    if sampled:
        values[f"{TASKSET}.workflow_args"] = main[f"{TASKSET}.workflow_args"]
    if run.reward.functions:
        name, args = reward_name(run.reward.functions)
        if name == "math_boxed_reward" and (main[f"{TASKSET}.workflow_args"] or {}).get("with_think"):
            args = {"with_think": False, **args}
        if name == "math_dapo_reward":
            # it has the rules of this run in a file with a key of later versions than 0.3
            values["algorithm.bypass_old_logprobs"] = True
            penalty = getattr(run.algorithm, "overlong_penalty", None)
            args |= {} if penalty is None else write_overlong_penalty(penalty)
        values["buffer.default_reward_fn_type"] = name
        if sampled:
            values[f"{TASKSET}.reward_fn_args"] = args or None
    own = run.rollout.workflow.args if run.rollout.workflow.name == "trinity" else {}
    if own.get("reward_fn"):
        values["buffer.default_reward_fn_type"] = own["reward_fn"]
    if own.get("reward_fn_args") and sampled:
        values[f"{TASKSET}.reward_fn_args"] = own["reward_fn_args"]
    for index, taskset in enumerate(evaluated):
        scored = run.reward if taskset.reward is None else taskset.reward
        workflow = (taskset.workflow or run.rollout.workflow).args
        if workflow.get("reward_fn_args"):
            values[f"{EVAL}.{index}.reward_fn_args"] = workflow["reward_fn_args"]
        if scored.functions:
            name, args = reward_name(scored.functions)
            values[f"{EVAL}.{index}.reward_fn_args"] = args or None
            if taskset.reward is not None:
                values[f"{EVAL}.{index}.default_reward_fn_type"] = name
    return values


def _write_sampling(at: str, sampling: SamplingConfig) -> dict[str, Any]:
    return {
        f"{at}.rollout_args.temperature": sampling.temperature,
        f"{at}.rollout_args.top_p": None if sampling.top_p == 1 else sampling.top_p,
        f"{at}.rollout_args.top_k": sampling.top_k or None,
    }


@written_by(write_tasks)
def tasks(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the training and evaluation tasksets with their workflows and rewards."""
    settings: dict[str, Any] = _task_order(foreign)
    evaluated = foreign[EVAL] or {}
    places = [f"{EVAL}.{index}" for index in evaluated]
    if not is_offline(foreign):
        if not (places and _trains_on_nothing(foreign)):
            places = [TASKSET, *places]
        settings |= {f"data.train.{name}": v for name, v in _taskset(foreign, places[0]).items()}
        settings |= _queue(foreign)
        settings |= {"data.images.unmarked": "start"} if foreign[f"{TASKSET}.format.image_key"] else {}
        settings |= {f"rollout.sampling.{name}": v for name, v in _sampling(foreign, TASKSET).items()}
        settings |= workflows.overlong_penalty(
            foreign, _function(foreign, TASKSET), foreign[f"{TASKSET}.reward_fn_args"] or {}
        )
        if foreign.is_set("model.enable_prompt_truncation"):
            settings["data.overlong"] = "left" if foreign["model.enable_prompt_truncation"] else "error"
    if places:
        settings["rollout.workflow"] = _workflow(foreign, places[0])
        settings["reward.functions"] = _written(foreign, places[0])
    settings["data.eval"] = [_measured(foreign, index, places[0]) for index in evaluated]
    return settings


def _trains_on_nothing(foreign: ForeignValues) -> bool:
    """Mode bench without a taskset to train on: the first evaluation taskset is written in its place."""
    return foreign["mode"] == "bench" and not foreign[f"{TASKSET}.path"]


def _task_order(foreign: ForeignValues) -> dict[str, Any]:
    if is_offline(foreign) or _is_queue(foreign):
        return {"data.shuffle": False}
    return _read_selector(foreign, TASKSET)


def _is_queue(foreign: ForeignValues) -> bool:
    return bool(foreign[f"{TASKSET}.storage_type"] == "queue")


def _queue(foreign: ForeignValues) -> dict[str, Any]:
    """The run-file fields of a task queue: a table that other processes fill during the run."""
    if not _is_queue(foreign):
        return {}
    if foreign["trainer.total_steps"] is None and foreign["buffer.total_steps"] is None:
        raise foreign.error_for(
            "buffer.total_steps",
            "a queue of tasks has no epochs; write buffer.total_steps or trainer.total_steps.",
        )
    return {"data.queue": {}}


def _measured(foreign: ForeignValues, index: str, first: str) -> dict[str, Any]:
    """The fields of one evaluation taskset. `first` is the taskset whose workflow and reward are the
    run's."""
    at = f"{EVAL}.{index}"
    workflow, reward = _workflow(foreign, at), _whole_reward(foreign, at)
    return {
        **_taskset(foreign, at),
        "name": foreign[f"{at}.name"] or f"eval{index}",
        "rollouts_per_task": 1 if (repeats := _repeats(foreign, at)) is None else repeats,
        "sampling": _sampling(foreign, at),
        "workflow": None if workflow == _workflow(foreign, first) else workflow,
        "reward": None if reward == _whole_reward(foreign, first) else {"functions": reward},
    }


def _workflow(foreign: ForeignValues, at: str) -> dict[str, Any]:
    return workflows.workflow_of(foreign, at, _function(foreign, at))


def _taskset(foreign: ForeignValues, at: str) -> dict[str, Any]:
    place = formats.table_source if at == TASKSET and _is_queue(foreign) else formats.row_source
    columns = formats.task_columns(foreign, at)
    if _workflow(foreign, at)["name"] == "trinity" and foreign[f"{at}.format.response_key"] is None:
        columns["answer"] = None
    return {**place(foreign, at), **columns}


def _sampling(foreign: ForeignValues, at: str) -> dict[str, Any]:
    written = {name: foreign[f"{at}.rollout_args.{name}"] for name in ("temperature", "top_p", "top_k")}
    options = {name: foreign[f"model.{name}"] if value is None else value for name, value in written.items()}
    return {
        **options,
        "top_k": max(options["top_k"] or 0, 0),
        "repetition_penalty": foreign["model.repetition_penalty"],
        "min_response_tokens": foreign["model.min_response_tokens"],
        **workflows.evaluation_sampling(foreign, at),
    }


def _repeats(foreign: ForeignValues, at: str) -> int | None:
    """The number of rollouts per task: `repeat_times`, or its older name `rollout_args.n`."""
    repeats, count = foreign[f"{at}.repeat_times"], foreign[f"{at}.rollout_args.n"]
    if None not in (repeats, count) and repeats != count:
        raise foreign.error_for(
            f"{at}.rollout_args.n",
            f"{at}.rollout_args.n ({count}) differs from {at}.repeat_times ({repeats}); write one of them.",
        )
    return count if repeats is None else repeats


def _whole_reward(foreign: ForeignValues, at: str) -> list[dict[str, Any]]:
    """The reward functions of a taskset, complete, for comparison with those of another."""
    return [RewardFunctionConfig(**function).model_dump() for function in _written(foreign, at)]


def _written(foreign: ForeignValues, at: str) -> list[dict[str, Any]]:
    """The configured reward function; empty where the workflow provides the reward."""
    name, args = _function(foreign, at), foreign[f"{at}.reward_fn_args"] or {}
    workflow = _workflow(foreign, at)
    if workflows.is_unscored(foreign, at) or workflows.brings_reward(workflow, name):
        return []
    with_think = bool((foreign[f"{at}.workflow_args"] or {}).get("with_think"))
    name = workflows.default_reward(foreign, at, name)
    if name is None:
        raise foreign.error_for(
            "buffer.default_reward_fn_type",
            f"write default_reward_fn_type: one of {', '.join(workflows.REWARDS)}, or file.py:function.",
        )
    return workflows.reward_functions(name, args, boxed_with_think=with_think, later=is_later(foreign))


def _function(foreign: ForeignValues, at: str) -> str | None:
    """The taskset's own reward function, or the default of all tasksets."""
    keys = (at, INPUT, "buffer")
    return next(filter(None, (foreign[f"{key}.default_reward_fn_type"] for key in keys)), None)


def _drawn(foreign: ForeignValues) -> str | None:
    kinds = {foreign[f"{TASKSET}.{name}.selector_type"] for name in _SELECTORS}
    if "random" in kinds:
        return "Strop draws each task once in an epoch, in a random order"
    if _DIFFICULTY_BASED in kinds:
        return "Strop updates the estimates after each step, not once per sync_interval, and keeps them in checkpoints"
    return None


def _in_order(foreign: ForeignValues) -> str:
    return "evaluations read all tasks in their order"


def _overwritten(foreign: ForeignValues) -> str | None:
    return f"Trinity overwrites it by algorithm.repeat_times, which is {repeat_times(foreign)}"


_TEXT = nullable(STRING)
_UNUSED = (
    *("format.chosen_key", "format.rejected_key", "format.enable_concatenated_multi_turn"),
    *("format.chat_template", "format.enable_thinking", "max_read_timeout", "mm_data_kwargs"),
    *("replay_buffer_kwargs", "replay_buffer", "reuse_cooldown_time", "schema_type", "use_priority_queue"),
    *("wrap_in_ray", "tokenizer_path"),
)
"""Keys of a storage that a taskset does not use."""


def _taskset_rows(at: str, field: str, sampling: str, repeat: str) -> tuple[KeyMapping, ...]:
    """The rows of the taskset at the key `at`. `field`, `sampling` and `repeat` are the run-file fields of its
    rows, its sampling parameters and its number of rollouts per task."""
    is_trained = field == "data.train"
    workflow = "rollout.workflow" if is_trained else f"{field}.workflow"
    function = "reward.functions.0" if is_trained else f"{field}.reward.functions.0"
    overwritten = _overwritten if is_trained else None

    def row(key: str, *fields: str, value_type: ValueType = _TEXT, **more: Any) -> KeyMapping:
        return mapped(f"{at}.{key}", None, *fields, read=tasks, value_type=value_type, **more)

    if is_trained:
        in_table, note = (
            unless(f"{at}.storage_type", "sql", "queue"),
            "the table name for tasks in a database",
        )
        name = row("name", f"{field}.table", inactive=in_table, note=note)
    else:
        note = "also the table name for tasks in a database"
        name = row("name", f"{field}.name", f"{field}.table", note=note)
    return (
        name,
        row(
            "storage_type",
            f"{field}.path",
            *(("data.queue",) if is_trained else ()),
            value_type=nullable(one_of("file", "sql", "queue")),
            note="sql is a table of a SQLite or PostgreSQL database; queue is a table that other processes fill during "
            "the run",
        ),
        *source_rows(at, tasks, field),
        row("repeat_times", repeat, value_type=nullable(INTEGER), inactive=overwritten),
        *format_rows(at, tasks, field, answer="answer"),
        row(
            "rollout_args.temperature",
            f"{sampling}.temperature",
            value_type=nullable(NUMBER),
            note="null means 1.0",
        ),
        _workflow_row(at, workflow),
        row("default_reward_fn_type", f"{function}.function"),
        row("workflow_args", f"{workflow}.args", value_type=nullable(MAPPING)),
        *not_on_page(
            row("format.reply_prefix", f"{field}.reply_prefix"),
            no_effect(
                f"{at}.enable_progress_bar",
                False,
                "tasks are read without a progress bar",
                value_type=nullable(BOOLEAN),
            ),
            row(
                "default_eval_workflow_type",
                workflow,
                inactive=(lambda foreign: "the taskset is trained on") if is_trained else None,
            ),
            row(
                "format.image_key",
                f"{field}.images",
                *(("data.images.unmarked",) if is_trained else ()),
                note=UNMARKED_IMAGES,
            ),
            *(
                refused(f"{at}.format.{name}", default, why, supported=only(None, ""))
                for name, default, why in (
                    ("video_key", None, "Strop trains on text and images; remove it"),
                    ("workflow_key", "", "a taskset has one workflow; write one taskset for each"),
                    ("reward_fn_key", "", "a taskset has one reward; write one that chooses by the row"),
                )
            ),
            *(each for section in _SELECTORS for each in _selector_rows(f"{at}.{section}", is_trained)),
            *retry_rows(at),
            *no_effects(
                at,
                (
                    *("index", "is_eval", "batch_size", "total_epochs", "total_steps", "ray_namespace"),
                    "capacity",
                ),
                "Trinity sets it itself",
            ),
            refused(
                f"{at}.rollout_args.max_tokens",
                None,
                "write model.max_response_tokens, with the same value",
                supported=lambda foreign, value: value in (None, foreign["model.max_response_tokens"]),
            ),
            row("rollout_args.top_p", f"{sampling}.top_p", value_type=nullable(NUMBER)),
            row("rollout_args.top_k", f"{sampling}.top_k", value_type=nullable(INTEGER)),
            placement(f"{at}.rollout_args.logprobs", None, "log-probs are always recorded"),
            row(
                "rollout_args.n",
                repeat,
                value_type=nullable(INTEGER),
                inactive=overwritten,
                note="older name of repeat_times",
            ),
            row(
                "reward_fn_args",
                f"{function}.args",
                value_type=nullable(MAPPING),
                note="keyword arguments of the reward function",
            ),
        ),
    )


def _selector_rows(section: str, is_trained: bool) -> tuple[KeyMapping, ...]:
    """The order of the tasks."""
    key = f"{section}.selector_type"
    return (
        mapped(
            key,
            None,
            "data.shuffle",
            "data.order",
            read=tasks,
            value_type=nullable(one_of(*_KINDS)),
            warn=_drawn,
            inactive=None if is_trained else _in_order,
            note="sequential; shuffle and random give each epoch an order of its own; offline_easy2hard sorts by the "
            "column of feature_keys, the largest value first; difficulty_based is data.order: {type: difficulty}",
        ),
        mapped(
            f"{section}.feature_keys",
            [],
            "data.order.column",
            "data.order.columns",
            read=tasks,
            value_type=STRING_LIST,
            inactive=unless(key, _EASY_TO_HARD, _DIFFICULTY_BASED) if is_trained else _in_order,
        ),
        mapped(
            f"{section}.kwargs",
            {},
            "data.order",
            read=tasks,
            value_type=nullable(MAPPING),
            inactive=unless(key, _DIFFICULTY_BASED) if is_trained else _in_order,
            note="m, lamb, rho, adaptive_rho, target_reward, tau and do_sample of difficulty_based",
        ),
        no_effect(f"{section}.seed", UNSET, "an order is drawn from the run's seed"),
    )


def _workflow_row(at: str, field: str) -> KeyMapping:
    """The row of `default_workflow_type`, of a taskset or of all of them."""
    return mapped(
        f"{at}.default_workflow_type",
        None,
        field,
        read=tasks,
        value_type=_TEXT,
        note="simple_workflow: single_turn; math_workflow and math_boxed_workflow: math; a dotted path, or a name that "
        "Trinity or a file of --plugin-dir registers: trinity; file.py:name for a workflow of Strop",
        warn=workflows.prompt_differences(TASKSET if at in ("buffer", INPUT) else at),
    )


def _default_row(key: str, field: str, note: str = "") -> KeyMapping:
    return mapped(key, None, field, read=tasks, value_type=_TEXT, note=note)


ROWS = (
    *(
        also_inactive(row, only_sampled)
        for row in _taskset_rows(TASKSET, "data.train", "rollout.sampling", "algorithm.rollouts_per_task")
    ),
    mapped(EVAL, None, "data.eval", read=tasks, value_type=nullable(MAPPING_LIST)),
    *_taskset_rows(f"{EVAL}.0", "data.eval.0", "data.eval.0.sampling", "data.eval.0.rollouts_per_task"),
    *not_on_page(
        *no_effects(TASKSET, _UNUSED, "a taskset does not use it"),
        *no_effects(f"{EVAL}.0", _UNUSED, "a taskset does not use it"),
    ),
    _workflow_row("buffer", "rollout.workflow"),
    _default_row(
        "buffer.default_reward_fn_type",
        "reward.functions.0.function",
        f"{', '.join(workflows.REWARDS)}, or file.py:function",
    ),
    *not_on_page(
        _workflow_row(INPUT, "rollout.workflow"),
        _default_row(
            f"{INPUT}.default_eval_workflow_type",
            "data.eval.0.workflow",
            "of evaluation tasksets without their own",
        ),
        _default_row(f"{INPUT}.default_reward_fn_type", "reward.functions.0.function"),
        _default_row(f"{INPUT}.system_prompt", "data.train.system"),
        _default_row(f"{INPUT}.reply_prefix", "data.train.reply_prefix"),
        refused(
            f"{INPUT}.tasksets",
            [],
            "each item has a workflow, a reward and a selector of its own, and a run of Strop has one of each; write "
            "one taskset and convert: a list under data.train of the run file is a mixture (`strop help data`), whose "
            "reward may depend on the data source",
            supported=falsy,
        ),
    ),
)

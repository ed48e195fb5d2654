"""Ledger rows of Trinity's `explorer` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    SupportCheck,
    always,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.ledger.placement_notes import NO_SHARDS
from strop.compat.ledger.value_types import ANY, BOOLEAN, INTEGER, NUMBER, nullable
from strop.compat.trinity import auxiliary_models
from strop.compat.trinity.buffer_writer import EXPERIENCE
from strop.compat.trinity.cluster import name_row
from strop.compat.trinity.parsers import PARSERS
from strop.compat.trinity.presets import is_offline, repeat_times
from strop.compat.trinity.serving_engine import (
    data_parallel_row,
    data_parallel_size,
    engine_type_row,
    expert_parallel_row,
    option_row,
    serving_engine,
)
from strop.compat.trinity.workflows import ROLLOUT_LIMITS
from strop.compat.verl.trainer import every, frequency
from strop.config.schema import Run

_RUNNERS, _ENGINES = "explorer.runner_per_model", "explorer.rollout_model.engine_num"
RUNNERS = "tasks run in the explorer's process, without runners of their own"
_SLOW = (
    "it leaves out the tasks of a step that finish last, so which are trained on depends on the machine's speed; "
    "remove it: with a sync_style other than fixed, Strop's explorer starts further tasks while slow ones run, and "
    "under fixed explorer.max_timeout limits a rollout"
)
_TIMES = (
    "it derives the time limit of a step's tasks from the run's own times, so that a resumed run would fail other "
    "rollouts than the uninterrupted one; remove it, and write the limit of a rollout as explorer.max_timeout"
)
_THINKING = (
    "explorer.rollout_model.enable_thinking",
    "model.enable_thinking",
    f"{EXPERIENCE}.format.enable_thinking",
)


def write_thinking(run: Run) -> Mapping[str, Any]:
    """Write the only variable of the chat template that Trinity has."""
    args = run.data.chat_template_args
    return {_THINKING[0]: args["enable_thinking"]} if set(args) == {"enable_thinking"} else {}


@written_by(write_thinking)
def thinking(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the variable of the chat template from either key; where both are written, they must be equal."""
    written = {foreign[key] for key in _THINKING if foreign.is_set(key) and foreign[key] is not None}
    if len(written) > 1:
        raise foreign.error_for(_THINKING[0], f"{' and '.join(_THINKING)} differ; write one of them.")
    return {"data.chat_template_args": {"enable_thinking": written.pop()}} if written else {}


def _none_or_same(key: str) -> SupportCheck:
    """Check that supports null and the value of another key."""
    return lambda foreign, value: value is None or value == foreign[key]


def write_evaluation_schedule(run: Run) -> Mapping[str, Any]:
    """By steps."""
    return {
        "explorer.eval_interval": frequency(run, run.evaluate.every),
        "explorer.eval_on_startup": run.evaluate.at_start,
    }


@written_by(write_evaluation_schedule)
def evaluation_schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """By steps."""
    return {
        "evaluate.every": every(foreign["explorer.eval_interval"]),
        "evaluate.at_start": foreign["explorer.eval_on_startup"],
    }


def write_engines(run: Run) -> Mapping[str, Any]:
    """Write the engines, and the runners per engine where that is an integer."""
    engines = run.rollout.pool.engines if run.rollout.pool else 1
    written: dict[str, Any] = {_ENGINES: engines}
    per_runner = engines * getattr(run.algorithm, "rollouts_per_task", 1)
    if (
        run.rollout.max_concurrent_rollouts is not None
        and run.rollout.max_concurrent_rollouts % per_runner == 0
    ):
        written[_RUNNERS] = run.rollout.max_concurrent_rollouts // per_runner
    return written


@written_by(write_engines)
def engines(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the engines and the rollout concurrency; a runner processes one task with all its rollouts."""
    engines = 1 if foreign.here else foreign[_ENGINES]
    processes = engines * data_parallel_size(foreign)
    settings: dict[str, Any] = {} if processes == 1 else {"rollout.pool.engines": processes}
    if foreign.is_set(_RUNNERS) and not is_offline(foreign):
        settings["rollout.max_concurrent_rollouts"] = foreign[_RUNNERS] * engines * repeat_times(foreign)
    return settings


EXPLORER = (
    *unstated_defaults(
        name_row("explorer"),
        placement(
            _RUNNERS,
            8,
            "maximum number of concurrent tasks per engine, each with all its rollouts; not set, all tasks "
            "of a step run concurrently",
            supported=always,
            fields=("rollout.max_concurrent_rollouts",),
            read=engines,
        ),
        *ROLLOUT_LIMITS,
        engine_type_row(),
        placement(
            _ENGINES,
            1,
            "one engine runs in the explorer's process, several run in a process each; with --here, one",
            supported=lambda foreign, value: value == 1 or not foreign.here,
            fields=("rollout.pool.engines",),
            read=engines,
        ),
        option_row("tensor_parallel_size", NO_SHARDS),
    ),
    placement(
        "explorer.rollout_model.enable_history",
        False,
        "a workflow's model calls are always recorded",
        supported=always,
    ),
    *unstated_defaults(
        *auxiliary_models.ROWS,
        mapped(
            "explorer.eval_interval", 100, "evaluate.every", read=evaluation_schedule, note="counts steps"
        ),
        mapped("explorer.eval_on_startup", True, "evaluate.at_start", read=evaluation_schedule),
    ),
    *not_on_page(
        *(
            option_row(name)
            for name in (
                "enable_prefix_caching",
                "enforce_eager",
                "dtype",
                "seed",
                "gpu_memory_utilization",
                "enable_chunked_prefill",
            )
        ),
        *(
            placement(
                f"explorer.rollout_model.{name}",
                default,
                "Strop starts its engines with options of its own",
                supported=lambda foreign, value: serving_engine(foreign) is not None,
                value_type=ANY,
            )
            for name, default in (
                ("use_v1", True),
                ("enable_log_requests", False),
                ("bundle_indices", ""),
            )
        ),
        *(
            refused(
                f"explorer.rollout_model.{name}",
                None,
                f"a run has one value for all its requests; write model.{name}",
                supported=_none_or_same(f"model.{name}"),
            )
            for name in (
                "model_path",
                "max_model_len",
                "min_response_tokens",
                "temperature",
                "top_p",
                "top_k",
                "repetition_penalty",
                "enable_prompt_truncation",
            )
        ),
        *(
            no_effect(
                f"explorer.rollout_model.{name}",
                None,
                f"Trinity replaces it by model.{name}",
                value_type=nullable(INTEGER),
            )
            for name in ("max_prompt_tokens", "max_response_tokens")
        ),
        refused(
            "explorer.rollout_model.ignore_eos",
            False,
            "it is for tests of long responses; remove it",
        ),
        refused(
            "explorer.rollout_model.chat_template",
            None,
            "write model.custom_chat_template",
            supported=only(None, ""),
        ),
        placement(
            "explorer.rollout_model.logprobs",
            None,
            "log-probs are always recorded",
            supported=always,
            value_type=ANY,
        ),
        *auxiliary_models.FURTHER_ROWS,
        placement(
            "explorer.rollout_model.enable_openai_api",
            False,
            "the endpoint runs whenever a workflow needs it",
            supported=always,
        ),
        placement(
            "explorer.rollout_model.enable_auto_tool_choice",
            False,
            "tool calls are always parsed",
            supported=always,
        ),
        *PARSERS,
        *(
            mapped(
                key,
                None,
                "data.chat_template_args",
                read=thinking,
                value_type=nullable(BOOLEAN),
                note="a variable of the chat template; where the key is not written, the template's default decides",
            )
            for key in _THINKING
        ),
        no_effect(
            "explorer.bench_on_latest_checkpoint",
            False,
            "bench evaluates all checkpoints, the latest included",
            value_type=BOOLEAN,
        ),
        *(
            no_effect(f"explorer.{name}", default, "Strop has no mode serve", value_type=ANY)
            for name, default in (
                ("proxy_port", 8010),
                ("listen_address", "0.0.0.0"),
                ("service_status_check_interval", 60),
                ("min_running_model_num", 1),
                ("db_url", None),
                ("api_port", 8010),
            )
        ),
        no_effect(
            "explorer.runner_state_report_interval",
            0,
            "metrics have the state of the rollouts",
            value_type=ANY,
        ),
        *(
            refused(f"explorer.{name}", default, why)
            for name, default, why in (
                ("over_rollout.ratio", 0.0, _SLOW),
                ("dynamic_timeout.enable", False, _TIMES),
            )
        ),
        *(
            no_effect(f"explorer.{name}", default, "its switch is off", value_type=NUMBER)
            for name, default in (("over_rollout.wait_after_min", 30.0), ("dynamic_timeout.ratio", 3.0))
        ),
        placement("explorer.runner_num", None, RUNNERS, supported=always, value_type=ANY),
        placement("explorer.max_repeat_times_per_runner", None, RUNNERS, supported=always, value_type=ANY),
    ),
)
LATER = versions(
    option_row("pipeline_parallel_size", NO_SHARDS),
    data_parallel_row(engines),
    expert_parallel_row(),
    *auxiliary_models.LATER,
    since="0.6",
)
"""Rows of keys that recent versions added."""

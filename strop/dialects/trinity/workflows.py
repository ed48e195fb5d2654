"""Ledger rows and converters of Trinity's workflows, and of the explorer's rollout limits, retries and
environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.workflow import WorkflowConfig
from strop.dialects.ledger.key_mapping import ForeignValues, KeyMapping, mapped, unstated_defaults, written_by
from strop.dialects.ledger.value_types import INTEGER, MAPPING, NUMBER, STRING, nullable

_MATH = {"math_workflow": "tags", "math_boxed_workflow": "boxed"}
_MATH_REWARDS = (None, "math_reward", "math_boxed_reward")
_KNOWN = ("simple_workflow", *_MATH)


def workflow_of(foreign: ForeignValues, at: str, reward: str | None) -> dict[str, Any]:
    """The workflow of a taskset; `reward` is the name of its reward function.

    A math workflow with a reward other than a math reward has no system message of its own.
    """
    key = f"{at}.default_workflow_type"
    workflow, args = (
        foreign[key] or foreign["buffer.default_workflow_type"],
        foreign[f"{at}.workflow_args"] or {},
    )
    if workflow in _MATH and reward in _MATH_REWARDS:
        return {"name": "math", "args": {"style": _MATH[workflow], **args}}
    if workflow is None or workflow in _KNOWN:
        return {"name": "single_turn", "args": args}
    if not ("." in workflow or ":" in workflow):
        raise foreign.error_for(
            key if foreign[key] else "buffer.default_workflow_type",
            f"unknown workflow {workflow}; write one of {', '.join(_KNOWN)}, or a Strop workflow of your own "
            "as "
            "`file.py:name` or a dotted path.",
        )
    return {"name": workflow, "args": args}


def brings_reward(workflow: Mapping[str, Any], reward: str | None) -> bool:
    """Whether the workflow provides the reward, so that a taskset needs no reward function."""
    if workflow["name"] == "math":
        return reward in _MATH_REWARDS
    return reward is None and workflow["name"] != "single_turn"


def write_workflow(at: str, workflow: WorkflowConfig) -> dict[str, Any]:
    """Write the workflow of a taskset."""
    styles = {style: name for name, style in _MATH.items()}
    args = dict(workflow.args)
    match workflow.name:
        case "single_turn":
            name = "simple_workflow"
        case "math":
            name = styles[args.pop("style", "boxed")]
        case _:
            name = workflow.name
    return {f"{at}.default_workflow_type": name, f"{at}.workflow_args": args or None}


def write_rollout_limits(run: Run) -> Mapping[str, Any]:
    """The time limit, retries and environment variables of rollouts."""
    return {
        "explorer.max_timeout": run.rollout.timeout_seconds,
        "explorer.max_retry_times": run.rollout.retries,
        "explorer.env_vars": run.rollout.env,
    }


@written_by(write_rollout_limits)
def rollout_limits(foreign: ForeignValues) -> Mapping[str, Any]:
    """The time limit, retries and environment variables of rollouts."""
    limit = foreign["explorer.max_timeout"]
    environment = {name: str(value) for name, value in (foreign["explorer.env_vars"] or {}).items()}
    return {
        **({} if limit is None else {"rollout.timeout_seconds": limit}),
        "rollout.retries": foreign["explorer.max_retry_times"],
        "rollout.env": environment,
    }


ROLLOUT_LIMITS: tuple[KeyMapping, ...] = unstated_defaults(
    mapped(
        "explorer.max_timeout",
        None,
        "rollout.timeout_seconds",
        read=rollout_limits,
        value_type=nullable(NUMBER),
        note="null means 3600, because all rollouts of a step start at once and waiting counts",
    ),
    mapped("explorer.max_retry_times", 2, "rollout.retries", read=rollout_limits, value_type=INTEGER),
    mapped("explorer.env_vars", {}, "rollout.env", read=rollout_limits, value_type=nullable(MAPPING)),
)


def type_row(at: str, field: str, read: Any) -> KeyMapping:
    """Row of a taskset's `default_workflow_type`."""
    return mapped(
        f"{at}.default_workflow_type",
        None,
        field,
        read=read,
        value_type=nullable(STRING),
        note="simple_workflow: single_turn; math_workflow: math with tags; math_boxed_workflow: math; or "
        "file.py:name",
    )


def args_row(at: str, field: str, read: Any) -> KeyMapping:
    """Row of a taskset's `workflow_args`."""
    return mapped(f"{at}.workflow_args", None, f"{field}.args", read=read, value_type=nullable(MAPPING))

"""Trinity's workflows, and what an explorer does with them: limits, tries, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    MAPPING,
    NUMBER,
    TEXT,
    WHOLE,
    Row,
    mapped,
    or_null,
    unstated,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.schema import Run
from strop.config.schema.workflow import Workflow

_MATH = {"math_workflow": "tags", "math_boxed_workflow": "boxed"}
_MATH_REWARDS = (None, "math_reward", "math_boxed_reward")
_KNOWN = ("simple_workflow", *_MATH)


def workflow_of(theirs: Theirs, at: str, reward: str | None) -> dict[str, Any]:
    """How a taskset's tasks become rollouts; `reward` is what scores them.

    A math workflow with another reward than mathematics has no system message of its own.
    """
    key = f"{at}.default_workflow_type"
    said, args = theirs[key] or theirs["buffer.default_workflow_type"], theirs[f"{at}.workflow_args"] or {}
    if said in _MATH and reward in _MATH_REWARDS:
        return {"name": "math", "args": {"style": _MATH[said], **args}}
    if said is None or said in _KNOWN:
        return {"name": "single_turn", "args": args}
    if not ("." in said or ":" in said):
        raise theirs.fault(
            key if theirs[key] else "buffer.default_workflow_type",
            f"there is no workflow {said}: there are {', '.join(_KNOWN)}, and those of your own, "
            "`file.py:name` or a dotted path, written as Strop's workflows are.",
        )
    return {"name": said, "args": args}


def brings_reward(workflow: Mapping[str, Any], reward: str | None) -> bool:
    """Whether a taskset is scored without a reward that is named: by the workflow, or by its own rule."""
    if workflow["name"] == "math":
        return reward in _MATH_REWARDS
    return reward is None and workflow["name"] != "single_turn"


def write_workflow(at: str, workflow: Workflow) -> dict[str, Any]:
    """A taskset's workflow in Trinity's words."""
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


def write_runs(run: Run) -> Mapping[str, Any]:
    """How long a rollout may take, how often it is tried, and under which environment."""
    return {
        "explorer.max_timeout": run.rollout.timeout_seconds,
        "explorer.max_retry_times": run.rollout.retries,
        "explorer.env_vars": run.rollout.env,
    }


@written_by(write_runs)
def runs(theirs: Theirs) -> Mapping[str, Any]:
    """How long a rollout may take, how often it is tried, and under which environment."""
    limit = theirs["explorer.max_timeout"]
    environment = {name: str(value) for name, value in (theirs["explorer.env_vars"] or {}).items()}
    return {
        **({} if limit is None else {"rollout.timeout_seconds": limit}),
        "rollout.retries": theirs["explorer.max_retry_times"],
        "rollout.env": environment,
    }


RUNS: tuple[Row, ...] = unstated(
    mapped(
        "explorer.max_timeout",
        None,
        "rollout.timeout_seconds",
        read=runs,
        kind=or_null(NUMBER),
        note="3600 where it is left out: all rollouts of a step begin at once, and waiting counts",
    ),
    mapped("explorer.max_retry_times", 2, "rollout.retries", read=runs, kind=WHOLE),
    mapped("explorer.env_vars", {}, "rollout.env", read=runs, kind=or_null(MAPPING)),
)


def type_row(at: str, ours: str, read: Any) -> Row:
    """A taskset's `default_workflow_type`."""
    return mapped(
        f"{at}.default_workflow_type",
        None,
        ours,
        read=read,
        kind=or_null(TEXT),
        note="simple_workflow: single_turn; math_workflow: math with tags; math_boxed_workflow: math; or "
        "file.py:name",
    )


def args_row(at: str, ours: str, read: Any) -> Row:
    """A taskset's `workflow_args`."""
    return mapped(f"{at}.workflow_args", None, f"{ours}.args", read=read, kind=or_null(MAPPING))

"""Ledger rows and converters of Trinity's workflows, and of the explorer's rollout limits, retries and
environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.workflow import WorkflowConfig
from strop.config.suggest import closest
from strop.dialects.ledger.key_mapping import ForeignValues, KeyMapping, mapped, unstated_defaults, written_by
from strop.dialects.ledger.value_types import INTEGER, MAPPING, NUMBER, STRING, nullable
from strop.dialects.trinity.packaged_workflows import PACKAGED

INPUT = "buffer.explorer_input"
R1_PROMPT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
    "<think> reasoning process here </think> <answer> answer here </answer>."
)
"""System message of `math_workflow`: the prompt of DeepSeek-R1 (arXiv 2501.12948, table 1)."""
BOXED_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
"""System message of `math_boxed_workflow`, as in Qwen2.5-Math."""
_THINKING_PROMPT = (
    "Solve the problem. First think about it, within <think> and </think>. Then write the final answer within "
    "\\boxed{}."
)
_MATH = ("math_workflow", "math_boxed_workflow", "math_eval_workflow")
_MATH_REWARDS = (None, "math_reward", "math_boxed_reward")
_PLAIN = ("simple_workflow",)
_KNOWN = (*_PLAIN, *_MATH, *PACKAGED)


def workflow_of(foreign: ForeignValues, at: str, reward: str | None) -> dict[str, Any]:
    """The workflow of a taskset; `reward` is the name of its reward function.

    A math workflow with a reward other than a math reward has no system message of its own.
    """
    key, name = _workflow_name(foreign, at)
    args = dict(foreign[f"{at}.workflow_args"] or {})
    if name in _MATH and reward in _MATH_REWARDS:
        if name == "math_workflow":
            return {"name": "math", "args": {"system": R1_PROMPT, **args}}
        return {"name": "math", "args": _boxed(args)}
    if name is None or name in (*_PLAIN, *_MATH):
        return {"name": "single_turn", "args": {} if name in _MATH else args}
    if name in PACKAGED:
        return {"name": PACKAGED[name], "args": args}
    if not ("." in name or ":" in name):
        close = closest(name, (*_KNOWN, *(f"async_{known}" for known in (*_PLAIN, *_MATH))))
        raise foreign.error_for(
            key,
            f"unknown workflow {name}{f'; did you mean {close}?' if close else ';'} Trinity registers "
            f"{', '.join(_KNOWN)}; for a workflow of your own write `file.py:name` or a dotted path.",
        )
    return {"name": name, "args": args}


def _boxed(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a math workflow whose answer is boxed; `with_think` also asks for think tags."""
    rest = {
        name: value
        for name, value in args.items()
        if name not in ("with_think", "use_base", "format_score_coef")
    }
    return {"system": _THINKING_PROMPT if args.get("with_think") else BOXED_PROMPT, **rest}


def _workflow_name(foreign: ForeignValues, at: str) -> tuple[str, str | None]:
    """The key that names a taskset's workflow, and the name without `async_`: both forms do the same here."""
    keys = [f"{at}.default_workflow_type", f"{INPUT}.default_workflow_type", "buffer.default_workflow_type"]
    if at != f"{INPUT}.taskset":
        keys = [f"{at}.default_eval_workflow_type", keys[0], f"{INPUT}.default_eval_workflow_type", *keys[1:]]
    key = next((key for key in keys if foreign[key]), keys[-1])
    return key, foreign[key] and str(foreign[key]).removeprefix("async_")


def is_boxed(foreign: ForeignValues, at: str) -> bool:
    """Whether a math workflow of the taskset reads a boxed answer: by its name, or by the taskset's own system
    message."""
    _, name = _workflow_name(foreign, at)
    system = foreign[f"{at}.format.system_prompt"] or foreign[f"{INPUT}.system_prompt"] or ""
    return name in ("math_boxed_workflow", "math_eval_workflow") or (
        name == "math_workflow" and "boxed{" in system
    )


def brings_reward(workflow: Mapping[str, Any], reward: str | None) -> bool:
    """Whether the workflow provides the reward, so that a taskset needs no reward function."""
    return reward is None and workflow["name"] not in ("single_turn", "math")


def write_workflow(at: str, workflow: WorkflowConfig) -> dict[str, Any]:
    """Write the workflow of a taskset."""
    args = dict(workflow.args)
    names = {path: name for name, path in PACKAGED.items()}
    match workflow.name, args.get("system"):
        case "single_turn", _:
            name = "simple_workflow"
        case "math", system:
            name = "math_workflow" if system == R1_PROMPT else "math_boxed_workflow"
            if system in (R1_PROMPT, BOXED_PROMPT):
                del args["system"]
            if system == _THINKING_PROMPT:
                args = {key: value for key, value in args.items() if key != "system"} | {"with_think": True}
        case _:
            name = names.get(workflow.name, workflow.name)
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
        note="simple_workflow: single_turn; math_workflow and math_boxed_workflow: math; a name that Trinity "
        "registers: its class in the package trinity-rft; or file.py:name",
    )


def args_row(at: str, field: str, read: Any) -> KeyMapping:
    """Row of a taskset's `workflow_args`."""
    return mapped(f"{at}.workflow_args", None, f"{field}.args", read=read, value_type=nullable(MAPPING))

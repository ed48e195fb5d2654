"""Ledger rows and converters of Trinity's workflows, and of the explorer's rollout limits, retries and
environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e.,\n"
    "<think> reasoning process here </think>\n<answer> answer here </answer>.\n"
)
"""System message of `math_workflow`: the prompt of DeepSeek-R1 (arXiv 2501.12948, table 1), on three lines."""
BOXED_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
"""System message of `math_boxed_workflow`, as in Qwen2.5-Math."""
_THINKING_PROMPT = (
    "Solve the problem. First think about it, within <think> and </think>. Then write the final answer within "
    "\\boxed{}."
)
_TAGGED = "math_workflow"
_BOXED = ("math_boxed_workflow", "math_eval_workflow")
_MATH = (_TAGGED, *_BOXED)
_PLAIN = ("simple_workflow",)
_KNOWN = (*_PLAIN, *_MATH, *PACKAGED)


def workflow_of(foreign: ForeignValues, at: str, reward: str | None) -> dict[str, Any]:
    """The workflow of a taskset; `reward` is the name of its reward function.

    math_workflow with a reward other than math_reward has no system message of its own.
    """
    key, name = _workflow_name(foreign, at)
    args = dict(foreign[f"{at}.workflow_args"] or {})
    if name in _BOXED:
        return {"name": "math", "args": _boxed(args)}
    if name == _TAGGED:
        tags = {"name": "math", "args": {"system": R1_PROMPT, **args}}
        return tags if reward in (None, "math_reward") else {"name": "single_turn", "args": {}}
    if name in (None, *_PLAIN):
        return {"name": "single_turn", "args": args}
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


def default_reward(foreign: ForeignValues, at: str, reward: str | None) -> str | None:
    """The reward of a taskset: a math workflow has one of its own where none is named, and math_eval_workflow
    always."""
    _, name = _workflow_name(foreign, at)
    if name == "math_eval_workflow" or (reward is None and name in _BOXED):
        return "math_boxed_reward"
    return "math_reward" if reward is None and name == _TAGGED else reward


def evaluation_sampling(foreign: ForeignValues, at: str) -> dict[str, float]:
    """The sampling that math_eval_workflow has, whatever the taskset's rollout_args say."""
    is_evaluation = _workflow_name(foreign, at)[1] == "math_eval_workflow"
    return {"temperature": 0.6, "top_p": 0.8} if is_evaluation else {}


def prompt_differences(at: str) -> Callable[[ForeignValues], str | None]:
    """A notice where the prompt of a taskset's workflow differs from Trinity's."""

    def difference(foreign: ForeignValues) -> str | None:
        _, name = _workflow_name(foreign, at)
        args = foreign[f"{at}.workflow_args"] or {}
        if name == "math_boxed_workflow" and args.get("use_base"):
            return "use_base has no effect: the prompt has the model's chat template, and Trinity's is plain text"
        if name == "math_eval_workflow":
            return (
                "the request for a boxed answer is the system message, and in Trinity the end of the question"
            )
        if name == "math_boxed_workflow" and args.get("with_think"):
            return "the system message that asks for think tags is Strop's; format.system_prompt replaces it"
        return None

    return difference


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
        warn=prompt_differences(at if at != "buffer" and at != INPUT else f"{INPUT}.taskset"),
    )


def args_row(at: str, field: str, read: Any) -> KeyMapping:
    """Row of a taskset's `workflow_args`."""
    return mapped(f"{at}.workflow_args", None, f"{field}.args", read=read, value_type=nullable(MAPPING))

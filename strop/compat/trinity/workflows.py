"""Ledger rows and converters of Trinity's workflows, and of the explorer's rollout limits, retries and
environment."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, KeyMapping, mapped, unstated_defaults, written_by
from strop.compat.ledger.value_types import INTEGER, MAPPING, NUMBER, STRING, nullable
from strop.compat.trinity import formats
from strop.compat.trinity.packaged_workflows import PACKAGED
from strop.config.schema import Run
from strop.config.schema.workflow import WorkflowConfig

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
_DISTILL, _DISTILL_MATH = "on_policy_distill_workflow", "on_policy_distill_math_workflow"
_BOXED = ("math_boxed_workflow", "math_eval_workflow", _DISTILL_MATH)
_MATH = (_TAGGED, *_BOXED)
_PLAIN = ("simple_workflow", _DISTILL)
_WITH_IMAGES = "simple_mm_workflow"
_KNOWN = (*_PLAIN, *_MATH, _WITH_IMAGES, *PACKAGED)
_MISSPELLING = 0.85
"""Similarity from which on an unknown name is a known one, misspelled."""
PLUGIN_FOLDERS = "TRINITY_PLUGIN_DIRS"
"""Environment variable with the folders of --plugin-dir."""


def workflow_of(foreign: ForeignValues, at: str, reward: str | None) -> dict[str, Any]:
    """The workflow of a taskset; `reward` is the name of its reward function.

    math_workflow with a reward other than math_reward has no system message of its own. All that Strop does not
    have itself runs through the workflow `trinity`.
    """
    key, name = _workflow_name(foreign, at)
    args = dict(foreign[f"{at}.workflow_args"] or {})
    if name in (_DISTILL, _DISTILL_MATH):
        args.pop("temperature", None)  # the teacher's
    if name in _BOXED:
        return {"name": "math", "args": _boxed(args)}
    if name == _TAGGED:
        tags = {"name": "math", "args": {"system": R1_PROMPT, **args}}
        return tags if reward in (None, "math_reward") else {"name": "single_turn", "args": {}}
    if name == _WITH_IMAGES:
        return {"name": "math", "args": {"system": _THINKING_PROMPT, **args}}
    if name is None or name in _PLAIN:
        return {"name": "single_turn", "args": args}
    if ":" in name:
        return {"name": name, "args": args}
    if name not in PACKAGED and "." not in name:
        _require_no_misspelling(foreign, key, name)
    settings = {
        "workflow": name,
        "args": args,
        "reward_fn": reward,
        "reward_fn_args": foreign[f"{at}.reward_fn_args"],
        "format": formats.texts(foreign, at),
        "plugins": _plugin_folders(),
        "is_eval": at != f"{INPUT}.taskset",
    }
    return {"name": "trinity", "args": {key: value for key, value in settings.items() if value}}


def _plugin_folders() -> list[str]:
    """Folders of user files that register workflows, which the command line or the environment names."""
    return [folder for folder in os.environ.get(PLUGIN_FOLDERS, "").split(os.pathsep) if folder]


def _require_no_misspelling(foreign: ForeignValues, key: str, name: str) -> None:
    """Any other name may be one that a file of a plugin folder registers, which shows when the run starts."""
    known = (*_KNOWN, *(f"async_{each}" for each in _KNOWN))
    close = difflib.get_close_matches(name, known, n=1, cutoff=_MISSPELLING)
    if close:
        raise foreign.error_for(
            key,
            f"unknown workflow {name}; did you mean {close[0]}? For a workflow of your own write a dotted path, "
            "`file.py:name`, or a name that a file of --plugin-dir registers.",
        )


def _boxed(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a math workflow whose answer is boxed; `with_think` also asks for think tags."""
    rest = {
        name: value
        for name, value in args.items()
        if name not in ("with_think", "use_base", "format_score_coef")
    }
    return {"system": _THINKING_PROMPT if args.get("with_think") else BOXED_PROMPT, **rest}


def _workflow_name(foreign: ForeignValues, at: str) -> tuple[str, str | None]:
    """The key that names a taskset's workflow, and the name; without `async_` if it is Trinity's, because both
    forms do the same here."""
    keys = [f"{at}.default_workflow_type", f"{INPUT}.default_workflow_type", "buffer.default_workflow_type"]
    if at != f"{INPUT}.taskset":
        keys = [f"{at}.default_eval_workflow_type", keys[0], f"{INPUT}.default_eval_workflow_type", *keys[1:]]
    key = next((key for key in keys if foreign[key]), keys[-1])
    name = foreign[key] and str(foreign[key])
    plain = name and name.removeprefix("async_")
    return key, plain if plain in _KNOWN else name


def default_reward(foreign: ForeignValues, at: str, reward: str | None) -> str | None:
    """The reward of a taskset: a math workflow has one of its own where none is named, and math_eval_workflow
    always."""
    _, name = _workflow_name(foreign, at)
    if name in ("math_eval_workflow", _DISTILL_MATH) or (reward is None and name in _BOXED):
        return "math_boxed_reward"
    return "math_reward" if reward is None and name == _TAGGED else reward


def is_unscored(foreign: ForeignValues, at: str) -> bool:
    """Whether the taskset's workflow gives every response the reward 0, because a teacher gives the signal."""
    return _workflow_name(foreign, at)[1] == _DISTILL


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
        if name in ("math_eval_workflow", _DISTILL_MATH):
            return (
                "the request for a boxed answer is the system message, and in Trinity the end of the question"
            )
        if name == _WITH_IMAGES or (name == "math_boxed_workflow" and args.get("with_think")):
            return "the system message that asks for think tags is Strop's; format.system_prompt replaces it"
        return None

    return difference


def brings_reward(workflow: Mapping[str, Any], reward: str | None) -> bool:
    """Whether the workflow provides the reward, so that the run has no reward function of its own."""
    if workflow["name"] == "trinity":
        return True
    return reward is None and workflow["name"] not in ("single_turn", "math")


def write_workflow(at: str, workflow: WorkflowConfig) -> dict[str, Any]:
    """Write the workflow of a taskset."""
    args = dict(workflow.args)
    match workflow.name, args.get("system"):
        case "trinity", _:
            name, args = args["workflow"], args.get("args") or {}
        case "single_turn", _:
            name = "simple_workflow"
        case "math", system:
            name = "math_workflow" if system == R1_PROMPT else "math_boxed_workflow"
            if system in (R1_PROMPT, BOXED_PROMPT):
                del args["system"]
            if system == _THINKING_PROMPT:
                args = {key: value for key, value in args.items() if key != "system"} | {"with_think": True}
        case _:
            name = workflow.name
    return {f"{at}.default_workflow_type": name, f"{at}.workflow_args": args or None}


def write_unscored_workflow(at: str, workflow: WorkflowConfig, temperature: float | None) -> dict[str, Any]:
    """Write the workflow of a distillation without a reward, whose argument is the teacher's temperature."""
    if workflow.name != "single_turn":
        return {}
    args = dict(workflow.args) | ({} if temperature in (None, 1.0) else {"temperature": temperature})
    return {f"{at}.default_workflow_type": _DISTILL, f"{at}.workflow_args": args or None}


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
        note="simple_workflow: single_turn; math_workflow and math_boxed_workflow: math; a dotted path, or a name that "
        "Trinity or a file of --plugin-dir registers: trinity; file.py:name for a workflow of Strop",
        warn=prompt_differences(at if at != "buffer" and at != INPUT else f"{INPUT}.taskset"),
    )


def args_row(at: str, field: str, read: Any) -> KeyMapping:
    """Row of a taskset's `workflow_args`."""
    return mapped(f"{at}.workflow_args", None, f"{field}.args", read=read, value_type=nullable(MAPPING))

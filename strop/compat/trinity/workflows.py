"""Trinity's workflows and reward functions as those of a run, and back."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues
from strop.compat.trinity import formats
from strop.compat.trinity.formats import INPUT
from strop.config.schema.policy_gradient import OverlongPenaltyConfig
from strop.config.schema.reward import RewardFunctionConfig
from strop.config.schema.rollout import WorkflowConfig

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
_PLAIN = ("simple_workflow", _DISTILL)
_WITH_IMAGES = "simple_mm_workflow"
PACKAGED: Mapping[str, str] = {
    "math_rm_workflow": "the package rm-gallery, for its reward",
    "math_ruler_workflow": "an auxiliary model, which compares the responses of a group",
    "math_trainable_ruler_workflow": "",
    "math_based_model_workflow": "",
    "rubric_judge_workflow": "an auxiliary model, which judges",
    "rubric_judge_openai_workflow": "the API of a judge",
    "tool_call_workflow": "",
    "toolcall_workflow": "",
    "sudoku_workflow": "",
    "thinking_budget_workflow": "",
    "agentscope_workflow_adapter": "the package agentscope",
    "agentscope_workflow_adapter_v1": "the package agentscope",
    "agentscope_react_workflow": "the package agentscope",
    "as_react_workflow": "the package agentscope",
    "agentscope_react_math_workflow": "the package agentscope",
    "agentscopev0_react_math_workflow": "the package agentscope",
    "agentscope_reactv2_math_workflow": "the package agentscope",
    "agentscope_v1_react_search_workflow": "the package agentscope",
    "email_search_workflow": "the package agentscope, and a database of emails",
    "bcp_simple_react_workflow": "a search index of BrowseComp-Plus",
    "alfworld_workflow": "the package alfworld",
    "alfworld_workflow_v2": "the package alfworld",
    "step_wise_alfworld_workflow": "the package alfworld",
    "RAFT_alfworld_workflow": "the package alfworld",
    "RAFT_reflect_alfworld_workflow": "the package alfworld",
    "frozen_lake_workflow": "the package gymnasium",
    "sciworld_workflow": "the package scienceworld, and Java",
    "webshop_workflow": "the package web_agent_site of WebShop",
    "intercode_sql_workflow": "the package intercode",
}
"""Needs of each workflow besides trinity-rft. A configuration with one is read; `--check` says what is missing."""
_KNOWN = (*_PLAIN, _TAGGED, *_BOXED, _WITH_IMAGES, *PACKAGED)
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


TRAINS_ON_VERDICTS = ("math_trainable_ruler_workflow",)
"""Workflows whose experiences are the rollouts of a task and the replies in which the model judged them."""


def package_fault(name: str) -> str | None:
    """Why a workflow of Trinity's package cannot run; None for any other name."""
    if name not in PACKAGED:
        return None
    needs = f", which needs {PACKAGED[name]}" if PACKAGED[name] else ""
    return (
        f"rollout.workflow trinity: {name} is a class of the package trinity-rft{needs}. Strop has none of its files: "
        "copy the file of the class and name it as file.py:Class, or write its episode for Strop, as a class with "
        "`async def run(self, task, chat)`."
    )


_BOXED_REWARD = RewardFunctionConfig(function="trinity_math_boxed", name="accuracy")
REWARDS: Mapping[str, tuple[RewardFunctionConfig, ...]] = {
    "math_reward": (
        RewardFunctionConfig(function="trinity_math", name="accuracy"),
        RewardFunctionConfig(function="format", weight=0.1, args={"method": "ending", "wrong": -1.0}),
    ),
    "math_boxed_reward": (_BOXED_REWARD,),
    "math_dapo_reward": (RewardFunctionConfig(function="trinity_math_dapo", name="accuracy"),),
    "accuracy_reward": (RewardFunctionConfig(function="trinity_accuracy", name="accuracy"),),
    "format_reward": (RewardFunctionConfig(function="trinity_format"),),
    "countdown_reward": (RewardFunctionConfig(function="trinity_countdown"),),
}
"""Parts of each reward, with the extraction rules, values and metric names of Trinity 0.6. In 0.3, math_dapo_reward had
the rules of math_boxed_reward."""
THINKING = RewardFunctionConfig(
    function="format", name="think", weight=0.1, args={"method": "think", "right": 0.0, "wrong": -1.0}
)
"""Penalty of a response without one pair of think tags."""
_OVERLONG = ("enable_overlong_penalty", "penalty_factor", "max_response_length", "cache_length")
_WAITING = {"rm_gallery_reward": "trinity.common.rewards.reward_fn.RMGalleryFn"}
"""Rewards of Trinity that need its package."""


def reward_functions(
    name: str, args: Mapping[str, Any], *, boxed_with_think: bool = False, later: bool = True
) -> list[dict[str, Any]]:
    """The parts of a reward by its name in Trinity, or the user's own function."""
    if name == "math_dapo_reward":
        args = {key: value for key, value in args.items() if key not in _OVERLONG}
    parts = REWARDS.get(name) or (RewardFunctionConfig(function=_WAITING.get(name, name)),)
    if name == "math_dapo_reward" and not later:
        parts = (_BOXED_REWARD,)
    if name == "math_boxed_reward":
        with_think = bool(args.get("with_think", boxed_with_think))
        coef = float(args.get("format_score_coef") or 0.1)
        args = {key: value for key, value in args.items() if key not in ("with_think", "format_score_coef")}
        if with_think:
            penalty = THINKING.model_copy(update={"weight": coef})
            parts = (*parts, penalty)
    listed = [part.model_dump(exclude_defaults=True) for part in parts]
    if args:
        listed[0]["args"] = {**listed[0].get("args", {}), **args}
    return listed


def overlong_penalty(foreign: ForeignValues, name: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """The soft penalty of long responses, which Trinity's `math_dapo_reward` has among its arguments."""
    if name != "math_dapo_reward" or not args.get("enable_overlong_penalty"):
        return {}
    return {
        "algorithm.overlong_penalty": {
            "buffer_tokens": args.get("cache_length", 4096),
            "factor": args.get("penalty_factor", 1.0),
        }
    }


def write_overlong_penalty(penalty: OverlongPenaltyConfig) -> dict[str, Any]:
    """The penalty as arguments of `math_dapo_reward`."""
    return {
        "enable_overlong_penalty": True,
        "penalty_factor": penalty.factor,
        "cache_length": penalty.buffer_tokens,
    }


def reward_name(functions: Sequence[RewardFunctionConfig]) -> tuple[str, dict[str, Any]]:
    """Trinity's name of a run's reward and its arguments; the first function where Trinity has no such reward."""
    for name, parts in REWARDS.items():
        if tuple(functions) == parts:
            return name, {}
    first, rest = functions[0], tuple(functions[1:])
    for name, (part, *others) in REWARDS.items():
        if (
            tuple(others) == rest
            and part.function == first.function
            and part.args.items() <= first.args.items()
        ):
            return name, {key: value for key, value in first.args.items() if part.args.get(key) != value}
    if rest and first == _BOXED_REWARD and rest[0].name == THINKING.name:
        return "math_boxed_reward", {"with_think": True, "format_score_coef": rest[0].weight}
    return first.function, dict(first.args)

"""Modules of the package `trinity` that files of workflows import."""

from __future__ import annotations

from typing import Any

from strop.compat.trinity.interface import base, step_wise
from strop.compat.trinity.interface.experience import EID, TrinityExperience
from strop.compat.trinity.interface.model import ModelWrapper
from strop.compat.trinity.interface.rewards import DISTRIBUTION, TRINITY, Registry, provide_reward_modules
from strop.compat.trinity.interface.task import FormatConfig, TrinityGenerationConfig, TrinityTask
from strop.provided_modules import provide_modules

_BASES: dict[str, Any] = {
    kind.__name__.removeprefix("Trinity"): kind
    for kind in (
        base.Workflow,
        base.MultiTurnWorkflow,
        base.BaseSimpleWorkflow,
        base.SimpleWorkflow,
        base.AsyncSimpleWorkflow,
        base.TrinityMathWorkflow,
        base.AsyncMathWorkflow,
    )
}
_BOXED: dict[str, Any] = {
    kind.__name__.removeprefix("Trinity"): kind
    for kind in (base.MathBoxedWorkflow, base.AsyncMathBoxedWorkflow)
}
_STEP_WISE: dict[str, Any] = {
    kind.__name__.removeprefix("Trinity"): kind
    for kind in (
        step_wise.StepWiseRewardWorkflow,
        step_wise.AsyncStepWiseRewardWorkflow,
        step_wise.RewardPropagationWorkflow,
        step_wise.AsyncRewardPropagationWorkflow,
    )
}
WORKFLOWS = Registry(
    "workflows",
    {
        "simple_workflow": base.SimpleWorkflow,
        "async_simple_workflow": base.AsyncSimpleWorkflow,
        "math_workflow": base.TrinityMathWorkflow,
        "async_math_workflow": base.AsyncMathWorkflow,
        "math_boxed_workflow": base.MathBoxedWorkflow,
        "async_math_boxed_workflow": base.AsyncMathBoxedWorkflow,
    },
)
"""Workflows by the names under which files register them."""


def provide_workflow_modules() -> None:
    """Let files of workflows and reward functions import their names from the package `trinity`."""
    provide_reward_modules()
    task: dict[str, Any] = {"Task": TrinityTask, "WORKFLOWS": WORKFLOWS}
    provide_modules(
        TRINITY,
        DISTRIBUTION,
        {
            "trinity.common.config": {
                "FormatConfig": FormatConfig,
                "GenerationConfig": TrinityGenerationConfig,
            },
            "trinity.common.experience": {"Experience": TrinityExperience, "EID": EID},
            "trinity.common.models.model": {"ModelWrapper": ModelWrapper},
            "trinity.common.workflows": {**task, **_BASES, **_BOXED},
            "trinity.common.workflows.workflow": {**task, **_BASES},
            "trinity.common.workflows.customized_math_workflows": {**task, **_BOXED},
            "trinity.common.workflows.step_wise_workflow": _STEP_WISE,
        },
    )

"""Names of Trinity-RFT in a run, and what each stands for."""

from __future__ import annotations

from strop.extensions import Extension

EXTENSION = Extension(
    rewards={
        f"trinity_{name}": f"strop.compat.trinity.scorers.trinity_{name}_reward"
        for name in ("math", "math_boxed", "math_dapo", "accuracy", "format", "countdown")
    },
    reward_classes={"RewardFn": "strop.compat.trinity.interface.rewards.construct_reward_fn"},
    workflows={"trinity": "strop.compat.trinity.interface.adapter.TrinityWorkflow"},
    workflow_classes={"Workflow": "trinity"},
    modules="strop.compat.trinity.interface.adapter.provide_workflow_modules",
)

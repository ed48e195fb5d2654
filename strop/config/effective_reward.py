"""Rewards of a run: those of the run file, of eval tasksets, and the default rewards of workflows."""

from __future__ import annotations

from collections.abc import Mapping

from strop.config.schema.reward import RewardConfig, RewardFunctionConfig
from strop.config.schema.rollout import WorkflowConfig
from strop.config.schema.run import Run


def configured_rewards(run: Run) -> Mapping[str, RewardConfig]:
    """Return every `reward` section of the run file by its key."""
    own = {
        f"data.eval.{index}.reward": taskset.reward
        for index, taskset in enumerate(run.data.eval)
        if taskset.reward is not None
    }
    return {"reward": run.reward, **own}


def workflow_rewards(workflow: WorkflowConfig) -> tuple[RewardFunctionConfig, ...]:
    """Return the default reward functions of a workflow, for a run file without a reward."""
    if workflow.name != "math":
        return ()
    math, form = RewardFunctionConfig(function="math"), RewardFunctionConfig(function="format", weight=0.1)
    return (math, form) if workflow.args.get("style") == "tags" else (math,)


def effective_reward(run: Run) -> RewardConfig:
    """Return `reward`, or the workflow's default reward if the run file has none."""
    if not run.reward.is_empty:
        return run.reward
    return run.reward.model_copy(update={"functions": workflow_rewards(run.rollout.workflow)})


def lacks_reward(run: Run) -> bool:
    """Return whether nothing scores the training rollouts, which distillation alone does not need: no part of
    `reward`, and no workflow that may."""
    if not run.algorithm.trains_on_reward:
        return False
    return effective_reward(run).is_empty and run.rollout.workflow.name in ("single_turn", "tools")

"""What scores the answers of a run: its `reward`, an eval taskset's own, or what a workflow brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from strop.config.schema.reward import Reward, RewardFunction
from strop.config.schema.workflow import Workflow

if TYPE_CHECKING:
    from strop.config.schema.run import Run


def written_rewards(run: Run) -> Mapping[str, Reward]:
    """Every `reward` of the run file, by its field."""
    own = {
        f"data.eval.{index}.reward": taskset.reward
        for index, taskset in enumerate(run.data.eval)
        if taskset.reward is not None
    }
    return {"reward": run.reward, **own}


def brought_by(workflow: Workflow) -> tuple[RewardFunction, ...]:
    """What a workflow's answers are scored with where no reward is written."""
    if workflow.name != "math":
        return ()
    math, form = RewardFunction(function="math"), RewardFunction(function="format", weight=0.1)
    return (math, form) if workflow.args.get("style") == "tags" else (math,)


def scored_by(run: Run) -> Reward:
    """`reward`, or what the workflow brings where nothing is written."""
    if not run.reward.is_empty:
        return run.reward
    return run.reward.model_copy(update={"functions": brought_by(run.rollout.workflow)})


def needs_reward(run: Run) -> bool:
    """Whether nothing would score an answer to train on: no part of `reward`, and no workflow that may."""
    return scored_by(run).is_empty and run.rollout.workflow.name in ("single_turn", "tools")


def devices(run: Run) -> Mapping[str, str]:
    """Where the run's models are to be, by the field that says so."""
    scoring = {
        f"{where}.models.{index}.device": model.device
        for where, reward in written_rewards(run).items()
        for index, model in enumerate(reward.models)
    }
    return {"trainer.engine.device": run.trainer.engine.device, **scoring}


def check_helpers(run: Run) -> None:
    """Raises ValueError for auxiliary models of one name, and for a judge that is none of them."""
    names = [model.name for model in run.rollout.auxiliary_models]
    called = [*names, run.rollout.endpoint.model]
    doubled = sorted({name for name in called if called.count(name) > 1})
    if doubled:
        raise ValueError(f"rollout.auxiliary_models: two models would be called {doubled[0]!r}")
    for where, reward in written_rewards(run).items():
        for judge in reward.judges:
            if judge.url == "auxiliary" and judge.model not in names:
                there = ", ".join(names) or "none"
                raise ValueError(
                    f"{where}.judges ({judge.name}).model: there is no {judge.model!r} in "
                    f"rollout.auxiliary_models; there is {there}"
                )

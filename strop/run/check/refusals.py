"""Findings of a check, and the refusals of a run that its configuration and the sizes of its data show; `train` and
`strop check` both ask them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from strop.config.schema.data import EvalTasksetConfig
from strop.config.schema.run import Run
from strop.errors import CheckpointError, ConfigError
from strop.python_rewards import PythonRewards
from strop.reward_comparison import exceeds, reaches
from strop.run.state.run_state import RunState


def require_eval_data(run: Run, reward: PythonRewards | None) -> None:
    """Raises `ConfigError` for an eval taskset of SFT or DPO with neither demonstrations or pairs nor a reward."""
    if faults := list(eval_data_faults(run, reward)):
        raise ConfigError(*faults)


def eval_data_faults(run: Run, reward: PythonRewards | None) -> Iterator[str]:
    """Yield an error for each eval taskset of SFT or DPO that cannot be evaluated."""
    for taskset in run.data.eval:
        if taskset.is_sampled and not is_evaluated_by_reward(run, taskset, reward):
            yield (
                f"data.eval ({taskset.name}): there is no way to evaluate it. Name its response columns, as in "
                "data.train, to evaluate by the loss, or write a `reward` that scores sampled completions."
            )


def is_evaluated_by_reward(run: Run, taskset: EvalTasksetConfig, reward: PythonRewards | None) -> bool:
    """Whether an eval taskset of SFT or DPO is evaluated by the reward of sampled completions."""
    if taskset.text is not None:
        return False
    section = run.reward if taskset.reward is None else taskset.reward
    return not section.is_empty or (reward is not None and taskset.reward is None)


def turn_states_fault() -> str:
    """The fault of gigpo under a workflow that reports no states of an environment."""
    return (
        "algorithm.type gigpo compares turns by the states of an environment, and the workflow reported none; write "
        "`rollout.workflow: {name: environment, ...}`, return `turn_states` in the WorkflowResult, or write "
        "algorithm.type: grpo."
    )


def missing_component(metric: str, task_id: str, parts: Iterable[str]) -> str:
    """The fault of a reward without the component by which groups are chosen."""
    return (
        f"algorithm.dynamic_sampling.metric: the reward of task {task_id!r} has no component {metric!r}; it has "
        f"{', '.join(parts)}."
    )


def missing_part(name: str, task_id: str, parts: Iterable[str]) -> str:
    """The fault of rewards without a part that gdpo names."""
    return (
        f"algorithm.reward_parts: the reward of task {task_id!r} has no part {name!r}; it has "
        f"{', '.join(parts) or 'none'}, and no other reward of this step has the part."
    )


def is_probability(reward: float) -> bool:
    """Whether a reward is between 0 and 1, up to the rounding of a sum."""
    return reaches(reward, 0) and not exceeds(reward, 1)


def no_probability(task_id: str, reward: float) -> str:
    """The fault of a reward under prime that is not between 0 and 1."""
    return (
        "algorithm.type prime reads the reward as the probability that a response is right, but the reward of task "
        f"{task_id!r} is {reward}. Write a reward between 0 and 1."
    )


def require_tasks_taken(run: Run, state: RunState, checkpoint: Path | None) -> None:
    """Raise CheckpointError for a checkpoint with which a run that samples its own rollouts cannot go on."""
    if state.step > run.trainer.warmup_steps and not state.tasks_taken:
        raise CheckpointError(
            f"{checkpoint} was written by a run whose explorer was a separate process, so it does not say which tasks "
            "come next. To start from its weights, set model.path to that run's `model` folder."
        )


@dataclass(slots=True)
class Findings:
    """Findings of a part of the check, one line each."""

    faults: list[str] = field(default_factory=list)
    """Why the run cannot start."""
    advice: list[str] = field(default_factory=list)
    """Warnings about a run that can start."""
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Append the lines of another part."""
        self.faults += other.faults
        self.advice += other.advice
        self.checked += other.checked
        self.unchecked += other.unchecked

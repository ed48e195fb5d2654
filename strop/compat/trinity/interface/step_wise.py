"""`trinity.common.workflows.step_wise_workflow`: workflows in steps, each of which calls the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strop.compat.trinity.interface.base import Workflow
from strop.compat.trinity.interface.experience import TrinityExperience
from strop.compat.trinity.interface.model import AuxiliaryModelWrapper, ModelWrapper
from strop.compat.trinity.interface.task import TrinityTask


class _StepWiseWorkflow(Workflow):
    """Steps until `step` returns False, or for `max_step_num` steps."""

    def __init__(
        self,
        *,
        task: TrinityTask,
        model: ModelWrapper,
        auxiliary_models: Sequence[AuxiliaryModelWrapper] | None = None,
        use_openai_client: bool = True,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.client: Any = None
        if use_openai_client:
            self.client = model.get_openai_async_client() if self.is_async else model.get_openai_client()

    @property
    def max_step_num(self) -> int:
        """Maximum number of steps."""
        raise NotImplementedError

    def step(self, step_num: int) -> bool:
        """One step; returns whether to continue."""
        raise NotImplementedError

    async def step_async(self, step_num: int) -> bool:
        """One step; returns whether to continue."""
        raise NotImplementedError

    def _experiences_of_step(self, step_num: int) -> list[TrinityExperience]:
        found = self.model.extract_experience_from_history()
        for experience in found:
            experience.eid.step = step_num
        return found


class StepWiseRewardWorkflow(_StepWiseWorkflow):
    """Each step has its own reward."""

    def run(self) -> list[TrinityExperience]:
        """All steps."""
        experiences: list[TrinityExperience] = []
        for number in range(self.max_step_num):
            is_continued = self.step(step_num=number)
            found = self._experiences_of_step(number)
            reward = self.reward(found, step_num=number)
            experiences.extend(_with_reward(found, reward))
            if not is_continued:
                break
        return experiences

    def reward(self, exps: list[TrinityExperience], step_num: int) -> float:
        """Reward of a step."""
        raise NotImplementedError


class AsyncStepWiseRewardWorkflow(StepWiseRewardWorkflow):
    """`StepWiseRewardWorkflow` with `async`."""

    is_async = True

    async def run_async(self) -> list[TrinityExperience]:
        """All steps."""
        experiences: list[TrinityExperience] = []
        for number in range(self.max_step_num):
            is_continued = await self.step_async(step_num=number)
            found = self._experiences_of_step(number)
            reward = await self.reward_async(found, step_num=number)
            experiences.extend(_with_reward(found, reward))
            if not is_continued:
                break
        return experiences

    async def reward_async(self, exps: list[TrinityExperience], step_num: int) -> float:
        """Reward of a step."""
        raise NotImplementedError


class RewardPropagationWorkflow(_StepWiseWorkflow):
    """All steps have the reward of the whole run."""

    def run(self) -> list[TrinityExperience]:
        """All steps."""
        experiences: list[TrinityExperience] = []
        number = 0
        for number in range(self.max_step_num):
            is_continued = self.step(step_num=number)
            experiences.extend(self._experiences_of_step(number))
            if not is_continued:
                break
        return _with_steps(_with_reward(experiences, self.reward(experiences)), number + 1)

    def reward(self, exps: list[TrinityExperience]) -> float:
        """Reward of the run."""
        raise NotImplementedError


class AsyncRewardPropagationWorkflow(RewardPropagationWorkflow):
    """`RewardPropagationWorkflow` with `async`."""

    is_async = True

    async def run_async(self) -> list[TrinityExperience]:
        """All steps."""
        experiences: list[TrinityExperience] = []
        number = 0
        for number in range(self.max_step_num):
            is_continued = await self.step_async(step_num=number)
            experiences.extend(self._experiences_of_step(number))
            if not is_continued:
                break
        return _with_steps(_with_reward(experiences, await self.reward_async(experiences)), number + 1)

    async def reward_async(self, exps: list[TrinityExperience]) -> float:
        """Reward of the run."""
        raise NotImplementedError


def _with_reward(experiences: list[TrinityExperience], reward: float) -> list[TrinityExperience]:
    for experience in experiences:
        experience.reward = reward
    return experiences


def _with_steps(experiences: list[TrinityExperience], steps: int) -> list[TrinityExperience]:
    for experience in experiences:
        experience.metrics["actual_env_steps"] = float(steps)
    return experiences

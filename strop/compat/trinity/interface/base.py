"""`trinity.common.workflows`: base classes of workflows written for Trinity-RFT, and the tasks that they get."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from strop.compat.trinity.interface.experience import TrinityExperience
from strop.compat.trinity.interface.model import AuxiliaryModelWrapper, ModelWrapper
from strop.compat.trinity.interface.rewards import REWARD_FN_CLASSES, get_logger, is_reward_fn
from strop.compat.trinity.workflows import BOXED_PROMPT, R1_PROMPT


@dataclass
class FormatConfig:
    """Columns and texts of a taskset: `format` in a Trinity configuration."""

    prompt_type: Any = None
    prompt_key: str = "prompt"
    response_key: str = "response"
    messages_key: str = "message"
    tools_key: str | None = None
    system_prompt: str | None = None
    system_prompt_key: str | None = None
    reply_prefix: str | None = None
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    workflow_key: str = ""
    reward_fn_key: str = ""


@dataclass
class TrinityGenerationConfig:
    """Sampling of a taskset: `rollout_args` in a Trinity configuration."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    logprobs: int = 0


@dataclass
class TrinityTask:
    """A row of a taskset, with what a workflow needs to run it."""

    workflow: Any = None
    repeat_times: int | None = 1
    format_args: FormatConfig = field(default_factory=FormatConfig)
    rollout_args: TrinityGenerationConfig = field(default_factory=TrinityGenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: Any = None
    raw_task: dict[str, Any] | None = None
    """The row."""
    batch_id: int | str = ""
    task_id: int | str = ""
    run_id: int = 0
    index: dict[str, Any] = field(default_factory=dict)

    @property
    def task_desc(self) -> Any:
        """Value of the prompt column."""
        return (self.raw_task or {}).get(self.format_args.prompt_key)

    @property
    def truth(self) -> Any:
        """Value of the answer column."""
        return (self.raw_task or {}).get(self.format_args.response_key)

    def to_dict(self) -> dict[str, Any] | None:
        """The row."""
        return self.raw_task


class Workflow:
    """One task: `run` calls the model and returns experiences with their rewards."""

    can_reset: bool = False
    """Whether `reset(task)` prepares the object for another task, so that it is constructed once."""
    can_repeat: bool = False
    """Whether one run gives the experiences of `repeat_times` rollouts; Strop asks for one."""
    is_async: bool = False
    """Whether `run_async` is run in place of `run`."""

    def __init__(
        self,
        *,
        task: TrinityTask,
        model: ModelWrapper,
        auxiliary_models: Sequence[AuxiliaryModelWrapper] | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.auxiliary_model_wrappers = auxiliary_models
        self.auxiliary_models = None
        if auxiliary_models:
            self.auxiliary_models = [
                each.get_openai_async_client() if self.is_async else each.get_openai_client()
                for each in auxiliary_models
            ]
        self.run_id_base = 0
        self.repeat_times = 1
        self.logger: logging.Logger = get_logger(type(self).__module__)

    def reset(self, task: TrinityTask) -> None:
        """Prepare for another task."""
        self.task = task

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Set the number of rollouts of one run."""
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base

    def run(self) -> list[TrinityExperience]:
        """Experiences of one run."""
        raise NotImplementedError(f"{type(self).__name__} has no method run")

    async def run_async(self) -> list[TrinityExperience]:
        """Experiences of one run."""
        raise NotImplementedError(f"{type(self).__name__} has no method run_async")


class MultiTurnWorkflow(Workflow):
    """A conversation of several turns as one experience."""

    def process_messages_to_experience(
        self,
        messages: Sequence[Mapping[str, Any]],
        reward: float,
        info: Mapping[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> TrinityExperience:
        """The recorded conversation as an experience; numbers in `info` become metrics."""
        experience = self.model.convert_messages_to_experience(messages)
        experience.reward = 0.0 if experience.truncate_status == "response_truncated" else reward
        experience.truncate_status = experience.truncate_status or truncate_status
        experience.info = dict(info or {})
        experience.metrics = {
            name: float(value) for name, value in experience.info.items() if isinstance(value, int | float)
        }
        return experience

    async def process_messages_to_experience_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        reward: float,
        info: Mapping[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> TrinityExperience:
        """See `process_messages_to_experience`."""
        return self.process_messages_to_experience(messages, reward, info, truncate_status)


class BaseSimpleWorkflow(Workflow):
    """One reply to the task's prompt, scored by a reward function."""

    def __init__(
        self,
        *,
        task: TrinityTask,
        model: ModelWrapper,
        auxiliary_models: Sequence[AuxiliaryModelWrapper] | None = None,
    ) -> None:
        self.reset(task)
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)

    def reset(self, task: TrinityTask) -> None:
        """Prepare for another task. Raises `ValueError` if the task has no reward function."""
        self.task = task
        self.format_args = task.format_args
        self.system_prompt = task.format_args.system_prompt
        self.reply_prefix = task.format_args.reply_prefix
        self.reward_fn_args = task.reward_fn_args
        self.raw_task = task.raw_task
        self.task_desc = task.task_desc
        self.truth = task.truth
        if not is_reward_fn(task.reward_fn):
            raise ValueError(
                f"{type(self).__name__} needs a reward function: write default_reward_fn_type in a Trinity "
                "configuration, or reward_fn among the arguments of rollout.workflow."
            )
        self.reward_fn = task.reward_fn(**self.reward_fn_args)

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Set the number of rollouts of one run."""
        super().set_repeat_times(repeat_times, run_id_base)
        self.task.rollout_args.n = repeat_times

    @property
    def rollout_args(self) -> dict[str, Any]:
        """Sampling arguments for the model."""
        return asdict(self.task.rollout_args)

    def format_messages(self) -> list[dict[str, Any]]:
        """The prompt: the system message, the task, and the start of the reply."""
        messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        messages.append({"role": "user", "content": self.task_desc})
        if self.reply_prefix:
            messages.append({"role": "assistant", "content": self.reply_prefix})
        return messages

    def _scored(self, responses: list[TrinityExperience]) -> list[TrinityExperience]:
        for number, response in enumerate(responses):
            parts = self.reward_fn(response=response.response_text, truth=self.truth)
            response.metrics.update(parts)
            response.reward = sum(parts.values())
            response.eid.run = number + self.run_id_base
        return responses


class SimpleWorkflow(BaseSimpleWorkflow):
    """One reply, without `async`."""

    can_reset = True
    can_repeat = True

    def run(self) -> list[TrinityExperience]:
        """Sample and score."""
        return self._scored(self.model.chat(self.format_messages(), **self.rollout_args))


class AsyncSimpleWorkflow(BaseSimpleWorkflow):
    """One reply, with `async`."""

    can_reset = True
    can_repeat = True
    is_async = True

    async def run_async(self) -> list[TrinityExperience]:
        """Sample and score."""
        return self._scored(await self.model.chat_async(self.format_messages(), **self.rollout_args))


class TrinityMathWorkflow(SimpleWorkflow):
    """Mathematics in the format of DeepSeek-R1; `math_reward` if the task has no reward function."""

    def reset(self, task: TrinityTask) -> None:
        """Prepare for another task."""
        math_reward = REWARD_FN_CLASSES["math_reward"]
        task.reward_fn = task.reward_fn or math_reward
        if task.reward_fn is math_reward and task.format_args.system_prompt is None:
            task.format_args.system_prompt = R1_PROMPT
        super().reset(task)


class AsyncMathWorkflow(AsyncSimpleWorkflow, TrinityMathWorkflow):
    """`MathWorkflow` with `async`."""


class MathBoxedWorkflow(SimpleWorkflow):
    """Mathematics with a boxed answer; `math_boxed_reward` scores it."""

    def reset(self, task: TrinityTask) -> None:
        """Prepare for another task. `workflow_args`: `with_think`, `format_score_coef`."""
        task.reward_fn = REWARD_FN_CLASSES["math_boxed_reward"]
        names = ("with_think", "format_score_coef")
        task.reward_fn_args = {name: task.workflow_args[name] for name in names if name in task.workflow_args}
        if task.format_args.system_prompt is None:
            task.format_args.system_prompt = BOXED_PROMPT
        super().reset(task)
        self.workflow_args = task.workflow_args
        self.is_eval = task.is_eval
        self.with_think = task.workflow_args.get("with_think", False)
        self.format_score_coef = task.workflow_args.get("format_score_coef", 0.1)


class AsyncMathBoxedWorkflow(AsyncSimpleWorkflow, MathBoxedWorkflow):
    """`MathBoxedWorkflow` with `async`."""


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

"""Services that rollouts use: event loop, rewards and their manager, auxiliary models, endpoint, environment
variables."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from strop.config.redact import safe_text, set_environment
from strop.config.schema.reward import RewardConfig
from strop.config.schema.rollout import EnginePoolConfig, SamplingConfig, WorkflowConfig
from strop.config.schema.run import Run, effective_reward
from strop.data.encoding.reply import ChatReplyParser
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.inference.endpoint.server import EndpointAccess, EndpointOptions, EndpointServer
from strop.inference.served_model import ServedModel
from strop.protocols import Sampler
from strop.python_rewards import PythonRewards
from strop.rewards.execution.signature import TrainingLength
from strop.rewards.judges.judge import Judge, Judges
from strop.rewards.scorer import Scorer, reject_duplicate_names
from strop.run.prompt_images import load_prompt_images
from strop.run.state.horizon import Horizon
from strop.run.tokenizer import load_model_tokens
from strop.runs.folder import RunFolder
from strop.training.device import find_device
from strop.types import Rollout, RolloutGroup, SamplingParams, Task
from strop.workers.cleanup import keep_first_error
from strop.workers.start import LOCAL, LocalPlacement
from strop.workers.threads import EventLoopThread, gather_or_cancel
from strop.workflows.chat import WorkflowServices
from strop.workflows.registry import load_workflow
from strop.workflows.runner import WorkflowRunner

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.inference.reward_model import RewardModel


class RewardComponent(Protocol):
    """A component of the sum that is not a function: a judge or a reward model."""

    name: str
    weight: float


class RewardManager:
    """Scores rollouts by the weighted sum of all components, in the order functions, reward models, judges.

    The order decides which components a failed rollout still costs: those after the failed one are skipped.
    Functions score each rollout when it completes, and so do judges if there is no reward model. A reward
    model scores many rollouts in one batch; it and the components after it wait for `score_batch`.

    The constructor finds and loads all components and tests the judges' endpoints, so that mistakes show
    before training: it raises RewardError, ModelError or PlacementError. Use it as a context manager.
    """

    def __init__(
        self,
        section: RewardConfig,
        extra: PythonRewards | None = None,
        *,
        replies: Path,
        auxiliary: EndpointAccess | None = None,
        default: float | None = None,
        length: TrainingLength | None = None,
    ) -> None:
        """`extra` are further functions, as Python objects; `replies` the folder of the judges' cache; `auxiliary`
        the endpoint of the run's auxiliary models; `default` the reward of a rollout that nothing scores, which
        fails if it is None; `length` that of the training, None outside of one."""
        self._default = default
        self._said_unscored = False
        with ExitStack() as opened:
            self._scorer = None
            if section.functions or extra is not None:
                self._scorer = opened.enter_context(Scorer(section, extra, length))
            self._models: Sequence[RewardModel] = _load_models(section)
            self._judges: Sequence[Judge] = ()
            if section.judges:
                endpoint = None if auxiliary is None else (auxiliary.url, auxiliary.api_key)
                judges = Judges(section.judges, section.judge_calls, replies, endpoint)
                opened.callback(judges.close)
                self._judges = judges.parts
            reject_duplicate_names(
                [
                    *(self._scorer.names if self._scorer else ()),
                    *(model.name for model in self._models),
                    *(judge.name for judge in self._judges),
                ]
            )
            self._opened = opened.pop_all()

    async def score_rollout(self, task: Task, rollout: Rollout) -> Rollout:
        """The rollout with all components that score a single rollout; see the class.

        Components are recorded before their weight. A rollout on which a component fails gets status "error"
        and the message. Raises RewardError if a component cannot continue at all.
        """
        if self._scorer is not None:
            rollout = await self._scorer.score_rollout(task, rollout)
        return rollout if self._models else await self._judge(task, rollout)

    async def score_batch(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The same groups in the same order, with the components that `score_rollout` has left."""
        groups = list(groups)
        for model in self._models:
            groups = await _add_model(model, groups)
        if self._models and self._judges:
            pairs = [(group.task, rollout) for group in groups for rollout in group.rollouts]
            judged = iter(await gather_or_cancel([self._judge(*pair) for pair in pairs]))
            groups = [_with_rollouts(group, [next(judged) for _ in group.rollouts]) for group in groups]
        return [_with_rollouts(group, map(self._require_reward, group.rollouts)) for group in groups]

    async def score(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The same groups in the same order, scored by all components."""
        pairs = [(group.task, rollout) for group in groups for rollout in group.rollouts]
        scored = iter(await gather_or_cancel([self.score_rollout(*pair) for pair in pairs]))
        return await self.score_batch(
            [_with_rollouts(group, [next(scored) for _ in group.rollouts]) for group in groups]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with keep_first_error(error):
            self._opened.close()

    async def _judge(self, task: Task, rollout: Rollout) -> Rollout:
        for judge in self._judges:
            if rollout.status == "error":
                break
            rollout = _with_component(judge, rollout, await judge.score_rollout(task, rollout))
        return rollout

    def _require_reward(self, rollout: Rollout) -> Rollout:
        """A rollout that no component and no workflow has scored gets the default, or fails."""
        if rollout.reward is not None or rollout.status == "error":
            return rollout
        if self._default is not None:
            return replace(rollout, reward=self._default)
        if self._scorer is not None:
            message = (
                f"task {rollout.task_id!r}: all reward functions ({', '.join(self._scorer.names)}) returned None for "
                "this response, so it has no reward and is not trained on"
            )
            if not self._said_unscored:
                self._said_unscored = True
                counted = "rollouts/unscored_fraction counts such responses"
                print(safe_text(f"strop: {message}; {counted}."), file=sys.stderr, flush=True)
            return replace(rollout, status="error", error=message, failure_cause="unscored")
        message = (
            f"task {rollout.task_id!r}: this rollout has no reward. The run file has no `reward`, and the "
            "workflow returned none: write a `reward`, or have the workflow return a number"
        )
        return replace(rollout, status="error", error=message, failure_cause="failed")


def _load_models(section: RewardConfig) -> list[RewardModel]:
    if not section.models:
        return []
    from strop.inference.reward_model import RewardModel

    return [
        RewardModel(model, find_device(model.device, f"reward.models ({model.name}).device"))
        for model in section.models
    ]


async def _add_model(model: RewardModel, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """The groups with the model's component; the model scores all rollouts together."""
    pairs = [
        (group.task, rollout) for group in groups for rollout in group.rollouts if rollout.status != "error"
    ]
    values = iter(await asyncio.to_thread(model.score, pairs))
    return [
        _with_rollouts(
            group,
            [
                rollout if rollout.status == "error" else _with_component(model, rollout, next(values))
                for rollout in group.rollouts
            ],
        )
        for group in groups
    ]


def _with_rollouts(group: RolloutGroup, rollouts: Iterable[Rollout]) -> RolloutGroup:
    return replace(group, rollouts=tuple(rollouts))


def _with_component(component: RewardComponent, rollout: Rollout, value: float | str) -> Rollout:
    if isinstance(value, str):
        message = f"task {rollout.task_id!r}: the reward {component.name!r} {value}"
        return replace(rollout, status="error", reward=None, reward_parts={}, error=message)
    total = (rollout.reward or 0.0) + component.weight * value
    parts = {**rollout.reward_parts, component.name: value}
    return replace(rollout, reward=total, reward_parts=parts)


@dataclass(frozen=True, slots=True)
class RolloutServices:
    """Open services of a run."""

    event_loop: EventLoopThread
    """Event loop in which all rollouts run, as long as the run lives."""
    rewards: Mapping[str, RewardManager]
    """Rewards by purpose; purposes without an entry use that of `train`."""
    workflow_services: WorkflowServices
    """Endpoint and auxiliary models for workflows."""


@dataclass(frozen=True, slots=True)
class RewardSource:
    """A reward section, and one more reward function from Python."""

    section: RewardConfig
    function: PythonRewards | None = None
    default: float | None = None
    """Reward of a rollout that nothing scores; None fails it."""
    length: TrainingLength | None = None
    """Length of the training; None outside of one."""


UNSCORED: Mapping[str, RewardSource] = {"train": RewardSource(RewardConfig())}
"""Rewards of rollouts that are sampled and not scored."""


def reward_sources(
    run: Run, reward: PythonRewards | None, horizon: Horizon | None = None
) -> Mapping[str, RewardSource]:
    """Rewards of a run by purpose; `reward` is one more function, for training and for eval tasksets without a
    reward of their own. `horizon` is None outside of a training."""
    length = None
    if horizon is not None:
        length = TrainingLength(
            horizon.updates,
            horizon.updates_per_step,
            horizon.scheduled_steps,
            horizon.steps_per_epoch,
            horizon.critic_steps,
        )
    evals = {
        f"eval-{taskset.name}": RewardSource(taskset.reward, length=length)
        for taskset in run.data.eval
        if taskset.reward is not None
    }
    default = None if run.algorithm.trains_on_reward else 0.0
    return {"train": RewardSource(effective_reward(run), reward, default, length), **evals}


@contextmanager
def open_rollout_services(run: Run, rewards: Mapping[str, RewardSource]) -> Iterator[RolloutServices]:
    """Find the rewards, load auxiliary models, and set `rollout.env`. The judges' cache is in the run's folder.

    Raises what `RewardManager` raises, and `ModelError`.
    """
    with ExitStack() as opened:
        opened.enter_context(set_environment(run.rollout.env))
        event_loop = EventLoopThread("rollouts")
        opened.callback(event_loop.close)
        auxiliary = _auxiliary_models(run)
        for model in auxiliary.values():
            opened.callback(model.close)
        section = run.rollout.endpoint
        endpoint = EndpointServer(EndpointOptions(port=section.port))
        opened.callback(endpoint.close)
        parser = ChatReplyParser(section.tool_call_parser, section.reasoning_parser)
        services = WorkflowServices(endpoint, section.model, auxiliary, parser)
        yield RolloutServices(event_loop, _open_rewards(run, rewards, services, opened), services)


def _open_rewards(
    run: Run, rewards: Mapping[str, RewardSource], services: WorkflowServices, opened: ExitStack
) -> dict[str, RewardManager]:
    cache = RunFolder.of(run).judge_cache

    def open_manager(source: RewardSource) -> RewardManager:
        access = None
        if any(judge.url == "auxiliary" for judge in source.section.judges):
            access = opened.enter_context(services.admit())
        return opened.enter_context(
            RewardManager(
                source.section,
                source.function,
                replies=cache,
                auxiliary=access,
                default=source.default,
                length=source.length,
            )
        )

    return {purpose: open_manager(source) for purpose, source in rewards.items()}


def _auxiliary_models(run: Run) -> dict[str, ServedModel]:
    if not run.rollout.auxiliary_models:
        return {}
    from strop.inference.auxiliary_model import load_auxiliary_model

    folder = RunFolder.of(run).path.absolute()
    pool = run.rollout.pool or EnginePoolConfig(engines=1)
    return {
        section.name: load_auxiliary_model(
            section,
            find_device(section.device, f"rollout.auxiliary_models ({section.name}).device"),
            seed=run.seed,
            placement=LocalPlacement(folder / "log") if folder.is_dir() else LOCAL,
            max_restarts=pool.max_restarts,
        )
        for section in run.rollout.auxiliary_models
    }


def sampling_params(section: SamplingConfig, max_response_tokens: int) -> SamplingParams:
    """Sampling parameters of a section."""
    return SamplingParams(
        temperature=section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        min_p=section.min_p,
        repetition_penalty=section.repetition_penalty,
        max_tokens=max_response_tokens,
        min_tokens=section.min_response_tokens,
        stop=section.stop,
        stop_token_ids=section.stop_token_ids,
        ignore_eos=section.ignore_eos,
    )


def make_workflow_runners(
    run: Run, engine: Sampler, tokenizer: PreTrainedTokenizerBase, services: WorkflowServices
) -> dict[str, WorkflowRunner]:
    """Runners by purpose: `train`, and `eval-<name>` for each eval taskset.

    Raises `ConfigError` for a workflow that cannot be found or constructed.
    """
    images = load_prompt_images(run, tokenizer)
    data, ends = run.data, load_model_tokens(run.model, tokenizer).end_ids
    is_raw = data.text_prompts == "raw"
    encoder = TurnEncoder(
        tokenizer, data.chat_template, data.chat_template_args, images, ends, raw_text=is_raw
    )

    def runner(section: WorkflowConfig) -> WorkflowRunner:
        bound = load_workflow(section)
        return WorkflowRunner(bound, engine, encoder, run.rollout, run.max_sequence_tokens, services)

    train = runner(run.rollout.workflow)
    evals = {
        f"eval-{taskset.name}": train if taskset.workflow is None else runner(taskset.workflow)
        for taskset in run.data.eval
    }
    return {"train": train, **evals}

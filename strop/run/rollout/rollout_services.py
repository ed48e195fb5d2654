"""Services that rollouts use: event loop, rewards, auxiliary models, endpoint, environment variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strop.config.redact import set_environment
from strop.config.schema import Run
from strop.config.schema.reward import RewardConfig
from strop.config.schema.rollout import EnginePoolConfig, SamplingConfig, WorkflowConfig
from strop.config.schema.run import effective_reward
from strop.data.encoding.chat_reply import ChatReplyParser
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.inference.endpoint.server import EndpointOptions, EndpointServer
from strop.inference.served_model import ServedModel
from strop.protocols import Sampler
from strop.python_rewards import PythonRewards
from strop.rewards.execution.trainer_state import TrainingLength
from strop.run.prompt_images import load_prompt_images
from strop.run.rollout.reward_manager import RewardManager
from strop.run.state.horizon import Horizon
from strop.run.tokenizer import load_model_tokens
from strop.runs.folder import RunFolder
from strop.training.device import find_device
from strop.types import SamplingParams
from strop.workers.event_loop_thread import EventLoopThread
from strop.workers.start import LOCAL, LocalPlacement
from strop.workflows.registry import load_workflow
from strop.workflows.runner import WorkflowRunner
from strop.workflows.services import WorkflowServices

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class RolloutServices:
    """Open services of a run."""

    event_loop: EventLoopThread
    """Event loop in which all rollouts run, as long as the run lives."""
    rewards: Mapping[str, RewardManager]
    """Rewards by purpose; purposes without an entry use that of `train`."""
    services: WorkflowServices
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

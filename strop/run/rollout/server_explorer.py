"""Explorer that samples from a server's model, without loading the run's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.config.schema.rollout import OpenAiEngineConfig
from strop.run.rollout.explorer import Explorer
from strop.run.rollout.inference_engines import open_separate_engine
from strop.run.rollout.rollout_services import RewardSource, make_workflow_runners, open_rollout_services
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def samples_from_server(run: Run) -> bool:
    """Whether the run samples from a server with weights of its own, which no update replaces."""
    engine = run.rollout.engine
    return isinstance(engine, OpenAiEngineConfig) and engine.weight_updates == "none"


@contextmanager
def open_server_explorer(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    rewards: Mapping[str, RewardSource],
    stop: StopSignal | None = None,
) -> Iterator[Explorer]:
    """Open the rewards and the workflow, and connect to the server.

    Inside the context, SIGINT, SIGTERM and a request to `stop` raise `Interrupted` at the next safe point.
    """
    with (
        stop or StopSignal() as stop,
        open_rollout_services(run, rewards) as services,
        open_separate_engine(run, tokenizer) as sampler,
    ):
        runners = make_workflow_runners(run, sampler, tokenizer, services.services)
        yield Explorer(runners, services.rewards, services.event_loop, stop, seed=run.seed)

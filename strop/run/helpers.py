"""What rollouts need beside the model that is trained: rewards, auxiliary models, the endpoint, variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strop.config.schema import Run
from strop.config.schema.reward import Reward
from strop.config.schema.scoring import scored_by
from strop.inference.endpoint.server import Endpoint
from strop.run.folder import RunFolder
from strop.run.rewards import Rewards
from strop.training.device import find_device
from strop.workflows.services import Services

if TYPE_CHECKING:
    from strop.inference.auxiliary import AuxiliaryModel


@dataclass(frozen=True, slots=True)
class Helpers:
    """All of it, open."""

    rewards: Mapping[str, Rewards]
    """By purpose; `train` scores all that have none of their own."""
    services: Services


@contextmanager
def open_helpers(run: Run, reward: Callable[..., Any] | None) -> Iterator[Helpers]:
    """Find the rewards, load auxiliary models, and set `rollout.env`; judges' replies are kept in the run's
    folder. `reward` is one more function. Raises what `Rewards` raises, and `ModelError`."""
    with ExitStack() as opened:
        opened.enter_context(_environment(run.rollout.env))
        auxiliary = _auxiliary_models(run)
        for model in auxiliary.values():
            opened.callback(model.close)
        endpoint = Endpoint(run.rollout.endpoint.port)
        opened.callback(endpoint.close)
        services = Services(endpoint, run.rollout.endpoint.model, auxiliary)
        yield Helpers(_rewards(run, reward, services, opened), services)


def _rewards(
    run: Run, reward: Callable[..., Any] | None, services: Services, opened: ExitStack
) -> dict[str, Rewards]:
    replies = RunFolder.of(run).judges

    def scoring(section: Reward, extra: Callable[..., Any] | None) -> Rewards:
        access = None
        if any(judge.url == "auxiliary" for judge in section.judges):
            access = opened.enter_context(services.admit())
        return opened.enter_context(Rewards(section, extra, replies=replies, auxiliary=access))

    own = {
        f"eval-{taskset.name}": scoring(taskset.reward, None)
        for taskset in run.data.eval
        if taskset.reward is not None
    }
    return {"train": scoring(scored_by(run), reward), **own}


def _auxiliary_models(run: Run) -> dict[str, AuxiliaryModel]:
    if not run.rollout.auxiliary_models:
        return {}
    from strop.inference.auxiliary import AuxiliaryModel

    return {
        section.name: AuxiliaryModel(
            section,
            find_device(section.device, f"rollout.auxiliary_models ({section.name}).device"),
            seed=run.seed,
        )
        for section in run.rollout.auxiliary_models
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The variables are set inside, and as they were outside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""The model that is trained, with all that samples from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.schema import Run
from strop.protocols import TrainingEngine
from strop.run.explorer import Explorer
from strop.run.folder import RunState
from strop.run.helpers import Helpers, open_helpers
from strop.run.runners import make_runners
from strop.run.sampler import Sampler, open_shared_sampler
from strop.run.stopping import StopSignal
from strop.sync.in_memory import InMemorySynchronizer
from strop.training.table import Engines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Policy:
    """One model in one process: it learns in `engine`, and answers through `explorer`."""

    engine: TrainingEngine
    explorer: Explorer
    synchronizer: InMemorySynchronizer
    state: RunState
    """Where its weights come from."""
    stop: StopSignal
    """Asks whoever waits to stop."""
    notes: tuple[str, ...]
    """How it is sampled from and trained on, in words."""


@contextmanager
def open_policy(
    run: Run,
    engines: Engines,
    tokenizer: PreTrainedTokenizerBase,
    reward: Callable[..., Any] | None = None,
    checkpoint: Path | None = None,
) -> Iterator[Policy]:
    """Find the rewards and the workflow, load the model, and a checkpoint's weights into it; publish them.

    Inside, SIGINT and SIGTERM raise `Interrupted` at the next good moment.
    """
    with StopSignal() as stop, open_helpers(run, reward) as helpers:
        engine = engines.policy()
        state = restore(engine, checkpoint)
        with open_shared_sampler(run, engine, tokenizer) as sampler:
            yield make_policy(run, engine, state, sampler, tokenizer, helpers, stop)


def restore(engine: TrainingEngine, checkpoint: Path | None) -> RunState:
    """Bring an engine to where a checkpoint stands; without one, it is at the start."""
    if checkpoint is None:
        return RunState()
    engine.load(checkpoint)
    return RunState.load(checkpoint)


def make_policy(
    run: Run,
    engine: TrainingEngine,
    state: RunState,
    sampler: Sampler,
    tokenizer: PreTrainedTokenizerBase,
    helpers: Helpers,
    stop: StopSignal,
) -> Policy:
    """A sampler, to which the engine's weights are published, and what scores its answers."""
    runners = make_runners(run, sampler, tokenizer, helpers.services)
    policy = Policy(
        engine=engine,
        explorer=Explorer(runners, helpers.rewards, stop, seed=run.seed),
        synchronizer=InMemorySynchronizer(engine, sampler),
        state=state,
        stop=stop,
        notes=_notes(engine, sampler),
    )
    policy.synchronizer.publish(state.step)
    return policy


def _notes(engine: TrainingEngine, sampler: Sampler) -> tuple[str, ...]:
    shared = (
        "a group's shared prompt is encoded once"
        if engine.shares_prompts
        else f"each answer's prompt is encoded anew ({engine.why_not_shared})"
    )
    return (f"sampling: {sampler.description}", f"training: {engine.description}; {shared}")

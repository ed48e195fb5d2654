"""Workflows by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.imports import Named
from strop.errors import ConfigError
from strop.protocols import InferenceEngine, Workflow
from strop.workflows.single_turn import SingleTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUILT_IN = {"single_turn": SingleTurn}


def make_workflow(name: str, engine: InferenceEngine, tokenizer: PreTrainedTokenizerBase) -> Workflow:
    """A built-in, or a class (or function) of the user's own that is called with (engine, tokenizer)
    and gives something with `async run(task, group, index, sampling, seed) -> Rollout`."""
    make = BUILT_IN.get(name) or _named(name).load()
    workflow = make(engine, tokenizer)
    if not callable(getattr(workflow, "run", None)):
        raise ConfigError(
            f"rollout.workflow: {name} gives a {type(workflow).__name__}, which has no method `run`. It must "
            "have `async def run(self, task, group, index, sampling, seed) -> Rollout`."
        )
    return workflow


def _named(name: str) -> Named:
    return Named(name, f"rollout.workflow {name!r}", "class", BUILT_IN, ConfigError)

"""The workflows of a run, bound to the engine that they sample from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.config.schema.workflow import Workflow
from strop.data.turns import TurnEncoder
from strop.protocols import InferenceEngine
from strop.workflows.runner import Runner
from strop.workflows.services import Services
from strop.workflows.table import load_workflow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_runners(
    run: Run, engine: InferenceEngine, tokenizer: PreTrainedTokenizerBase, services: Services
) -> dict[str, Runner]:
    """What makes rollouts, by purpose: `train`, and `eval-<name>` for each eval taskset.

    Raises `ConfigError` for a workflow that cannot be found or made.
    """
    encoder = TurnEncoder(tokenizer, run.data.chat_template)

    def runner(section: Workflow) -> Runner:
        bound = load_workflow(section)
        return Runner(bound, engine, encoder, run.rollout, run.max_sequence_tokens, services)

    train = runner(run.rollout.workflow)
    evals = {
        f"eval-{taskset.name}": train if taskset.workflow is None else runner(taskset.workflow)
        for taskset in run.data.eval
    }
    return {"train": train, **evals}

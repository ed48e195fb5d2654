"""Workflow runners of a run, by purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.config.schema.workflow import WorkflowConfig
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.protocols import Sampler
from strop.run.prompt_images import load_prompt_images
from strop.run.tokenizer import load_model_tokens
from strop.workflows.registry import load_workflow
from strop.workflows.runner import WorkflowRunner
from strop.workflows.services import WorkflowServices

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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

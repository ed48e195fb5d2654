"""The tokenizer of a run, with the chat template that the run file names, and the tokens of its models; warnings about
a template with which a run would not do what its file says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from strop.config.paths import existing_path
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import WorkflowConfig
from strop.config.schema.run import Run
from strop.data.encoding.chat_template import PromptEncoder, read_template
from strop.data.encoding.conversation_encoder import ConversationEncoder, TrainingConversation
from strop.data.encoding.model_tokens import ModelTokens
from strop.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_run_tokenizer(run: Run) -> PreTrainedTokenizerBase:
    """The model's tokenizer with the chat template of `data.chat_template`.

    The exported model gets the same template, because it is prompted in the form that it was trained on.
    Raises ModelError, or ConfigError for the template's file.
    """
    from strop.models.loading import load_tokenizer  # imports torch, which `strop check` does not need

    return with_run_template(load_tokenizer(run.model), run)


def with_run_template(tokenizer: PreTrainedTokenizerBase, run: Run) -> PreTrainedTokenizerBase:
    """The tokenizer, with the chat template of `data.chat_template`. Raises ConfigError for the template's file."""
    if run.data.chat_template not in ("tokenizer", "none"):
        tokenizer.chat_template = read_template(run.data.chat_template)
    return tokenizer


def load_policy_tokens(run: Run, tokenizer: PreTrainedTokenizerBase) -> ModelTokens:
    """The tokens of the policy, of which `rollout.sampling.stop_token_ids` end a response too.

    Raises ModelError for a model without them.
    """
    tokens = load_model_tokens(run.model, tokenizer)
    return replace(tokens, end_ids=tokens.end_ids | {*run.rollout.sampling.stop_token_ids})


def load_training_tokens(
    run: Run, tokenizer: PreTrainedTokenizerBase, *, only_local: bool = False
) -> ModelTokens:
    """The tokens of the policy that each model which reads them has a row of its embedding for; with `only_local`, of
    the models on this machine. Raises ModelError for a model without them.
    """
    tokens = load_policy_tokens(run, tokenizer)
    for model in _other_readers(run):
        if only_local and not existing_path(model.path):
            continue
        other = load_model_tokens(model, tokenizer)
        if other.vocab_size is not None and other.vocab_size < (tokens.vocab_size or other.vocab_size + 1):
            tokens = replace(other, end_ids=tokens.end_ids)
    return tokens


def load_model_tokens(model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> ModelTokens:
    """The tokens of a model, without torch if its folder says enough. Raises ModelError for a model without them."""
    if not model.override and (found := ModelTokens.of_folder(model.path, tokenizer)) is not None:
        return found
    from strop.models.loading import load_config, load_generation_config

    return ModelTokens.of(model.path, load_config(model), load_generation_config(model), tokenizer)


def _other_readers(run: Run) -> Iterator[ModelConfig]:
    """Models that read the policy's tokens: teachers, the critic, the process reward model."""
    yield from (teacher.model for teacher in run.algorithm.teachers)
    yield from (section.model for section in run.algorithm.trained_models.values() if section.model)


def template_notes(run: Run, tokenizer: PreTrainedTokenizerBase, tokens: ModelTokens) -> Iterator[str]:
    """Yield a warning for tools that the template does not render, and for one about the end of sampled responses."""
    data = run.data
    if data.chat_template == "none":
        for field, workflow in _workflows_with_tools(run):
            yield (
                f"warning: {field} {workflow.name}: data.chat_template: none encodes one plain text without tools, so "
                "each rollout ends with an error. Write data.chat_template: tokenizer, or the path of a Jinja file."
            )
        return
    if data.chat_template == "tokenizer" and not tokenizer.chat_template:
        return  # texts only, which have no messages
    encoder = PromptEncoder.of(tokenizer, data)
    # Tools of rows that the template does not read are named by `strop.data.row_keys`.
    if (workflows := _workflows_with_tools(run)) and not encoder.renders_tools:
        for field, workflow in workflows:
            yield (
                f"warning: {field} {workflow.name}: the model is not told of its tools, because the chat template does "
                "not render tools: a prompt is the same with and without them. Write, under data.chat_template, a "
                "template that renders them; if the system message describes the tools, nothing is missing."
            )
    if not run.algorithm.is_offline and tokenizer.eos_token is not None:
        yield from _sampled_end(run, tokenizer, tokens)


def _sampled_end(run: Run, tokenizer: PreTrainedTokenizerBase, tokens: ModelTokens) -> Iterator[str]:
    """Yield a warning if the template ends a turn with a token at which sampling does not stop."""
    sampling = run.rollout.sampling
    messages = ({"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"})
    encoder = ConversationEncoder(
        tokenizer, run.data.chat_template, run.data.chat_template_args, tokens=tokens
    )
    try:
        (encoded,) = encoder.encode_all([TrainingConversation("The chat template", messages, 1)])
    except DataError:  # a template for other conversations than this one
        return
    last = int(encoded.token_ids[-1])
    added = tokenizer.added_tokens_decoder.get(last)
    if added is None or last in tokens.end_ids or str(added) in sampling.stop or sampling.ignore_eos:
        return
    yield (
        f"warning: the chat template ends a turn with {str(added)!r} (id {last}), at which sampling does not stop: the "
        f"model's end tokens are {', '.join(map(str, sorted(tokens.end_ids)))} (eos_token_id of generation_config.json "
        f"or config.json, and the tokenizer's eos_token). Write rollout.sampling.stop_token_ids: [{last}], or add the "
        "id to generation_config.json."
    )


def _workflows_with_tools(run: Run) -> list[tuple[str, WorkflowConfig]]:
    """The workflows that tell the model of tools, with their fields."""
    if run.algorithm.is_offline:
        return []
    named = {"rollout.workflow": run.rollout.workflow}
    named |= {f"data.eval ({each.name}).workflow": each.workflow for each in run.data.eval if each.workflow}
    return [(field, workflow) for field, workflow in named.items() if _has_tools(workflow)]


def _has_tools(workflow: WorkflowConfig) -> bool:
    """Whether arguments name tools; the workflow `tools` has the calculator without any."""
    args = workflow.tool_args
    if args is None:
        return False
    always = workflow.name == "tools" or workflow.args.get("default_agent") == "tool_agent"
    if any(args.get(name) for name in ("tools", "tool_config", "function_file")):
        return True
    return always and args.get("tools") is None and not args.get("interaction_config")

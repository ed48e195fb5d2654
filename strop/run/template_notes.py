"""Warnings about a chat template with which a run would not do what its file says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.config.schema.rollout import WorkflowConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.conversation_encoder import ConversationEncoder, TrainingConversation
from strop.data.encoding.model_tokens import ModelTokens
from strop.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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

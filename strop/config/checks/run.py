"""Checks between the sections of a run: `run_faults` yields every fault, `advice` what to look at."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.checks.algorithm import algorithm_faults
from strop.config.checks.data import length_faults, model_faults, task_order_faults
from strop.config.checks.engine import engine_faults
from strop.config.checks.optimization import optimization_faults
from strop.config.checks.topology import topology_faults
from strop.config.deepspeed.agreement import deepspeed_faults
from strop.config.paths import existing_path
from strop.config.peft_adapter import adapter_options
from strop.config.schema import Run
from strop.config.schema.optimizer import BaseOptimizerConfig
from strop.config.schema.record import TRACKING_SERVICES


def run_faults(run: Run) -> Iterator[str]:
    """Every fault between sections, one sentence each, which names the key and what to write instead."""
    yield from _evaluation_faults(run)
    yield from _sampling_faults(run)
    yield from _text_prompt_faults(run)
    yield from algorithm_faults(run)
    yield from optimization_faults(run)
    yield from task_order_faults(run)
    yield from topology_faults(run)
    yield from length_faults(run)
    yield from engine_faults(run)
    yield from deepspeed_faults(run)
    yield from model_faults(run)
    yield from _monitor_faults(run)


def _evaluation_faults(run: Run) -> Iterator[str]:
    names = [taskset.name for taskset in run.data.eval]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"data.eval: two tasksets have the name {name!r}; write two different names"


def _monitor_faults(run: Run) -> Iterator[str]:
    for name in TRACKING_SERVICES:
        section = getattr(run.record, name)
        if name not in run.record.monitors and section != type(section)():
            yield (
                f"record.{name} has options, but record.monitors does not list {name}; add it there, or remove "
                f"record.{name}"
            )


def _sampling_faults(run: Run) -> Iterator[str]:
    if run.rollout.sampling.temperature > 0:
        return
    rollouts = run.algorithm.rollouts_per_task
    if rollouts > 1 or run.algorithm.needs_greedy_baseline:
        others = "the greedy response of remax" if rollouts == 1 else f"its {rollouts} rollouts"
        yield (
            f"rollout.sampling.temperature is 0: a task's rollout would be identical to {others}, and nothing could be "
            "learned; write a temperature above 0"
        )


def _text_prompt_faults(run: Run) -> Iterator[str]:
    """Workflows that continue a conversation, next to prompts that are in none."""
    workflows = {"rollout.workflow": run.rollout.workflow}
    workflows |= {
        f"data.eval.{i}.workflow": each.workflow for i, each in enumerate(run.data.eval) if each.workflow
    }
    for field, workflow in workflows.items():
        if run.data.text_prompts == "raw" and workflow.name != "single_turn":
            yield (
                f"data.text_prompts: raw encodes text without a chat template, and {field} ({workflow.name}) continues "
                "conversations; write data.text_prompts: template, or the workflow single_turn"
            )


_MAX_USUAL_LR = {"sgd": 10.0, "schedule_free_sgd": 10.0}
_MAX_USUAL_ADAPTIVE_LR = 0.1
"""Above it, an optimizer that divides by the gradient's size moves each weight by more than its own size."""


def unusual_values(run: Run) -> Iterator[str]:
    """Yield one sentence for each value that would most likely ruin the run, or that replaces one of an adapter."""
    lora = run.model.lora
    if lora is not None and lora.adapter is not None and existing_path(lora.adapter):
        saved = adapter_options(lora).dropout
        if saved != lora.dropout:
            yield (
                f"model.lora.adapter: the lora_dropout {saved:g} with which it was trained has no effect; "
                f"model.lora.dropout is {lora.dropout:g}."
            )
    optimizers: dict[str, BaseOptimizerConfig] = {"trainer.optimizer": run.trainer.optimizer}
    critic = run.algorithm.trained_models.get("critic")
    if critic is not None:
        optimizers["algorithm.critic.optimizer"] = critic.optimizer
    for key, optimizer in optimizers.items():
        kind = str(getattr(optimizer, "type", ""))
        if optimizer.lr > _MAX_USUAL_LR.get(kind, _MAX_USUAL_ADAPTIVE_LR):
            yield (
                f"warning: {key}.lr is {optimizer.lr:g}. Usual learning rates of {kind} are 1e-6 to 1e-3, and this one "
                f"will most likely destroy the weights. Was {optimizer.lr:g}e-6 meant?"
            )

"""Checks between the sections of a run: `run_faults` yields every fault of a configuration."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.checks.algorithm import algorithm_faults
from strop.config.checks.engine import engine_faults
from strop.config.checks.lengths import length_faults
from strop.config.checks.models import model_faults
from strop.config.checks.optimization import optimization_faults
from strop.config.checks.task_order import task_order_faults
from strop.config.checks.topology import topology_faults
from strop.config.deepspeed.agreement import deepspeed_faults
from strop.config.schema.algorithm import RemaxConfig
from strop.config.schema.run import Run
from strop.config.schema.tracking import TRACKING_SERVICES


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
    rollouts = getattr(run.algorithm, "rollouts_per_task", 1)
    if rollouts > 1 or isinstance(run.algorithm, RemaxConfig):
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

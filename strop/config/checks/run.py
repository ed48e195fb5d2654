"""Checks between the sections of a run: `run_faults` yields every fault, `unusual_values` what to look at. Here
stand those of evaluation, monitors, prompts, the learning rate schedule, the best checkpoint and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.checks.algorithm import algorithm_faults
from strop.config.checks.data import length_faults, model_faults, task_order_faults
from strop.config.checks.topology import engine_faults, topology_faults
from strop.config.deepspeed import deepspeed_faults
from strop.config.paths import existing_path
from strop.config.peft_adapter import adapter_options
from strop.config.schema.optimizer import BaseOptimizerConfig, ReduceOnPlateauScheduleConfig
from strop.config.schema.record import TRACKING_SERVICES
from strop.config.schema.run import Run


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


def optimization_faults(run: Run) -> Iterator[str]:
    """Faults in what optimizer, schedule, `checkpoint.best` and `evaluate.stop_when` require of other sections."""
    yield from _plateau_faults(run)
    yield from _best_faults(run)
    yield from _stop_faults(run)
    yield from _fused_backward_faults(run)


def _plateau_faults(run: Run) -> Iterator[str]:
    schedule = run.trainer.schedule
    if not isinstance(schedule, ReduceOnPlateauScheduleConfig):
        return
    if not run.data.eval or run.evaluate.every is None:
        yield (
            "trainer.schedule: reduce_lr_on_plateau requires evaluations during the run, and there are none; "
            "write tasksets under `data.eval` and `evaluate: {every: 5 steps}`, or another schedule"
        )
        return
    yield from _metric_faults(run, "trainer.schedule.metric", schedule.metric)


def _best_faults(run: Run) -> Iterator[str]:
    best = run.checkpoint.best
    if best is None:
        return
    if not run.data.eval:
        yield (
            "checkpoint.best requires an evaluation, and there is none; write tasksets under `data.eval`, or "
            "remove it to keep the model of the last step"
        )
        return
    yield from _metric_faults(run, "checkpoint.best.metric", best.metric)


def _stop_faults(run: Run) -> Iterator[str]:
    stop = run.evaluate.stop_when
    if stop is None:
        return
    if not run.data.eval or run.evaluate.every is None:
        yield (
            "evaluate.stop_when requires evaluations during the run, and there are none; write tasksets under "
            "`data.eval` and `evaluate: {every: 5 steps}`, or remove it"
        )
        return
    yield from _metric_faults(run, "evaluate.stop_when.metric", stop.metric)


def _metric_faults(run: Run, key: str, metric: str | None) -> Iterator[str]:
    """Faults in the evaluation metric that `key` names."""
    names = [taskset.name for taskset in run.data.eval]
    if metric is None and run.algorithm.is_offline:
        yield (
            f"{key}: missing. Algorithm {run.algorithm.type} has no default metric; write one, such as "
            f"`metric: eval/{names[0]}/loss` with `mode: min`"
        )
    if metric is not None and not any(metric.startswith(f"eval/{name}/") for name in names):
        yield (
            f"{key} ({metric}) is not an evaluation metric of this run; write one that starts with "
            f"{' or '.join(f'eval/{name}/' for name in names)}"
        )


def _fused_backward_faults(run: Run) -> Iterator[str]:
    trainer = run.trainer
    if not trainer.optimizer.fused_backward or trainer.microbatch.unit != "sequences":
        return
    tasks = trainer.tasks_per_update or trainer.tasks_per_step
    sequences = tasks * run.algorithm.rollouts_per_task
    if sequences > trainer.microbatch.count:
        yield (
            f"trainer.microbatch ({trainer.microbatch}) is smaller than an update ({sequences} sequences), "
            "and "
            f"{trainer.optimizer.type} updates the weights during the backward pass, so an update must be "
            "one "
            f"micro-batch; write `microbatch: {sequences} sequences`, or another optimizer"
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

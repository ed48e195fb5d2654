"""What a run will do, in plain words, and each of its values with unit, source and effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strop.config.draft import Source
from strop.config.load import Loaded
from strop.config.redact import redact
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.data import Taskset
from strop.config.schema.walk import leaves
from strop.config.units import Amount

_UNITS = {
    "_tokens": "tokens",
    "_seconds": "seconds",
    "tasks_per_step": "tasks",
    "tasks_per_update": "tasks",
    "limit_tasks": "tasks",
    "rollouts_per_task": "rollouts",
    "max_sequences": "sequences",
    "passes": "passes",
    "keep": "checkpoints",
    "workers": "processes",
    "max_error_share": "share",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One value of a run."""

    field: str
    value: str
    unit: str
    source: Source
    effect: str


def lines(loaded: Loaded) -> list[Line]:
    """Every value of the run, in the run file's order."""
    return [
        Line(
            field=".".join(leaf.keys),
            value=shown(leaf.keys[-1], leaf.value),
            unit=unit_of(leaf.keys[-1], leaf.value),
            source=loaded.sources[".".join(leaf.keys)],
            effect=" ".join(leaf.effect.split()),
        )
        for leaf in leaves(loaded.run)
    ]


def unit_of(name: str, value: Any) -> str:
    """The unit of a value, from its own or from its field's name; empty where it has none."""
    if isinstance(value, Amount):
        return value.unit
    if isinstance(value, bool):
        return ""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def shown(name: str, value: Any) -> str:
    """A value as it is printed, without its unit."""
    if isinstance(value, Amount):
        return str(value).split()[0]
    if value is None:
        return "never" if name.endswith("every") else "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(str(redact(item, name)) for item in value) + "]"
    return str(redact(value, name))


def summary(loaded: Loaded) -> str:
    """One paragraph: what is trained on what, what a step is, how long, what is measured and kept where."""
    run = loaded.run
    return " ".join((_what(run), _step(run), _length(run), _measured(run), _kept(run)))


def _what(run: Run) -> str:
    lora = run.model.lora
    part = f"a LoRA adapter of rank {lora.rank} on" if lora else "all weights of"
    what = f"Trains {part} {run.model.path} by {run.algorithm.type.upper()} on {_paths(run.data.train)}"
    if isinstance(run.algorithm, Sft | Dpo):
        return f"{what}."
    functions = [part.name or part.function for part in run.reward.functions]
    models, judges = ([part.name for part in run.reward.models], [part.name for part in run.reward.judges])
    rewards = " + ".join([*functions, *models, *judges]) or "nothing yet"
    expert = f", and on the expert's answers in {_paths(run.data.expert)}" if run.data.expert else ""
    return f"{what}, scored by {rewards}{expert}."


def _paths(taskset: Taskset) -> str:
    return taskset.path if isinstance(taskset.path, str) else ", ".join(taskset.path)


def _step(run: Run) -> str:
    tasks = run.trainer.tasks_per_step
    updates = tasks // (run.trainer.tasks_per_update or tasks) * run.trainer.passes
    longest = run.data.max_prompt_tokens + run.data.max_response_tokens
    if isinstance(run.algorithm, Sft | Dpo):
        rows = _count(tasks, "preference pair" if isinstance(run.algorithm, Dpo) else "given answer")
        return (
            f"Each step learns from {rows} (with their prompts "
            f"at most {longest} tokens each) and makes {_count(updates, 'update')} of the weights, at a "
            f"learning rate of {run.trainer.optimizer.lr:g} ({run.trainer.schedule.type})."
        )
    each = run.algorithm.rollouts_per_task
    return (
        f"Each step samples {_count(each, 'rollout')} to each of {_count(tasks, 'task')} "
        f"({_count(tasks * each, 'rollout')}, with their prompts at most {longest} tokens each) and makes "
        f"{_count(updates, 'update')} of the weights, at a learning rate of {run.trainer.optimizer.lr:g} "
        f"({run.trainer.schedule.type})."
    )


def _length(run: Run) -> str:
    duration = run.trainer.duration
    match duration.unit:
        case "steps" if not isinstance(run.algorithm, Sft | Dpo):
            total = int(duration.count) * run.trainer.tasks_per_step * run.algorithm.rollouts_per_task
            return f"It goes on for {duration}: {total} rollouts in all."
        case "steps" | "updates":
            return f"It goes on for {duration}."
        case _:
            return f"It goes on for {duration}; how many steps that is, the number of training tasks decides."


def _measured(run: Run) -> str:
    if not run.data.eval:
        return "Nothing is measured on held-out tasks (data.eval is empty)."
    names = ", ".join(taskset.name for taskset in run.data.eval)
    when = [
        *(["at the start"] if run.evaluate.at_start else []),
        *([f"every {run.evaluate.every}"] if run.evaluate.every else []),
        "at the end",
    ]
    return f"Held-out tasks ({names}) are measured {_and(when)}."


def _kept(run: Run) -> str:
    every, keep, best = run.checkpoint.every, run.checkpoint.keep, run.checkpoint.best
    when = [
        *([f"every {every}"] if every else []),
        *(["after each evaluation"] if best else []),
        "at the end",
    ]
    model = f"model of the step with the best {best.metric or 'reward'}" if best else "trained model"
    stay = f", of which the last {keep} stay{', the best among them' if best else ''}" if keep else ""
    return (
        f"Checkpoints are written {_and(when)}{stay}. All goes to {run.folder_path}; the {model} will be "
        f"in {run.folder_path / 'model'}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"

"""What a run will do, in plain words, and each of its values with unit, source and effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strop.config.draft import Source
from strop.config.explain_parts import bench, parts
from strop.config.load import Loaded
from strop.config.redact import redact, redact_text
from strop.config.same import in_steps
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Mix, Sft
from strop.config.schema.data import Taskset
from strop.config.schema.run import Checkpoint
from strop.config.schema.sample import WarmUpSample
from strop.config.schema.scoring import needs_reward, scored_by
from strop.config.schema.walk import Leaf, leaves
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
    theirs: str
    """In another dialect, the key that decided it, with its value."""
    source: Source
    place: str
    """Where it was said, without that key."""
    effect: str


def lines(loaded: Loaded) -> list[Line]:
    """Every value of the run, in the run file's order."""
    return [_line(leaf, loaded.sources[".".join(leaf.keys)]) for leaf in leaves(loaded.run)]


def _line(leaf: Leaf, source: Source) -> Line:
    return Line(
        field=".".join(leaf.keys),
        value=shown(leaf.keys[-1], leaf.value),
        unit="" if leaf.value is None else unit_of(leaf.keys[-1], leaf.value),
        theirs=source.theirs,
        source=source,
        place=_place(source),
        effect=" ".join(leaf.effect.split()),
    )


def _place(source: Source) -> str:
    """`ppo.yaml:3 (data.val_files)` becomes `ppo.yaml:3`, and `data.seed (page default)` `page default`."""
    key = source.theirs.partition("=")[0]
    text = str(source)
    if not key:
        return text
    if source.kind == "override":
        return "override"
    return text.removesuffix(f" ({key})").removeprefix(f"{key} (").removesuffix(")")


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
    if run.mode == "bench":
        return bench(run)
    sentences = (_what(run), _step(run), _length(run), parts(run), _measured(run), _kept(run))
    return " ".join(sentence for sentence in sentences if sentence)


def _what(run: Run) -> str:
    lora = run.model.lora
    part = f"a LoRA adapter of rank {lora.rank} on" if lora else "all weights of"
    what = f"Trains {part} {run.model.path} by {run.algorithm.type.upper()} on {_paths(run.data.train)}"
    if isinstance(run.algorithm, Sft | Dpo):
        return f"{what}."
    reward = scored_by(run)
    functions = [part.name or part.function for part in reward.functions]
    models, judges = ([part.name for part in reward.models], [part.name for part in reward.judges])
    nobody = "nothing yet" if needs_reward(run) else f"its workflow ({run.rollout.workflow.name})"
    rewards = " + ".join([*functions, *models, *judges]) or nobody
    rewards = rewards.replace("by_source", "the built-in reward of each row's source")
    return f"{what}, scored by {rewards}{_given(run)}."


def _given(run: Run) -> str:
    """Whose answers are learned beside the rollouts, and whose before them."""
    text = ""
    if isinstance(run.algorithm, Mix):
        text += f", and on the expert's answers in {_paths(run.data.answers_of(run.algorithm.expert))}"
    sample = run.trainer.sample
    if isinstance(sample, WarmUpSample):
        first = _paths(run.data.answers_of(sample.answers))
        text += f"; the first {sample.steps} learn from the answers in {first}, by SFT's loss"
    return text


def _paths(taskset: Taskset) -> str:
    return taskset.path if isinstance(taskset.path, str) else ", ".join(taskset.path)


def _step(run: Run) -> str:
    tasks = run.trainer.tasks_per_step
    updates = tasks // (run.trainer.tasks_per_update or tasks) * run.trainer.passes
    longest = run.data.max_prompt_tokens + run.data.max_response_tokens
    if isinstance(run.algorithm, Sft | Dpo):
        pairs = isinstance(run.algorithm, Dpo)
        rows = _count(tasks, "preference pair" if pairs else "given answer")
        does = f"learns from {rows} ({_tokens(longest, tasks * (2 if pairs else 1))})"
    else:
        each = run.algorithm.rollouts_per_task
        does = (
            f"samples {_count(each, 'rollout')} to each of {_count(tasks, 'task')} "
            f"({_count(tasks * each, 'rollout')}, {_tokens(longest, tasks * each)})"
        )
    return (
        f"Each step {does} and makes {_count(updates, 'update')} of the weights, at a learning rate of "
        f"{run.trainer.optimizer.lr:g} ({run.trainer.schedule.type})."
    )


def _tokens(longest: int, sequences: int) -> str:
    return f"with their prompts at most {longest} tokens each and {longest * sequences:,} together"


def _length(run: Run) -> str:
    duration, steps = run.trainer.duration, in_steps(run, run.trainer.duration)
    text = f"It goes on for {duration}"
    if duration.unit == "epochs":
        rest = "makes a smaller step" if run.data.incomplete_batch == "keep" else "is left out"
        each = _count(run.trainer.tasks_per_step, "training task")
        return f"{text}; an epoch has a step for every {each}, and the rest {rest}."
    if steps is None or steps.unit != "steps":
        return f"{text}."
    if duration.unit == "updates":
        text = f"{text}, which are {steps}"
    if isinstance(run.algorithm, Sft | Dpo):
        return f"{text}."
    total = int(steps.count) * run.trainer.tasks_per_step * run.algorithm.rollouts_per_task
    return f"{text}: {total} rollouts in all."


def _measured(run: Run) -> str:
    if not run.data.eval:
        return "Nothing is measured on held-out tasks (data.eval is empty)."
    names = ", ".join(taskset.name for taskset in run.data.eval)
    when = [
        *(["at the start"] if run.evaluate.at_start else []),
        *([_every(run.evaluate.every)] if run.evaluate.every else []),
        "at the end",
    ]
    return f"Held-out tasks ({names}) are measured {_and(when)}."


def _kept(run: Run) -> str:
    every, keep, best = run.checkpoint.every, run.checkpoint.keep, run.checkpoint.best
    when = [
        *([_every(every)] if every else []),
        *(["after each evaluation"] if best else []),
        "at the end",
    ]
    model = f"model of the step with the best {best.metric or 'reward'}" if best else "trained model"
    stay = f", of which the last {keep} stay{', the best among them' if best else ''}" if keep else ""
    copied = f"; they are copied to {redact_text(run.checkpoint.copy_to)}" if run.checkpoint.copy_to else ""
    return (
        f"Checkpoints ({_parts(run.checkpoint)}) are written {_and(when)}{stay}{copied}. All goes to "
        f"{run.folder_path}; the {model} will be in {run.folder_path / 'model'}."
    )


def _parts(checkpoint: Checkpoint) -> str:
    parts = ["weights", *(["optimizer"] if checkpoint.optimizer else []), "position"]
    export = ["a Hugging Face folder"] if checkpoint.export else []
    return _and([*parts, *export]) + ("" if checkpoint.optimizer else ", without the optimizer")


def _every(amount: Amount) -> str:
    return f"every {amount.unit[:-1]}" if amount.count == 1 else f"every {amount}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"

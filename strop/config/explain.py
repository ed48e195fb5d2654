"""Explanation of a loaded run: a summary in one paragraph, and each value with its unit, source and effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, assert_never

from strop.config.checks.data import image_engine_fault
from strop.config.load.config_tree import Source
from strop.config.load.loader import LoadedRun
from strop.config.model_files import read_model_file
from strop.config.redact import redact_text
from strop.config.schema.buffer import (
    BoundedStyleConfig,
    DistributedSyncConfig,
    FixedStyleConfig,
    LatestStyleConfig,
    OnRequestStyleConfig,
    StyleConfig,
)
from strop.config.schema.data import TasksetConfig
from strop.config.schema.policy_gradient import Rows
from strop.config.schema.record import CheckpointConfig
from strop.config.schema.run import Leaf, Run, effective_reward, lacks_reward, leaves, to_steps
from strop.config.schema.trainer import WarmupSelectionConfig
from strop.config.units import Amount, format_value


def summarize(loaded: LoadedRun) -> str:
    """Return one paragraph on what the run trains, on which data, how long, and what it writes where."""
    run = loaded.run
    if run.mode == "bench":
        return _bench(run)
    sentences = (
        _training(run),
        describe_images(run),
        _step(run),
        _duration(run),
        _topology(run),
        _evaluation(run),
        _checkpoints(run),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _bench(run: Run) -> str:
    names = ", ".join(taskset.name for taskset in run.data.eval)
    checkpoints = ", ".join(run.bench.checkpoints) or f"each checkpoint in {run.folder_path}"
    model = f"the initial model {run.model.path} and of " if run.bench.initial_model else ""
    return (
        f"Evaluates the weights of {model}{checkpoints} on the eval tasksets ({names}). The tables are written "
        f"to {run.folder_path}."
    )


def _topology(run: Run) -> str:
    """Return the processes of the run and the staleness of weights; empty for a single process."""
    if not isinstance(run.synchronizer, DistributedSyncConfig):
        return ""
    match run.mode:
        case "explore":
            roles = "This is the explorer: it samples and scores rollouts; the trainer is another process."
        case "train":
            roles = "This is the trainer: it trains on the rollouts of an explorer in another process."
        case _:
            roles = "Explorer and trainer are two processes of this machine."
    return f"{roles} {_style(run.synchronizer.style)}"


def _style(style: StyleConfig) -> str:
    match style:
        case FixedStyleConfig(every=every, max_lead=lead):
            oldest = int(lead.count + every.count) - 1
            if oldest == 0:
                return "They take turns."
            return (
                f"The explorer is at most {lead} ahead, with new weights every {every}; a step trains on "
                f"rollouts of weights up to {Amount(oldest, 'steps')} old."
            )
        case BoundedStyleConfig(max_staleness=oldest_weights):
            return f"A step trains on rollouts of weights at most {oldest_weights} old."
        case LatestStyleConfig(every=every):
            return f"The trainer publishes weights every {every}; the explorer takes the latest."
        case OnRequestStyleConfig(every=every):
            return f"The explorer requests new weights every {every} of its own."
        case _:
            assert_never(style)


def _training(run: Run) -> str:
    lora = run.model.lora
    part = f"a LoRA adapter of rank {lora.rank} on" if lora else "all weights of"
    text = f"Trains {part} {run.model.path} by {run.algorithm.type.upper()} on {_trained_paths(run)}"
    if run.algorithm.is_offline:
        return f"{text}."
    reward = effective_reward(run)
    functions = [part.name or part.function for part in reward.functions]
    models, judges = ([part.name for part in reward.models], [part.name for part in reward.judges])
    default = "nothing yet" if lacks_reward(run) else f"its workflow ({run.rollout.workflow.name})"
    rewards = " + ".join([*functions, *models, *judges]) or default
    rewards = rewards.replace("verl_by_source", "verl's reward for each row's data_source")
    rewards = rewards.replace("by_source", "the built-in reward of each row's source")
    if not run.algorithm.trains_on_reward:
        scored = "" if reward.is_empty else f"; the reward, {rewards}, is only measured"
        return f"{text}{_teachers(run)}{_demonstrations(run)}{scored}."
    return f"{text}, scored by {rewards}{_teachers(run)}{_demonstrations(run)}."


def _teachers(run: Run) -> str:
    """Return the teachers, and where the divergence from them has its effect."""
    section = run.algorithm.distillation
    if section is None:
        return ""
    names = _and([teacher.path for teacher in section.teachers])
    terms = {"the loss": section.loss, "the reward": section.reward}
    places = [f"{term.divergence.type} in {place}" for place, term in terms.items() if term is not None]
    teachers = "teacher" if len(section.teachers) == 1 else "teachers"
    return f", from the {teachers} {names} ({_and(places)})"


_ROWS: Mapping[Rows, str] = {
    "demonstrations": "demonstration",
    "pairs": "preference pair",
    "labels": "labeled response",
    "scores": "scored response",
    "steps": "response with labeled steps",
}


def _demonstrations(run: Run) -> str:
    """Return the demonstrations that are trained on with the rollouts, and those before them."""
    text = ""
    if (added := run.algorithm.added_demonstrations) is not None:
        named = run.data.demonstrations_named(added.name)
        of = "the expert's demonstrations" if added.field == "expert" else "the responses of the dataset"
        text += f", and on {of} in {_paths(named)}"
    selection = run.trainer.batch_selection
    if isinstance(selection, WarmupSelectionConfig):
        first = _paths(run.data.demonstrations_named(selection.demonstrations))
        text += f"; the first {selection.steps} train on the demonstrations in {first} with the SFT loss"
    return text


def _trained_paths(run: Run) -> str:
    """Return the paths of the training tasksets, with the part that each has of a mixture with weights."""
    sets = [*run.data.training_tasksets().values()]
    total = sum(taskset.weight or 0 for taskset in sets)
    parts = [f" ({taskset.weight / total:.0%})" if taskset.weight else "" for taskset in sets]
    return _and([f"{_paths(taskset)}{part}" for taskset, part in zip(sets, parts, strict=True)])


def _paths(taskset: TasksetConfig) -> str:
    return taskset.path if isinstance(taskset.path, str) else ", ".join(taskset.path)


def _step(run: Run) -> str:
    tasks = run.trainer.tasks_per_step
    updates = tasks // (run.trainer.tasks_per_update or tasks) * run.trainer.epochs_per_step
    longest = run.data.max_prompt_tokens + run.data.max_response_tokens
    if run.algorithm.is_offline:
        kind = _ROWS[run.algorithm.rows] if run.data.packing is None else "packed sequence"
        sequences = tasks * (2 if run.algorithm.rows == "pairs" else 1)
        work = f"trains on {_count(tasks, kind)} ({_tokens(longest, sequences)})"
    else:
        each = run.algorithm.rollouts_per_task
        work = (
            f"samples {_count(each, 'rollout')} of each of {_count(tasks, 'task')} "
            f"({_count(tasks * each, 'rollout')}, {_tokens(longest, tasks * each)})"
        )
    return (
        f"Each step {work} and makes {_count(updates, 'update')} of the weights, at a learning rate of "
        f"{run.trainer.optimizer.lr:g} ({run.trainer.schedule.type})."
    )


def _tokens(longest: int, sequences: int) -> str:
    return f"with their prompts at most {longest} tokens each and {longest * sequences:,} in total"


def _duration(run: Run) -> str:
    duration, steps = run.trainer.duration, to_steps(run, run.trainer.duration)
    limit = run.trainer.stop_after
    text = f"The run lasts {duration}" + ("" if limit is None else f", but at most {limit}")
    if duration.unit == "epochs":
        rest = "make a smaller step" if run.data.incomplete_batch == "keep" else "are skipped"
        kind = "task" if run.data.packing is None else "sequence"
        each = _count(run.trainer.tasks_per_step, f"training {kind}")
        return f"{text}; an epoch has a step for every {each}, and the remaining {kind}s {rest}."
    if steps is None or steps.unit != "steps":
        return f"{text}."
    if duration.unit == "updates":
        text = f"{text}, which are {steps}"
    if run.algorithm.is_offline:
        return f"{text}."
    total = int(steps.count) * run.trainer.tasks_per_step * run.algorithm.rollouts_per_task
    return f"{text}: {total} rollouts in total."


def _evaluation(run: Run) -> str:
    if not run.data.eval:
        return "There is no evaluation (data.eval is empty)."
    names = ", ".join(taskset.name for taskset in run.data.eval)
    when = [
        *(["at the start"] if run.evaluate.at_start else []),
        *([_every(run.evaluate.every)] if run.evaluate.every else []),
        "at the end",
    ]
    return f"The eval tasksets ({names}) are evaluated {_and(when)}."


def _checkpoints(run: Run) -> str:
    every, keep, best = run.checkpoint.every, run.checkpoint.keep, run.checkpoint.best
    when = [
        *([_every(every)] if every else []),
        *(["after each evaluation"] if best else []),
        "at the end",
    ]
    model = f"model of the step with the best {best.metric or 'reward'}" if best else "trained model"
    kept = f", and the last {keep} are kept{', including the best one' if best else ''}" if keep else ""
    copied = f"; they are copied to {redact_text(run.checkpoint.mirror)}" if run.checkpoint.mirror else ""
    return (
        f"Checkpoints ({_contents(run.checkpoint)}) are written {_and(when)}{kept}{copied}. All files are in "
        f"{run.folder_path}; the {model} will be in {run.folder_path / 'model'}."
    )


def _contents(checkpoint: CheckpointConfig) -> str:
    contents = ["weights", *(["optimizer"] if checkpoint.save_optimizer else []), "position"]
    export = ["a Hugging Face folder"] if checkpoint.export else []
    return _and([*contents, *export]) + ("" if checkpoint.save_optimizer else ", without the optimizer")


def _every(amount: Amount) -> str:
    return f"every {amount.unit[:-1]}" if amount.count == 1 else f"every {amount}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


_PROCESSOR_FILE = "preprocessor_config.json"


def describe_images(run: Run) -> str:
    """Return the columns of images and the token cost of an image; empty for a run without such a column."""
    tasksets = (*run.data.training_tasksets().values(), *run.data.eval, *run.data.demonstrations)
    columns = sorted({taskset.images for taskset in tasksets if taskset.images})
    if not columns:
        return ""
    fault = image_engine_fault(run)
    cost = f"Prompts have the images of the column {' or '.join(columns)}; {_token_cost(run)}."
    return f"{cost} {fault}" if fault else cost


def _token_cost(run: Run) -> str:
    processor = read_model_file(run.model.path, _PROCESSOR_FILE)
    if tiles := _tile_cost(read_model_file(run.model.path, "config.json"), processor):
        return (
            f"an image is {tiles}; all count toward data.max_prompt_tokens ({run.data.max_prompt_tokens:,})"
        )
    size = processor.get("size") or {}
    least = run.data.images.min_pixels or processor.get("min_pixels") or size.get("shortest_edge")
    most = run.data.images.max_pixels or processor.get("max_pixels") or size.get("longest_edge")
    patch, merge = processor.get("patch_size"), processor.get("merge_size")
    if not (patch and merge and least and most):
        return f"how many tokens an image is, the model's {_PROCESSOR_FILE} decides"
    edge = patch * merge
    return (
        f"an image is one token per {edge} x {edge} pixels, {max(1, least // edge**2):,} to {most // edge**2:,} tokens "
        f"of data.max_prompt_tokens ({run.data.max_prompt_tokens:,}); a larger one is reduced to {most:,} pixels "
        "(data.images.max_pixels)"
    )


def _tile_cost(config: dict[str, Any], processor: dict[str, Any]) -> str:
    """Pad tokens of an image in a family with tiles of one size; empty for others, and where the files do not say."""
    vision, family = config.get("vision_config") or {}, config.get("model_type")
    if family == "gemma3" and (count := config.get("mm_tokens_per_image")):
        return f"{count:,} tokens whatever its size, and its start and end"
    if family == "internvl" and (count := config.get("image_seq_length")):
        most = processor.get("max_patches", 12)
        return (
            f"{count:,} tokens per tile, 1 to {most} tiles and for several tiles the whole image, and its start and "
            "end"
        )
    edge = (processor.get("max_image_size") or {}).get("longest_edge")
    size = (processor.get("size") or {}).get("longest_edge")
    width, patch = vision.get("image_size"), vision.get("patch_size")
    if family in ("idefics3", "smolvlm") and edge and size and width and patch:
        count = (width // patch // config.get("scale_factor", 2)) ** 2
        return (
            f"{count:,} tokens per tile, at most {ceil(size / edge) ** 2} tiles and the whole image, and the tokens "
            "that name the row and column of a tile"
        )
    return ""


_UNITS = {
    "_tokens": "tokens",
    "_seconds": "seconds",
    "tasks_per_step": "tasks",
    "tasks_per_update": "tasks",
    "limit_tasks": "tasks",
    "rollouts_per_task": "rollouts",
    "max_sequences": "sequences",
    "epochs_per_step": "epochs",
    "keep": "checkpoints",
    "workers": "processes",
    "max_error_fraction": "fraction",
}


@dataclass(frozen=True, slots=True)
class ExplainedValue:
    """Value of a run, as `strop explain` prints it."""

    field: str
    value: str
    unit: str
    foreign_key: str
    """Key of another dialect that determined the value, with its own value; empty for a run file."""
    source: Source
    location: str
    """Location of the source, without that key."""
    effect: str


def explain_values(loaded: LoadedRun) -> list[ExplainedValue]:
    """Return every value of the run, in the run file's order."""
    return [_explain_value(leaf, loaded.sources[".".join(leaf.keys)]) for leaf in leaves(loaded.run)]


def _explain_value(leaf: Leaf, source: Source) -> ExplainedValue:
    return ExplainedValue(
        field=".".join(leaf.keys),
        value=format_value(leaf.keys[-1], leaf.value),
        unit="" if leaf.value is None else unit_of(leaf.keys[-1], leaf.value),
        foreign_key=source.foreign_key,
        source=source,
        location=_location(source),
        effect=" ".join(leaf.effect.split()),
    )


def _location(source: Source) -> str:
    """`ppo.yaml:3 (data.val_files)` becomes `ppo.yaml:3`, and `data.seed (documented default)` `documented default`."""
    key = source.foreign_key.partition("=")[0]
    text = str(source)
    if not key:
        return text
    if source.kind == "override":
        return "override"
    return text.removesuffix(f" ({key})").removeprefix(f"{key} (").removesuffix(")")


def unit_of(name: str, value: Any) -> str:
    """Return the unit of a value, from its amount or its field's name; empty if it has none."""
    if isinstance(value, Amount):
        return value.unit
    if isinstance(value, bool):
        return ""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")

"""Questions of the beginner's form, for a run file and for a Trinity-RFT file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strop.compat.ledger.key_mapping import UNSET
from strop.compat.trinity.reader import LEDGER
from strop.config.load.config_tree import split_key
from strop.config.reference import default_of, format_yaml
from strop.config.schema.run import field_at
from strop.studio.fields import FormField, FormSection, written_text

Suggestions = Literal["", "model", "data", "column", "reward", "algorithm", "template"]
"""Kind of the suggestions of a text field."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question."""

    key: str
    """Dotted key that the answer sets."""
    label: str
    help: str
    suggestions: Suggestions = ""
    algorithms: tuple[str, ...] = ()
    """Algorithms for which the question is asked; empty for all."""


_SAMPLED = ("grpo", "ppo", "rloo", "reinforce_plus_plus", "opmd")
_ALGORITHMS = (*_SAMPLED, "sft", "dpo")
_CHOICES = {"algorithm": _ALGORITHMS, "template": ("tokenizer", "none")}
_TYPES = {"algorithm.type": "grpo"}
_OPTIONAL = ("model.lora.rank", "data.eval.0.path", "reward")
"""Keys whose section may be missing, so that the field's own default does not apply."""
_STROP = (
    Question("project", "Project", "Runs of a project share a folder."),
    Question("name", "Name of the run", "The run's folder is runs/project/name."),
    Question("model.path", "Model", "A model folder, a GGUF file, or a name on the Hub.", "model"),
    Question("model.lora.rank", "LoRA rank", "Trains a small adapter; empty trains all weights."),
    Question(
        "data.train.path", "Training data", "A file with one task per row, or a name on the Hub.", "data"
    ),
    Question("data.train.prompt", "Column of the prompt", "Text, or a list of messages.", "column"),
    Question("data.train.answer", "Column of the answer", "Reference for the reward.", "column", _SAMPLED),
    Question("data.train.response", "Column of the response", "Response to imitate.", "column", ("sft",)),
    Question(
        "data.train.chosen", "Column of the preferred response", "The better of two.", "column", ("dpo",)
    ),
    Question(
        "data.train.rejected", "Column of the rejected response", "The worse of two.", "column", ("dpo",)
    ),
    Question("data.eval.0.path", "Held-out data", "Rows that are never trained on.", "data"),
    Question("reward", "Reward", "A built-in, or a function of yours: file.py:function.", "reward", _SAMPLED),
    Question(
        "algorithm.type", "Algorithm", "grpo compares responses, sft imitates, dpo prefers.", "algorithm"
    ),
    Question("algorithm.rollouts_per_task", "Responses per task", "Compared with one another.", "", _SAMPLED),
    Question("trainer.duration", "Length of the training", "With its unit: 100 steps, or 1 epoch."),
    Question("trainer.tasks_per_step", "Tasks per step", "Prompts of one step."),
    Question("trainer.optimizer.lr", "Learning rate", "1e-6 to 1e-5 for all weights, 1e-5 to 1e-4 for LoRA."),
    Question("data.max_prompt_tokens", "Longest prompt", "In tokens."),
    Question("data.max_response_tokens", "Longest response", "In tokens; longer ones are truncated."),
    Question(
        "data.chat_template", "Chat template", "The tokenizer's own, or none for plain text.", "template"
    ),
    Question(
        "evaluate.every", "Evaluate every", "With its unit: 10 steps; never is at the start and the end only."
    ),
    Question("checkpoint.every", "Save every", "With its unit: 50 steps; never is at the end only."),
)
_TASKSET = "buffer.explorer_input.taskset"
_TRINITY = (
    Question("project", "Project", "Runs of a project share a folder."),
    Question("name", "Name of the run", "Name of the run in its project."),
    Question("checkpoint_root_dir", "Folder of checkpoints", "Folder of all projects."),
    Question("model.model_path", "Model", "A model folder, or a name on the Hub.", "model"),
    Question(f"{_TASKSET}.path", "Training data", "A file, a folder, or a name on the Hub.", "data"),
    Question(f"{_TASKSET}.split", "Split", "Split of a dataset with several."),
    Question(f"{_TASKSET}.format.prompt_key", "Column of the prompt", "Text of the task.", "column"),
    Question(
        f"{_TASKSET}.format.response_key", "Column of the answer", "Reference for the reward.", "column"
    ),
    Question("buffer.default_workflow_type", "Workflow", "Workflow of the tasks, such as math_workflow."),
    Question("buffer.default_reward_fn_type", "Reward", "Reward of the tasks.", "reward"),
    Question("algorithm.algorithm_type", "Algorithm", "Such as grpo, ppo, sft or dpo.", "algorithm"),
    Question("algorithm.repeat_times", "Responses per task", "Compared with one another."),
    Question("algorithm.optimizer.lr", "Learning rate", "1e-6 to 1e-5 for all weights."),
    Question("buffer.batch_size", "Tasks per step", "Prompts of one step."),
    Question("buffer.total_epochs", "Epochs", "Passes over the tasks."),
    Question("buffer.total_steps", "Steps", "Number of steps, in place of epochs."),
    Question("model.max_prompt_tokens", "Longest prompt", "In tokens."),
    Question("model.max_response_tokens", "Longest response", "In tokens."),
    Question("explorer.eval_interval", "Evaluate every", "In steps."),
    Question("trainer.save_interval", "Save every", "In steps."),
)


def asked_questions(dialect: str) -> tuple[Question, ...]:
    """All questions about a configuration, whichever the algorithm."""
    return _TRINITY if dialect == "trinity" else _STROP


def question_section(dialect: str, values: Mapping[str, Any]) -> FormSection:
    """The beginner's form for a configuration with these values."""
    algorithm = values.get("algorithm", "grpo")
    kind = algorithm.get("type", "grpo") if isinstance(algorithm, Mapping) else str(algorithm)
    asked = [one for one in asked_questions(dialect) if not one.algorithms or _applies(one, kind)]
    return FormSection("", "", "", tuple(_field(one, values, dialect) for one in asked))


def _applies(question: Question, kind: str) -> bool:
    return kind in question.algorithms or (kind not in _ALGORITHMS and "grpo" in question.algorithms)


def _field(question: Question, values: Mapping[str, Any], dialect: str) -> FormField:
    value = written_text(value_at(values, split_key(question.key)))
    choices = _CHOICES.get(question.suggestions, ()) if dialect == "strop" else ()
    if value and choices and value not in choices:
        choices = (*choices, value)
    default = _default(question.key, values, dialect)
    return FormField(
        question.key, question.label, value, default, question.help, question.suggestions, choices
    )


def _default(key: str, values: Mapping[str, Any], dialect: str) -> str:
    """The value that applies if the key is not written, in words."""
    if dialect == "trinity":
        row = LEDGER.find_exact(key)
        return "" if row is None or row.default is UNSET else format_yaml(row.default)
    if key in _TYPES:
        return _TYPES[key]
    field = field_at(split_key(key), values)
    if field is None or key in _OPTIONAL:
        return ""
    return "required" if field.is_required() else default_of(field)


def value_at(values: Any, keys: Sequence[str]) -> Any:
    """The value at a path; a name in place of a section is the section's type. None if it is not written."""
    for key in keys:
        if isinstance(values, Mapping):
            values = values.get(key)
        elif isinstance(values, list) and key.isdigit() and int(key) < len(values):
            values = values[int(key)]
        elif isinstance(values, str) and key == "type":
            return values
        else:
            return None
    return values

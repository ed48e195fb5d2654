"""Selection of samples for the report: rows of the training data, and rollouts of evaluations and of the last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from strop.config.load.schema_faults import first_fault
from strop.errors import RunFolderError
from strop.reward_comparison import exceeds, reaches
from strop.runs.reader import RunData
from strop.runs.rollout_file import conversation_text, read_rollouts
from strop.runs.sample_table import choose_tasks
from strop.runs.training_examples import read_training_examples

_MESSAGES = TypeAdapter(list[dict[str, Any]])
_MAX_CHARACTERS = 4000
_SAMPLES_PER_LIST = 3

Row = Mapping[str, Any]
"""One row of a rollout file."""


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One response, with its reward and status."""

    label: str
    text: str
    reward: float | None
    parts: tuple[tuple[str, float], ...]
    status: str
    error: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class TaskSample:
    """A task and one or two responses to it."""

    prompt: str
    images: tuple[str, ...]
    """Images of the prompt, as names of files in the run's folder `images`."""
    expected: str | None
    answers: tuple[SampledAnswer, ...]


@dataclass(frozen=True, slots=True)
class SampleList:
    """Samples under one heading."""

    title: str
    note: str
    samples: tuple[TaskSample, ...]


def choose_samples(data: RunData) -> list[SampleList]:
    """Choose rows of SFT and DPO, and samples of every eval taskset and of the last recorded step; omit empty lists."""
    lists = [_training_examples(data)]
    for name, files in data.eval_files().items():
        lists += [*_eval_samples(name, files), _fixed_samples(name, files, data.eval_answers)]
    if files := data.rollout_files():
        lists += _training_samples(files[-1])
    return [one for one in lists if one.samples]


def _training_examples(data: RunData) -> SampleList:
    """The first rows that an SFT or DPO run trains on."""
    found = read_training_examples(data.folder.training_examples)
    return SampleList(
        "Training data",
        "First rows of the data as the model reads them, with the chat template: the prompt, and what is trained.",
        tuple(
            TaskSample(
                prompt=_shorten(example.prompt),
                images=(),
                expected=None,
                answers=tuple(
                    SampledAnswer(one.label, _visible(_shorten(one.text)), None, (), "ok", None, one.tokens)
                    for one in example.answers
                ),
            )
            for example in found[:_SAMPLES_PER_LIST]
        ),
    )


def _eval_samples(name: str, files: Sequence[Path]) -> list[SampleList]:
    last, before = read_rollouts(files[-1]), _first_evaluation(files)

    def change(row: Row) -> float:
        earlier = before.get((row["task_id"], row["index"]))
        return row["reward"] - earlier["reward"] if earlier and earlier["reward"] is not None else 0.0

    scored = [row for row in last if row["reward"] is not None]
    improved = [row for row in sorted(scored, key=change, reverse=True) if exceeds(change(row), 0)]
    worse = [row for row in sorted(scored, key=change) if exceeds(-change(row), 0)]
    ascending = sorted(scored, key=lambda row: row["reward"])
    top = max((row["reward"] for row in scored), default=0.0)
    chosen: tuple[tuple[str, str, Sequence[Row]], ...] = (
        ("improved", "Largest gains between the first and the last evaluation.", improved),
        ("worse", "Largest losses between the first and the last evaluation.", worse),
        ("best", "Highest rewards of this evaluation.", [] if before else ascending[::-1]),
        (
            "lowest",
            "Lowest rewards of the last evaluation.",
            [row for row in ascending if not reaches(row["reward"], top)],
        ),
    )
    if not any(rows for _, _, rows in chosen):
        chosen = (("equal rewards", "All rewards of the first and the last evaluation are equal.", scored),)
    return [
        SampleList(
            f"Held out, {name}: {kind}",
            note,
            tuple(_first_and_last(row, before) for row in _distinct_tasks(rows)),
        )
        for kind, note, rows in chosen
    ]


def _fixed_samples(name: str, files: Sequence[Path], count: int) -> SampleList:
    """Choose the tasks that `record.eval_answers` asks for."""
    last, before = read_rollouts(files[-1]), _first_evaluation(files)
    rows = {row["task_id"]: row for row in last if row["index"] == 0}
    chosen = [rows[task_id] for task_id in choose_tasks(rows, count)]
    return SampleList(
        f"Held out, {name}: fixed selection",
        "The same tasks after every evaluation, drawn at random (record.eval_answers).",
        tuple(_first_and_last(row, before) for row in chosen),
    )


def _first_evaluation(files: Sequence[Path]) -> dict[tuple[str, int], Row]:
    """Read the first evaluation's rows by task and index; empty if there was only one evaluation."""
    if len(files) < 2:
        return {}
    return {(row["task_id"], row["index"]): row for row in read_rollouts(files[0])}


def _first_and_last(row: Row, before: Mapping[tuple[str, int], Row]) -> TaskSample:
    earlier = before.get((row["task_id"], row["index"]))
    rows = (earlier, row) if earlier is not None else (row,)
    return sample_of([(f"after step {one['step']}", one) for one in rows])


def _training_samples(file: Path) -> list[SampleList]:
    groups: dict[str, list[Row]] = {}
    rows = read_rollouts(file)
    for row in rows:
        if row["reward"] is not None:
            groups.setdefault(row["group"], []).append(row)
    ranked = [sorted(group, key=lambda row: row["reward"], reverse=True) for group in groups.values()]
    varied = [group for group in ranked if group[0]["reward"] > group[-1]["reward"]]
    varied.sort(key=lambda group: group[0]["reward"] - group[-1]["reward"], reverse=True)
    pairs = [
        sample_of([("best of the group", group[0]), ("worst of the group", group[-1])])
        for group in varied[:_SAMPLES_PER_LIST]
    ]
    equal = [group[-1] for group in ranked if group[0]["reward"] == group[-1]["reward"]]
    equal.sort(key=lambda row: row["reward"])
    failed = [row for row in rows if row["status"] == "error"]
    step = rows[0]["step"] if rows else 0
    return [
        SampleList(
            f"Training, step {step}: best and worst",
            "Responses to the same prompt, from the groups with the largest difference in reward.",
            tuple(pairs),
        ),
        SampleList(
            f"Training, step {step}: equal rewards",
            "One response of each group whose rewards are all equal; the advantages of such a group are 0.",
            tuple(sample_of([("one of the group", row)]) for row in _distinct_tasks(equal)),
        ),
        SampleList(
            f"Training, step {step}: failed",
            "These rollouts have no reward and were not trained on.",
            tuple(sample_of([("failed", row)]) for row in _distinct_tasks(failed)),
        ),
    ]


def _distinct_tasks(rows: Sequence[Row]) -> list[Row]:
    """Take the first rows of distinct tasks, as many as one list shows."""
    return list({row["task_id"]: row for row in reversed(rows)}.values())[::-1][:_SAMPLES_PER_LIST]


def sample_of(answers: Sequence[tuple[str, Row]]) -> TaskSample:
    """A task, with the labeled rows of responses to it."""
    row = answers[-1][1]
    return TaskSample(
        prompt=_shorten(row.get("model_prompt") or row["prompt"]),
        images=tuple(row.get("images") or ()),
        expected=None if row["answer"] is None else _shorten(row["answer"]),
        answers=tuple(
            SampledAnswer(
                label,
                _visible(_shorten(_response_text(one))),
                one["reward"],
                tuple(one["reward_parts"] or ()),
                one["status"],
                one["error"],
                one["response_tokens"],
            )
            for label, one in answers
        ),
    )


def _response_text(row: Row) -> str:
    """Format the response: the conversation if the row has messages, else the text."""
    if not row.get("messages"):
        return str(row["text"])
    try:
        return conversation_text(_MESSAGES.validate_json(row["messages"]))
    except ValidationError as error:
        raise RunFolderError(
            f"The messages of a rollout of the task {row['task_id']} are damaged: {first_fault(error)} Move the file "
            f"of step {row['step']} away; the run's checkpoints do not depend on it."
        ) from None


def _shorten(text: str) -> str:
    """Keep the beginning and the end of a long text."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    head, tail = _MAX_CHARACTERS * 2 // 3, _MAX_CHARACTERS // 3
    return f"{text[:head]}\n\n[... {len(text) - head - tail:,} characters ...]\n\n{text[-tail:]}"


def _visible(text: str) -> str:
    """Replace an empty or blank text by a description of it."""
    if text.strip():
        return text
    return f"({len(text)} white-space characters)" if text else "(empty)"

"""Which rollouts one would want to read: what was learned, what was not, and what a group compares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from strop.report.contents import Contents
from strop.run.records.rollout_file import conversation_text
from strop.run.records.shown import chosen_tasks

_LONGEST = 4000
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it is shown."""

    label: str
    text: str
    reward: float | None
    parts: tuple[tuple[str, float], ...]
    status: str
    error: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A task and one or two answers to it."""

    prompt: str
    expected: str | None
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class SampleList:
    """Samples under one heading."""

    title: str
    note: str
    samples: tuple[Sample, ...]


def choose_samples(contents: Contents) -> list[SampleList]:
    """Of each eval taskset what was learned and what is still wrong; of training, what groups compare."""
    lists = []
    for name, files in contents.eval_files().items():
        lists += [*_held_out(name, files), _always_shown(name, files, contents.eval_answers)]
    if files := contents.rollout_files():
        lists += _training(files[-1])
    return [one for one in lists if one.samples]


def _held_out(name: str, files: Sequence[Path]) -> list[SampleList]:
    first, last = _read(files[0]), _read(files[-1])
    before = {(row["task_id"], row["index"]): row for row in first} if len(files) > 1 else {}

    def change(row: Mapping[str, Any]) -> float:
        earlier = before.get((row["task_id"], row["index"]))
        return row["reward"] - earlier["reward"] if earlier and earlier["reward"] is not None else 0.0

    scored = [row for row in last if row["reward"] is not None]
    learned = [row for row in sorted(scored, key=change, reverse=True) if change(row) > 0]
    lost = [row for row in sorted(scored, key=change) if change(row) < 0]
    wrong = sorted(scored, key=lambda row: row["reward"])
    top = max((row["reward"] for row in scored), default=0.0)
    chosen = (
        ("learned", "The largest gains between the first and the last evaluation.", learned),
        ("lost", "What the last evaluation scores lower than the first one did.", lost),
        ("best", "The highest rewards of this evaluation.", [] if before else wrong[::-1]),
        (
            "still wrong",
            "The lowest rewards of the last evaluation.",
            [r for r in wrong if r["reward"] < top],
        ),
    )
    return [
        SampleList(f"Held out, {name}: {what}", note, tuple(_before_and_after(r, before) for r in _few(rows)))
        for what, note, rows in chosen
    ]


def _always_shown(name: str, files: Sequence[Path], count: int) -> SampleList:
    """What `record.eval_answers` asks for."""
    first, last = _read(files[0]), _read(files[-1])
    before = {(row["task_id"], row["index"]): row for row in first} if len(files) > 1 else {}
    rows = {row["task_id"]: row for row in last if row["index"] == 0}
    chosen = [rows[task_id] for task_id in chosen_tasks(rows, count)]
    return SampleList(
        f"Held out, {name}: the same tasks each time",
        "Drawn once, whatever was answered to them (record.eval_answers).",
        tuple(_before_and_after(row, before) for row in chosen),
    )


def _before_and_after(row: Mapping[str, Any], before: Mapping[tuple[str, int], Mapping[str, Any]]) -> Sample:
    earlier = before.get((row["task_id"], row["index"]))
    rows = (earlier, row) if earlier is not None else (row,)
    return _sample([(f"after step {one['step']}", one) for one in rows])


def _training(file: Path) -> list[SampleList]:
    groups: dict[str, list[dict[str, Any]]] = {}
    rows = _read(file)
    for row in rows:
        if row["reward"] is not None:
            groups.setdefault(row["group"], []).append(row)
    ranked = [sorted(group, key=lambda row: row["reward"], reverse=True) for group in groups.values()]
    apart = [group for group in ranked if group[0]["reward"] > group[-1]["reward"]]
    apart.sort(key=lambda group: group[0]["reward"] - group[-1]["reward"], reverse=True)
    pairs = [_sample([("best of the group", g[0]), ("worst of the group", g[-1])]) for g in apart[:_SHOWN]]
    flat = [group[-1] for group in ranked if group[0]["reward"] == group[-1]["reward"]]
    flat.sort(key=lambda row: row["reward"])
    broken = [row for row in rows if row["status"] == "error"]
    step = rows[0]["step"] if rows else 0
    return [
        SampleList(
            f"Training, step {step}: best and worst",
            "Answers to the same prompt that training compared, where they differ most.",
            tuple(pairs),
        ),
        SampleList(
            f"Training, step {step}: nothing to compare",
            "All answers of the group had the same reward, and so it taught nothing. One of them:",
            tuple(_sample([("one of the group", row)]) for row in _few(flat)),
        ),
        SampleList(
            f"Training, step {step}: broken",
            "These rollouts have no reward and were not trained on.",
            tuple(_sample([("broken", row)]) for row in _few(broken)),
        ),
    ]


def _few(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first few, of different tasks."""
    return list({row["task_id"]: row for row in reversed(rows)}.values())[::-1][:_SHOWN]


def _sample(answers: Sequence[tuple[str, Mapping[str, Any]]]) -> Sample:
    row = answers[-1][1]
    return Sample(
        prompt=_shortened(row["prompt"]),
        expected=None if row["answer"] is None else _shortened(row["answer"]),
        answers=tuple(
            Answer(
                label,
                _visible(_shortened(_said(one))),
                one["reward"],
                tuple(one["reward_parts"] or ()),
                one["status"],
                one["error"],
                one["response_tokens"],
            )
            for label, one in answers
        ),
    )


def _said(row: Mapping[str, Any]) -> str:
    """The answer, or the whole of what was said where that is more."""
    return conversation_text(json.loads(row["messages"])) if row.get("messages") else str(row["text"])


def _shortened(text: str) -> str:
    """Beginning and end of a long text."""
    if len(text) <= _LONGEST:
        return text
    head, tail = _LONGEST * 2 // 3, _LONGEST // 3
    return f"{text[:head]}\n\n[... {len(text) - head - tail:,} characters ...]\n\n{text[-tail:]}"


def _visible(text: str) -> str:
    """A text that could not be seen, said."""
    if text.strip():
        return text
    return f"({len(text)} characters of white space)" if text else "(empty)"


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows

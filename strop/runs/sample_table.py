"""Responses to a fixed random selection of eval tasks, as a Markdown table (`record.eval_answers`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from strop.printable import printable
from strop.runs.rollout_file import prompt_text
from strop.types import Rollout, RolloutGroup, Task

_SEED = 42
_MAX_CHARACTERS = 2000


def choose_tasks(ids: Iterable[str], count: int) -> list[str]:
    """Draw `count` tasks by their ids alone, so that the same taskset always gives the same tasks."""
    known = sorted(set(ids))
    order = np.random.Generator(np.random.Philox(_SEED)).permutation(len(known))
    return [known[index] for index in order[:count]]


def choose_samples(groups: Sequence[RolloutGroup], count: int) -> Iterator[tuple[Task, Rollout]]:
    """The first response to each of `count` tasks, the same tasks for the same taskset."""
    by_task = {group.task.id: group for group in groups}
    for task_id in choose_tasks(by_task, count):
        yield by_task[task_id].task, by_task[task_id].rollouts[0]


def samples_markdown(groups: Sequence[RolloutGroup], count: int) -> str:
    """Format the first response to each of `count` tasks as a Markdown table."""
    lines = ["| prompt | expected | answer | reward |", "| --- | --- | --- | --- |"]
    for task, rollout in choose_samples(groups, count):
        reward = "failed" if rollout.reward is None else f"{rollout.reward:g}"
        expected = "" if task.answer is None else str(task.answer)
        cells = (prompt_text(task), expected, rollout.text, reward)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Shorten a text, put it on one line, and escape what would end the cell or be rendered as HTML."""
    text = printable(text)
    shown = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ..."
    for mark, replacement in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", "<br>")):
        shown = shown.replace(mark, replacement)
    return shown

"""`record.eval_answers`: the same few held-out tasks each time, with what was answered to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from strop.run.records.rollout_file import prompt_text
from strop.types import Group

_SEED = 42
_LONGEST = 2000


def chosen_tasks(ids: Iterable[str], count: int) -> list[str]:
    """So many of the tasks, drawn by their ids alone: of the same taskset always the same ones."""
    known = sorted(set(ids))
    order = np.random.Generator(np.random.Philox(_SEED)).permutation(len(known))
    return [known[place] for place in order[:count]]


def answers_table(groups: Sequence[Group], count: int) -> str:
    """The first answer to each of the chosen tasks, as a Markdown table."""
    by_task = {group.task.id: group for group in groups}
    lines = ["| prompt | expected | answer | reward |", "| --- | --- | --- | --- |"]
    for task_id in chosen_tasks(by_task, count):
        task, rollout = by_task[task_id].task, by_task[task_id].rollouts[0]
        reward = "broken" if rollout.reward is None else f"{rollout.reward:g}"
        expected = "" if task.answer is None else str(task.answer)
        cells = (prompt_text(task), expected, rollout.text, reward)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A text on one line, cut where it is long; nothing in it ends the cell, or is taken for HTML."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    for mark, instead in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", "<br>")):
        shown = shown.replace(mark, instead)
    return shown

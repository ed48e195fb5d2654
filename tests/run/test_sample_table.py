"""Responses to eval tasks as a Markdown table."""

from __future__ import annotations

from strop.runs.sample_table import choose_tasks, samples_markdown
from tests.report.run_folders import group


def test_the_choice_depends_on_the_tasks_alone() -> None:
    ids = [f"val:{n}" for n in range(50)]
    assert choose_tasks(ids, 5) == choose_tasks(reversed(ids), 5) == choose_tasks(ids, 9)[:5]
    assert choose_tasks(ids, 5) != sorted(ids)[:5]
    assert choose_tasks(ids[:3], 9) and len(choose_tasks(ids[:3], 9)) == 3


def test_a_cell_is_one_line_and_no_html() -> None:
    table = samples_markdown([group(0, ["a|b\n<i>c"], [0.25])], 3)
    head, rule, row = table.splitlines()
    assert head == "| prompt | expected | answer | reward |" and rule.count("---") == 4
    assert row.endswith("| a\\|b<br>&lt;i>c | 0.25 |")

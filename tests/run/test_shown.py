"""Held-out answers as a table."""

from __future__ import annotations

from strop.run.records.shown import answers_table, chosen_tasks
from tests.report.runs import group


def test_the_choice_depends_on_the_tasks_alone() -> None:
    ids = [f"val:{n}" for n in range(50)]
    assert chosen_tasks(ids, 5) == chosen_tasks(reversed(ids), 5) == chosen_tasks(ids, 9)[:5]
    assert chosen_tasks(ids, 5) != sorted(ids)[:5]
    assert chosen_tasks(ids[:3], 9) and len(chosen_tasks(ids[:3], 9)) == 3


def test_a_cell_is_one_line_and_no_html() -> None:
    table = answers_table([group(0, ["a|b\n<i>c"], [0.25])], 3)
    head, rule, row = table.splitlines()
    assert head == "| prompt | expected | answer | reward |" and rule.count("---") == 4
    assert row.endswith("| a\\|b<br>&lt;i>c | 0.25 |")

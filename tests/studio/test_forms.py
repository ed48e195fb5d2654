"""Forms have every field of the schema and every key of Trinity-RFT, with what is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strop.compat.trinity.reader import LEDGER
from strop.config.load.config_tree import split_key
from strop.config.schema.run import all_keys, field_at
from strop.studio import questions
from strop.studio.fields import FormField, FormSection, run_file_sections
from strop.studio.questions import question_section
from strop.studio.trinity_fields import trinity_sections


def fields_of(sections: list[FormSection] | tuple[FormSection, ...]) -> Iterator[FormField]:
    for section in sections:
        yield from section.fields
        yield from fields_of(section.sections)


def added(sections: list[FormSection] | tuple[FormSection, ...]) -> Iterator[str]:
    for section in sections:
        if section.add:
            yield section.add
        yield from added(section.sections)


def test_form_offers_every_field_of_the_default_types() -> None:
    form = run_file_sections({})
    shown = {one.key for one in fields_of(form)}
    offered = [tuple(k for k in split_key(key) if k != "0") for key in added(form)]
    above = {".".join(split_key(key)[:depth]) for key in shown for depth in range(1, 9)}
    for key in dict.fromkeys(all_keys()):
        keys = split_key(key)
        if keys[0] == "stages" or field_at(keys, {}) is None:
            continue
        inside = any(keys[: len(outer)] == outer for outer in offered)
        section = key in above
        other_type = not shown.isdisjoint(
            {".".join((*keys[:depth], "type")) for depth in range(1, len(keys))}
        )
        assert key in shown or inside or section or other_type, key


def test_form_of_a_type_has_its_own_fields() -> None:
    shown = {one.key for one in fields_of(run_file_sections({"algorithm": "dpo"}))}
    assert "algorithm.beta" in shown and "algorithm.rollouts_per_task" not in shown


def test_fields_show_values_as_yaml_and_defaults() -> None:
    values = {
        "trainer": {"optimizer": {"lr": 1e-06}},
        "data": {"train": {"path": ["a", "b"]}},
        "reward": "exact",
    }
    form = {one.key: one for one in fields_of(run_file_sections(values))}
    assert form["trainer.optimizer.lr"].value == "1e-06"
    assert form["data.train.path"].value == "[a, b]"
    assert form["trainer.tasks_per_step"].value == "" and form["trainer.tasks_per_step"].default == "64"
    assert form["reward.functions.0.function"].value == "exact"
    assert form["record.report"].choices == ("true", "false")
    assert form["rollout.engine.type"].choices[0] == "native"


def test_trinity_form_has_every_key_of_the_ledger() -> None:
    shown = [one.key for one in fields_of(trinity_sections({"algorithm": {"repeat_times": 8}}))]
    rows = [row.key for row in LEDGER.rows if "*" not in row.key]
    assert sorted(shown) == sorted(rows)
    form = {one.key: one for one in fields_of(trinity_sections({"algorithm": {"repeat_times": 8}}))}
    assert form["algorithm.repeat_times"].value == "8"


@pytest.mark.parametrize("kind", ["grpo", "sft", "dpo", "gspo"])
def test_questions_are_about_fields_of_the_run_file(kind: str) -> None:
    values = {"algorithm": {"type": kind}}
    asked = [one.key for one in question_section("strop", values).fields]
    assert 14 <= len(asked) <= 22
    known = set(all_keys())
    assert {".".join(k for k in split_key(key) if k != "0") for key in asked} <= known
    assert ("reward" in asked) == (kind not in ("sft", "dpo"))


def test_questions_about_trinity_are_about_keys_of_its_page() -> None:
    asked = question_section("trinity", {}).fields
    assert all(LEDGER.find_exact(one.key) for one in asked)
    assert next(one.default for one in asked if one.key == "buffer.total_epochs") == "1"


def test_value_of_a_shorthand_is_its_type() -> None:
    assert questions.value_at({"algorithm": "dpo"}, ("algorithm", "type")) == "dpo"

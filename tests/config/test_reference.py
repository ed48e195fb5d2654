"""Reference pages and JSON Schema: up to date, complete, and valid for real run files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from strop.compat.detect import detect_dialect
from strop.compat.reference import ledger_page, pages
from strop.compat.registry import LEDGERS
from strop.config import reference
from strop.config.load.loader import load_run
from strop.config.load.yaml_file import read_yaml
from strop.config.reference import json_schema, schema_text
from strop.config.save import save_resolved
from strop.config.schema.run import all_keys
from tests.cases import nightly

from .conftest import RUN

ROOT = Path(__file__).parents[2]
RUN_FILES = [
    path
    for path in sorted((ROOT / "examples").rglob("*.yaml"))
    if path.parent.name not in ("azureml", "verl")
    and path.name not in ("tools.yaml", "dj_scoring.yaml")
    and detect_dialect(read_yaml(path)) == "strop"
]
"""Run files among the examples, without the files of other tools."""
VALIDATOR = jsonschema.Draft7Validator(json_schema())
VALID = """
reward: gsm8k
reward: [gsm8k, {function: format, weight: 0.5}]
reward: {function: exact}
reward: {functions: [{function: exact}], workers: 2}
algorithm: rloo
algorithm: {rollouts_per_task: 4, std_epsilon: 1.0e-4}
algorithm: {type: opmd, baseline: log_avg_exp, policy_loss: {tau: 0.5}}
algorithm: {type: ppo, critic: {optimizer: {lr: 1.0e-5}, schedule: cosine}}
{buffer: priority, rollout: {engine: native}}
{checkpoint: {every: 20 steps}, evaluate: {every: never}, record: {report: false}}
trainer: {optimizer: {type: adamw, betas: [0.9, 0.95]}, schedule: {warmup: 10 %}}
{seed: '${oc.env:SEED}', trainer: {optimizer: '${other}', duration: '${how_long}'}}
"""
INVALID = """
modl: {}
model: {path: m, lora: {rnak: 8}}
algorithm: grop
algorithm: {type: rloo, std_epsilon: 1.0e-6}
algorithm: {tau: 1.0}
trainer: {optimizer: {type: sgd, betas: [0.9, 0.99]}}
trainer: {optimizer: {betas: [0.9]}}
trainer: {tasks_per_step: 0}
checkpoint: {every: 20}
checkpoint: {every: 20 parsecs}
reward: {functons: []}
seed: one
"""


def faults(values: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(values)]


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema())
    assert json.loads(schema_text()) == json_schema()


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_every_run_file_is_valid(path: Path) -> None:
    assert faults(read_yaml(path).values) == []


@pytest.mark.parametrize(
    "path",
    [*RUN_FILES[::5], *nightly(*(path for path in RUN_FILES if path not in RUN_FILES[::5]))],
    ids=lambda path: path.stem,
)
def test_a_run_file_is_valid_in_its_resolved_form(path: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("QUICKSTART", "q")
    save_resolved(load_run(path).run, tmp_path / "resolved.yaml")
    assert faults(read_yaml(tmp_path / "resolved.yaml").values) == []


@pytest.mark.parametrize(
    ("section", "valid"),
    [(text, True) for text in [*VALID.strip().splitlines(), RUN]]
    + [(text, False) for text in [*INVALID.strip().splitlines(), RUN.replace(": cosine", ": cosin")]],
)
def test_the_schema_accepts_and_refuses_what_loading_does(section: str, valid: bool) -> None:
    values = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}} | yaml.safe_load(section)
    if section.startswith("project: "):
        values["trainer"]["optimizer"]["lr"] = 3e-6  # which YAML reads as a text, and Strop as a number
    assert (faults(values) == []) == valid


def _descriptions(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    for name, field in value.get("properties", {}).items():
        if name != "type":
            whole = {**field, **VALIDATOR.schema["$defs"].get(field["anyOf"][0].get("$ref", "")[8:], {})}
            yield f"{at}.{name}", field.get("description") or whole.get("description", "")


def test_every_property_has_a_description() -> None:
    schema = json_schema()
    for name, section in {"Run": schema, **schema["$defs"]}.items():
        assert [at for at, words in _descriptions(section, name) if not words] == []


def test_every_field_is_on_the_page_and_every_link_has_a_target() -> None:
    anchors = re.findall(r'<a id="([^"]+)"></a>', reference.page())
    assert len(anchors) == len(set(anchors))
    for key in all_keys():
        place = re.search(r"#([^)]+)\)", reference.field_link(key))
        assert place and place[1] in anchors, key
    for text in pages().values():
        for link in re.findall(r"\]\((?:run-file\.md)?#([^)]+)\)", text):
            assert link in anchors


@pytest.mark.parametrize("dialect", LEDGERS)
def test_every_row_of_a_ledger_is_on_its_page(dialect: str) -> None:
    page = ledger_page(LEDGERS[dialect])
    for row in LEDGERS[dialect].rows:
        assert f"\n| `{row.key}` | {row.disposition} |" in page


def test_different_defaults_are_listed_together() -> None:
    header, *rows = re.findall(r"^\| .*$", pages()[Path("docs/reference/defaults.md")], re.MULTILINE)
    by_key = {row.split(" | ")[0][3:-1]: row.split(" | ") for row in rows}
    columns = {name.strip(" |"): number for number, name in enumerate(header.split(" | "))}
    assert "actor_rollout_ref.rollout.temperature" not in by_key
    for key, dialect, cell in (
        ("trainer.save_freq", "verl", "`-1 steps`"),
        ("trainer.save_freq", "rft_trainer", "`20 epochs`"),
        ("trainer.save_freq", "verl_trainer", "`20 steps`"),
        ("actor_rollout_ref.actor.kl_loss_coef", "verl", "`0.001`"),
        ("actor_rollout_ref.actor.kl_loss_coef", "rft_trainer", "`0.01`"),
        ("trainer.total_epochs", "trinity", ""),
    ):
        assert by_key[key][columns[dialect]].strip("| ") == cell

"""Reference pages and JSON Schema: up to date, complete, and valid for real run files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from strop.config.load.loader import load_run
from strop.config.load.yaml_file import read_yaml
from strop.config.reference import run_file
from strop.config.reference.json_schema import json_schema
from strop.config.save import save_resolved
from strop.config.schema.walk import all_keys
from strop.dialects.detect import detect_dialect
from strop.dialects.reference import ledgers
from strop.dialects.reference.pages import SCHEMA, pages, stale
from strop.dialects.registry import LEDGERS

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
SMALL = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}}
"""The smallest run file."""


def faults(values: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(values)]


def test_generated_files_are_up_to_date() -> None:
    assert stale(ROOT) == [], "run: make docs"


def test_the_schema_is_valid_and_equals_the_written_one() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema())
    assert json.loads(pages()[SCHEMA]) == json_schema()


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_every_run_file_validates_and_so_does_its_resolved_form(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUICKSTART", "q")
    assert faults(read_yaml(path).values) == []
    save_resolved(load_run(path).run, tmp_path / "resolved.yaml")
    assert faults(read_yaml(tmp_path / "resolved.yaml").values) == []


@pytest.mark.parametrize(
    "more",
    [
        {"reward": "gsm8k"},
        {"reward": ["gsm8k", {"function": "format", "weight": 0.5}]},
        {"reward": {"function": "exact"}},
        {"reward": {"functions": [{"function": "exact"}], "workers": 2}},
        {"algorithm": "rloo"},
        {"algorithm": {"rollouts_per_task": 4, "std_epsilon": 1e-4}},
        {"algorithm": {"type": "opmd", "baseline": "log_avg_exp", "policy_loss": {"tau": 0.5}}},
        {"algorithm": {"type": "ppo", "critic": {"optimizer": {"lr": 1e-5}, "schedule": "cosine"}}},
        {"buffer": "priority", "rollout": {"engine": "native"}},
        {"checkpoint": {"every": "20 steps"}, "evaluate": {"every": "never"}, "record": {"report": False}},
        {"trainer": {"optimizer": {"type": "adamw", "betas": [0.9, 0.95]}, "schedule": {"warmup": "10 %"}}},
        {"seed": "${oc.env:SEED}", "trainer": {"optimizer": "${other}", "duration": "${how_long}"}},
    ],
)
def test_shorthands_and_interpolations_validate(more: dict[str, Any]) -> None:
    assert faults(SMALL | more) == []


@pytest.mark.parametrize(
    "more",
    [
        {"modl": {}},
        {"model": {"path": "m", "lora": {"rnak": 8}}},
        {"algorithm": "grop"},
        {"algorithm": {"type": "rloo", "std_epsilon": 1e-6}},
        {"algorithm": {"tau": 1.0}},
        {"trainer": {"optimizer": {"type": "sgd", "betas": [0.9, 0.99]}}},
        {"trainer": {"optimizer": {"betas": [0.9]}}},
        {"trainer": {"tasks_per_step": 0}},
        {"checkpoint": {"every": 20}},
        {"checkpoint": {"every": "20 parsecs"}},
        {"reward": {"functons": []}},
        {"seed": "one"},
    ],
)
def test_the_schema_refuses_what_loading_refuses(more: dict[str, Any]) -> None:
    assert faults(SMALL | more) != []


def test_a_run_file_of_the_tests_validates(run_file: Path) -> None:
    assert faults(read_yaml(run_file).values) == []
    run_file.write_text(RUN.replace("schedule: cosine", "schedule: cosin"))
    assert faults(read_yaml(run_file).values) != []


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
    page = run_file.page()
    anchors = re.findall(r'<a id="([^"]+)"></a>', page)
    assert len(anchors) == len(set(anchors))
    for key in all_keys():
        place = re.search(r"#([^)]+)\)", run_file.field_link(key))
        assert place and place[1] in anchors, key
    for text in pages().values():
        for link in re.findall(r"\]\((?:run-file\.md)?#([^)]+)\)", text):
            assert link in anchors


@pytest.mark.parametrize("dialect", LEDGERS)
def test_every_row_of_a_ledger_is_on_its_page(dialect: str) -> None:
    page = ledgers.page(LEDGERS[dialect])
    for row in LEDGERS[dialect].rows:
        assert f"\n| `{row.key}` | {row.disposition} |" in page


def test_different_defaults_are_listed_together() -> None:
    header, *rows = re.findall(r"^\| .*$", pages()[Path("docs/reference/defaults.md")], re.MULTILINE)
    by_key = {row.split(" | ")[0][3:-1]: row.split(" | ") for row in rows}
    columns = {name.strip(" |"): number for number, name in enumerate(header.split(" | "))}

    def cell(key: str, dialect: str) -> str:
        return by_key[key][columns[dialect]].strip("| ")

    assert [cell("trainer.save_freq", name) for name in ("verl", "rft_trainer", "verl_trainer")] == [
        "`-1 steps`",
        "`20 epochs`",
        "`20 steps`",
    ]
    assert cell("actor_rollout_ref.actor.kl_loss_coef", "verl") == "`0.001`"
    assert cell("actor_rollout_ref.actor.kl_loss_coef", "rft_trainer") == "`0.01`"
    assert cell("trainer.total_epochs", "trinity") == ""
    assert "actor_rollout_ref.rollout.temperature" not in by_key

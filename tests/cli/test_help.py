"""`strop help`, shell completion, and exit codes: their table, and the pages that messages name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import strop.errors
from strop.cli.main import app
from strop.cli.reference_commands import page_text, topics
from strop.compat.reference import PAGES
from strop.errors import ExitCode, Interrupted, StropError

from .conftest import Cli

ROOT = Path(__file__).parents[2]


def test_the_pages_that_messages_name_are_there() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "strop").rglob("*.py"))
    named = set(re.findall(r"`strop help ([a-z/#-]+)`", sources))
    assert {"data", "workflows", "algorithms#custom-algorithms"} <= named
    pages = {each.partition("#")[0] for each in named}
    assert all(page_text(topic) for topic in named) and pages <= {*topics(), *PAGES}


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        ("", 0, "  troubleshooting "),
        ("dapo", 0, "## Components of DAPO"),
        ("optimizers", 0, "### Optimizers"),
        ("troubleshooting#out-of-memory", 0, "## Out of memory"),
        ("verl-sft#optim", 0, "| `optim.lr` |"),
        ("train", 0, "{RUN} [KEY=VALUE]"),
        ("rewrds", 2, "no topic 'rewrds'; did you mean 'rewards'?"),
        ("safetensors", 2, "Pages with the word: "),
        ("grpo", 0, "## Group baselines"),
        ("custom", 0, "## Custom algorithms"),
        ("reference/grpo", 0, "# AzureML: `group_relative_policy_optimization`"),
        ("troubleshooting#out-of-memry", 2, "did you mean 'out-of-memory'?"),
    ],
)
def test_help_prints_pages_and_commands(cli: Cli, words: str, code: int, shown: str) -> None:
    result = cli("help", *words.split())
    assert result.exit_code == code and shown in " ".join(result.output.split()) + result.output


def test_a_section_ends_at_the_next_heading_of_its_level() -> None:
    section = page_text("troubleshooting#out-of-memory")
    assert len(re.findall("^## ", section, re.MULTILINE)) == 1


def test_the_table_of_exit_codes_is_the_one_that_errors_keep_to() -> None:
    rows = re.findall(r"^\| (\d+)( \+ n)? \|", page_text("troubleshooting#exit-codes"), re.MULTILINE)
    assert [int(code) for code, _ in rows] == [*ExitCode]
    kinds = [
        kind
        for kind in vars(strop.errors).values()
        if isinstance(kind, type) and issubclass(kind, StropError)
    ]
    assert {kind.exit_code for kind in kinds if kind is not Interrupted} == {1, 2, 75}
    assert Interrupted("", 15).exit_code == 143


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("strop tr", ["train", "trinity", "trl"]),
        ("strop train run.yaml trainer.optimizer.lam", ["trainer.optimizer.lamb="]),
        ("strop train run.yaml ~algorithm.kl_loss.co", ["~algorithm.kl_loss.coef"]),
        ("strop help troub", ["troubleshooting"]),
        ("strop train --cha", ["--change"]),
    ],
)
def test_shells_complete_commands_options_keys_and_topics(line: str, found: list[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_STROP_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, [], prog_name="strop", env=words)
    assert result.exit_code == 0 and result.output.split() == found

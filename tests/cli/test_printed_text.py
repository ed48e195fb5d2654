"""Text on the terminal: no control characters, and no value from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.cli.columns import align_columns
from strop.data.progress_bar import with_progress_bar
from strop.printable import counted, printable
from strop.runs.sample_table import samples_markdown

from .conftest import Cli


def test_a_number_with_its_noun() -> None:
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_control_characters_of_a_configuration(cli: Cli, run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + '"a\\e[2J\\u202eb": 1\n')
    result = cli("check", run_file)
    assert result.exit_code == 2 and r"a\x1b[2J\u202eb" in result.stderr
    assert printable(result.stderr) == result.stderr
    result = cli("explain", run_file, "data.train.path='x\x1b]0;title\x07.jsonl'")
    assert printable(result.output) == result.output


def test_a_secret_in_an_override_of_a_file_that_is_missing(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STROP_TEST_SECRET", "hunter2-hunter2")
    for words in (["check"], ["explain"], ["convert"]):
        result = cli(
            *words,
            run_file,
            "model.path=./${oc.env:STROP_TEST_SECRET}",
            "+reward.functions.0.args.pwd=s3cr3t",
        )
        assert (
            "hunter2" not in result.output + result.stderr and "s3cr3t" not in result.output + result.stderr
        )
        assert "${oc.env:STROP_TEST_SECRET}" in result.output + result.stderr


def test_names_in_a_progress_bar_and_a_table() -> None:
    assert list(with_progress_bar([1], 1, "[red]\x1b[2J")) == [1]
    assert samples_markdown([], 1) and align_columns([("a", "b")])

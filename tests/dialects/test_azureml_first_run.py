"""Tests that run the commands of docs/coming-from/azureml.md."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strop.cli.main import app

ROOT = Path(__file__).parents[2].resolve()


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of each command in a shell block; a quoted argument may span several lines."""
    pending = ""
    for line in block.replace("\\\n", " ").splitlines():
        pending += f"{line}\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        pending = ""
        if words:
            yield words


@pytest.mark.slow
def test_first_run_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block, *_) = re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs/coming-from/azureml.md").read_text(), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    seen = []
    for words in commands(block):
        match words:
            case ["strop", *rest]:
                result = CliRunner().invoke(app, rest)
                assert result.exit_code == 0, result.output
            case ["python", "-c", code]:
                exec(code, {})
            case ["python", script, *rest]:
                monkeypatch.setattr(sys, "argv", [script, *rest])
                runpy.run_path(str(ROOT / script), run_name="__main__")
        seen.append(words[0])
    assert seen == ["python", "strop", "python"]
    assert "'role': 'assistant'" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_azureml_reads_the_job() -> None:
    from azure.ai.ml import load_job

    job = load_job(ROOT / "examples/azureml/job.yaml")
    step = job.jobs["grpo"]
    assert step.component.command.startswith("strop component grpo ")
    assert set(step.inputs) <= set(step.component.inputs)
    assert set(step.outputs) == set(step.component.outputs)
    assert step.environment_variables == {"STROP_HERE": "1"}

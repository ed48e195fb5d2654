"""Tests of the output and the exit codes of `strop convert`."""

from __future__ import annotations

from pathlib import Path

from .conftest import Cli

RUN = """\
model: {path: m}
data:
  train: {path: t.jsonl, limit_tasks: 9}
reward: by_source
algorithm: {rollouts_per_task: 4}
trainer: {tasks_per_step: 8}
"""


def test_file_goes_to_stdout_and_messages_to_stderr(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    done = cli("convert", "run.yaml", "--to", "verl")
    assert done.exit_code == 0
    assert done.stdout.startswith("# From run.yaml, by strop convert.\ndata:\n")
    said = [line.split() for line in done.stderr.splitlines()]
    assert ["data.train.limit_tasks", "9", "null", "data.train_max_samples"] in [line[:4] for line in said]
    (tmp_path / "ppo.yaml").write_text(done.stdout)
    assert cli("explain", "ppo.yaml").exit_code == 0


def test_strict_fails_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    done = cli("convert", "run.yaml", "--to", "verl", "--strict", "--output", "ppo.yaml")
    assert done.exit_code != 0 and "--strict" in done.stderr
    assert not (tmp_path / "ppo.yaml").exists()


def test_output_file_and_overrides(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    done = cli(
        "convert", "run.yaml", "trainer.tasks_per_step=16", "--to", "strop", "--strict", "--output", "o.yaml"
    )
    assert done.exit_code == 0 and done.stdout == ""
    assert "read back, it is the same run" in done.stderr and "Wrote o.yaml" in done.stderr
    assert "tasks_per_step: 16" in (tmp_path / "o.yaml").read_text()
    assert cli("convert", "o.yaml", "--to", "strop", "--output", "no/o.yaml").exit_code != 0

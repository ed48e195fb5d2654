"""What docs/coming-from/azureml.md tells a newcomer to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2].resolve()


def test_the_first_run_of_the_page(tmp_path: Path) -> None:
    (block, *_) = re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs/coming-from/azureml.md").read_text(), re.DOTALL
    )
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'role': 'assistant'" in done.stdout.splitlines()[-1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_azureml_reads_the_job() -> None:
    from azure.ai.ml import load_job

    job = load_job(ROOT / "examples/azureml/job.yaml")
    step = job.jobs["grpo"]
    assert step.component.command.startswith("strop component grpo ")
    assert set(step.inputs) <= set(step.component.inputs)
    assert set(step.outputs) == set(step.component.outputs)
    assert step.environment_variables == {"STROP_HERE": "1"}

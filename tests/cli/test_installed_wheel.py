"""The wheel has all that the package needs: installed alone, the commands work outside of the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: object, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_checks_an_example(tmp_path, monkeypatch):
    """Its dependencies are those of this environment; Strop itself comes from the wheel."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    run(
        sys.executable,
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT,
        folder=tmp_path,
    )
    (wheel,) = tmp_path.glob("strop-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, *pip, "install", "--no-deps", wheel, folder=tmp_path)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    where = run(python, "-c", "import strop; print(strop.__file__)", folder=tmp_path)
    assert where.startswith(str(packages))
    strop = tmp_path / "venv" / "bin" / "strop"
    run(python, "-m", "strop.models.tiny", "warm-start", "--corpus", ROOT / "README.md", folder=tmp_path)
    row = json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n"
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(row * 64, encoding="utf-8")
    example = (ROOT / "examples" / "algorithms" / "grpo.yaml").read_text(encoding="utf-8")
    (tmp_path / "run.yaml").write_text(example, encoding="utf-8")
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    assert "64 rows" in run(strop, "check", "run.yaml", folder=tmp_path)

"""Tests of `pypi_packages_override`: pip installs from a folder, and the restarted process uses the
packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from strop.dialects.azureml.requirements import install_packages

PROBE = """import os, sys
print("probe:", "torch" in sys.modules, *sys.orig_argv[1:4], flush=True)
os._exit(7)
"""
"""Module that every Python process imports at its start, if it is importable."""


def make_wheel(folder: Path) -> None:
    """Build a package with one module, `sitecustomize`."""
    folder.mkdir()
    with ZipFile(folder / "strop_probe-1.5-py3-none-any.whl", "w") as wheel:
        info = "strop_probe-1.5.dist-info"
        wheel.writestr("sitecustomize.py", PROBE)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: strop-probe\nVersion: 1.5\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def component(tmp_path: Path, packages: str) -> subprocess.CompletedProcess[str]:
    """Run `strop component` in a process whose pip has no network and installs into a separate folder."""
    words = ["--data_train_files=t", "--data_val_files=v", "--actor_model_path=m", "--here"]
    pip = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_TARGET": str(tmp_path / "in"),
    }
    paths = [str(tmp_path / "in"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "strop",
            "component",
            "rft_trainer",
            *words,
            f"--pypi_packages_override={packages}",
        ],
        env=os.environ | pip | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_command_restarts_with_installed_packages(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    done = component(tmp_path, "strop-probe==1.5")
    lines = done.stdout.splitlines()
    assert lines[0] == "pypi_packages_override: pip install strop-probe==1.5"
    assert any(line.startswith("Successfully installed strop-probe-1.5") for line in lines[1:-1])
    assert lines[-1] == "probe: False -m strop component"
    assert done.returncode == 7, done.stderr


@pytest.mark.slow
def test_pip_failure_ends_the_job(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    done = component(tmp_path, "strop-probe==2.0")
    assert done.returncode == 2
    assert "pip could not install strop-probe==2.0 (exit code 1)" in done.stderr
    assert "Traceback" not in done.stderr


def test_restarted_process_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_INSTALLED", "a==1 b")
    install_packages(("a==1", "b"))
    monkeypatch.delenv("STROP_INSTALLED")
    install_packages(())

"""Builds sdist and wheel in dist/, and uses the wheel in a clean environment, as someone without a clone does.

    .venv/bin/python tools/check_package.py [--release]

The wheel is built from the sdist. `pip` resolves the dependencies within constraints.txt; `strop help`, `check` and
`quickstart` run in an empty folder. With --release, the commit must have a tag, and pyproject.toml addresses for
`[project.urls]`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
NEEDED = (
    "strop/py.typed",
    "strop/pages/troubleshooting.md",
    "strop/examples/quickstart/run.yaml",
    "strop/examples/notebook/first_run.ipynb",
    "strop/studio/static/studio.css",
    "strop/studio/static/codemirror.min.js",
    "strop/report/templates/report.html.j2",
)
COMMANDS = (
    ("--version",),
    ("help",),
    ("help", "troubleshooting#out-of-memory"),
    ("quickstart", "--steps", "2"),
    ("check", "runs/quickstart/sums"),
    ("show", "runs/quickstart/sums"),
    ("quickstart", "--notebook"),
)


def run(*command: object, at: Path = ROOT) -> None:
    """Run a command, which must succeed."""
    print("$", *command, flush=True)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([*map(str, command)], cwd=at, env=env, check=True)


def build() -> Path:
    """The wheel, built from the sdist, both in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", DIST)
    (sdist,) = DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", DIST, sdist)
    (wheel,) = DIST.glob("*.whl")
    with ZipFile(wheel) as files:
        missing = set(NEEDED) - set(files.namelist())
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}.")
    return wheel


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel in a clean environment, and run the commands in an empty folder."""
    venv.create(folder / "venv", with_pip=True)
    binaries = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(
        binaries / "python",
        *(
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            ROOT / "constraints.txt",
            wheel,
        ),
        at=folder,
    )
    empty = folder / "empty"
    empty.mkdir()
    for words in COMMANDS:
        run(binaries / "strop", *words, at=empty)


def check_release(wheel: Path) -> None:
    """Exits unless the commit has a tag, and the project has addresses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if not project.get("urls"):
        sys.exit("pyproject.toml has no [project.urls]: add `Source = ...` and `Documentation = ...`.")
    if ".dev" in wheel.name:
        sys.exit(f"{wheel.name}: the commit has no tag. Write `git tag v0.1.0`, say.")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", action="store_true", help="demand a tag and project addresses")
    options = parser.parse_args()
    wheel = build()
    if options.release:
        check_release(wheel)
    with tempfile.TemporaryDirectory() as folder:
        use(wheel, Path(folder))
    print(f"{wheel.name} and its sdist are in dist/.")


if __name__ == "__main__":
    main()

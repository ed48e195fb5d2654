"""Work of a component's job around its run: packages that pip installs before it, and output folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from strop.compat.ledger.key_mapping import ValueType
from strop.config.load.loader import Job
from strop.config.redact import safe_text
from strop.errors import ConfigError
from strop.workers.files import atomic_path

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = rf"(?:\[{_NAME}(?:\s*,\s*{_NAME})*\])?"
_VERSION = r"(?:===?|~=|!=|<=?|>=?)\s*[0-9][A-Za-z0-9.+!*-]*"
_REQUIREMENT = re.compile(rf"{_NAME}{_EXTRAS}\s*(?:{_VERSION})?")
_INSTALLED = "STROP_INSTALLED"
"""Environment variable that tells the restarted process which packages are already installed for it."""


def parse_requirements(text: str) -> tuple[str, ...]:
    """`a==1,b` as a tuple of pip requirements. Raises ValueError for a part that is not a name with a
    version."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for requirement in found:
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(f"{requirement!r} is not a package name with an optional version")
    return found


def _is_requirements(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(parse_requirements(value))
    except ValueError:
        return False


REQUIREMENTS = ValueType(
    "package names with versions, separated by commas, such as transformers==5.19.0,peft==0.21.2",
    _is_requirements,
)


def install_packages(packages: Sequence[str]) -> None:
    """Install packages with pip and restart this command, so that already imported modules are reloaded.

    Returns where there are no packages, and in the restarted process. Raises ConfigError if pip fails.
    """
    wanted = " ".join(packages)
    if os.environ.get(_INSTALLED, "") == wanted:
        return
    print(safe_text(f"pypi_packages_override: pip install {wanted}"), flush=True)
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-input", *packages], check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"pypi_packages_override: pip could not install {wanted} (exit code {done.returncode}); see pip's "
            "output above."
        )
    command = [sys.executable, "-m", "strop", *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | {_INSTALLED: wanted})


_CHECKPOINTS = "checkpoints"


class MlflowWriter(Protocol):
    """Function that writes a Hugging Face folder as an MLflow model."""

    def __call__(self, model: Path, folder: Path, *, max_new_tokens: int) -> None:
        """Write `model` into `folder`; the MLflow model generates at most `max_new_tokens` tokens."""


def prepare_outputs(job: Job, require_mlflow: Callable[[], object]) -> None:
    """Create the output folders before the run starts.

    Raises ConfigError for a folder that is not writable or that two outputs share. `require_mlflow` raises
    MissingExtraError where an output needs mlflow and mlflow is not installed.
    """
    if job.output_folders("mlflow"):
        require_mlflow()
    names: dict[Path, str] = {}
    for output, folder in job.outputs:
        other = names.setdefault(folder.resolve(), output.name)
        if other != output.name:
            raise ConfigError(
                f"--{other} and --{output.name} both name {folder.resolve()}; give each output a folder of its own."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"The output folder {folder.resolve()} is not writable: {error.strerror}."
            ) from None


def write_outputs(job: Job, write_mlflow: MlflowWriter) -> Iterator[str]:
    """Write the trained model to every output that declares it; yields one sentence per output.

    Raises ConfigError or ModelError where an output cannot be written.
    """
    run = job.loaded.run
    model = run.folder_path / "model"
    for folder in job.output_folders("model"):
        _copy(model, folder, _copy_file)
        yield f"The model is in {folder.resolve()}."
    for folder in job.output_folders("mlflow"):
        write_mlflow(model, folder, max_new_tokens=run.data.max_response_tokens)
        shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)
        _copy(run.folder_path / _CHECKPOINTS, folder / _CHECKPOINTS, link_or_copy)
        yield f"The MLflow model and the checkpoints are in {folder.resolve()}."


def link_or_copy(source: str, target: str) -> str:
    """Hard-link an immutable file, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        _copy_file(source, target)
    return target


def _copy_file(source: str, target: str) -> None:
    """Copy a file with its times; a kill leaves the old file or the new one."""
    with atomic_path(Path(target)) as temporary:
        shutil.copy2(source, temporary)


def _copy(source: Path, target: Path, copy: Callable[[str, str], object]) -> None:
    try:
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)
    except OSError as error:
        raise ConfigError(f"Cannot copy {source.resolve()} to {target.resolve()}: {error}.") from None

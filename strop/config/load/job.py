"""Result of reading a configuration of any dialect: the run, packages to install first, outputs to write
after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strop.config.load.loader import LoadedRun

OutputContent = Literal["run", "model", "mlflow"]
"""Content of an output folder: `run` is the run folder itself with its checkpoints; `model` receives the
trained model at the end; `mlflow` receives the trained model as an MLflow model and the checkpoints."""

_OUTPUT_DESCRIPTIONS: Mapping[OutputContent, str] = {
    "run": "the run folder with the report and the checkpoints from which the same command resumes",
    "model": "the trained model, with a LoRA adapter merged into it",
    "mlflow": "the trained model as an MLflow model, with a LoRA adapter merged into it, and the checkpoints",
}


@dataclass(frozen=True, slots=True)
class ComponentOutput:
    """An output folder that an AzureML component declares."""

    name: str
    type: Literal["uri_folder", "mlflow_model"]
    content: OutputContent


@dataclass(frozen=True, slots=True)
class Job:
    """A run, and what a component's command line requests before and after it."""

    loaded: LoadedRun
    packages: tuple[str, ...] = ()
    """Packages that pip installs before heavy libraries are imported."""
    outputs: tuple[tuple[ComponentOutput, Path], ...] = ()
    """Declared outputs that the command line names, each with its folder."""

    def output_folders(self, content: OutputContent) -> tuple[Path, ...]:
        """Folders of the outputs with this content."""
        return tuple(folder for output, folder in self.outputs if output.content == content)

    @property
    def output_descriptions(self) -> tuple[str, ...]:
        """One line per output that describes its content at the end of the run."""
        return tuple(
            f"output {output.name}, in {folder.resolve()}: {_OUTPUT_DESCRIPTIONS[output.content]}"
            for output, folder in self.outputs
        )

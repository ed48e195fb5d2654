"""Tests of `components/<name>/component.yaml`: AzureML's SDK reads the same inputs and outputs as the ledger
has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from strop.compat.azureml.component import Component
from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.key_mapping import UNSET

FOLDER = Path(__file__).parents[2] / "components"
EACH = pytest.mark.parametrize("component", COMPONENTS.values(), ids=COMPONENTS)
DEFAULTS_NEED = ("vllm", "deepspeed")
"""Extras of the engines that the components name at their defaults."""
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning:.*(azure|marshmallow).*")
"""Filter for warnings of the SDK, which uses marshmallow's API before version 4."""


def written(component: Component) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / component.name / "component.yaml").read_text())


@EACH
def test_inputs_and_outputs_equal_the_ledger(component: Component) -> None:
    found = written(component)
    assert found["name"] == component.azureml_name and found["version"] == "0.0.1"
    assert list(found["inputs"]) == [given.name for given in component.inputs]
    for given in component.inputs:
        said = found["inputs"][given.name]
        assert said["type"] == given.type and said["description"], given.name
        assert said.get("optional", False) == given.optional, given.name
        assert said.get("default", UNSET) == given.row.default, given.name
        assert tuple(said.get("enum", ())) == given.enum, given.name
    assert {name: out["type"] for name, out in found["outputs"].items()} == {
        output.name: output.type for output in component.outputs
    }


@EACH
def test_the_command_passes_every_input_and_output(component: Component) -> None:
    command = written(component)["command"]
    assert command.startswith(f"strop component {component.name} ")
    for given in component.inputs:
        word = f"--{given.name} '${{{{inputs.{given.name}}}}}'"
        assert (f"$[[{word}]]" if given.optional else f" {word} ") in command, given.name
    for output in component.outputs:
        assert f" --{output.name} '${{{{outputs.{output.name}}}}}'" in command


@pytest.mark.slow
@QUIET
@EACH
def test_azureml_reads_it(component: Component) -> None:
    from azure.ai.ml import load_component

    loaded = load_component(FOLDER / component.name / "component.yaml")
    assert loaded.name == component.azureml_name
    assert list(loaded.inputs) == [given.name for given in component.inputs]
    for given in component.inputs:
        found = loaded.inputs[given.name]
        assert (found.type, bool(found.optional)) == (given.type, given.optional), given.name
        default = None if given.row.default is UNSET else given.row.default
        assert found.default == default or str(found.default) == str(default), given.name
        assert tuple(found.enum or ()) == given.enum, given.name
    assert {name: out.type for name, out in loaded.outputs.items()} == {
        output.name: output.type for output in component.outputs
    }
    assert loaded.distribution.type == "pytorch"


@QUIET
def test_azureml_reads_the_environment_and_its_files_exist() -> None:
    from azure.ai.ml import load_environment

    environment = load_environment(FOLDER / "environment" / "environment.yaml")
    assert environment.name == "strop"
    context = (FOLDER / "environment" / environment.build.path).resolve()
    dockerfile = context / environment.build.dockerfile_path
    assert context == FOLDER.parent.resolve() and dockerfile.is_file()
    lines = [line.split() for line in dockerfile.read_text().splitlines()]
    copied = [name for words in lines if words[:1] == ["COPY"] for name in words[1:-1]]
    assert copied and all((context / name).exists() for name in copied)
    project = tomllib.loads((context / "pyproject.toml").read_text())["project"]
    assert {project["readme"], "strop"} <= set(copied)
    (installed,) = re.findall(r"pip install .* '?/strop(?:\[(.*)\])?'?", dockerfile.read_text())
    extras = set(installed.split(","))
    assert {*DEFAULTS_NEED, "mlflow"} <= extras <= project["optional-dependencies"].keys()
    python = re.search(r"FROM python:3\.(\d+)", dockerfile.read_text())
    assert python is not None and f">=3.{python[1]}" == project["requires-python"]

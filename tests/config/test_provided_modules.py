"""Modules that Strop provides in place of a framework that is not installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strop.provided_modules import provide_folder, provide_modules


@pytest.fixture(autouse=True)
def remove_provided() -> Iterator[None]:
    before = list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in before if type(finder).__name__ != "_Finder"]
    yield
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] in ("framework", "json.provided")]:
        del sys.modules[name]


def provide() -> None:
    tools = {"framework.tools": {"Tool": int}, "framework.tools.schemas": {"Schema": str}}
    provide_modules("framework", "framework-rl", tools | {"framework.plugins": {}})


def test_a_file_imports_the_provided_names() -> None:
    provide()
    from framework.tools import Tool, schemas  # type: ignore[import-not-found]
    from framework.tools.schemas import Schema  # type: ignore[import-not-found]

    assert (Tool, Schema, schemas.Schema) == (int, str, str)


def test_a_later_call_adds_names_to_an_imported_module() -> None:
    provide()
    tools = importlib.import_module("framework.tools")
    provide_modules("framework", "framework-rl", {"framework.tools": {"Other": float}})
    assert (tools.Tool, tools.Other) == (int, float)


def test_a_missing_name_or_module_is_an_error_that_lists_what_there_is() -> None:
    provide()
    with pytest.raises(ImportError, match=r"no 'Agent'; it has Tool\. .*install the package framework-rl"):
        from framework.tools import Agent  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"no module framework\.agents; it has framework\.tools, "):
        importlib.import_module("framework.agents")


def test_files_of_a_folder_are_modules_of_a_provided_package(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text("POINTS = 3")
    (tmp_path / "play.py").write_text("from .score import POINTS\nfrom framework.plugins import score")
    provide()
    provide_folder("framework.plugins", tmp_path)
    assert importlib.import_module("framework.plugins.play").POINTS == 3


def test_an_installed_framework_takes_precedence_and_other_imports_are_unaffected() -> None:
    provide_modules("json", "json", {"json.decoder": {"JSONDecoder": int}, "json.provided": {"Name": int}})
    from json.decoder import JSONDecoder

    assert JSONDecoder is not int
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("json.provided")
    provide()
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        importlib.import_module("no_such_module")

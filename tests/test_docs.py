"""The examples in the documentation: run files load, and commands have the names and options that they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from strop.cli.main import app
from strop.config.load.loader import load_values

from .test_links import PAGES, ROOT

_YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HERE = re.compile(r"^cat > \w+\.yaml <<'END'\n(.*?)^END", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?: {4}|)strop ((?:.*\\\n)*.*)$", re.MULTILINE)
_FREE = ("component",)
"""Its inputs look like options."""


def _texts(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    yield from (*_YAML.findall(text), *_HERE.findall(text))


def _is_whole(text: str) -> bool:
    """Else it is a part of a run file, to look at."""
    return all(re.search(rf"^{section}:", text, re.MULTILINE) for section in ("model", "data"))


RUN_FILES = [(page, text) for page in PAGES for text in _texts(page) if _is_whole(text)]
COMMANDS = [(page, line) for page in PAGES for line in _COMMAND.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "text"), RUN_FILES, ids=lambda it: getattr(it, "name", ""))
def test_every_run_file_in_the_pages_loads(page: Path, text: str) -> None:
    load_values(yaml.safe_load(text.replace("e-", ".0e-")), origin=str(page.relative_to(ROOT)))


@pytest.mark.parametrize(
    ("page", "line"), COMMANDS, ids=lambda it: it[:30] if isinstance(it, str) else it.name
)
def test_every_command_in_the_pages_is_one(page: Path, line: str) -> None:
    words = line.replace("\\\n", " ").partition("#")[0].split()
    command = typer.main.get_command(app)
    while words and words[0] in (inside := getattr(command, "commands", {})):
        command = inside[words.pop(0)]
    assert not hasattr(command, "commands"), f"strop has no command {' '.join(words[:1])!r}"
    known = {name for parameter in command.params for name in parameter.opts}
    if command.name not in _FREE:
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= {*known, "--help"}

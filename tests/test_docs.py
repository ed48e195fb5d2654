"""The documentation: links lead somewhere, run files load, and commands have the names and options that it shows."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import typer
import yaml

from strop.cli.main import app
from strop.compat.reference.pages import pages as generated_pages
from strop.config.load.loader import load_values
from strop.errors import TroubleshootingSection

ROOT = Path(__file__).parents[1]
GENERATED = {ROOT / page: text for page, text in generated_pages().items()}
FOLDERS = ("docs", "examples", "benchmarks", "components")
PAGES = sorted(
    {*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))}
    | GENERATED.keys()
)
_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_YAML = re.compile(r"^```yaml\n(.*?)^```|^cat > \w+\.yaml <<'END'\n(.*?)^END", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?: {4}|)strop ((?:.*\\\n)*.*)$", re.MULTILINE)
_FREE = ("component",)
"""Its inputs look like options."""


def _is_whole(text: str) -> bool:
    """Else it is a part of a run file, to look at."""
    return all(re.search(rf"^{section}:", text, re.MULTILINE) for section in ("model", "data"))


TEXTS = GENERATED | {page: page.read_text(encoding="utf-8") for page in PAGES if page not in GENERATED}
FILES = [(page, fenced or here) for page, text in TEXTS.items() for fenced, here in _YAML.findall(text)]
RUN_FILES = [(page, text) for page, text in FILES if _is_whole(text)]
COMMANDS = [(page, line) for page, text in TEXTS.items() for line in _COMMAND.findall(text)]


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


@cache
def _prose(page: Path) -> str:
    return _CODE.sub("", TEXTS[page] if page in TEXTS else page.read_text(encoding="utf-8"))


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings, and explicit anchors."""
    titles = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', _prose(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for link in _LINK.findall(_prose(page)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists() or target in GENERATED, f"{link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{link}: {target.name} has no such heading"


def test_messages_name_headings_of_the_troubleshooting_page() -> None:
    assert set(get_args(TroubleshootingSection)) <= _anchors(ROOT / "docs" / "troubleshooting.md")


def test_every_page_of_the_docs_is_listed() -> None:
    listed = "".join(_prose(page) for page in PAGES if page.name == "README.md")
    unlisted = {p.name for p in PAGES if p.parent.name != "parity"} - set(re.findall(r"[\w.-]+\.md", listed))
    site_only = {"index.md", "contributing.md", "changelog.md"}
    assert unlisted <= {"README.md", "CHANGELOG.md"} | site_only

"""Every relative link of every Markdown page points to an existing file and heading."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from strop.errors import TroubleshootingSection

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", "benchmarks", "components")
PAGES = sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])
_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _text(page: Path) -> str:
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings, and explicit anchors."""
    text = _text(page)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for link in _LINK.findall(_text(page)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("section", get_args(TroubleshootingSection))
def test_messages_name_headings_of_the_troubleshooting_page(section: str) -> None:
    assert section in _anchors(ROOT / "docs" / "troubleshooting.md")


def test_every_page_of_the_docs_is_listed() -> None:
    listed = "".join(_text(page) for page in PAGES if page.name == "README.md")
    unlisted = {p.name for p in PAGES if p.parent.name != "parity"} - set(re.findall(r"[\w.-]+\.md", listed))
    site_only = {"index.md", "contributing.md", "changelog.md"}
    assert unlisted <= {"README.md", "CHANGELOG.md"} | site_only

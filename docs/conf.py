"""Configuration of the documentation site, which `make docs` builds into site/ with Sphinx."""

from __future__ import annotations

import posixpath
import re
from itertools import pairwise
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

import strop

project = "Strop"
author = "The Strop authors"
version = release = strop.__version__
root_doc = "index"
exclude_patterns = ["README.md"]  # the list of pages, which index.md includes
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
default_role = "code"  # docstrings write `name` as Markdown does
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
html_theme = "furo"
html_title = f"Strop {version}"
html_show_search_summary = False  # would be fetched, which a browser does not do from file://
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00796b"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#80cbc4"},
}


ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the site that include, or take the place of, files of the repository."""
LINK = re.compile(r"\[([^]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Adapt a page of the site."""
    # MyST checks links to anchors that are written as it writes them.
    source[0] = re.sub(r'<a id="([^"]+)"></a>', r'[]{id="\1"}', source[0])
    source[0] = use_site_links(source[0], f"docs/{page}")
    if page == root_doc:
        source[0] += navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))


def read_included_page(app: Sphinx, path: Path, page: str, source: list[str]) -> None:
    """Adapt a file of the repository that a page includes."""
    source[0] = use_site_links(source[0], posixpath.normpath(posixpath.join("docs", path.as_posix())))


def navigation(text: str) -> str:
    """Make a hidden list of pages of each table of docs/README.md, in the order of its links."""
    lists = []
    for caption, rows in re.findall(r"^\| (\w+) \| \|\n\| --- \| --- \|\n((?:\|.*\n)+)", text, re.MULTILINE):
        links = [posixpath.normpath(f"docs/{link}") for _, link, _ in LINK.findall(rows)]
        pages = [
            PAGES.get(link, link).removeprefix("docs/") for link in links if link.endswith((".md", ".rst"))
        ]
        entries = "\n".join(page.rpartition(".")[0] for page in pages)
        lists.append(f"\n```{{toctree}}\n:caption: {caption.capitalize()}\n:hidden:\n\n{entries}\n```\n")
    return "".join(lists)


def use_site_links(text: str, path: str) -> str:
    """Replace links to folders, and to pages outside of docs/, which the site does not have, by their text.

    Other files outside of docs/ are offered for download, from files that a page includes too.
    """

    def site_link(match: re.Match[str]) -> str:
        label, link, anchor = match.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        if target in PAGES:
            return f"[{label}]({posixpath.relpath('docs/' + PAGES[target], posixpath.dirname(path))}{anchor or ''})"
        is_page = target.endswith(".md") and not target.startswith("docs/")
        if is_page or (ROOT / target).is_dir():
            return f"`{target}`"
        is_download = (
            not path.startswith("docs/") and not target.startswith("docs/") and (ROOT / target).is_file()
        )
        return f"[{label}](../{target})" if is_download else match[0]

    return LINK.sub(site_link, text)


def read_docstring(
    app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]
) -> None:
    """Turn a docstring, which is Markdown with Google's sections of arguments, into reStructuredText."""
    for number, (line, following) in enumerate(pairwise([*lines, ""])):
        after = next((text for text in lines[number + 1 :] if text), "")
        if line.endswith(":") and not following and after.startswith(" "):
            lines[number] = line + ":"
    # The docstring of a field is one text; a colon in it does not end a type.
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(list(lines), Config(), app, what, name, item).lines()


def setup(app: Sphinx) -> None:
    """Register the functions above."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included_page)
    app.connect("autodoc-process-docstring", read_docstring)

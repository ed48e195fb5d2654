"""The pages of the documentation that `strop help` prints: package data of a wheel, or `docs/` of a clone."""

from __future__ import annotations

import re
from pathlib import Path

import strop
from strop.errors import ConfigError
from strop.printable import did_you_mean

_PACKAGE = Path(strop.__file__).parent
_FOLDERS = (_PACKAGE / "pages", _PACKAGE.parent / "docs")
_OTHERS = ("README", "index", "changelog", "contributing")
"""Pages that only list others, or are files of the repository."""
_HEADING = re.compile(r"^(#+) (.*)$")


def topics() -> dict[str, Path]:
    """The pages by topic, such as `rewards` or `algorithms/dapo`; empty where the pages are not installed."""
    folder = next((each for each in _FOLDERS if (each / "troubleshooting.md").is_file()), None)
    if folder is None:
        return {}
    found = {
        page.relative_to(folder).with_suffix("").as_posix(): page for page in sorted(folder.rglob("*.md"))
    }
    return {topic: page for topic, page in found.items() if topic not in _OTHERS}


def title(page: Path) -> str:
    """The first heading of a page."""
    with page.open(encoding="utf-8") as lines:
        return next((found[2] for line in lines if (found := _HEADING.match(line))), page.stem)


def page_text(topic: str) -> str:
    """The text of a page, or of the section that `topic` names after a #. The page may be named by the last part of its
    topic.

    Raises ConfigError for another topic, with similar ones and with the pages that have the word.
    """
    name, _, section = topic.removeprefix("docs/").partition("#")
    pages = topics()
    page = pages.get(name.removesuffix(".md")) or next(
        (each for known, each in pages.items() if known.rpartition("/")[2] == name.removesuffix(".md")), None
    )
    if page is None:
        from strop.compat.reference.pages import PAGES  # 0.1 s: imports the keys of all tools

        write = PAGES.get(name.removesuffix(".md").removeprefix("reference/"))
        if write is not None:
            return _section(write(), section) if section else write()
        mentioned = [
            known for known, each in pages.items() if name.lower() in each.read_text("utf-8").lower()
        ]
        shown = f" Pages with the word: {', '.join(mentioned[:8])}." if mentioned else ""
        raise ConfigError(
            f"There is no topic {name!r}{did_you_mean(name, [*pages, *PAGES]) or '.'}{shown} `strop help` lists the "
            "topics."
        )
    text = page.read_text(encoding="utf-8")
    return _section(text, section) if section else text


def _section(text: str, anchor: str) -> str:
    """The heading of an anchor and what follows up to the next heading of its level. Raises ConfigError."""
    lines, start, level, anchors = text.splitlines(), None, 0, []
    in_code = False
    for number, line in enumerate(lines):
        in_code ^= line.startswith("```")
        found = None if in_code else _HEADING.match(line)
        if found is None:
            continue
        if start is not None and len(found[1]) <= level:
            return "\n".join(lines[start:number])
        anchors.append(re.sub(r"[^\w\- ]", "", found[2].lower()).replace(" ", "-"))
        if start is None and anchors[-1] == anchor:
            start, level = number, len(found[1])
    if start is None:
        raise ConfigError(f"The page has no section {anchor!r}{did_you_mean(anchor, anchors) or '.'}")
    return "\n".join(lines[start:])

"""`strop keys`, `strop schema` and `strop help`: keys of a dialect, JSON Schema of the run file, and the pages of the
documentation, which are package data of a wheel, or `docs/` of a clone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

import strop
from strop.cli.output import echo
from strop.errors import ConfigError
from strop.printable import did_you_mean

_PACKAGE = Path(strop.__file__).parent
_FOLDERS = (_PACKAGE / "pages", _PACKAGE.parent / "docs")
_OTHERS = re.compile(r"README|index|changelog|contributing|reference/.*")
"""Pages that only list others, are files of the repository, or are written by `make docs`, as `page_text` does."""
_ALGORITHM = re.compile(r"^\| `(\w+)` \|.*?\]\(([\w-]+\.md)?#?([\w-]*)\)", re.MULTILINE)
"""Row of the table of algorithms: the name, and the page and section that describe it."""
_HEADING = re.compile(r"^(#+) (.*)$")


def topics() -> dict[str, Path]:
    """The pages by topic, such as `rewards` or `algorithms/dapo`; empty where the pages are not installed."""
    folder = next((each for each in _FOLDERS if (each / "troubleshooting.md").is_file()), None)
    if folder is None:
        return {}
    found = {
        page.relative_to(folder).with_suffix("").as_posix().removesuffix("/README"): page
        for page in sorted(folder.rglob("*.md"))
    }
    return {topic: page for topic, page in found.items() if not _OTHERS.fullmatch(topic)}


def title(page: Path) -> str:
    """The first heading of a page."""
    with page.open(encoding="utf-8") as lines:
        return next((found[2] for line in lines if (found := _HEADING.match(line))), page.stem)


def page_text(topic: str) -> str:
    """The text of a page, or of the section that `topic` names after a #. The page may be named by the last part of its
    topic, a section by a word of its heading, and the section of an algorithm by its `type`, before a page about the
    keys of a tool that has this name, such as `reference/grpo`.

    Raises ConfigError for another topic, with similar ones and with the pages that have the word.
    """
    name, _, section = topic.removeprefix("docs/").partition("#")
    pages = topics()
    page = pages.get(name.removesuffix(".md")) or next(
        (each for known, each in pages.items() if known.rpartition("/")[2] == name.removesuffix(".md")), None
    )
    if page is None and (found := _algorithm_section(name, pages)) is not None:
        page, anchor = found
        section = section or anchor
    if page is None:
        from strop.compat.reference import PAGES  # 0.1 s: imports the keys of all tools

        write = PAGES.get(name.removesuffix(".md").removeprefix("reference/"))
        if write is not None:
            return _section(write(), section) if section else write()
        headed = [
            (anchor != name, level, known, anchor)
            for known, each in pages.items()
            for _, level, anchor in _headings(each.read_text("utf-8").splitlines())
            if name in (anchor, *anchor.split("-"))
        ]
        if headed and not section:
            *_, known, anchor = min(headed)
            return _section(pages[known].read_text("utf-8"), anchor)
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


def _algorithm_section(name: str, pages: dict[str, Path]) -> tuple[Path, str] | None:
    """The page and the section of an algorithm, by the table of algorithms."""
    listing = pages.get("algorithms")
    if listing is None:
        return None
    rows = _ALGORITHM.findall(listing.read_text(encoding="utf-8"))
    found = {algorithm: (listing.parent / (file or listing.name), anchor) for algorithm, file, anchor in rows}
    return found.get(name)


def _headings(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Line number, level and anchor of each heading."""
    in_code = False
    for number, line in enumerate(lines):
        in_code ^= line.startswith("```")
        if not in_code and (found := _HEADING.match(line)):
            yield number, len(found[1]), re.sub(r"[^\w\- ]", "", found[2].lower()).replace(" ", "-")


def _section(text: str, anchor: str) -> str:
    """The heading of an anchor and what follows up to the next heading of its level. Raises ConfigError."""
    lines = text.splitlines()
    headings = list(_headings(lines))
    here = next((each for each in headings if each[2] == anchor), None)
    if here is None:
        anchors = [each[2] for each in headings]
        raise ConfigError(f"The page has no section {anchor!r}{did_you_mean(anchor, anchors) or '.'}")
    start, level, _ = here
    end = next((number for number, depth, _ in headings if number > start and depth <= level), None)
    return "\n".join(lines[start:end])


_COLUMNS = ("key", "disposition", "field", "default", "note")


def keys(
    dialect: Annotated[str, typer.Argument(help="verl, trinity, rft_trainer, ...", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Print only the keys that this or a later version of the tool added.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print every key of a dialect, with its disposition, its run file field, its default, and a note."""
    from strop.cli.output import align_columns
    from strop.compat.ledger.key_mapping import added_since
    from strop.compat.registry import ledger_of

    rows = ledger_of(dialect).rows
    if since is not None:
        rows = added_since(rows, since)
    entries = [row.as_entry() for row in rows]
    if as_json:
        echo(json.dumps(entries, indent=1, ensure_ascii=False))
    elif sys.stdout.isatty():
        _print_table(entries)
    else:
        echo(align_columns([_COLUMNS, *map(_cells, entries)], max_width=60))


def schema() -> None:
    """Print the JSON Schema of the run file, for completion and checks in an editor."""
    from strop.config.reference import schema_text

    typer.echo(schema_text(), nl=False)  # as it is: an example of a URL in it is no secret


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    from strop.config.reference import format_yaml

    return tuple(format_yaml(entry[name]) if name == "default" else entry[name] for name in _COLUMNS)


def _print_table(entries: list[dict[str, Any]]) -> None:
    """Print one table per section; keys are shortened to their last part; field and note share a column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for section, rows in groupby(entries, key=lambda entry: entry["key"].rpartition(".")[0]):
        table = Table(box=None, pad_edge=False, expand=True, show_header=False)
        for ratio, style in ((30, "cyan"), (11, ""), (17, "bold"), (42, "")):
            table.add_column(ratio=ratio, style=style, overflow="fold")
        for entry in rows:
            _, disposition, field, default, note = _cells(entry)
            name = entry["key"].rpartition(".")[2]
            becomes = "; ".join(filter(None, (field, note)))
            table.add_row(*map(Text, (f"  {name}", disposition, default, becomes)))
        console.print(Text(f"\n{section or 'key, disposition, default, field and note'}", style="bold green"))
        console.print(table)


def _complete_topic(incomplete: str) -> list[str]:

    return [topic for topic in topics() if topic.startswith(incomplete)]


def help_(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="Page, such as rewards or troubleshooting#out-of-memory, or a command.",
            show_default=False,
            autocompletion=_complete_topic,
        ),
    ] = None,
) -> None:
    """Print a page of the documentation, or the help of a command; without a topic, list the pages."""
    from strop.cli.output import align_columns

    if topic is None:
        rows = [(f"  {name}", title(page)) for name, page in topics().items()]
        rows += [
            ("  run-file", "Every field of the run file"),
            ("  metrics", "Every metric"),
            ("  verl, trinity, trl, ...", "Every key of a tool"),
        ]
        echo("Topics of `strop help TOPIC`; `strop help COMMAND` prints the options of a command:")
        echo(align_columns(rows or [("", "the pages are not installed")], max_width=60))
        return
    group: Any = context.parent.command if context.parent else None
    if group is not None and (command := group.get_command(context.parent, topic)) is not None:
        with command.make_context(topic, [], parent=context.parent, resilient_parsing=True) as inner:
            echo(inner.get_help())
        return
    text = page_text(topic)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        echo(text)

"""Command that writes the generated reference pages, or with --check reports outdated ones."""

from __future__ import annotations

import sys
from pathlib import Path

from strop.compat.reference.pages import pages, stale


def main() -> None:
    """Run the command; the current folder must be the repository root."""
    if sys.argv[1:] == ["--check"]:
        old = stale(Path())
        if old:
            sys.exit(f"Outdated generated files: {', '.join(map(str, old))}. Regenerate them: make docs")
        return
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

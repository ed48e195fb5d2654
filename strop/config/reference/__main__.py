"""Write the pages, or say which are stale."""

from __future__ import annotations

import sys
from pathlib import Path

from strop.config.reference.pages import pages, stale


def main() -> None:
    """The command line; the current folder is the repository's root."""
    if sys.argv[1:] == ["--check"]:
        old = stale(Path())
        if old:
            sys.exit(f"Stale: {', '.join(map(str, old))}. Write them anew: make docs")
        return
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

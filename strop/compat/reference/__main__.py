"""Command that writes the generated pages below `docs/reference`; the current folder is the repository's root."""

from __future__ import annotations

from strop.compat.reference.pages import pages

if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

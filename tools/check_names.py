"""Check that every public class name of the package is defined once.

    python tools/check_names.py

Prints every name that several modules define, with file and line, and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "strop"


def public_classes(root: Path) -> dict[str, list[str]]:
    """Map the name of every public class at module level to the places of its definitions."""
    places = defaultdict(list)
    for path in sorted((root / PACKAGE).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return places


def main() -> int:
    """Print the names that are defined more than once."""
    duplicates = {name: places for name, places in public_classes(ROOT).items() if len(places) > 1}
    for name, places in sorted(duplicates.items()):
        print(f"class {name} is defined {len(places)} times: {', '.join(places)}")
    return 1 if duplicates else 0


if __name__ == "__main__":
    sys.exit(main())

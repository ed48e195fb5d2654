"""Check that the fast tests cover enough of the package's lines.

    python tools/check_coverage.py .coverage.json

Reads what SlipCover measured in the test processes; processes that a test starts are not measured. Prints the
modules with the most lines that no test ran, and exits with 1 if the covered share is below the minimum.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MINIMUM = 91.5
"""Lowest share of covered lines, in percent. The slow suite, which is not measured, covers more."""
_SHOWN = 10


def main() -> int:
    """Compare the covered share with the minimum."""
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    covered = report["summary"]["percent_covered"]
    missing = {name: len(module["missing_lines"]) for name, module in report["files"].items()}
    print("Lines that no test ran, by module:")
    for name in sorted(missing, key=lambda name: -missing[name])[:_SHOWN]:
        print(f"{missing[name]:6} {name}")
    print(f"Covered: {covered:.1f} % of the lines; the minimum is {MINIMUM} %.")
    return 1 if covered < MINIMUM else 0


if __name__ == "__main__":
    sys.exit(main())

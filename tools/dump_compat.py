"""Writes what Strop makes of other tools' keys and configurations, one line each, so that two commits can be compared.

    python tools/dump_compat.py OUT.jsonl [FOLDER ...]

The lines are all rows of the ledgers; and, for each configuration, the run that it is read into with its notes, and
what `convert` writes for each tool. FOLDERS have `*.jsonl` files as `benchmarks/round_trips.py` reads them; the run
files in `examples/` are read as well. `diff` of the files of two commits shows what a change of the code changed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import round_trips
from strop.compat.convert import convert
from strop.compat.ledger.key_mapping import UNSET, KeyMapping
from strop.compat.registry import LEDGERS
from strop.config.load.loader import Job
from strop.errors import StropError
from strop.reading import read_any

_TOOLS = ("strop", "verl", "trinity", "trl", "rft_trainer", "verl_trainer", "grpo")
_FUNCTIONS = ("read", "supported", "inactive", "warn", "value_type")


def _rows() -> Iterator[dict[str, Any]]:
    for tool, ledger in LEDGERS.items():
        for row in ledger.rows:
            yield {"tool": tool, **_row(row)}


def _row(row: KeyMapping) -> dict[str, Any]:
    """The row as data; of its functions, only whether there are any."""
    values = {each.name: getattr(row, each.name) for each in fields(row) if each.name not in _FUNCTIONS}
    has = {name: getattr(row, name) is not None for name in _FUNCTIONS if name != "value_type"}
    default = "UNSET" if row.default is UNSET else row.default
    return {**values, **has, "default": default, "type": row.value_type.description, "write": bool(row.write)}


def _configurations(folders: list[Path]) -> Iterator[tuple[str, Job | StropError]]:
    for file in sorted(round_trips.EXAMPLES.rglob("*.yaml")):
        name = str(file.relative_to(round_trips.EXAMPLES))
        try:
            yield name, read_any(file, here=True)
        except StropError as error:
            yield name, error
    for corpus in (file for folder in folders for file in sorted(folder.glob("*.jsonl"))):
        for line in corpus.open(encoding="utf-8"):
            row = json.loads(line)
            try:
                job = round_trips.read(row)
            except StropError as error:
                yield f"{corpus.stem} {row['id']}", error
                continue
            if job is not None:
                yield f"{corpus.stem} {row['id']}", job


def _reading(name: str, job: Job | StropError) -> Iterator[dict[str, Any]]:
    if isinstance(job, StropError):
        yield {"configuration": name, "refused": str(job)}
        return
    for stage in job.loaded.runs:
        overridden = [asdict(each) for each in stage.overridden]
        run = stage.run.model_dump(mode="json")
        yield {"configuration": name, "run": run, "notes": stage.notes, "overridden": overridden}
    for tool in _TOOLS:
        try:
            found = convert(job, tool)
        except StropError as error:
            yield {"configuration": name, "to": tool, "refused": str(error)}
            continue
        lost = [asdict(each) for each in found.unsupported]
        yield {"configuration": name, "to": tool, "values": found.values, "lost": lost, "notes": found.notes}


def main(out: str, *folders: str) -> None:
    """Write the file."""
    file, read = Path(out).resolve(), [Path(folder).resolve() for folder in folders]
    os.environ.update({f"TRINITY_{name}": "x" for name in round_trips.TRINITY_VARIABLES.split()})
    with tempfile.TemporaryDirectory() as work, file.open("w", encoding="utf-8") as lines:
        os.chdir(work)
        for row in _rows():
            lines.write(f"{json.dumps(row, default=str)}\n")
        for name, job in _configurations(read):
            for line in _reading(name, job):
                lines.write(f"{json.dumps(line, default=str).replace(work, '.')}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

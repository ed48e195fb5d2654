"""Prints what conversions lose: real configurations and the project's examples, written in their own tool's keys and in
those of others.

    python benchmarks/round_trips.py [FOLDER] [--to verl trinity] [--every 1]

FOLDER has `*.jsonl` files of configurations: verl command lines (`command`, `args`) and Trinity files (`yaml`). Paths
in them name models and data that need not exist. Without FOLDER, the run files in `examples/` are converted.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.compat.convert import convert
from strop.compat.hydra import ConfigSelection
from strop.compat.trinity.reader import read_trinity
from strop.compat.verl.evaluation import read_verl_eval
from strop.compat.verl.generation import read_verl_generate
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.load.loader import Job
from strop.errors import StropError
from strop.reading import read_any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_OPTIONS = {"--config-path": "path", "--config-name": "name", "--config-dir": "folder"}
TRINITY_VARIABLES = (
    "AUX_MODEL_PATH BUFFER_PATH CHECKPOINT_ROOT_DIR EVAL_TASKSET_PATH "
    "MODEL_PATH SFT_DATASET_PATH TASKSET_PATH"
)
"""Environment variables that Trinity's files name, after `TRINITY_`."""


@dataclass(frozen=True)
class Loss:
    """A field that a conversion does not express, or the refusal of the conversion."""

    to: str
    field: str
    """Empty for a refusal."""
    reason: str


def read(row: dict[str, Any]) -> Job | None:
    """Read a file of Trinity, or a command line of verl with the file that it may bring; None where it trains nothing.

    Files are written into the working directory. Raises StropError for a configuration that is refused.
    """
    if "yaml" in row:
        Path("file.yaml").write_text(row["yaml"], encoding="utf-8")
        return Job(read_trinity(Path("file.yaml"), here=True))
    if row.get("own_config"):
        own = Path(row["own_config"])
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(row["own_config_text"], encoding="utf-8")
    words: list[str] = row["args"]
    chosen: dict[str, Any] = {
        _OPTIONS[word.split("=")[0]]: word.split("=")[1] for word in words if word.startswith("--")
    }
    overrides, selection = [word for word in words if word[:2] != "--"], ConfigSelection(**chosen)
    match row["command"]:
        case "ppo":
            return Job(read_verl(overrides, selection=selection, here=True))
        case "sft":
            return Job(read_verl_sft(overrides, selection=selection, here=True))
        case "generate":
            read_verl_generate(overrides, selection=selection, here=True)
        case _:
            read_verl_eval(overrides, selection=selection)
    return None


def losses(job: Job, to: str) -> Iterator[Loss]:
    """Values that the conversion of a job to a tool's keys loses."""
    try:
        unsupported = convert(job, to).unsupported
    except StropError as error:
        yield Loss(to, "", str(error))
        return
    for value in unsupported:
        yield Loss(to, value.field, f"{value.value} -> {value.target_value}: {value.reason}")


def _jobs(folder: Path | None, every: int) -> Iterator[tuple[str, str, Job]]:
    """Name, own tool, and job of each configuration that is read."""
    if folder is None:
        for file in sorted(EXAMPLES.rglob("*.yaml"))[::every]:
            try:
                yield str(file.relative_to(EXAMPLES)), "strop", read_any(file, here=True)
            except StropError:
                continue  # no configuration, or one for other hardware or with files that are made first
        return
    for file in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in file.open(encoding="utf-8")]
        for row in rows[::every]:
            try:
                job = read(row)
            except StropError:
                continue  # `tests/compat/test_corpora.py` counts those
            if job is not None:
                yield f"{file.stem} {row['id']}", "trinity" if "yaml" in row else "verl", job


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each field that is lost, with the number of configurations, most frequent first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--to", nargs="*", default=[], help="further tools to convert to")
    parser.add_argument("--every", type=int, default=1, help="take one configuration in this many")
    options = parser.parse_args(arguments)
    folder = None if options.folder is None else options.folder.resolve()
    os.environ.update({f"TRINITY_{name}": "x" for name in TRINITY_VARIABLES.split()})
    os.chdir(tempfile.mkdtemp())
    found: Counter[Loss] = Counter()
    first: dict[Loss, str] = {}
    count = 0
    for name, own, job in _jobs(folder, options.every):
        count += 1
        for to in dict.fromkeys((own, *options.to)):
            for loss in losses(job, to):
                found[loss] += 1
                first.setdefault(loss, name)
    for loss, number in sorted(found.items(), key=lambda item: (item[0].to, -item[1])):
        print(f"{number:4d} to {loss.to}: {loss.field or 'refused'}: {loss.reason} ({first[loss]})")
    print(f"{count} configurations, {sum(found.values())} values lost")


if __name__ == "__main__":
    main()

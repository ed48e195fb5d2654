"""Write the tables of docs/coming-from that count what Strop reads.

    python tools/reading_tables.py FOLDER

FOLDER has real configurations as `TOOL-YEAR-MONTH.jsonl`: command lines of verl as launch scripts expand them
(`command`, `args`, and `own_config` with `own_config_text`), and Trinity-RFT's files (`yaml`). Each is explained with
`--here`; nothing is run. A page has its table between `<!-- reading -->` and `<!-- /reading -->`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from strop.cli.main import app
from strop.compat.registry import LEDGERS

PAGES = Path(__file__).parents[1] / "docs/coming-from"
DIALECTS = {
    "verl": ("verl", "verl-sft", "verl-sft-engine", "verl-eval", "verl-generate", "verl-merge"),
    "trinity": ("trinity",),
    "trl": ("trl", "trl-rloo", "trl-sft", "trl-dpo", "trl-kto", "trl-reward", "trl-cpo", "trl-orpo"),
    "azureml": ("rft_trainer", "verl_trainer", "grpo"),
}
DISPOSITIONS = ("mapped", "placement", "accepted without effect", "refused")
ENVIRONMENT = {
    f"TRINITY_{name}": name.lower()
    for name in (
        "AUX_MODEL_PATH",
        "BUFFER_PATH",
        "CHECKPOINT_ROOT_DIR",
        "EVAL_TASKSET_PATH",
        "MODEL_PATH",
        "SFT_DATASET_PATH",
        "TASKSET_PATH",
    )
}
"""Variables that Trinity's examples expect."""
_KEY = re.compile(r"(?:override [+~]*|\()((?:[a-z_]+\.)+[A-Za-z_0-9.]+)")
_SHOWN = 8
"""Maximum number of keys in a cell."""


@dataclass(slots=True)
class Corpus:
    """Counts of one file of configurations."""

    read: int = 0
    total: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Configurations by a key at fault."""


def main() -> None:
    """Write the table of each page."""
    folder = Path(sys.argv[1]).resolve()
    files = sorted(folder.glob("*.jsonl"))
    corpora = {file.stem: explain_all(file) for file in files}
    for page, dialects in DIALECTS.items():
        found = {name: each for name, each in corpora.items() if name.startswith(f"{page}-")}
        lines = [*corpus_table(found), *([""] if found else []), *key_table(dialects)]
        replace_block(PAGES / f"{page}.md", "\n".join(lines))


def explain_all(file: Path) -> Corpus:
    """Explain each configuration of a file."""
    os.environ.update(ENVIRONMENT)
    os.environ.pop("STROP_HERE", None)
    corpus, runner = Corpus(), CliRunner()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for line in file.read_text(encoding="utf-8").splitlines():
            result = runner.invoke(app, command_of(json.loads(line)))
            corpus.total += 1
            corpus.read += result.exit_code == 0
            if result.exit_code:
                corpus.refused.update(set(_KEY.findall(result.output)) or {"other"})
        os.chdir(PAGES)
    return corpus


def command_of(row: dict[str, Any]) -> list[str]:
    """The command that explains a configuration; its files are written into this folder."""
    if "yaml" in row:
        Path("file.yaml").write_text(row["yaml"], encoding="utf-8")
        return ["trinity", "file.yaml", "--explain", "--here"]
    if row.get("own_config"):
        own = Path(row["own_config"])
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(row["own_config_text"], encoding="utf-8")
    here = [] if row["command"] == "eval" else ["--here"]
    return ["verl", row["command"], *row["args"], "--explain", *here]


def corpus_table(corpora: dict[str, Corpus]) -> Iterator[str]:
    """A row for each file of configurations."""
    if not corpora:
        return
    yield "| configurations of | read | keys at fault in the others, with their number |"
    yield "| --- | --- | --- |"
    for name, corpus in corpora.items():
        most = sorted(corpus.refused.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
        keys = ", ".join(f"`{key}` {count}" for key, count in most)
        yield f"| {name.partition('-')[2]} | {corpus.read} of {corpus.total} | {keys} |"


def key_table(dialects: tuple[str, ...]) -> Iterator[str]:
    """A row for each ledger, with its numbers of keys by disposition."""
    yield f"| keys of | all | {' | '.join(DISPOSITIONS)} |"
    yield f"| --- | --- |{' --- |' * len(DISPOSITIONS)}"
    for name in dialects:
        counts = Counter(row.disposition for row in LEDGERS[name].rows)
        cells = " | ".join(str(counts[kind]) for kind in DISPOSITIONS)
        yield f"| [{name}](../reference/{name}.md) | {counts.total()} | {cells} |"


def replace_block(page: Path, text: str) -> None:
    """Replace the page's table."""
    block = re.compile(r"(<!-- reading -->\n).*?(<!-- /reading -->)", re.DOTALL)
    old = page.read_text(encoding="utf-8")
    if not block.search(old):
        sys.exit(f"{page} has no block <!-- reading -->")
    page.write_text(block.sub(lambda found: f"{found[1]}{text}\n{found[2]}", old), encoding="utf-8")


if __name__ == "__main__":
    main()

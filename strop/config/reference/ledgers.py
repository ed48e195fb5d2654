"""`docs/reference/<dialect>.md`: every key of another tool's configuration, and what becomes of it."""

from __future__ import annotations

from collections import Counter, defaultdict

from strop.config.dialects.row import UNSET, Row
from strop.config.dialects.theirs import Ledger
from strop.config.dialects.trinity.inside import PREFIX
from strop.config.draft import split
from strop.config.reference.markdown import MADE, code, table
from strop.config.reference.run_file import linked
from strop.config.reference.words import written

TITLES = {
    "verl": ("verl: `ppo_trainer.yaml` and its overrides", "strop verl ppo key=value ..."),
    "verl-sft": ("verl: `sft_trainer.yaml`", "strop verl sft key=value ..."),
    "verl-eval": ("verl: `evaluation.yaml`", "strop verl eval key=value ..."),
    "verl-generate": ("verl: `generation.yaml`", "strop verl generate key=value ..."),
    "verl-merge": ("verl: the model merger", "strop verl merge --local_dir FOLDER --target_dir FOLDER"),
    "trinity": ("Trinity-RFT", "strop trinity FILE.yaml"),
    "rft_trainer": ("AzureML: `rft_trainer`", "strop component rft_trainer --input value ..."),
    "verl_trainer": ("AzureML: `verl_trainer_component`", "strop component verl_trainer --input value ..."),
    "grpo": ("AzureML: `group_relative_policy_optimization`", "strop component grpo --input value ..."),
}
"""What each dialect is called, and how it is run."""

_HEADER = ("key", "fate", "field", "default", "note")
_LONG = 40
"""A section of more keys is shown by the sections in it."""
_INTRO = """\
# {title}

Run with `{command}`. {count} keys: {fates}.

A *mapped* key decides the fields of the [run file](run-file.md) beside it. *Placement* says where and how
fast to run; `--here` sets it aside by name. A *refused* key may only have its default, or what its note
allows. One that is *accepted without effect* is said to be so where it is written. `default unstated`: the
tool's page names none, and this is the tool's own at the page's time. `strop keys {dialect}` prints the same.
"""


def page(ledger: Ledger) -> str:
    """The page of one ledger, in its order."""
    title, command = TITLES[ledger.dialect]
    fates = Counter(row.fate for row in ledger.rows)
    counted = ", ".join(f"{count} {fate}" for fate, count in fates.most_common())
    count, dialect = len(ledger.rows), ledger.dialect
    intro = _INTRO.format(title=title, command=command, count=count, fates=counted, dialect=dialect)
    lines = [MADE, "", intro.rstrip()]
    for section, rows in _by_section(ledger).items():
        lines += ["", f"## {section}"] if section else []
        lines += ["", *table(_HEADER, map(_cells, rows))]
    return "\n".join(lines) + "\n"


def _by_section(ledger: Ledger) -> dict[str, list[Row]]:
    """Rows under the section that they stand in; in a long one, under the sections in that."""
    counts = Counter(split(row.theirs)[0] for row in ledger.rows)
    found: dict[str, list[Row]] = defaultdict(list)
    for row in ledger.rows:
        above = split(row.theirs)[:-1]
        deep = 1 if not above or counts[above[0]] <= _LONG else 2 + row.theirs.startswith(PREFIX)
        found[".".join(above[:deep])].append(row)
    return found


def _cells(row: Row) -> tuple[str, ...]:
    entry = row.as_entry()
    default = "" if row.default is UNSET else code(written(row.default)) or '`""`'
    return (code(row.theirs), row.fate, ", ".join(map(linked, row.ours)), default, entry["note"])

"""Generator of `docs/reference/<dialect>.md`, which lists every key of a dialect and its disposition."""

from __future__ import annotations

from collections import Counter, defaultdict

from strop.compat.ledger.key_mapping import UNSET, KeyMapping, Ledger
from strop.compat.trinity.embedded_verl import PREFIX
from strop.config.load.config_tree import split_key
from strop.config.reference import GENERATED_NOTICE, field_link, format_yaml, inline_code, table

TITLES = {
    "verl": ("verl: `ppo_trainer.yaml` and its overrides", "strop verl ppo key=value ..."),
    "verl-sft": ("verl: `sft_trainer.yaml`", "strop verl sft key=value ..."),
    "verl-sft-engine": ("verl: `sft_trainer_engine.yaml`", "strop verl sft key=value ..."),
    "verl-eval": ("verl: `evaluation.yaml`", "strop verl eval key=value ..."),
    "verl-generate": ("verl: `generation.yaml`", "strop verl generate key=value ..."),
    "verl-merge": ("verl: the model merger", "strop verl merge --local_dir FOLDER --target_dir FOLDER"),
    "trinity": ("Trinity-RFT", "strop trinity FILE.yaml"),
    "trl": ("TRL: `GRPOConfig`", "strop trl grpo --key value ..."),
    "trl-rloo": ("TRL: `RLOOConfig`", "strop trl rloo --key value ..."),
    "trl-sft": ("TRL: `SFTConfig`", "strop trl sft --key value ..."),
    "trl-dpo": ("TRL: `DPOConfig`", "strop trl dpo --key value ..."),
    "trl-kto": ("TRL: `KTOConfig`", "strop trl kto --key value ..."),
    "trl-reward": ("TRL: `RewardConfig`", "strop trl reward --key value ..."),
    "trl-cpo": ("TRL: `CPOConfig`, experimental there", "strop trl cpo --key value ..."),
    "trl-orpo": ("TRL: `ORPOConfig`, experimental there", "strop trl orpo --key value ..."),
    "rft_trainer": ("AzureML: `rft_trainer`", "strop component rft_trainer --input value ..."),
    "verl_trainer": ("AzureML: `verl_trainer_component`", "strop component verl_trainer --input value ..."),
    "grpo": ("AzureML: `group_relative_policy_optimization`", "strop component grpo --input value ..."),
}
"""Title of each dialect's page, and the command that runs such a configuration."""

_HEADER = ("key", "disposition", "field", "default", "note")
_MAX_TABLE_KEYS = 40
"""Maximum number of keys in one table; a longer section is shown per subsection."""
_INTRO = """\
# {title}

Run such a configuration with `{command}`. {count} keys: {dispositions}.

A *mapped* key decides the listed fields of the [run file](run-file.md). A *placement* key decides where and
how fast a run executes; `--here` overrides it. A *refused* key accepts only its default, or what its note
allows. A key that is *accepted without effect* has no meaning in Strop; setting it prints a notice. `default
unstated` means that the tool's documentation states no default and the tool's own default at that time is
listed. `strop keys {dialect}` prints the same table.
"""


def page(ledger: Ledger) -> str:
    """The text of one ledger's page, in the ledger's order."""
    title, command = TITLES[ledger.dialect]
    dispositions = Counter(row.disposition for row in ledger.rows)
    counted = ", ".join(f"{count} {disposition}" for disposition, count in dispositions.most_common())
    count, dialect = len(ledger.rows), ledger.dialect
    intro = _INTRO.format(title=title, command=command, count=count, dispositions=counted, dialect=dialect)
    lines = [GENERATED_NOTICE, "", intro.rstrip()]
    for section, rows in _by_section(ledger).items():
        lines += ["", f"## {section}"] if section else []
        lines += ["", *table(_HEADER, map(_cells, rows))]
    return "\n".join(lines) + "\n"


def _by_section(ledger: Ledger) -> dict[str, list[KeyMapping]]:
    """Rows by section; rows of a long section by subsection."""
    counts = Counter(split_key(row.key)[0] for row in ledger.rows)
    found: dict[str, list[KeyMapping]] = defaultdict(list)
    for row in ledger.rows:
        above = split_key(row.key)[:-1]
        deep = 1 if not above or counts[above[0]] <= _MAX_TABLE_KEYS else 2 + row.key.startswith(PREFIX)
        found[".".join(above[:deep])].append(row)
    return found


def _cells(row: KeyMapping) -> tuple[str, ...]:
    entry = row.as_entry()
    default = "" if row.default is UNSET else inline_code(format_yaml(row.default)) or '`""`'
    return (
        inline_code(row.key),
        row.disposition,
        ", ".join(map(field_link, row.fields)),
        default,
        entry["note"],
    )

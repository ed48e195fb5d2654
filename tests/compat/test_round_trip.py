"""Conversion there and back: a run that is written in the keys of a tool and read again is the same run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strop.compat.azureml.reader import COMPONENTS
from strop.compat.convert import ALWAYS_WRITTEN, CONVERSION_TARGETS, Conversion, convert
from strop.compat.ledger.writer import unflatten, write_dialect
from strop.compat.registry import LEDGERS, ledger_of
from strop.config.load.loader import Job
from strop.config.save import yaml_text
from strop.config.semantic_diff import semantic_diff
from strop.errors import ConfigError
from strop.reading import read_any
from tests.cases import nightly

from .key_tables import Row, rows
from .random_configs import BASES, Values, configurations


@rows("both_ways")
def test_keys_express_the_run(row: Row) -> None:
    """Writing reads the keys back, and lists the fields that differ."""
    dialect = row.reader.split()[0]
    ledger = LEDGERS[row.reader.replace(" ", "-") if row.reader != "trl grpo" else "trl"]
    written = write_dialect(ledger, row.read().run, always=ALWAYS_WRITTEN.get(dialect, ()))
    assert written.unsupported == ()


@pytest.mark.parametrize("dialect", ["verl", "verl-sft", "trinity", *COMPONENTS])
def test_every_read_converter_has_a_write_converter(dialect: str) -> None:
    ledger = COMPONENTS[dialect].read_ledger if dialect in COMPONENTS else ledger_of(dialect)
    alone = [row.key for row in ledger.rows if row.fields and row.read is not None and row.write is None]
    assert alone == [], "a read without its write"


def _read(text: str) -> Job:
    path = Path("file.yaml")
    path.write_text(text)
    return read_any(path, here=True)


def _reread(found: Conversion, dialect: str) -> Job:
    """Read the converted configuration as a user would, with a DeepSpeed file added."""
    added = {"deepspeed_config": "ds.json"} if dialect == "grpo" else {}
    return _read(yaml_text({**found.values, **added}))


@pytest.mark.slow
@pytest.mark.parametrize("examples", [5, *nightly(15)])
@pytest.mark.parametrize("name", BASES)
def test_generated_configurations(examples: int, name: str) -> None:
    """Each example reads and writes about ten configurations."""
    counts: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    @given(values=configurations(name), other=st.sampled_from(CONVERSION_TARGETS))
    def check(values: Values, other: str) -> None:
        counts["drawn"] += 1
        try:
            job = _read(yaml_text(values if name in COMPONENTS else unflatten(values)))
        except ConfigError:
            return
        counts["read"] += 1
        dialect = name.split()[0].partition("-")[0]
        for to in dict.fromkeys((dialect, "strop", other)):
            _check(job, dialect, to)

    check()
    enough = counts["drawn"] / 5 if counts["drawn"] >= 20 else 0  # Few draws may all be invalid but one.
    assert counts["read"] > enough, f"too few of the generated configurations are valid: {counts}"


def _check(job: Job, dialect: str, to: str) -> None:
    try:
        found = convert(job, to)
    except ConfigError as error:
        assert to not in (dialect, "strop"), error
        assert "cannot be converted to" in str(error)
        return
    if any(note.startswith("data_val_files is required") for note in found.notes):
        return
    again = _reread(found, to)
    differ = [found.field for found in semantic_diff(job.loaded.run, again.loaded.run)]
    assert differ == [item.field for item in found.unsupported], "what is listed is what differs"
    if to in (dialect, "strop"):
        assert found.unsupported == ()
        assert again.packages == job.packages or to != dialect
    if found.unsupported == () and to != dialect:
        back = convert(again, dialect)
        assert back.unsupported == ()
        assert semantic_diff(job.loaded.run, _reread(back, dialect).loaded.run) == []

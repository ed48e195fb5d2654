"""There and back gives the same run: over configurations drawn from each ledger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strop.config.dialects.component import COMPONENTS, Job
from strop.config.dialects.convert import TARGETS, Conversion, convert
from strop.config.dialects.recognise import read_file
from strop.config.dialects.write import nested
from strop.config.same import compare
from strop.config.save import yaml_text
from strop.errors import ConfigError

from .generated import BASES, Values, configurations

EXAMPLES = 10
"""Of each dialect; each is some ten readings and writings."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text("{}")


def _read(text: str) -> Job:
    path = Path("file.yaml")
    path.write_text(text)
    return read_file(path, here=True)


def _reread(found: Conversion, dialect: str) -> Job:
    """What was written, as its user reads it; a DeepSpeed file is theirs to add."""
    added = {"deepspeed_config": "ds.json"} if dialect == "grpo" else {}
    return _read(yaml_text({**found.values, **added}))


@pytest.mark.parametrize("name", BASES)
def test_there_and_back(name: str) -> None:
    counts: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    @given(values=configurations(name), other=st.sampled_from(TARGETS))
    def check(values: Values, other: str) -> None:
        counts["drawn"] += 1
        try:
            job = _read(yaml_text(values if name in COMPONENTS else nested(values)))
        except ConfigError:
            return
        counts["read"] += 1
        dialect = name.split()[0].removesuffix("-sft")
        for to in dict.fromkeys((dialect, "strop", other)):
            _check(job, dialect, to)

    check()
    assert counts["read"] > counts["drawn"] / 2, f"most must be read: {counts}"


def _check(job: Job, dialect: str, to: str) -> None:
    try:
        found = convert(job, to)
    except ConfigError as error:
        assert to not in (dialect, "strop"), error
        assert "cannot be said in" in str(error)
        return
    if any(note.startswith("data_val_files is required there") for note in found.notes):
        return
    again = _reread(found, to)
    differ = [found.field for found in compare(job.loaded.run, again.loaded.run)]
    assert differ == [one.field for one in found.unsaid], "what is listed is what differs"
    if to in (dialect, "strop"):
        assert found.unsaid == ()
        assert again.packages == job.packages or to != dialect
    if found.unsaid == () and to != dialect:
        back = convert(again, dialect)
        assert back.unsaid == ()
        assert compare(job.loaded.run, _reread(back, dialect).loaded.run) == []

"""Property tests: converting a generated configuration of each ledger to another dialect and back gives the
same run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strop.config.save import yaml_text
from strop.config.semantic_diff import semantic_diff
from strop.dialects.azureml.components import COMPONENTS
from strop.dialects.convert import CONVERSION_TARGETS, Conversion, convert
from strop.dialects.detect import read_any
from strop.dialects.job import Job
from strop.dialects.ledger.writer import unflatten
from strop.errors import ConfigError

from .random_configs import BASES, Values, configurations

EXAMPLES = 4
"""Number of examples per dialect; each example reads and writes about ten configurations."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text("{}")


def _read(text: str) -> Job:
    path = Path("file.yaml")
    path.write_text(text)
    return read_any(path, here=True)


def _reread(found: Conversion, dialect: str) -> Job:
    """Read the converted configuration as a user would, with a DeepSpeed file added."""
    added = {"deepspeed_config": "ds.json"} if dialect == "grpo" else {}
    return _read(yaml_text({**found.values, **added}))


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_round_trip(name: str) -> None:
    counts: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
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
        dialect = name.split()[0].removesuffix("-sft").removesuffix("-dpo").removesuffix("-rloo")
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

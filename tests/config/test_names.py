"""Names that become files or folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.config.load.loader import load_values
from strop.config.names import MAX_NAME_LENGTH, check_file_name
from strop.errors import ConfigError

BAD = ("", ".", "..", "a/b", "/a", "a\\b", "-a", ".a", "a.", " a", "a ", "a\0b", "a\nb", "a\x1b[31m", "größe")
FIELDS = ("name", "project", "data.eval.0.name", "cluster.trainer_name")


def values(field: str, name: str) -> dict[str, Any]:
    run: dict[str, Any] = {
        "model": {"path": "m"},
        "reward": "exact",
        "data": {"train": {"path": "t.jsonl"}, "eval": [{"name": "held-out", "path": "t.jsonl"}]},
    }
    match field:
        case "data.eval.0.name":
            run["data"]["eval"][0]["name"] = name
        case "cluster.trainer_name":
            run |= {"cluster": {"type": "ray", "trainer_name": name}}
        case _:
            run[field] = name
    return run


@pytest.mark.parametrize("name", [*BAD, "a" * 300])
@pytest.mark.parametrize("field", FIELDS)
def test_what_is_no_file_name_is_refused_in_one_paragraph(field: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_values(values(field, name))
    message = str(caught.value)
    expected = "contains a NUL character" if "\0" in name else "write at most 100 characters: letters"
    assert f"{field}: " in message and expected in message
    assert len(message) < 400 and message.isprintable()


@pytest.mark.parametrize("name", ["run", "gsm8k-ppo_7B", "a, b=c", "v1.5", "0", "x" * MAX_NAME_LENGTH])
def test_usual_names_are_accepted(name: str) -> None:
    assert load_values(values("name", name)).run.folder_path.name == name


def test_a_stage_name_that_is_too_long_with_the_name_of_the_run_is_refused() -> None:
    run = values("name", "x" * 60) | {"stages": [{"name": "y" * 60}]}
    with pytest.raises(ConfigError, match=r"121 characters\) cannot be the name of a file"):
        load_values(run)


@given(st.text(st.sampled_from("aZ0 ._-/\\\0é"), max_size=120))
def test_an_accepted_name_is_one_component_of_a_path(name: str) -> None:
    try:
        check_file_name(name)
    except ValueError:
        return
    path = Path("/folder") / name
    assert path.resolve().parent == Path("/folder") and path.name == name and len(name.encode()) <= 255

"""Programs of a launch script, with the arguments that Strop's commands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.compat.launch.importer import find_program


@pytest.mark.parametrize(
    "program",
    ["-m verl.model_merger merge", "-m verl.model_merger", "scripts/legacy_model_merger.py merge"],
)
def test_the_operation_of_verls_merger_is_the_command(program: str) -> None:
    words = ("python3", *program.split(), "--backend", "fsdp", "--local_dir", "a")
    found = find_program(words, Path())
    assert found is not None
    assert (found.tool, found.arguments) == ("verl merge", ("--backend", "fsdp", "--local_dir", "a"))

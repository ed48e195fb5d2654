"""Memory that cannot be allocated ends a command with one paragraph that names what to change."""

from __future__ import annotations

import pytest
import torch
import typer
from typer.testing import CliRunner

from strop.cli.command_group import StropGroup


def app_of(error: Exception | None) -> typer.Typer:
    app = typer.Typer(cls=StropGroup)

    @app.command()
    def allocate() -> None:
        if error is not None:
            raise error
        torch.empty(1 << 60, dtype=torch.uint8)

    @app.command()
    def other() -> None:
        pass

    return app


@pytest.mark.parametrize(
    "error", [None, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), MemoryError()]
)
def test_a_lack_of_memory_names_what_needs_less(error: Exception | None) -> None:
    result = CliRunner().invoke(app_of(error), ["allocate"])
    assert result.exit_code == 1
    shown = " ".join(result.output.split())
    assert "strop: Out of memory" in shown and "trainer.microbatch" in shown
    assert "docs/troubleshooting.md#out-of-memory" in shown


def test_other_errors_keep_their_traceback() -> None:
    result = CliRunner().invoke(app_of(RuntimeError("shape mismatch")), ["allocate"])
    assert isinstance(result.exception, RuntimeError) and "Out of memory" not in result.output

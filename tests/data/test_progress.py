"""A bar is shown on a terminal, for work that takes long, and nowhere else."""

from __future__ import annotations

import pytest

from strop.data import progress
from strop.data.progress import watched


@pytest.mark.parametrize(
    ("terminal", "patience", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_where_a_bar_is_shown(
    terminal: bool,
    patience: float,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", patience)
    assert list(watched(range(5), 5, "Encoding the prompts of train")) == list(range(5))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("Encoding the prompts of train" in err) == shown
    assert terminal or err == ""

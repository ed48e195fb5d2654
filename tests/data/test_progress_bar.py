"""A progress bar is shown on a terminal, for iterations that take long, and nowhere else."""

from __future__ import annotations

import pytest

from strop.data import progress_bar
from strop.data.progress_bar import with_progress_bar


@pytest.mark.parametrize(
    ("terminal", "show_after_seconds", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_where_a_bar_is_shown(
    terminal,
    show_after_seconds,
    shown,
    monkeypatch,
    capsys,
):
    # rich reads all of these: without them the result would depend on the terminal that runs the tests.
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    monkeypatch.setattr(progress_bar, "SHOW_AFTER_SECONDS", show_after_seconds)
    assert list(with_progress_bar(range(5), 5, "Encoding the prompts of train")) == list(range(5))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("Encoding the prompts of train" in err) == shown
    assert terminal or err == ""

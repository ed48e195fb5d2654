"""The command line of `strop.models.tiny`."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.models.tiny import main


@pytest.mark.parametrize("options", [["--hidden-size", "32"], ["--heads", "3"]])
def test_heads_that_do_not_fit_are_one_line(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tiny", str(tmp_path / "model"), "--corpus", str(tmp_path / "corpus.txt")]
    monkeypatch.setattr("sys.argv", [*command, *options])
    with pytest.raises(SystemExit):
        main()
    assert "--heads 4 --kv-heads 2" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()

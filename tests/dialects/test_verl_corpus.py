"""Contract test of real verl command lines: at least as many are read as when the minimum was set, none ends in
a traceback, and every refusal is a message about a key that the command line has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strop.dialects.hydra.selection import ConfigSelection
from strop.dialects.verl.evaluation import read_verl_eval
from strop.dialects.verl.generation import read_verl_generate
from strop.dialects.verl.ppo_trainer import read_verl
from strop.dialects.verl.sft_trainer import read_verl_sft
from strop.errors import ConfigError

CORPORA = Path(__file__).parents[3] / "shared" / "configs"
MINIMUMS = {"verl-2025-06": 41, "verl-2026-08": 70}
OPTIONS = {"--config-path": "path", "--config-name": "name", "--config-dir": "folder"}


def read(command: str, words: list[str]) -> None:
    chosen: dict[str, Any] = {
        OPTIONS[word.split("=")[0]]: word.split("=")[1] for word in words if word.startswith("--")
    }
    overrides, selection = [word for word in words if word[:2] != "--"], ConfigSelection(**chosen)
    match command:
        case "ppo":
            read_verl(overrides, selection=selection, here=True)
        case "sft":
            read_verl_sft(overrides, selection=selection, here=True)
        case "generate":
            read_verl_generate(overrides, selection=selection, here=True)
        case _:
            read_verl_eval(overrides, selection=selection)


@pytest.mark.parametrize("corpus", MINIMUMS)
def test_real_command_lines(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CORPORA / f"{corpus}.jsonl"
    if not file.exists():
        pytest.skip("the corpora are not in ../shared")
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [json.loads(line) for line in file.open(encoding="utf-8")]
    count = 0
    for row in rows:
        if row.get("own_config"):
            own = tmp_path / row["own_config"]
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(row["own_config_text"], encoding="utf-8")
        try:
            read(row["command"], row["args"])
        except ConfigError as error:
            assert str(error), row["id"]
        else:
            count += 1
    assert count >= MINIMUMS[corpus], f"{count} of {len(rows)} command lines are read"

"""Output of each command, and the library function that it calls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import strop.api
from strop import __version__
from strop.api import RunResult
from strop.config.load.loader import LoadedRun

from .conftest import Cli


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, Any]]:
    """Calls of the library's functions, which are replaced."""
    seen: list[tuple[str, Any]] = []
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 3, "reward/mean": 0.5}\n', encoding="utf-8")

    def train(loaded: LoadedRun) -> RunResult:
        seen.append(("train", loaded))
        return RunResult(folder, folder / "model", 3, 3, {})

    def evaluate(loaded: LoadedRun, *, checkpoint: Path | None = None) -> dict[str, float]:
        seen.append(("evaluate", checkpoint))
        return {"eval/reward": 0.25}

    def generate(loaded: LoadedRun, prompts: Path, out: Path, *, checkpoint: Path | None = None) -> int:
        seen.append(("generate", (prompts, out, checkpoint)))
        return 7

    def export(folder: Path, to: Path, *, step: int | None = None) -> Path:
        seen.append(("export", (folder, to, step)))
        return to

    for function in (train, evaluate, generate, export):
        monkeypatch.setattr(strop.api, function.__name__, function)
    return seen


def test_train_loads_the_file_and_its_overrides(cli: Cli, run_file: Path, calls: list[Any]) -> None:
    result = cli("train", run_file, "seed=5", "~reward", "reward=math")
    assert result.exit_code == 0, result.output
    ((name, loaded),) = calls
    assert (name, loaded.run.seed, loaded.run.reward.functions[0].function) == ("train", 5, "math")
    assert "Finished 3 steps." in result.output


def test_evaluate_generate_export(cli: Cli, run_file: Path, calls: list[Any]) -> None:
    assert "eval/reward = 0.25" in cli("evaluate", run_file, "seed=1", "--checkpoint", "c").output
    assert "Wrote responses to 7 prompts" in cli("generate", run_file, "--prompts", "p", "--out", "o").output
    assert "Wrote d" in cli("export", "folder", "--to", "d", "--step", "4").output
    assert calls == [
        ("evaluate", Path("c")),
        ("generate", (Path("p"), Path("o"), None)),
        ("export", (Path("folder"), Path("d"), 4)),
    ]


def test_verl_ppo_prints_the_keys_that_here_overrides(cli: Cli, calls: list[Any]) -> None:
    line = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "trainer.nnodes=2"]
    refused = cli("verl", "ppo", *line)
    assert refused.exit_code == 2 and "--here" in refused.stderr and calls == []
    result = cli("verl", "ppo", "--here", *line)
    assert result.exit_code == 0, result.output
    assert "overridden: trainer.nnodes=2: a single process on this machine" in result.output
    assert calls[0][1].overridden[0].key == "trainer.nnodes"
    assert len(calls) == 1
    assert "Trains all weights" in cli("verl", "ppo", "--here", "--explain", *line).output
    assert "there is no model folder" in cli("verl", "ppo", "--here", "--check", *line).stderr
    assert len(calls) == 1


def test_check(cli: Cli, run_file: Path) -> None:
    result = cli("check", run_file)
    assert result.exit_code == 0 and "The run can start." in result.output
    assert "train: 64 rows, 1 step of 64 per epoch" in result.output


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "data.train.answer=result",
            "train.jsonl line 1 has no 'result': its columns are 'prompt', 'answer'",
        ),
        ("trainer.tasks_per_step=65", "has 64 tasks, too few for one step of 65"),
    ],
)
def test_check_reads_the_data(cli: Cli, run_file: Path, override: str, said: str) -> None:
    result = cli("check", run_file, override)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())


def test_check_names_data_sources_without_a_scorer(cli: Cli, run_file: Path) -> None:
    rows = ("openai/gsm8k", "openai/gsm9k", "aime2031", "openai/gsm9k")
    lines = [f'{{"prompt": "1+1", "answer": "2", "data_source": "{source}"}}\n' for source in rows]
    (run_file.parent / "train.jsonl").write_text("".join(lines))
    words = (
        "check",
        run_file,
        "reward=verl_by_source",
        "data.train.source=data_source",
        "trainer.tasks_per_step=2",
    )
    result = cli(*words)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert (
        "no scorer for the value 'openai/gsm9k' of the column 'data_source', which 2 of 4 rows have" in said
    )
    assert "train.jsonl line 2" in said and "custom_reward_function.path" in said and "aime2031" not in said
    (run_file.parent / "train.jsonl").write_text("".join(lines[::2]))
    assert cli(*words).exit_code == 0


def test_explain_is_one_line_per_value_in_a_pipe(cli: Cli, run_file: Path) -> None:
    result = cli("explain", run_file, "trainer.tasks_per_step=8")
    lines = {line.split()[0]: line for line in result.output.splitlines() if line}
    assert result.exit_code == 0
    assert lines["Trains"].startswith("Trains all weights of ./m by GRPO on train.jsonl, scored by exact.")
    assert lines["trainer.tasks_per_step"].split()[1:5] == [
        "8",
        "tasks",
        "override",
        "trainer.tasks_per_step=8",
    ]
    assert f"{run_file}:1" in lines["model.path"]


@pytest.mark.parametrize(
    ("width", "heads", "line"),
    [(200, 2, "reward.functions.0.function "), (80, 0, "reward.functions.0.function  exact  ")],
)
def test_explain_in_a_terminal(
    cli: Cli,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    heads: int,
    line: str,
) -> None:
    """Values that are set, then the defaults: tables in a wide terminal, and else each effect below its value."""
    from strop.cli.show import show_explanation
    from strop.config.load.loader import load_run

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_explanation(load_run(run_file))
    said = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    chosen, defaults = said.partition("Values that are set:")[2].split("Defaults:")
    assert line in chosen and line not in defaults and "trainer.duration" in defaults
    assert sum(text.startswith("field ") for text in said.splitlines()) == heads
    assert max(map(len, said.splitlines())) <= width


def test_keys(cli: Cli) -> None:
    rows = json.loads(cli("keys", "verl", "--json").output)
    assert set(rows[0]) == {"key", "disposition", "field", "default", "since", "until", "note"}
    by_key = {row["key"]: row for row in rows}
    assert by_key["data.train_batch_size"] == {
        "key": "data.train_batch_size",
        "disposition": "mapped",
        "field": "trainer.tasks_per_step",
        "default": 1024,
        "since": "",
        "until": "",
        "note": "counts prompts",
    }
    assert by_key["actor_rollout_ref.model.lora_rank"]["note"].startswith("default unstated")
    table = cli("keys", "verl").output.splitlines()
    assert len(table) == len(rows) + 1 and table[0].split() == [
        "key",
        "disposition",
        "field",
        "default",
        "note",
    ]
    assert "did you mean 'verl'" in cli("keys", "ver").stderr
    later = json.loads(cli("keys", "verl", "--since", "0.8", "--json").output)
    assert {row["since"] for row in later} == {"0.8", "0.9"}
    assert "trainer.v1.trainer_mode" in {row["key"] for row in later}
    assert "write one such as 0.9" in cli("keys", "verl", "--since", "new").stderr


def test_version_and_help(cli: Cli) -> None:
    assert cli("version").output.strip() == __version__
    for words in ([], ["train"], ["verl"], ["verl", "ppo"], ["export"]):
        assert cli(*words, "--help").exit_code == 0


def test_an_override_with_dashes_is_told_what_to_write(cli: Cli) -> None:
    result = cli("check", "run.yaml", "--trainer.optimizer.lr=0.1")
    assert result.exit_code == 2
    assert "no dashes: trainer.optimizer.lr=0.1" in result.output


def test_a_key_of_another_tool_without_a_field_of_its_own_gets_the_usual_name(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text("model: {path: m}\ndata: {train: {path: a.jsonl}}\nreward: exact\n")
    found = cli("check", str(tmp_path / "run.yaml"), "rollout.n=4")
    assert found.exit_code == 2
    assert "In a run file write algorithm.rollouts_per_task=4." in " ".join(found.stderr.split())

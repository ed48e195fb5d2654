"""Output of each command: on a run file, with the library's functions replaced, and on a finished run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import yaml

import strop.api
from strop import __version__
from strop.api import RunResult
from strop.cli.actions import show_explanation
from strop.cli.output import align_columns
from strop.config.load.loader import load_run
from strop.data.progress_bar import with_progress_bar
from strop.printable import counted
from strop.runs.sample_table import samples_markdown

from .conftest import Cli

RUN = """\
model: {path: m}
data:
  train: {path: t.jsonl, limit_tasks: 9}
reward: by_source
algorithm: {rollouts_per_task: 4}
trainer: {tasks_per_step: 8}
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Calls of the library's functions, which are replaced."""
    seen: list[Any] = []
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 3, "reward/mean": 0.5}\n', encoding="utf-8")
    answers = {"train": RunResult(folder, folder / "model", 3, 3, {}), "evaluate": {"eval/reward": 0.25}}
    answers |= {"generate": 7, "export": Path("d")}
    for name, answer in answers.items():

        def function(*given: Any, name: str = name, answer: Any = answer, **options: Any) -> Any:
            seen.append((name, *given, *options.values()))
            return answer

        monkeypatch.setattr(strop.api, name, function)
    return seen


def test_train_evaluate_generate_and_export_pass_on_what_is_written(
    cli: Cli, run_file: Path, calls: list[Any]
) -> None:
    result = cli("train", run_file, "seed=5", "~reward", "reward=math")
    assert result.exit_code == 0 and "Finished 3 steps." in result.output
    ((name, loaded),) = calls
    run = loaded.run
    assert (name, run.seed, run.reward.functions[0].function) == ("train", 5, "math")
    assert "eval/reward = 0.25" in cli("evaluate", run_file, "seed=1", "--checkpoint", "c").output
    assert "Wrote responses to 7 prompts" in cli("generate", run_file, "--prompts", "p", "--out", "o").output
    assert "Wrote d" in cli("export", "folder", "--to", "d", "--step", "4").output
    assert calls[1:] == [
        ("evaluate", ANY, Path("c")),
        ("generate", ANY, Path("p"), Path("o"), None),
        ("export", Path("folder"), Path("d"), 4, None),
    ]


def test_verl_ppo_prints_the_keys_that_here_overrides(cli: Cli, calls: list[Any]) -> None:
    line = ["--here", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "trainer.nnodes=2"]
    result = cli("verl", "ppo", *line)
    assert result.exit_code == 0, result.output
    assert "overridden: trainer.nnodes=2: a single process on this machine" in result.output
    ((_, loaded),) = calls
    assert loaded.overridden[0].key == "trainer.nnodes"
    assert "Trains all weights" in cli("verl", "ppo", *line, "--explain").output
    assert "there is no model folder" in cli("verl", "ppo", *line, "--check").stderr
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("list", ["strop/run  finished  2/2"]),
        ("show runs/strop/run", ["run: finished, step 2 of 2", "reward/mean", "Held out, sums"]),
        ("watch runs/strop/run", ["step 2/2", "finished."]),
        ("compare runs/strop/run runs/strop/run --html OUT/both.html", ["equal last values left out."]),
        ("report runs/strop/run", ["report.html"]),
        ("evaluate runs/strop/run", ["checkpoint = runs/strop/run/checkpoints/step-000002", "sums/reward"]),
        (
            "generate run.yaml --prompts train.jsonl --out OUT/o.parquet data.max_response_tokens=1",
            ["64 prompts"],
        ),
        ("export runs/strop/run --to OUT/exported", ["Wrote "]),
        ("chat runs/strop/run --ask 1+1 --max-tokens 2", ["> 1+1"]),
        ("plan run.yaml --machine 1xA10-24GB", ["Memory on 1 node with 1 A10", "Placement on 1 node"]),
        ("schema", ['"$schema"']),
    ],
    ids=lambda words: words.split()[0] if isinstance(words, str) else "",
)
def test_each_command_reads_a_finished_run(
    cli: Cli, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, parts: list[str]
) -> None:
    folder, trained_output = trained
    assert "Finished 2 steps. Model: runs/strop/run/model. Run folder: runs/strop/run." in trained_output
    monkeypatch.chdir(folder)
    result = cli(*words.replace("OUT", str(tmp_path)).split())
    assert result.exit_code == 0, result.output
    assert all(part in result.output for part in parts), result.output


def test_check(cli: Cli, run_file: Path) -> None:
    result = cli("check", run_file)
    assert result.exit_code == 0 and "The run can start as far as it was checked." in result.output
    assert "train: 64 rows, 1 step of 64 per epoch" in result.output
    checked, unchecked = result.output.partition("Checked:\n")[2].split("Not checked:\n")
    assert "reward of the reference answer: 1 (3 of 3 rows); reward of a wrong answer: 0\n" in checked
    assert "  train: columns, template and tokens of all 64 rows\n" in checked
    assert "not loaded\n" in unchecked


def test_check_names_data_sources_without_a_scorer(cli: Cli, run_file: Path) -> None:
    rows = ("openai/gsm8k", "openai/gsm9k", "aime2031", "openai/gsm9k")
    lines = [f'{{"prompt": "1+1", "answer": "2", "data_source": "{source}"}}\n' for source in rows]
    (run_file.parent / "train.jsonl").write_text("".join(lines))
    given = ("reward=verl_by_source", "data.train.source=data_source", "trainer.tasks_per_step=2")
    result = cli("check", run_file, *given)
    said = " ".join(result.stderr.split())
    fault = "no scorer for the value 'openai/gsm9k' of the column 'data_source', which 2 of 4 rows have"
    assert result.exit_code == 2 and fault in said
    assert "train.jsonl line 2" in said and "custom_reward_function.path" in said and "aime2031" not in said
    (run_file.parent / "train.jsonl").write_text("".join(lines[::2]))
    assert cli("check", run_file, *given).exit_code == 0


def test_explain_is_one_line_per_value_in_a_pipe(cli: Cli, run_file: Path) -> None:
    result = cli("explain", run_file, "trainer.tasks_per_step=8")
    lines = {line.split()[0]: line for line in result.output.splitlines() if line}
    assert result.exit_code == 0
    assert lines["Trains"].startswith("Trains all weights of ./m by GRPO on train.jsonl, scored by exact.")
    value = lines["trainer.tasks_per_step"].split()
    assert value[1:5] == ["8", "tasks", "override", "trainer.tasks_per_step=8"]
    assert f"{run_file}:1" in lines["model.path"]


@pytest.mark.parametrize(
    ("width", "heads", "line"),
    [(200, 2, "reward.functions.0.function "), (80, 0, "reward.functions.0.function  exact  ")],
)
def test_explain_in_a_terminal(
    run_file: Path, monkeypatch, capsys, width: int, heads: int, line: str
) -> None:
    """Values that are set, then the defaults: tables in a wide terminal, and else each effect below its value."""
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
    row = {"key": "data.train_batch_size", "disposition": "mapped", "field": "trainer.tasks_per_step"}
    row |= {"default": 1024, "since": "", "until": "", "note": "counts prompts"}
    assert by_key["data.train_batch_size"] == row
    assert by_key["actor_rollout_ref.model.lora_rank"]["note"].startswith("default unstated")
    table = cli("keys", "verl").output.splitlines()
    assert len(table) == len(rows) + 1
    assert table[0].split() == ["key", "disposition", "field", "default", "note"]
    later = json.loads(cli("keys", "verl", "--since", "0.8", "--json").output)
    assert {row["since"] for row in later} == {"0.8", "0.9", "0.9.1"}
    assert "trainer.v1.trainer_mode" in {row["key"] for row in later}


def test_version_and_help(cli: Cli) -> None:
    assert cli("version").output.strip() == cli("--version").output.strip() == __version__
    assert cli("list", "-h").output == cli("list", "--help").output
    for words in ([], ["train"], ["verl"], ["verl", "ppo"], ["export"]):
        assert cli(*words, "--help").exit_code == 0


def test_convert_prints_the_file_and_writes_messages_to_stderr(cli: Cli) -> None:
    Path("run.yaml").write_text(RUN)
    done = cli("convert", "run.yaml", "--to", "verl")
    assert done.exit_code == 0
    assert done.stdout.startswith("# From run.yaml, by strop convert.\ndata:\n")
    said = [line.split()[:4] for line in done.stderr.splitlines()]
    assert ["data.train.answer", "answer", "reward_model.ground_truth", "no"] in said
    Path("ppo.yaml").write_text(done.stdout)
    assert cli("explain", "ppo.yaml").exit_code == 0
    done = cli("convert", "run.yaml", "--to", "verl", "--strict", "--output", "strict.yaml")
    assert done.exit_code != 0 and "--strict" in done.stderr and not Path("strict.yaml").exists()


def test_convert_writes_a_file_that_is_the_same_run(cli: Cli) -> None:
    Path("run.yaml").write_text(RUN)
    words = ("--to", "strop", "--strict", "--output", "o.yaml")
    done = cli("convert", "run.yaml", "trainer.tasks_per_step=16", *words)
    assert done.exit_code == 0 and done.stdout == ""
    assert "read back, it is the same run" in done.stderr and "Wrote o.yaml" in done.stderr
    assert yaml.safe_load(Path("o.yaml").read_text())["trainer"]["tasks_per_step"] == 16
    assert cli("convert", "o.yaml", "--to", "strop", "--output", "no/o.yaml").exit_code != 0


def test_names_and_numbers_in_tables_and_a_progress_bar() -> None:
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert list(with_progress_bar([1], 1, "[red]\x1b[2J")) == [1]
    assert samples_markdown([], 1) and align_columns([("a", "b")])

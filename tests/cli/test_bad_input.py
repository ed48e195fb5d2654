"""Errors in a run file: one paragraph on stderr, a non-zero exit code, no traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli

Damage = Callable[[Path], object]


def _write(text: str) -> Damage:
    return lambda folder: (folder / "run.yaml").write_text(text)


def _remove(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


DAMAGES: list[tuple[str, Damage, list[str], str]] = [
    ("no file", _remove("run.yaml"), [], "there is no such file"),
    ("empty file", _write(""), [], "is empty"),
    ("yaml", _write("model: {path: m"), [], "run.yaml:1:"),
    ("unknown key", _write("modl: {}"), [], "did you mean 'model'"),
    ("wrong type", lambda _: None, ["seed=x"], "expected an integer"),
    ("out of range", lambda _: None, ["seed=-1"], "greater than or equal to 0"),
    ("environment", lambda _: None, ["name=${oc.env:STROP_TEST_NONE}"], "is not set"),
    ("interpolation", lambda _: None, ["name=${nowhere}"], "not found"),
    ("override", lambda _: None, ["trainer.tasks_per_stp=1"], "did you mean 'tasks_per_step'"),
    ("grammar", lambda _: None, ["seed=[1"], "cannot be parsed"),
    (
        "unquoted",
        lambda _: None,
        ["trainer.duration=10", "steps"],
        "override 'steps': there is no '=' in it. An override is written key=value. If it belongs to the value "
        "before it, quote the whole: 'trainer.duration=10 steps'.",
    ),
    (
        "unquoted style",
        lambda _: None,
        ["synchronizer.style={type:", "fixed}", "seed=2"],
        "quote the whole: 'synchronizer.style={type: fixed}'.",
    ),
    ("a word", lambda _: None, ["steps", "seed=2"], "override 'steps': there is no '=' in it"),
    ("batches", lambda _: None, ["trainer.tasks_per_update=48"], "is not a multiple"),
    ("no data", _remove("train.jsonl"), [], "there is no file train.jsonl"),
    ("empty data", lambda f: (f / "train.jsonl").write_text(""), [], "train.jsonl is empty"),
    ("no weights", _remove("m/model.safetensors"), [], "no weights"),
    ("no tokenizer", _remove("m/tokenizer.json", "m/tokenizer_config.json"), [], "no tokenizer"),
    ("no config", _remove("m/config.json"), [], "no config.json"),
    ("no model", lambda _: None, ["model.path=./none"], "there is no model folder ./none"),
    (
        "no model in a folder",
        lambda folder: (folder / "models").mkdir(),
        ["model.path=models/small"],
        "there is no model folder models/small",
    ),
    ("no reward", lambda _: None, ["~reward"], "reward: missing, so nothing scores the responses"),
    (
        "reward name",
        lambda _: None,
        ["reward=exakt"],
        "override reward=exakt: reward 'exakt': did you mean 'exact'",
    ),
    ("no reward file", lambda _: None, ["reward=none.py:f"], "there is no file none.py"),
    ("no template", lambda _: None, ["data.chat_template=t.jinja"], "there is no file t.jinja"),
]


def test_names_of_no_folder_may_be_names_of_the_hub(cli: Cli, run_file: Path) -> None:
    """`check` says what the run will look for on the hub, and asks no hub."""
    result = cli("check", run_file, "model.path=a/b", "data.train.path=c/d")
    assert result.exit_code == 0, result.stderr
    assert (
        "model: there is no folder a/b here, so the run loads a/b from the Hugging Face hub" in result.stdout
    )
    assert "train: not read (there is no c/d here, so the run loads it from" in result.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "a/b",
            "model.path: there is no folder a/b here, and no tokenizer could be loaded from the Hugging Face hub",
        ),
        ("./models/x", "model.path: there is no folder ./models/x."),
    ],
)
def test_training_with_a_folder_that_is_not_there(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = cli("train", run_file, f"model.path={name}")
    assert result.exit_code == 1
    assert expected in result.stderr and "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_training_without_a_network_ends_at_the_first_attempt(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's library would retry for most of a minute and print a line each time."""
    with socket.socket() as unheard:  # bound, and it does not listen: connections are refused
        unheard.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        result = cli("train", run_file, "model.path=a/b")
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert "model.path: there is no folder a/b here" in line
    assert f"{address} cannot be reached" in line


@pytest.mark.parametrize(
    ("damage", "overrides", "expected"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES]
)
def test_one_paragraph(cli: Cli, run_file: Path, damage: Damage, overrides: list[str], expected: str) -> None:
    damage(run_file.parent)
    result = cli("check", run_file, *overrides)
    assert result.exit_code == 2
    assert expected in result.stderr and result.stderr.startswith("strop: ")
    assert "Traceback" not in result.stderr and "\n\n" not in result.stderr and result.stdout == ""


def test_a_folder_that_cannot_be_written(cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.config.load.preflight.os.access", lambda path, mode: path != run_file.parent)
    result = cli("check", run_file, f"output={run_file.parent}/runs")
    assert result.exit_code == 2 and "is not writable" in result.stderr


def test_an_internal_error_keeps_its_traceback(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("internal")

    monkeypatch.setattr("strop.api.train", failing)
    result = cli("train", run_file)
    assert result.exit_code == 1 and isinstance(result.exception, RuntimeError)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["check", "run.yaml", "modl.path=x"], ["verl", "ppo", "data.train_batchsize=3"], ["keys", "trinityy"]],
)
def test_in_a_separate_process(run_file: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strop", *words], capture_output=True, text=True, cwd=run_file.parent
    )
    assert done.returncode == 2
    assert done.stderr.startswith("strop: ") and "Traceback" not in done.stderr and done.stdout == ""

"""Limits of configurations: size, depth, aliases, numbers, characters, interpolations."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.load.loader import load_run
from strop.config.load.yaml_file import MAX_BYTES
from strop.dialects.detect import read_any
from strop.errors import ConfigError, StropError
from strop.printable import MAX_MESSAGE

from .conftest import RUN

ALIASES = "a: &a [" + ",".join("x" * 9) + "]\n"
ALIASES += "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
INTERPOLATIONS = "".join(f"x{i}: ${{x{i + 1}}}${{x{i + 1}}}\n" for i in range(40))

TEXTS = [
    ("seed: !!int ''", "'' is not a value of the type !!int"),
    ("seed: !!bool maybe", "'maybe' is not a value of the type !!bool"),
    ("seed: !!timestamp x", "the tag '!!timestamp' is not supported here"),
    ("seed: !!set {a, b}", "the tag '!!set' is not supported here"),
    ("seed: !!map 1", "the tag '!!map' is not supported here"),
    ("seed: 0x_", "'0x_' is not a value of the type !!int"),
    (f"seed: {'[' * 250}{']' * 250}", "more than 50 sections or lists are nested"),
    (f"seed: {'9' * 5000}", "a number of 5,000 characters"),
    (f"seed: {'9' * 40}", "seed: the integer does not fit into 64 bits"),
    (f"seed: '{'9' * 2000}'", "seed does not fit into 64 bits"),
    ("trainer: {duration: 1e999 steps}", "the number of steps is above"),
    (ALIASES, "more than 10,000 values, with aliases replaced"),
    ("a: &a {b: *a}", "this anchor contains itself"),
    (INTERPOLATIONS, "its interpolations give more than 100,000 characters or values"),
    ("model: ${data}\ndata: ${model}", "recursive interpolation"),
    ("x: " + "${" * 20 + "}" * 20, "too long or too deeply nested"),
    ('name: "a\\0b"', "name: contains a NUL character"),
    ('name: "a\\ud800b"', r"name: contains the character \ud800"),
    ('"a\\ud800b": 1', r"contains the character \ud800"),
    ("reward: {functions: [{function: exact}], timeout_seconds: 1e9}", "less than or equal to 1000000"),
    ("#" * MAX_BYTES, "larger than 200,000 bytes"),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=[expected for _, expected in TEXTS])
def test_a_file_beyond_a_limit_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{path: m}}\ndata: {{train: {{path: a}}}}\n{text}" if "model:" not in text else text
    )
    with pytest.raises(ConfigError) as caught:
        load_run(path)
    assert expected in str(caught.value)
    with pytest.raises(StropError):
        read_any(path)


OVERRIDES = [
    ("algorithm.critic.optimizer.lr=1e-5", "it has no effect under `type: grpo`|belongs to `type: ppo`"),
    (f"seed={'[' * 3000}{']' * 3000}", "too long or too deeply nested"),
    (f"seed={'9' * 5000}", "cannot be parsed"),
    (f"name={'a' * 30000}", "too long or too deeply nested"),
    ("name='a\udce9'", r"contains the character \\udce9"),
]


@pytest.mark.parametrize(("override", "expected"), OVERRIDES, ids=[text[:30] for text, _ in OVERRIDES])
def test_an_override_beyond_a_limit_is_refused(run_file: Path, override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_run(run_file, [override])
    assert len(str(caught.value)) < 600


def test_a_message_is_shortened_and_has_no_control_characters(run_file: Path) -> None:
    error = ConfigError("first\x1b[2Jmiddle\u202e\ud800" + "x" * 5000 + "last")
    assert str(error).startswith(r"first\x1b[2Jmiddle\u202e\ud800x") and str(error).endswith("last")
    assert len(str(error)) < MAX_MESSAGE
    str(error).encode()


def test_all_faults_of_a_section_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN.replace("tasks_per_step: 64", "tasks_per_step: 64\n  tasks_per_update: 48"))
    changes = ["+trainer.weight_decay_increase={start: 0.5}", "checkpoint={async_save: true, export: true}"]
    with pytest.raises(ConfigError) as caught:
        load_run(path, changes)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and "tasks_per_step (64) is not a multiple" in lines[0]
    assert "weight_decay_increase.start (0.5) is above" in lines[1] and changes[0] in lines[1]
    assert "export writes the weights" in lines[2]


def test_aliases_and_tags_within_the_limits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: !!str 7}\nseed: !!int '3'\ndata: {train: &t {path: a}, eval: [{<<: *t, name: x}, *t]}\n"
        "trainer: {optimizer: {lr: !!float 1}}\nreward: exact\n"
    )
    run = load_run(path).run
    assert (run.model.path, run.seed, run.trainer.optimizer.lr) == ("7", 3, 1.0)
    assert [taskset.path for taskset in run.data.eval] == ["a", "a"]

"""A run is resumed on the data, code, template and tokenizer that it was started with, or says what has changed."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import strop
from strop.config.user_code import callable_digest, code_digest
from strop.errors import RunFolderError
from strop.run.state.identity import change_configuration, identity_differences, run_identity

from .conftest import Values, write_rows
from .results import rows_of, train

REWARD = """\
import math
from helpers import scale

LIMIT = 3
OTHER = 4


def score(text):
    return scale(len(text)) / LIMIT


def unused(text):
    return OTHER


if __name__ == "__main__":
    print(score("a"))
"""
HELPERS = """\
def scale(number):
    return number * factor()


def factor():
    return 2


def unused():
    return 3
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "rewards.py").write_text(REWARD)
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "before", "after", "is_same"),
    [
        ("rewards.py", "    return scale(", "    # longer is better\n\n    return scale(", True),
        ("rewards.py", "return OTHER", "return OTHER + 1", True),
        ("rewards.py", "OTHER = 4", "OTHER = 5", True),
        ("rewards.py", 'print(score("a"))', 'print(score("b"))', True),
        ("rewards.py", "/ LIMIT", "/ (LIMIT)", True),
        ("rewards.py", "/ LIMIT", "/ (LIMIT + 1)", False),
        ("rewards.py", "LIMIT = 3", "LIMIT = 4", False),
        ("rewards.py", "import math\n", "import math\nmath.pi = 3\n", False),  # an import executes it
        ("rewards.py", "import math\n", "import math\nLIMIT = 5\n", False),
        ("rewards.py", "from helpers import scale", "from helpers import unused as scale", False),
        ("helpers.py", "return 2", "return 2.0", False),
        ("helpers.py", "return 3", "return 4", True),
        ("helpers.py", "def factor", "def", False),  # not Python
    ],
)
def test_digest_of_a_function_follows_what_it_reaches(
    code: Path, file: str, before: str, after: str, is_same: bool
) -> None:
    name = f"{code / 'rewards.py'}:score"
    digest = code_digest(name)
    text = (code / file).read_text()
    assert before in text
    (code / file).write_text(text.replace(before, after))
    assert (code_digest(name) == digest) == is_same


def test_digest_of_modules_on_the_path(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(code))
    assert code_digest("rewards.score") == code_digest(f"{code / 'rewards.py'}:score")
    assert [code_digest(name) for name in ("gsm8k", "json.loads", "torch.nn", "no.such")] == [""] * 4


def functions(**changes: Any) -> dict[str, Callable[..., Any]]:
    """The functions of a notebook's cell, with some of its lines changed."""
    lines = {
        "limit": "LIMIT = 3",
        "inner": "def inner(text): return len(text)",
        "score": "def score(text, bonus=1): return inner(text) / LIMIT + bonus",
        "closure": "def make(bound):\n    return lambda text: len(text) > bound",
        "made": "made = make(3)",
        "kind": "class Kind:\n    factor = 2\n    def __call__(self, text): return inner(text) * self.factor",
        "instance": "instance = Kind()",
    } | changes
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("\n".join(lines.values()), namespace)
    return {
        "function": namespace["score"],
        "closure": namespace["made"],
        "instance": namespace["instance"],
        "partial": functools.partial(namespace["score"], bonus=2),
        "cached": functools.cache(namespace["score"]),
    }


@pytest.mark.parametrize(
    ("change", "differ"),
    [
        ({}, set()),
        ({"unused": "x = 1  # a comment"}, set()),
        ({"limit": "LIMIT = 4"}, {"function", "partial", "cached"}),
        (
            {"score": "def score(text, bonus=2): return inner(text) / LIMIT + bonus"},
            {"function", "partial", "cached"},
        ),
        ({"inner": "def inner(text): return 0"}, {"function", "partial", "cached", "instance"}),
        ({"made": "made = make(4)"}, {"closure"}),
        ({"instance": "instance = Kind()\ninstance.factor = 5"}, {"instance"}),
    ],
)
def test_digest_of_functions_of_a_notebook(change: dict[str, str], differ: set[str]) -> None:
    before, after = functions(), functions(**change)
    assert {
        name for name in before if callable_digest(before[name]) != callable_digest(after[name])
    } == differ


def longer(text: str, answer: str) -> float:
    return len(text) / 8


def shorter(text: str, answer: str) -> float:
    return 1 - len(text) / 8


@pytest.fixture
def own(values: Values, tiny: Path, tmp_path: Path) -> dict[str, Any]:
    """A run with files of its own, which tests change."""
    shutil.copy(tiny / "tasks.jsonl", tmp_path / "tasks.jsonl")
    shutil.copy(Path(__file__).parent / "rewards.py", tmp_path / "rewards.py")
    shutil.copytree(tiny / "model", tmp_path / "model")
    (tmp_path / "chat.jinja").write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    return values(
        data__train={"path": str(tmp_path / "tasks.jsonl")},
        data__eval=[{"name": "held-out", "path": str(tmp_path / "tasks.jsonl"), "limit_tasks": 4}],
        data__chat_template=str(tmp_path / "chat.jinja"),
        model__path=str(tmp_path / "model"),
        reward=f"{tmp_path / 'rewards.py'}:digit_share",
        trainer__duration="1 steps",
        checkpoint__every="1 steps",
    )


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


CHANGES: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "a row appended": (
        lambda folder: append(folder / "tasks.jsonl", '{"prompt": "max 1 1", "answer": "1"}\n'),
        {"data.train"},
    ),
    "rows in another order": (
        lambda folder: write_rows(
            folder / "tasks.jsonl",
            [json.loads(line) for line in reversed((folder / "tasks.jsonl").read_text().splitlines())],
        ),
        {"data.train", "data.eval.0"},
    ),
    "another layout of the rows": (
        lambda folder: (folder / "tasks.jsonl").write_text(
            (folder / "tasks.jsonl").read_text().replace('", "', '" ,  "')
        ),
        set(),
    ),
    "another reward": (
        lambda folder: append(folder / "rewards.py", "\n\ndef digit_share(text):\n    return 1.0\n"),
        {"reward.functions.0.function"},
    ),
    "a comment": (lambda folder: append(folder / "rewards.py", "# the end\n"), set()),
    "another template": (lambda folder: append(folder / "chat.jinja", "!"), {"data.chat_template"}),
    "another token": (
        lambda folder: (folder / "model" / "tokenizer.json").write_text(
            (folder / "model" / "tokenizer.json").read_text().replace('"!"', '"?!"', 1)
        ),
        {"model.tokenizer"},
    ),
    "other weights": (
        lambda folder: (folder / "model" / "model.safetensors").write_bytes(
            (folder / "model" / "model.safetensors").read_bytes()[:-4] + b"\1\2\3\4"
        ),
        {"model.path"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_identity_of_a_run(own: dict[str, Any], tmp_path: Path, change: str) -> None:
    run = strop.load(own).run
    before = run_identity(run)
    make, fields = CHANGES[change]
    make(tmp_path)
    differences = identity_differences(before, run_identity(run))
    assert {text.partition(" ")[0] for text in differences} == fields


@pytest.mark.parametrize("changed", ["first.py", "second.py"])
def test_each_file_of_a_field_counts(own: dict[str, Any], tmp_path: Path, changed: str) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in ("first.py", "second.py"):
        (folder / name).write_text("VALUE = 1\n")
    run = strop.load(
        own | {"model": {**own["model"], "imports": [str(folder / n) for n in ("first.py", "second.py")]}}
    ).run
    before = run_identity(run)
    (folder / changed).write_text("VALUE = 2\n")
    (difference,) = identity_differences(before, run_identity(run))
    assert difference.startswith("model.imports was ")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["a row appended", "another reward"])
def test_a_changed_run_is_refused_and_continues_on_request(
    own: dict[str, Any], tmp_path: Path, change: str
) -> None:
    folder = train(own).folder
    make, (field,) = CHANGES[change]
    make(tmp_path)
    longer_run = strop.load(own, ["trainer.duration=2 steps"])
    with pytest.raises(RunFolderError, match=f"(?s){field} was .*, is .*--change {field}.*`resume: never`"):
        strop.train(longer_run)
    with pytest.raises(RunFolderError, match="more than --change names"):
        change_configuration(longer_run.run, ["data.pipeline"])
    assert f"{field} was" in change_configuration(longer_run.run, [field])
    strop.train(longer_run)
    assert [row["step"] for row in rows_of(folder)] == [0, 1, 2]


def of_a_notebook(function: Callable[..., float]) -> Callable[..., float]:
    """The function as a notebook's cell would have defined it."""
    copied = FunctionType(function.__code__, function.__globals__, function.__name__)
    copied.__module__ = "__main__"
    return copied


@pytest.mark.slow
def test_a_changed_function_of_a_notebook_is_refused_and_continues_on_request(own: dict[str, Any]) -> None:
    del own["reward"]
    strop.train(strop.load(own), reward=of_a_notebook(longer))
    longer_run = strop.load(own, ["trainer.duration=2 steps"])
    with pytest.raises(RunFolderError, match=r"reward was code \w+ of longer, is code \w+ of shorter"):
        strop.train(longer_run, reward=of_a_notebook(shorter))
    assert strop.train(longer_run, reward=of_a_notebook(shorter), change=["reward"]).steps == 2


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts_again_with_mended_code(
    own: dict[str, Any], tmp_path: Path
) -> None:
    mended = (tmp_path / "rewards.py").read_text()
    append(tmp_path / "rewards.py", "\n\ndef digit_share(text):\n    raise ValueError('broken')\n")
    with pytest.raises(strop.errors.StropError, match="broken"):
        train(own)
    (tmp_path / "rewards.py").write_text(mended)
    assert train(own).steps == 1
